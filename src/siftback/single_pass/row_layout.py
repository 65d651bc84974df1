"""The positions of the examples in the tensors of a traced graph.

In a graph traced with a symbolic batch size, the shape of each tensor shows which of its sizes
depend on N. A size of N is the batch itself. In a size of c N, such as tokens flattened with the
batch, some of the factors of c vary slower and some faster than the example; which ones follows
only from the operations that produced the tensor. Sequence lengths may be symbolic too, so c may
be an expression of them.
"""

import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import sympy
import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

_VIEWS = ("view", "_unsafe_view", "reshape", "_reshape_alias")


Size: TypeAlias = int | sympy.Expr
"""A size without the batch: a number, or an expression of symbolic lengths."""

Symbols: TypeAlias = frozenset[sympy.Symbol]


class Rows(NamedTuple):
    """The positions of the N examples in a tensor.

    Attributes:
        dim: The dimension of the examples; its size is ``before * N * after``.
        before: Factor of that size that varies slower than the example.
        after: Factor that varies faster, such as the tokens of a batch x tokens dimension.
    """

    dim: int
    before: Size = 1
    after: Size = 1

    def at(self, tensor: Tensor, count: int) -> tuple[int, int]:
        """``before`` and ``after`` as numbers, of a tensor with the rows of ``count`` examples."""
        each = tensor.shape[self.dim] // count
        if isinstance(self.before, int):
            return self.before, each // self.before
        assert isinstance(self.after, int)  # as `layouts` finds no other
        return each // self.after, self.after


class Unknown(NamedTuple):
    """A tensor that depends on the batch, but not by rows.

    Attributes:
        why: The reason.
    """

    why: str


Layout = Rows | Unknown | None
"""None is a tensor without examples, such as a weight."""


class Layouts(NamedTuple):
    """The positions of the examples in all tensors of a traced graph.

    Attributes:
        by_name: The layout of each node that is a tensor or a size.
        batch: The symbols whose value is N.
    """

    by_name: dict[str, Layout]
    batch: Symbols


def layouts(graph: fx.Graph) -> Layouts:
    """Finds the positions of the examples in every tensor of a traced graph.

    Args:
        graph: An ATen graph whose nodes have fake tensors as ``meta["val"]``. Inputs with a
            symbolic first size have one row per example.
    """
    inputs = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
    firsts = [value.shape[0] for value in inputs if isinstance(value, Tensor) and value.ndim]
    finder = _Finder(frozenset().union(*map(_symbols_of, firsts)))
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            finder.found[node.name] = finder.layout(node, value)
        elif isinstance(value, torch.SymInt):
            if free_unbacked_symbols(value):
                finder.found[node.name] = Unknown(f"size {value} depends on the data")
            elif resized(value, finder.batch) is None:
                finder.found[node.name] = Unknown(f"size {value} is not a multiple of the batch")
    return Layouts(finder.found, finder.batch)


