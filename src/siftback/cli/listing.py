"""What there is and was: ``siftback strategies`` and ``siftback results``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from siftback.cli.app import app
from siftback.lab.results_page import write_page
from siftback.lab.strategies import STRATEGIES


@app.command("strategies")
def strategies_command() -> None:
    """List the strategies, each with its ideal cost of one example."""
    table = Table(
        "strategy",
        "what it does",
        "ideal cost",
        caption="ideal cost of one example in forwards; a backward costs 2, s is the share kept, "
        "n the interval of selection passes, r the price of one in forwards",
        caption_justify="left",
    )
    for strategy in STRATEGIES.values():
        table.add_row(strategy.name, strategy.summary, strategy.cost)
    Console().print(table)


@app.command("results")
def results_command(
    folder: Annotated[Path, typer.Argument(help="Folder of recorded comparisons.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/results.md"),
) -> None:
    """Build the page of results from recorded comparisons."""
    write_page(folder, out)
    typer.echo(out)
