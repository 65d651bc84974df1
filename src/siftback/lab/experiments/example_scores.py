"""Scores of a training set, by models that are trained for a little, and the tables they are in.

A table is a Parquet file with one row per example: its ``index`` in the training set, its
``label``, its ``score`` (higher is harder) and one column per model, ``model_0`` and on, whose mean
the score is. Its metadata say, under ``siftback``, how it was made.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from siftback import Fresh
from siftback.errors import ConfigError, StateError
from siftback.lab.data.data_set import KINDS, DataSet
from siftback.lab.data.load import load
from siftback.lab.data.stream import Batch, test_batches
from siftback.lab.forward import (
    autocast_context,
    check_model_fits,
    example_losses,
    token_cross_entropies,
    training_device,
)
from siftback.lab.length import BACKWARD, FORWARD
from siftback.lab.records.columns import column_of, read_columns, write_columns
from siftback.lab.records.environment import environment
from siftback.lab.records.formatting import one_of
from siftback.lab.run.train import Scored, stages
from siftback.lab.settings import Run, Settings
from siftback.lab.strategies.table import find_strategy
from siftback.pruning import AUM, Forgetting, el2n, entropy, grand, margin, prune

SCORES_FOLDER = "scores"  # the folder of a comparison's own tables

Update = Callable[[float], None]


def fresh_losses(model: nn.Module, batches: Iterator[Batch]) -> Tensor:
    """Returns float32[N], the loss of each example of some batches."""
    exact = Fresh()
    return torch.cat([exact.score(example_losses, model, batch, None).cpu() for batch in batches])


@torch.no_grad()
def fresh_token_losses(model: nn.Module, batches: Iterator[Batch]) -> Tensor:
    """Returns float32[N, T], the loss of each token of some batches."""
    model.eval()
    return torch.cat(
        [token_cross_entropies(model(inputs).float(), y).cpu() for inputs, y in batches]
    )


# By name: what scores the examples after training, and the price of an example in forwards.
AT_THE_END: dict[str, tuple[Callable[[nn.Module, Iterator[Batch]], Tensor], int]] = {
    "el2n": (el2n, FORWARD),
    "grand": (grand, FORWARD + BACKWARD),
    "margin": (margin, FORWARD),
    "entropy": (entropy, FORWARD),
    "loss": (fresh_losses, FORWARD),
}
# By name: what records the examples after every epoch, and what it records of logits and labels.
EVERY_EPOCH: dict[str, tuple[Any, Callable[[Tensor, Tensor], tuple[Tensor, ...]]]] = {
    "forgetting": (Forgetting, lambda logits, labels: (logits.argmax(1) == labels,)),
    "aum": (AUM, lambda logits, labels: (logits, labels)),
}
HELD_OUT = {"irreducible": fresh_losses, "token-irreducible": fresh_token_losses}
USES = "sb-uses"
SCORE_NAMES = (*AT_THE_END, *EVERY_EPOCH, *HELD_OUT, USES)

OF_LOSSES = ("loss", *HELD_OUT, USES)
"""Those that need no classes."""

OF_TOKENS = ("token-irreducible",)
"""Those of each token of a language, one row each, in the order of the windows."""

# What Selective-Backprop keeps whose uses of an example are counted.
USED_KEEP = 0.5


def ignore_progress(done: float) -> None:
    """Reports to nobody."""


@dataclass(frozen=True, eq=False)
class Scores:
    """A table of scores.

    Attributes:
        columns: float32[N, M], each model's scores.
        labels: int64[N].
        origin: How they were made: ``score``, ``seeds`` of the models, ``cost`` in forwards of one
            example, ``seconds``, and ``environment``, whose ``arguments`` are the settings.
    """

    columns: Tensor
    labels: Tensor
    origin: dict[str, Any]

    @property
    def scores(self) -> Tensor:
        """Returns float32[N], the mean over the models."""
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
        write_columns(path, columns, self.origin)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a table.

        Raises:
            ConfigError: If the file is missing or holds something else.
        """
        table, origin = read_columns(path, "siftback score")
        names = [name for name in table.column_names if name.startswith("model_")]
        if not names or "label" not in table.column_names:
            raise ConfigError(f"{path} holds no scores: give a table that siftback score wrote")
        columns = torch.stack([column_of(table, name) for name in names], 1)
        return cls(columns, column_of(table, "label"), origin)


