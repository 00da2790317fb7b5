"""Experiment trackers: one file each, and the threads that feed them."""
