"""The application: its commands, which are imported when they are used, and how it is run.

A module of commands imports at its top what their options need, which is light. What does the work
takes seconds to import, PyTorch most of them, and is imported in the body of the command: help,
completion and errors of the command line do not wait for it.
"""

import importlib
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from siftback import __version__
from siftback.errors import SiftbackError

# The sections of the help, each a module of that name, with the first line of each command's help:
# the list of all takes no import.
SECTIONS = {
    "Train": {
        "compare": "Train with several strategies; print one table, draw the errors.",
        "train": "Train one model with one strategy; keep its weights.",
        "sweep": "Compare in every cell of a grid of settings; print one table.",
        "recipes": "List the papers' experiments, each with what it needs.",
        "run": "Run an experiment of the papers and draw its figures.",
    },
    "Before training": {
        "probe": "Measure what selection would cost and save, and whether it pays.",
        "score": "Score the training set by models trained for a little.",
        "overlap": "See how far two tables of scores agree.",
        "prune": "Choose the examples to keep by their scores.",
    },
    "From records": {
        "report": "Make one page of recorded comparisons, index.html.",
        "figures": "Make the papers' figures and tables that records suffice for.",
        "results": "Build the pages of results from recorded comparisons.",
        "suspects": "List the training examples that seem mislabelled.",
        "pack": "Put each comparison into one file.",
    },
    "What there is": {
        "strategies": "List the strategies, each with its ideal cost of one example.",
        "doctor": "Say what is installed and at hand, and how to get what is not.",
        "models": "List the models, each with width and number of parameters.",
    },
}
MODULES = {n: title.lower().replace(" ", "_") for title, lines in SECTIONS.items() for n in lines}


class LazyCommands(TyperGroup):
    """The commands by name and line of help; one is imported when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Lists, completion and guesses of names need no more than these.
        self.commands = {
            name: TyperCommand(name, help=line)
            for lines in SECTIONS.values()
            for name, line in lines.items()
        }

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Imports a command that is called, or whose options are completed."""
        name = args[0]
        if name in MODULES:
            importlib.import_module(f"siftback.cli.{MODULES[name]}")
            info = next(info for info in app.registered_commands if info.name == name)
            self.commands[name] = typer.main.get_command_from_info(
                info, pretty_exceptions_short=False, rich_markup_mode=None
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists them by section."""
        widest = max(map(len, MODULES))
        for title, lines in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), line) for name, line in lines.items()])


app = typer.Typer(
    cls=LazyCommands,
    help="Siftback: choose the examples worth a backward pass, and see whether it paid.",
    epilog="Exit codes: 0 where all is done; 1 where a part failed, such as a cell of a sweep, or "
    "doctor misses a package; 2 at an error, which says what to change; 130 where training is "
    "stopped with Ctrl-C, to go on with --resume.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
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
    warnings.showwarning = print_warning
    try:
        app()
    except SiftbackError as error:
        text = str(error)
    except OSError as error:
        text = (
            f"{error.filename or 'a file'}: {error.strerror or error}; what was finished before is "
            "kept: make room or fix the path, and repeat the command, with --resume where it trains"
        )
    print_error(f"error: {text}")
    sys.exit(2)


def print_error(text: str) -> None:
    """Prints an error in red."""
    Console(stderr=True, soft_wrap=True).print(Text(text, "red"))


def print_warning(message: Warning | str, *where: Any, **others: Any) -> None:
    """Prints a warning without its place in the code, as `warnings.showwarning`."""
    Console(stderr=True, soft_wrap=True).print(Text(f"warning: {message}"))


def show_json(value: Any) -> None:
    """Prints what a script reads; a number that is not finite is null."""
    finite = json.loads(json.dumps(value), parse_constant=lambda name: None)
    typer.echo(json.dumps(finite, indent=2))


def show_rows(rows: Sequence[Mapping[str, str]], as_json: bool, caption: str) -> None:
    """Prints rows as JSON or as a table."""
    from siftback.lab.records.tables import terminal

    if as_json:
        show_json(rows)
    else:
        Console().print(terminal(rows, caption=caption))


def end_stopped(arguments: str) -> NoReturn:
    """Ends a command that Ctrl-C stopped, with the arguments by which it goes on."""
    typer.echo(f"stopped; go on with {arguments}", err=True)
    sys.exit(130)
