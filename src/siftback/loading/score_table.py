"""One remembered score per example of a data set."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siftback.errors import ConfigError, StateError

# A row is one int64: score (float32, bits 0 to 31), epoch (uint16), count (uint8), check (uint8).
# Eight aligned bytes are written in one piece, so that a killed process leaves no half of a row.
_EPOCH_AT, _COUNT_AT, _CHECK_AT = 32, 48, 56
_SCORE_BITS, _EPOCH_MOST, _COUNT_MOST = 0xFFFFFFFF, 0xFFFF, 0xFF
_PAYLOAD = (1 << _CHECK_AT) - 1
_MIX = 0x1E3779B97F4A7C15  # odd, its bits without a pattern: 2^61 over the golden ratio

_HEADER = 4096
_MAGIC = b"siftback score table 1\n"
_CHUNK = 1 << 22  # rows that are worked on at a time


class ScoreTable:
    """A score, the epoch it is of, and how often there was one, for each example of a data set.

    Eight bytes a row: in memory, on a device, or in a file that is mapped into memory, so that a
    table may be larger than memory and outlive the process. Rows are gathered and scattered by
    dataset index, never one at a time. A row that was never recorded has count 0.

    In a file each row carries a check of 8 bits. A row is 8 bytes in one piece, so that a process
    that is killed leaves whole rows; what a failing disk or a stopped machine damages is found
    as the file is opened, told by a warning, and forgotten: those rows count as never recorded.

    Args:
        rows: Number of examples; a file that holds more keeps them.
        device: Where the rows are; not together with ``path``.
        path: The file to hold them; made, or opened where it exists.

    Raises:
        ConfigError: Where ``rows`` is no whole number, at least 0, or both places are given.
        StateError: Where the file holds something else, or was cut off within a row.

    >>> table = ScoreTable(4)
    >>> table.record(torch.tensor([2, 0]), torch.tensor([0.5, 1.5]), epoch=3)
    >>> table.scores(), table.counts()
    (tensor([1.5000,    nan, 0.5000,    nan]), tensor([1, 0, 1, 0]))
    >>> table.ages(epoch=5)
    tensor([ 2, -1,  2, -1])
    """

    def __init__(
        self,
        rows: int = 0,
        *,
        device: torch.device | str | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 0:
            raise ConfigError(f"rows={rows!r}: give the number of examples, at least 0")
        if path is not None and device is not None:
            raise ConfigError(
                f"device={device!r} and path={str(path)!r}: a table is on a device or in a file; "
                "give one of them"
            )
        self.path = None if path is None else Path(path)
        self._map: np.memmap[Any, Any] | None = None
        self._device = torch.device(device or "cpu")
        self._rows = torch.zeros(0, dtype=torch.int64, device=self._device)
        self._room = self._rows  # what the rows are the first of, in memory
        if self.path is not None:
            self._open(self.path)
        self.grow(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def grow(self, rows: int) -> None:
        """Makes room for so many examples; never takes any away."""
        if rows <= len(self):
            return
        if self.path is None:
            if rows > len(self._room):
                # Twice what there was, as a data set without a length grows batch by batch.
                room = self._room.new_zeros(max(rows, 2 * len(self)))
                room[: len(self)] = self._rows
                self._room = room
            self._rows = self._room[:rows]
        else:
            os.truncate(self.path, _HEADER + 8 * rows)
            self._remap()

    def record(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Remembers scores.

        Args:
            indices: int64[n], distinct, each less than the number of rows.
            scores: float[n]; one that is not a number is remembered as infinite.
            epoch: The epoch they are of, from 0; 65,535 and all later ones are the same.
        """
        indices = indices.to(self._rows.device)
        counts = (self._gather(indices) >> _COUNT_AT) & _COUNT_MOST
        self._rows[indices] = _packed(
            scores.detach().to(self._rows.device), counts.add_(1).clamp_(max=_COUNT_MOST), epoch
        )

    def scores(self, indices: Tensor | None = None) -> Tensor:
        """float32[n], the scores of some examples or of all; NaN for those never recorded."""
        rows = self._gather(indices)
        scores = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
        for start in range(0, len(rows), _CHUNK):
            part = rows[start : start + _CHUNK]
            values = (part & _SCORE_BITS).to(torch.int32).view(torch.float32)
            seen = ((part >> _COUNT_AT) & _COUNT_MOST) > 0
            scores[start : start + _CHUNK] = torch.where(seen, values, torch.nan)
        return scores

    def ages(self, epoch: int, indices: Tensor | None = None) -> Tensor:
        """int64[n], epochs from a score's to the given one; -1 for those never recorded."""
        rows = self._gather(indices)
        ages = min(epoch, _EPOCH_MOST) - ((rows >> _EPOCH_AT) & _EPOCH_MOST)
        ages.clamp_(min=0)
        return torch.where(((rows >> _COUNT_AT) & _COUNT_MOST) > 0, ages, -1)

    def counts(self, indices: Tensor | None = None) -> Tensor:
        """int64[n], how often each was recorded; 255 stands for that and more."""
        return (self._gather(indices) >> _COUNT_AT) & _COUNT_MOST

    def flush(self) -> None:
        """Writes what is in a mapped file's memory to the disk; elsewhere does nothing."""
        if self._map is not None:
            self._map.flush()

    def state_dict(self) -> dict[str, Any]:
        """A copy of the rows, packed as they are: int64[rows], on the CPU."""
        return {"rows": self._rows.cpu().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up the rows of another table, wherever that one had them.

        Raises:
            StateError: Where this table is larger, so that there are rows nothing is known of.
        """
        rows = state["rows"]
        if len(rows) < len(self):
            raise StateError(
                f"a table of {len(rows)} examples does not fit one of {len(self)}: resume with "
                "the data set that it was saved with"
            )
        self.grow(len(rows))
        self._rows.copy_(rows)

    def _gather(self, indices: Tensor | None) -> Tensor:
        if indices is None:
            return self._rows
        return self._rows[indices.to(self._rows.device)]

    def _open(self, path: Path) -> None:
        if not path.exists():
            with path.open("wb") as file:
                file.write(_MAGIC.ljust(_HEADER, b"\0"))
        size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC or size < _HEADER:
                raise StateError(
                    f"{path} is no score table of this version: give another path, or remove it"
                )
        if (size - _HEADER) % 8:
            raise StateError(
                f"{path} was cut off within a row: it has {size} bytes. Restore it, or remove it "
                "to begin with nothing remembered"
            )
        self._remap()
        self._forget_damaged()

    def _remap(self) -> None:
        assert self.path is not None
        rows = (self.path.stat().st_size - _HEADER) // 8
        if rows:
            self._map = np.memmap(self.path, np.int64, "r+", offset=_HEADER, shape=(rows,))
            self._rows = torch.from_numpy(self._map)

    def _forget_damaged(self) -> None:
        damaged, first = 0, -1
        for start in range(0, len(self), _CHUNK):
            part = self._rows[start : start + _CHUNK]
            wrong = (part & _PAYLOAD | _check(part & _PAYLOAD)) != part
            if wrong.any():
                first = start + int(wrong.nonzero()[0]) if first < 0 else first
                damaged += int(wrong.sum())
                part[wrong] = 0
        if damaged:
            warnings.warn(
                f"{self.path}: {damaged} of {len(self)} rows are damaged, the first is example "
                f"{first}. Their scores are forgotten and will be learnt anew",
                stacklevel=4,
            )


def _packed(scores: Tensor, counts: Tensor, epoch: int) -> Tensor:
    scores = scores.float().nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
    payload = scores.view(torch.int32).to(torch.int64) & _SCORE_BITS
    payload |= min(epoch, _EPOCH_MOST) << _EPOCH_AT
    payload |= counts << _COUNT_AT
    return payload | _check(payload)


def _check(payload: Tensor) -> Tensor:
    """The check of rows, in its place: the highest bits of a product that mixes all of them."""
    return ((payload * _MIX) >> _CHECK_AT & 0xFF) << _CHECK_AT
