"""One op, one file."""
