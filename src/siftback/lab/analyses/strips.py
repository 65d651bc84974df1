"""Examples kept and dropped over training, as a strip of images: a column for each example."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from siftback.errors import ConfigError
from siftback.lab.analyses.budget import OURS
from siftback.lab.analyses.figure import Gallery, Missing, Picture
from siftback.lab.analyses.loss_distributions import evenly_spaced
from siftback.lab.analyses.observed import command, watched_selective
from siftback.lab.analyses.pictures import Described, build_gallery, take_pictures
from siftback.lab.data.data_set import ImageData
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import Look

NAME, TITLE = "strip", "What was kept and dropped over training"
COLUMNS, ROWS = 10, 6
FADED = 0.75  # how far a dropped image is on the way to white
NEAR = 0.05  # epochs; kept examples may wait a little for their batch to be full


def picture_strip(comparisons: Sequence[Comparison]) -> Gallery | Missing:
    """The strip of images of the first selective configuration of each comparison.

    Of its first seed. It needs losses observed at the ends of epochs.
    """
    why = f"No losses were observed of a selective run at the ends of epochs. {command('losses')}"
    runs = [run for run in watched_selective(comparisons, "losses") if pair_epochs(run.seeds[0])]
    entries = [(*run.origin, partial(describe_strip, run.seeds[0], run.heading)) for run in runs]
    return build_gallery(NAME, TITLE, OURS, why, entries)


def strip_of_images(data: ImageData, looks: Sequence[Look], title: str) -> Gallery:
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
    pictures, sentence = describe_strip(looks, title, data)
    return Gallery(NAME, TITLE, [sentence], OURS, pictures)


def pair_epochs(looks: Sequence[Look]) -> list[tuple[Look, Look]]:
    """Returns each look at the end of an epoch, with the one before it."""
    return list(pairwise(look for look in looks if abs(look.epoch - round(look.epoch)) <= NEAR))


def describe_strip(looks: Sequence[Look], title: str, data: ImageData) -> Described:
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
            image = picture.image if flag else fade(picture.image)
            pictures.append(Picture(image, picture.label, picture.caption, row))
    fifth = max(1, len(order) // 5)
    shares = []
    for (before, _), used in zip(epochs, trained, strict=True):
        by_loss = used[np.argsort(before.columns["loss"], kind="stable")]
        shares.append((by_loss.mean(), by_loss[:fifth].mean(), by_loss[-fifth:].mean()))
    selective = [means for means in shares if means[0] < 1] or shares
    _, least, most = np.mean(selective, axis=0)
    over = "one epoch" if len(selective) == 1 else f"{len(selective)} epochs"
    return pictures, (
        f"{title}: of the fifth of the examples with the least loss {least:.0%} were trained on in "
        f"the next epoch, of the fifth with the most {most:.0%}, on average over {over}."
    )


def fade(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Moves an image's colours on the way to white."""
    return (image + FADED * (255.0 - image)).round().astype(np.uint8)
