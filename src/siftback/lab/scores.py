"""Scores of a training set, by models that are trained for a little, and the tables they are in.

A table is a Parquet file with a row an example: its ``index`` in the training set, its ``label``,
its ``score`` (higher is harder) and a column a model, ``model_0`` and on, whose mean the score is.
What is kept by it is a Parquet file of one column, ``index``. Both tell in their metadata, under
``siftback``, how they were made.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import torch
from pyarrow import parquet
from torch import Tensor, nn

from siftback import AUM, ConfigError, Forgetting, Fresh, el2n, entropy, grand, margin, prune
from siftback.lab import strategies
from siftback.lab.agreement import losses
from siftback.lab.data import ImageData, load, subset
from siftback.lab.environment import environment
from siftback.lab.feed import BACKWARD, FORWARD
from siftback.lab.settings import Run, Settings, resolve_device
from siftback.lab.stream import Batch, test_batches
from siftback.lab.train import Pruned, stages

SCORES = "scores"  # the folder of a comparison's own tables

# Names are what the command line calls them, with the price of an example in forwards.
AT_THE_END: dict[str, tuple[Callable[[nn.Module, Iterator[Batch]], Tensor], int]] = {
    "el2n": (el2n, FORWARD),
    "grand": (grand, FORWARD + BACKWARD),
    "margin": (margin, FORWARD),
    "entropy": (entropy, FORWARD),
    "loss": (lambda model, batches: _losses(model, batches), FORWARD),
}
EVERY_EPOCH: dict[str, Callable[[int], Forgetting | AUM]] = {"forgetting": Forgetting, "aum": AUM}
NAMES = (*AT_THE_END, *EVERY_EPOCH, "irreducible")

# Training examples are counted from 0 within what these settings leave of the data set.
PLACE = ("data", "train_limit", "validation")


@dataclass(frozen=True, eq=False)
class Scores:
    """A table of scores.

    Attributes:
        columns: float32[N, M], each model's own.
        labels: int64[N].
        made: How: ``score``, ``seeds`` of the models, ``cost`` in forwards of one example,
            ``seconds``, and ``environment``, whose ``arguments`` are the settings.
    """

    columns: Tensor
    labels: Tensor
    made: dict[str, Any]

    @property
    def scores(self) -> Tensor:
        """float32[N], the mean over the models."""
        return self.columns.mean(1)

    def write(self, path: Path) -> None:
        """Writes the table."""
        names = [f"model_{number}" for number in range(self.columns.shape[1])]
        columns = {
            "index": torch.arange(len(self.labels)),
            "label": self.labels,
            "score": self.scores,
            **dict(zip(names, self.columns.unbind(1), strict=True)),
        }
        _write(path, columns, self.made)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a table.

        Raises:
            ConfigError: Where the file is missing or holds something else.
        """
        table, made = _read(path, "siftback score")
        names = [name for name in table.column_names if name.startswith("model_")]
        if not names or "label" not in table.column_names:
            raise ConfigError(f"{path} holds no scores: give a table that siftback score wrote")
        columns = torch.stack([_tensor(table, name) for name in names], 1)
        return cls(columns, _tensor(table, "label"), made)


def make(name: str, settings: Settings, seed: int, data: ImageData | None = None) -> Scores:
    """Trains the early models, and scores the training set by them.

    ``score_models`` models of the settings are trained for ``score_epochs`` epochs each, from
    weights and in orders of their own. Scores are those of images that are not augmented:
    ``forgetting`` and ``aum`` look at all of them after every epoch, the others at the end.
    ``irreducible`` holds out a random half of the set, trains on the other, and gives each
    example the loss under the model that has not seen it, as RHO-LOSS does without holdout data.

    Args:
        name: One of `NAMES`.
        settings: How to train; the length is ``score_epochs``.
        seed: Decides those of the models: ``1000 * (seed + 1)`` and on.
        data: Those of ``settings``, where they are at hand.

    Raises:
        ConfigError: Where there is no such score, or it cannot be had with the settings.
    """
    if name not in NAMES:
        raise ConfigError(f"no score {name!r}: give one of {', '.join(NAMES)}")
    if not settings.score_epochs and (name in EVERY_EPOCH or name == "irreducible"):
        raise ConfigError(f"{name} of models that are not trained: give epochs above 0")
    if data is None:
        data = load(settings.data, settings.train_limit, settings.validation)
    found: list[Tensor] = []
    cost, seconds = 0.0, 0.0
    seeds = [1000 * (seed + 1) + number for number in range(settings.score_models)]
    of_model = _irreducible if name == "irreducible" else _column
    for each in seeds:
        column = of_model(name, settings, each, data)
        found.append(column.values)
        cost += column.cost
        seconds += column.seconds
    made = {"score": name, "seeds": seeds, "cost": cost, "seconds": seconds}
    made["environment"] = environment(settings.recorded())
    return Scores(torch.stack(found, 1), data.train_labels, made)


