"""How a comparison ends on a terminal: its table, and a sentence for each selective strategy."""

import json
import math
import textwrap
from typing import Any

import typer
from rich.console import Console

from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.summary_table import comparison_table
from siftback.lab.report.verdict import verdicts

# Not a space to break a line at.
_FIRM = "\N{NO-BREAK SPACE}"


def show(comparison: Comparison) -> None:
    """Prints both."""
    console = Console()
    console.print(comparison_table(comparison), "")
    for one in verdicts([comparison]):
        said = one.sentence.replace(" ± ", f"{_FIRM}±{_FIRM}")
        lines = textwrap.fill(said, console.width, subsequent_indent="  ")
        typer.echo(lines.replace(_FIRM, " "))


def show_json(value: Any) -> None:
    """Prints what a script reads; a number that is not finite is null."""
    typer.echo(json.dumps(_finite(value), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
