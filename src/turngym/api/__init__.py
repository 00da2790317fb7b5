"""Verbs from Python and the command line alike: evaluate, train, compare; agents by name."""
