"""Observations that figures need beyond the records, made whenever a run is tested.

Of each look there is one Parquet file per kind under ``observed/``, in a folder of the run's name:
a run that is broken off leaves all that it had looked at, each file whole.

============== ==========================================================================
kind           columns
============== ==========================================================================
``losses``     ``epoch``, ``index``, ``loss``, ``uses``: every training example's loss, and
               how often it was trained on so far
``gradients``  ``epoch``, ``batch``, ``subset``, ``share``, ``cosine``, ``same_sign``: how the
               gradient of a part of a batch is like that of the whole
``confidence`` ``epoch``, ``split``, ``index``, ``confidence``, ``correct``: the probability
               of the target, of every training and test example
============== ==========================================================================

Losses and confidence are those of a forward pass in eval mode over images that are not augmented.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import parquet

from siftback.errors import ConfigError
from siftback.lab.records.formatting import one_of

KINDS = ("losses", "gradients", "confidence")
OBSERVED = "observed"

# Shares of a batch whose gradient is held against that of the whole.
SHARES = (0.1, 0.25, 0.5)
SUBSETS = ("high", "low", "random")

# What reading a damaged file raises.
_DAMAGED = (OSError, pa.ArrowException, LookupError, ValueError)


def kinds_of(text: str) -> tuple[str, ...]:
    """Returns the kinds to observe, from names with commas between.

    Raises:
        ConfigError: For a name that is none of `KINDS`.

    >>> kinds_of("losses, confidence"), kinds_of("")
    (('losses', 'confidence'), ())
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if unknown := [name for name in names if name not in KINDS]:
        raise ConfigError(f"observe {','.join(unknown)}: {one_of(unknown[0], KINDS)}")
    return names


class Look(NamedTuple):
    """Observations of one evaluation.

    Attributes:
        epoch: Epochs of source examples done.
        columns: The other columns by name, of N rows each.
    """

    epoch: float
    columns: dict[str, NDArray[Any]]


def folder_of(folder: Path, record: str) -> Path:
    """Where a run's files are.

    Args:
        folder: The comparison's.
        record: The run's record, relative to it.
    """
    return folder / OBSERVED / Path(record).stem


def looks(folder: Path, record: str, kind: str) -> list[Look]:
    """Returns the observations of a run, in their order; damaged files are left out.

    Args:
        folder: The comparison's.
        record: The run's record, relative to it.
        kind: One of `KINDS`.
    """
    observations = []
    for path in sorted(folder_of(folder, record).glob(f"{kind}-*.parquet")):
        with suppress(*_DAMAGED):
            # Not memory-mapped, so that a file that is replaced meanwhile is read whole.
            table = parquet.ParquetFile(path).read()
            columns = {name: table[name].to_numpy() for name in table.column_names}
            observations.append(Look(float(columns.pop("epoch")[0]), columns))
    return observations


def damage(path: Path) -> str | None:
    """Returns the damage of one of the files that its footer shows, or None."""
    try:
        parquet.read_metadata(path)
    except _DAMAGED as error:
        return f"{type(error).__name__}: {error}"
    return None
