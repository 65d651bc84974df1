"""Scores of a training set, by models that are trained for a little, and subsets chosen by them.

A table of scores is a Parquet file with one row per example: its ``index`` in the training set, its
``label``, its ``score`` (higher is harder) and one column per model, ``model_0`` and on, whose mean
the score is. Its metadata say, under ``siftback``, how it was made. A subset is such a
file of one column, ``index``: ``siftback score`` and ``prune``.
"""

import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from rich.table import Table
from torch import Tensor, nn

from siftback import Fresh
from siftback.errors import ConfigError, StateError
from siftback.lab import forward
from siftback.lab.data.data_set import KINDS, DataSet
from siftback.lab.data.load import load
from siftback.lab.data.stream import Batch, evaluation_batches
from siftback.lab.length import BACKWARD, FORWARD
from siftback.lab.records.columns import column_of, read_columns, write_columns
from siftback.lab.records.environment import environment
from siftback.lab.records.formatting import one_of
from siftback.lab.records.tables import terminal
from siftback.lab.run.train import Scored, Training, stages
from siftback.lab.settings import Run, Settings
from siftback.lab.strategies.table import find_strategy
from siftback.pruning import AUM, Forgetting, el2n, entropy, grand, margin, prune

SCORES_FOLDER = "scores"  # the folder of a comparison's own tables

Update = Callable[[float], None]
ScoreOfModel = Callable[[nn.Module, Iterator[Batch]], Tensor]


class Scoring(NamedTuple):
    """One model that scores a training set.

    Attributes:
        settings: How to train it; the length is ``score_epochs``.
        seed: Of its initial weights and data order.
        data: What to train on, and to score.
        update: Called with the share of training and scoring that is done.
    """

    settings: Settings
    seed: int
    data: DataSet
    update: Update

    def train(self, **options: Any) -> Iterator[Training]:
        """Trains the model, and yields its training after each epoch, as `stages` does."""
        return stages(self.seed, self.settings, self.data, self.settings.score_epochs, **options)


def fresh_losses(model: nn.Module, batches: Iterator[Batch]) -> Tensor:
    """Returns float32[N], the loss of each example of some batches."""
    score = partial(Fresh().score, forward.example_losses, model)
    return torch.cat([score(batch, None).cpu() for batch in batches])


@torch.no_grad()
def fresh_token_losses(model: nn.Module, batches: Iterator[Batch]) -> Tensor:
    """Returns float32[N, T], the loss of each token of some batches."""
    model.eval()
    losses = [forward.token_cross_entropies(model(x).float(), y).cpu() for x, y in batches]
    return torch.cat(losses)


UNTRAINED = ("el2n", "grand", "margin", "entropy", "loss")
"""Those that models have before they are trained, too."""

OF_LOSSES = ("loss", "irreducible", "token-irreducible", "sb-uses")
"""Those that need no classes."""

OF_TOKENS = ("token-irreducible",)
"""Those of each token of a language, one row each, in the order of the windows."""

# Training examples are counted from 0 within what these settings leave of the data set.
PLACE = ("data", "train_limit", "validation", "max_tokens")


