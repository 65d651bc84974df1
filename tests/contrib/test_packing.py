"""Tensors in shared memory."""

import pytest
import torch
from torch import nn

from siftback.contrib.packing import Packed, unpack
from toys import assert_same


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 6).t(),
        torch.arange(3, dtype=torch.uint8),
        torch.tensor(True),
        torch.randn(0, 4),
        torch.randn(5, dtype=torch.complex64),
        torch.randn(3, dtype=torch.bfloat16),
        nn.Parameter(torch.randn(3)),
        torch.randn(3, requires_grad=True),
        torch.eye(3).to_sparse(),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}",
)
def test_tensors_come_out_as_they_went_in(tensor):
    packed = Packed([torch.ones(3), (tensor, "text")])
    buffer = torch.zeros(packed.span[1] + 7, dtype=torch.uint8)
    packed.write(buffer)
    ones, (same, text) = unpack(buffer, packed.span)
    assert (ones.tolist(), text) == ([1.0, 1.0, 1.0], "text")
    assert same.layout == tensor.layout
    assert_same(same.detach(), tensor.detach())
    if tensor.layout == torch.strided:
        assert same.stride() == tensor.stride()
