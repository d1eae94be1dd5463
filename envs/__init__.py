"""Floor 2: decisions of distributed training as Gymnasium environments."""
