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
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
            continue
        variant = getattr(torch.ops.aten, f"{operation(node)}_", None)
        overwriting = getattr(variant, target._overloadname, None)
        if not overwriting or torch.Tag.pointwise not in target.tags:  # of elementwise ones
            continue
        commutes = operation(node) in _COMMUTE and not node.kwargs
        for operand in node.args[: 1 + commutes]:
            if isinstance(operand, fx.Node) and can_overwrite(node, operand):
                node.args = (operand, *(other for other in node.args if other is not operand))
                node.target = overwriting
                break


def operation(node: fx.Node) -> str:
    """Returns the name of a node's ATen operation; "" if it is something else."""
    return str(getattr(node.target, "_opname", ""))


def can_overwrite(node: fx.Node, operand: fx.Node) -> bool:
    """Returns whether only this node uses an operand, whose own memory can hold its result."""
    if set(operand.users) != {node} or node.args.count(operand) > 1 or not owns_memory(operand):
        return False
    old, new = operand.meta.get("val"), node.meta.get("val")
    return (
        isinstance(old, torch.Tensor)
        and isinstance(new, torch.Tensor)
        and (old.dtype, old.shape, old.stride()) == (new.dtype, new.shape, new.stride())
    )


def owns_memory(node: fx.Node) -> bool:
    """Returns whether a node's value is in memory that its operation has just allocated."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.target is operator.getitem and owns_memory(node.all_input_nodes[0])
    aliases = [returned.alias_info for returned in node.target._schema.returns]
    if operation(node) == "_unsafe_view" or any(alias and alias.is_write for alias in aliases):
        # It returns its operand's memory, which the schema of `_unsafe_view` does not show.
        (operand, *_) = node.all_input_nodes
        return set(operand.users) == {node} and owns_memory(operand)
    return not any(aliases)
