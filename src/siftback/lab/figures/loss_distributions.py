"""Losses of single examples: figures 2, 3, 4 and 15 of Jiang et al. 2019, and over training."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from siftback import Percentile
from siftback.lab.data.data_set import ImageData
from siftback.lab.figures.analyses import Finding, join_findings
from siftback.lab.figures.figure import Analysis, Panel, Series
from siftback.lab.figures.observed import Watched, watched, watched_once
from siftback.lab.figures.pictures import take_pictures, with_images
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look

SHOWN = 10
BETAS = (0.5, 1.0, 2.0, 4.0)
POINTS = 200
EXAMPLES = 5
LOSS = "cross-entropy loss"
PROBABILITY = "probability of selection"
PERCENTILES = {10: "a tenth", 50: "half", 90: "nine tenths", 99: "all but a hundredth"}
LEAST = 1e-6  # lower losses are drawn as this one, as many round to 0, which has no logarithm


def extremes(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 2: the training examples with the least and the most loss over training.

    By the mean over all evaluations of all seeds, of plain training where it was observed.
    """
    for run in watched_once(comparisons, "losses"):
        yield with_images(run.title, run.comparison, partial(picture_extremes, run))


def picture_extremes(run: Watched, data: ImageData) -> Finding:
    """Takes the pictures of the least and the most loss, and says how unequal the losses are."""
    indices, losses = mean_losses(run.seeds)
    order = np.argsort(losses, kind="stable")
    pictures = []
    for which, rows in (("least", order[:SHOWN]), ("most", order[::-1][:SHOWN])):
        captions = [f"loss {loss:.3g}" for loss in losses[rows]]
        heading = f"{which} loss: {run.title}"
        pictures += take_pictures(data, indices[rows].tolist(), captions, heading)
    hardest, total = losses[order[-max(1, len(losses) // 10) :]].sum(), losses.sum()
    sentence = (
        f"{run.heading}: mean losses of {len(losses):,} examples over training go from "
        f"{losses.min():.2g} to {losses.max():.2g}; the hardest tenth of the examples has "
        f"{hardest / total if total else 0:.0%} of all loss."
    )
    return Finding(sentence, pictures=pictures)


def distribution(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 3: the distribution of losses early, midway and at the end."""
    shares = np.linspace(0, 100, POINTS + 1)
    for run in watched_once(comparisons, "losses"):
        looks, series = run.seeds[0], []
        snapshots = {look.epoch: look for look in (looks[0], looks[len(looks) // 2], looks[-1])}
        for epoch, look in snapshots.items():
            losses, label = np.percentile(look.columns["loss"], shares), f"epoch {epoch:.3g}"
            series.append(Series(label, losses.tolist(), shares.tolist(), group=label))
        panel = Panel(run.heading, LOSS, "examples (%)", "line", series)
        sentence = describe_losses(run.heading, snapshots[max(snapshots)])
        yield Finding(sentence, views={"loss": [panel]})


def describe_losses(title: str, look: Look) -> str:
    """Says how high the losses at the end are."""
    half, most = np.percentile(look.columns["loss"], [50, 90])
    return (
        f"{title}: at the end half of the losses are below {half:.2g} and a tenth above {most:.2g}."
    )


def losses_by_epoch(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The distribution of losses over training, of each configuration's first seed."""
    groups = watched(comparisons, "losses")
    return plot_losses({run.heading: run.seeds[0] for runs in groups for run in runs})


def losses_over_training(runs: Mapping[str, Sequence[Look]]) -> Analysis:
    """Draws percentiles of all examples' losses over the epochs, a panel for each run.

    Args:
        runs: Observations of each, by its title: looks with the column ``loss``.
    """
    return join_findings("losses", plot_losses(runs))


def plot_losses(runs: Mapping[str, Sequence[Look]]) -> Iterator[Finding]:
    """Plots what `losses_over_training` draws."""
    ranks = list(PERCENTILES)
    lines = {
        title: np.maximum([np.percentile(look.columns["loss"], ranks) for look in looks], LEAST)
        for title, looks in runs.items()
    }
    for title, looks in runs.items():
        epochs = [look.epoch for look in looks]
        series = [
            Series(f"{share} of the examples are below", epochs, losses.tolist(), group=share)
            for share, losses in zip(PERCENTILES.values(), lines[title].T, strict=True)
        ]
        ends = min(map(np.min, lines.values())) / 1.3, max(map(np.max, lines.values())) * 1.3
        panel = Panel(title, "epoch", LOSS, "line", series[::-1], log_y=True, y_range=ends)
        yield Finding(describe_losses(title, looks[-1]), views={"epoch": [panel]})


def probability_by_loss(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 4: the probability of selection by the loss, for several beta, midway in training."""
    for run in watched_once(comparisons, "losses"):
        look, series = run.seeds[0][len(run.seeds[0]) // 2], []
        losses = np.sort(look.columns["loss"])
        points = np.unique(np.linspace(0, len(losses) - 1, POINTS).round().astype(int))
        for beta in BETAS:
            label = f"beta = {beta:g}, {1 / (beta + 1):.0%} kept"
            probability = selection_probabilities(losses, beta)[points]
            series.append(Series(label, losses[points].tolist(), probability.tolist(), group=label))
        heading = f"{run.heading}, epoch {look.epoch:.3g}"
        at_median = ", ".join(f"{0.5**beta:.2f} for beta {beta:g}" for beta in BETAS)
        sentence = (
            f"{heading}: an example of the median loss, {np.median(losses):.2g}, is selected with "
            f"probability {at_median}."
        )
        yield Finding(sentence, views={"loss": [Panel(heading, LOSS, PROBABILITY, "line", series)]})


def probability_over_training(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """Figure 15: the probability of selection of five examples over training, and its variance.

    The probability is that of equation 1 among all losses of the same evaluation, with the beta
    of the selective strategy; for plain training it is what they would have. The five stand evenly
    among all examples by the mean of their probability under the first configuration.
    """
    for group in watched(comparisons, "losses"):
        title, index = group[0].title, group[0].seeds[0][0].columns["index"]

        def has_variance(looks: Sequence[Look], index: NDArray[np.int64] = index) -> bool:
            # Those that pruned have other examples, and a single look has no variance.
            same = (np.array_equal(look.columns["index"], index) for look in looks)
            return len(looks) > 1 and all(same)

        runs = [run for run in group if all(map(has_variance, run.seeds))]
        if not runs:
            continue
        keeps = [run.first.keep_asked for run in runs if run.first.selective]
        beta = 1 / keeps[0] - 1 if keeps else 2.0
        probabilities = {  # of each seed float32[looks, examples]
            run.name: [
                np.stack([selection_probabilities(look.columns["loss"], beta) for look in looks])
                for looks in run.seeds
            ]
            for run in runs
        }
        order = np.argsort(probabilities[runs[0].name][0].mean(0), kind="stable")
        examples = order[evenly_spaced(len(order), EXAMPLES)]
        panels = []
        for run in runs:
            epochs = [look.epoch for look in run.seeds[0]]
            lines = probabilities[run.name][0].T
            series = [
                Series(name, epochs, lines[example].tolist(), group=name)
                for example in examples
                for name in [f"example {index[example]}"]
            ]
            panels.append(Panel(run.heading, "epoch", PROBABILITY, "line", series))
        variances = {
            name: statistics.mean(float(seed.var(0, ddof=1).mean()) for seed in seeds)
            for name, seeds in probabilities.items()
        }
        bars = Series("variance", list(variances), list(variances.values()), group="variance")
        panels.append(Panel(title, "strategy", "variance of the probability", "bars", [bars]))
        written = ", ".join(f"{value:.3f} under {name}" for name, value in variances.items())
        sentence = (
            f"{title}, beta {beta:.2g}: mean variance of the probability of {len(index):,} "
            f"examples {written}."
        )
        yield Finding(sentence, views={"epoch": panels})


def evenly_spaced(count: int, points: int) -> NDArray[np.int64]:
    """Returns the middles of equal parts of some rows, or all rows where they are fewer.

    >>> evenly_spaced(10, 5), evenly_spaced(2, 5)
    (array([1, 3, 5, 7, 9]), array([0, 1]))
    """
    points = min(points, count)
    return (2 * np.arange(points) + 1) * count // (2 * points)


def selection_probabilities(losses: NDArray[np.floating], beta: float) -> NDArray[np.float32]:
    """Computes each loss's probability of selection, equation 1 of Jiang et al. 2019.

    Args:
        losses: float[N].
        beta: The exponent.

    Returns:
        float32[N].

    >>> selection_probabilities(np.array([0.1, 0.4, 0.2, 0.3]), beta=1.0).round(3)
    array([0.125, 0.875, 0.375, 0.625], dtype=float32)
    """
    selector = Percentile(beta=beta, history=len(losses))
    return np.asarray(selector.probabilities(torch.tensor(losses)))


def mean_losses(seeds: Sequence[Sequence[Look]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Computes each example's mean loss over all looks of all seeds.

    Returns:
        Indices, ascending, of the examples that were looked at; and their mean losses.

    >>> look = lambda *losses: Look(1.0, {"index": np.array([0, 2]), "loss": np.array(losses)})
    >>> mean_losses([[look(1.0, 4.0), look(3.0, 6.0)]])
    (array([0, 2]), array([2., 5.]))
    """
    every = [look for looks in seeds for look in looks]
    indices = np.concatenate([look.columns["index"] for look in every])
    losses = np.concatenate([look.columns["loss"] for look in every])
    times = np.bincount(indices)
    seen = np.flatnonzero(times)
    return seen, np.bincount(indices, losses)[seen] / times[seen]
