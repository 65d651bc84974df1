"""The steps of a run: rate, clipping, the gradients' scale, and the average of the weights."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from siftback.lab.forward import build_optimizer
from siftback.lab.settings import Settings


def moved_average(
    decay: float, averages: list[Tensor], weights: list[Tensor], updates: Tensor | int
) -> None:
    """Moves exponential averages towards weights, in place.

    After t updates the decay is ``min(decay, (1 + t) / (10 + t))``: the average of a short training
    is one of its last tenth or so, and not one that its first weights weigh most in.

    Args:
        decay: The share of the average that stays, of a long training.
        averages: Those so far; the first is that of the first weights.
        weights: As many.
        updates: t, how often they were moved before.

    >>> average = torch.tensor([0.0])
    >>> moved_average(0.999, [average], [torch.tensor([1.0])], updates=1)
    >>> average
    tensor([0.8182])
    """
    count = int(updates)
    get_ema_multi_avg_fn(min(decay, (1 + count) / (10 + count)))(averages, weights, updates)  # type: ignore[no-untyped-call]


class Stepper:
    """SGD or AdamW on a model, as settings say.

    Args:
        model: Whose parameters.
        settings: Rate, momentum, weight decay, clipping, precision and averaging.
        device: Where the model is.
    """

    def __init__(self, model: nn.Module, settings: Settings, device: torch.device) -> None:
        self._model, self._settings = model, settings
        self._optimizer = build_optimizer(model, settings)
        # Half precision's gradients would vanish unscaled; disabled, it lets them through.
        self._scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "fp16")
        self._average: AveragedModel | None = None
        if settings.ema is not None:
            average = partial(moved_average, settings.ema)
            self._average = AveragedModel(model, multi_avg_fn=average, use_buffers=True)

    @property
    def tested(self) -> nn.Module:
        """The model to test and to keep: that of the averaged weights, where there is one."""
        return self._model if self._average is None else self._average.module

    def set_rate(self, factor: float) -> None:
        """Sets the learning rate to this multiple of its peak."""
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.lr * factor

    def backward(self, loss: Tensor) -> None:
        """Adds up the gradients of a loss."""
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self) -> None:
        """Makes a step, and forgets the gradients."""
        if self._settings.clip is not None:
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.clip)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._optimizer.zero_grad()
        if self._average is not None:
            self._average.update_parameters(self._model)

    def state_dict(self) -> dict[str, Any]:
        """All that later steps depend on, besides the model."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "average": None if self._average is None else self._average.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same settings."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        if self._average is not None:
            self._average.load_state_dict(state["average"])
