"""Engines: what generates tokens, and the local one on torch."""
