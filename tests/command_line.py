"""The command line in tests: the type of a function that calls it, and a process of its own."""

import multiprocessing
import sys
import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

# Arguments, to exit status, output and errors, whose line breaks are spaces.
Call = Callable[..., tuple[int, str, str]]


def fork(folder: Path, *arguments: object) -> BaseProcess:
    """Starts ``siftback`` in a fork, which has imported PyTorch; it prints to files of a folder."""
    import siftback.lab.figures.error_plots  # noqa: F401, which takes each fork as long

    def run() -> None:
        from siftback import cli

        warnings.resetwarnings()
        sys.argv = ["siftback", *map(str, arguments)]
        sys.stdout, sys.stderr = ((folder / name).open("w") for name in ("out.txt", "err.txt"))
        cli.main()

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    process.start()
    return process
