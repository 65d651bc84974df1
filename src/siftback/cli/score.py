"""Pruning before training: ``siftback score`` and ``siftback prune``."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from siftback.cli.app import app
from siftback.cli.options import Threads, settings_of, use_threads, with_settings

# Names of the laboratory's tables, which import torch; `tests/cli/test_help.py` compares them.
# fmt: off
NAMES_OF_SCORES = (
    "el2n", "grand", "margin", "entropy", "loss", "forgetting", "aum", "irreducible",
    "token-irreducible", "sb-uses",
)
# fmt: on


@app.command("score")
@with_settings(
    "data",
    "model",
    "width",
    "norm",
    "batch_size",
    "rate",
    "lr",
    "momentum",
    "weight_decay",
    "cutout",
    "train_limit",
    "precision",
    "device",
    "validation",
)
def score_command(
    values: dict[str, Any],
    score: Annotated[str, typer.Option(help=f"Score: {', '.join(NAMES_OF_SCORES)}.")] = "el2n",
    models: Annotated[int, typer.Option(help="Models to average over.")] = 3,
    epochs: Annotated[float, typer.Option(help="Epochs that each is trained for.")] = 2.0,
    seed: Annotated[int, typer.Option(help="Decides the models' own seeds.")] = 0,
    out: Annotated[Path, typer.Option(help="The Parquet file to write.")] = Path(
        "runs/scores.parquet"
    ),
    overlap: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="In place of scoring: two tables, to see how far they agree."),
    ] = None,
    drop: Annotated[
        str, typer.Option(help="Shares to drop for --overlap, separated by commas.")
    ] = "0.1,0.25,0.5,0.75,0.9",
    threads: Threads = None,
) -> None:
    """Score the training set by models trained for a little.

    With --overlap, see how far two tables of scores agree.
    """
    from siftback.lab.experiments.subsets import overlap_table, score_to
    from siftback.lab.run.progress import ConsoleReporter
    from siftback.lab.run.workload import most_work
    from siftback.lab.settings import parse_numbers

    if overlap is not None:
        Console().print(overlap_table(*overlap, parse_numbers("--drop", drop)))
        return
    settings = settings_of(values)
    use_threads(threads, lambda: most_work([settings]))
    early = replace(settings, epochs=1.0, score_models=models, score_epochs=epochs)
    with ConsoleReporter(Console(stderr=True)) as reporter:
        line = score_to(out, score, early, seed, reporter.scoring)
    typer.echo(line)


@app.command("prune")
def prune_command(
    scores: Annotated[Path, typer.Option(help="A table that siftback score wrote.")],
    out: Annotated[Path, typer.Option(help="The Parquet file of indices to write.")] = Path(
        "runs/kept.parquet"
    ),
    drop: Annotated[float | None, typer.Option(help="Share of the examples to drop.")] = None,
    easiest: Annotated[
        bool, typer.Option("--easiest/--hardest", help="Which to keep; the hardest by default.")
    ] = False,
    window: Annotated[
        str | None, typer.Option(help="In place of --drop: a,b keeps the ranks between, as shares.")
    ] = None,
    per_class: Annotated[bool, typer.Option("--per-class", help="Rank within each class.")] = False,
    seed: Annotated[int, typer.Option(help="Orders examples of equal scores.")] = 0,
) -> None:
    """Choose the examples to keep by their scores.

    For train and compare --subset.
    """
    from siftback.lab.experiments.subsets import prune_to
    from siftback.lab.settings import parse_numbers

    bounds = None if window is None else parse_numbers("--window", window)
    typer.echo(prune_to(out, scores, drop, easiest, bounds, per_class, seed))
