"""Counts where a host would wait for an accelerator."""

import sys
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_TESTS = Path(__file__).parent
_SOURCE = _TESTS.parent / "src"

WAITING = {
    "_local_scalar_dense", "allclose", "bincount", "equal", "histc", "masked_select", "multinomial",
    "nonzero", "unique_consecutive", "unique_dim", "_unique", "_unique2",
}  # fmt: skip
"""Operations whose results, or their sizes, the host reads; `item` and `bool` are the first."""

READING = {
    torch.Tensor.cpu,
    torch.Tensor.numpy,
    torch.Tensor.tolist,
    torch.Tensor.__array__,
}
"""Methods that copy to the host, which a tensor of the processor does without an operation."""


class HostWaits:
    """Counts the operations, of all tensors, that would wait if these were on an accelerator.

    ``to("cpu")`` counts unless it is ``non_blocking``; ``to(device)`` never does, as both ends are
    the processor. A number that is assigned by a mask is filled in without a wait.

    Args:
        methods: Whether to count `READING` too; `torch.compile` compiles again for it.

    Attributes:
        seen: Each operation that waits, and the line of the library, or else of the test, at it.

    >>> scores = torch.tensor([1.0, 2.0])
    >>> with HostWaits() as waits:
    ...     positions = (scores > 1.5).nonzero()
    ...     number = scores.sum().item()
    >>> len(waits.seen)
    2
    """

    def __init__(self, *, methods: bool = True) -> None:
        self.seen: list[str] = []
        self._modes = [_Operations(self.seen)] + [_Methods(self.seen)] * methods

    def __enter__(self) -> "HostWaits":
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)


class _Operations(TorchDispatchMode):
    def __init__(self, seen):
        super().__init__()
        self._seen = seen

    @classmethod
    def ignore_compile_internals(cls):
        return True  # compiled graphs stay in use; the mode sees the operations that they run

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if waits(operation, args, kwargs or {}):
            self._seen.append(f"{operation} at {calling_line()}")
        return operation(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __init__(self, seen):
        super().__init__()
        self._seen = seen

    def __torch_function__(self, function, types, args=(), kwargs=None):
        named = kwargs or {}
        to_host = function is torch.Tensor.to and "cpu" in [
            value for value in (*args[1:], *named.values()) if isinstance(value, str)
        ]
        if function in READING or (to_host and not named.get("non_blocking")):
            self._seen.append(f"{function.__name__} at {calling_line()}")
        return function(*args, **named)


def waits(operation, args, kwargs) -> bool:
    """Returns whether the host waits for what the operation's tensors hold."""
    name = operation._schema.name.removeprefix("aten::")
    if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        by_mask = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        return by_mask and (name == "index" or args[2].numel() != 1)
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None and not isinstance(args[-1], int)
    return name in WAITING


def calling_line() -> str:
    """Returns file:line of the innermost frame of the library, or else of the tests."""
    frame, outside = sys._getframe(2), "?"
    while frame:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_SOURCE):
            return f"{path.relative_to(_SOURCE)}:{frame.f_lineno}"
        if outside == "?" and path != Path(__file__) and path.is_relative_to(_TESTS):
            outside = f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return outside
