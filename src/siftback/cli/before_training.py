"""Before training: ``siftback probe``, ``score``, ``overlap`` and ``prune``."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from siftback.cli.options import command, settings_of, use_threads
from siftback.errors import ConfigError
from siftback.lab.settings import check_run_seed, parse_number, parse_numbers

PROBED = (
    *("data", "model", "width", "norm", "batch_size", "lr", "weight_decay", "train_limit"),
    *("precision", "device"),
)
SCORED = (
    *("data", "model", "width", "norm", "batch_size", "rate", "lr", "momentum", "weight_decay"),
    *("cutout", "train_limit", "max_tokens", "precision", "device", "validation", "rare"),
)


@command("probe", *PROBED)
def probe_command(
    values: dict[str, Any],
    keep: str = "1/2,1/3,1/4",
    epochs: int = 4,
    threads: int | None = None,
    seconds: float = 30,
    forecast: bool = False,
    json: bool = False,
) -> None:
    """Measure what selection would cost and save, and whether it pays.

    Per epoch, on one model and its data, within a minute; the answer is in the first line.

    Args:
        keep: Shares of the examples to keep, separated by commas.
        epochs: Length of the training whose speed-up is shown.
        seconds: How long to take.
        forecast: Train a warm-up too, and say what Memory is expected to be worth.
    """
    from siftback import forecast as forecast_of
    from siftback.lab.experiments.probe_run import probe_report, probe_settings, with_scorers
    from siftback.lab.experiments.warm_up import warm_up
    from siftback.lab.run.progress import ConsoleReporter
    from siftback.lab.run.workload import most_work

    settings, keeps = settings_of(values), parse_numbers("--keep", keep)
    if not 0 < seconds < float("inf"):
        raise ConfigError(f"seconds={seconds:g}: give a number of seconds above 0")
    if forecast and epochs < 2:
        raise ConfigError(f"--epochs {epochs} with --forecast, whose warm-up takes 1: give more")
    use_threads(threads, lambda: most_work([settings]))
    with Console(stderr=True).status("measuring"):
        result = probe_settings(settings, keeps, seconds, epochs)
    if forecast:
        with ConsoleReporter(Console(stderr=True)) as reporter:
            by_budget = replace(settings, epochs=None, budget=epochs)
            losses, done = warm_up(by_budget, 0, reporter.scoring)
        result = replace(result, forecast=forecast_of(losses, epochs=epochs, done=done * epochs))
    if json:
        typer.echo(result.to_json())
    else:
        typer.echo(with_scorers(result.answer))  # in a line, however narrow the terminal is
        Console().print(probe_report(result, f"{settings.model_name} on {settings.data}"))


@command("score", *SCORED)
def score_command(
    values: dict[str, Any],
    score: str = "el2n",
    models: int = 3,
    epochs: float = 2.0,
    seed: int = 0,
    out: Path = Path("runs/scores.parquet"),
    threads: int | None = None,
) -> None:
    """Score the training set by models trained for a little.

    Args:
        score: Score: el2n, grand, margin, entropy, loss, forgetting, aum, irreducible,
            token-irreducible, sb-uses.
        models: Models to average over.
        epochs: Epochs that each is trained for.
        seed: Decides the models' own seeds.
        out: The Parquet file to write.
    """
    from siftback.lab.experiments.example_scores import score_examples
    from siftback.lab.records.folder import check_writable
    from siftback.lab.records.formatting import counted, readable
    from siftback.lab.run.progress import ConsoleReporter
    from siftback.lab.run.workload import most_work

    settings = settings_of(values)
    use_threads(threads, lambda: most_work([settings]))
    early = replace(settings, epochs=1.0, score_models=models, score_epochs=epochs)
    check_writable(out)
    check_run_seed(seed)
    with ConsoleReporter(Console(stderr=True)) as reporter:
        table = score_examples(score, early, seed, update=reporter.scoring)
    table.write(out)
    typer.echo(
        f"{out}: {score} of {len(table.labels)} examples by {counted(models, 'model')}, "
        f"{table.origin['seconds']:.1f} s, {readable(table.origin['cost'])} forwards"
    )


@command("overlap")
def overlap_command(first: Path, second: Path, drop: str = "0.1,0.25,0.5,0.75,0.9") -> None:
    """See how far two tables of scores agree.

    Args:
        first: A table that siftback score wrote.
        second: Another, of the same examples.
        drop: Shares to drop, separated by commas.
    """
    from siftback.lab.experiments.example_scores import overlap_table

    Console().print(overlap_table(first, second, parse_numbers("--drop", drop)))


@command("prune")
def prune_command(
    *,
    scores: Path,
    out: Path = Path("runs/kept.parquet"),
    drop: str | None = None,
    easiest: Annotated[
        bool, typer.Option("--easiest/--hardest", help="Which to keep; the hardest by default.")
    ] = False,
    window: str | None = None,
    per_class: bool = False,
    seed: int = 0,
) -> None:
    """Choose the examples to keep by their scores.

    For train and compare --subset.

    Args:
        scores: A table that siftback score wrote.
        out: The Parquet file of indices to write.
        drop: Share of the examples to drop.
        window: In place of --drop: a,b keeps the ranks between, as shares.
        per_class: Rank within each class.
        seed: Orders examples of equal scores.
    """
    from siftback.lab.experiments.example_scores import OF_TOKENS, Scores, write_subset
    from siftback.lab.records.folder import check_writable
    from siftback.pruning import prune

    check_writable(out)
    check_run_seed(seed)
    share = parse_number("--drop", drop) if drop else None
    ranks: Any = None if window is None else tuple(parse_numbers("--window", window))
    if easiest and ranks:
        raise ConfigError(f"--easiest and --window {window}: give one of them")
    if ranks and len(ranks) != 2:
        raise ConfigError(f"--window {window}: give two shares, such as 0.1,0.9")
    table = Scores.read(scores)
    if out.exists() and out.samefile(scores):
        raise ConfigError(f"--out {out} is the table of --scores, and would be lost: give another")
    score = table.origin.get("score")
    if score in OF_TOKENS:
        raise ConfigError(
            f"{scores} holds {score}, a score of each token, and examples are pruned: "
            "give a table of another score"
        )
    indices = prune(
        table.scores,
        share,
        keep="easiest" if easiest else "hardest",
        window=ranks,
        per_class=table.labels if per_class else None,
        seed=seed,
    )
    options = {"drop": share, "easiest": easiest, "window": ranks, "per_class": per_class}
    write_subset(out, table, indices, options | {"seed": seed})
    typer.echo(f"{out}: {len(indices)} of {len(table.labels)} examples kept by {score}")
