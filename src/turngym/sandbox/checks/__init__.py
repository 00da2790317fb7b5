"""Conformance checks and attacks that every back end has to pass."""
