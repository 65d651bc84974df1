"""Values of a device that are read on the host, and of the host on a device, without a wait."""

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from siftback.errors import LossError

Then = Callable[..., None]
"""Called with the copies of some tensors; None in place of one that is None."""

GROUP = 16
"""Reads of a device that are asked for together."""


class _Group:
    """Reads of which it is asked together whether they have arrived.

    Attributes:
        reads: What to call, each with its copies.
        streams: Those that the copies are made on.
        events: One for each stream, recorded when the group is closed; None before.
    """

    def __init__(self) -> None:
        self.reads: deque[tuple[Then, list[Tensor | None]]] = deque()
        self.streams: list[torch.Stream] = []
        self.events: list[torch.Event] | None = None

    def close(self) -> None:
        """Records an event behind the copies."""
        if self.events is None:
            self.events = [stream.record_event() for stream in self.streams]

    @property
    def has_arrived(self) -> bool:
        return self.events is not None and all(event.query() for event in self.events)


class HostReads:
    """Calls functions with the values of tensors, in order, once these are on the host.

    A step of training queues work on a device, and does not wait for it. Where the host reads a
    result at once, as by ``loss.cpu()``, it waits until all that was queued before is done, and
    queues nothing meanwhile. Here a tensor is copied to pinned memory in the order of the stream in
    force, and the function is called when a later read is added and the copy is seen to be done, or
    when `finish` waits for it. So a tensor may be overwritten once it was added, as the outputs of
    a CUDA graph are. Tensors on the CPU are there at once. Those of a device are asked for in
    groups of `GROUP`, which costs the host less than one by one.

    >>> reads, seen = HostReads(), []
    >>> reads.add(lambda losses: seen.append(losses.tolist()), torch.tensor([0.5, 1.0]))
    >>> reads.finish()
    >>> seen
    [[0.5, 1.0]]
    """

    def __init__(self) -> None:
        self._groups: deque[_Group] = deque()
        self._is_running = False

    def __len__(self) -> int:
        return sum(len(group.reads) for group in self._groups)

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
        streams = [_stream_of(t.device) for t in tensors if t is not None and not t.is_cpu]
        copies: list[Tensor | None] = []
        for tensor in tensors:
            copy = None
            if tensor is not None:
                dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
                copy = torch.empty(tensor.shape, dtype=dtype, pin_memory=not tensor.is_cpu)
                copy.copy_(tensor.detach(), non_blocking=True)
            copies.append(copy)
        if not (streams or self._groups):  # there already, and nothing before it is awaited
            then(*copies)
            return
        if not self._groups or self._groups[-1].events is not None:
            self._groups.append(_Group())
        group = self._groups[-1]
        group.reads.append((then, copies))
        group.streams += [stream for stream in streams if stream not in group.streams]
        if not group.streams or len(group.reads) >= GROUP:
            group.close()
        self._run(waits=False)

    def finish(self) -> None:
        """Waits for all copies, and calls what waits for them.

        Raises:
            Exception: What the functions raise. Of those, none is called again.
        """
        self._run(waits=True)

    def forget(self) -> None:
        """Drops what has not been called yet."""
        for group in self._groups:  # of which one may be running
            group.reads.clear()
        self._groups.clear()

    def _run(self, *, waits: bool) -> None:
        if self._is_running:  # called by one of the functions
            return
        self._is_running = True
        try:
            while self._groups and (waits or self._groups[0].has_arrived):
                group = self._groups[0]
                group.close()
                for event in group.events or ():
                    event.synchronize()
                while group.reads:
                    then, copies = group.reads.popleft()
                    then(*copies)
                if self._groups and self._groups[0] is group:
                    self._groups.popleft()
        finally:
            self._is_running = False


def move(tensor: Tensor, device: torch.device) -> Tensor:
    """Returns a tensor on a device; of one on the host, without waiting for the device.

    A copy to the host is waited for, as it would else be read before its values are there. So is
    one to Apple's ``mps``, which reads the host's memory later, when it may be in other use (issue
    189690 of PyTorch).

    >>> move(torch.ones(2), torch.device("cpu"))
    tensor([1., 1.])
    """
    return tensor.to(device, non_blocking=tensor.is_cpu and device.type != "mps")


def _stream_of(device: torch.device) -> torch.Stream:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise LossError(
            "losses were given while a CUDA graph is captured, and would be read then alone, not "
            "at each replay: call loader.loss(losses), or record, on the output of each replay"
        )
    return torch.accelerator.current_stream(device)
