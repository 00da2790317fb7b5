"""The update: forward passes, the learner, the optimizer, adapters."""
