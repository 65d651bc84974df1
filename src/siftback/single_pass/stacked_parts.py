"""Gradients of a tensor's slices, stacked instead of added up as in a traced graph.

``q, k, v = x`` is traced as one indexing operation per slice. The backward of each is a tensor of
x's size that is zero except in the slice, and x's gradient is their sum: ordinary autograd needs
only one copy for this.
"""

from typing import Any, NamedTuple

import torch
from torch import fx

_ADD = torch.ops.aten.add.Tensor
_SLICE = torch.ops.aten.select_backward.default


class _Sum(NamedTuple):
    """Gradients of slices that are added up, and the sizes and dimension of the whole."""

    by_index: dict[int, fx.Node]
    sizes: Any
    dim: int


def stack_parts(graph: fx.Graph) -> None:
    """Replaces sums of gradients, of one slice along a dimension each, by a stack of all slices.

    The values stay the same.

    Args:
        graph: An ATen graph; changed.
    """
    sums: dict[Any, _Sum] = {}
    for node in graph.nodes:
        if node.target == _SLICE:
            gradient, sizes, dim, index = node.args
            sums[node] = _Sum({index: gradient}, sizes, dim)
        elif node.target == _ADD and not node.kwargs and all(term in sums for term in node.args):
            first, second = (sums[term] for term in node.args)
            if first[1:] != second[1:] or first.by_index.keys() & second.by_index.keys():
                continue
            whole = sums[node] = first._replace(by_index=first.by_index | second.by_index)
            indices = range(len(whole.by_index))
            if whole.sizes[whole.dim] == len(indices) and whole.by_index.keys() == set(indices):
                slices = [whole.by_index[index] for index in indices]
                with graph.inserting_before(node):
                    stack = graph.call_function(torch.ops.aten.stack.default, (slices, whole.dim))
                stack.meta = node.meta
                node.replace_all_uses_with(stack)
    graph.eliminate_dead_code(lambda node: node.target not in (_ADD, _SLICE))
