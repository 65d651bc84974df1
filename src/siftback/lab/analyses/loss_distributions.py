"""Losses of single examples: figures 2, 3, 4 and 15 of Jiang et al. 2019, and over training."""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from siftback import Percentile
from siftback.errors import ConfigError
from siftback.lab.analyses.budget import OURS
from siftback.lab.analyses.curves import PAPER
from siftback.lab.analyses.figure import Figure, Gallery, Missing, Panel, Picture, Series
from siftback.lab.analyses.observed import Watched, command, watched
from siftback.lab.analyses.pictures import pictures, training_set
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import TRADITIONAL
from siftback.lab.records.observations import Look

SHOWN = 10
BETAS = (0.5, 1.0, 2.0, 4.0)
POINTS = 200
EXAMPLES = 5
LOSS = "cross-entropy loss"
PERCENT = "examples (%)"
PERCENTILES = {10: "a tenth", 50: "half", 90: "nine tenths", 99: "all but a hundredth"}
MOVING = "The distribution of the losses over training"
LEAST = 1e-6  # lower losses are drawn as this one, as many round to 0, which has no logarithm


def extremes(comparisons: Sequence[Comparison]) -> Gallery | Missing:
    """Figure 2: the training examples with the least and the most loss over training.

    By the mean over all evaluations of all seeds, of Traditional where it was observed.
    """
    name, title = "fig2", "The training examples with the least and the most loss"
    shown: list[Picture] = []
    sentences: list[str] = []
    why = f"No losses were observed. {command('losses')}"
    for of in _one_each(comparisons):
        try:
            data = training_set(of.configuration.comparison)
        except ConfigError as error:
            why = f"The images of {of.title} cannot be had ({error})"
            continue
        indices, mean = mean_losses(of.seeds)
        order = np.argsort(mean, kind="stable")
        for which, places in (("least", order[:SHOWN]), ("most", order[::-1][:SHOWN])):
            captions = [f"loss {loss:.3g}" for loss in mean[places]]
            row = f"{which} loss: {of.title}"
            shown += pictures(data, [int(index) for index in indices[places]], captions, row)
        sentences.append(
            f"{_of(of)}: mean losses of {len(mean):,} examples over training go from "
            f"{mean.min():.2g} to {mean.max():.2g}; the hardest tenth of the examples has "
            f"{_hardest_share(mean):.0%} of all loss."
        )
    if not shown:
        return Missing(name, title, why)
    return Gallery(name, title, sentences, f"{PAPER}, figure 2", shown)


