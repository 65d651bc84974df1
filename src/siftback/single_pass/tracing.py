"""Tracing of losses into a forward and a backward graph for any number of examples."""

import functools
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from siftback.single_pass.row_layout import Layouts, Unknown, layouts
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
        graphs = _Graphs(pending)
        # A backward graph from a cache would not be restricted to rows.
        with functorch_config.patch(enable_autograd_cache=False):
            if backend == "inductor":
                return graphs.inductor(module, inputs)
            return graphs.plain(module, inputs)

    compiled = torch.compile(_alone(function), backend=compiler, fullgraph=True, dynamic=False)

    sizes = _OpenSizes()

    @functools.wraps(function)
    def run(batch: Any) -> Any:
        sizes.mark(batch)
        before, started = stats.compilations, time.perf_counter()
        with _compiler_options():
            results = compiled(batch)
        if stats.compilations != before:
            stats.seconds_compiling += time.perf_counter() - started
        return results

    return run


@contextmanager
def _compiler_options() -> Iterator[None]:
    # Under DistributedDataParallel the compiler would split the graph at its buckets. Sizes that
    # happen to be equal in the first batch, such as N and a length, are not to be taken for one.
    with (
        torch._dynamo.config.patch(optimize_ddp=False),
        shape_config.patch(use_duck_shape=False),  # type: ignore[attr-defined]
    ):
        yield


class _OpenSizes:
    """Leaves sizes of a batch open: its number of examples, and lengths once they change."""

    def __init__(self) -> None:
        self._first: list[torch.Size] = []
        self._changing: set[tuple[int, int]] = set()

    def mark(self, batch: Any) -> None:
        """Marks the sizes of a batch that a trace must not fix."""
        parts = tree.tensors(batch)
        if len(parts) != len(self._first):
            self._first = [part.shape for part in parts]
            self._changing.clear()
        for place, (part, first) in enumerate(zip(parts, self._first, strict=True)):
            torch._dynamo.mark_dynamic(part, 0)
            for dim in range(1, min(part.ndim, len(first))):
                if part.shape[dim] != first[dim]:
                    self._changing.add((place, dim))
                if (place, dim) in self._changing:
                    torch._dynamo.maybe_mark_dynamic(part, dim)


class _Graphs:
    """The two graphs of one compilation: the backward takes rows of what the forward saves."""

    def __init__(self, pending: Pending) -> None:
        self._pending = pending
        self._layouts = Layouts({}, frozenset())

    def plain(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        backend = aot_autograd(
            fw_compiler=self._forward, bw_compiler=self._backward, partition_fn=default_partition
        )
        compiled: Callable[..., Any] = backend(module, inputs)
        return compiled

    def inductor(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._inductor import (
            config as inductor_config,  # takes seconds, so imported only if needed
        )
        from torch._inductor.compile_fx import compile_fx

        # PyTorch's dropout saves its mask; Inductor's would draw the mask again in the backward,
        # and use that of the first rows of the batch for the kept rows.
        with inductor_config.patch(fallback_random=True):
            return cast(Callable[..., Any], compile_fx(module, inputs, self._inner))

    def _inner(self, module: fx.GraphModule, inputs: Sequence[Any], **options: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx_inner

        if not options.get("is_backward"):
            self._learn(module.graph)
            return compile_fx_inner(module, inputs, **options)
        plan = BackwardPlan(module.graph, self._layouts)  # of a graph that compiling changes
        return self._cut(plan, compile_fx_inner(module, inputs, **options))

    def _forward(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self._learn(module.graph)
        return _runnable(module)

    def _backward(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        return self._cut(BackwardPlan(module.graph, self._layouts), _runnable(module))

    def _learn(self, graph: fx.Graph) -> None:
        """Finds the rows of all tensors that the forward graph saves."""
        self._layouts = layouts(graph)
        (results,) = next(node for node in graph.nodes if node.op == "output").args
        for node in results:
            layout = self._layouts.by_name.get(node.name) if isinstance(node, fx.Node) else None
            if isinstance(layout, Unknown):
                raise TraceError(
                    f"{layout.why}, so its examples cannot be separated\n"
                    f"{node.meta.get('stack_trace', '')}"
                )

    def _cut(
        self, plan: BackwardPlan, backward: Callable[[list[Any]], Any]
    ) -> Callable[[list[Any]], Any]:
        """The backward graph as a function that runs it on the kept rows."""

        def run(args: list[Any]) -> Any:
            return plan.run(backward, args, self._pending)

        return make_boxed(run)


def _runnable(module: fx.GraphModule) -> Callable[[list[Any]], Any]:
    """A graph as a function, with PyTorch's own kernels."""
    stack_parts(module.graph)
    reuse_memory(module.graph)
    module.recompile()
    return make_boxed(lambda args: module.forward(*args))


def make_boxed(function: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    """Marks a function as receiving its arguments in a list that it may empty."""
    function._boxed_call = True  # type: ignore[attr-defined]
    return function


def _alone(function: Traced) -> Traced:
    """The same function with a separate code object.

    Dynamo caches and counts compilations by code object: two objects of one class would share a
    limit of a few compilations.
    """
    assert isinstance(function, types.FunctionType)
    return types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
