"""Tracing of losses into a forward and a backward graph for any number of examples."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition
from torch.fx.experimental import _config as shape_config

from siftback.batches import tree
from siftback.batches.stats import SinglePassStats
from siftback.errors import TraceError
from siftback.single_pass.in_place import reuse_memory
from siftback.single_pass.row_layout import GraphLayouts, Unknown, find_layouts
from siftback.single_pass.sliced_backward import BackwardPlan, Pending
from siftback.single_pass.stacked_parts import stack_parts

Backend = Literal["graph", "inductor"]
Traced = Callable[[Any], Any]


def trace(function: Traced, backend: Backend, pending: Pending, stats: SinglePassStats) -> Traced:
    """Compiles a function of a batch; its backward runs on the rows in ``pending``.

    Args:
        function: Maps a batch to its losses [N], and any other outputs, detached. Gradients may
            flow only through the losses.
        backend: "graph" runs the graphs with PyTorch's own kernels, "inductor" with compiled ones.
        pending: Gives each backward the rows to keep.
        stats: Counts the compilations.
    """

    def compiler(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        stats.compilations += 1
        compile_pair = compile_with_inductor if backend == "inductor" else compile_plainly
        # A backward graph from a cache would not be restricted to rows.
        with functorch_config.patch(enable_autograd_cache=False):
            return compile_pair(module, inputs, pending)

    def alone(batch: Any) -> Any:
        return function(batch)

    # Dynamo caches and counts compilations by code object: two objects of one class, with one code
    # object, would share a limit of a few compilations.
    alone.__code__ = alone.__code__.replace()
    compiled = torch.compile(alone, backend=compiler, fullgraph=True, dynamic=False)
    sizes = _OpenSizes()

    @functools.wraps(function)
    def run(batch: Any) -> Any:
        sizes.mark(batch)
        before, started = stats.compilations, time.perf_counter()
        # Under DistributedDataParallel the compiler would split the graph at its buckets. Sizes
        # that are equal in the first batch, such as N and a length, are not to be taken for one.
        # Hooks may be registered later.
        with (
            torch._dynamo.config.patch(optimize_ddp=False, skip_nnmodule_hook_guards=False),
            shape_config.patch(use_duck_shape=False),  # type: ignore[attr-defined]
        ):
            results = compiled(batch)
        if stats.compilations != before:
            stats.seconds_compiling += time.perf_counter() - started
        return results

    return run


class _OpenSizes:
    """Leaves sizes of a batch open: its number of examples, and lengths once they change."""

    def __init__(self) -> None:
        self._first: list[torch.Size] = []
        self._changing: set[tuple[int, int]] = set()

    def mark(self, batch: Any) -> None:
        """Marks the sizes of a batch that a trace must not fix."""
        tensors = tree.tensors(batch)
        if len(tensors) != len(self._first):
            self._first = [tensor.shape for tensor in tensors]
            self._changing.clear()
        for index, (tensor, first) in enumerate(zip(tensors, self._first, strict=True)):
            torch._dynamo.mark_dynamic(tensor, 0)
            for dim in range(1, min(tensor.ndim, len(first))):
                if tensor.shape[dim] != first[dim]:
                    self._changing.add((index, dim))
                if (index, dim) in self._changing:
                    torch._dynamo.maybe_mark_dynamic(tensor, dim)


class _GraphPair:
    """The two graphs of a compilation: the backward takes rows of the forward's saved tensors.

    Args:
        compile_graph: Compiles a graph alone.
        pending: Gives each backward the rows to keep.
    """

    def __init__(self, compile_graph: Callable[..., Any], pending: Pending) -> None:
        self._compile, self._pending = compile_graph, pending
        self._layouts = GraphLayouts({}, frozenset())

    def forward(self, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        """Compiles the forward graph, and finds the rows of all tensors that it saves."""
        for node in module.graph.nodes:
            if "rng_state" in node.name:
                what = "torch.utils.checkpoint has dropout, or attention, run again in the backward"
                traces = [user.meta.get("stack_trace") or "" for user in node.users]
                raise TraceError("\n".join([what, *traces]))
        self._layouts = find_layouts(module.graph)
        (results,) = next(node for node in module.graph.nodes if node.op == "output").args
        for node in results:
            layout = self._layouts.by_name.get(node.name) if isinstance(node, fx.Node) else None
            if isinstance(layout, Unknown):
                raise TraceError(
                    f"{layout.why}, so its examples cannot be separated\n"
                    f"{node.meta.get('stack_trace', '')}"
                )
        return self._compile(module, inputs, **options)

    def backward(self, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        """Compiles the backward graph as a function that runs it on the kept rows."""
        plan = BackwardPlan(module.graph, self._layouts)  # of a graph that compiling changes
        compiled = self._compile(module, inputs, **options)
        return boxed(lambda args: plan.run(compiled, args, self._pending))


def compile_plainly(
    module: fx.GraphModule, inputs: Sequence[Any], pending: Pending
) -> Callable[..., Any]:
    """Compiles a graph and its backward to run with PyTorch's own kernels."""

    def compile_graph(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        stack_parts(module.graph)
        reuse_memory(module.graph)
        module.recompile()
        return boxed(lambda args: module.forward(*args))

    pair = _GraphPair(compile_graph, pending)
    backend = aot_autograd(
        fw_compiler=pair.forward, bw_compiler=pair.backward, partition_fn=default_partition
    )
    return backend(module, inputs)


def compile_with_inductor(
    module: fx.GraphModule, inputs: Sequence[Any], pending: Pending
) -> Callable[..., Any]:
    """Compiles a graph and its backward with Inductor."""
    # They take seconds, so they are imported only if needed.
    from torch._inductor import config as inductor_config
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner

    pair = _GraphPair(compile_fx_inner, pending)

    def compile_graph(module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        compile_side = pair.backward if options.get("is_backward") else pair.forward
        return compile_side(module, inputs, **options)

    # PyTorch's dropout saves its mask; Inductor's would draw the mask again in the backward,
    # and use that of the first rows of the batch for the kept rows.
    with inductor_config.patch(fallback_random=True):
        return cast(Callable[..., Any], compile_fx(module, inputs, compile_graph))


def boxed(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Marks a function as receiving its arguments in a list that it may empty."""
    function._boxed_call = True  # type: ignore[attr-defined]
    return function
