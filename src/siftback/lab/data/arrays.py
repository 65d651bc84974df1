"""Images in one file of NumPy arrays."""

import zipfile
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.address import Address

CHANNELS = (1, 3)


def read(address: Address) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Reads ``x_train``, ``y_train``, ``x_test`` and ``y_test`` of an ``.npz`` file.

    Images are uint8 [N, H, W], [N, H, W, C] or [N, C, H, W], with 1 or 3 channels; labels are
    whole numbers [N] or [N, 1] from 0. ``x_test`` and ``y_test`` may be left out.

    Returns:
        ``train_images``, ``train_labels`` and, where they are there, ``test_images`` and
        ``test_labels``; and the names of the classes, up to the largest label.

    Raises:
        ConfigError: If the file cannot be read, or holds something else.
    """
    held = _held(address)
    splits = ["train"] + ["test"] * ("x_test" in held or "y_test" in held)
    missing = [f"{k}_{split}" for split in splits for k in "xy" if f"{k}_{split}" not in held]
    if missing:
        raise ConfigError(
            f"{address} holds {', '.join(held) or 'nothing'} and no {' and no '.join(missing)}: "
            "save it by numpy.savez(PATH, x_train=..., y_train=..., x_test=..., y_test=...)"
        )
    tensors: dict[str, Tensor] = {}
    for split in splits:
        images = _images(held[f"x_{split}"], f"x_{split} of {address}")
        labels = _labels(held[f"y_{split}"], f"y_{split} of {address}")
        if len(images) != len(labels):
            raise ConfigError(
                f"{address} has {len(images)} images and {len(labels)} labels to {split} on: "
                "give a label for each image"
            )
        tensors |= {f"{split}_images": images, f"{split}_labels": labels}
    if len({tensors[f"{split}_images"].shape[1:] for split in splits}) > 1:
        raise ConfigError(f"{address}: x_train and x_test have images of different shapes")
    largest = max(int(tensors[f"{split}_labels"].max()) for split in splits)
    return tensors, numbered(largest + 1)


def numbered(classes: int) -> tuple[str, ...]:
    """Names of classes that have none but their number.

    >>> numbered(3)
    ('0', '1', '2')
    """
    return tuple(map(str, range(classes)))


def _held(address: Address) -> dict[str, Any]:
    try:
        with np.load(address.path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise ConfigError(f"{address}: there is no file {address.path}") from error
    except (OSError, ValueError, TypeError, zipfile.BadZipFile) as error:
        # Pickled objects are a ValueError, and a single array (.npy) a TypeError.
        raise ConfigError(
            f"{address} cannot be read as a file of arrays ({error}): save it by numpy.savez"
        ) from error


def _images(array: Any, name: str) -> Tensor:
    shape = list(array.shape)
    if array.dtype != np.uint8:
        raise ConfigError(
            f"{name} is of type {array.dtype}: give bytes, as (255 * x).round().astype('uint8') "
            "makes of numbers from 0 to 1"
        )
    if array.ndim == 3:
        array = array[..., None]
    elif array.ndim == 4 and shape[3] not in CHANNELS and shape[1] in CHANNELS:
        array = array.transpose(0, 2, 3, 1)
    if array.ndim != 4 or array.shape[3] not in CHANNELS or not array.size:
        raise ConfigError(f"{name} is of shape {shape}: give images [N, H, W] or [N, H, W, 3]")
    return torch.from_numpy(np.ascontiguousarray(array)).permute(0, 3, 1, 2)


def _labels(array: Any, name: str) -> Tensor:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iu" or (len(array) and array.min() < 0):
        raise ConfigError(
            f"{name} is of type {array.dtype} and shape {list(array.shape)}, or below 0: give "
            "the number of a class, from 0, for each image"
        )
    return torch.from_numpy(array.astype(np.int64))
