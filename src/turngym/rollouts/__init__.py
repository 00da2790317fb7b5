"""Joins environments and policies: one episode, groups, many at once, evaluation."""