class _Finder:
    """Finds layouts, each from those of the nodes before it.

    Args:
        batch: The symbols whose value is N.

    Attributes:
        found: Those found so far, by name of the node.
    """

    def __init__(self, batch: Symbols) -> None:
        self.batch = batch
        self.found: dict[str, Layout] = {}

    def layout(self, node: fx.Node, value: Tensor) -> Layout:
        """The layout of a node, whose value is a fake tensor."""
        if any(free_unbacked_symbols(size) for size in value.shape):
            return Unknown(f"shape {_shape(value)} depends on the data")
        dims = [dim for dim, size in enumerate(value.shape) if has_batch(size, self.batch)]
        if not dims:
            return None
        if len(dims) > 1:
            return Unknown(f"shape {_shape(value)} has the batch in more than one dimension")
        dim = dims[0]
        factor = batch_factor(value.shape[dim], self.batch)
        if factor is None:
            return Unknown(f"size {value.shape[dim]} is not a multiple of the batch")
        if factor == 1:
            return Rows(dim)
        layout = self._layout_of_product(node, value, dim, factor)
        if isinstance(layout, Rows) and not (
            isinstance(layout.before, int) or isinstance(layout.after, int)
        ):
            return Unknown(f"shape {_shape(value)} has lengths on both sides of the batch")
        return layout

    def _layout_of_product(self, node: fx.Node, value: Tensor, dim: int, factor: Size) -> Layout:
        """The layout of a node with a dimension of ``factor * N``."""
        # An item of several results has the rows of their inputs.
        origin = node.all_input_nodes[0] if node.target is operator.getitem else node
        sources = [source for source in origin.all_input_nodes if self._rows_of(source) is not None]
        if node.op == "call_function" and _name(node) in _VIEWS and sources:
            return self._viewed(sources[0], dim, factor, value)
        if node.op == "call_function" and _name(node) == "cat":
            return self._joined(sources, dim, factor)
        if node.op == "call_function" and _name(node) == "repeat" and not sources:
            return Rows(dim, after=factor)  # once for each example
        same = {
            Rows(dim, rows.before, rows.after)
            for source in sources
            if (rows := self._rows_of(source)) and rows.before * rows.after == factor
        }
        if len(same) == 1:
            return same.pop()
        return Unknown(f"{_name(node)} gives shape {_shape(value)} from rows in different orders")

    def _viewed(self, source: fx.Node, dim: int, factor: Size, value: Tensor) -> Layout:
        """A view keeps the order of the elements, and so the distance between examples."""
        rows = self._rows_of(source)
        assert rows is not None
        distance = rows.after * _product(source.meta["val"].shape[rows.dim + 1 :])
        after = _quotient(distance, _product(value.shape[dim + 1 :]))
        before = None if after is None else _quotient(factor, after)
        if after is None or before is None:
            seen = _shape(source.meta["val"])
            return Unknown(f"a view from {seen} to {_shape(value)} splits rows")
        return Rows(dim, before, after)

    def _joined(self, sources: list[fx.Node], dim: int, factor: Size) -> Layout:
        """The layout of concatenated batches: rows with that number of factors before them."""
        parts = [self._rows_of(source) for source in sources]
        if len(parts) == factor and all(part == Rows(dim) for part in parts):
            return Rows(dim, before=factor)
        return Unknown("cat joins the batch with something else")

    def _rows_of(self, node: fx.Node) -> Rows | None:
        layout = self.found.get(node.name)
        return layout if isinstance(layout, Rows) else None


def batch_factor(size: Any, batch: Symbols) -> Size | None:
    """The c of a size ``c * N``; None if the size is not such a product.

    Args:
        size: A symbolic size.
        batch: The symbols whose value is N.
    """
    count, *others = batch
    factor = _quotient(_expression(size).subs(dict.fromkeys(others, count)), count)
    return None if isinstance(factor, sympy.Expr) and factor.has(count) else factor


def has_batch(size: Any, batch: Symbols) -> bool:
    """Whether a size depends on N."""
    return bool(_symbols_of(size) & batch)


def resized(size: Any, batch: Symbols) -> Callable[[int, int, int], int] | None:
    """How a size that was computed for one batch follows for another one.

    Args:
        size: A symbolic size.
        batch: The symbols whose value is N.

    Returns:
        ``fn(value, count, kept)``: the size for ``kept`` examples, if it is ``value`` for
        ``count``; None if the lengths of sequences would have to be known too.
    """
    if not has_batch(size, batch):
        return lambda value, count, kept: value
    if batch_factor(size, batch) is not None:
        return lambda value, count, kept: value // count * kept
    if _symbols_of(size) <= batch:
        expression = _expression(size)
        return lambda value, count, kept: int(expression.subs(dict.fromkeys(batch, kept)))
    return None


def _quotient(one: Any, other: Any) -> Size | None:
    """The quotient of two sizes; None if it is not an integer whatever the symbols are."""
    ratio = sympy.cancel(sympy.sympify(one) / sympy.sympify(other))
    if ratio.is_Integer:
        return int(ratio) or None
    whole = sympy.denom(ratio) == 1 and ratio.is_polynomial()
    return ratio if whole and all(c.is_Integer for c in sympy.Poly(ratio).coeffs()) else None


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _symbols_of(size: Any) -> Symbols:
    return frozenset(_expression(size).free_symbols)


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "_opname", node.target))


def _shape(value: Tensor) -> str:
    return f"[{', '.join(str(size) for size in value.shape)}]"


def _product(sizes: Iterable[Any]) -> Any:
    return sympy.prod(map(_expression, sizes))
