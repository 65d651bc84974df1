"""``python -m siftback.cli``."""

from siftback.cli import main

main()
