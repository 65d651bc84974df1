"""Losses of a fresh forward pass."""

from typing import Any

import torch
from torch import Tensor, nn

from siftback.arguments import check_object
from siftback.losses.per_example import Losses, check_losses
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import PassScorer, batch_size


class Fresh(PassScorer):
    """Scores a batch by the losses of a fresh forward pass.

    The selection pass of Jiang et al. 2019, section 3.3. It has no side effects: every module's
    mode, the buffers (including BatchNorm's running statistics), the gradients and PyTorch's
    global random state are restored, even if the pass fails.

    Args:
        mode: Mode of the model during the pass. "eval" is the default; "train" scores with
            dropout and the batch's statistics, as in training; modules of a training model that
            are in eval mode, such as a frozen BatchNorm, stay so.
        autocast: The dtype to compute in, such as ``torch.bfloat16``; None follows the autocast
            that is active when the scores are computed.
        compile: Whether to score through ``torch.compile(model)``. The first batches are slow
            while it compiles; the model itself and its training are not affected.

    Raises:
        ConfigError: If ``mode`` is neither, or ``autocast`` is not a floating-point dtype.

    >>> from siftback.losses.per_example import pair_losses
    >>> losses, batch = pair_losses(nn.functional.mse_loss), (torch.eye(2), torch.zeros(2, 2))
    >>> Fresh().score(losses, nn.Identity(), batch, None)
    tensor([0.5000, 0.5000])
    """

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """Computes one loss per example.

        Args:
            losses: ``losses(model, batch) -> Tensor[N]``.
            model: The model; read only.
            batch: A nested batch of N examples on the model's device.
            indices: int64[N], of which only the length is used; None where they are not known.

        Returns:
            float32[N].

        Raises:
            BatchError: If the batch is on another device than the model.
            LossError: If the losses are not a floating-point tensor of shape [N].
        """
        # `no_grad`, not `inference_mode`: a tensor that the model caches meanwhile, such as a
        # table of positions, must remain usable in training.
        with torch.no_grad(), self.calling(model, batch) as called:
            return check_losses(losses(called, batch), batch_size(batch, indices))  # type: ignore[arg-type]


def check_scorer(scorer: Scorer | None) -> Scorer:
    """Returns the scorer that was passed, after checking it; `Fresh` if none was.

    Raises:
        ConfigError: If it is a class, or not a scorer.
    """
    needed = ("score", "after_step", "state_dict", "load_state_dict")
    return Fresh() if scorer is None else check_object("scorer", scorer, "Fresh()", *needed)
