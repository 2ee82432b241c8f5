"""How fast safeops is beside torch and the usual hand-written forms: python -m benchmarks."""
