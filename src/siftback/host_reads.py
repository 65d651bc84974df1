"""Values of a device that are read on the host, without waiting for the device."""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from siftback.errors import LossError

Then = Callable[..., None]
"""Called with the copies of some tensors; None in place of one that is None."""


class _Read(NamedTuple):
    then: Then
    copies: list[Tensor | None]
    events: list[torch.Event]

    @property
    def has_arrived(self) -> bool:
        return all(event.query() for event in self.events)


class HostReads:
    """Calls functions with the values of tensors, in order, once these are on the host.

    A step of training queues work on a device, and does not wait for it. Where the host reads a
    result at once, as by ``loss.cpu()``, it waits until all that was queued before is done, and
    queues nothing meanwhile. Here a tensor is copied to pinned memory in the order of the stream in
    force, and the function is called when a later read is added and the copy is seen to be done, or
    when `finish` waits for it. So a tensor may be overwritten once it was added, as the outputs of
    a CUDA graph are. Tensors on the CPU are there at once.

    >>> reads, seen = HostReads(), []
    >>> reads.add(lambda losses: seen.append(losses.tolist()), torch.tensor([0.5, 1.0]))
    >>> reads.finish()
    >>> seen
    [[0.5, 1.0]]
    """

    def __init__(self) -> None:
        self._queue: deque[_Read] = deque()
        self._is_running = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, then: Then, *tensors: Tensor | None) -> None:
        """Copies tensors to the host, and calls what waits for copies that have arrived.

        Args:
            then: Called with the copies.
            tensors: On any devices; gradients are not followed. Floating-point ones are copied as
                float32.

        Raises:
            Exception: What the functions raise, of this read or of earlier ones.
            LossError: While a CUDA graph is captured.
        """
        copies = [None if tensor is None else _copy(tensor) for tensor in tensors]
        devices = {t.device for t in tensors if t is not None and t.device.type != "cpu"}
        self._queue.append(_Read(then, copies, [_record_event(device) for device in devices]))
        self._run(waits=False)

    def finish(self) -> None:
        """Waits for all copies, and calls what waits for them.

        Raises:
            Exception: What the functions raise. Of those, none is called again.
        """
        self._run(waits=True)

    def forget(self) -> None:
        """Drops what has not been called yet."""
        self._queue.clear()

    def _run(self, *, waits: bool) -> None:
        if self._is_running:  # called by one of the functions
            return
        self._is_running = True
        try:
            while self._queue and (waits or self._queue[0].has_arrived):
                then, copies, events = self._queue.popleft()
                for event in events:
                    event.synchronize()
                then(*copies)
        finally:
            self._is_running = False


def _copy(tensor: Tensor) -> Tensor:
    """Returns a copy on the host, which is there once what is queued on the device is done."""
    dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
    copy = torch.empty(tensor.shape, dtype=dtype, pin_memory=tensor.device.type != "cpu")
    return copy.copy_(tensor.detach(), non_blocking=True)


def _record_event(device: torch.device) -> torch.Event:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise LossError(
            "losses were given while a CUDA graph is captured, and would be read then alone, not "
            "at each replay: call loader.loss(losses), or record, on the graph's output after it "
            "was replayed"
        )
    event = torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    return event
