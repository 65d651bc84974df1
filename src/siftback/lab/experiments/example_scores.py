"""Scores of a training set, by models that are trained for a little, and the tables they are in.

A table is a Parquet file with one row per example: its ``index`` in the training set, its
``label``, its ``score`` (higher is harder) and one column per model, ``model_0`` and on, whose mean
the score is.
What is kept by it is a Parquet file of one column, ``index``. Both say in their metadata, under
``siftback``, how they were made.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from siftback import Fresh
from siftback.errors import ConfigError, StateError
from siftback.lab.data.batch_stream import Batch, test_batches
from siftback.lab.data.data_set import KINDS, DataSet
from siftback.lab.data.datasets import load, subset
from siftback.lab.forward import (
    autocast_context,
    check_model_fits,
    example_losses,
    token_cross_entropies,
    training_device,
)
from siftback.lab.records.columns import column_of, read_columns, write_columns
from siftback.lab.records.environment import environment
from siftback.lab.records.formatting import one_of
from siftback.lab.run.train import Scored, stages
from siftback.lab.settings import Run, Settings
from siftback.lab.training import strategies
from siftback.lab.training.length import BACKWARD, FORWARD
from siftback.pruning import AUM, Forgetting, el2n, entropy, grand, margin, prune

SCORES_FOLDER = "scores"  # the folder of a comparison's own tables

# Names are what the command line calls them, with the price of an example in forwards.
AT_THE_END: dict[str, tuple[Callable[[nn.Module, Iterator[Batch]], Tensor], int]] = {
    "el2n": (el2n, FORWARD),
    "grand": (grand, FORWARD + BACKWARD),
    "margin": (margin, FORWARD),
    "entropy": (entropy, FORWARD),
    "loss": (lambda model, batches: _losses(model, batches), FORWARD),
}
EVERY_EPOCH: dict[str, Callable[[int], Forgetting | AUM]] = {"forgetting": Forgetting, "aum": AUM}
# Those that have a way of their own.
APART: dict[str, Callable[..., "_Column"]] = {
    "irreducible": lambda *asked: _irreducible(*asked),
    "token-irreducible": lambda *asked: _irreducible(*asked),
    "sb-uses": lambda *asked: _uses(*asked),
}
SCORE_NAMES = (*AT_THE_END, *EVERY_EPOCH, *APART)

OF_LOSSES = ("loss", "irreducible", "token-irreducible", "sb-uses")
"""Those that need no classes."""

OF_TOKENS = ("token-irreducible",)
"""Those of each token of a language, one row each, in the order of the windows."""

# What Selective-Backprop keeps whose uses of an example are counted.
USED_KEEP = 0.5

Update = Callable[[float], None]

# Training examples are counted from 0 within what these settings leave of the data set.
PLACE = ("data", "train_limit", "validation", "max_tokens")


def _silent(done: float) -> None:
    """Reports to nobody."""


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
        write_columns(path, columns, self.made)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a table.

        Raises:
            ConfigError: If the file is missing or holds something else.
        """
        table, made = read_columns(path, "siftback score")
        names = [name for name in table.column_names if name.startswith("model_")]
        if not names or "label" not in table.column_names:
            raise ConfigError(f"{path} holds no scores: give a table that siftback score wrote")
        columns = torch.stack([column_of(table, name) for name in names], 1)
        return cls(columns, column_of(table, "label"), made)


def score_examples(
    name: str,
    settings: Settings,
    seed: int,
    data: DataSet | None = None,
    update: Update = _silent,
) -> Scores:
    """Trains the early models, and scores the training set by them.

    ``score_models`` models of the settings are trained for ``score_epochs`` epochs each, from
    weights and in orders of their own. Scores are those of images that are not augmented:
    ``forgetting`` and ``aum`` look at all of them after every epoch, the others at the end.
    ``irreducible`` holds out a random half of the set, trains on the other, and gives each
    example the loss under the model that has not seen it, as RHO-LOSS does without holdout data;
    ``token-irreducible`` gives it of each token, as Rho-1 goes by.
    ``sb-uses`` trains by Selective-Backprop that keeps half, and counts how often each example
    was trained on.

    Args:
        name: One of `SCORE_NAMES`.
        settings: How to train; the length is ``score_epochs``.
        seed: Decides those of the models: ``1000 * (seed + 1)`` and on.
        data: Those of ``settings``, where they are at hand.
        update: Called with the share of it that is done.

    Raises:
        ConfigError: If there is no such score, or it cannot be had with the settings.
    """
    if data is None:
        limit, held = settings.train_limit, settings.validation
        data = load(settings.data, limit, held, max_tokens=settings.max_tokens)
    check_score(name, settings, data)
    check_model_fits(settings, data)
    found: list[Tensor] = []
    cost, seconds = 0.0, 0.0
    seeds = [1000 * (seed + 1) + number for number in range(settings.score_models)]
    of_model = APART.get(name, _column)
    for number, each in enumerate(seeds):
        column = of_model(name, settings, each, data, _part(update, number, len(seeds)))
        found.append(column.values)
        cost += column.cost
        seconds += column.seconds
    made = {"score": name, "seeds": seeds, "cost": cost, "seconds": seconds}
    made["environment"] = environment(settings.recorded())
    labels = data.train_labels
    if data.kind == "language":  # whose examples are all of one class, that is of none
        labels = torch.zeros(len(found[0]), dtype=torch.int64)
    return Scores(torch.stack(found, 1), labels, made)


