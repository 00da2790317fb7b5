"""Back ends: what fulfils the contract of a sandbox, and what they share."""
