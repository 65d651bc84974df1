"""The positions of the examples in the tensors of a traced graph.

In a graph traced with a symbolic batch size, the shape of each tensor shows which of its sizes
depend on N. A size of N is the batch itself. In a size of c N, such as tokens flattened with the
batch, some of the factors of c vary slower and some faster than the example; which ones follows
only from the operations that produced the tensor.
"""

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

_VIEWS = ("view", "_unsafe_view", "reshape", "_reshape_alias")


class Rows(NamedTuple):
    """The positions of the N examples in a tensor.

    Attributes:
        dim: The dimension of the examples; its size is ``before * N * after``.
        before: Factor of that size that varies slower than the example.
        after: Factor that varies faster, such as the tokens of a batch x tokens dimension.
    """

    dim: int
    before: int = 1
    after: int = 1


class Unknown(NamedTuple):
    """A tensor that depends on the batch, but not by rows.

    Attributes:
        why: The reason.
    """

    why: str


Layout = Rows | Unknown | None
"""None is a tensor without examples, such as a weight."""


def layouts(graph: fx.Graph) -> dict[str, Layout]:
    """Finds the positions of the examples in every tensor of a traced graph.

    Args:
        graph: An ATen graph whose nodes have fake tensors as ``meta["val"]``, with the batch as
            the only symbolic size.

    Returns:
        The layout of each node that is a tensor or a size, by its name.
    """
    found: dict[str, Layout] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            found[node.name] = _layout(node, value, found)
        elif isinstance(value, torch.SymInt) and free_unbacked_symbols(value):
            found[node.name] = Unknown(f"size {value} depends on the data")
    return found


def _layout(node: fx.Node, value: Tensor, found: dict[str, Layout]) -> Layout:
    dims = [dim for dim, size in enumerate(value.shape) if _is_symbolic(size)]
    if not dims:
        return None
    if any(free_unbacked_symbols(value.shape[dim]) for dim in dims):
        return Unknown(f"shape {_shape(value)} depends on the data")
    if len(dims) > 1:
        return Unknown(f"shape {_shape(value)} has the batch in more than one dimension")
    dim = dims[0]
    factor = batch_factor(value.shape[dim])
    if factor is None:
        return Unknown(f"size {value.shape[dim]} is not a multiple of the batch")
    if factor == 1:
        return Rows(dim)
    # An item of several results has the rows of their inputs.
    origin = node.all_input_nodes[0] if node.target is operator.getitem else node
    sources = [source for source in origin.all_input_nodes if _rows_of(source, found) is not None]
    if node.op == "call_function" and _name(node) in _VIEWS and sources:
        return _viewed(sources[0], dim, factor, value, found)
    if node.op == "call_function" and _name(node) == "cat":
        return _joined(sources, dim, factor, found)
    if node.op == "call_function" and _name(node) == "repeat" and not sources:
        return Rows(dim, after=factor)  # once for each example
    same = {
        Rows(dim, rows.before, rows.after)
        for source in sources
        if (rows := _rows_of(source, found)) and rows.before * rows.after == factor
    }
    if len(same) == 1:
        return same.pop()
    return Unknown(f"{_name(node)} gives shape {_shape(value)} from rows in different orders")


def _viewed(
    source: fx.Node, dim: int, factor: int, value: Tensor, found: dict[str, Layout]
) -> Layout:
    """A view keeps the order of the elements, and so the distance between examples."""
    rows = _rows_of(source, found)
    assert rows is not None
    distance = rows.after * _product(source.meta["val"].shape[rows.dim + 1 :])
    within = _product(value.shape[dim + 1 :])
    after = distance // within
    if distance % within or not after or factor % after:
        return Unknown(f"a view from {_shape(source.meta['val'])} to {_shape(value)} splits rows")
    return Rows(dim, factor // after, after)


def _joined(sources: list[fx.Node], dim: int, factor: int, found: dict[str, Layout]) -> Layout:
    """The layout of concatenated batches: rows with that number of factors before them."""
    parts = [_rows_of(source, found) for source in sources]
    if len(parts) == factor and all(part == Rows(dim) for part in parts):
        return Rows(dim, before=factor)
    return Unknown("cat joins the batch with something else")


def batch_factor(size: Any) -> int | None:
    """The integer c of a size ``c * N``; None if the size is not such a product."""
    expression = size.node.expr
    symbols = expression.free_symbols
    if len(symbols) != 1:
        return None
    factor = expression / next(iter(symbols))
    return int(factor) if factor.is_Integer else None


def _is_symbolic(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and bool(size.node.expr.free_symbols)


def _rows_of(node: fx.Node, found: dict[str, Layout]) -> Rows | None:
    layout = found.get(node.name)
    return layout if isinstance(layout, Rows) else None


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "_opname", node.target))


def _shape(value: Tensor) -> str:
    return f"[{', '.join(str(size) for size in value.shape)}]"


def _product(sizes: Iterable[Any]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product
