"""One run: its steps, tests, checkpoints and progress."""
