"""One episode's dialogue as a gymnasium.Env: base, spaces, actions, wrappers, checks."""
