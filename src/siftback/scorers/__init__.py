"""Scorers: a fresh forward pass, and cheaper or more stable alternatives."""
