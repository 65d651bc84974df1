"""Tables of images and texts: where they are found, and what their columns hold.

They are sets of the Hugging Face hub, files of its client on disk, or files of the hub's layout:
``<split>-*.parquet`` for each split, with a column of labels, and one of texts or
``struct{bytes, path}`` of encoded images.
"""

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import pyarrow as pa
import torch
from pyarrow import parquet
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.source import IMAGE_OPTIONS, LABEL, Address, EncodedSet, Published, Splits

PROJECT = Path(__file__).parents[4]
# The usual names of what is tested on; the first that there is is taken.
TEST_SPLITS = ("test", "validation", "valid", "val", "dev")
STRINGS = ("string", "large_string", "string_view")
# The types that cells of a column have. Labels are the numbers of the classes, or values that are
# numbered in their order.
NUMBER, VALUE, TEXT = "an integer", "an integer or a name", "a text"
CELL_TYPES: dict[str, set[type]] = {NUMBER: {int}, VALUE: {int, bool, str}, TEXT: {str}}


def read_examples(
    tables: Mapping[str, pa.Table],
    inputs: str,
    label: str,
    values: Sequence[Any],
    is_text: bool,
    name: str,
) -> Splits:
    """Reads the inputs and the labels of tables, by split.

    Args:
        tables: Tables by split.
        inputs: Name of the column of images or texts.
        label: Name of the column of labels.
        values: Labels of the classes, in their order; where empty, labels are their numbers.
        is_text: Whether inputs are texts, and not images.
        name: Name of the tables in errors.

    Raises:
        ConfigError: If a column is missing or holds something else, or a label is that of no class
            to train on.
    """
    read: Callable[..., Any] = partial(read_cells, kind=TEXT) if is_text else read_encoded
    return {
        split: (read(table, inputs, name=name), read_labels(table, label, values, split, name))
        for split, table in tables.items()
    }


def read_labels(rows: pa.Table, label: str, values: Sequence[Any], split: str, name: str) -> Tensor:
    """Reads the labels of a split as numbers of classes: int64 [N].

    Args:
        rows: N of them.
        label: Name of the column of labels.
        values: As of `read_examples`.
        split: Name of the split in errors.
        name: Name of the table in errors.

    Raises:
        ConfigError: If the column is missing or holds something else, or a label is that of no
            class to train on.
    """
    cells = read_cells(rows, label, VALUE if values else NUMBER, name)
    if values and (unknown := {*cells} - {*values}):
        raise ConfigError(
            f"{name} has {min(unknown)!r} among the labels to {split} on, and not to "
            "train on: leave these rows out, or name others to test on by test="
        )
    numbers = {value: number for number, value in enumerate(values)}
    return torch.tensor([numbers.get(cell, cell) for cell in cells], dtype=torch.int64)


def read_encoded(table: pa.Table, column: str, name: str) -> pa.ChunkedArray:
    """Returns a column of encoded images, ``struct{bytes, path}``.

    Raises:
        ConfigError: If the column is missing, or holds something else.
    """
    check_columns(table.column_names, (column,), name)
    cells = table[column]
    if not pa.types.is_struct(cells.type) or cells.type.get_field_index("bytes") < 0:
        raise ConfigError(
            f"{name}: column {column!r} of type {cells.type} has to hold images, as "
            "struct{bytes, path}"
        )
    return cells


def read_cells(table: pa.Table, column: str, kind: str, name: str) -> list[Any]:
    """Reads the cells of a column, all of a kind of ``CELL_TYPES``; 1.0 is the integer 1.

    Raises:
        ConfigError: If the column is missing, or a cell is of another kind.
    """
    check_columns(table.column_names, (column,), name)
    cells = [
        int(cell) if isinstance(cell, float) and cell.is_integer() else cell
        for cell in table[column].to_pylist()
    ]
    if not {*map(type, cells)} <= CELL_TYPES[kind]:
        raise ConfigError(
            f"{name}: column {column!r} of type {table[column].type} has to hold {kind} in each "
            "row: leave the other rows out, or name another column"
        )
    return cells


def check_columns(columns: Sequence[str], names: Sequence[str], name: str) -> None:
    """Checks that a table has a column of one of some names."""
    if not {*columns} & {*names}:
        listed, expected = ", ".join(columns), " or ".join(names)
        raise ConfigError(f"{name} has the columns {listed}: expected {expected}")


