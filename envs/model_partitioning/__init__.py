"""Partitioning a large model over geo-distributed clusters as an MDP."""
