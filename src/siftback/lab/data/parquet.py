"""Images and texts in Parquet files: where they are found, and how they are read.

Their layout is the Hugging Face hub's: ``<split>-*.parquet`` for each split, with one column of
labels, and one of texts or ``struct{bytes, path}`` of encoded images.
"""

import io
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data import images

SPLITS = ("train", "test")
PROJECT = Path(__file__).parents[4]

Files = dict[str, list[Path]]


def find(
    name: str, repository: str, splits: Sequence[str] = SPLITS, config: str | None = None
) -> Files:
    """The files of each split: local ones where there are any, else the hub's.

    Looks in ``SIFTBACK_DATA`` and there alone where it is set; else in ``../shared/data`` beside
    the working directory and beside the project; else asks the hub, which keeps what it
    downloads.

    Args:
        name: Name of the set's folder.
        repository: Its repository on the hub.
        splits: Those that are wanted.
        config: Which of the repository's configurations; None where it has but one.

    Raises:
        ConfigError: If ``SIFTBACK_DATA`` lacks the set, or the hub cannot be reached.
    """
    expected = " and ".join(f"{name}/{split}-*.parquet" for split in splits)
    if given := os.environ.get("SIFTBACK_DATA"):
        if files := _in_folder(Path(given) / name, splits):
            return files
        raise ConfigError(
            f"SIFTBACK_DATA={given} holds no {name}: expected {expected} there; add them "
            f"({_origin(repository, config)}), or unset it to ask the Hugging Face hub"
        )
    for place in shared():
        if files := _in_folder(place / name, splits):
            return files
    return _on_hub(repository, splits, config, expected)


def shared() -> list[Path]:
    """Where data may lie that ``SIFTBACK_DATA`` does not name."""
    return [place.parent / "shared" / "data" for place in (Path.cwd(), PROJECT)]


def places() -> list[Path]:
    """Where data are looked for: ``SIFTBACK_DATA`` alone where it is set, else `shared`."""
    given = os.environ.get("SIFTBACK_DATA")
    return [Path(given)] if given else shared()


def at_hand(name: str) -> Path | None:
    """The folder of a data set on this machine; None where there is none, or nothing in it."""
    folders = [place / name for place in places()]
    return next((folder for folder in folders if folder.is_dir() and any(folder.iterdir())), None)


def _in_folder(folder: Path, splits: Sequence[str]) -> Files | None:
    files = {split: sorted(folder.glob(f"{split}-*.parquet")) for split in splits}
    return files if all(files.values()) else None


def _on_hub(repository: str, splits: Sequence[str], config: str | None, expected: str) -> Files:
    stay_offline_without_network()
    # Imported here, as it takes seconds and most runs read local files.
    import datasets

    try:
        found = datasets.load_dataset(repository, *([config] if config else []))
    except Exception as error:
        # The hub's clients raise their own errors, of no common kind, when there is no network.
        raise ConfigError(
            f"{repository} could not be read from the Hugging Face hub ({error}): connect to the "
            f"internet, or put its files at {expected} in a folder and set SIFTBACK_DATA to that "
            f"folder ({_origin(repository, config)})"
        ) from error
    return {
        split: [Path(file["filename"]) for file in found[split].cache_files] for split in splits
    }


def stay_offline_without_network() -> None:
    """Has the hub's client look at what it keeps alone where the hub has no address here.

    It would try again for half a minute otherwise. To be called before it is first imported; what
    the environment says of it, and a proxy, are left as they are.
    """
    if "HF_HUB_OFFLINE" in os.environ or getproxies():
        return
    host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        os.environ["HF_HUB_OFFLINE"] = "1"


def _origin(repository: str, config: str | None) -> str:
    place = f"https://huggingface.co/datasets/{repository}"
    return f"they are at {place}, under {config}" if config else f"they are at {place}"


def decode(
    files: list[Path], column: str, mode: str, title: str, label: str = "label"
) -> tuple[Tensor, Tensor]:
    """Decodes every image, with a progress bar on stderr.

    Args:
        files: Parquet files, or the Arrow streams that the hub's client makes of them.
        column: Name of the images' column.
        mode: Pillow's mode: ``"L"`` for grey, ``"RGB"`` for colour.
        title: What to write beside the bar.
        label: Name of the labels' column.

    Returns:
        Images, uint8 [N, C, H, W] in ``channels_last`` memory format, and labels, int64 [N].
    """
    table = pa.concat_tables([_read(file) for file in files])
    encoded = table[column].combine_chunks().field("bytes")
    with Image.open(io.BytesIO(encoded[0].as_py())) as first:
        size = first.height, first.width
    cells = (cell.as_py() for cell in encoded)
    pixels = images.decode(cells, len(encoded), mode, size, title)
    return pixels, torch.from_numpy(table[label].to_numpy().astype(np.int64))


def texts(
    files: list[Path], columns: Sequence[str], label: str = "label"
) -> tuple[list[str], Tensor]:
    """Texts and their labels, int64 [N].

    Args:
        files: As for `decode`.
        columns: What the column of texts may be called; the first that there is.
        label: Name of the labels' column.

    Raises:
        ConfigError: If there is no such column.
    """
    table = pa.concat_tables([_read(file) for file in files])
    column = next((name for name in columns if name in table.column_names), None)
    if column is None or label not in table.column_names:
        raise ConfigError(
            f"{files[0]} has the columns {', '.join(table.column_names)}: expected {label}, and "
            f"one of texts, {' or '.join(columns)}"
        )
    return table[column].to_pylist(), torch.from_numpy(table[label].to_numpy().astype(np.int64))


def class_names(file: Path, label: str) -> tuple[str, ...]:
    """The names of the classes, as the hub's files have them; empty where they have none.

    Args:
        file: A Parquet file, or an Arrow stream that the hub's client made of one.
        label: Name of the labels' column.
    """
    if file.suffix == ".parquet":
        schema = parquet.read_schema(file)
    else:
        with pa.memory_map(str(file)) as stream:
            schema = pa.ipc.open_stream(stream).schema
    metadata = json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
    return tuple(metadata.get("info", {}).get("features", {}).get(label, {}).get("names", ()))


def _read(file: Path) -> pa.Table:
    if file.suffix == ".parquet":
        return parquet.read_table(file)
    with pa.memory_map(str(file)) as stream:
        return pa.ipc.open_stream(stream).read_all()
