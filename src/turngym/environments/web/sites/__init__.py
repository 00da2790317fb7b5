"""Real web applications as environments: programs from a registry, started per slot."""
