"""The process that a replica runs in."""

import faulthandler
import io
import multiprocessing
import os
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

from siftback.contrib.packing import consecutive_layouts, unpack
from siftback.losses.per_example import Losses, check_losses
from siftback.scorers.scorer import Scorer
from siftback.scorers.snapshot import tensors_of

_WATCH_SECONDS = 0.5


def weights_of(model: nn.Module) -> list[Tensor]:
    """Lists the parameters and buffers of a model, which a replica needs."""
    return list(tensors_of(model).values())


def serve(
    connection: Connection, traces: Connection, threads: int, dtype: torch.dtype, precision: str
) -> None:
    """Answers requests until the training process ends.

    Args:
        connection: Receives requests, ``(name of a method, arguments...)``. Each is answered by
            what the method returns, and None or the traceback of an error.
        traces: Receives the traceback that the interpreter writes on a fatal signal or on request.
        threads: Of this process, which does not inherit settings from its parent.
        dtype: The training process's default, likewise.
        precision: The training process's, of float32 products, likewise.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(traces.fileno())
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, traces.fileno())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    replica = ReplicaServer()
    while True:
        try:
            method, *arguments = connection.recv()
        except (EOFError, OSError):
            return
        answer = error = None
        try:
            answer = getattr(replica, method)(*arguments)
        except BaseException:
            error = traceback.format_exc()
        del arguments
        try:
            connection.send((answer, error))
        except OSError:
            return


def _end_with_parent() -> None:
    """Ends this process with its parent, even if a fork of the parent holds the connection open."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while os.name == "nt" or os.getppid() == parent.pid:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


class ReplicaServer:
    """A model and its losses, which answer requests for scores."""

    _model: nn.Module
    _losses: Losses
    _scorer: Scorer

    def __init__(self) -> None:
        self._slots: dict[int, Tensor] = {}
        self._shared: list[Tensor] = []  # the weights, as they were last sent

    def load(self, pickled: Tensor, weights: Tensor) -> None:
        """Loads the model, the losses and the scorer, and maps the memory of the weights."""
        file = io.BytesIO(pickled.numpy().tobytes())
        self._model, self._losses, self._scorer = torch.load(file, weights_only=False)
        self._model.requires_grad_(False)
        layouts = consecutive_layouts(weights_of(self._model))
        self._shared = [layout.view(weights) for layout in layouts]

    def sync(self) -> None:
        """Copies the weights as they were last sent."""
        with torch.no_grad():
            for weight, shared in zip(weights_of(self._model), self._shared, strict=True):
                weight.copy_(shared)

    def slot(self, number: int, memory: Tensor) -> None:
        """Maps the memory of a slot."""
        self._slots[number] = memory

    def score(self, number: int, span: tuple[int, int], count: int) -> bytearray:
        """Returns the scores of the batch in a slot: the bytes of float32[count]."""
        batch, indices, random = unpack(self._slots[number], span)
        # A copy, as PyTorch reads the state of a view at the wrong offset.
        torch.set_rng_state(random.clone())
        scores = self._scorer.score(self._losses, self._model, batch, indices)
        return bytearray(check_losses(scores, count).numpy())
