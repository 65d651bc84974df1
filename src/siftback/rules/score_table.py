"""Values remembered for each example of a data set."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siftback.arguments import checked_integer
from siftback.errors import StateError
from siftback.states import check_state, tensor

_HEADER = 4096  # bytes before the first row of a file
_CHUNK = 1 << 22  # values written to a file at a time


class ScoreTable:
    """A table of float32 values with a row per example; NaN where nothing is known.

    In memory, or in a memory-mapped file, which may be larger than memory and outlives the
    process. Rows are read and written by dataset index, many at a time. Values in a file are
    written as four aligned bytes each: if the process is killed, every value is either the old
    or the new one. A file may have more rows than there are examples.

    Args:
        rows: Number of examples; a file that has more rows keeps them.
        columns: Number of values per example. The first is its score.
        path: The file; opened if it exists, else created. None keeps the table in memory.

    Raises:
        ConfigError: If ``rows`` or ``columns`` is not an integer, at least 0.
        StateError: If the file is not a score table, has another number of columns, or ends
            within a row.

    >>> table = ScoreTable(4)
    >>> table.record(torch.tensor([2, 0]), torch.tensor([0.5, 1.5]))
    >>> table.scores()
    tensor([1.5000,    nan, 0.5000,    nan])
    """

    def __init__(
        self,
        rows: int = 0,
        columns: int = 1,
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        rows = checked_integer("rows", rows, 0)
        self.columns = checked_integer("columns", columns, 0)
        self.path = None if path is None else Path(path)
        self._map: np.memmap[Any, Any] | None = None
        self._room = torch.empty(0, self.columns)  # its first rows are in use
        self._rows = 0
        if self.path is not None:
            self._open(self.path)
        self.grow(rows)

    def __len__(self) -> int:
        return self._rows

    @property
    def values(self) -> Tensor:
        """float32[rows, columns], the table itself: writing to it changes the table.

        Valid until the table grows.
        """
        return self._room[: self._rows]

    def scores(self) -> Tensor:
        """float32[rows], a copy of the first column."""
        return self.values[:, 0].clone()

    def record(self, indices: Tensor, scores: Tensor) -> None:
        """Overwrites rows.

        Args:
            indices: int64[n], distinct, each less than the number of rows.
            scores: float[n], or float[n, columns].
        """
        values = self.values
        rows = scores.detach().to(values).reshape(len(indices), self.columns)
        values[indices.cpu()] = rows

    def grow(self, rows: int) -> None:
        """Makes room for a number of examples; never removes any."""
        if rows <= len(self):
            return
        if self.path is not None:
            self._append(self.path, rows - len(self))
        elif rows > len(self._room):
            # Doubled, as a data set without a length grows batch by batch.
            room = torch.full((max(rows, 2 * len(self)), self.columns), torch.nan)
            room[: len(self)] = self.values
            self._room = room
        self._rows = rows

    def flush(self) -> None:
        """Flushes a mapped file to disk; does nothing for a table in memory."""
        if self._map is not None:
            self._map.flush()

    def state_dict(self) -> dict[str, Any]:
        """A copy of the values: float32[rows, columns]."""
        return {"values": self.values.clone()}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If this table has more rows than the state, or another number of columns.
        """
        check_state(self, state, {"values": tensor(torch.float32, None, None)})
        rows, columns = state["values"].shape
        if columns != self.columns:
            raise StateError(
                f"a table of {columns} columns does not fit one of {self.columns}: resume with "
                "the arguments that it was saved with"
            )
        if rows < len(self):
            raise StateError(
                f"a table of {rows} examples does not fit one of {len(self)}: resume with the "
                "data set that it was saved with"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies the values of another table, in memory or in a file.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self.grow(len(state["values"]))
        self.values.copy_(state["values"])

    def _open(self, path: Path) -> None:
        magic = f"siftback score table 2: {self.columns} columns of float32\n".encode()
        if not path.exists():
            path.write_bytes(magic.ljust(_HEADER, b"\0"))
        size = path.stat().st_size
        with path.open("rb") as file:
            found = file.read(_HEADER).rstrip(b"\0")
        if found != magic or size < _HEADER:
            raise StateError(
                f"{path} is not a score table of this version with {self.columns} columns, and "
                f"begins with {found[:40]!r}: give another path, or remove the file"
            )
        if (size - _HEADER) % max(self._width, 1):
            raise StateError(
                f"{path} was cut off within a row: it has {size} bytes. Restore it, or remove it "
                "to start with an empty table"
            )
        self._rows = (size - _HEADER) // self._width if self._width else 0
        self._remap(path, self._rows)

    @property
    def _width(self) -> int:
        return 4 * self.columns

    def _append(self, path: Path, rows: int) -> None:
        missing = np.full(min(_CHUNK, rows * self.columns), np.nan, np.float32)
        with path.open("ab") as file:
            for start in range(0, rows * self.columns, _CHUNK):
                file.write(missing[: rows * self.columns - start].data)
        self._remap(path, len(self) + rows)

    def _remap(self, path: Path, rows: int) -> None:
        if rows and self.columns:
            shape = rows, self.columns
            self._map = np.memmap(path, np.float32, "r+", offset=_HEADER, shape=shape)
            self._room = torch.from_numpy(self._map)
        else:
            self._room = torch.empty(rows, self.columns)
