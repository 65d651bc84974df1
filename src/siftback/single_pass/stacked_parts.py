"""Gradients of a tensor's parts, stacked instead of added up as in a traced graph.

``q, k, v = x`` is traced as one indexing operation per part. The backward of each is a tensor of
x's size that is zero except in the part, and x's gradient is their sum: ordinary autograd needs
only one copy for this.
"""

from typing import Any, NamedTuple

import torch
from torch import fx

_ADD = torch.ops.aten.add.Tensor
_PART = torch.ops.aten.select_backward.default


class _Sum(NamedTuple):
    """Gradients of parts that are added up, by index, and the size and dimension of the whole."""

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
    """All the parts of two sums, if they are of one tensor and none is in both; else None."""
    if first is None or second is None or first[1:] != second[1:]:
        return None
    if first.parts.keys() & second.parts.keys():
        return None
    return first._replace(parts=first.parts | second.parts)
