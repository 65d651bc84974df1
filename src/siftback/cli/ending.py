"""The end of a command: the table and sentences of a comparison, JSON, and a stop by Ctrl-C."""

import json
import math
import sys
import textwrap
from typing import Any, NoReturn

import typer
from rich.console import Console

from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.summary_table import comparison_table
from siftback.lab.report.verdict import verdicts

# Not a space to break a line at.
_FIRM = "\N{NO-BREAK SPACE}"


def show_comparison(comparison: Comparison) -> None:
    """Prints the table of a comparison, and a sentence for each selective strategy."""
    console = Console()
    console.print(comparison_table(comparison), "")
    for verdict in verdicts([comparison]):
        sentence = verdict.sentence.replace(" ± ", f"{_FIRM}±{_FIRM}")
        lines = textwrap.fill(sentence, console.width, subsequent_indent="  ")
        typer.echo(lines.replace(_FIRM, " "))


def show_json(value: Any) -> None:
    """Prints what a script reads; a number that is not finite is null."""
    typer.echo(json.dumps(finite(value), indent=2, allow_nan=False))


def finite(value: Any) -> Any:
    """Returns nested values with None in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {name: finite(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def end_stopped(arguments: str) -> NoReturn:
    """Ends a command that Ctrl-C stopped, with the arguments by which it goes on."""
    typer.echo(f"stopped; go on with {arguments}", err=True)
    sys.exit(130)
