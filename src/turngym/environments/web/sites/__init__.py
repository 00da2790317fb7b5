"""Real web applications as environments: each a program from a registry, started per episode slot."""
