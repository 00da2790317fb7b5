"""One policy, trained by several processes: each has a share of its weights and of each batch."""
