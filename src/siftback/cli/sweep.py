"""Grids of settings: ``siftback sweep``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from siftback import SiftbackError
from siftback.cli.app import app
from siftback.cli.options import (
    CheckpointEvery,
    Checkpoints,
    Json,
    Overwrite,
    Resume,
    Threads,
    existing,
    often,
    seeds,
    settings_of,
    use_threads,
    with_settings,
)

if TYPE_CHECKING:
    from siftback.lab.experiments.sweep import GridCell


@app.command("sweep")
@with_settings()
def sweep_command(
    chosen: dict[str, Any],
    grid: Annotated[
        list[str] | None,
        typer.Option(help="A setting's values: lr=0.05,0.1. Once for each setting; keep is one."),
    ] = None,
    strategies: Annotated[str, typer.Option(help="Names, separated by commas.")] = (
        "traditional,sb"
    ),
    keep: Annotated[
        str, typer.Option(help="Shares of the examples to keep, where the grid has none.")
    ] = "0.33",
    seed: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    out: Annotated[Path, typer.Option(help="Gets a comparison's folder for each cell.")] = Path(
        "runs/sweep"
    ),
    matched: Annotated[
        bool, typer.Option("--matched", help="Add Traditional of each selective run's budget.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Train nothing; print what is done and missing.")
    ] = False,
    threads: Threads = None,
    checkpoint_every: CheckpointEvery = "10m",
    checkpoints: Checkpoints = 2,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Compare in every cell of a grid of settings; print one table."""
    from siftback.cli.ending import show_json
    from siftback.lab.experiments.comparison import Plan
    from siftback.lab.experiments.sweep import KEEP, cells, read_grid, sweep, sweep_table
    from siftback.lab.training.parsing import numbers
    from siftback.lab.training.progress import Terminal
    from siftback.lab.training.workload import most_work

    def plan_of(cell: dict[str, Any]) -> Plan:
        keeps = [cell.pop(KEEP)] if KEEP in cell else numbers("--keep", keep)
        names = [name.strip() for name in strategies.split(",")]
        return Plan(settings_of(chosen | cell), names, keeps, seeds(seed), matched)

    found = cells(read_grid(grid or []), plan_of, out)
    failed: list[GridCell] = []

    def report(cell: "GridCell", error: SiftbackError) -> None:
        failed.append(cell)
        Console(stderr=True, soft_wrap=True).print(
            f"{cell.folder.name}: {error}", markup=False, highlight=False, style="red"
        )

    stopped = False
    if not status:
        settings = [cell.plan.settings for cell in found if overwrite or cell.state != "done"]
        begun = [cell.folder for cell in found] if resume else []
        use_threads(threads, lambda: most_work(settings), begun)
        saving = often(checkpoint_every, checkpoints)
        try:
            with Terminal(Console(stderr=True)) as reporter:
                sweep(found, reporter, existing(overwrite, resume), saving, report)
        except KeyboardInterrupt:
            stopped = True
    if as_json:
        show_json([_numbers(cell) for cell in found])
    else:
        Console().print(sweep_table(found))
    if stopped:
        typer.echo(f"stopped; go on with --out {out} --resume", err=True)
        sys.exit(130)
    if failed:
        sys.exit(1)


def _numbers(cell: "GridCell") -> dict[str, Any]:
    from siftback.lab.report.numbers import numbers

    comparison = cell.comparison
    return {
        "values": cell.values,
        "folder": str(cell.folder),
        "state": cell.state,
        "comparison": None if comparison is None else numbers(comparison),
    }
