"""A backward graph that runs on the kept rows of the tensors that its forward graph saved."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, fx

from siftback.errors import GradientError
from siftback.selectors.selection import Selection
from siftback.single_pass.row_layout import GraphLayouts, RowLayout, batch_dims, resize_formula

Pending = dict[int, tuple[Tensor | None, int]]
"""The rows of each backward that is about to run, None for all, and the examples of its forward,
by the address of its losses' gradient."""


def kept_loss(
    terms: Tensor, selection: Selection, divisor: Tensor | int, pending: Pending
) -> Tensor:
    """The weighted sum of the kept terms over a divisor; its backward registers the kept rows.

    Args:
        terms: float[N] of a traced forward.
        selection: The k rows to keep, and their weights.
        divisor: Of their sum: k, for a mean.
        pending: Registers the rows for the backward graph of the terms.

    Returns:
        ``sum(w_i * terms_i) / divisor``, a scalar.
    """
    return cast(Tensor, _KeptLoss.apply(terms, *selection, divisor, pending))  # type: ignore[no-untyped-call]


class _KeptLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        terms: Tensor,
        positions: Tensor,
        weights: Tensor,
        divisor: Tensor | int,
        pending: Pending,
    ) -> Tensor:
        ctx.save_for_backward(positions, weights)
        ctx.pending, ctx.divisor = pending, divisor
        ctx.count, ctx.dtype = len(terms), terms.dtype
        return (terms.index_select(0, positions) * weights).sum() / divisor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        positions, weights = ctx.saved_tensors
        rows = None if len(positions) == ctx.count else positions
        gradients = (gradient * weights / ctx.divisor).to(ctx.dtype)
        if len(positions) == 1:
            # A dynamic size cannot be 1: the row is taken twice, at half its gradient.
            rows, gradients = positions.repeat(2), gradients / 2
        tangent = gradients.new_zeros(ctx.count).index_copy_(0, positions, gradients)
        # By address, not in a queue: backwards may run in any order, or more than once.
        ctx.pending[tangent.untyped_storage().data_ptr()] = rows, ctx.count
        return tangent, None, None, None, None


class BackwardPlan:
    """The inputs and outputs of a backward graph that depend on the batch.

    Args:
        graph: The backward graph as AOTAutograd passes it to its compiler.
        layouts: The positions of the examples in its inputs. Inputs not named there, such as
            gradients of outputs, are assumed to have them in their first dimension.
    """

    def __init__(self, graph: fx.Graph, layouts: GraphLayouts) -> None:
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        (results,) = next(node for node in graph.nodes if node.op == "output").args
        self._resizers = [_resizer(node, layouts) for node in inputs]
        # The gradients of the losses, and of what the model keeps of its forward.
        self._tangents = [i for i, node in enumerate(inputs) if node.name.startswith("tangents")]
        self._by_row = [
            index
            for index, node in enumerate(results)
            if isinstance(node, fx.Node) and batch_dims(node.meta["val"], layouts.batch)
        ]

    def run(self, backward: Callable[[list[Any]], Any], args: list[Any], pending: Pending) -> Any:
        """Runs the graph on the kept rows.

        Args:
            backward: The compiled graph, for any number of rows; empties its argument.
            args: Inputs for all N examples. They are removed one by one, so that memory is freed
                as soon as the rows are copied.
            pending: The rows to keep.

        Raises:
            GradientError: If the losses' gradient is not in ``pending``, or another output has one.
        """
        tangents = {args[i].untyped_storage().data_ptr(): args[i] for i in self._tangents}
        address = next((address for address in tangents if address in pending), 0)
        rows, count = pending.pop(address, (None, 0))
        if rows is None and count:
            return backward(args)
        tangents.pop(address, None)
        if not count or any(map(torch.any, tangents.values())):
            raise GradientError(
                "the losses of a single pass were differentiated other than through the loss "
                "it returned: call backward() on that loss, or on an expression of it, and compute "
                "what else is trained on in losses=fn(model, batch)"
            )
        slicer = _Slicer(cast(Tensor, rows), count)
        args.reverse()
        inputs = [resize(args.pop(), slicer) for resize in self._resizers]
        del slicer, tangents  # whose memory the graph frees as it goes
        results = list(backward(inputs))
        for index in self._by_row:  # gradients of a batch that requires them
            whole = results[index].new_zeros((count, *results[index].shape[1:]))
            results[index] = whole.index_add_(0, rows, results[index])
        return results


