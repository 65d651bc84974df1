"""The application that commands are added to, and how it is run."""

import sys
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from siftback import SiftbackError, __version__

app = typer.Typer(
    help="Siftback: choose the examples worth a backward pass, and see whether it paid.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Shown with --help; the application's own help stands in its place."""
    if version:
        typer.echo(f"siftback {__version__}")
        raise typer.Exit


def main() -> None:
    """Runs the command line; an error that is not a defect of ours is a line, not a traceback."""
    try:
        app()
    except SiftbackError as error:
        _end(str(error))
    except OSError as error:
        _end(
            f"{error.filename or 'a file'}: {error.strerror or error}; what was finished before is "
            "kept: make room or fix the path, and repeat the command, with --resume where it trains"
        )


def _end(text: str) -> NoReturn:
    Console(stderr=True, soft_wrap=True).print(
        f"error: {text}", markup=False, highlight=False, style="red"
    )
    sys.exit(2)
