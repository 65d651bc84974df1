"""The command line: parses, calls the laboratory, prints."""

import sys

try:
    import rich  # noqa: F401
    import typer  # noqa: F401
except ImportError as error:  # the library alone does not bring them
    sys.exit(f'{error}: the command line needs the laboratory: pip install "siftback[lab]"')

# Each adds its commands to the application, in the order of its help.
from siftback.cli import (  # noqa: I001
    compare,  # noqa: F401
    sweep,  # noqa: F401
    recipes,  # noqa: F401
    probe,  # noqa: F401
    score,  # noqa: F401
    suspects,  # noqa: F401
    figures,  # noqa: F401
    report,  # noqa: F401
    listing,  # noqa: F401
)
from siftback.cli.app import main

__all__ = ["main"]
