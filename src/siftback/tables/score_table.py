"""Values remembered for each example of a data set."""

import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siftback.arguments import check_integer, format_value
from siftback.errors import BatchError, ConfigError, StateError
from siftback.state import check_digest, check_entries, integer, seal, tensor, text
from siftback.tables.file_lock import FileLock
from siftback.tables.undo_journal import UndoJournal
from siftback.tensor_arguments import check_rows, is_dense

_IN_MEMORY = {"values": tensor(torch.float32, None, None)}
_OF_FILE = {
    **dict.fromkeys(("file", "identity"), text),
    **{name: integer() for name in ("rows", "columns")},
    "mark": integer(least=-(1 << 62), most=-1),
    "checksum": integer(most=(1 << 64) - 1),
}

_HEADER = 4096  # bytes before the first row of a file
_CHUNK = 1 << 22  # values written to a file at a time


class ScoreTable:
    """A table of float32 values with a row per example; NaN where nothing is known.

    In memory, or in a memory-mapped file, which may be larger than memory and outlives the
    process. Rows are read and written by dataset index, many at a time. Values in a file are
    written as four aligned bytes each: if the process is killed, every value is either the old
    or the new one. A file may have more rows than there are examples.

    The state of a table in memory holds its values. That of a file holds none, and is saved in the
    same time for any number of rows: a file beside it, an `UndoJournal`, has what is needed to go
    back from what the table is by then. It is for a process that is killed; whether the values
    are those of the state is checked as it is loaded, by a checksum over all of them.

    A file belongs to one process at a time, and in it to the table that was opened last; the lock
    ends with the process, also if it is killed. A copy of a table (``copy``, ``pickle``) is in
    memory, with the values that the table has then.

    Args:
        rows: Number of examples; a file that has more rows keeps them.
        columns: Number of values per example. The first is its score.
        path: The file; opened if it exists, else created. None keeps the table in memory.

    Raises:
        ConfigError: If ``rows`` or ``columns`` is not an integer, at least 0, or another process
            has the file; as values are recorded or a state is saved or loaded, if another table
            of this process has opened the file since.
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
        rows = check_integer("rows", rows, 0)
        self.columns = check_integer("columns", columns, 0)
        self.path = None if path is None else _checked_path(path)
        self._turn = 0  # of those that used the table in turn, see `claim`
        self._map: np.memmap[Any, Any] | None = None
        self._lock: FileLock | None = None
        self._journal: UndoJournal | None = None
        self._identity = ""
        self._sum: int | None = None  # of all values, `_checksum`; None where not known
        self._version = 0  # of the tensor after what was last recorded
        self._room = torch.empty(0, self.columns, dtype=torch.float32)  # its first rows are in use
        self._rows = 0
        if self.path is not None:
            self._open(self.path)
        self.grow(rows)

    def __len__(self) -> int:
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        # Not a tensor: as one, it would be gone before a worker process that is spawned has it.
        values = self.values.numpy().copy()
        return {"columns": self.columns, "values": values, "turn": self._turn}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ScoreTable.__init__(self, columns=state["columns"])
        self._room, self._rows = torch.from_numpy(state["values"]), len(state["values"])
        self._turn = state["turn"]

    @property
    def turn(self) -> int:
        """The number of the last `claim`; 0 before the first."""
        return self._turn

    def claim(self) -> int:
        """Begins the turn of a training that is to be the only one to use this table from now on.

        Returns:
            Its number. The training goes on only while `turn` is this number.
        """
        self._turn += 1
        return self._turn

    @property
    def values(self) -> Tensor:
        """float32[rows, columns], the table itself; valid until it grows.

        Writing to it changes the table in memory; to one in a file, write by `record`.
        """
        return self._room[: self._rows]

    def scores(self) -> Tensor:
        """float32[rows], a copy of the first column."""
        return self.values[:, 0].clone()

    def record(
        self, indices: Tensor, scores: Tensor, column: int | None = None, *, decay: float = 0.0
    ) -> None:
        """Overwrites rows, or their values in one column.

        Args:
            indices: int64[n], distinct, each less than the number of rows.
            scores: float[n], or float[n, columns].
            column: In which they are the values; None for whole rows.
            decay: Weight of an old value, where it is finite, in the one that is written:
                ``decay * old + (1 - decay) * new``.

        Raises:
            BatchError: If the indices are not integers of rows, or there is not one score, or row
                of scores, for each.
            ConfigError: If there is no such column.
        """
        if column is not None and check_integer("column", column, 0) >= self.columns:
            raise ConfigError(f"column={column} of a table with {self.columns}: give a smaller one")
        width = self.columns if column is None else 1
        values, indices = self.values, self._checked(indices, scores, width)
        place = slice(None) if column is None else slice(column, column + 1)
        rows = scores.detach().to(values).reshape(len(indices), width)
        if decay:
            before = values[indices, place]
            averages = decay * before + (1 - decay) * rows
            rows = torch.where(before.isfinite(), averages, rows)
        self._check_lock()
        if self._journal is not None and self._journal.is_begun:
            self._check_recorded()
            old, numbers = values[indices], indices.numpy()
            self._journal.write(numbers, old.numpy(), len(self))
            new = old.clone()
            new[:, place] = rows
            if self._sum is not None:
                self._sum += _checksum(numbers, new) - _checksum(numbers, old)
        values[indices, place] = rows
        self._version = self._room._version

    def _checked(self, indices: Any, scores: Any, width: int) -> Tensor:
        """The indices to record scores for, on the CPU."""
        rows: Tensor = check_rows("indices", indices).cpu()
        shapes = [(len(rows), width)] + [(len(rows),)] * (width == 1)
        fits = is_dense(scores) and tuple(scores.shape) in shapes
        if not fits or scores.dtype == torch.bool or scores.is_complex():
            expected = f"float[{len(rows)}]" if width == 1 else f"float{list(shapes[0])}"
            raise BatchError(f"scores={format_value(scores)}: give {expected}, for as many indices")
        if len(rows):
            least, most = (int(bound) for bound in rows.aminmax())
            if least < 0 or most >= len(self):
                raise BatchError(
                    f"the indices range from {least} to {most}, and the table has {len(self)} "
                    "rows: give indices from 0, and call grow(rows) for more"
                )
        return rows

    def grow(self, rows: int) -> None:
        """Makes room for a number of examples; never removes any.

        Raises:
            ConfigError: If ``rows`` is not an integer, at least 0.
        """
        rows = check_integer("rows", rows, 0)
        if rows <= len(self):
            return
        if self.path is not None:
            self._append(self.path, rows - len(self))
        elif rows > len(self._room):
            # Doubled, as a data set without a length grows batch by batch.
            room = torch.full(
                (max(rows, 2 * len(self)), self.columns), torch.nan, dtype=torch.float32
            )
            room[: len(self)] = self.values
            self._room = room
        self._rows = rows

    def flush(self) -> None:
        """Flushes a mapped file to disk; does nothing for a table in memory."""
        if self._map is not None:
            self._map.flush()

    def state_dict(self) -> dict[str, Any]:
        """A copy of the values, float32[rows, columns]; of a file, what finds them again in it.

        Raises:
            StateError: If a table in a file was written to other than by `record`.
        """
        if self._journal is None:
            return seal({"values": self.values.clone()})
        self._check_lock()
        self._check_recorded()
        if self._sum is None:
            self._sum = _total(self.values)
        mark, self._version = self._journal.mark(len(self)), self._room._version
        own = {"identity": self._identity, "rows": len(self), "columns": self.columns}
        found = {"file": str(self.path), "mark": mark, "checksum": self._sum % (1 << 64)}
        return seal(own | found)

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If this table has more rows than the state, or another number of columns; or
                the state is of another table's file, or of one that cannot go back to it.
        """
        is_file = isinstance(state, dict) and "file" in state
        check_digest(self, state)
        check_entries(self, state, _OF_FILE if is_file else _IN_MEMORY)
        rows, columns = (state["rows"], state["columns"]) if is_file else state["values"].shape
        if columns != self.columns:
            raise StateError(
                f"a table of {columns} columns does not fit one of {self.columns}: resume with "
                "the arguments that it was saved with"
            )
        if is_file:
            self._check_file(state)
        elif rows < len(self):
            raise StateError(
                f"a table of {rows} examples does not fit one of {len(self)}: resume with the "
                "data set that it was saved with"
            )

    @staticmethod
    def rows_of_state(state: dict[str, Any]) -> int:
        """Number of rows of a state that fits."""
        return int(state["rows"]) if "file" in state else len(state["values"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the values of another table, or goes back to what a file was.

        Raises:
            StateError: As for `check_state`, before anything is changed; or if a file's values
                are then not those of the state.
        """
        self.check_state(state)
        self._check_lock()
        if "file" in state:
            self._go_back(state)
            return
        self.grow(len(state["values"]))
        for start in range(0, len(self), _CHUNK):
            part = state["values"][start : start + _CHUNK]
            self.record(torch.arange(start, start + len(part)), part)

    def _check_file(self, state: dict[str, Any]) -> None:
        if self._journal is None or state["identity"] != self._identity:
            here = "in memory" if self.path is None else f"in {self.path}, which is another one"
            raise StateError(
                f"the state is of the table in {state['file']}, which has its values, and this one "
                f"is {here}: give ScoreTable(path=...) of that file"
            )
        if state["rows"] > len(self):
            raise StateError(
                f"{self.path} has {len(self)} rows, and had {state['rows']} as the state was "
                "saved: restore it, or begin with an empty table"
            )
        self._journal.check(state["mark"])

    def _go_back(self, state: dict[str, Any]) -> None:
        assert self._journal is not None
        for rows, values in self._journal.since(state["mark"]):
            self.record(torch.from_numpy(rows), torch.from_numpy(values))
        self._sum = _total(self.values)
        if self._sum % (1 << 64) != state["checksum"]:
            raise StateError(
                f"the values in {self.path} are not those of the state: the machine failed before "
                "they were on disk, or something else wrote to it. Restore the file, or remove it "
                "to begin with an empty table"
            )
        self._journal.put(state["mark"])

    def _check_lock(self) -> None:
        if self._lock is not None:
            self._lock.check()

    def _check_recorded(self) -> None:
        begun = self._journal is not None and self._journal.is_begun
        if begun and self._room._version != self._version:
            raise StateError(
                f"values of the table in {self.path} were written to directly, which no state can "
                "go back from: write them by ScoreTable.record"
            )

    def _open(self, path: Path) -> None:
        is_new = not path.exists()
        if not is_new:  # and fits, before it is taken from another table of this process
            self._identity_of(path)
        self._lock = FileLock(path)
        if is_new and path.stat().st_size == 0:
            identity = secrets.token_hex(16).encode()
            path.write_bytes((self._magic + identity).ljust(_HEADER, b"\0"))
        self._identity = self._identity_of(path)
        size = path.stat().st_size
        if (size - _HEADER) % max(self._width, 1):
            raise StateError(
                f"{path} was cut off within a row: it has {size} bytes. Restore it, or remove it "
                "to start with an empty table"
            )
        self._rows = (size - _HEADER) // self._width if self._width else 0
        self._remap(path, self._rows)
        self._journal = UndoJournal(path, self.columns, self._identity)

    def _identity_of(self, path: Path) -> str:
        """Checks a file, and returns what tells it from others.

        Raises:
            StateError: If it is not a table of as many columns.
        """
        with path.open("rb") as file:
            header = file.read(_HEADER)
        found = header.rstrip(b"\0")
        if not found.startswith(self._magic) or len(header) < _HEADER:
            raise StateError(
                f"{path} is not a score table of this version with {self.columns} columns, and "
                f"begins with {found[:40]!r}: give another path, or remove the file"
            )
        return found[len(self._magic) :].decode()

    @property
    def _magic(self) -> bytes:
        return f"siftback score table 3: {self.columns} columns of float32, ".encode()

    @property
    def _width(self) -> int:
        return 4 * self.columns

    def _append(self, path: Path, rows: int) -> None:
        self._check_lock()
        self._check_recorded()
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
            self._room = torch.empty(rows, self.columns, dtype=torch.float32)
        self._version = self._room._version


def _checked_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a file, after checking that there can be one."""
    named = path if isinstance(path, str) else None
    if isinstance(path, os.PathLike):
        named = os.fspath(path)
    if not isinstance(named, str) or not named:
        raise ConfigError(
            f"path={format_value(path)}: give the path of a file, a string or a pathlib.Path"
        )
    if Path(named).is_dir() or not Path(named).parent.is_dir():
        missing = "is a folder" if Path(named).is_dir() else "is in no folder that exists"
        raise ConfigError(
            f"path={format_value(path)} {missing}: give the path of a file in one that does"
        )
    return Path(named)


def _total(values: Tensor) -> int:
    """The checksum of a whole table."""
    total = 0
    for start in range(0, len(values), _CHUNK):
        part = values[start : start + _CHUNK]
        total += _checksum(np.arange(start, start + len(part)), part)
    return total


def _checksum(rows: "np.typing.NDArray[np.int64]", values: Tensor) -> int:
    """The sum of a hash of each value and its place, but for those that are NaN.

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
