"""What gives one score per example: a fresh forward pass, and cheaper or steadier ways."""
