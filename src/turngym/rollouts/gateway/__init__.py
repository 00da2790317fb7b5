"""The recording gateway: programs that no one here wrote, as trajectories."""
