"""Every layer over the steps."""
