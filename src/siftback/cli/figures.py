"""Each figure and table of the papers from records: ``siftback figures``."""

from pathlib import Path
from typing import Annotated

import typer

from siftback.cli.app import app

# Names of the laboratory's table, which imports torch; `tests/cli/test_help.py` compares them.
# fmt: off
ANALYSIS_NAMES = (
    "table1", "budget", "fig1", "fig2", "choices", "strip", "fig3", "losses", "fig4", "fig5",
    "fig6", "fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "fig13", "fig14", "fig15", "fig16",
    "fig17", "fig18", "diet-a", "diet-b", "diet-c", "diet-d", "diet-e", "diet-f", "diet-table",
    "ideal", "agreement", "pays", "budgets", "noise", "rates",
)
# fmt: on


@app.command("figures")
def figures_command(
    runs: Annotated[list[Path], typer.Argument(help="Folders of recorded comparisons.")],
    out: Annotated[Path, typer.Option(help="Folder for SVG, PNG, CSV and Markdown.")] = Path(
        "runs/figures"
    ),
    only: Annotated[
        str | None, typer.Option(help=f"Some of {', '.join(ANALYSIS_NAMES)}; by default all.")
    ] = None,
) -> None:
    """Make the papers' figures and tables that records suffice for."""
    from siftback.lab.figures import Missing, analyse, read, write_analysis

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
