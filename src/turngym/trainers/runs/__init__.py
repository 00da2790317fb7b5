"""One training run: its folder, checkpoints, progress and resumption."""
