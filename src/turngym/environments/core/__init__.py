"""The contract of an environment and its core: actions, observations, limits, snapshots."""
