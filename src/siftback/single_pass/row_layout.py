"""The positions of the examples in the tensors of a traced graph.

In a graph traced with a symbolic batch size, the shape of each tensor shows which of its sizes
depend on N. A size of N is the batch itself. In a size of c N, such as tokens flattened with the
batch, some of the factors of c vary slower and some faster than the example; which ones follows
only from the operations that produced the tensor. Sequence lengths may be symbolic too, so c may
be an expression of them.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import sympy
import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from siftback.single_pass.in_place import operation

_VIEWS = ("view", "_unsafe_view", "reshape", "_reshape_alias")

Factor: TypeAlias = int | sympy.Expr
"""A size without the batch: a number, or an expression of symbolic lengths."""

Symbols: TypeAlias = frozenset[sympy.Symbol]


class RowLayout(NamedTuple):
    """The positions of the N examples in a tensor.

    Attributes:
        dim: The dimension of the examples; its size is ``before * N * after``.
        before: Factor of that size that varies slower than the example.
        after: Factor that varies faster, such as the tokens of a batch x tokens dimension.
    """

    dim: int
    before: Factor = 1
    after: Factor = 1

    def factors(self, tensor: Tensor, count: int) -> tuple[int, int]:
        """Returns ``before`` and ``after`` of a tensor with the rows of ``count`` examples."""
        factor = tensor.shape[self.dim] // count
        if isinstance(self.before, int):
            return self.before, factor // self.before
        assert isinstance(self.after, int)  # `find_layout` returns no others
        return factor // self.after, self.after


class Unknown(NamedTuple):
    """A tensor that depends on the batch, but not by rows.

    Attributes:
        why: The reason.
    """

    why: str


Layout = RowLayout | Unknown
"""Tensors without examples, such as weights, have none."""


class GraphLayouts(NamedTuple):
    """The positions of the examples in all tensors of a traced graph.

    Attributes:
        by_name: The layout of each node that is a tensor or a size and depends on the batch.
        batch: The symbols whose value is N.
    """

    by_name: dict[str, Layout]
    batch: Symbols

    def indexes_rows(self, node: fx.Node) -> bool:
        """Returns whether a tensor holds numbers of examples: ``rows`` of ``x[rows, y]``."""
        return node.meta["val"].dtype == torch.int64 and any(
            index is node and batch_factor(size, self.batch) == 1
            for user in node.users
            for index, size in _indexed(user)
        )


def find_layouts(graph: fx.Graph) -> GraphLayouts:
    """Finds the positions of the examples in every tensor of a traced graph.

    Args:
        graph: An ATen graph whose nodes have fake tensors as ``meta["val"]``. Inputs with a
            symbolic first size have one row per example.
    """
    inputs = [node.meta.get("val") for node in graph.nodes if node.op == "placeholder"]
    firsts = [value.shape[0] for value in inputs if isinstance(value, Tensor) and value.ndim]
    batch = frozenset[sympy.Symbol]().union(*map(_symbols, firsts))
    by_name: dict[str, Layout] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            if layout := find_layout(node, by_name, batch):
                by_name[node.name] = layout
            for index, size in _indexed(node):
                if has_batch(size, batch) and batch_factor(size, batch) != 1 and index:
                    by_name[index.name] = Unknown("an index counts the tokens of all")
        elif isinstance(value, torch.SymInt):
            if free_unbacked_symbols(value):
                by_name[node.name] = Unknown(f"size {value} depends on the data")
            elif has_batch(value, batch) and not resize_formula(value, batch):
                by_name[node.name] = Unknown(f"size {value} is not a multiple of the batch")
    return GraphLayouts(by_name, batch)


def find_layout(node: fx.Node, by_name: Mapping[str, Layout], batch: Symbols) -> Layout | None:
    """Finds the positions of the examples in a tensor from those in the tensors before it.

    Args:
        node: The tensor's node.
        by_name: The layouts of the nodes before it.
        batch: The symbols whose value is N.

    Returns:
        None for a tensor without examples.
    """
    shape = node.meta["val"].shape
    if any(map(free_unbacked_symbols, shape)):
        return Unknown(f"shape {_written(shape)} depends on the data")
    dims = batch_dims(node.meta["val"], batch)
    if not dims:
        return None
    if len(dims) > 1:
        return Unknown(f"shape {_written(shape)} has the batch in more than one dimension")
    # Of an operation with several results those after the first are for its backward.
    if node.target is operator.getitem and node.args[1] and (why := _coupling(node.args[0])):
        return Unknown(why)
    dim = dims[0]
    factor = batch_factor(shape[dim], batch)
    if not factor:
        return Unknown(f"size {shape[dim]} is not a multiple of the batch")
    if factor == 1:
        return RowLayout(dim)
    layout = _layout_of_product(node, dim, factor, by_name)
    if isinstance(layout, RowLayout) and not any(isinstance(f, int) for f in layout[1:]):
        return Unknown(f"shape {_written(shape)} has lengths on both sides of the batch")
    return layout


def _indexed(node: Any) -> Iterable[tuple[Any, Any]]:
    """Returns each index of an operation, None for a whole dimension, and the dimension's size."""
    if operation(node) in ("index", "index_put"):
        return zip(node.args[1], node.args[0].meta["val"].shape, strict=False)
    if operation(node) in ("index_select", "gather", "index_add", "scatter_add"):
        return [(node.args[2], node.args[0].meta["val"].shape[node.args[1]])]
    return []


