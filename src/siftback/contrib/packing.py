"""Tensors and nested batches in a stretch of memory that two processes share."""

import io
import pickle
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 64  # what PyTorch gives its own tensors


class Place(NamedTuple):
    """Where in a buffer a tensor lies, and how it is read there."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def view(self, buffer: Tensor) -> Tensor:
        """The tensor, on the buffer's own memory.

        Args:
            buffer: uint8[B].
        """
        end = self.offset + _bytes(self.shape, self.dtype)
        return buffer[self.offset : end].view(self.dtype).as_strided(self.shape, self.stride)

    @property
    def end(self) -> int:
        """The first aligned offset behind it."""
        return aligned(self.offset + _bytes(self.shape, self.dtype))


def aligned(offset: int) -> int:
    """The offset itself, or the next one that a tensor of any type may begin at."""
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def place(tensor: Tensor, offset: int) -> Place:
    """A place of the tensor's type, shape and memory layout."""
    # The layout decides which kernels a convolution takes, and so the last bits of its result.
    stride = torch.empty_like(tensor, device="meta").stride()
    return Place(offset, tensor.dtype, tuple(tensor.shape), stride)


def places(tensors: Iterable[Tensor]) -> list[Place]:
    """Places for tensors one after the other.

    >>> [p.offset for p in places([torch.zeros(3), torch.zeros(20), torch.zeros(1)])]
    [0, 64, 192]
    """
    found: list[Place] = []
    for tensor in tensors:
        found.append(place(tensor, found[-1].end if found else 0))
    return found


class Packed:
    """A value prepared for writing into a buffer.

    Its tensors lie there as they are, and all else pickled. Reading it copies no tensor.

    Args:
        value: Anything that can be pickled.
        offset: Where in the buffer it begins, an aligned offset.

    Attributes:
        span: Begin and end, in the buffer, of what is pickled: all that `read` needs to know.

    >>> packed = Packed({"x": torch.arange(3), "name": ["a", "b", "c"]})
    >>> buffer = torch.empty(packed.span[1], dtype=torch.uint8)
    >>> packed.write(buffer)
    >>> read(buffer, packed.span)
    {'x': tensor([0, 1, 2]), 'name': ['a', 'b', 'c']}
    """

    def __init__(self, value: Any, offset: int = 0) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file, offset)
        pickler.dump(value)
        self._tensors = pickler.tensors
        self._pickled = file.getbuffer()
        self.span = (pickler.end, pickler.end + len(self._pickled))

    def write(self, buffer: Tensor) -> None:
        """Writes it.

        Args:
            buffer: uint8[B], B at least the end of `span`.
        """
        with torch.no_grad():
            for tensor, where in self._tensors:
                where.view(buffer).copy_(tensor)
        begin, end = self.span
        buffer[begin:end] = torch.frombuffer(self._pickled, dtype=torch.uint8)


def read(buffer: Tensor, span: tuple[int, int]) -> Any:
    """The value that was written, its tensors on the buffer's own memory."""
    begin, end = span
    return _Unpickler(io.BytesIO(buffer[begin:end].numpy().tobytes()), buffer).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, offset: int) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[tuple[Tensor, Place]] = []
        self.end = offset

    def persistent_id(self, value: Any) -> Place | None:
        if type(value) is not Tensor or value.layout != torch.strided or value.is_quantized:
            return None
        where = place(value, self.end)
        self.tensors.append((value, where))
        self.end = where.end
        return where


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffer: Tensor) -> None:
        super().__init__(file)
        self._buffer = buffer

    def persistent_load(self, where: Place) -> Tensor:
        return where.view(self._buffer)


def _bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    count = 1
    for length in shape:
        count *= length
    return count * dtype.itemsize
