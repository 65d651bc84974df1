"""Values remembered for each example of a data set."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from siftback.arguments import check_integer, format_value
from siftback.errors import BatchError, ConfigError, StateError
from siftback.state import check_digest, check_entries, seal, tensor
from siftback.tables.table_file import FILE_STATE, TableFile
from siftback.tensor_arguments import check_tensor, check_within, is_dense

_CHUNK = 1 << 22  # rows that are loaded at a time


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

    Attributes:
        turn: The number of the last `claim`; 0 before the first.
        unsent: What the training of that claim has not sent to other processes yet.

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
        self, rows: int = 0, columns: int = 1, *, path: str | os.PathLike[str] | None = None
    ) -> None:
        rows = check_integer("rows", rows, 0)
        self.columns = check_integer("columns", columns, 0)
        self.turn = 0
        self._finish_training: Callable[[], None] = lambda: None
        self.unsent: Sequence[Any] = ()
        self._file = None if path is None else TableFile(_checked_path(path), self.columns)
        self._room = torch.empty(0, self.columns, dtype=torch.float32)  # its first rows are in use
        self._rows = 0
        if self._file:
            self._room, self._rows = self._file.values, len(self._file.values)
        self.grow(rows)

    def __len__(self) -> int:
        return self._rows

    def __getstate__(self) -> dict[str, Any]:
        # Not a tensor: as one, it would be gone before a worker process that is spawned has it.
        return {"columns": self.columns, "values": self.values.numpy().copy(), "turn": self.turn}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ScoreTable.__init__(self, columns=state["columns"])
        self._room, self._rows = torch.from_numpy(state["values"]), len(state["values"])
        self.turn = state["turn"]

    @property
    def path(self) -> Path | None:
        """The file; None of a table in memory."""
        return self._file.path if self._file else None

    def claim(self, finish: Callable[[], None], unsent: Sequence[Any] = ()) -> int:
        """Begins the turn of a training that is to be the only one to use this table from now on.

        Args:
            finish: Records what the training has not recorded yet. It is called before values are
                read or written, so that they are always those of all losses until then.
            unsent: What the training has not sent to other processes, kept up to date by it.

        Returns:
            Its number. The training goes on only while `turn` is this number.
        """
        self.finish()
        self.turn, self._finish_training, self.unsent = self.turn + 1, finish, unsent
        return self.turn

    def finish(self) -> None:
        """Has the training that uses this table record all losses that it has, see `claim`."""
        self._finish_training()

    @property
    def values(self) -> Tensor:
        """float32[rows, columns], the table itself; valid until it grows.

        Writing to it changes the table in memory; to one in a file, write by `record`.
        """
        self.finish()
        return self._room[: self._rows]

    def scores(self) -> Tensor:
        """Returns float32[rows], a copy of the first column."""
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
        self.finish()
        columns = slice(0, self.columns)
        if column is not None:
            if check_integer("column", column, 0) >= self.columns:
                raise ConfigError(f"column={column} of {self.columns} columns: give a smaller one")
            columns = slice(column, column + 1)
        width = columns.stop - columns.start
        indices = check_tensor("indices", indices, "int64", "n").cpu()
        shapes = [(len(indices), width)] + [(len(indices),)] * (width == 1)
        fits = is_dense(scores) and tuple(scores.shape) in shapes
        if not fits or scores.dtype == torch.bool or scores.is_complex():
            raise BatchError(
                f"scores={format_value(scores)}: give float{list(shapes[-1])}, as indices"
            )
        check_within("indices", indices, self._rows, "call grow(rows) for more rows")
        rows = scores.detach().to(self._room).reshape(len(indices), width)
        if decay:
            old = self._room[indices, columns]
            rows = torch.where(old.isfinite(), decay * old + (1 - decay) * rows, rows)
        if self._file:
            self._file.write(indices, columns, rows)
        else:
            self._room[indices, columns] = rows

    def grow(self, rows: int) -> None:
        """Makes room for a number of examples; never removes any.

        Raises:
            ConfigError: If ``rows`` is not an integer, at least 0.
        """
        rows = check_integer("rows", rows, 0)
        if rows <= self._rows:
            return
        if self._file:
            self._file.grow(rows)
            self._room = self._file.values
        elif rows > len(self._room):
            # Doubled, as a data set without a length grows batch by batch.
            shape = max(rows, 2 * self._rows), self.columns
            room = torch.full(shape, torch.nan, dtype=torch.float32)
            room[: self._rows] = self.values
            self._room = room
        self._rows = rows

    def flush(self) -> None:
        """Flushes a mapped file to disk; does nothing for a table in memory."""
        self.finish()
        if self._file:
            self._file.flush()

    def state_dict(self) -> dict[str, Any]:
        """Returns a copy of the values, float32[rows, columns]; of a file, what finds them again.

        Raises:
            StateError: If a table in a file was written to other than by `record`.
        """
        self.finish()
        return seal(self._file.state_dict() if self._file else {"values": self.values.clone()})

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If this table has more rows than the state, or another number of columns; or
                the state is of another table's file, or of one that cannot go back to it.
        """
        is_file = isinstance(state, dict) and "file" in state
        check_digest(self, state)
        values = tensor(torch.float32, None, None)
        check_entries(self, state, FILE_STATE if is_file else {"values": values})
        rows, columns = (state["rows"], state["columns"]) if is_file else state["values"].shape
        if columns != self.columns:
            raise StateError(
                f"a table of {columns} columns does not fit one of {self.columns}: resume with "
                "the arguments that it was saved with"
            )
        if not is_file and rows < self._rows:
            raise StateError(
                f"a table of {rows} examples does not fit one of {self._rows}: resume with the "
                "data set that it was saved with"
            )
        if is_file and (not self._file or state["identity"] != self._file.identity):
            where = f"in {self.path}, which is another one" if self._file else "in memory"
            raise StateError(
                f"the state is of the table in {state['file']}, which has its values, and this one "
                f"is {where}: give ScoreTable(path=...) of that file"
            )
        if is_file and self._file:
            self._file.check_state(state)

    @staticmethod
    def rows_of_state(state: dict[str, Any]) -> int:
        """Returns the number of rows of a state that fits."""
        return int(state["rows"]) if "file" in state else len(state["values"])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over the values of another table, or goes back to what a file was.

        Raises:
            StateError: As for `check_state`, before anything is changed; or if a file's values
                are then not those of the state.
        """
        self.check_state(state)
        self.finish()
        if "file" in state and self._file:
            self._file.load_state_dict(state)
            return
        self.grow(len(state["values"]))
        starts = range(0, self._rows, _CHUNK)
        for start, values in zip(starts, state["values"].split(_CHUNK), strict=False):
            self.record(torch.arange(start, start + len(values)), values)


def _checked_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a file, after checking that there can be one."""
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise ConfigError(
            f"path={format_value(path)}: give the path of a file, a string or a pathlib.Path"
        )
    if Path(name).is_dir() or not Path(name).parent.is_dir():
        problem = "is a folder" if Path(name).is_dir() else "is in no folder that exists"
        raise ConfigError(
            f"path={format_value(path)} {problem}: give the path of a file in one that does"
        )
    return Path(name)
