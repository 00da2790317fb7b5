"""Group-relative credit: returns, baseline groups, normalisation, combination."""