def open_published(name: str, published: Published) -> EncodedSet:
    """Opens a published set: its local files where there are any, else the hub's.

    Raises:
        ConfigError: If ``SIFTBACK_DATA`` lacks the set, a file is damaged or lacks a column, or
            the hub cannot be reached.
    """
    files = find_files(published.folder or name, published, (*published.train, "test"))
    paths = {"train": [p for split in published.train for p in files[split]], "test": files["test"]}
    first = paths["train"][0]
    with naming_source(first):
        is_arrow = first.suffix != ".parquet"
        schema = read_file(first).schema if is_arrow else parquet.read_schema(first)
        metadata = json.loads((schema.metadata or {}).get(b"huggingface", "{}"))
        feature = metadata.get("info", {}).get("features", {}).get(published.label, {})
        names = published.names or tuple(feature.get("names", ()))
    for columns in (published.columns, (published.label,)):
        check_columns(schema.names, columns, str(first))
    groups: list[int] = []
    for path in paths["train"] if published.group else ():
        groups += read_cells(read_file(path), published.group, NUMBER, str(path))
    inputs = next(column for column in published.columns if column in schema.names)
    is_text = published.length > 0

    def read() -> Splits:
        tables = {}
        for split, sources in paths.items():
            with naming_source(sources[0]):  # a later file may have other columns
                tables[split] = pa.concat_tables(map(read_file, sources))
            if not len(tables[split]):
                raise ConfigError(f"{sources[0]} has no rows: put one with examples in its place")
        splits = read_examples(tables, inputs, published.label, (), is_text, str(first))
        if is_text:  # reviews of IMDB have breaks of lines
            for split, (texts, labels) in splits.items():
                splits[split] = [text.replace("<br />", " ") for text in texts], labels
        return splits

    return EncodedSet(
        name=str(first),
        title=name,
        read=read,
        names=names or tuple(map(str, range(published.classes))),
        files=[path for sources in paths.values() for path in sources],
        is_text=is_text,
        groups=torch.tensor(groups) if groups else None,
    )


def find_files(name: str, published: Published, splits: Sequence[str]) -> dict[str, list[Path]]:
    """Finds the files of each split: in a folder of `data_folders`, else on the hub."""
    for folder in data_folders():
        files = {split: sorted((folder / name).glob(f"{split}-*.parquet")) for split in splits}
        if all(files.values()):
            return files
    expected = " and ".join(f"{name}/{split}-*.parquet" for split in splits)
    origin = f"they are at https://huggingface.co/datasets/{published.repository}"
    origin += f", under {published.config}" if published.config else ""
    if not published.repository:
        raise ConfigError(
            f"{name} is not on this machine, and the Hugging Face hub has no copy of it with the "
            f"column {published.group!r}: put its files at {expected}, with the columns "
            f"{', '.join((*published.columns, published.label, published.group))}, in a folder and "
            "set SIFTBACK_DATA to it"
        )
    if root := os.environ.get("SIFTBACK_DATA"):
        raise ConfigError(
            f"SIFTBACK_DATA={root} holds no {name}: expected {expected} there; add them "
            f"({origin}), or unset it to ask the Hugging Face hub"
        )
    advice = f"put its files at {expected} in a folder and set SIFTBACK_DATA to it ({origin})"
    hub = load_from_hub(published.repository, published.config, advice)
    return {split: [Path(file["filename"]) for file in hub[split].cache_files] for split in splits}


def data_folders() -> list[Path]:
    """Lists the folders that may hold data.

    ``SIFTBACK_DATA`` alone where it is set, else ``../shared/data`` beside the working directory
    and beside the project.
    """
    if folder := os.environ.get("SIFTBACK_DATA"):
        return [Path(folder)]
    return [path.parent / "shared" / "data" for path in (Path.cwd(), PROJECT)]


def local_folder(name: str) -> Path | None:
    """Finds the folder of a data set on this machine; None where there is none, or an empty one."""
    folders = [folder / name for folder in data_folders()]
    return next((folder for folder in folders if folder.is_dir() and any(folder.iterdir())), None)


def read_file(path: Path) -> pa.Table:
    """Reads a Parquet file, or an Arrow stream that the hub's client wrote."""
    with naming_source(path):
        if path.suffix == ".parquet":
            return parquet.read_table(path)
        with pa.memory_map(str(path)) as stream:
            return pa.ipc.open_stream(stream).read_all()


@contextmanager
def naming_source(
    source: object,
    problem: str = "is damaged or of another form",
    advice: str = "put a whole file in its place",
) -> Iterator[None]:
    """Raises errors of reading a source, which are of no common kind, as errors that name it."""
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        cause = f": {error.__cause__}" if error.__cause__ else ""
        raise ConfigError(
            f"{source} {problem} ({type(error).__name__}: {error}{cause}): {advice}"
        ) from error