class _Slicer:
    """Copies rows out of tensors, only once for tensors that share memory."""

    def __init__(self, rows: Tensor, count: int) -> None:
        self.rows, self.count = rows, count
        self._copies: dict[tuple[int, int], Tensor] = {}

    def take(self, tensor: Tensor, layout: RowLayout) -> Tensor:
        """Returns the rows, with the strides that a smaller batch would have had."""
        rows, count, dim = self.rows, self.count, layout.dim
        before, after = layout.factors(tensor, count)
        stride = tensor.stride(dim) * after
        if stride == 0:  # expanded: all rows are the same
            return tensor.narrow(dim, 0, len(rows) * before * after)
        if before == 1 and _is_within_rows(tensor, dim, after, stride, count):
            # The memory of each example is consecutive, in any order within it.
            key = (tensor.untyped_storage().data_ptr(), stride)
            if key not in self._copies:
                memory = tensor.as_strided((count, stride), (stride, 1), 0)
                self._copies[key] = memory.index_select(0, rows)
            shape = [*tensor.shape[:dim], len(rows) * after, *tensor.shape[dim + 1 :]]
            return self._copies[key].as_strided(shape, tensor.stride(), tensor.storage_offset())
        split = tensor.unflatten(dim, (before, count, after))  # type: ignore[no-untyped-call]
        # Dimensions in memory order, so that the copy keeps that order.
        order = sorted(range(split.ndim), key=lambda axis: -split.stride(axis))
        copied = split.permute(order).index_select(order.index(dim + 1), rows)
        back = sorted(range(split.ndim), key=order.__getitem__)
        return cast(Tensor, copied.permute(back).flatten(dim, dim + 2))

    def renumber(self, numbers: Tensor) -> Tensor:
        """Returns the numbers that rows have among the kept ones; 0 for those that are not kept."""
        renumbered = self.rows.new_zeros(self.count)
        renumbered[self.rows] = torch.arange(len(self.rows), device=self.rows.device)
        return renumbered[numbers]


def _is_within_rows(tensor: Tensor, dim: int, after: int, stride: int, count: int) -> bool:
    """Returns whether each example's elements are between its own start and the next one's."""
    sizes = (*tensor.shape[:dim], after, *tensor.shape[dim + 1 :])
    steps = ((size - 1) * step for size, step in zip(sizes, tensor.stride(), strict=True))
    last = tensor.storage_offset() + sum(steps)
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    return last < stride and count * stride <= elements


def _resizer(node: fx.Node, layouts: GraphLayouts) -> Callable[[Any, _Slicer], Any]:
    """Returns the function that makes an input for the kept rows from the one for all rows."""
    dims = batch_dims(node.meta["val"], layouts.batch)
    if not dims:
        return lambda value, slicer: value
    if isinstance(node.meta["val"], Tensor):
        layout = layouts.by_name.get(node.name, RowLayout(dims[0]))
        assert isinstance(layout, RowLayout)
        if layouts.indexes_rows(node):
            return lambda tensor, slicer: slicer.renumber(slicer.take(tensor, layout))
        return lambda tensor, slicer: slicer.take(tensor, layout)
    formula = resize_formula(node.meta["val"], layouts.batch)
    assert formula  # the forward graph would have been refused
    return lambda size, slicer: formula(size, slicer.count, len(slicer.rows))