def check_score(name: str, settings: Settings, data: DataSet) -> None:
    """Refuses scores that cannot be had.

    Args:
        name: One of `SCORE_NAMES`.
        settings: As for `score_examples`.
        data: What is to be scored.

    Raises:
        ConfigError: If there is no such score, or it cannot be had with the settings or the data.
    """
    examples = len(data.train_labels)
    if name not in SCORE_NAMES:
        raise ConfigError(f"no score {name!r}: {one_of(name, SCORE_NAMES)}")
    if data.kind == "language" and name not in OF_LOSSES:
        raise ConfigError(
            f"{name} is of examples of a class each, and {data.name} has none: give one of "
            f"{', '.join(OF_LOSSES)}"
        )
    if data.kind != "language" and name in OF_TOKENS:
        raise ConfigError(
            f"{name} is of the tokens of a language model, and {data.name} holds "
            f"{KINDS[data.kind]}: give another score"
        )
    if not settings.score_epochs and (name in EVERY_EPOCH or name in APART):
        raise ConfigError(
            f"{name} of models that are trained for score_epochs={settings.score_epochs:g}: give "
            "epochs above 0"
        )
    trained_on = examples // 2 if "irreducible" in name else examples
    if settings.batch_size > trained_on:
        raise ConfigError(
            f"batch_size={settings.batch_size} does not fit {trained_on} training examples of the "
            f"models that {name} scores come from: give an integer from 1 up to theirs"
        )


def least_cost(settings: Settings, examples: int) -> float:
    """What scores cost at the least, in forwards: the models' training, and one look at each."""
    whole = examples // settings.batch_size * settings.batch_size
    training = settings.score_epochs * (FORWARD + BACKWARD) * whole
    return settings.score_models * (training + FORWARD * examples)


@dataclass(frozen=True, eq=False)
class _Column:
    """One model's scores, what they cost in forwards, and the seconds that they took."""

    values: Tensor
    cost: float
    seconds: float


def _column(name: str, settings: Settings, seed: int, data: DataSet, update: Update) -> _Column:
    count = len(data.train_labels)
    training = (FORWARD + BACKWARD) * settings.score_epochs
    looks = 0 if name in EVERY_EPOCH else AT_THE_END[name][1]
    share = training / (training + looks)  # of the training in the cost
    recorder = EVERY_EPOCH[name](count) if name in EVERY_EPOCH else None
    looking, looked = 0.0, 0
    epochs = settings.score_epochs
    for stage in stages(seed, settings, data, epochs, lambda done: update(share * done)):
        if recorder is not None:
            started = time.perf_counter()
            _look(recorder, stage.model, stage.stream.plain(count), settings)
            looking += time.perf_counter() - started
            looked += count * FORWARD
    if recorder is None:
        started = time.perf_counter()
        of, price = AT_THE_END[name]
        batches = _reported(
            stage.stream.plain(count), count, lambda done: update(share + (1 - share) * done)
        )
        with autocast_context(settings, training_device(settings)):
            values = of(stage.model, batches)
        looking += time.perf_counter() - started
        looked += count * price
    else:
        values = recorder.scores()
    return _Column(values, stage.cost + looked, stage.seconds + looking)


