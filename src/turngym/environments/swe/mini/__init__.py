"""One wrong line in a handful of tiny files: SWE for policies of a few hundred thousand weights."""
