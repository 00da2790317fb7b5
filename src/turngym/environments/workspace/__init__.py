"""A sandboxed folder as an environment: what SWE tasks and terminal tasks share."""
