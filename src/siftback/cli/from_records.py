"""From records: ``siftback report``, ``figures``, ``results``, ``suspects`` and ``pack``."""

from itertools import chain
from pathlib import Path

import typer
from rich.console import Console

from siftback.cli.app import show_json
from siftback.cli.options import command
from siftback.errors import ConfigError


@command("report")
def report_command(runs: list[Path], out: Path = Path("report")) -> None:
    """Make one page of recorded comparisons, index.html.

    Each figure and its numbers lie beside it.

    Args:
        runs: Folders of recorded comparisons.
        out: The folder to write, or a page alone: NAME.html.
    """
    from siftback.lab.report.page import write_report

    page, problems = write_report(runs, out)
    for problem in problems:
        typer.echo(problem, err=True)
    typer.echo(page)


@command("figures")
def figures_command(
    runs: list[Path], out: Path = Path("runs/figures"), only: str | None = None
) -> None:
    """Make the papers' figures and tables that records suffice for.

    Args:
        runs: Folders of recorded comparisons.
        out: Folder for SVG, PNG, CSV and Markdown.
        only: Some, separated by commas, of table1, budget, fig1, fig2, choices, strip, fig3,
            losses, fig4, fig5, fig6, fig7, fig8, fig9, fig10, fig11, fig12, fig13, fig14, fig15,
            fig16, fig17, fig18, diet-a, diet-b, diet-c, diet-d, diet-e, diet-f, diet-table, ideal,
            agreement, pays, budgets, worst, map, noise, rare, rates; by default all.
    """
    from siftback.lab.figures.analyses import analyse
    from siftback.lab.figures.figure import Missing
    from siftback.lab.figures.reading import read
    from siftback.lab.figures.writing import write_analysis

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


@command("results")
def results_command(
    folder: Path,
    out: Path = Path("docs/results.md"),
    into: Path | None = None,
    saving: Path | None = None,
    json: bool = False,
) -> None:
    """Build the pages of results from recorded comparisons.

    Args:
        folder: Folder of recorded comparisons.
        out: The page to write; measurements.md and map.md are written beside it, and a papers.md
            there that has marks for the papers' numbers is given them.
        into: A page that is given what to use where, between its marks; and where it has marks for
            them, a headline and what a step costs.
        saving: An SVG or PNG file, drawn of what Memory() saves in the headline.
        json: Print every verdict as JSON, and nothing else.
    """
    from siftback.lab.report.front import draw_saving, write_parts
    from siftback.lab.report.numbers import verdict_numbers
    from siftback.lab.report.pages import write_map, write_measurements, write_page
    from siftback.lab.report.verdict import verdicts

    comparisons, ratios = write_page(folder, out)
    measurements, papers = (out.with_name(name) for name in ("measurements.md", "papers.md"))
    write_measurements(folder, measurements)
    written = [out, measurements, *write_map(folder, out.with_name("map.md"), ratios)]
    if write_parts(ratios, folder, papers):
        written.append(papers)
    if into and not write_parts(ratios, folder, into):
        raise ConfigError(
            f"{into} has no marks: put <!-- budget ratios --> and <!-- end of budget ratios --> "
            "there, a line each"
        )
    if saving:
        draw_saving(ratios, saving)
    paths = [str(path) for path in (*written, into, saving) if path]
    if json:
        show_json({"written": paths, "verdicts": [*map(verdict_numbers, verdicts(comparisons))]})
    else:
        typer.echo("\n".join(paths))


@command("suspects")
def suspects_command(
    *, run: Path, name: str | None = None, out: Path | None = None, most: int = 20
) -> None:
    """List the training examples that seem mislabelled.

    The label issues of a noise guard, beside those of cleanlab.

    Args:
        run: Folder of a comparison with a guarded strategy.
        name: Which of its guarded runs; by default all, the first listed.
        out: A Parquet file, to list all label issues of that run in.
        most: How many to print.
    """
    from siftback.lab.experiments import suspects_report

    suspects = suspects_report.read_suspects(run, name)
    if out:
        suspects_report.write_ranked(out, *next(iter(suspects.items())))
    Console().print(suspects_report.suspects_tables(suspects, most))


@command("pack")
def pack_command(folders: list[Path]) -> None:
    """Put each comparison into one file.

    A run writes a file of its own under records/, and summary.json lists them; here those that
    ended and the summary become one, records.jsonl.gz, compressed, as is best in a repository.
    Every command reads both, and --resume goes on from both.

    Args:
        folders: Folders that siftback compare wrote, or that hold such.
    """
    from siftback.lab.records.folder import SUMMARY, comparison_folders, pack
    from siftback.lab.records.formatting import counted

    paths = [path for folder in folders for path in comparison_folders(folder)]
    if not paths:
        names = ", ".join(map(str, folders))
        raise ConfigError(f"{names} holds no {SUMMARY}: give folders that siftback compare wrote")
    moved, problems = zip(*map(pack, paths), strict=True)
    for problem in chain(*problems):
        typer.echo(problem, err=True)
    packed, among = counted(sum(moved), "file"), counted(sum(map(bool, moved)), "comparison")
    typer.echo(f"{packed} packed, of {among}")
