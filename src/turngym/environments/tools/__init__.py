"""Environments made of tools that others wrote."""
