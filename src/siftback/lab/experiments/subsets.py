"""What ``siftback score`` and ``siftback prune`` do, and what they say of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from siftback.errors import ConfigError
from siftback.lab.experiments.example_scores import (
    OF_TOKENS,
    Scores,
    overlaps,
    score_examples,
    write_subset,
)
from siftback.lab.records.atomic_write import check_writable
from siftback.lab.records.formatting import readable
from siftback.lab.records.tables import terminal
from siftback.lab.settings import Settings, check_seed
from siftback.pruning import prune


def score_to(
    out: Path, name: str, settings: Settings, seed: int, update: Callable[[float], None]
) -> str:
    """Scores a training set into a file.

    Args:
        out: Where to.
        name: One of `example_scores.SCORE_NAMES`.
        settings: How to train the models that score.
        seed: Decides theirs.
        update: Called with the share of it that is done.

    Returns:
        What it holds and what it cost, in a line.
    """
    _refuse_folder(out)
    check_seed(seed)
    check_writable(out)
    table = score_examples(name, settings, seed, update=update)
    table.write(out)
    made = table.made
    return (
        f"{out}: {name} of {len(table.labels)} examples by {len(made['seeds'])} models, "
        f"{made['seconds']:.1f} s, {readable(made['cost'])} forwards"
    )


def prune_to(
    out: Path,
    file: Path,
    drop: float | None,
    easiest: bool,
    window: Sequence[float] | None,
    per_class: bool,
    seed: int,
) -> str:
    """Chooses what to keep by a table of scores, into a file.

    Args:
        out: Where to.
        file: The table.
        drop: As for `siftback.pruning.prune`.
        easiest: Whether to keep those in place of the hardest.
        window: As for `siftback.pruning.prune`.
        per_class: Whether to rank within each class.
        seed: As for `siftback.pruning.prune`.

    Returns:
        How many are kept, in a line.
    """
    _refuse_folder(out)
    check_seed(seed)
    if easiest and window is not None:
        raise ConfigError(f"--easiest and --window {window}: give one of them")
    if window is not None and len(window) != 2:
        raise ConfigError(f"--window {window}: give two shares, such as 0.1,0.9")
    table = Scores.read(file)
    if table.made.get("score") in OF_TOKENS:
        raise ConfigError(
            f"{file} holds {table.made['score']}, a score of each token, and examples are pruned: "
            "give a table of another score"
        )
    kept = prune(
        table.scores,
        drop,
        keep="easiest" if easiest else "hardest",
        window=None if window is None else (window[0], window[1]),
        per_class=table.labels if per_class else None,
        seed=seed,
    )
    asked: dict[str, Any] = {"drop": drop, "easiest": easiest, "window": window}
    write_subset(out, table, kept, asked | {"per_class": per_class, "seed": seed})
    return f"{out}: {len(kept)} of {len(table.labels)} examples kept by {table.made['score']}"


def agreement_of(one: Path, other: Path, drops: Sequence[float]) -> Table:
    """How far two tables of scores agree on what to drop, and on what to keep."""
    rows = [
        {
            "drop": f"{drop:g}",
            "dropped by both": f"{dropped:.3f} ({drop:g})",
            "kept by both": f"{kept:.3f} ({1 - drop:g})",
        }
        for drop, dropped, kept in overlaps(Scores.read(one), Scores.read(other), drops)
    ]
    caption = (
        "Of what the first drops, or keeps, the share that the second does too; in brackets what "
        "a random choice gives."
    )
    return terminal(rows, title=f"{one.name} and {other.name}", caption=caption)


def _refuse_folder(out: Path) -> None:
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: give --out a file, such as {out / 'a.parquet'}")
