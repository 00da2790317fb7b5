"""Tasks of ours for the tools of others."""
