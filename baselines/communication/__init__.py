"""Tuners of the communication scheduler."""
