"""Gradients of all parts of a tensor are stacked, and no others."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from siftback.single_pass.stacked_parts import stack_parts

SIZES = [3, 3, 4]


def part(x, place, dim=0):
    """The gradient of a tensor of SIZES through one of its parts."""
    return torch.ops.aten.select_backward(x[place], SIZES, dim, place)


def total(x, *places, dim=0):
    each = [part(x, place, dim) for place in places]
    return sum(each[1:], each[0])


def also_alone(x):
    first, *others = (part(x, place) for place in range(3))
    return first.exp() + (first + others[0] + others[1])


CASES = {
    "all of them": (lambda x: total(x, 0, 1, 2), 1),
    "in another order": (lambda x: total(x, 2, 0, 1), 1),
    "of another dimension": (lambda x: total(x, 0, 1, 2, dim=1), 1),
    "one is missing": (lambda x: total(x, 0, 2), 0),
    "one is there twice, after all": (lambda x: total(x, 0, 1, 2, 2), 1),
    "one is there twice, before all": (lambda x: total(x, 0, 1, 1, 2), 0),
    "one is of another dimension": (lambda x: total(x, 0, 1) + part(x, 2, dim=1), 0),
    "one is used again": (also_alone, 1),
    "something else is added after": (lambda x: total(x, 0, 1, 2) + x[0, 0, 0], 1),
    "something else is added before": (lambda x: x[0, 0, 0] + total(x, 0, 1) + part(x, 2), 0),
    "one is scaled": (lambda x: torch.add(total(x, 0, 1), part(x, 2), alpha=2), 0),
}


@pytest.mark.parametrize(("function", "stacks"), CASES.values(), ids=CASES)
def test_values_stay(function, stacks):
    x = torch.randn(3, 3, 4)
    module = make_fx(function, tracing_mode="fake")(x)
    stack_parts(module.graph)
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(x), function(x))
    targets = [node.target for node in module.graph.nodes]
    assert targets.count(torch.ops.aten.stack.default) == stacks
