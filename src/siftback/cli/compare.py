"""Training: ``siftback compare`` and ``siftback train``."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from siftback.cli.app import app
from siftback.cli.options import (
    Beta,
    CheckpointEvery,
    Checkpoints,
    Json,
    Overwrite,
    Resume,
    Threads,
    ToTensorBoard,
    existing,
    often,
    seeds,
    shares,
    use_threads,
    with_settings,
)
from siftback.errors import ConfigError
from siftback.lab.training.settings import Settings

if TYPE_CHECKING:
    from torch import nn

    from siftback.lab.data.data_set import DataSet
    from siftback.lab.experiments.comparison import Existing, Plan
    from siftback.lab.training.checkpoints import Often

SEVERAL = (0, 1, 2)  # seeds

Out = Annotated[Path, typer.Option(help="Folder for summary, records and plots.")]


@app.command("compare")
@with_settings()
def compare_command(
    settings: Settings,
    strategies: Annotated[
        str,
        typer.Option(help="Names, separated by commas; sb@0.5 has a share to keep of its own."),
    ] = "traditional,sb,random",
    keep: Annotated[
        str | None,
        typer.Option(help="Shares of the examples to keep, separated by commas; 0.33 by default."),
    ] = None,
    beta: Beta = None,
    seed: Annotated[
        str | None,
        typer.Option(
            help="Seeds, separated by commas; by default 0,1,2 where a run takes less than about a "
            "minute, and otherwise 0."
        ),
    ] = None,
    out: Out = Path("runs/compare"),
    no_matched: Annotated[
        bool,
        typer.Option("--no-matched", help="Leave out Traditional of each selective run's budget."),
    ] = False,
    threads: Threads = None,
    checkpoint_every: CheckpointEvery = "10m",
    checkpoints: Checkpoints = 2,
    tensorboard: ToTensorBoard = False,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train with several strategies; print one table, draw the errors.

    All start from the same weights and see the data in the same order. It ends with a sentence for
    each strategy that selects: whether it paid, beside Traditional of the same cost.
    """
    from siftback.lab.experiments.comparison import Plan, prepare_data
    from siftback.lab.training.strategies import find
    from siftback.lab.training.workload import batch_work, is_short

    plan = Plan(
        settings,
        strategies=[name.strip() for name in strategies.split(",")],
        keeps=shares(keep, beta),
        seeds=[0] if seed is None else seeds(seed),
        matched=not no_matched,
    )
    old, saving = existing(overwrite, resume), often(checkpoint_every, checkpoints)
    data = prepare_data(plan)
    if seed is None and is_short(settings, data):
        plan = replace(plan, seeds=list(SEVERAL))
    if len(plan.seeds) == 1 and any(find(run.strategy).selects for run in plan.runs()):
        several = ",".join(map(str, SEVERAL))
        typer.echo(f"one seed decides nothing: --seed {several} would show their spread", err=True)
    use_threads(threads, lambda: batch_work(settings, data), [out] if resume else [])
    _run(plan, data, out, old, saving, tensorboard, as_json=as_json)


@app.command("train")
@with_settings()
def train_command(
    settings: Settings,
    strategy: Annotated[str, typer.Option(help="Name of the strategy.")] = "sb",
    keep: Annotated[
        str | None, typer.Option(help="Share of the examples to keep; 0.33 by default.")
    ] = None,
    beta: Beta = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, data order and selection.")] = 0,
    out: Out = Path("runs/train"),
    threads: Threads = None,
    checkpoint_every: CheckpointEvery = "10m",
    checkpoints: Checkpoints = 2,
    tensorboard: ToTensorBoard = False,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train one model with one strategy; keep its weights.

    They are in weights.pt, in the folder of --out.
    """
    import torch

    from siftback.lab.experiments.comparison import Plan, prepare_data
    from siftback.lab.records.atomic_write import atomic_write
    from siftback.lab.training.workload import batch_work

    keeps = shares(keep, beta)
    if len(keeps) > 1:
        given = f"--keep {keep}" if beta is None else f"--beta {beta}"
        raise ConfigError(
            f"{given}: give one, as one model is trained; siftback compare trains several"
        )
    plan = Plan(settings, [strategy], keeps, [seed], matched=False)

    def save(_: Any, trained: "nn.Module") -> None:
        with atomic_write(out / "weights.pt") as path, path.open("wb") as file:
            torch.save(trained.state_dict(), file)

    old, saving = existing(overwrite, resume), often(checkpoint_every, checkpoints)
    data = prepare_data(plan)
    use_threads(threads, lambda: batch_work(settings, data), [out] if resume else [])
    _run(plan, data, out, old, saving, tensorboard, save, as_json)


def _run(
    plan: "Plan",
    data: "DataSet",
    out: Path,
    existing: "Existing",
    saving: "Often",
    tensorboard: bool,
    on_model: "Callable[[Any, nn.Module], None]" = lambda run, model: None,
    as_json: bool = False,
) -> None:
    from siftback.cli.ending import show, show_json
    from siftback.lab.analyses.error_plots import draw
    from siftback.lab.experiments.comparison import compare
    from siftback.lab.records.comparison_record import SUMMARY, Comparison
    from siftback.lab.report.numbers import numbers
    from siftback.lab.training.progress import Terminal
    from siftback.lab.training.tensorboard import TENSORBOARD, TensorBoard

    stopped = False
    try:
        with Terminal(Console(stderr=True)) as terminal:
            reporter = TensorBoard(out / TENSORBOARD, terminal) if tensorboard else terminal
            compare(plan, out, reporter, existing, on_model, saving, data)
    except KeyboardInterrupt:
        stopped = True
    if (out / SUMMARY).exists() and (comparison := Comparison.read(out)).runs:
        picture = draw(comparison, out)[0]
        if as_json:
            show_json(numbers(comparison) | {"picture": str(picture)})
        else:
            show(comparison)
            typer.echo(f"picture: {picture}")
    if stopped:
        typer.echo(f"stopped; go on with --out {out} --resume", err=True)
        sys.exit(130)
