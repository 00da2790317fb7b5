"""Evaluation: held-out tasks, one row per episode, intervals, summaries."""
