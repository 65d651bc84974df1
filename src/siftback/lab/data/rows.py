"""Rows of a table, numbers and categories with a label each, from a CSV or Parquet file."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from pyarrow import csv, parquet

from siftback.errors import ConfigError
from siftback.lab.data.data_set import TableData, add_test_split, check_memory
from siftback.lab.data.source import LABEL, Address, Splits
from siftback.lab.data.tables import STRINGS, VALUE, naming_source, read_cells, read_labels

MOST_CATEGORIES = 1000
"""The most categories of a column, each of which is an input of the model."""

MISSING = ["?", *csv.ConvertOptions().null_values]
MISSING += [f" {cell}" for cell in MISSING]
"""The cells of a CSV file that are missing; those of the UCI repository are "?", after a space."""

# A text that is a number to a reader: 1,5 or 1.500,00 or 12 % or $5, but no code of digits alone.
NUMBER = r"^[-+ ]*([$€£][- ]*\d[\d.,' ]*|\d+(([.,' ]\d{3})*[.,]\d+|([' ]\d{3})+|[ %$€£]+)[ %$€£]*)$"
NUMBER = NUMBER.replace(" ", " \u00a0\u202f").replace("[-", "[-\u2212")  # as typography has them

INDEX = re.compile(r"|index|Unnamed: .*|__index_level_\d+__")
"""The names that pandas gives to the numbers of rows where it writes them as a column."""

LARGEST = 1e100
"""The largest number, so that its square is one too."""

PARQUET = (".parquet", ".pq")

READ_AT_ONCE = 2**31 - 1  # bytes, the most that the reader of CSV takes


def read_rows(address: Address) -> TableData:
    """Reads a table: ``table:PATH``, a CSV file with a header or a Parquet file.

    Columns of CSV are separated by what the header has most of: commas, semicolons or tabs.

    The option ``label`` names the column of labels, ``test`` a file beside it to test on, and
    ``drop`` columns to leave out, separated by commas. Without ``test`` a fifth of each class is
    held out. Columns of numbers and truth values are numbers, those of texts and dictionaries
    categories; those of one value in all training rows are left out, as they tell nothing.

    Categories become an input each, 1 where a row is of it. A missing category is one of its own.
    A category that no training row has is none: its inputs are 0. A missing number is NaN; where
    training rows lack some, a further input is 1 where the number is missing.

    Raises:
        ConfigError: If a file cannot be read; a column is missing, or holds something else, numbers
            above `LARGEST`, texts of which more than half are numbers such as "1,5", more than
            `MOST_CATEGORIES`, or what tells each row from the others; labels are missing, or too
            many to be classes; or no column differs between rows.
    """
    options, name = address.options, str(address)
    label = options.get("label", LABEL)
    tables = {"train": read_table(address.path, name)}
    if "test" in options:
        # Alone, codes of digits among its texts would be read as numbers.
        schema = tables["train"].schema
        types = {field.name: field.type for field in schema if str(field.type) in STRINGS}
        tables["test"] = read_table(file_beside(address, "test"), name, types)
    columns = tables["train"].column_names
    dropped = options["drop"].split(",") if "drop" in options else []
    if absent := [column for column in (label, *dropped) if column not in columns]:
        raise ConfigError(
            f"{name} has no column {absent[0]!r}: give label= the column of labels, and drop= "
            f"those to leave out, of {', '.join(columns)}"
        )
    values = sorted({*read_cells(tables["train"], label, VALUE, name)})
    rows = len(tables["train"])
    if 2 * len(values) > rows:
        raise ConfigError(
            f"{name}: column {label!r} has {len(values):,} labels in {rows:,} rows, and so no "
            "classes to learn: name another column by label="
        )
    splits: Splits = {
        split: (torch.arange(len(table)), read_labels(table, label, values, split, name))
        for split, table in tables.items()
    }
    splits = add_test_split(splits, name)
    train, test = (
        tables.get(split, tables["train"]).take(splits[split][0].numpy())
        for split in ("train", "test")
    )
    inputs = [column for column in columns if column not in (label, *dropped)]
    for column in inputs:
        check_column(tables["train"][column], column, f"{name}: column {column!r}")
    numbers, (train_inputs, test_inputs) = encode_columns(train, test, inputs, name)
    return TableData(
        address.title,
        torch.from_numpy(train_inputs),
        splits["train"][1],
        torch.from_numpy(test_inputs),
        splits["test"][1],
        tuple(map(str, values)),
        numbers=numbers,
    )


def file_beside(address: Address, option: str) -> Path:
    """Returns the path of a file that an option names, in the folder of the address."""
    name = address.options[option]
    if Path(name).name != name:
        raise ConfigError(
            f"{address}: {option}={name}: give the name of a file beside {address.path.name}"
        )
    return address.path.with_name(name)


def read_table(path: Path, name: str, types: Mapping[str, pa.DataType] = {}) -> pa.Table:
    """Reads a table.

    Args:
        path: A Parquet file by its ending, or one of CSV with a header.
        name: Name of the table in errors.
        types: Types of columns of CSV, by name; the values decide those of the others.

    Raises:
        ConfigError: If there is no such file, it cannot be read, has no rows, or a column twice.
    """
    if not path.is_file():  # reading a pipe would wait for ever
        raise ConfigError(f"{name}: there is no file {path}: give one of CSV or Parquet")
    with naming_source(path):
        if path.suffix.lower() in PARQUET:
            table = parquet.read_table(path)
            # No rows can be taken of views, which DataFusion writes.
            kinds = [pa.string() if str(k) == "string_view" else k for k in table.schema.types]
            table = table.cast(pa.schema(zip(table.column_names, kinds, strict=True)))
        else:
            with pa.input_stream(path) as file:
                header, _, _ = file.read(2**20).partition(b"\n")
            table = csv.read_csv(
                path,
                # Types are told from the first block alone: here, from all rows.
                csv.ReadOptions(
                    block_size=min(2 * path.stat().st_size + 1, READ_AT_ONCE),
                    encoding="utf-16" if b"\0" in header else "utf-8",
                ),
                csv.ParseOptions(delimiter=chr(max(b",;\t", key=header.count))),
                csv.ConvertOptions(
                    column_types=dict(types), null_values=MISSING, strings_can_be_null=True
                ),
            )
            if unread := [field.name for field in table.schema if str(field.type) == "binary"]:
                raise ConfigError(
                    f"{path}: column {unread[0]!r} has texts that are not UTF-8: save it in UTF-8"
                )
        columns = table.column_names  # a header may be no text
    if twice := [column for column in columns if columns.count(column) > 1]:
        raise ConfigError(f"{path} has several columns {twice[0]!r}: give each a name of its own")
    if not len(table):
        raise ConfigError(f"{path} has no rows: put a file with examples in its place")
    return table


def is_numeric(kind: pa.DataType) -> bool:
    """Returns whether a column of this type holds numbers, or truth values."""
    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean)
    return any(check(kind) for check in checks)


def encode_columns(
    train: pa.Table, test: pa.Table, columns: Sequence[str], name: str
) -> tuple[int, list[NDArray[np.float32]]]:
    """Encodes columns as inputs of a model, by what the training rows hold.

    Args:
        train: N rows to train on.
        test: M rows to test on.
        columns: Names of the columns.
        name: Name of the table in errors.

    Returns:
        How many of the inputs are numbers, which come first; and float32 [N, F] and [M, F].

    Raises:
        ConfigError: As `read_rows` does of columns.
    """
    numbers, others = [], []  # of each column its training rows and its rows to test on
    for column in columns:
        where = f"{name}: column {column!r}"
        if column not in test.column_names:
            raise ConfigError(f"{where} is not in the table to test on: leave it out by drop=")
        cells = [plain_cells(table[column], where) for table in (train, test)]
        if is_numeric(cells[0].type):
            values = [as_numbers(column, where) for column in cells]
            distinct = np.unique(values[0])
            if len(distinct) < 2:
                continue
            # As differences from their mean, numbers such as dates keep their digits in float32.
            centre, spread = np.nanmean(values[0]), np.nanstd(values[0]) or 1.0
            numbers.append([(array[:, None] - centre) / spread for array in values])
            if np.isnan(distinct).any():
                others.append([np.isnan(array[:, None]) for array in values])
        elif len(categories := cells[0].unique()) > 1:
            if len(categories) > MOST_CATEGORIES:
                raise ConfigError(
                    f"{where} has {len(categories):,} categories, and at most {MOST_CATEGORIES:,} "
                    "are inputs of a model: group them, or leave it out by drop="
                )
            check_memory(len(train) * len(categories), where)
            others.append([one_hot(column, categories.sort(), where) for column in cells])
    if not numbers + others:
        raise ConfigError(f"{name} has no column that differs between rows, besides the labels")
    width = sum(rows.shape[1] for rows, _ in numbers + others)
    check_memory(4 * width * (len(train) + len(test)), f"{name} as {width:,} inputs of a model")
    return len(numbers), [
        np.concatenate(parts, axis=1, dtype=np.float32)
        for parts in zip(*numbers, *others, strict=True)
    ]


def plain_cells(column: pa.ChunkedArray, where: str) -> pa.Array:
    """Returns the cells of a column as float64 or as texts.

    Raises:
        ConfigError: If it is of another type.
    """
    types, kind = pa.types, column.type
    if types.is_dictionary(kind):  # of categories, whatever their values
        column = column.cast(kind.value_type)
    elif is_numeric(kind) or types.is_null(kind):
        return column.cast(pa.float64(), safe=False).combine_chunks()
    elif str(kind) not in STRINGS:
        raise ConfigError(
            f"{where} of type {kind} holds neither numbers nor texts: write it as such, or leave "
            "it out by drop="
        )
    return column.cast(pa.large_string()).combine_chunks()


def as_numbers(cells: pa.Array, where: str) -> NDArray[np.float64]:
    """Returns cells as float64, NaN where they are missing.

    Raises:
        ConfigError: If they are texts, or one is above `LARGEST`, such as infinity.
    """
    if not is_numeric(cells.type):
        raise ConfigError(f"{where} holds numbers to train on and texts to test on: give it a type")
    values: NDArray[np.float64] = cells.to_numpy(zero_copy_only=False)
    if (too_large := np.abs(values) > LARGEST).any():
        raise ConfigError(f"{where} holds {values[too_large][0]}: drop the row, or empty the cell")
    return values


def one_hot(cells: pa.Array, categories: pa.Array, where: str) -> NDArray[np.bool_]:
    """Marks the category of each cell, missing or not: bool [N, K]; a row of False where none is.

    Raises:
        ConfigError: If the cells are numbers, or none is of a category.

    >>> one_hot(pa.array(["b", None, "c"]), pa.array(["a", "b"]), "").astype(int).tolist()
    [[0, 1], [0, 0], [0, 0]]
    """
    if is_numeric(cells.type) and cells.null_count < len(cells):
        raise ConfigError(f"{where} holds texts to train on and numbers to test on: give it a type")
    codes = pc.index_in(cells.cast(categories.type), value_set=categories).fill_null(-1)
    marks: NDArray[np.bool_] = codes.to_numpy()[:, None] == np.arange(len(categories))
    if not marks.any():
        raise ConfigError(
            f"{where} has other categories in all rows to test on than in those to train on: write "
            "them alike, or leave it out by drop="
        )
    return marks


def check_column(column: pa.ChunkedArray, name: str, where: str) -> None:
    """Checks that a column holds no numbers as texts, and neither numbers nor names the rows.

    Raises:
        ConfigError: If more than half of its texts are numbers such as "1,5", or it holds whole
            numbers without gaps, each of them once, or as many texts. In a column of a name of
            `INDEX` numbers may have gaps, as after rows were dropped.
    """
    distinct = plain_cells(column, where).unique()
    if not is_numeric(distinct.type) and len(distinct) > 1:
        numbers = pc.match_substring_regex(distinct, NUMBER)
        if 2 * pc.sum(numbers, min_count=0).as_py() > len(distinct):
            odd = pc.index(pc.match_substring_regex(distinct, r"^[-+]?\d*\.?\d+$"), False)
            text = distinct[odd.as_py()]
            raise ConfigError(f"{where} holds the text {text}: write numbers as 1500.5, or NA")
    if len(distinct) < len(column) or distinct.null_count:
        return
    what = "holds another text in each row"
    if is_numeric(distinct.type):
        values = np.sort(distinct.to_numpy())
        fits = np.diff(values) % 1 == 0 if INDEX.fullmatch(name) else np.diff(values) == 1
        if len(values) < 2 or not fits.all():
            return
        what = f"numbers the rows from {values[0]:g} to {values[-1]:g}"
    raise ConfigError(f"{where} {what}, and tells nothing of further rows: leave it out by drop=")
