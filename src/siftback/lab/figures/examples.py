"""Single examples: their losses, whether they were trained on, and their pictures.

These are figures 2, 3, 4 and 15 of Jiang et al. 2019, losses over training, and the choices of
selection: kept most and dropped most, suspect, and over training.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from siftback import Percentile
from siftback.errors import ConfigError
from siftback.lab.data.data_set import KINDS, ImageData
from siftback.lab.data.load import load
from siftback.lab.experiments.comparison import describe_examples
from siftback.lab.figures.analyses import Finding, join_findings
from siftback.lab.figures.figure import Analysis, Panel, Picture, Series
from siftback.lab.figures.observed import (
    Watched,
    count_uses,
    last_values,
    watched,
    watched_once,
    watched_selective,
)
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look

EXTREMES = 10
BETAS = (0.5, 1.0, 2.0, 4.0)
POINTS = 200
EXAMPLES = 5
LOSS = "cross-entropy loss"
PROBABILITY = "probability of selection"
PERCENTILES = {10: "a tenth", 50: "half", 90: "nine tenths", 99: "all but a hundredth"}
LEAST = 1e-6  # lower losses are drawn as this one, as many round to 0, which has no logarithm

# Of the choices of selection.
SHOWN = 12
COLUMNS, ROWS = 10, 6
FADED = 0.75  # how far a dropped image is on the way to white
NEAR = 0.05  # epochs; kept examples may wait a little for their batch to be full


def with_images(
    title: str, comparison: Comparison, picture: Callable[[ImageData], Finding]
) -> Finding:
    """Returns a finding in pictures, or why there is none where the images cannot be read.

    Args:
        title: The comparison's.
        comparison: The comparison.
        picture: Makes the finding from its training examples.
    """
    try:
        return picture(load_training_set(comparison))
    except ConfigError as error:
        return Finding(missing=f"The images of {title} could not be read ({error})")


def load_training_set(comparison: Comparison) -> ImageData:
    """Loads the training examples that a comparison's indices count.

    Raises:
        ConfigError: If they cannot be read here, or are others than the comparison trained on.
    """
    settings = comparison.arguments
    data = load(
        str(settings.get("data")),
        settings.get("train_limit"),
        settings.get("validation"),
        float(settings.get("flip", 0.0)),
        rare=int(settings.get("rare", 1)),
    )
    if not isinstance(data, ImageData):
        raise ConfigError(f"{data.name} holds {KINDS[data.kind]}, which have no pictures")
    examples = describe_examples(data)
    if settings.get("subset") or settings.get("examples", examples) != examples:
        raise ConfigError(
            f"{comparison.folder.name} trained on a subset, or on other examples than {data.name}"
        )
    return data


def take_pictures(
    data: ImageData, indices: Sequence[int], captions: Iterable[str], row: str
) -> list[Picture]:
    """Takes pictures of some training examples; a caption gives the true one of a wrong label.

    Args:
        data: The examples.
        indices: Their indices.
        captions: A line about each.
        row: The heading they stand under.
    """
    pictures = []
    for index, caption in zip(indices, captions, strict=True):
        label = int(data.train_labels[index])
        true = int(data.former_labels[index])
        wrong = f", truly {data.names[true]}" if true != label else ""
        image = data.train_inputs[index].permute(1, 2, 0).contiguous().numpy()
        pictures.append(Picture(image, data.names[label], f"{caption}{wrong}", row))
    return pictures


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
    for which, rows in (("least", order[:EXTREMES]), ("most", order[::-1][:EXTREMES])):
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
    probabilities: NDArray[np.float32] = selector.probabilities(torch.tensor(losses)).numpy()
    return probabilities


def mean_losses(seeds: Sequence[Sequence[Look]]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Computes each example's mean loss over all looks of all seeds.

    Returns:
        Indices, ascending, of the examples that were looked at; and their mean losses.

    >>> look = lambda *losses: Look(1.0, {"index": np.array([0, 2]), "loss": np.array(losses)})
    >>> mean_losses([[look(1.0, 4.0), look(3.0, 6.0)]])
    (array([0, 2]), array([2., 5.]))
    """
    looks = [look.columns for seed in seeds for look in seed]
    # In float64, as the records have them in float32.
    losses = pd.concat(pd.Series(look["loss"], look["index"], float) for look in looks)
    means = losses.groupby(level=0).mean()
    return means.index.to_numpy(), means.to_numpy()


