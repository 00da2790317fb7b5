"""Simulated runs of the scheduler: no model, no waiting."""
