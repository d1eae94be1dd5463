"""Planners of model partitions."""
