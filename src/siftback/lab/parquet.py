"""Encoded images in Parquet files: where they are found, and how they become bytes.

Their layout is the Hugging Face hub's: ``train-*.parquet`` and ``test-*.parquet`` with a column
``struct{bytes, path}`` of encoded images and one of labels.
"""

import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet
from rich.console import Console
from rich.progress import track
from torch import Tensor

from siftback import ConfigError

SPLITS = ("train", "test")
PROJECT = Path(__file__).parents[3]

Files = dict[str, list[Path]]


def find(name: str, repository: str) -> Files:
    """The files of each split: local ones where there are any, else the hub's.

    Looks in ``SIFTBACK_DATA`` and there alone where it is set; else in ``../shared/data`` beside
    the working directory and beside the project; else asks the hub, which keeps what it
    downloads.

    Args:
        name: Name of the set's folder.
        repository: Its repository on the hub.

    Raises:
        ConfigError: Where ``SIFTBACK_DATA`` lacks the set, or the hub cannot be reached.
    """
    if given := os.environ.get("SIFTBACK_DATA"):
        if files := _in_folder(Path(given) / name):
            return files
        raise ConfigError(
            f"SIFTBACK_DATA={given} holds no {name}: expected {name}/train-*.parquet and "
            f"{name}/test-*.parquet there; add them, or unset it to ask the Hugging Face hub"
        )
    for place in (Path.cwd(), PROJECT):
        if files := _in_folder(place.parent / "shared" / "data" / name):
            return files
    return _on_hub(name, repository)


def _in_folder(folder: Path) -> Files | None:
    files = {split: sorted(folder.glob(f"{split}-*.parquet")) for split in SPLITS}
    return files if all(files.values()) else None


def _on_hub(name: str, repository: str) -> Files:
    # Imported here, as it takes seconds and most runs read local files.
    import datasets

    try:
        found = datasets.load_dataset(repository)
    except Exception as error:
        # The hub's clients raise their own errors, of no common kind, when there is no network.
        raise ConfigError(
            f"{repository} could not be read from the Hugging Face hub ({error}): connect to the "
            f"internet, or put its files at {name}/train-*.parquet and {name}/test-*.parquet in "
            "a folder and set SIFTBACK_DATA to that folder"
        ) from error
    return {
        split: [Path(file["filename"]) for file in found[split].cache_files] for split in SPLITS
    }


def decode(files: list[Path], column: str, mode: str, title: str) -> tuple[Tensor, Tensor]:
    """Decodes every image, with a progress bar on stderr.

    One thread: for images this small, several only wait for each other's Python.

    Args:
        files: Parquet files, or the Arrow streams that the hub's client makes of them.
        column: Name of the images' column; the labels' is ``label``.
        mode: Pillow's mode: ``"L"`` for grey, ``"RGB"`` for colour.
        title: What to write beside the bar.

    Returns:
        Images, uint8 [N, C, H, W] in ``channels_last`` memory format, and labels, int64 [N].
    """
    table = pa.concat_tables([_read(file) for file in files])
    encoded = table[column].combine_chunks().field("bytes")
    with Image.open(io.BytesIO(encoded[0].as_py())) as first:
        shape = (len(encoded), first.height, first.width, Image.getmodebands(mode))
    pixels = np.empty(shape, np.uint8)
    for position in _progress(range(len(encoded)), title):
        with Image.open(io.BytesIO(encoded[position].as_py())) as image:
            pixels[position] = np.asarray(image.convert(mode)).reshape(shape[1:])
    labels = torch.from_numpy(table["label"].to_numpy().astype(np.int64))
    return torch.from_numpy(pixels).permute(0, 3, 1, 2), labels


def _read(file: Path) -> pa.Table:
    if file.suffix == ".parquet":
        return parquet.read_table(file)
    with pa.memory_map(str(file)) as stream:
        return pa.ipc.open_stream(stream).read_all()


def _progress(items: range, title: str) -> Iterable[int]:
    """The items, under a progress bar on a terminal and a plain line elsewhere."""
    if sys.stderr.isatty():
        return track(items, title, console=Console(stderr=True), transient=True)
    print(f"{title}: {len(items):,} images", file=sys.stderr)
    return items
