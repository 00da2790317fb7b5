"""Settings of a training run. Nothing here imports torch."""
