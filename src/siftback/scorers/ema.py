"""Losses of averaged weights."""

import time
from typing import Any

import torch
from torch import Tensor, nn

from siftback.arguments import check_share
from siftback.losses.per_example import Losses
from siftback.scorers.fresh import check_scorer
from siftback.scorers.scorer import Scorer
from siftback.scorers.snapshot import Snapshot, copied, tensors_of, unwrapped
from siftback.state import Stateful, check_entries, flag, seal


class Ema(Stateful, Scorer):
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

    def __init__(self, decay: float = 0.99, scorer: Scorer | None = None) -> None:
        self.decay = check_share("decay", decay)
        self.scorer = check_scorer(scorer)
        self.seconds_refresh = 0.0
        self._snapshot: Snapshot | None = None
        self._loaded: dict[str, Tensor] | None = None

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """One score per example, float32[N], by the inner scorer with the averaged model."""
        average = self._average(unwrapped(model)).model
        return self.scorer.score(losses, average, batch, indices)

    @torch.no_grad()
    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Updates the average with the weights after the step, then calls the inner scorer."""
        model = unwrapped(model)
        snapshot = self._average(model)
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

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        inner = type(self.scorer).__name__
        return {"scorer": type(self).__name__, "decay": self.decay, "inner": inner}

    def members(self) -> dict[str, Any]:
        """See `Stateful.members`."""
        return {"inner": self.scorer}

    def state_dict(self) -> dict[str, Any]:
        """The averages, or None if there are none yet, and the inner scorer's state."""
        average = self._loaded
        if self._snapshot is not None:
            average = self._snapshot.state_dict()
        averaged = average is not None
        return seal({**super().state_dict(), "averaged": averaged, "average": average})

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits, as far as it is known which model is averaged.

        Raises:
            StateError: If it was saved with other settings, is damaged, or of another model.
        """
        super().check_state(state)
        check_entries(self, state, {"averaged": flag})
        check_entries(self, state, {"average": copied(self._snapshot, state["averaged"])})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another scorer's state; the average is built at the first use.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        super().load_state_dict(state)
        self._loaded, self._snapshot = state["average"], None

    def _average(self, model: nn.Module) -> Snapshot:
        """The averaged model, with each module in the mode of the model's module."""
        started = time.perf_counter()
        sources = tensors_of(model)
        snapshot = self._snapshot
        if snapshot is None or not snapshot.fits(sources) or _thawed(snapshot, sources):
            self._snapshot = Snapshot(model, _share_frozen)
            if self._loaded is not None:
                self._snapshot.load_state_dict(self._loaded)
                self._loaded = None
            elif snapshot is not None:  # weights were unfrozen: the other averages stay
                for name in snapshot.copied.keys() & self._snapshot.copied.keys():
                    if snapshot.copied[name].shape == sources[name].shape:
                        self._snapshot.copied[name].data.copy_(snapshot.copied[name])
            snapshot = self._snapshot
        snapshot.follow_modes(model)
        self.seconds_refresh += time.perf_counter() - started
        return snapshot


def _share_frozen(tensor: Tensor) -> Tensor:
    if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
        return tensor
    return tensor.detach().clone()


def _thawed(snapshot: Snapshot, sources: dict[str, Tensor]) -> bool:
    return any(t.requires_grad and n not in snapshot.copied for n, t in sources.items())
