"""Models behind an OpenAI-compatible HTTP server."""
