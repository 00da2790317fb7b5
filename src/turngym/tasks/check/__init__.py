"""Is a task sound? What ``turngym check task`` asks of it."""
