"""Floor 1: what things cost. NumPy and Numba only; see docs/ARCHITECTURE.md."""
