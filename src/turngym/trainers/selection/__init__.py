"""Which tasks are played, how often, what of it is trained on, and what of the past is added."""
