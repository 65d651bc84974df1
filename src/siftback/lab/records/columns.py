"""Numbers as columns of a Parquet file, which says in its metadata how they were made."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import parquet
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.records.folder import atomic_write


def write_columns(path: Path, columns: Mapping[str, Any], metadata: dict[str, Any]) -> None:
    """Writes a file, so that no reader sees half of it.

    Args:
        path: Where to; folders are made.
        columns: By name, of one length: arrays, tensors, series or lists.
        metadata: How they were made, fit for JSON.
    """
    table = pa.table({name: np.asarray(column) for name, column in columns.items()})
    with atomic_write(path) as whole:
        described = table.replace_schema_metadata({"siftback": json.dumps(metadata)})
        parquet.write_table(described, whole, compression="zstd", write_page_checksum=True)


def read_columns(path: Path, writer: str) -> tuple[pa.Table, dict[str, Any]]:
    """Reads a file; gives its table, and how it was made.

    Args:
        path: Which.
        writer: The command that writes such files, for errors.

    Raises:
        ConfigError: If the file is missing or holds something else.
    """
    try:
        table = parquet.read_table(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: make it with {writer} --out {path}") from None
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(
            f"{path} cannot be read as a Parquet file ({error}): give one of {writer}"
        ) from None
    try:
        return table, dict(json.loads((table.schema.metadata or {})[b"siftback"]))
    except (LookupError, ValueError, TypeError):
        raise ConfigError(f"{path} does not say how it was made: give a file of {writer}") from None


def column_of(table: pa.Table, name: str) -> Tensor:
    """One of its columns.

    Raises:
        ConfigError: If it holds no numbers.
    """
    try:
        return torch.tensor(table[name].to_numpy())
    except TypeError:
        raise ConfigError(f"column {name} holds {table[name].type}: give numbers") from None
