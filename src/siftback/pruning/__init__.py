"""Choose once, before training."""
