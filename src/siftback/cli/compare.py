"""Training: ``siftback compare`` and ``siftback train``."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from siftback.cli.app import app
from siftback.cli.options import (
    Beta,
    CheckpointEvery,
    Json,
    KeepCheckpoints,
    Overwrite,
    Resume,
    Threads,
    ToTensorBoard,
    checkpoint_policy,
    existing_policy,
    keeps_of,
    parse_seeds,
    settings_of,
    use_threads,
    with_settings,
)
from siftback.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from siftback.lab.experiments.comparison import Plan
    from siftback.lab.run.checkpoints import CheckpointPolicy

SEVERAL = [0, 1, 2]  # seeds

Out = Annotated[Path, typer.Option(help="Folder for summary, records and plots.")]


@app.command("compare")
@with_settings()
def compare_command(
    values: dict[str, Any],
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
    checkpoints: KeepCheckpoints = 2,
    tensorboard: ToTensorBoard = False,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train with several strategies; print one table, draw the errors.

    All start from the same weights and see the data in the same order. It ends with a sentence for
    each strategy that selects: whether it paid, beside Traditional of the same cost.
    """
    from siftback.lab.experiments.comparison import Plan

    plan = Plan(
        settings_of(values),
        strategies=[name.strip() for name in strategies.split(",")],
        keeps=keeps_of(keep, beta),
        seeds=[0] if seed is None else parse_seeds(seed),
        matched=not no_matched,
    )
    several = SEVERAL if seed is None else plan.seeds
    policy = checkpoint_policy(checkpoint_every, checkpoints)
    _train(plan, several, out, threads, policy, tensorboard, overwrite, resume, as_json)


@app.command("train")
@with_settings()
def train_command(
    values: dict[str, Any],
    strategy: Annotated[str, typer.Option(help="Name of the strategy.")] = "sb",
    keep: Annotated[
        str | None, typer.Option(help="Share of the examples to keep; 0.33 by default.")
    ] = None,
    beta: Beta = None,
    seed: Annotated[int, typer.Option(help="Seed of weights, data order and selection.")] = 0,
    out: Out = Path("runs/train"),
    threads: Threads = None,
    checkpoint_every: CheckpointEvery = "10m",
    checkpoints: KeepCheckpoints = 2,
    tensorboard: ToTensorBoard = False,
    overwrite: Overwrite = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Train one model with one strategy; keep its weights.

    They are in weights.pt, in the folder of --out.
    """
    import torch

    from siftback.lab.experiments.comparison import Plan
    from siftback.lab.records.atomic_write import atomic_write

    keeps = keeps_of(keep, beta)
    if len(keeps) > 1:
        option = f"--keep {keep}" if beta is None else f"--beta {beta}"
        raise ConfigError(
            f"{option}: give one, as one model is trained; siftback compare trains several"
        )

    def save(_: Any, trained: "nn.Module") -> None:
        with atomic_write(out / "weights.pt") as path, path.open("wb") as file:
            torch.save(trained.state_dict(), file)

    plan = Plan(settings_of(values), [strategy], keeps, [seed], matched=False)
    policy = checkpoint_policy(checkpoint_every, checkpoints)
    _train(plan, [], out, threads, policy, tensorboard, overwrite, resume, as_json, save)


def _train(
    plan: "Plan",
    several: Sequence[int],
    out: Path,
    threads: int | None,
    policy: "CheckpointPolicy",
    tensorboard: bool,
    overwrite: bool,
    resume: bool,
    as_json: bool,
    on_model: "Callable[[Any, nn.Module], None]" = lambda run, model: None,
) -> None:
    """Carries out a plan, with several seeds where it is short, and prints the results."""
    from siftback.cli.ending import end_stopped, show_comparison, show_json
    from siftback.lab.experiments.comparison import compare, prepare_data
    from siftback.lab.figures.error_plots import draw_errors
    from siftback.lab.records.comparison_record import SUMMARY, Comparison
    from siftback.lab.report.numbers import numbers
    from siftback.lab.run.progress import TENSORBOARD, ConsoleReporter, TensorBoardReporter
    from siftback.lab.run.workload import batch_work, is_short
    from siftback.lab.strategies.table import find_strategy

    existing, settings = existing_policy(overwrite, resume), plan.settings
    data = prepare_data(plan)
    if several and is_short(settings, data):
        plan = replace(plan, seeds=several)
    selects = any(find_strategy(run.strategy).selects for run in plan.runs())
    if several and len(plan.seeds) == 1 and selects:
        seeds = ",".join(map(str, SEVERAL))
        typer.echo(f"one seed decides nothing: --seed {seeds} would show their spread", err=True)
    use_threads(threads, lambda: batch_work(settings, data), [out] if resume else [])
    stopped = False
    try:
        console = Console(stderr=True)
        with (
            TensorBoardReporter(console, out / TENSORBOARD)
            if tensorboard
            else ConsoleReporter(console)
        ) as reporter:
            compare(plan, out, reporter, existing, on_model, policy, data)
    except KeyboardInterrupt:
        stopped = True
    if (out / SUMMARY).exists() and (comparison := Comparison.read(out)).runs:
        picture = draw_errors(comparison, out)[0]
        if as_json:
            show_json(numbers(comparison) | {"picture": str(picture)})
        else:
            show_comparison(comparison)
            typer.echo(f"picture: {picture}")
    if stopped:
        end_stopped(f"--out {out} --resume")
