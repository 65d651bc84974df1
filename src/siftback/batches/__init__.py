"""Batches: their parts, indices and order."""
