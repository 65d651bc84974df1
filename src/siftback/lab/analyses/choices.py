"""Choices of selection in pictures: the examples kept most and dropped most, and suspect ones."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from siftback.lab.analyses.budget import OURS
from siftback.lab.analyses.diet import count_uses
from siftback.lab.analyses.figure import Gallery, Missing, Picture
from siftback.lab.analyses.observed import Watched, command, watched_selective
from siftback.lab.analyses.pictures import Described, build_gallery, take_pictures
from siftback.lab.data.data_set import ImageData
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look

SHOWN = 12


def picture_choices(comparisons: Sequence[Comparison]) -> Gallery | Missing:
    """The examples that the first selective configuration of each comparison kept and dropped.

    Kept most and dropped most go by how often they were trained on, over all seeds; equal numbers
    by the loss at the last evaluation, the mean over the seeds. Suspect are those that were never
    learnt: of the highest `persistent_losses`.
    """
    title = "The examples kept most, dropped most, and suspect"
    why = f"No losses were observed of a selective run. {command('losses')}"
    runs = watched_selective(comparisons, "losses")
    entries = [(*run.origin, partial(describe_choices, run)) for run in runs]
    return build_gallery("choices", title, OURS, why, entries)


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


def describe_choices(run: Watched, data: ImageData) -> Described:
    """Takes the pictures of one configuration's choices, and says how far apart they are."""
    count = len(data.train_labels)
    used, stayed = count_uses(run.seeds, count), persistent_losses(run.seeds, count)
    last = np.full((len(run.seeds), count), np.nan)
    for row, looks in zip(last, run.seeds, strict=True):
        row[looks[-1].columns["index"]] = looks[-1].columns["loss"]
    loss = last.mean(0)
    seen = np.flatnonzero(~np.isnan(loss))
    by_use = seen[np.lexsort((loss[seen], used[seen]))]
    suspect = seen[np.argsort(-stayed[seen], kind="stable")][:SHOWN]
    rows = {
        "kept most": by_use[::-1][:SHOWN],
        "dropped most": by_use[:SHOWN],
        "suspect": suspect,
    }
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
    return pictures, sentence
