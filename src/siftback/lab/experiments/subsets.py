"""Subsets of a training set, chosen by a table of scores: ``siftback score`` and ``prune``.

A subset is a Parquet file of one column, ``index``. Its metadata say, under ``siftback``, how it
was made.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.data_set import DataSet
from siftback.lab.experiments.example_scores import OF_TOKENS, Scores, overlaps, score_examples
from siftback.lab.records.atomic_write import check_writable
from siftback.lab.records.columns import column_of, read_columns, write_columns
from siftback.lab.records.formatting import readable
from siftback.lab.records.tables import terminal
from siftback.lab.settings import Settings, check_run_seed
from siftback.pruning import prune

# Training examples are counted from 0 within what these settings leave of the data set.
PLACE = ("data", "train_limit", "validation", "max_tokens")


def score_to(
    out: Path, name: str, settings: Settings, seed: int, update: Callable[[float], None]
) -> str:
    """Scores a training set into a file.

    Args:
        out: The file.
        name: One of `example_scores.SCORE_NAMES`.
        settings: How to train the models that score.
        seed: Decides their seeds.
        update: Called with the share of it that is done.

    Returns:
        Its content and its cost, in a line.
    """
    refuse_folder(out)
    check_run_seed(seed)
    check_writable(out)
    table = score_examples(name, settings, seed, update=update)
    table.write(out)
    origin = table.origin
    return (
        f"{out}: {name} of {len(table.labels)} examples by {len(origin['seeds'])} models, "
        f"{origin['seconds']:.1f} s, {readable(origin['cost'])} forwards"
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
    """Chooses the examples to keep by a table of scores, into a file.

    Args:
        out: The file of the subset.
        file: The table.
        drop: As for `siftback.pruning.prune`.
        easiest: Whether to keep those in place of the hardest.
        window: As for `siftback.pruning.prune`.
        per_class: Whether to rank within each class.
        seed: As for `siftback.pruning.prune`.

    Returns:
        The number of examples kept, in a line.
    """
    refuse_folder(out)
    check_run_seed(seed)
    if easiest and window is not None:
        raise ConfigError(f"--easiest and --window {window}: give one of them")
    if window is not None and len(window) != 2:
        raise ConfigError(f"--window {window}: give two shares, such as 0.1,0.9")
    table = Scores.read(file)
    score = table.origin.get("score")
    if score in OF_TOKENS:
        raise ConfigError(
            f"{file} holds {score}, a score of each token, and examples are pruned: "
            "give a table of another score"
        )
    indices = prune(
        table.scores,
        drop,
        keep="easiest" if easiest else "hardest",
        window=None if window is None else (window[0], window[1]),
        per_class=table.labels if per_class else None,
        seed=seed,
    )
    options = {"drop": drop, "easiest": easiest, "window": window, "per_class": per_class}
    write_subset(out, table, indices, options | {"seed": seed})
    return f"{out}: {len(indices)} of {len(table.labels)} examples kept by {table.origin['score']}"


def overlap_table(first: Path, second: Path, drops: Sequence[float]) -> Table:
    """Returns how far two tables of scores agree on what to drop, and on what to keep."""
    rows = [
        {
            "drop": f"{drop:g}",
            "dropped by both": f"{dropped:.3f} ({drop:g})",
            "kept by both": f"{kept_share:.3f} ({1 - drop:g})",
        }
        for drop, dropped, kept_share in overlaps(Scores.read(first), Scores.read(second), drops)
    ]
    caption = (
        "Of what the first drops, or keeps, the share that the second does too; in brackets what "
        "a random choice gives."
    )
    return terminal(rows, title=f"{first.name} and {second.name}", caption=caption)


def refuse_folder(out: Path) -> None:
    """Checks that a path is not a folder.

    Raises:
        ConfigError: If it is.
    """
    if out.is_dir():
        raise ConfigError(f"{out} is a folder: give --out a file, such as {out / 'a.parquet'}")


def write_subset(path: Path, table: Scores, indices: Tensor, options: dict[str, Any]) -> None:
    """Writes the indices of the examples to keep.

    Args:
        path: The file.
        table: The scores that they were chosen by.
        indices: int64[k].
        options: How they were chosen.
    """
    origin = {"asked": options, "examples": len(table.labels), "scores": table.origin}
    write_columns(path, {"index": indices}, origin)


def read_subset(path: Path, settings: Settings, data: DataSet) -> Tensor:
    """Returns int64[k], the indices of the examples to keep.

    Raises:
        ConfigError: If the file holds none, or those of other data than the settings'.
    """
    table, origin = read_columns(path, "siftback prune")
    try:
        count, arguments = origin["examples"], origin["scores"]["environment"]["arguments"]
    except (KeyError, TypeError):
        raise ConfigError(
            f"{path} holds no subset: give a file that siftback prune wrote"
        ) from None
    now = settings.recorded()
    changed = [
        f"{name} was {arguments.get(name)!r}, is {now[name]!r}"
        for name in PLACE
        if arguments.get(name) != now[name]
    ]
    if changed or count != len(data.train_labels):
        difference = "; ".join(changed) or f"{count} examples, are {len(data.train_labels)}"
        raise ConfigError(
            f"{path} was chosen from other training examples ({difference}): give the same options "
            "as to siftback score, or score again"
        )
    indices = column_of(table, "index")
    if indices.is_floating_point() or not len(indices) or not bool((indices.diff() > 0).all()):
        raise ConfigError(
            f"{path}: its indices do not ascend; give a file that siftback prune wrote"
        )
    if indices[0] < 0 or indices[-1] >= count:
        raise ConfigError(
            f"{path}: indices from {int(indices[0])} to {int(indices[-1])} are none of {count} "
            "training examples; give a file that siftback prune wrote"
        )
    return indices
