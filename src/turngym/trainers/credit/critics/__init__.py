"""Credit from a learned critic: GAE, ArCHer, best-of-n extraction."""
