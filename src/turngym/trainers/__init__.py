"""Training: samples, turn credit, losses, the learner, checkpoints and the loop."""
