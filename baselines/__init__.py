"""Floor 2: published optimisers and heuristics as methods over the shared instances."""
