"""Losses of averaged weights."""

import time
from typing import Any

import torch
from torch import Tensor, nn

from siftback.arguments import check_share
from siftback.losses.per_example import Losses
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import WrappingScorer
from siftback.scorers.snapshot import Snapshot, copy_check, tensors_of
from siftback.state import Check
from siftback.tensor_arguments import unwrap_model


class Ema(WrappingScorer):
    """Scores a batch by the losses of an exponential moving average of the weights.

    After each training step ``a = decay * a + (1 - decay) * w`` (Polyak & Juditsky 1992, with
    exponential decay), for weights and floating-point buffers such as BatchNorm's statistics;
    other buffers are the model's latest. The average is initialized to the first weights seen. It
    takes as much memory as the trained weights, and shares frozen ones with the model. A score
    costs as much as a fresh one: it is more stable, not cheaper.

    Args:
        decay: Share of the average that is kept at each step, in [0, 1).
        scorer: Scores with the averaged model; by default `Fresh`.

    Attributes:
        seconds_refresh: Seconds of host time spent copying and averaging.

    Raises:
        ConfigError: If ``decay`` is out of range. While scoring: if the model cannot be copied.

    >>> from siftback.losses.per_example import pair_losses
    >>> losses = pair_losses(nn.functional.mse_loss)
    >>> scorer, model = Ema(0.5), nn.Linear(1, 1, bias=False)
    >>> batch = torch.ones(1, 1), torch.zeros(1, 1)
    >>> _ = nn.init.constant_(model.weight, 2.0)
    >>> scorer.score(losses, model, batch, None)
    tensor([4.])
    >>> _ = nn.init.constant_(model.weight, 0.0)
    >>> scorer.after_step(losses, model, batch)
    >>> scorer.score(losses, model, batch, None)
    tensor([1.])
    """

    setting_names = ("decay",)

    def __init__(self, decay: float = 0.99, scorer: Scorer | None = None) -> None:
        super().__init__(scorer)
        self.decay = check_share("decay", decay)
        self.seconds_refresh = 0.0
        self._snapshot: Snapshot | None = None
        self._loaded: dict[str, Tensor] | None = None

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """Computes float32[N], one score per example, with the averaged model."""
        average = self.average_model(unwrap_model(model)).model
        return self.scorer.score(losses, average, batch, indices)

    @torch.no_grad()
    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Updates the average with the weights after the step, then calls the inner scorer."""
        model = unwrap_model(model)
        snapshot = self.average_model(model)
        started = time.perf_counter()
        sources = tensors_of(model)
        # Grouped, as one call per type and device is several times faster than one per tensor.
        averaged = {n: t for n, t in snapshot.copied.items() if t.is_floating_point()}
        if averaged:
            targets = [t.detach() for t in averaged.values()]
            torch._foreach_lerp_(targets, [sources[n] for n in averaged], 1 - self.decay)
        for name in snapshot.copied.keys() - averaged.keys():
            snapshot.copied[name].copy_(sources[name])
        self.seconds_refresh += time.perf_counter() - started
        self.scorer.after_step(losses, snapshot.model, batch)

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        return {"average": copy_check(self._snapshot)}

    @property
    def average(self) -> dict[str, Tensor] | None:
        """The averages by name; None before the first."""
        return self._loaded if self._snapshot is None else self._snapshot.state_dict()

    @average.setter
    def average(self, average: dict[str, Tensor] | None) -> None:
        self._loaded, self._snapshot = average, None

    def average_model(self, model: nn.Module) -> Snapshot:
        """Returns the averaged model, with each module in the mode of the model's module."""
        started = time.perf_counter()
        sources, before = tensors_of(model), self._snapshot
        if (
            before is None
            or not before.fits(sources)
            or any(t.requires_grad and name not in before.copied for name, t in sources.items())
        ):
            self._snapshot = Snapshot(model, _share_frozen)
            if self._loaded is not None:
                self._snapshot.load_state_dict(self._loaded)
                self._loaded = None
            elif before is not None:  # weights were unfrozen: the other averages stay
                for name in before.copied.keys() & self._snapshot.copied.keys():
                    if before.copied[name].shape == sources[name].shape:
                        self._snapshot.copied[name].data.copy_(before.copied[name])
            before = self._snapshot
        before.follow_modes(model)
        self.seconds_refresh += time.perf_counter() - started
        return before


def _share_frozen(tensor: Tensor) -> Tensor:
    if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
        return tensor
    return tensor.detach().clone()
