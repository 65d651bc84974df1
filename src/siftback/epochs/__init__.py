"""Epochs: their order, the draw of their examples, and its counts."""
