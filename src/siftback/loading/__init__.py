"""Batches: their parts, their indices, their order."""
