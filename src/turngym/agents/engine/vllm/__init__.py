"""An engine on servers: vLLM, or our own policy server, which speaks the same wire."""
