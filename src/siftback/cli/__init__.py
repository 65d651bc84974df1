"""The command line: parses, calls the laboratory, prints."""

import sys

try:
    import rich  # noqa: F401
    import typer  # noqa: F401
except ImportError as error:  # the library alone does not bring them
    sys.exit(f'{error}: the command line needs the laboratory: pip install "siftback[lab]"')

# Each adds its commands to the application, in the order of its help.
from siftback.cli import compare, sweep, probe, score, suspects, figures, report, listing  # noqa: F401, I001
from siftback.cli.app import main

__all__ = ["main"]
