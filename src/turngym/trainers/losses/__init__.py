"""Policy losses: ratios, surrogates, corrections, aggregation. Pure functions."""
