"""Images in one file of NumPy arrays."""

import math
import zipfile
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.address import Address
from siftback.lab.data.data_set import check_memory

CHANNELS = (1, 3)
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(address: Address) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Reads ``x_train``, ``y_train``, ``x_test`` and ``y_test`` of an ``.npz`` file.

    Images are uint8 [N, H, W], [N, H, W, C] or [N, C, H, W], with 1 or 3 channels; labels are
    whole numbers [N] or [N, 1] from 0. ``x_test`` and ``y_test`` may be left out; other arrays are
    not read.

    Returns:
        ``train_inputs``, ``train_labels`` and, where the file holds them, ``test_inputs`` and
        ``test_labels``; and the names of the classes, up to the largest label to train on.

    Raises:
        ConfigError: If the file cannot be read, or holds something else.
    """
    arrays = read_members(address)
    splits = ["train"] + ["test"] * ("x_test" in arrays or "y_test" in arrays)
    missing = [f"{k}_{split}" for split in splits for k in "xy" if f"{k}_{split}" not in arrays]
    if missing:
        raise ConfigError(
            f"{address} holds {', '.join(arrays) or 'nothing'} and no {' and no '.join(missing)}: "
            "save it by numpy.savez(PATH, x_train=..., y_train=..., x_test=..., y_test=...)"
        )
    tensors: dict[str, Tensor] = {}
    for split in splits:
        images = as_images(arrays[f"x_{split}"], f"x_{split} of {address}")
        labels = as_labels(arrays[f"y_{split}"], f"y_{split} of {address}")
        if len(images) != len(labels):
            raise ConfigError(
                f"{address} has {len(images)} images and {len(labels)} labels to {split} on: "
                "give a label for each image"
            )
        tensors |= {f"{split}_inputs": images, f"{split}_labels": labels}
    if len({tensors[f"{split}_inputs"].shape[1:] for split in splits}) > 1:
        raise ConfigError(f"{address}: x_train and x_test have images of different shapes")
    labels = tensors["train_labels"]
    classes = int(labels.max()) + 1
    if classes > len(labels):  # a model has a logit for each
        raise ConfigError(
            f"y_train of {address} has classes up to {classes - 1} for {len(labels)} images: "
            "number the classes without gaps, as numpy.unique(y, return_inverse=True)[1] does"
        )
    return tensors, tuple(map(str, range(classes)))


def read_members(address: Address) -> dict[str, Any]:
    """Reads the arrays of the file by name: those of `ARRAYS`, and None for the others."""
    if not address.path.exists():
        raise ConfigError(f"{address}: there is no file {address.path}")
    if not address.path.is_file():  # reading a pipe would wait for ever
        raise ConfigError(f"{address} cannot be read as a file of arrays: it is not a file")
    arrays: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(address.path) as file:
            for info in file.infolist():
                name = info.filename.removesuffix(".npy")
                if name in arrays:
                    raise ValueError("it holds an array twice")
                arrays[name] = None
                if name in ARRAYS:
                    check_memory(info.file_size, f"{name} of {address}")
                    with file.open(info) as stream:
                        check_header(stream, info)
                        stream.seek(0)
                        arrays[name] = npy.read_array(stream, allow_pickle=False)
    except ConfigError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise ConfigError(
            f"{address} cannot be read as a file of arrays ({error or type(error).__name__}): save "
            "it by numpy.savez"
        ) from error
    return arrays


def check_header(stream: Any, info: zipfile.ZipInfo) -> None:
    """Checks that an array's header agrees with its length: a false one allocates anything."""
    version = npy.read_magic(stream)
    if version not in HEADERS:
        raise ValueError(f"{info.filename} has a header of version {version}")
    shape, _, dtype = HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError(f"{info.filename} is of objects, which are not loaded")
    size, declared = info.file_size - stream.tell(), math.prod(shape) * dtype.itemsize
    if declared != size:
        raise ValueError(f"{info.filename} has {size} bytes, and its header says {declared}")


def as_images(array: Any, name: str) -> Tensor:
    """Returns an array of images as uint8 [N, C, H, W], in ``channels_last`` memory format."""
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


def as_labels(array: Any, name: str) -> Tensor:
    """Returns an array of labels as int64 [N]."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    numbers = array.ndim == 1 and array.dtype.kind in "iu"
    # The largest of uint64 would become negative as int64.
    if not numbers or (len(array) and not 0 <= int(array.min()) <= int(array.max()) < 2**63):
        raise ConfigError(
            f"{name} is of type {array.dtype} and shape {list(array.shape)}, or below 0: give "
            "the number of a class, from 0, for each image"
        )
    return torch.from_numpy(array.astype(np.int64))