def label_checksum(*labels: Tensor) -> int:
    """Returns the CRC-32 of labels, by which a record knows its examples again.

    Args:
        labels: int64[N] each.

    >>> label_checksum(torch.tensor([1, 2])) == label_checksum(torch.tensor([1]), torch.tensor([2]))
    True
    """
    return zlib.crc32(b"".join(numbers.long().numpy().tobytes() for numbers in labels))


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
        columns = {"index": torch.arange(len(self.labels)), "label": self.labels}
        columns["score"] = self.scores
        columns |= {f"model_{number}": by for number, by in enumerate(self.columns.unbind(1))}
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
    update: Update = lambda done: None,
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
        name: One of `SCORES`.
        settings: How to train; the length is ``score_epochs``.
        seed: Decides those of the models: ``1000 * (seed + 1)`` and on.
        data: Those of ``settings``, where they are at hand.
        update: Called with the share of it that is done.

    Raises:
        ConfigError: If there is no such score, or it cannot be computed with the settings.
    """
    # Labels are as they are; a subset by them is of those that --flip makes wrong too.
    limits = settings.train_limit, settings.validation, 0.0, settings.max_tokens
    data = data or load(settings.data, *limits, settings.rare)
    check_score(name, settings, data)
    forward.check_model_fits(settings, data)
    seeds = [1000 * (seed + 1) + number for number in range(settings.score_models)]
    started = time.perf_counter()
    scored = [
        SCORES[name](Scoring(settings, model_seed, data, report_share(update, number, len(seeds))))
        for number, model_seed in enumerate(seeds)
    ]
    columns, costs = zip(*scored, strict=True)
    values = torch.stack(columns, 1)
    # Examples of no class are all of one.
    labels = data.train_labels if data.has_classes else torch.zeros(len(values), dtype=torch.int64)
    origin = {
        "score": name,
        "seeds": seeds,
        "cost": sum(costs, 0.0),
        "seconds": time.perf_counter() - started,
        "environment": environment(settings.recorded()),
    }
    return Scores(values, labels, origin)


def check_score(name: str, settings: Settings, data: DataSet) -> None:
    """Checks that scores can be computed.

    Args:
        name: One of `SCORES`.
        settings: As for `score_examples`.
        data: The data set.

    Raises:
        ConfigError: If there is no such score, or the settings or the data lack what it needs.
    """
    if name not in SCORES:
        raise ConfigError(f"no score {name!r}: {one_of(name, SCORES)}")
    if not data.has_classes and name not in OF_LOSSES:
        others = ", ".join(score for score in OF_LOSSES if score not in OF_TOKENS)
        raise ConfigError(
            f"{name} is of examples of a class each, and {data.name} has none: give one of {others}"
        )
    if data.kind != "language" and name in OF_TOKENS:
        raise ConfigError(
            f"{name} is of the tokens of a language model, and {data.name} holds "
            f"{KINDS[data.kind]}: give another score"
        )
    if not settings.score_epochs and name not in UNTRAINED:
        raise ConfigError(
            f"{name} of models that are trained for score_epochs={settings.score_epochs:g}: give "
            "epochs above 0"
        )
    trained_on = len(data.train_labels) // (2 if "irreducible" in name else 1)
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


def score_at_end(score: ScoreOfModel, price: int, scoring: Scoring) -> tuple[Tensor, float]:
    """Trains a model, and scores the training set by it at the end, at a price of each example."""
    settings, update, count = scoring.settings, scoring.update, len(scoring.data.train_labels)
    training = (FORWARD + BACKWARD) * settings.score_epochs
    share = training / (training + price)  # of the cost
    *_, trained = scoring.train(update=lambda done: update(share * done))

    def batches() -> Iterator[Batch]:
        done = 0
        for batch in trained.batches.stream.plain(count):
            yield batch
            done += len(batch[1])
            update(share + (1 - share) * done / count)

    with forward.autocast_context(settings, forward.training_device(settings)):
        return score(trained.model, batches()), trained.batches.cost + count * price


def score_every_epoch(
    record: Callable[[int], Any],
    recorded_of: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    scoring: Scoring,
) -> tuple[Tensor, float]:
    """Trains a model, and records the training set after every epoch, by logits and labels."""
    count, cost = len(scoring.data.train_labels), 0
    recorder, rows = record(count), torch.split(torch.arange(count), scoring.settings.batch_size)
    for trained in scoring.train(update=scoring.update):
        batches = trained.batches.stream.plain(count)
        outputs = forward.predictions(trained.model, batches, scoring.settings)
        for indices, (logits, labels) in zip(rows, outputs, strict=True):
            recorder.update(indices, *recorded_of(logits, labels))
        cost += count * FORWARD
    return recorder.scores(), trained.batches.cost + cost


def score_held_out(losses_of: ScoreOfModel, scoring: Scoring) -> tuple[Tensor, float]:
    """Scores each half of the training set by a model that is trained on the other half."""
    settings, seed, data, update = scoring
    device, groups = forward.training_device(settings), data.group_numbers
    order = torch.randperm(int(groups.max()) + 1, generator=torch.Generator().manual_seed(seed))
    cost, losses = 0.0, []
    is_first = torch.isin(groups, order[: len(order) // 2])
    halves = is_first.nonzero().flatten(), (~is_first).nonzero().flatten()
    for number, (seen, unseen) in enumerate((halves, halves[::-1])):
        half = data.subset(seen)
        *_, trained = scoring._replace(data=half).train(update=report_share(update, number, 2))
        tested = half.with_test(data, unseen)  # normalised as the model's own half was
        batches = evaluation_batches(tested, settings.batch_size, device, settings.channels_last)
        with forward.autocast_context(settings, device):
            losses.append(losses_of(trained.model, batches))
        cost += trained.batches.cost + len(unseen) * FORWARD
    return torch.cat(losses)[torch.cat(halves[::-1]).argsort()].flatten(), cost


def score_by_uses(scoring: Scoring) -> tuple[Tensor, float]:
    """Trains a model by Selective-Backprop that keeps half, and counts the uses of each example."""
    *_, trained = scoring.train(update=scoring.update, strategy="sb", keep=0.5)
    assert trained.batches.uses is not None
    return trained.batches.uses, trained.batches.cost


# By name: what scores the training set by a model; gives the scores, and their cost in forwards.
SCORES: dict[str, Callable[[Scoring], tuple[Tensor, float]]] = {
    "el2n": partial(score_at_end, el2n, FORWARD),
    "grand": partial(score_at_end, grand, FORWARD + BACKWARD),
    "margin": partial(score_at_end, margin, FORWARD),
    "entropy": partial(score_at_end, entropy, FORWARD),
    "loss": partial(score_at_end, fresh_losses, FORWARD),
    "forgetting": partial(
        score_every_epoch, Forgetting, lambda logits, labels: (logits.argmax(1) == labels,)
    ),
    "aum": partial(score_every_epoch, AUM, lambda logits, labels: (logits, labels)),
    "irreducible": partial(score_held_out, fresh_losses),
    "token-irreducible": partial(score_held_out, fresh_token_losses),
    "sb-uses": score_by_uses,
}


def report_share(update: Update, number: int, count: int) -> Update:
    """Returns the update of the ``number``-th of ``count`` equal steps of a whole."""
    return lambda done: update((number + done) / count)


def score_for_run(
    run: Run, settings: Settings, data: DataSet, folder: Path, update: Update = lambda done: None
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
    if not (name := strategy.score(run.keep)):
        return Scored(data, 0.0, 0.0)
    path = folder / SCORES_FOLDER / f"{name}-seed{run.seed}.parquet"
    if path.exists():
        try:
            table = Scores.read(path)
        except ConfigError as error:
            raise StateError(f"{error}; or remove it, and it is made again") from None
    else:
        # A warm-up of the run may be longer than the training of the models that score.
        table = score_examples(name, replace(settings, warmup=None), run.seed, data, update)
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
        left, right = (set(prune(table.scores, drop).tolist()) for table in (first, second))
        if len(left) == count:
            raise ConfigError(f"drop={drop} drops none of {count} examples: give a larger share")
        dropped = (count - len(left | right)) / (count - len(left))
        shares.append((drop, dropped, len(left & right) / len(left)))
    return shares


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


def write_subset(path: Path, table: Scores, indices: Tensor, options: dict[str, Any]) -> None:
    """Writes the indices of the examples to keep.

    Args:
        path: The file.
        table: The scores that they were chosen by.
        indices: int64[k].
        options: How they were chosen.
    """
    origin = {"examples": len(table.labels), "labels": label_checksum(table.labels)}
    write_columns(path, {"index": indices}, {"asked": options, "scores": table.origin} | origin)


def read_subset(path: Path, settings: Settings, data: DataSet) -> Tensor:
    """Returns int64[k], the indices of the examples to keep.

    Raises:
        ConfigError: If the file holds none, or those of other data than the settings'.
    """
    table, origin = read_columns(path, "siftback prune")
    try:
        count, arguments = origin["examples"], origin["scores"]["environment"]["arguments"]
    except (KeyError, TypeError):
        raise ConfigError(f"{path} holds no subset: give a file that siftback prune made") from None
    now = settings.recorded()
    changed = [
        f"{name} was {arguments.get(name)!r}, is {now[name]!r}"
        for name in PLACE
        if arguments.get(name) != now[name]
    ]
    labels = label_checksum(data.former_labels)
    has_other_labels = data.has_classes and origin.get("labels", labels) != labels
    if changed or has_other_labels or count != len(data.train_labels):
        other = ", of other labels" * has_other_labels
        difference = "; ".join(changed) or f"{count} examples, are {len(data.train_labels)}{other}"
        raise ConfigError(
            f"{path} was chosen from other training examples ({difference}): give the same options "
            "as to siftback score, or score again"
        )
    indices = column_of(table, "index")
    if not torch.isin(indices, torch.arange(count)).all() or not (indices.diff() > 0).all():
        raise ConfigError(
            f"{path}: its indices are not those of some of {count} training examples, in order: "
            "give a file that siftback prune wrote"
        )
    return indices
