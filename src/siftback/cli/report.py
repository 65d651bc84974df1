"""One page of recorded comparisons: ``siftback report``."""

from pathlib import Path
from typing import Annotated

import typer

from siftback.cli.app import app


@app.command("report")
def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of recorded comparisons.")],
    out: Annotated[
        Path, typer.Option(help="The folder to write, or a page alone: NAME.html.")
    ] = Path("report"),
) -> None:
    """Make one page of recorded comparisons, index.html.

    Each figure and its numbers lie beside it.
    """
    from siftback.lab.report.page import write_report

    page, problems = write_report(runs, out)
    for problem in problems:
        typer.echo(problem, err=True)
    typer.echo(page)
