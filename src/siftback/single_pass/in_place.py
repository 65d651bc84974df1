"""In-place arithmetic where a traced graph no longer needs the operand.

Tracing turns every in-place operation into one that returns new memory. Allocation costs about as
much as the arithmetic itself, so the model's in-place operations are made in place again, and some
more: sums of branches, and of gradients.
"""

import operator

import torch
from torch import fx

_COMMUTE = ("add", "mul")


def reuse_memory(graph: fx.Graph) -> None:
    """Lets elementwise operations overwrite an operand that nothing else uses.

    The values stay the same bit for bit. Inputs of the graph, views, and tensors that it returns
    or saves are never overwritten.

    Args:
        graph: An ATen graph with fake tensors as ``meta["val"]``; changed.
    """
    for node in graph.nodes:
        overwriting = _in_place(node)
        if overwriting is None:
            continue
        operands = node.args[:2]
        if node.kwargs or len(operands) < 2 or _opname(node) not in _COMMUTE:
            operands = operands[:1]
        for operand in operands:
            if isinstance(operand, fx.Node) and _is_free(operand, node):
                node.args = (operand, *(other for other in node.args if other is not operand))
                node.target = overwriting
                break


def _in_place(node: fx.Node) -> torch._ops.OpOverload | None:
    """The in-place variant of an elementwise operation; None if there is none."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "aten":
        return None
    if torch.Tag.pointwise not in node.target.tags:
        return None
    variant = getattr(torch.ops.aten, f"{_opname(node)}_", None)
    return getattr(variant, node.target._overloadname, None)


def _is_free(operand: fx.Node, user: fx.Node) -> bool:
    """Whether an operand is used by nothing else, and its own memory can hold the result."""
    if set(operand.users) != {user} or user.args.count(operand) > 1 or not _is_fresh(operand):
        return False
    held, wanted = operand.meta.get("val"), user.meta.get("val")
    return (
        isinstance(held, torch.Tensor)
        and isinstance(wanted, torch.Tensor)
        and held.dtype == wanted.dtype
        and held.shape == wanted.shape
        and held.stride() == wanted.stride()
    )


def _is_fresh(node: fx.Node) -> bool:
    """Whether a node's value is in memory that its operation has just allocated."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem and _is_fresh(node.all_input_nodes[0])
    aliases = [returned.alias_info for returned in node.target._schema.returns]
    if _opname(node) == "_unsafe_view" or any(alias and alias.is_write for alias in aliases):
        # It returns its operand's memory, which the schema of `_unsafe_view` does not show.
        (operand, *_) = node.all_input_nodes
        return set(operand.users) == {node} and _is_fresh(operand)
    return not any(aliases)


def _opname(node: fx.Node) -> str:
    return str(getattr(node.target, "_opname", ""))
