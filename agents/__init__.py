"""Floor 3: reinforcement-learning agents as methods, with their hyper-parameters."""
