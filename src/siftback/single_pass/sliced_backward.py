"""A backward graph that runs on the kept rows of the tensors that its forward graph saved."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, fx

from siftback.errors import GradientError
from siftback.selectors.selection import Selection
from siftback.single_pass.row_layout import Layouts, Rows, has_batch, resized

Pending = dict[int, "Kept"]
"""The rows of each backward that is about to run, by the address of its losses' gradient."""


class Kept(NamedTuple):
    """The rows to run a backward graph on.

    Attributes:
        rows: int64[m], positions in the batch; None for all of them.
        size: N, the number of examples that the forward graph ran on.
    """

    rows: Tensor | None
    size: int


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
    loss = _KeptLoss.apply(terms, *selection, divisor, pending)  # type: ignore[no-untyped-call]
    return cast(Tensor, loss)


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
        ctx.pending, ctx.count, ctx.dtype = pending, len(terms), terms.dtype
        ctx.divisor = divisor
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
        ctx.pending[tangent.untyped_storage().data_ptr()] = Kept(rows, ctx.count)
        return tangent, None, None, None, None


class BackwardPlan:
    """How a backward graph's inputs and outputs depend on the batch.

    Args:
        graph: The backward graph as AOTAutograd passes it to its compiler.
        layouts: The positions of the examples in its inputs. Inputs not named there, such as
            gradients of outputs, are assumed to have them in their first dimension.
    """

    def __init__(self, graph: fx.Graph, layouts: Layouts) -> None:
        inputs = [node for node in graph.nodes if node.op == "placeholder"]
        (results,) = next(node for node in graph.nodes if node.op == "output").args
        self._inputs = [_input(node, layouts) for node in inputs]
        tangents = [place for place, node in enumerate(inputs) if node.name.startswith("tangents")]
        (self._tangent,) = tangents  # of the losses; other outputs are detached
        self._by_row = [
            place
            for place, node in enumerate(results)
            if isinstance(node, fx.Node) and _depends(node.meta["val"], layouts)
        ]

    def run(self, backward: Callable[[list[Any]], Any], args: list[Any], pending: Pending) -> Any:
        """Runs the graph on the kept rows.

        Args:
            backward: The compiled graph, for any number of rows; empties its argument.
            args: Inputs for all N examples. They are removed one by one, so that memory is freed
                as soon as the rows are copied.
            pending: The rows to keep.

        Raises:
            GradientError: If the losses' gradient is not in ``pending``.
        """
        address = args[self._tangent].untyped_storage().data_ptr()
        if address not in pending:
            raise GradientError(
                "the losses of a single pass were differentiated other than through the loss "
                "it returned: call backward() on that loss, or on an expression of it"
            )
        rows, count = pending.pop(address)
        if rows is None:
            return backward(args)
        sliced = self._sliced(args, rows, count)
        results = list(backward(sliced))
        for place in self._by_row:  # gradients of a batch that requires them
            whole = results[place].new_zeros((count, *results[place].shape[1:]))
            results[place] = whole.index_add_(0, rows, results[place])
        return results

    def _sliced(self, args: list[Any], rows: Tensor, count: int) -> list[Any]:
        slicer = _Slicer(rows, count)
        args.reverse()
        sliced = []
        for role in self._inputs:
            value = args.pop()
            if isinstance(role, Rows):
                value = slicer.take(value, role)
            elif role is not None:
                value = role(value, count, len(rows))
            sliced.append(value)
        return sliced


class _Slicer:
    """Copies rows out of tensors, only once for tensors that share memory."""

    def __init__(self, rows: Tensor, count: int) -> None:
        self._rows, self._count = rows, count
        self._taken: dict[tuple[int, int], Tensor] = {}

    def take(self, tensor: Tensor, layout: Rows) -> Tensor:
        """The rows, with the strides that a smaller batch would have had."""
        before, after = layout.at(tensor, self._count)
        stride = tensor.stride(layout.dim) * after
        if stride == 0:  # expanded: all rows are the same
            return tensor.narrow(layout.dim, 0, len(self._rows) * before * after)
        if before == 1 and _is_within_rows(tensor, layout.dim, after, stride, self._count):
            return self._take_memory(tensor, layout.dim, after, stride)
        return self._take_dimension(tensor, layout.dim, before, after)

    def _take_memory(self, tensor: Tensor, dim: int, after: int, stride: int) -> Tensor:
        """Rows of memory in which examples are consecutive, in any order within each."""
        key = (tensor.untyped_storage().data_ptr(), stride)
        if key not in self._taken:
            memory = tensor.as_strided((self._count, stride), (stride, 1), 0)
            self._taken[key] = memory.index_select(0, self._rows)
        shape = list(tensor.shape)
        shape[dim] = len(self._rows) * after
        return self._taken[key].as_strided(shape, tensor.stride(), tensor.storage_offset())

    def _take_dimension(self, tensor: Tensor, first: int, before: int, after: int) -> Tensor:
        sizes = (before, self._count, after)
        split: Tensor = tensor.unflatten(first, sizes)  # type: ignore[no-untyped-call]
        dim = first + 1
        # Dimensions in memory order, so that the copy keeps that order.
        strides = split.stride()
        order = sorted(range(split.ndim), key=lambda axis: -strides[axis])
        kept = split.permute(order).index_select(order.index(dim), self._rows)
        back = sorted(range(split.ndim), key=order.__getitem__)
        return kept.permute(back).flatten(first, first + 2)


def _is_within_rows(tensor: Tensor, rows: int, after: int, stride: int, count: int) -> bool:
    """Whether each example's elements are between its own start and the next one's."""
    last = tensor.storage_offset() + (after - 1) * tensor.stride(rows)
    for dim in range(tensor.ndim):
        if dim != rows:
            last += (tensor.shape[dim] - 1) * tensor.stride(dim)
    held = tensor.untyped_storage().nbytes() // tensor.element_size()
    return last < stride and count * stride <= held


def _input(node: fx.Node, layouts: Layouts) -> Rows | Callable[[int, int, int], int] | None:
    """How an input depends on the rows kept: by layout, by a formula, or not at all."""
    value = node.meta["val"]
    if not _depends(value, layouts):
        return None
    if not isinstance(value, Tensor):
        return resized(value, layouts.batch)
    layout = layouts.by_name.get(node.name, Rows(0))
    assert isinstance(layout, Rows)
    return layout


def _depends(value: Any, layouts: Layouts) -> bool:
    """Whether a tensor's shape, or a number, depends on the number of examples."""
    sizes = value.shape if isinstance(value, Tensor) else [value]
    return any(has_batch(size, layouts.batch) for size in sizes if isinstance(size, torch.SymInt))
