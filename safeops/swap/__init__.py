"""Make an existing model safe without editing it."""
