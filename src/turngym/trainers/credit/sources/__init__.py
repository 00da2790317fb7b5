"""Reward sources that a model computes: information gain, progress, judged turns."""
