"""Task folders in Harbor's format, schema 1.4: read, written, and played as they are."""
