"""The old values of a table's file, by which it can go back to a state."""

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from siftback.errors import StateError

_HEADER = 256  # bytes before the first entry of a file
_CHUNK = 1 << 22  # entries that are read at a time
_LEAST = 1 << 12

Rows = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]


class UndoJournal:
    """A file beside a table's, with the old values of rows that changed since states were taken.

    A state of the table is a mark in the journal, so taking one takes the same time for any number
    of rows. Going back to a mark is setting each row that changed since to the first of its
    old values after the mark. Of a row that changes often between two marks the first change is
    an entry, ``8 + 4 columns`` bytes.

    An entry is written before the row is, and half an entry at the end is one whose row was not
    written: if the process is killed at any time, going back is right. Once this process wrote as
    many entries as half the rows, the next mark begins another file and the one before the last
    is removed: at least the last two marks between which rows changed are kept.

    Args:
        path: Of the table.
        columns: Of the table.
        identity: Of the table; a journal of another one is begun again.
    """

    def __init__(self, path: Path, columns: int, identity: str) -> None:
        self._now = path.with_name(f"{path.name}.undo")
        self._before = path.with_name(f"{path.name}.undo-before")
        self._entry = np.dtype([("row", "<i8"), ("old", "<f4", (columns,))])
        self._magic = f"siftback undo journal 1 of {identity}: ".encode()
        self._first, self._count = 0, 0  # number of the first entry of the file, and its entries
        self._written = 0  # entries of this process in the last file
        self._changed = np.zeros(0, np.uint8)  # a bit for each row that changed since the last mark
        self.is_begun = False
        files = self._files()
        for file, first, entries in files:
            self._first, self._count, self.is_begun = first, len(entries), file == self._now
        if files and not self.is_begun:  # killed as the second file was begun
            self._begin(self._first + self._count)

    def write(self, rows: Rows, old: Values, height: int) -> None:
        """Adds what rows are before they change; once after a mark."""
        missing = max(0, height // 8 + 1 - len(self._changed))
        self._changed = np.pad(self._changed, (0, missing)) if missing else self._changed
        byte, bit = rows >> 3, (1 << (rows & 7)).astype(np.uint8)
        is_new = (self._changed[byte] & bit) == 0
        entries = np.empty(int(is_new.sum()), self._entry)
        entries["row"], entries["old"] = rows[is_new], old[is_new]
        self._append(entries)
        np.bitwise_or.at(self._changed, byte, bit)

    def mark(self, height: int) -> int:
        """Marks a state of a table of some rows, and returns the number of the mark."""
        if not self.is_begun:
            self._begin(0)
        elif self._written > max(_LEAST, height // 2):
            self._now.replace(self._before)
            self._begin(self._first + self._count)
        self.put(number := -1 - secrets.randbits(62))
        return number

    def put(self, number: int) -> None:
        """Marks what the table is now: as it was at that mark, where it went back to it."""
        mark = np.zeros(1, self._entry)
        mark["row"] = number
        self._append(mark)
        self._changed.fill(0)

    def check(self, number: int) -> None:
        """Checks that a mark exists.

        Raises:
            StateError: If it does not.
        """
        if self._find(number) < 0:
            raise StateError(
                f"{self._now} does not go back to the state, which was saved before the last two "
                "at least, or the table was moved without this file: load a later one or restore it"
            )

    def since(self, number: int) -> Iterator[tuple[Rows, Values]]:
        """Yields old values to be set one after another, to go back to a mark that exists."""
        mark = self._find(number)
        for _, first, entries in reversed(self._files()):
            start = max(mark + 1 - first, 0)
            for end in range(len(entries), start, -_CHUNK):
                chunk = np.array(entries[max(start, end - _CHUNK) : end])
                chunk = chunk[chunk["row"] >= 0]
                rows, firsts = np.unique(chunk["row"], return_index=True)
                yield rows, chunk["old"][firsts]

    def _find(self, number: int) -> int:
        """Returns the number of the last entry that is a mark; -1 where there is none."""
        for _, first, entries in reversed(self._files()):
            for end in range(len(entries), 0, -_CHUNK):
                start = max(end - _CHUNK, 0)
                marks = np.flatnonzero(entries["row"][start:end] == number)
                if len(marks):
                    return int(first + start + marks[-1])
        return -1

    def _begin(self, first: int) -> None:
        temporary = self._now.with_name(f"{self._now.name}-new")
        temporary.write_bytes((self._magic + f"from {first}\n".encode()).ljust(_HEADER, b"\0"))
        temporary.replace(self._now)
        if first == 0:
            self._before.unlink(missing_ok=True)
        self._first, self._count, self._written, self.is_begun = first, 0, 0, True

    def _append(self, entries: npt.NDArray[Any]) -> None:
        append_whole(self._now, _HEADER + self._count * self._entry.itemsize, [entries.data])
        self._count += len(entries)
        self._written += len(entries)

    def _files(self) -> list[tuple[Path, int, npt.NDArray[Any]]]:
        """Returns the files, the older first, with the number of the first entry, and entries."""
        files = []
        for path in (self._before, self._now):
            header = b""
            if path.exists():
                with path.open("rb") as file:
                    header = file.read(_HEADER)
            if header.startswith(self._magic):
                first = int(header[len(self._magic) + len("from ") :].rstrip(b"\0\n"))
                count = (path.stat().st_size - _HEADER) // self._entry.itemsize
                entries = np.empty(0, self._entry)
                if count:  # mapped, they stay as they are though the file is replaced
                    entries = np.memmap(path, self._entry, "r", offset=_HEADER, shape=(count,))
                files.append((path, first, entries))
        return files


def append_whole(path: Path, size: int, chunks: Iterable[memoryview]) -> None:
    """Writes all of some chunks at the end of a file, or none where the disk is full.

    Args:
        path: The file, which exists.
        size: Its bytes before them; what a write that was cut short left after these goes.
        chunks: What to write.
    """
    try:
        with path.open("r+b") as file:
            file.seek(size)
            file.writelines(chunks)
    except OSError:
        os.truncate(path, size)
        raise
