"""One forward pass over the batch, and a backward over the kept rows alone."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from siftback import tree
from siftback.errors import BatchError, ConfigError, StateError
from siftback.losses import Losses, LossFn, check, resolve
from siftback.selectors import Percentile, Selection, Selector
from siftback.sliced_backward import Kept, Pending
from siftback.stats import SinglePassStats
from siftback.tracing import Backend, trace

_STATE_VERSION = 1


class SinglePass:
    """doc."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn | None = None,
        *,
        losses: Losses | None = None,
        keep: float | None = None,
        beta: float | None = None,
        history: int = 1024,
        selector: Selector | None = None,
        backend: Backend = "graph",
        seed: int = 0,
    ) -> None:
        if selector is None:
            selector = Percentile(keep=keep, beta=beta, history=history)
        elif keep is not None or beta is not None:
            raise ConfigError("both a selector and keep or beta given: give one of them")
        if backend not in ("graph", "inductor"):
            raise ConfigError(f'backend={backend!r}: give "graph" or "inductor"')
        self.model = model
        self.selector = selector
        self.stats = SinglePassStats()
        self.losses = torch.empty(0)
        self.selection = Selection(torch.empty(0, dtype=torch.int64), torch.empty(0))
        self._losses = resolve(loss_fn, losses)
        self._pending: Pending = {}
        self._generator = torch.Generator().manual_seed(seed)
        compute = self._losses

        def forward(batch: Any) -> Any:
            return compute(model, batch)

        self._forward = trace(forward, backend, self._pending, self.stats)

    def __call__(self, *batch: Any) -> Tensor:
        """doc"""
        whole = batch[0] if len(batch) == 1 else batch
        count = tree.size(whole)
        losses = self._forward(whole)
        self.losses = check(losses, count)
        self.selection = self._select(self.losses)
        self.stats.seen += count
        self.stats.kept += len(self.selection.indices)
        return _KeptMean.apply(losses, *self.selection, self._pending)

    def _select(self, losses: Tensor) -> Selection:
        kept = max(1, round(self.selector.keep * len(losses)))
        return self.selector.select(losses.nan_to_num(nan=torch.inf), self._generator, kept)


class _KeptMean(torch.autograd.Function):
    """The weighted mean of the kept losses, that tells the backward graph which they are."""

    @staticmethod
    def forward(ctx, losses, indices, weights, pending):
        ctx.save_for_backward(indices, weights)
        ctx.pending, ctx.count, ctx.dtype = pending, len(losses), losses.dtype
        kept = losses if len(indices) == len(losses) else losses.index_select(0, indices)
        return (kept * weights).mean()

    @staticmethod
    def backward(ctx, gradient):
        indices, weights = ctx.saved_tensors
        rows = None if len(indices) == ctx.count else indices
        each = (gradient * weights / len(indices)).to(ctx.dtype)
        if rows is not None and len(rows) == 1:
            # Graphs with an open size hold from 2 on: the one row twice, at half its gradient.
            rows, each_row = rows.repeat(2), each / 2
        else:
            each_row = each
        tangent = each_row.new_zeros(ctx.count).index_copy_(0, indices, each_row)
        ctx.pending[tangent.untyped_storage().data_ptr()] = Kept(rows, ctx.count)
        return tangent, None, None, None
