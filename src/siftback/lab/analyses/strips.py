"""What was kept and dropped over training, as a strip of images: a column for each example."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from siftback.errors import ConfigError
from siftback.lab.analyses.budget import OURS
from siftback.lab.analyses.figure import Gallery, Missing, Picture
from siftback.lab.analyses.observed import command, watched
from siftback.lab.analyses.pictures import pictures, training_set
from siftback.lab.data.data_set import ImageData
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look

NAME, TITLE = "strip", "What was kept and dropped over training"
COLUMNS, ROWS = 10, 6
FADED = 0.75  # how far a dropped image is on the way to white
NEAR = 0.05  # epochs; kept examples may wait a little for their batch to be full


def strip(comparisons: Sequence[Comparison]) -> Gallery | Missing:
    """The strip of images of the first selective configuration of each comparison.

    Of its first seed. It needs losses observed at the ends of epochs.
    """
    shown: list[Picture] = []
    sentences: list[str] = []
    why = f"No losses were observed of a selective run at the ends of epochs. {command('losses')}"
    for found in watched(comparisons, "losses"):
        of = next((of for of in found if not of.configuration.plain), None)
        if of is None or not _epochs(of.seeds[0]):
            continue
        title = f"{of.title}, {of.configuration.label}"
        try:
            data = training_set(of.configuration.comparison)
        except ConfigError as error:
            why = f"The images of {of.title} cannot be had ({error})"
            continue
        shown += _pictures(data, of.seeds[0], title)
        sentences.append(kept_by_loss(of.seeds[0], title))
    if not shown:
        return Missing(NAME, TITLE, why)
    return Gallery(NAME, TITLE, sentences, OURS, shown)


def strip_of_images(data: ImageData, looks: Sequence[Look], of: str) -> Gallery:
    """Which of ten examples were trained on, epoch by epoch: others are faded.

    The ten stand evenly among all examples by their mean loss, the easiest at the left. There is
    a row for an epoch, for at most six, evenly over training. A caption has the loss before it.

    Args:
        data: Whose images.
        looks: What was seen of a training at the ends of epochs, with the columns ``index``,
            ``loss`` and ``uses``, how often an example was trained on so far. Looks within an
            epoch are left out, as an example may be trained on after them.
        of: What was trained, for headings and sentences.

    Raises:
        ConfigError: If there are not two looks at the ends of epochs.
    """
    if not _epochs(looks):
        raise ConfigError(
            "a strip of images shows what was trained on between looks at the ends of epochs, of "
            f"which there are fewer than two among {[look.epoch for look in looks]}: look at "
            "every epoch's end"
        )
    return Gallery(NAME, TITLE, [kept_by_loss(looks, of)], OURS, _pictures(data, looks, of))


def kept_by_loss(looks: Sequence[Look], of: str) -> str:
    """How much was trained on of the fifths with the least and the most loss before an epoch.

    A mean over the epochs in which not everything was trained on, or else over all.

    Args:
        looks: As for `strip_of_images`.
        of: What was trained.
    """
    shares = []
    for before, after in _epochs(looks):
        order = np.argsort(before.columns["loss"], kind="stable")
        kept = _kept(before, after)[order]
        fifth = max(1, len(order) // 5)
        shares.append((kept.mean(), kept[:fifth].mean(), kept[-fifth:].mean()))
    chosen = [each for each in shares if each[0] < 1] or shares
    _, least, most = np.mean(chosen, axis=0)
    over = "one epoch" if len(chosen) == 1 else f"{len(chosen)} epochs"
    return (
        f"{of}: of the fifth of the examples with the least loss {least:.0%} were trained on in "
        f"the next epoch, of the fifth with the most {most:.0%}, on average over {over}."
    )


def _epochs(looks: Sequence[Look]) -> list[tuple[Look, Look]]:
    """Each look at the end of an epoch, with the one before it."""
    return list(pairwise(look for look in looks if abs(look.epoch - round(look.epoch)) <= NEAR))


def _kept(before: Look, after: Look) -> NDArray[np.bool_]:
    """Which examples were trained on between two looks."""
    return np.asarray(after.columns["uses"] > before.columns["uses"])


def _pictures(data: ImageData, looks: Sequence[Look], of: str) -> list[Picture]:
    index = looks[0].columns["index"]
    order = np.argsort(np.mean([look.columns["loss"] for look in looks], axis=0), kind="stable")
    places = order[_evenly(len(order), COLUMNS)]
    epochs = _epochs(looks)
    made: list[Picture] = []
    # The ends of a training are of more interest than the middles of its parts.
    for turn in np.unique(np.linspace(0, len(epochs) - 1, ROWS).round().astype(int)):
        before, after = epochs[turn]
        kept, losses = _kept(before, after)[places], before.columns["loss"][places]
        captions = [
            f"{'kept' if one else 'dropped'}, loss {_written(loss)}"
            for one, loss in zip(kept, losses, strict=True)
        ]
        row = f"epoch {round(after.epoch)}: {of}, {_kept(before, after).mean():.0%} kept"
        shown = pictures(data, [int(one) for one in index[places]], captions, row)
        made += [
            picture if one else Picture(_faded(picture.image), picture.label, picture.caption, row)
            for picture, one in zip(shown, kept, strict=True)
        ]
    return made


def _written(loss: float) -> str:
    """A loss in few letters, as captions have little room.

    >>> _written(2.34), _written(0.00012)
    ('2.3', '< 0.01')
    """
    return f"{loss:.2g}" if loss >= 0.01 else "< 0.01"


def _evenly(count: int, parts: int) -> NDArray[np.int64]:
    """The middles of equal parts of so many places, or all places where they are fewer."""
    parts = min(parts, count)
    return (2 * np.arange(parts) + 1) * count // (2 * parts)


def _faded(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (image + FADED * (255.0 - image)).round().astype(np.uint8)