def _irreducible(
    name: str, settings: Settings, seed: int, data: DataSet, update: Update
) -> _Column:
    count = len(data.train_labels)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    losses_of = _token_losses if name in OF_TOKENS else _losses
    values = torch.empty(data.train_labels.shape if name in OF_TOKENS else (count,))
    cost, seconds = 0.0, 0.0
    halves = order[: count // 2].sort().values, order[count // 2 :].sort().values
    for number, (seen, unseen) in enumerate((halves, halves[::-1])):
        half = data.taken(seen)
        *_, stage = stages(seed, settings, half, settings.score_epochs, _part(update, number, 2))
        started = time.perf_counter()
        held = half.tested_on(data, unseen)  # normalised as the model's own half was
        device = training_device(settings)
        with autocast_context(settings, training_device(settings)):
            batches = test_batches(held, settings.batch_size, device, settings.channels_last)
            values[unseen] = losses_of(stage.model, batches)
        cost += stage.cost + len(unseen) * FORWARD
        seconds += stage.seconds + time.perf_counter() - started
    return _Column(values.flatten(), cost, seconds)


def _uses(name: str, settings: Settings, seed: int, data: DataSet, update: Update) -> _Column:
    epochs = settings.score_epochs
    *_, stage = stages(seed, settings, data, epochs, update, strategy="sb", keep=USED_KEEP)
    assert stage.uses is not None
    return _Column(stage.uses, stage.cost, stage.seconds)


@torch.no_grad()
def _look(
    recorder: Forgetting | AUM, model: nn.Module, batches: Iterator[Batch], settings: Settings
) -> None:
    model.eval()
    first = 0
    for images, labels in batches:
        with autocast_context(settings, training_device(settings)):
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
    return torch.cat([exact.score(example_losses, model, batch, None).cpu() for batch in batches])


@torch.no_grad()
def _token_losses(model: nn.Module, batches: Iterator[Batch]) -> Tensor:
    """float32[n, T]."""
    model.eval()
    return torch.cat(
        [token_cross_entropies(model(inputs).float(), y).cpu() for inputs, y in batches]
    )


def _part(update: Update, number: int, of: int) -> Update:
    """Reports the ``number``-th of so many equal parts as a share of the whole."""
    return lambda done: update((number + done) / of)


def _reported(batches: Iterator[Batch], count: int, update: Update) -> Iterator[Batch]:
    """The batches of so many examples; each is reported once it is done with."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch[1])
        update(done / count)


def score_for_run(
    run: Run, settings: Settings, data: DataSet, folder: Path, update: Update = _silent
) -> Scored | None:
    """What comes of scoring all examples before training; None where the strategy does not.

    The scores of a seed are made once per comparison, kept in its folder, and shared by its runs;
    each is charged what they cost.

    Args:
        run: Which run.
        settings: Those of the comparison.
        data: Its data.
        folder: Where it is.
        update: Called with the share of it that is done, where they are made now.
    """
    strategy = strategies.find(run.strategy)
    name = strategy.score(run.keep)
    if name is None:
        return None
    path = folder / SCORES_FOLDER / f"{name}-seed{run.seed}.parquet"
    if path.exists():
        try:
            table = Scores.read(path)
        except ConfigError as error:
            raise StateError(f"{error}; or remove it, and it is made again") from None
    else:
        table = score_examples(name, settings, run.seed, data, update)
        table.write(path)
    cost, seconds = table.made["cost"], table.made["seconds"]
    if drop := strategy.dropped(run.keep):
        kept = prune(table.scores, drop=drop)
        return Scored(subset(data, kept), cost, seconds, kept=kept)
    return Scored(data, cost, seconds, table.scores)


def remove_scores(folder: Path) -> None:
    """Removes a comparison's own tables."""
    for old in (folder / SCORES_FOLDER).glob("*.parquet"):
        old.unlink()


def write_subset(path: Path, table: Scores, kept: Tensor, asked: dict[str, Any]) -> None:
    """Writes the indices of what is kept.

    Args:
        path: Where to.
        table: The scores that it was chosen by.
        kept: int64[k].
        asked: How it was chosen.
    """
    made = {"asked": asked, "examples": len(table.labels), "scores": table.made}
    write_columns(path, {"index": kept}, made)


def read_subset(path: Path, settings: Settings, data: DataSet) -> Tensor:
    """int64[k], the indices of what is kept.

    Raises:
        ConfigError: If the file holds none, or those of other data than the settings'.
    """
    table, made = read_columns(path, "siftback prune")
    try:
        count, arguments = made["examples"], made["scores"]["environment"]["arguments"]
    except (KeyError, TypeError):
        raise ConfigError(
            f"{path} holds no subset: give a file that siftback prune wrote"
        ) from None
    asked = settings.recorded()
    changed = [
        f"{name} was {arguments.get(name)!r}, is {asked[name]!r}"
        for name in PLACE
        if arguments.get(name) != asked[name]
    ]
    if changed or count != len(data.train_labels):
        difference = "; ".join(changed) or f"{count} examples, are {len(data.train_labels)}"
        raise ConfigError(
            f"{path} was chosen from other training examples ({difference}): give the same options "
            "as to siftback score, or score again"
        )
    kept = column_of(table, "index")
    if kept.is_floating_point() or not len(kept) or not bool((kept.diff() > 0).all()):
        raise ConfigError(
            f"{path}: its indices do not ascend; give a file that siftback prune wrote"
        )
    if kept[0] < 0 or kept[-1] >= count:
        raise ConfigError(
            f"{path}: indices from {int(kept[0])} to {int(kept[-1])} are none of {count} training "
            "examples; give a file that siftback prune wrote"
        )
    return kept


def overlaps(
    one: Scores, other: Scores, drops: Sequence[float]
) -> list[tuple[float, float, float]]:
    """How much two tables agree on what to drop and on what to keep.

    Of the examples that the one drops, the share that the other drops too; and the same of what
    they keep. Chance alone gives the share dropped, and the share kept. Of ``el2n`` by two
    architectures the first is figure c of *Diet Selective-Backprop*, and of ``sb-uses`` and
    ``el2n`` it is figure d.

    Args:
        one: A table of N examples.
        other: Another one of the same examples.
        drops: Shares to drop.

    Returns:
        ``(drop, overlap of the dropped, overlap of the kept)`` for each.

    Raises:
        ConfigError: If they are of different examples, or a share drops none or all.
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
