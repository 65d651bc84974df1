"""Images and texts in Parquet files: where they are found, and how they are read.

Their layout is the Hugging Face hub's: ``<split>-*.parquet`` for each split, with one column of
labels, and one of texts or ``struct{bytes, path}`` of encoded images.
"""

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
import pyarrow as pa
import torch
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

    Raises:
        ConfigError: If a file is damaged, a column is missing or of another type, there are no
            rows, or an image cannot be read.
    """
    table = _table(files, [column, label])
    column_type = table[column].type
    if not pa.types.is_struct(column_type) or column_type.get_field_index("bytes") < 0:
        raise _wrong_column(files, column, column_type, "images, as struct{bytes, path}")
    encoded = table[column].combine_chunks().field("bytes")
    if encoded.null_count:
        raise _wrong_column(files, column, column_type, "an image in each row")
    _, size = images.survey([encoded[0].as_py()], title, None)
    cells = (cell.as_py() for cell in encoded)
    pixels = images.decode(cells, len(encoded), mode, size, title)
    return pixels, _labels(table, files, label)


def texts(
    files: list[Path], columns: Sequence[str], label: str = "label"
) -> tuple[list[str], Tensor]:
    """Texts and their labels, int64 [N].

    Args:
        files: As for `decode`.
        columns: What the column of texts may be called; the first that there is.
        label: Name of the labels' column.

    Raises:
        ConfigError: If a file is damaged, there is no such column, it holds something else, or
            there are no rows.
    """
    table = _table(files, [label])
    column = next((name for name in columns if name in table.column_names), None)
    if column is None:
        raise ConfigError(
            f"{files[0]} has the columns {', '.join(table.column_names)}: expected one of texts, "
            f"{' or '.join(columns)}"
        )
    cells, column_type = table[column], table[column].type
    if not (pa.types.is_string(column_type) or pa.types.is_large_string(column_type)):
        raise _wrong_column(files, column, column_type, "texts")
    if cells.null_count:
        raise _wrong_column(files, column, column_type, "a text in each row")
    return cells.to_pylist(), _labels(table, files, label)


def class_names(file: Path, label: str) -> tuple[str, ...]:
    """The names of the classes, as the hub's files have them; empty where they have none.

    Args:
        file: A Parquet file, or an Arrow stream that the hub's client made of one.
        label: Name of the labels' column.
    """
    with _naming_damage(file):
        if file.suffix == ".parquet":
            schema = parquet.read_schema(file)
        else:
            with pa.memory_map(str(file)) as stream:
                schema = pa.ipc.open_stream(stream).schema
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
        return tuple(metadata.get("info", {}).get("features", {}).get(label, {}).get("names", ()))


def _table(files: list[Path], columns: Sequence[str]) -> pa.Table:
    """The rows of several files.

    Raises:
        ConfigError: If one is damaged, a column is missing, or there are no rows.
    """
    tables = []
    for file in files:
        with _naming_damage(file):
            tables.append(_read(file))
    with _naming_damage(files[0]):  # of other columns than the other files, perhaps
        table = pa.concat_tables(tables)
    if missing := [name for name in columns if name not in table.column_names]:
        raise ConfigError(
            f"{files[0]} has the columns {', '.join(table.column_names)}: expected "
            f"{' and '.join(missing)}"
        )
    if not len(table):
        raise ConfigError(f"{files[0]} has no rows: put a file with examples in its place")
    return table


def _labels(table: pa.Table, files: list[Path], label: str) -> Tensor:
    """The column of labels: int64 [N]."""
    cells = table[label]
    if not pa.types.is_integer(cells.type) or cells.null_count:
        raise _wrong_column(files, label, cells.type, "an integer in each row")
    return torch.from_numpy(cells.to_numpy().astype(np.int64))


def _wrong_column(files: list[Path], name: str, kind: Any, expected: str) -> ConfigError:
    return ConfigError(f"{files[0]}: column {name} of type {kind} has to hold {expected}")


@contextmanager
def _naming_damage(file: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a damaged file can fail in any way
        raise ConfigError(
            f"{file} is damaged ({type(error).__name__}: {error}): put a whole file in its place"
        ) from error


def _read(file: Path) -> pa.Table:
    if file.suffix == ".parquet":
        return parquet.read_table(file)
    with pa.memory_map(str(file)) as stream:
        return pa.ipc.open_stream(stream).read_all()
