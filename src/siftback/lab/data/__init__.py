"""Data sets, and batches of them."""
