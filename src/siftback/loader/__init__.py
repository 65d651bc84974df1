"""The loader that puts source, choice and pool together."""
