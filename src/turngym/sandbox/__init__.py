"""Run commands nobody trusts: sandboxes with honest guarantees that fork in milliseconds."""
