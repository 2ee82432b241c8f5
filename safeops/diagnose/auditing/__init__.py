"""Before training: weights, data, settings."""
