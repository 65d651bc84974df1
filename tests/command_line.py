"""The command line in tests: the type of a function that calls it, and a process of its own."""

import sys
import warnings
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

from started import processes

# Arguments, to exit status, output and errors, whose line breaks are spaces.
Call = Callable[..., tuple[int, str, str]]


def run(folder: Path, *arguments: object) -> None:
    """Runs ``siftback``, which prints to files of a folder."""
    from siftback import cli

    warnings.resetwarnings()
    sys.argv = ["siftback", *map(str, arguments)]
    sys.stdout, sys.stderr = ((folder / name).open("w") for name in ("out.txt", "err.txt"))
    cli.main()


def start(folder: Path, *arguments: object) -> BaseProcess:
    """Runs it in a process of its own."""
    import siftback.lab.figures.error_plots  # noqa: F401, which each fork would import for seconds

    process: BaseProcess = processes().Process(target=run, args=(folder, *arguments), daemon=True)
    process.start()
    return process
