"""The application: its commands, which are imported when they are used, and how it is run.

A module of commands imports at its top what their options need, which is light. What does the work
takes seconds to import, PyTorch most of them, and is imported in the body of the command: help,
completion and errors of the command line do not wait for it.
"""

import importlib
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from siftback import __version__
from siftback.errors import SiftbackError

# Of each section of the help, by command: the module that adds it, and the first line of its help.
# So the list of all takes no import.
SECTIONS = {
    "Train": {
        "compare": ("compare", "Train with several strategies; print one table, draw the errors."),
        "train": ("compare", "Train one model with one strategy; keep its weights."),
        "sweep": ("sweep", "Compare in every cell of a grid of settings; print one table."),
        "recipes": ("recipes", "List the papers' experiments, each with what it needs."),
        "run": ("recipes", "Run an experiment of the papers and draw its figures."),
    },
    "Before training": {
        "probe": ("probe", "Measure what selection would cost and save, and whether it pays."),
        "score": ("score", "Score the training set by models trained for a little."),
        "prune": ("score", "Choose the examples to keep by their scores."),
    },
    "From records": {
        "report": ("report", "Make one page of recorded comparisons, index.html."),
        "figures": ("figures", "Make the papers' figures and tables that records suffice for."),
        "results": ("listing", "Build the page of results from recorded comparisons."),
        "suspects": ("suspects", "List the training examples that seem mislabelled."),
        "pack": ("pack", "Put the records of comparisons that ended into one file each."),
    },
    "What there is": {
        "strategies": ("listing", "List the strategies, each with its ideal cost of one example."),
        "doctor": ("doctor", "Say what is installed and at hand, and how to get what is not."),
        "models": ("listing", "List the models, each with width and number of parameters."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyCommands(TyperGroup):
    """The commands by name and line of help; one is imported when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # Lists, completion and guesses of names need no more than these.
        self.commands = {n: TyperCommand(n, help=line) for n, (_, line) in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Imports a command that is called, or whose options are completed."""
        name = args[0]
        if name in COMMANDS:
            importlib.import_module(f"siftback.cli.{COMMANDS[name][0]}")
            info = next(info for info in app.registered_commands if info.name == name)
            self.commands[name] = typer.main.get_command_from_info(
                info, pretty_exceptions_short=False, rich_markup_mode=None
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Lists them by section."""
        widest = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(n.ljust(widest), line) for n, (_, line) in commands.items()])


app = typer.Typer(
    cls=LazyCommands,
    help="Siftback: choose the examples worth a backward pass, and see whether it paid.",
    epilog="Exit codes: 0 where all is done; 1 where a part failed, such as a cell of a sweep, or "
    "doctor misses a package; 2 at an error, which says what to change; 130 where training is "
    "stopped with Ctrl-C, to go on with --resume.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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
    console = Console(stderr=True, soft_wrap=True)
    console.print(text, markup=False, highlight=False, style="red")
