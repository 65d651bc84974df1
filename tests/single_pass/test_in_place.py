"""Memory is reused where nothing else reads it, and nowhere else."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from siftback.single_pass.in_place import reuse_memory


def shared_product(x):
    product = torch.ops.aten.mm(x, x)
    first = torch.ops.aten._unsafe_view(product, [16])
    second = torch.ops.aten._unsafe_view(product, [2, 8])
    return torch.relu(first), torch.relu(second) + 1


CASES = {
    "a chain overwrites": (lambda x: torch.relu(x.exp() + 1).sigmoid(), 3),
    "either operand will do": (lambda x: x + x.exp(), 1),
    "an input is kept": (lambda x: torch.relu(x), 0),
    "a result is kept": (lambda x: (y := x.exp(), torch.relu(y)), 0),
    "what is read again is kept": (lambda x: torch.relu(y := x.exp()) * y, 1),
    "a view's base is kept": (lambda x: (y := x.exp(), torch.relu(y.view(16))), 0),
    "an operand that is broadcast is kept": (lambda x: x + x.sum(0).exp(), 1),
    "a number is no operand": (lambda x: 1 + x.exp() * 2, 2),
    "an operand on both sides is kept": (lambda x: (y := x.exp()) * y, 0),
    "a matrix product with two views is kept": (shared_product, 1),
}


@pytest.mark.parametrize(("function", "reused"), CASES.values(), ids=CASES)
def test_values_stay_and_memory_is_reused(function, reused):
    x = torch.randn(4, 4)
    module = make_fx(function, tracing_mode="fake")(x)
    expected = torch.utils._pytree.tree_leaves(function(x))
    before = x.clone()
    reuse_memory(module.graph)
    module.recompile()
    found = torch.utils._pytree.tree_leaves(module(x))
    assert torch.equal(x, before)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    names = [str(node.target) for node in module.graph.nodes if node.op == "call_function"]
    assert sum("_." in name for name in names) == reused
