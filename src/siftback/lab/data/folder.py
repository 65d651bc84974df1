"""Images in folders, one for each class."""

from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data import images
from siftback.lab.data.address import Address
from siftback.lab.data.cache import cached

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
TESTS = ("test", "val", "validation")


def read(address: Address) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Reads ``PATH/train/CLASS/*.png`` and ``PATH/test/CLASS/*.png``, or ``PATH/CLASS/*.png``.

    Classes are numbered in the order of their names. Folders of other names than these come by
    the options ``train`` and ``test``; ``val`` and ``validation`` stand for ``test`` where that
    is not there.

    Returns:
        ``train_images``, ``train_labels`` and, where there is a folder to test on,
        ``test_images`` and ``test_labels``; and the names of the classes.

    Raises:
        ConfigError: If there is no such folder, a class has no images or is none to train
            on, an image cannot be read, or the sizes differ and none is asked for.
    """
    folders = _folders(address)
    classes = _subfolders(folders["train"])
    if len(classes) < 2:
        raise ConfigError(
            f"{folders['train']} holds {len(classes)} folders of images: give one with a folder "
            "for each class, or one with train/ and test/ that have"
        )
    files = {split: _files(folder, classes, split) for split, folder in folders.items()}
    paths = {split: [path for path, _ in each] for split, each in files.items()}
    whole = list(chain(*paths.values()))

    def decoded() -> dict[str, Tensor]:
        mode, size = images.survey(whole, str(address), address.size)
        tensors: dict[str, Tensor] = {}
        for split, each in paths.items():
            title = f"Decoding {address.path.name} ({split})"
            tensors[f"{split}_images"] = images.decode(each, len(each), mode, size, title)
            tensors[f"{split}_labels"] = torch.tensor([label for _, label in files[split]])
        return tensors

    names = [str(path.relative_to(address.path)) for path in whole]
    return cached(address.cache, whole, decoded, names), tuple(classes)


def _folders(address: Address) -> dict[str, Path]:
    root, asked = address.path, address.options
    if not root.is_dir():
        raise ConfigError(f"{address}: there is no folder {root}: give one that holds images")
    for split in ("train", "test"):
        if split in asked and not (root / asked[split]).is_dir():
            raise ConfigError(f"{address}: {split}={asked[split]}, but {root} has no such folder")
    if "train" not in asked and "test" not in asked and not (root / "train").is_dir():
        return {"train": root}
    folders = {"train": root / asked.get("train", "train")}
    names = [asked["test"]] if "test" in asked else TESTS
    tests = [root / name for name in names if (root / name).is_dir()]
    return folders | ({"test": tests[0]} if tests else {})


def _subfolders(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: name the one to train on by train=")
    return sorted(each.name for each in folder.iterdir() if each.is_dir() and each.name[0] != ".")


def _files(folder: Path, classes: list[str], split: str) -> list[tuple[Path, int]]:
    """Each image with its label, in the order of the paths."""
    unknown = sorted({*_subfolders(folder)} - {*classes})
    if unknown:
        raise ConfigError(f"{folder / unknown[0]} is not one of the classes to train on: remove it")
    found: list[tuple[Path, int]] = []
    for label, name in enumerate(classes):
        inside = (folder / name).iterdir() if (folder / name).is_dir() else ()
        pairs = [(each, label) for each in sorted(inside) if each.suffix.lower() in SUFFIXES]
        if not pairs and split == "train":
            raise ConfigError(
                f"{folder / name} holds no images: give each class a folder of images, in train/ "
                "and test/ or side by side"
            )
        found += pairs
    if not found:
        raise ConfigError(f"{folder} holds no images: add some by class, or remove it")
    return found
