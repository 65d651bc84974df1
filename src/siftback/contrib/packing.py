"""Tensors and nested batches in memory that two processes share."""

import io
import math
import pickle
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 64  # that of PyTorch's own tensors


class TensorLayout(NamedTuple):
    """The offset, dtype and layout of a tensor in a buffer."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def view(self, buffer: Tensor) -> Tensor:
        """Returns the tensor, as a view of the buffer.

        Args:
            buffer: uint8[B].
        """
        end = self.offset + self.size
        return buffer[self.offset : end].view(self.dtype).as_strided(self.shape, self.stride)

    @property
    def size(self) -> int:
        """Number of bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """The first aligned offset after it."""
        return -(-(self.offset + self.size) // _ALIGNMENT) * _ALIGNMENT


def layout_at(offset: int, tensor: Tensor) -> TensorLayout:
    """Returns a layout of the tensor's dtype, shape and memory format."""
    # The format decides which kernels a convolution uses, and so the last bits of its result.
    stride = torch.empty_like(tensor, device="meta").stride()
    return TensorLayout(offset, tensor.dtype, tuple(tensor.shape), stride)


def consecutive_layouts(tensors: Iterable[Tensor]) -> list[TensorLayout]:
    """Returns layouts of tensors one after the other.

    >>> [p.offset for p in consecutive_layouts([torch.zeros(3), torch.zeros(20), torch.zeros(1)])]
    [0, 64, 192]
    """
    layouts: list[TensorLayout] = []
    for tensor in tensors:
        layouts.append(layout_at(layouts[-1].end if layouts else 0, tensor))
    return layouts


class Packed:
    """A value prepared for writing into a buffer.

    Tensors are stored as they are, everything else is pickled. Reading copies no tensor.

    Args:
        value: Anything that can be pickled.

    Attributes:
        span: Begin and end of the pickled part in the buffer, which `unpack` needs.

    >>> packed = Packed({"x": torch.arange(3), "name": ["a", "b", "c"]})
    >>> buffer = torch.empty(packed.span[1], dtype=torch.uint8)
    >>> packed.write(buffer)
    >>> unpack(buffer, packed.span)
    {'x': tensor([0, 1, 2]), 'name': ['a', 'b', 'c']}
    """

    def __init__(self, value: Any) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(value)
        self._tensors = pickler.tensors
        self._pickled = file.getbuffer()
        self.span = (pickler.end, pickler.end + len(self._pickled))

    def write(self, buffer: Tensor) -> None:
        """Writes the value into a buffer.

        Args:
            buffer: uint8[B], B at least the end of `span`.
        """
        with torch.no_grad():
            for tensor, layout in self._tensors:
                layout.view(buffer).copy_(tensor)
        begin, end = self.span
        buffer[begin:end] = torch.frombuffer(self._pickled, dtype=torch.uint8)


def unpack(buffer: Tensor, span: tuple[int, int]) -> Any:
    """Returns the value that was written; its tensors are views of the buffer."""
    begin, end = span
    return _Unpickler(io.BytesIO(buffer[begin:end].numpy().tobytes()), buffer).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[tuple[Tensor, TensorLayout]] = []
        self.end = 0

    def persistent_id(self, value: Any) -> TensorLayout | None:
        if type(value) is not Tensor or value.layout != torch.strided or value.is_quantized:
            return None
        layout = layout_at(self.end, value)
        self.tensors.append((value, layout))
        self.end = layout.end
        return layout


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffer: Tensor) -> None:
        super().__init__(file)
        self._buffer = buffer

    def persistent_load(self, layout: TensorLayout) -> Tensor:
        return layout.view(self._buffer)
