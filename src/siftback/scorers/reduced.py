"""Losses in lower precision."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback.arguments import check_choice, check_flag
from siftback.batches import tree
from siftback.losses.per_example import Losses
from siftback.scorers.fresh import Fresh
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import Mode, device_of
from siftback.scorers.snapshot import Refreshed, Snapshot, unwrapped
from siftback.state import Stateful

Precision = Literal["bf16", "fp16"]

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Reduced(Stateful, Scorer):
    """Scores a batch by the losses of a copy of the model in half precision.

    The "inference acceleration" of Jiang et al. 2019, section 3.3. The copy is made at the first
    batch and updated, in place, at the first batch scored after every ``refresh`` training steps.

    Weight matrices and kernels are copied in that precision, and the copy runs under autocast, so
    that losses are computed in float32 wherever autocast does so. Biases, the weights of
    normalisations and their running statistics stay float32. Compared with autocast of the model
    itself, weights are cast once per refresh instead of once per batch.

    With ``refresh=1`` the copy shares with the model all tensors that stay in their dtype;
    otherwise it copies these at each refresh too. The model itself is not changed.

    Args:
        precision: "bf16" or "fp16".
        refresh: Training steps between refreshes, m. A refresh costs little compared with a batch,
            and losses change fast while the learning rate is high: raise it only after comparing.
        compile: Whether to score through ``torch.compile`` of the copy.
        mode: As for `Fresh`.
        channels_last: Whether to use the ``channels_last`` memory format, in which convolutions
            are faster. Not for models that call ``view`` on feature maps.

    Raises:
        ConfigError: If an argument is out of range. While scoring: if the model cannot be copied.

    >>> from siftback.losses.per_example import pair_losses
    >>> losses = pair_losses(nn.functional.mse_loss)
    >>> scorer, model = Reduced("bf16"), nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(model.weight, 1 + 2**-10)  # 1 in bfloat16's 8 bits
    >>> scorer.score(losses, model, (torch.tensor([[1.0], [3.0]]), torch.zeros(2, 1)), None)
    tensor([1., 9.])
    """

    def __init__(
        self,
        precision: Precision = "bf16",
        refresh: int = 1,
        *,
        compile: bool = False,
        mode: Mode = "eval",
        channels_last: bool = False,
    ) -> None:
        check_choice("precision", precision, *_TYPES)
        self.precision = precision
        self._type = _TYPES[precision]
        self._copy = Refreshed(self._copy_of, refresh)
        self._shares = refresh == 1
        self._follows_modes = mode == "train"
        self._channels_last = check_flag("channels_last", channels_last)
        self._fresh = Fresh(mode, self._type, compile=compile)

    @property
    def refreshes(self) -> int:
        """Number of times the copy was made or refreshed."""
        return self._copy.refreshes

    @property
    def seconds_refresh(self) -> float:
        """Seconds of host time spent making and refreshing the copy."""
        return self._copy.seconds

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """One loss per example, float32[N]; raises as `Fresh.score` and the class do."""
        device_of(model, batch)
        model = unwrapped(model)
        copy = self._copy.of(model)
        if self._follows_modes:
            copy.follow_modes(model)
        if self._channels_last:
            batch = tree.map_tensors(by_pixels, batch)
        return self._fresh.score(losses, copy.model, batch, indices)

    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Counts the step."""
        self._copy.after_step()

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        own = {"precision": self.precision, "refresh": self._copy.steps}
        layout = {"channels_last": self._channels_last}
        return {**self._fresh.settings(), "scorer": type(self).__name__, **own, **layout}

    def members(self) -> dict[str, Any]:
        """See `Stateful.members`."""
        return {"copy": self._copy}

    def _copy_of(self, model: nn.Module) -> Snapshot:
        def make(tensor: Tensor) -> Tensor:
            made = tensor.detach()
            if isinstance(tensor, nn.Parameter) and tensor.ndim > 1:
                if tensor.is_floating_point():
                    made = made.to(self._type)
                if self._channels_last:
                    made = by_pixels(made)
            if made.data_ptr() != tensor.data_ptr() or made.dtype != tensor.dtype:
                return made
            return tensor if self._shares else made.clone()

        return Snapshot(model, make)


def by_pixels(tensor: Tensor) -> Tensor:
    """A 4-dimensional tensor in the ``channels_last`` memory format; any other unchanged."""
    return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