def score_examples(
    name: str,
    settings: Settings,
    seed: int,
    data: DataSet | None = None,
    update: Update = ignore_progress,
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
    data = data or load(
        settings.data, settings.train_limit, settings.validation, max_tokens=settings.max_tokens
    )
    check_score(name, settings, data)
    check_model_fits(settings, data)
    seeds = [1000 * (seed + 1) + number for number in range(settings.score_models)]
    columns = [
        score_by_model(name, settings, model_seed, data, report_share(update, number, len(seeds)))
        for number, model_seed in enumerate(seeds)
    ]
    values = torch.stack([column.values for column in columns], 1)
    # Examples of a language are all of one class, that is of none.
    labels = data.train_labels
    if data.kind == "language":
        labels = torch.zeros(len(values), dtype=torch.int64)
    origin = {
        "score": name,
        "seeds": seeds,
        "cost": sum(column.cost for column in columns),
        "seconds": sum(column.seconds for column in columns),
        "environment": environment(settings.recorded()),
    }
    return Scores(values, labels, origin)


def check_score(name: str, settings: Settings, data: DataSet) -> None:
    """Checks that scores can be had.

    Args:
        name: One of `SCORE_NAMES`.
        settings: As for `score_examples`.
        data: The data set.

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
    if not settings.score_epochs and name not in AT_THE_END:
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
    """Returns the least cost of scores, in forwards: training the models, and a forward of each."""
    whole = examples // settings.batch_size * settings.batch_size
    training = settings.score_epochs * (FORWARD + BACKWARD) * whole
    return settings.score_models * (training + FORWARD * examples)


class ModelScores(NamedTuple):
    """The scores by one model, their cost in forwards, and the seconds that they took."""

    values: Tensor
    cost: float
    seconds: float


def score_by_model(
    name: str, settings: Settings, seed: int, data: DataSet, update: Update
) -> ModelScores:
    """Trains a model, and scores the training set by it.

    Args:
        name: One of `SCORE_NAMES`.
        settings: As for `score_examples`.
        seed: That of the model.
        data: The data set.
        update: Called with the share of it that is done.
    """
    epochs, count = settings.score_epochs, len(data.train_labels)
    if name in HELD_OUT:
        return _score_held_out(name, settings, seed, data, update)
    if name == USES:
        *_, stage = stages(seed, settings, data, epochs, update, strategy="sb", keep=USED_KEEP)
        assert stage.uses is not None
        return ModelScores(stage.uses, stage.cost, stage.seconds)
    if name in EVERY_EPOCH:
        record, recorded_of = EVERY_EPOCH[name]
        recorder, cost, seconds = record(count), 0, 0.0
        for stage in stages(seed, settings, data, epochs, update):
            started = time.perf_counter()
            _record(recorder, recorded_of, stage.model, stage.stream.plain(count), settings)
            cost += count * FORWARD
            seconds += time.perf_counter() - started
        return ModelScores(recorder.scores(), stage.cost + cost, stage.seconds + seconds)
    score, price = AT_THE_END[name]
    training = (FORWARD + BACKWARD) * epochs
    share = training / (training + price)  # of the cost
    *_, stage = stages(seed, settings, data, epochs, lambda done: update(share * done))
    started = time.perf_counter()
    batches = _reported(stage.stream.plain(count), count, lambda d: update(share + (1 - share) * d))
    with autocast_context(settings, training_device(settings)):
        values = score(stage.model, batches)
    seconds = time.perf_counter() - started
    return ModelScores(values, stage.cost + count * price, stage.seconds + seconds)


def _score_held_out(
    name: str, settings: Settings, seed: int, data: DataSet, update: Update
) -> ModelScores:
    """Scores each half of the training set by a model that is trained on the other half."""
    count, device = len(data.train_labels), training_device(settings)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    values = torch.empty(data.train_labels.shape if name in OF_TOKENS else (count,))
    cost, seconds = 0.0, 0.0
    halves = order[: count // 2].sort().values, order[count // 2 :].sort().values
    for number, (seen, unseen) in enumerate((halves, halves[::-1])):
        half, update_half = data.subset(seen), report_share(update, number, 2)
        *_, stage = stages(seed, settings, half, settings.score_epochs, update_half)
        started = time.perf_counter()
        tested = half.with_test(data, unseen)  # normalised as the model's own half was
        with autocast_context(settings, device):
            batches = test_batches(tested, settings.batch_size, device, settings.channels_last)
            values[unseen] = HELD_OUT[name](stage.model, batches)
        cost += stage.cost + len(unseen) * FORWARD
        seconds += stage.seconds + time.perf_counter() - started
    return ModelScores(values.flatten(), cost, seconds)


@torch.no_grad()
def _record(
    recorder: Any,
    recorded_of: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    model: nn.Module,
    batches: Iterator[Batch],
    settings: Settings,
) -> None:
    model.eval()
    first = 0
    for images, labels in batches:
        with autocast_context(settings, training_device(settings)):
            logits = model(images).float()
        indices = torch.arange(first, first + len(labels))
        recorder.update(indices, *recorded_of(logits, labels))
        first += len(labels)
    model.train()


def report_share(update: Update, number: int, count: int) -> Update:
    """Returns the update of the ``number``-th of ``count`` equal steps of a whole."""
    return lambda done: update((number + done) / count)


def _reported(batches: Iterator[Batch], count: int, update: Update) -> Iterator[Batch]:
    """Yields the batches of ``count`` examples; each is reported once it is done with."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch[1])
        update(done / count)


def score_for_run(
    run: Run, settings: Settings, data: DataSet, folder: Path, update: Update = ignore_progress
) -> Scored:
    """Returns the data that a run trains on, with the scores of all examples that it needs.

    The scores of a seed are made once per comparison, kept in its folder, and shared by its runs;
    each is charged what they cost.

    Args:
        run: The run.
        settings: Those of the comparison.
        data: Its data.
        folder: Its folder.
        update: Called with the share of it that is done, where they are made now.
    """
    strategy = find_strategy(run.strategy)
    name = strategy.score(run.keep)
    if not name:
        return Scored(data, 0.0, 0.0)
    path = folder / SCORES_FOLDER / f"{name}-seed{run.seed}.parquet"
    if path.exists():
        try:
            table = Scores.read(path)
        except ConfigError as error:
            raise StateError(f"{error}; or remove it, and it is made again") from None
    else:
        table = score_examples(name, settings, run.seed, data, update)
        table.write(path)
    cost, seconds = table.origin["cost"], table.origin["seconds"]
    if drop := strategy.dropped(run.keep):
        indices = prune(table.scores, drop=drop)
        return Scored(data.subset(indices), cost, seconds, kept=indices)
    return Scored(data, cost, seconds, table.scores)


def overlaps(
    first: Scores, second: Scores, drops: Sequence[float]
) -> list[tuple[float, float, float]]:
    """Computes how far two tables agree on what to drop and on what to keep.

    Of the examples that the first drops, the share that the second drops too; and the same of what
    they keep. Chance alone gives the share dropped, and the share kept. Of ``el2n`` by two
    architectures the former is figure c of *Diet Selective-Backprop*, and of ``sb-uses`` and
    ``el2n`` it is figure d.

    Args:
        first: A table of N examples.
        second: Another table of the same examples.
        drops: Shares to drop.

    Returns:
        ``(drop, overlap of the dropped, overlap of the kept)`` for each.

    Raises:
        ConfigError: If they are of different examples, or a share drops none or all.
    """
    if not first.labels.equal(second.labels):
        raise ConfigError(
            f"tables of {len(first.labels)} and {len(second.labels)} examples with labels that "
            "differ: give two of the same training set"
        )
    count = len(first.labels)
    shares = []
    for drop in drops:
        keeps = torch.zeros(2, count, dtype=torch.bool)
        for row, table in zip(keeps, (first, second), strict=True):
            row[prune(table.scores, drop)] = True
        common, neither, left = (int(x.sum()) for x in (keeps.all(0), ~keeps.any(0), keeps[0]))
        if left == count:
            raise ConfigError(f"drop={drop} drops none of {count} examples: give a larger share")
        shares.append((drop, neither / (count - left), common / left))
    return shares