@dataclass(frozen=True, eq=False)
class _Column:
    """One model's scores, what they cost in forwards, and the seconds that they took."""

    values: Tensor
    cost: float
    seconds: float


def _column(name: str, settings: Settings, seed: int, data: ImageData) -> _Column:
    count = len(data.train_labels)
    recorder = EVERY_EPOCH[name](count) if name in EVERY_EPOCH else None
    looking, looks = 0.0, 0
    for stage in stages(seed, settings, data, settings.score_epochs):
        if recorder is not None:
            started = time.perf_counter()
            _look(recorder, stage.model, stage.stream.plain(count), settings)
            looking += time.perf_counter() - started
            looks += count * FORWARD
    if recorder is None:
        started = time.perf_counter()
        of, price = AT_THE_END[name]
        with _casting(settings):
            values = of(stage.model, stage.stream.plain(count))
        looking += time.perf_counter() - started
        looks += count * price
    else:
        values = recorder.scores()
    return _Column(values, stage.cost + looks, stage.seconds + looking)


def _irreducible(name: str, settings: Settings, seed: int, data: ImageData) -> _Column:
    count = len(data.train_labels)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    values = torch.empty(count)
    cost, seconds = 0.0, 0.0
    halves = order[: count // 2].sort().values, order[count // 2 :].sort().values
    for seen, unseen in (halves, halves[::-1]):
        half = subset(data, seen)
        *_, stage = stages(seed, settings, half, settings.score_epochs)
        started = time.perf_counter()
        others = subset(data, unseen)
        # As a test set they are normalised as the model's own half was.
        held = replace(half, test_images=others.train_images, test_labels=others.train_labels)
        device = resolve_device(settings.device)
        with _casting(settings):
            batches = test_batches(held, settings.batch_size, device)
            values[unseen] = _losses(stage.model, batches)
        cost += stage.cost + len(unseen) * FORWARD
        seconds += stage.seconds + time.perf_counter() - started
    return _Column(values, cost, seconds)


@torch.no_grad()
def _look(
    recorder: Forgetting | AUM, model: nn.Module, batches: Iterator[Batch], settings: Settings
) -> None:
    model.eval()
    first = 0
    for images, labels in batches:
        with _casting(settings):
            logits = model(images).float()
        indices = torch.arange(first, first + len(labels))
        if isinstance(recorder, AUM):
            recorder.update(indices, logits, labels)
        else:
            recorder.update(indices, logits.argmax(1) == labels)
        first += len(labels)
    model.train()


def _losses(model: nn.Module, batches: Iterator[Batch]) -> Tensor:
    exact = Fresh()
    return torch.cat([exact.score(losses, model, batch).cpu() for batch in batches])


def _casting(settings: Settings) -> torch.autocast:
    dtype = settings.autocast
    device = resolve_device(settings.device)
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


def pruned(run: Run, settings: Settings, data: ImageData, folder: Path) -> Pruned | None:
    """What a strategy that prunes leaves of the data; None for any other.

    The EL2N scores of a seed are made once a comparison, kept in its folder, and shared by its
    runs; each is charged what they cost.

    Args:
        run: Which run.
        settings: Those of the comparison.
        data: Its data.
        folder: Where it is.
    """
    drop = strategies.find(run.strategy).dropped(run.keep)
    if not drop:
        return None
    path = folder / SCORES / f"el2n-seed{run.seed}.parquet"
    if path.exists():
        table = Scores.read(path)
    else:
        table = make("el2n", settings, run.seed, data)
        table.write(path)
    kept = prune(table.scores, drop=drop)
    return Pruned(subset(data, kept), table.made["cost"], table.made["seconds"])


def forget(folder: Path) -> None:
    """Removes a comparison's own tables."""
    for old in (folder / SCORES).glob("*.parquet"):
        old.unlink()


def write_kept(path: Path, table: Scores, kept: Tensor, asked: dict[str, Any]) -> None:
    """Writes the indices of what is kept.

    Args:
        path: Where to.
        table: The scores that it was chosen by.
        kept: int64[k].
        asked: How it was chosen.
    """
    made = {"asked": asked, "examples": len(table.labels), "scores": table.made}
    _write(path, {"index": kept}, made)


def read_kept(path: Path, settings: Settings, data: ImageData) -> Tensor:
    """int64[k], the indices of what is kept.

    Raises:
        ConfigError: Where the file holds none, or those of other data than the settings'.
    """
    table, made = _read(path, "siftback prune")
    if "examples" not in made:
        raise ConfigError(f"{path} holds no subset: give a file that siftback prune wrote")
    arguments = made["scores"]["environment"]["arguments"]
    unlike = [
        f"{name} was {arguments[name]!r}, is {getattr(settings, name)!r}"
        for name in PLACE
        if arguments[name] != getattr(settings, name)
    ]
    if unlike or made["examples"] != len(data.train_labels):
        told = "; ".join(unlike) or f"{made['examples']} examples, are {len(data.train_labels)}"
        raise ConfigError(
            f"{path} was chosen from other training examples ({told}): give the same options as "
            "to siftback score, or score anew"
        )
    return _tensor(table, "index")


def overlaps(
    one: Scores, other: Scores, drops: Sequence[float]
) -> list[tuple[float, float, float]]:
    """How much two tables agree on what to drop and on what to keep.

    Of the examples that the one drops, the share that the other drops too, as in figures c and d
    of *Diet Selective-Backprop*; and the same of what they keep. Chance alone gives the share
    dropped, and the share kept.

    Args:
        one: A table of N examples.
        other: Another one of the same examples.
        drops: Shares to drop.

    Returns:
        ``(drop, overlap of the dropped, overlap of the kept)`` for each.

    Raises:
        ConfigError: Where they are of different examples, or a share drops none or all.
    """
    if not one.labels.equal(other.labels):
        raise ConfigError(
            f"tables of {len(one.labels)} and {len(other.labels)} examples with labels that "
            "differ: give two of the same training set"
        )
    found = []
    for drop in drops:
        keeps = torch.zeros(2, len(one.labels), dtype=torch.bool)
        for kept, table in zip(keeps, (one, other), strict=True):
            kept[prune(table.scores, drop)] = True
        both, neither = int(keeps.all(0).sum()), int((~keeps).all(0).sum())
        each = int(keeps[0].sum())
        if each == len(one.labels):
            raise ConfigError(f"drop={drop} drops none of {each} examples: give a larger share")
        found.append((drop, neither / (len(one.labels) - each), both / each))
    return found


def _write(path: Path, columns: dict[str, Tensor], made: dict[str, Any]) -> None:
    table = pa.table({name: column.cpu().numpy() for name, column in columns.items()})
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(path.name + ".tmp")  # so that no reader sees half of it
    parquet.write_table(table.replace_schema_metadata({"siftback": json.dumps(made)}), whole)
    whole.replace(path)


def _read(path: Path, writer: str) -> tuple[pa.Table, dict[str, Any]]:
    try:
        table = parquet.read_table(path)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: make it with {writer} --out {path}") from None
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path} is no Parquet file ({error}): give one of {writer}") from None
    made = (table.schema.metadata or {}).get(b"siftback")
    if made is None:
        raise ConfigError(f"{path} does not tell how it was made: give a file of {writer}")
    return table, json.loads(made)


def _tensor(table: pa.Table, name: str) -> Tensor:
    return torch.tensor(table[name].to_numpy())
