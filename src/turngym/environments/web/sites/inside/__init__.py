"""For the scripts of programs; on their path, and never imported by turngym."""
