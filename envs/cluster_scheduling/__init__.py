"""Multi-resource cluster scheduling as an MDP."""
