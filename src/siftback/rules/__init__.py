"""Choose an epoch's examples before any is read."""
