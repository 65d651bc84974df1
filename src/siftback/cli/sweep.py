"""Grids of settings: ``siftback sweep``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from siftback import SiftbackError
from siftback.cli.app import app, print_error
from siftback.cli.options import (
    CheckpointEvery,
    Json,
    KeepCheckpoints,
    Overwrite,
    Resume,
    Threads,
    checkpoint_policy,
    existing_policy,
    parse_seeds,
    settings_of,
    use_threads,
    with_settings,
)

if TYPE_CHECKING:
    from siftback.lab.experiments.sweep import GridCell


@app.command("sweep")
@with_settings()
def sweep_command(
    values: dict[str, Any],
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
    checkpoints: KeepCheckpoints = 2,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Compare in every cell of a grid of settings; print one table."""
    from siftback.cli.ending import end_stopped, show_json
    from siftback.lab.experiments.comparison import Plan
    from siftback.lab.experiments.sweep import KEEP, cells, read_grid, sweep, sweep_table
    from siftback.lab.report.numbers import numbers
    from siftback.lab.run.progress import ConsoleReporter
    from siftback.lab.run.workload import most_work
    from siftback.lab.settings import parse_numbers

    def plan_of(cell: dict[str, Any]) -> Plan:
        keeps = [cell.pop(KEEP)] if KEEP in cell else parse_numbers("--keep", keep)
        names = [name.strip() for name in strategies.split(",")]
        return Plan(settings_of(values | cell), names, keeps, parse_seeds(seed), matched)

    grid_cells = cells(read_grid(grid or []), plan_of, out)
    failed: list[GridCell] = []

    def report(cell: "GridCell", error: SiftbackError) -> None:
        failed.append(cell)
        print_error(f"{cell.folder.name}: {error}")

    stopped = False
    if not status:
        settings = [cell.plan.settings for cell in grid_cells if overwrite or cell.state != "done"]
        folders = [cell.folder for cell in grid_cells] if resume else []
        use_threads(threads, lambda: most_work(settings), folders)
        policy = checkpoint_policy(checkpoint_every, checkpoints)
        try:
            with ConsoleReporter(Console(stderr=True)) as reporter:
                sweep(grid_cells, reporter, existing_policy(overwrite, resume), policy, report)
        except KeyboardInterrupt:
            stopped = True
    if as_json:
        cells_json = [
            {
                "values": cell.values,
                "folder": str(cell.folder),
                "state": cell.state,
                "comparison": cell.comparison and numbers(cell.comparison),
            }
            for cell in grid_cells
        ]
        show_json(cells_json)
    else:
        Console().print(sweep_table(grid_cells))
    if stopped:
        end_stopped(f"--out {out} --resume")
    if failed:
        sys.exit(1)
