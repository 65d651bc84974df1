"""Losses in lower precision."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback.arguments import check_choice
from siftback.scorers.selection_pass import Fresh, Mode
from siftback.scorers.snapshot import CopyScorer, Snapshot

Precision = Literal["bf16", "fp16"]

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Reduced(CopyScorer):
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
        self.precision = check_choice("precision", precision, *_TYPES)
        fresh = Fresh(mode, _TYPES[precision], compile=compile)
        super().__init__(self._copy_of, refresh, fresh, channels_last=channels_last)

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        return {**super().settings(), "precision": self.precision}

    def _copy_of(self, model: nn.Module) -> Snapshot:
        def copy_tensor(tensor: Tensor) -> Tensor:
            value = tensor.detach()
            is_matrix = isinstance(tensor, nn.Parameter) and tensor.ndim > 1
            if is_matrix and tensor.is_floating_point():
                value = value.to(_TYPES[self.precision])
            return self.separate(tensor, value)

        return Snapshot(model, copy_tensor)
