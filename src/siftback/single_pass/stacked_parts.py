"""Gradients of a tensor's parts, stacked where a traced graph would add them up.

``q, k, v = x`` is traced as one indexing a part. The backward of each is a tensor of x's size,
zeros but for the part, and x's gradient is their sum: much writing and adding of zeros, for what
ordinary autograd does in one copy.
"""

from typing import Any, NamedTuple

import torch
from torch import fx

_ADD = torch.ops.aten.add.Tensor
_PART = torch.ops.aten.select_backward.default


class _Sum(NamedTuple):
    """Gradients of parts that are added up: each by its place, and of what they are parts."""

    parts: dict[int, fx.Node]
    sizes: Any
    dim: int


def stack_parts(graph: fx.Graph) -> None:
    """Replaces sums of gradients, of one part along a dimension each, by a stack of all parts.

    The values stay the same.

    Args:
        graph: An ATen graph; changed.
    """
    sums: dict[Any, _Sum] = {}
    for node in graph.nodes:
        if node.target == _PART:
            gradient, sizes, dim, place = node.args
            sums[node] = _Sum({place: gradient}, sizes, dim)
        elif node.target == _ADD and not node.kwargs:
            whole = _joined(*(sums.get(term) for term in node.args))
            if whole is None:
                continue
            sums[node] = whole
            places = range(len(whole.parts))
            if whole.sizes[whole.dim] == len(places) and whole.parts.keys() == set(places):
                with graph.inserting_before(node):
                    parts = [whole.parts[place] for place in places]
                    stack = graph.call_function(torch.ops.aten.stack.default, (parts, whole.dim))
                stack.meta = node.meta
                node.replace_all_uses_with(stack)
    graph.eliminate_dead_code(lambda node: node.target not in (_ADD, _PART))


def _joined(first: _Sum | None, second: _Sum | None) -> _Sum | None:
    """All the parts of two sums, where they are of one tensor and none is in both."""
    if first is None or second is None or first[1:] != second[1:]:
        return None
    if first.parts.keys() & second.parts.keys():
        return None
    return first._replace(parts=first.parts | second.parts)
