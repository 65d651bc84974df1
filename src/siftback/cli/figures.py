"""Each figure and table of the papers from records: ``siftback figures``."""

from pathlib import Path
from typing import Annotated

import typer

from siftback.cli.app import app
from siftback.cli.names import ANALYSES


@app.command("figures")
def figures_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of recorded comparisons.")],
    out: Annotated[Path, typer.Option(help="Folder for SVG, PNG, CSV and Markdown.")] = Path(
        "runs/figures"
    ),
    only: Annotated[
        str | None, typer.Option(help=f"Some of {', '.join(ANALYSES)}; by default all.")
    ] = None,
) -> None:
    """Make the papers' figures and tables that records suffice for."""
    from siftback.lab.analyses import Missing, analyse, read, write_analysis

    names = None if only is None else [name.strip() for name in only.split(",")]
    comparisons, problems = read(runs)
    analyses = analyse(comparisons, names)
    for problem in problems:
        typer.echo(problem, err=True)
    for name, analysis in analyses.items():
        if isinstance(analysis, Missing):
            typer.echo(f"{name}: missing. {analysis.why}")
        else:
            files = ", ".join(path.name for path in write_analysis(analysis, out))
            typer.echo(f"{name}: {files}. {analysis.sentence}")