def _coupling(node: Any) -> str:
    """Returns why the backward of an operation needs the whole batch; "" if it does not."""
    if operation(node) == "_embedding_bag":
        return "bags are saved by where they begin among the entries of the whole batch"
    numbers = [value for value in node.args if isinstance(value, float)]  # dropout's probability
    if "_scaled_dot_product" in operation(node) and any(numbers):
        return "attention draws its dropout again in the backward, by places in the whole batch"
    return ""


def _layout_of_product(
    node: fx.Node, dim: int, factor: Factor, by_name: Mapping[str, Layout]
) -> Layout:
    """Returns the layout of a node whose dimension ``dim`` has the size ``factor * N``."""
    shape, name = node.meta["val"].shape, operation(node)
    # An item of several results has the rows of their inputs.
    origin = node.all_input_nodes[0] if node.target is operator.getitem else node
    sources = [
        (source.meta["val"].shape, layout)
        for source in origin.all_input_nodes
        if isinstance(layout := by_name.get(source.name), RowLayout)
    ]
    if name in _VIEWS and sources:
        # A view keeps the order of the elements, and so the distance between examples.
        (seen, layout), *_ = sources
        distance = layout.after * sympy.prod(map(_expression, seen[layout.dim + 1 :]))
        after = _quotient(distance, sympy.prod(map(_expression, shape[dim + 1 :])))
        before = after and _quotient(factor, after)
        if not before:
            return Unknown(f"a view from {_written(seen)} to {_written(shape)} splits rows")
        return RowLayout(dim, before, after)
    if name == "cat":  # of whole batches, which then vary slowest
        if len(sources) == factor and all(layout == RowLayout(dim) for _, layout in sources):
            return RowLayout(dim, before=factor)
        return Unknown("cat joins the batch with something else")
    if name == "repeat" and not sources:
        return RowLayout(dim, after=factor)  # once for each example
    same = {at._replace(dim=dim) for _, at in sources if at.before * at.after == factor}
    if len(same) == 1:
        return same.pop()
    return Unknown(
        f"{name or node.target} gives shape {_written(shape)} from rows in different orders"
    )


def batch_factor(size: Any, batch: Symbols) -> Factor:
    """Returns the c of a size ``c * N``; 0 if the size is not such a product.

    Args:
        size: A symbolic size.
        batch: The symbols whose value is N.
    """
    count, *others = batch
    factor = _quotient(_expression(size).subs(dict.fromkeys(others, count)), count)
    return 0 if isinstance(factor, sympy.Expr) and factor.has(count) else factor


def has_batch(size: Any, batch: Symbols) -> bool:
    """Returns whether a size depends on N."""
    return isinstance(size, torch.SymInt) and bool(_symbols(size) & batch)


def batch_dims(value: Any, batch: Symbols) -> list[int]:
    """Returns the dimensions of a tensor whose sizes depend on N; [0] of a size that does.

    Args:
        value: A fake tensor, or a number.
        batch: The symbols whose value is N.
    """
    sizes = value.shape if isinstance(value, Tensor) else [value]
    return [dim for dim, size in enumerate(sizes) if has_batch(size, batch)]


def resize_formula(size: Any, batch: Symbols) -> Callable[[int, int, int], int] | None:
    """Returns the formula by which a size for one batch gives the size for another one.

    Args:
        size: A symbolic size that depends on N.
        batch: The symbols whose value is N.

    Returns:
        ``fn(value, count, new)``: the size for ``new`` examples, if it is ``value`` for
        ``count``; None if the lengths of sequences would have to be known too.
    """
    if batch_factor(size, batch):
        return lambda value, count, new: value // count * new
    if _symbols(size) <= batch:
        expression = _expression(size)
        return lambda value, count, new: int(expression.subs(dict.fromkeys(batch, new)))
    return None


def _quotient(dividend: Any, divisor: Any) -> Factor:
    """Returns the quotient of two sizes; 0 if it is not an integer whatever the symbols are."""
    ratio = sympy.cancel(sympy.sympify(dividend) / sympy.sympify(divisor))
    if ratio.is_Integer:
        return int(ratio)
    whole = sympy.denom(ratio) == 1 and ratio.is_polynomial()
    return ratio if whole and all(c.is_Integer for c in sympy.Poly(ratio).coeffs()) else 0


def _expression(size: Any) -> Any:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _symbols(size: Any) -> Symbols:
    return frozenset(_expression(size).free_symbols)


def _written(shape: Any) -> str:
    return f"[{', '.join(map(str, shape))}]"
