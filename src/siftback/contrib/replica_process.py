"""What runs in a replica's own process."""

import faulthandler
import io
import multiprocessing
import os
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import NamedTuple

import torch
from torch import Tensor, nn

from siftback.contrib.packing import Place, places, read
from siftback.loss_functions import Losses, check
from siftback.scorers.scorer import Scorer
from siftback.scorers.snapshot import tensors_of

_WATCH_SECONDS = 0.5


def weights_of(model: nn.Module) -> list[Tensor]:
    """All that a replica must have from a model: its parameters and its buffers."""
    return list(tensors_of(model).values())


class Settings(NamedTuple):
    """What a new process would not inherit from the one that started it."""

    threads: int
    dtype: torch.dtype
    precision: str


def serve(connection: Connection, traces: Connection, settings: Settings) -> None:
    """Answers requests until the training process is gone.

    Args:
        connection: Gives requests, ``(name of a method, arguments...)``. Each is answered by None
            or by the traceback of what went wrong.
        traces: Gets the interpreter's last words on a fatal signal, and where it is when asked.
        settings: The training process's own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(traces.fileno())
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, traces.fileno())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(settings.threads)
    torch.set_default_dtype(settings.dtype)
    torch.set_float32_matmul_precision(settings.precision)
    replica = _Replica()
    while True:
        try:
            method, *arguments = connection.recv()
        except (EOFError, OSError):
            return
        error = None
        try:
            getattr(replica, method)(*arguments)
        except BaseException:
            error = traceback.format_exc()
        del arguments
        try:
            connection.send(error)
        except OSError:
            return


def _end_with_parent() -> None:
    """Ends this process with its parent, also where a fork of that holds its connection open."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while os.name == "nt" or os.getppid() == parent.pid:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


class _Replica:
    """A model and its losses, which answer requests for scores."""

    _model: nn.Module
    _losses: Losses
    _scorer: Scorer

    def __init__(self) -> None:
        self._slots: dict[int, Tensor] = {}
        self._shared: list[Tensor] = []  # the weights, as they were last sent

    def load(self, pickled: Tensor, weights: Tensor) -> None:
        file = io.BytesIO(pickled.numpy().tobytes())
        self._model, self._losses, self._scorer = torch.load(file, weights_only=False)
        self._model.requires_grad_(False)
        self._shared = [where.view(weights) for where in places(weights_of(self._model))]

    def sync(self) -> None:
        with torch.no_grad():
            for weight, shared in zip(weights_of(self._model), self._shared, strict=True):
                weight.copy_(shared)

    def slot(self, number: int, memory: Tensor) -> None:
        self._slots[number] = memory

    def score(self, number: int, span: tuple[int, int], count: int) -> None:
        memory = self._slots[number]
        batch, indices, random = read(memory, span)
        # A copy, as PyTorch reads the state of a view from the wrong place.
        torch.set_rng_state(random.clone())
        scores = check(self._scorer.score(self._losses, self._model, batch, indices), count)
        Place(0, torch.float32, (count,), (1,)).view(memory).copy_(scores)
