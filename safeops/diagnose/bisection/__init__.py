"""Which modules it is."""
