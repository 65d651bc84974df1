"""Pixels of a picture: the examples are their coordinates, the targets their colours."""

import torch

from siftback.errors import ConfigError
from siftback.lab.data.data_set import DataSet, check_memory
from siftback.lab.data.images import decode_image, open_image
from siftback.lab.data.source import Address

COLOURS = ("red", "green", "blue")  # of which a grey picture has three equal ones


def read_picture(address: Address) -> DataSet:
    """Reads a picture as examples: ``picture:PATH``, brought to a size by the option ``size``.

    The pixel in row i of H and column j of W is the example ``i * W + j``, with the coordinates
    ``x = 2 j / (W - 1) - 1`` and ``y = 2 i / (H - 1) - 1``; its targets are the bytes of its
    colours over 127.5, less 1. The test set is the whole picture, as what is asked of the model is
    to remember it.

    Raises:
        ConfigError: If the file cannot be read as an image, or all of its pixels are alike.
    """
    size = address.size
    if size is None:
        with open_image(address.path, 0, str(address)) as image:
            size = image.height, image.width
    height, width = size
    check_memory(4 * (2 + len(COLOURS)) * height * width, f"{address} of {height}x{width} pixels")
    colours = decode_image(address.path, 0, str(address), "RGB", size)
    targets = torch.from_numpy(colours).view(-1, len(COLOURS)) / 127.5 - 1
    if bool((targets == targets[0]).all()):
        raise ConfigError(f"{address} is of a single colour: give a picture of something")
    rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    split = torch.stack((x.flatten(), y.flatten()), 1), targets
    return DataSet(address.title, *split, *split, COLOURS, kind="pixels")
