"""The first bad operation."""
