"""Cluster schedulers."""
