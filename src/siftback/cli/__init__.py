"""The command line: parses, calls the laboratory, prints."""

import sys

from siftback.installation import install_command

try:
    import rich  # noqa: F401
    import typer  # noqa: F401
except ImportError as error:  # the library alone does not bring them
    sys.exit(f"{error}: the command line needs the laboratory: {install_command('lab')}")

from siftback.cli.app import main

__all__ = ["main"]
