"""Checkpoints: the state of a run on disk, every so often, to go on from."""

import hashlib
import io
import math
import pickle
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from siftback.errors import StateError
from siftback.lab.records.folder import atomic_write

CHECKPOINTS = "checkpoints"  # the folder of a comparison's unfinished runs

_VERSION = 8
_CHECKSUM = "sha256"
_CHECKSUM_SIZE = hashlib.new(_CHECKSUM).digest_size


@dataclass(frozen=True)
class CheckpointPolicy:
    """When to save a run, and how many checkpoints to keep.

    Attributes:
        share: After each such share of the training; infinity does not go by it.
        seconds: After this many seconds, training or not; infinity does not go by the clock.
        keep: How many of the last checkpoints to keep, at least 1.
    """

    share: float = math.inf
    seconds: float = 600.0
    keep: int = 2


class Checkpoints:
    """The checkpoints of one run, ``STEPS.pt`` in a folder of its own.

    Each is written whole or not at all, and ends in a checksum of all before it. It holds tensors,
    numbers, strings and containers of them alone, so that it is read with ``weights_only=True``.

    Args:
        folder: That of the run.
        policy: When to write one.

    Attributes:
        damaged: Those that `latest` passed over, as their checksum is another.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(Path(folder), CheckpointPolicy(share=0.5, keep=1))
    ...     for step in range(1, 5):
    ...         if checkpoints.due(done=step / 4):
    ...             checkpoints.save({"step": step}, step)
    ...     [path.name for path in Path(folder).iterdir()], checkpoints.latest()
    (['000000004.pt'], {'step': 4})
    """

    def __init__(self, folder: Path, policy: CheckpointPolicy) -> None:
        self._folder, self._policy = folder, policy
        self.damaged: list[Path] = []
        self._done = 0.0
        self._since = time.monotonic()

    def due(self, done: float) -> bool:
        """Whether to save now.

        Args:
            done: The share of the training that is done.
        """
        before, self._done, share = self._done, done, self._policy.share
        waited = time.monotonic() - self._since >= self._policy.seconds
        return waited or int(done / share) > int(before / share)

    def save(self, state: dict[str, Any], steps: int) -> None:
        """Writes a checkpoint, then removes those that are too old.

        Args:
            state: All that the run goes on from.
            steps: How many it had made.
        """
        with atomic_write(self._folder / f"{steps:09d}.pt") as path:
            with path.open("wb") as file:
                torch.save({"version": _VERSION, "done": self._done, "state": state}, file)
            with path.open("r+b") as file:
                file.write(hashlib.file_digest(file, _CHECKSUM).digest())
        for old in self._written()[: -self._policy.keep]:
            old.unlink()
        self._since = time.monotonic()

    def latest(self) -> dict[str, Any] | None:
        """Returns the state saved last; where that is damaged, the one before. None without any.

        Raises:
            StateError: If there are some and all are damaged, or it is of another version.
        """
        self.damaged = []
        for path in reversed(self._written()):
            whole = path.read_bytes()
            content, checksum = whole[:-_CHECKSUM_SIZE], whole[-_CHECKSUM_SIZE:]
            if hashlib.new(_CHECKSUM, content).digest() != checksum:
                self.damaged.append(path)
                continue
            try:
                checkpoint: dict[str, Any] = torch.load(io.BytesIO(content), weights_only=True)
            except pickle.UnpicklingError as error:
                raise StateError(
                    f"{path} holds more than tensors, numbers, strings and containers of them, so "
                    "that no run wrote it: remove it"
                ) from error
            if checkpoint["version"] != _VERSION:
                raise StateError(
                    f"{path} is a checkpoint of version {checkpoint['version']}, and this release "
                    f"reads version {_VERSION}: resume with the release that wrote it, or remove "
                    f"{self._folder} to begin the run again"
                )
            self._done = checkpoint["done"]
            return dict(checkpoint["state"])
        if self.damaged:
            raise StateError(
                f"{' and '.join(map(str, self.damaged))}: damaged, as the checksum is another; put "
                f"back a copy, or remove {self._folder} to begin the run again"
            )
        return None

    def clear(self) -> None:
        """Removes them all."""
        if self._folder.is_dir():
            shutil.rmtree(self._folder)

    def _written(self) -> list[Path]:
        """The checkpoints, the oldest first."""
        return sorted(self._folder.glob("*.pt"))
