"""Search engines behind one protocol: local indexes and live engines."""
