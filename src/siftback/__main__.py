"""``python -m siftback``, as ``siftback``."""

from siftback.cli import main

main()