def distribution(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 3: the distribution of losses early, midway and at the end."""
    name, title = "fig3", "Cumulative distribution of the losses"
    panels, sentences = [], []
    for of in _one_each(comparisons):
        series = []
        snapshots = {look.epoch: look for look in _early_middle_last(of.seeds[0])}
        for epoch, look in snapshots.items():
            losses = np.sort(look.columns["loss"])
            shares = np.linspace(0, 100, POINTS + 1)
            points = np.percentile(losses, shares)
            label = f"epoch {epoch:.3g}"
            series.append(Series(label, points.tolist(), shares.tolist(), group=label))
        panels.append(Panel(_of(of), LOSS, PERCENT, "line", series))
        sentences.append(_quantiles(_of(of), snapshots[max(snapshots)]))
    if not panels:
        return Missing(name, title, f"No losses were observed. {command('losses')}")
    return Figure(name, title, sentences, f"{PAPER}, figure 3", {"loss": panels})


def over_training(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """How the distribution of losses moves over training, of each configuration's first seed."""
    runs = {_of(of): of.seeds[0] for found in watched(comparisons, "losses") for of in found}
    if not runs:
        return Missing("losses", MOVING, f"No losses were observed. {command('losses')}")
    return losses_over_training(runs)


def losses_over_training(runs: Mapping[str, Sequence[Look]]) -> Figure:
    """Percentiles of all examples' losses over the epochs, a panel for each run.

    Args:
        runs: What was seen of each, by a title of it: looks with the column ``loss``.
    """
    panels, sentences = [], []
    lines = {title: np.maximum(_percentiles(looks), LEAST) for title, looks in runs.items()}
    every = np.concatenate(list(lines.values()))
    y_range = float(every.min()) / 1.3, float(every.max()) * 1.3
    for title, looks in runs.items():
        epochs = [look.epoch for look in looks]
        series = [
            Series(f"{part} of the examples are below", epochs, line.tolist(), group=part)
            for part, line in zip(PERCENTILES.values(), lines[title].T, strict=True)
        ]
        panels.append(
            Panel(title, "epoch", LOSS, "line", series[::-1], log_y=True, y_range=y_range)
        )
        sentences.append(_quantiles(title, looks[-1]))
    return Figure("losses", MOVING, sentences, OURS, {"epoch": panels})


def _quantiles(title: str, last: Look) -> str:
    half, most = np.percentile(last.columns["loss"], [50, 90])
    return (
        f"{title}: at the end half of the losses are below {half:.2g} and a tenth above {most:.2g}."
    )


def _percentiles(looks: Sequence[Look]) -> NDArray[np.float64]:
    """float64[looks, percentiles], of the losses at each look."""
    return np.stack([np.percentile(look.columns["loss"], list(PERCENTILES)) for look in looks])


def probability_by_loss(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 4: the probability of selection by the loss, for several beta, midway in training."""
    name, title = "fig4", "Probability of selection by loss, for several beta"
    panels, sentences = [], []
    for of in _one_each(comparisons):
        look = of.seeds[0][len(of.seeds[0]) // 2]
        losses = np.sort(look.columns["loss"])
        places = np.unique(np.linspace(0, len(losses) - 1, POINTS).round().astype(int))
        series = []
        for beta in BETAS:
            label = f"beta = {beta:g}, {1 / (beta + 1):.0%} kept"
            probability = selection_probabilities(losses, beta)[places]
            series.append(Series(label, losses[places].tolist(), probability.tolist(), group=label))
        panels.append(Panel(_of(of, look), LOSS, "probability of selection", "line", series))
        median = float(np.median(losses))
        at_median = ", ".join(f"{0.5**beta:.2f} for beta {beta:g}" for beta in BETAS)
        sentences.append(
            f"{_of(of, look)}: an example of the median loss, {median:.2g}, is selected with "
            f"probability {at_median}."
        )
    if not panels:
        return Missing(name, title, f"No losses were observed. {command('losses')}")
    return Figure(name, title, sentences, f"{PAPER}, figure 4", {"loss": panels})


def probability_over_training(comparisons: Sequence[Comparison]) -> Figure | Missing:
    """Figure 15: the probability of selection of five examples over training, and its variance.

    The probability is that of equation 1 among all losses of the same evaluation, with the beta
    of the selective strategy; for Traditional it is what they would have. The five stand evenly
    among all examples by the mean of their probability under the first configuration.
    """
    name, title = "fig15", "Probability of selection of single examples over training"
    panels, sentences = [], []
    for found in watched(comparisons, "losses"):
        index = found[0].seeds[0][0].columns["index"]
        # Those that pruned have other examples.
        found = [of for of in found if all(_is_of(looks, index) for looks in of.seeds)]
        if not found:
            continue
        beta = _beta(found)
        followed = {of.configuration.label: _followed(of.seeds[0], beta) for of in found}
        first = next(iter(followed.values()))
        order = np.argsort(first.mean(0), kind="stable")
        # The middles of five equal parts.
        chosen = order[[(2 * part + 1) * len(order) // (2 * EXAMPLES) for part in range(EXAMPLES)]]
        variances = {}
        for of in found:
            label = of.configuration.label
            epochs = [look.epoch for look in of.seeds[0]]
            series = []
            for place in chosen:
                line = followed[label][:, place].tolist()
                name_of = f"example {index[place]}"
                series.append(Series(name_of, epochs, line, group=name_of))
            panels.append(Panel(_of(of), "epoch", "probability of selection", "line", series))
            variances[label] = statistics.mean(
                float(_followed(looks, beta).var(0, ddof=1).mean()) for looks in of.seeds
            )
        spread = Series("variance", list(variances), list(variances.values()), group="variance")
        panels.append(
            Panel(found[0].title, "strategy", "variance of the probability", "bars", [spread])
        )
        each = ", ".join(f"{variance:.3f} under {label}" for label, variance in variances.items())
        sentences.append(
            f"{found[0].title}, beta {beta:.2g}: mean variance of the probability of "
            f"{len(index):,} examples {each}."
        )
    if not panels:
        return Missing(name, title, f"No losses were observed twice. {command('losses')}")
    return Figure(name, title, sentences, f"{PAPER}, figure 15", {"epoch": panels})


def selection_probabilities(losses: NDArray[np.floating], beta: float) -> NDArray[np.float32]:
    """Probability of selection of each loss among all of them, equation 1 of Jiang et al. 2019.

    Args:
        losses: float[N].
        beta: The exponent.

    Returns:
        float32[N].

    >>> selection_probabilities(np.array([0.1, 0.4, 0.2, 0.3]), beta=1.0).round(3)
    array([0.125, 0.875, 0.375, 0.625], dtype=float32)
    """
    selector = Percentile(beta=beta, history=len(losses))
    found: NDArray[np.float32] = selector.probabilities(torch.tensor(losses)).numpy()
    return found


def mean_losses(
    seeds: Sequence[Sequence[Look]],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Each example's mean loss over all looks of all seeds.

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


def _one_each(comparisons: Sequence[Comparison]) -> list[Watched]:
    """Of each comparison what is observed of Traditional, or of the first that is."""
    return [
        next((of for of in found if of.configuration.label == TRADITIONAL), found[0])
        for found in watched(comparisons, "losses")
    ]


def _early_middle_last(looks: Sequence[Look]) -> list[Look]:
    return [looks[0], looks[len(looks) // 2], looks[-1]]


def _beta(found: Sequence[Watched]) -> float:
    """That of the first selective configuration; 2, a third kept, where there is none."""
    keeps = [of.configuration.runs[0].keep_asked for of in found if not of.configuration.plain]
    return 1 / keeps[0] - 1 if keeps else 2.0


def _is_of(looks: Sequence[Look], index: NDArray[np.int64]) -> bool:
    """Whether there are two looks or more, all at these examples."""
    same = [np.array_equal(look.columns["index"], index) for look in looks]
    return len(same) > 1 and all(same)


def _followed(looks: Sequence[Look], beta: float) -> NDArray[np.float32]:
    """float32[looks, N], every example's probability over training."""
    return np.stack([selection_probabilities(look.columns["loss"], beta) for look in looks])


def _hardest_share(losses: NDArray[np.float64]) -> float:
    hardest = np.sort(losses)[-max(1, len(losses) // 10) :]
    return float(hardest.sum() / losses.sum()) if losses.sum() else 0.0


def _of(of: Watched, look: Look | None = None) -> str:
    when = "" if look is None else f", epoch {look.epoch:.3g}"
    return f"{of.title}, {of.configuration.label}{when}"