def open_address(address: Address) -> EncodedSet:
    """Opens a set of the hub, a folder of ``save_to_disk``, or one that ``load_dataset`` takes.

    The column of images is the one of that feature, that of texts the one of strings, and that of
    labels the one of class labels or else the one named ``label``; the options ``image``, ``text``
    and ``label`` name others, ``train`` and ``test`` the splits, ``config`` the configuration.

    Raises:
        ConfigError: If the set cannot be read, a split or a column is missing or not told from
            others, or an option is for other examples.
    """
    splits = choose_splits(load_splits(address), address)
    import datasets

    features, options = splits["train"].features, address.options
    strings = [name for name in features if getattr(features[name], "dtype", "") in STRINGS]
    images = [name for name in features if isinstance(features[name], datasets.Image)]
    labels = [name for name in features if isinstance(features[name], datasets.ClassLabel)]
    texts = [name for name in strings if name != options.get("label", LABEL)]
    is_text = "text" in options or bool(texts and not images and "image" not in options)
    if is_text:
        inputs = choose_column(features, address, "text", texts)
        if inputs not in strings:
            raise ConfigError(f"{address}: column {inputs!r} holds no texts: give one that does")
        if foreign := sorted({*IMAGE_OPTIONS, "image"} & {*options}):
            raise ConfigError(f"{address}: {foreign[0]}= is of images, and these are texts")
    else:
        if "vocabulary" in options:
            raise ConfigError(f"{address}: vocabulary= is of texts, and these are images")
        inputs = choose_column(features, address, "image", images)
    label = choose_column(features, address, "label", labels or [LABEL] * (LABEL in features))
    tables = {}
    names = tuple(getattr(features[label], "names", ()))
    for split, data in splits.items():
        columns = [name for name in dict.fromkeys((inputs, label)) if name in data.features]
        tables[split] = data.select_columns(columns).with_format("arrow")[:]
        numbered = zip(getattr(data.features.get(label), "names", ()), names, strict=False)
        if unlike := [pair for pair in numbered if pair[0] != pair[1]]:
            raise ConfigError(
                f"{address}: column {label!r} has the number of {unlike[0][1]!r} for "
                f"{unlike[0][0]!r} to {split} on: encode all splits at once, or save texts"
            )
    cells = () if label in labels else read_cells(tables["train"], label, VALUE, str(address))
    values = sorted({*cells})
    return EncodedSet(
        name=str(address),
        title=address.path.name,
        read=lambda: read_examples(tables, inputs, label, values, is_text, str(address)),
        names=names or tuple(map(str, values)),
        files=[Path(file["filename"]) for data in splits.values() for file in data.cache_files],
        is_text=is_text,
    )


def load_splits(address: Address) -> Mapping[str, Any]:
    """Loads all splits of a set, each a ``datasets.Dataset``, which brings no types."""
    folders = [address.path, *(folder / address.target for folder in data_folders())]
    path = next((path for path in folders if path.exists()), None)
    config = address.options.get("config", "")
    if not path:
        advice = (
            f'where it is at hand call datasets.load_dataset("{address.target}").save_to_disk('
            '"FOLDER"), put the folder here, and give hf:FOLDER'
        )
        return load_from_hub(address.target, config, advice)
    import datasets

    readable = "a folder that Dataset.save_to_disk wrote, of Parquet files, or of images by class"
    with naming_source(path, "cannot be read as a data set", f"give {readable}"):
        if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
            data = datasets.load_from_disk(str(path))
        elif path.is_file():
            data = datasets.load_dataset("parquet", data_files=str(path))
        else:
            data = datasets.load_dataset(str(path.resolve()), *([config] if config else []))
    return data if isinstance(data, Mapping) else {"train": data}


def load_from_hub(repository: str, config: str, advice: str) -> Mapping[str, Any]:
    """Loads all splits of a set of the hub; the client keeps what it downloads.

    Raises:
        ConfigError: If it cannot be read; the error gives the advice.
    """
    if "HF_HUB_OFFLINE" not in os.environ and not getproxies():
        host = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co")).hostname
        try:
            socket.getaddrinfo(host, 443)
        except OSError:
            # Read as the client is first imported; it would try again for half a minute otherwise.
            os.environ["HF_HUB_OFFLINE"] = "1"
    # Imported when it is needed, as it takes seconds and most runs read local files.
    import datasets

    problem = "is not on this machine, and could not be read from the Hugging Face hub"
    with naming_source(repository, problem, f"connect to the internet, or {advice}"):
        splits: Mapping[str, Any] = datasets.load_dataset(repository, *([config] if config else []))
    return splits


def choose_splits(splits: Mapping[str, Any], address: Address) -> dict[str, Any]:
    """Chooses the split to train on, and the one to test on where there is one."""
    options, names = address.options, ", ".join(splits)
    train = options.get("train", next(iter(splits)) if len(splits) == 1 else "train")
    test = options.get("test") or next((name for name in TEST_SPLITS if name in splits), train)
    for role, name in (("train", train), ("test", test)):
        if name not in splits:
            raise ConfigError(
                f"{address} has no split {name!r}: name the one to {role} on by {role}=, one of "
                f"{names}"
            )
        if not len(splits[name]):
            raise ConfigError(f"{address}: split {name!r} is empty: give another of {names}")
    return {"train": splits[train]} | ({"test": splits[test]} if test != train else {})


def choose_column(
    features: Mapping[str, Any], address: Address, role: str, candidates: list[str]
) -> str:
    """Chooses the column that an option names, or else the only candidate."""
    columns, option = ", ".join(features), address.options.get(role)
    if option and option not in features:
        raise ConfigError(f"{address} has no column {option!r}: give {role}= one of {columns}")
    if not option and len(candidates) != 1:
        number = f"{len(candidates)} columns" if candidates else "no column known to be"
        raise ConfigError(
            f"{address} has {number} of {role}s: name it by {role}=, one of {candidates or columns}"
        )
    return option or candidates[0]
