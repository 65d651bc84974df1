"""Choices of selection in pictures: kept most and dropped most, suspect, and over training."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from siftback.errors import ConfigError
from siftback.lab.data.data_set import ImageData
from siftback.lab.figures.analyses import Finding, join_findings
from siftback.lab.figures.figure import Analysis, Picture
from siftback.lab.figures.loss_distributions import evenly_spaced
from siftback.lab.figures.observed import Watched, count_uses, last_values, watched_selective
from siftback.lab.figures.pictures import take_pictures, with_images
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look

SHOWN = 12
COLUMNS, ROWS = 10, 6
FADED = 0.75  # how far a dropped image is on the way to white
NEAR = 0.05  # epochs; kept examples may wait a little for their batch to be full


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
