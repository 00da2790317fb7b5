"""A phone-shaped browser with small applications; see ``docs/desktop.md``."""
