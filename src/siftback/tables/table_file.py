"""The file of a table: its values, mapped into memory, with a lock and a journal."""

import secrets
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siftback.errors import StateError
from siftback.state import integer, text
from siftback.tables.file_lock import FileLock
from siftback.tables.undo_journal import UndoJournal, append_whole

FILE_STATE = {
    **dict.fromkeys(("file", "identity"), text),
    **dict.fromkeys(("rows", "columns"), integer()),
    "mark": integer(least=-(1 << 62), most=-1),
    "checksum": integer(most=(1 << 64) - 1),
}
"""The checks of a state, by name."""

_HEADER = 4096  # bytes before the first row
_CHUNK = 1 << 22  # values that are read or written at a time


class TableFile:
    """The file of a `ScoreTable`, which this process alone writes to.

    Args:
        path: The file; opened if it exists, else created.
        columns: Number of values per row.

    Attributes:
        path: The file.
        identity: What tells it from other tables.
        values: float32[rows, columns], the mapped values; replaced as the file grows.

    Raises:
        ConfigError: If another process has the file.
        StateError: If it is not a table of as many columns, or ends within a row.
    """

    def __init__(self, path: Path, columns: int) -> None:
        self.path, self._columns = path, columns
        self._magic = f"siftback score table 3: {columns} columns of float32, ".encode()
        is_new = not path.exists()
        if not is_new:  # and fits, before it is taken from another table of this process
            self._read_identity()
        self._lock = FileLock(path)
        if is_new and path.stat().st_size == 0:
            identity = secrets.token_hex(16).encode()
            path.write_bytes((self._magic + identity).ljust(_HEADER, b"\0"))
        self.identity = self._read_identity()
        size, width = path.stat().st_size, max(4 * columns, 1)
        if (size - _HEADER) % width:
            raise StateError(
                f"{path} was cut off within a row: it has {size} bytes. Restore it, or remove it "
                "to start with an empty table"
            )
        self._sum: int | None = None  # of all values, `_checksum`; None where not known
        self._journal = UndoJournal(path, columns, self.identity)
        self._map((size - _HEADER) // width if columns else 0)

    def grow(self, rows: int) -> None:
        """Appends rows of NaN, up to a number of rows."""
        self._check()
        count = (rows - len(self.values)) * self._columns
        missing = np.full(min(_CHUNK, count), np.nan, np.float32)
        chunks = (missing[: count - start].data for start in range(0, count, _CHUNK))
        append_whole(self.path, _HEADER + self._array.nbytes, chunks)
        self._map(rows)

    def write(self, indices: Tensor, columns: slice, values: Tensor) -> None:
        """Overwrites some columns of rows, after noting in the journal what they were."""
        self._check()
        if self._journal.is_begun:
            rows, old = indices.numpy(), self.values[indices]
            self._journal.write(rows, old.numpy(), len(self.values))
            if self._sum is not None:
                new = old.clone()
                new[:, columns] = values
                self._sum += _checksum(rows, new) - _checksum(rows, old)
        self.values[indices, columns] = values
        self._version = self.values._version

    def flush(self) -> None:
        """Flushes the values to disk."""
        if isinstance(self._array, np.memmap):
            self._array.flush()

    def state_dict(self) -> dict[str, Any]:
        """Returns what finds the present values again: a mark in the journal, and a checksum."""
        self._check()
        if self._sum is None:
            self._sum = _total(self.values)
        mark, self._version = self._journal.mark(len(self.values)), self.values._version
        shape = {"rows": len(self.values), "columns": self._columns}
        now = {"file": str(self.path), "mark": mark, "checksum": self._sum % (1 << 64)}
        return {"identity": self.identity, **shape, **now}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that the file can go back to a state of it.

        Raises:
            StateError: If it cannot.
        """
        if state["rows"] > len(self.values):
            raise StateError(
                f"{self.path} has {len(self.values)} rows, and had {state['rows']} as the state "
                "was saved: restore it, or begin with an empty table"
            )
        self._journal.check(state["mark"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes back to a state that was checked.

        Raises:
            StateError: If the values are then not those of the state.
        """
        self._lock.check()
        for rows, values in self._journal.since(state["mark"]):
            self.write(torch.from_numpy(rows), slice(None), torch.from_numpy(values))
        self._sum = _total(self.values)
        if self._sum % (1 << 64) != state["checksum"]:
            raise StateError(
                f"the values in {self.path} are not those of the state: the machine failed before "
                "they were on disk, or something else wrote to it. Restore the file, or remove it "
                "to begin with an empty table"
            )
        self._journal.put(state["mark"])

    def _check(self) -> None:
        """Checks that this process has the file, and wrote to it by `write` alone.

        Raises:
            ConfigError: If another table has it.
            StateError: If its values were written to directly since there is a journal.
        """
        self._lock.check()
        if self._journal.is_begun and self.values._version != self._version:
            raise StateError(
                f"values of the table in {self.path} were written to directly, which no state can "
                "go back from: write them by ScoreTable.record"
            )

    def _map(self, rows: int) -> None:
        shape = (rows, self._columns)
        self._array: Any = np.empty(shape, np.float32)
        if rows and self._columns:
            self._array = np.memmap(self.path, np.float32, "r+", offset=_HEADER, shape=shape)
        self.values = torch.from_numpy(self._array)
        self._version = self.values._version

    def _read_identity(self) -> str:
        """Returns what tells this file from others, after checking its header."""
        with self.path.open("rb") as file:
            header = file.read(_HEADER)
        content = header.rstrip(b"\0")
        if not content.startswith(self._magic) or len(header) < _HEADER:
            raise StateError(
                f"{self.path} is not a score table of this version with {self._columns} columns, "
                f"and begins with {content[:40]!r}: give another path, or remove the file"
            )
        return content[len(self._magic) :].decode()


def _total(values: Tensor) -> int:
    """Returns the checksum of a whole table."""
    chunks = zip(range(0, len(values), _CHUNK), torch.split(values, _CHUNK), strict=False)
    return sum(_checksum(np.arange(i, i + len(chunk)), chunk) for i, chunk in chunks)


def _checksum(rows: "np.typing.NDArray[np.int64]", values: Tensor) -> int:
    """Returns the sum of a hash of each value with its row and column, without those that are NaN.

    Modulo 2^64, sums of disjoint sets of rows add up, so that of a table follows its changes.
    """
    bits = values.numpy().view(np.uint32).astype(np.uint64)
    mixed = (rows[:, None] * values.shape[1] + np.arange(values.shape[1])).astype(np.uint64)
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    mixed += bits * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed[values.isnan().numpy()] = 0
    return int(mixed.sum(dtype=np.uint64))