def most_and_least(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The examples that the first selective configuration of each comparison kept and dropped.

    Kept most and dropped most go by how often they were trained on, over all seeds; equal numbers
    by the loss at the last evaluation, the mean over the seeds. Suspect are those that were never
    learnt: of the highest `persistent_losses`.
    """
    for run in watched_selective(comparisons, "losses"):
        yield with_images(run.title, run.comparison, partial(picture_choices, run))


def persistent_losses(seeds: Sequence[Sequence[Look]], examples: int) -> NDArray[np.float64]:
    """Computes how high each loss stayed: the least of the later half of looks, a mean of seeds.

    Args:
        seeds: The looks of each seed, in order.
        examples: The number of training examples.

    Returns:
        float64[examples]; NaN for those that were not looked at.

    >>> look = lambda *losses: Look(1.0, {"index": np.array([0, 2]), "loss": np.array(losses)})
    >>> persistent_losses([[look(9.0, 9.0), look(1.0, 5.0), look(3.0, 4.0)]], examples=3)
    array([ 1., nan,  4.])
    """
    least = np.full((len(seeds), examples), np.nan)
    for row, looks in zip(least, seeds, strict=True):
        for look in looks[len(looks) // 2 :]:
            index = look.columns["index"]
            row[index] = np.fmin(row[index], look.columns["loss"])
    return np.asarray(least.mean(0))


def picture_choices(run: Watched, data: ImageData) -> Finding:
    """Takes the pictures of one configuration's choices, and says how far apart they are."""
    count = len(data.train_labels)
    used, stayed = count_uses(run.seeds, count), persistent_losses(run.seeds, count)
    loss = last_values(run.seeds, "loss", count).mean(0)
    seen = np.flatnonzero(~np.isnan(loss))
    by_use = seen[np.lexsort((loss[seen], used[seen]))]
    suspect = seen[np.argsort(-stayed[seen], kind="stable")][:SHOWN]
    rows = {"kept most": by_use[::-1][:SHOWN], "dropped most": by_use[:SHOWN], "suspect": suspect}
    pictures: list[Picture] = []
    for name, indices in rows.items():
        captions = [f"loss {loss[index]:.3g}, used {used[index]:.3g}x" for index in indices]
        pictures += take_pictures(data, indices.tolist(), captions, f"{name}: {run.heading}")
    most, least, average = (
        f"{used[indices].mean():.3g}" for indices in (rows["kept most"], rows["dropped most"], seen)
    )
    sentence = (
        f"{run.heading}: those kept most were trained on {most} times, those dropped most {least} "
        f"times, an example {average} times on average; the suspect ones never had a loss below "
        f"{stayed[suspect].min():.2g} in the later half of training."
    )
    if data.true_labels is not None:
        flipped = data.flipped.numpy()
        sentence += (
            f" Of the {len(suspect)} suspect ones {flipped[suspect].sum()} have a wrong label, of "
            f"all {flipped.mean():.0%}."
        )
    return Finding(sentence, pictures=pictures)


def kept_by_epoch(comparisons: Sequence[Comparison]) -> Iterator[Finding]:
    """The strip of images of the first selective configuration of each comparison.

    Of its first seed. It needs losses observed at the ends of epochs.
    """
    for run in watched_selective(comparisons, "losses"):
        if pair_epochs(run.seeds[0]):
            picture = partial(picture_strip, run.seeds[0], run.heading)
            yield with_images(run.title, run.comparison, picture)


def strip_of_images(data: ImageData, looks: Sequence[Look], title: str) -> Analysis:
    """Shows which of ten examples were trained on, epoch by epoch: others are faded.

    The ten stand evenly among all examples by their mean loss, the easiest at the left. There is
    a row for an epoch, for at most six, evenly over training. A caption has the loss before it.

    Args:
        data: Whose images.
        looks: Observations of a training at the ends of epochs, with the columns ``index``,
            ``loss`` and ``uses``, how often an example was trained on so far. Looks within an
            epoch are left out, as an example may be trained on after them.
        title: The name of the training, for headings and sentences.

    Raises:
        ConfigError: If there are not two looks at the ends of epochs.
    """
    if not pair_epochs(looks):
        raise ConfigError(
            "a strip of images shows what was trained on between looks at the ends of epochs, of "
            f"which there are fewer than two among {[look.epoch for look in looks]}: look at "
            "every epoch's end"
        )
    return join_findings("strip", [picture_strip(looks, title, data)])


def pair_epochs(looks: Sequence[Look]) -> list[tuple[Look, Look]]:
    """Returns each look at the end of an epoch, with the one before it."""
    return list(pairwise(look for look in looks if abs(look.epoch - round(look.epoch)) <= NEAR))


def picture_strip(looks: Sequence[Look], title: str, data: ImageData) -> Finding:
    """Takes the pictures of a strip, and says what was trained on of the easy and of the hard.

    These are the fifths with the least and the most loss before an epoch: a mean over the epochs
    in which not everything was trained on, or else over all.
    """
    epochs = pair_epochs(looks)
    trained = [after.columns["uses"] > before.columns["uses"] for before, after in epochs]
    order = np.argsort(np.mean([look.columns["loss"] for look in looks], axis=0), kind="stable")
    examples = order[evenly_spaced(len(order), COLUMNS)]
    indices = looks[0].columns["index"][examples].tolist()
    pictures: list[Picture] = []
    # The ends of a training are of more interest than the middles of its parts.
    for epoch in np.unique(np.linspace(0, len(epochs) - 1, ROWS).round().astype(int)):
        before, after = epochs[epoch]
        losses, used = before.columns["loss"][examples], trained[epoch][examples]
        captions = [
            f"{'kept' if flag else 'dropped'}, loss {f'{loss:.2g}' if loss >= 0.01 else '< 0.01'}"
            for flag, loss in zip(used, losses, strict=True)
        ]
        row = f"epoch {round(after.epoch)}: {title}, {trained[epoch].mean():.0%} kept"
        for picture, flag in zip(take_pictures(data, indices, captions, row), used, strict=True):
            faded = (picture.image + FADED * (255.0 - picture.image)).round().astype(np.uint8)
            pictures.append(picture if flag else replace(picture, image=faded))
    fifth = max(1, len(order) // 5)
    shares = []
    for (before, _), used in zip(epochs, trained, strict=True):
        by_loss = used[np.argsort(before.columns["loss"], kind="stable")]
        shares.append((by_loss.mean(), by_loss[:fifth].mean(), by_loss[-fifth:].mean()))
    selective = [means for means in shares if means[0] < 1] or shares
    _, least, most = np.mean(selective, axis=0)
    over = "one epoch" if len(selective) == 1 else f"{len(selective)} epochs"
    sentence = (
        f"{title}: of the fifth of the examples with the least loss {least:.0%} were trained on in "
        f"the next epoch, of the fifth with the most {most:.0%}, on average over {over}."
    )
    return Finding(sentence, pictures=pictures)
