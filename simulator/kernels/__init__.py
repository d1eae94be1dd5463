"""Numba kernels: arrays in, arrays out, nothing else."""
