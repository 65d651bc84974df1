"""What selection chose, in pictures: the examples kept most and dropped most, and suspect ones."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from siftback.errors import ConfigError
from siftback.lab.analyses.budget import OURS
from siftback.lab.analyses.diet import uses
from siftback.lab.analyses.figure import Gallery, Missing, Picture
from siftback.lab.analyses.observed import Watched, command, watched
from siftback.lab.analyses.pictures import pictures, training_set
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look

SHOWN = 12


def chosen(comparisons: Sequence[Comparison]) -> Gallery | Missing:
    """The examples that the first selective configuration of each comparison kept and dropped.

    Kept most and dropped most go by how often they were trained on, over all seeds; equal numbers
    by the loss at the last evaluation, the mean over the seeds. Suspect are those that were never
    learnt: of the highest `persistent_losses`.
    """
    name, title = "choices", "The examples kept most, dropped most, and suspect"
    shown: list[Picture] = []
    sentences: list[str] = []
    why = f"No losses were observed of a selective run. {command('losses')}"
    for found in watched(comparisons, "losses"):
        selective = [of for of in found if not of.configuration.plain]
        if not selective:
            continue
        try:
            made, sentence = _chosen(selective[0])
        except ConfigError as error:
            why = f"The images of {selective[0].title} cannot be had ({error})"
            continue
        shown += made
        sentences.append(sentence)
    if not shown:
        return Missing(name, title, why)
    return Gallery(name, title, sentences, OURS, shown)


def persistent_losses(seeds: Sequence[Sequence[Look]], examples: int) -> NDArray[np.float64]:
    """How high each example's loss stayed: the least of the later half of looks, a mean of seeds.

    Args:
        seeds: The looks of each seed, in order.
        examples: How many examples there are.

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


def _chosen(of: Watched) -> tuple[list[Picture], str]:
    data = training_set(of.configuration.comparison)
    count = len(data.train_labels)
    used, stayed = uses(of.seeds, count), persistent_losses(of.seeds, count)
    last = np.full((len(of.seeds), count), np.nan)
    for row, looks in zip(last, of.seeds, strict=True):
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
    made: list[Picture] = []
    for name, places in rows.items():
        captions = [f"loss {loss[place]:.3g}, used {used[place]:.3g}x" for place in places]
        heading = f"{name}: {of.title}, {of.configuration.label}"
        made += pictures(data, places.tolist(), captions, heading)
    most, least, average = (
        f"{used[places].mean():.3g}" for places in (rows["kept most"], rows["dropped most"], seen)
    )
    sentence = (
        f"{of.title}, {of.configuration.label}: those kept most were trained on {most} times, "
        f"those dropped most {least} times, an example {average} times on average; the suspect "
        f"ones never had a loss below {stayed[suspect].min():.2g} in the later half of training."
    )
    if data.true_labels is not None:
        flipped = data.flipped.numpy()
        sentence += (
            f" Of the {len(suspect)} suspect ones {flipped[suspect].sum()} have a wrong label, of "
            f"all {flipped.mean():.0%}."
        )
    return made, sentence
