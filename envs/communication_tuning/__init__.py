"""Tuning partition and credit size of a communication scheduler as an MDP."""
