"""Losses of a fresh forward pass."""

from typing import Any

import torch
from torch import Tensor, nn

from siftback.loading import tree
from siftback.loss_functions import Losses, check
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import Mode, SelectionPass


class Fresh(Scorer):
    """Scores a batch by the losses of a fresh forward pass.

    The selection pass of Jiang et al. 2019, section 3.3. It leaves no trace: every module's own
    mode, the buffers (BatchNorm's running statistics among them), the gradients and PyTorch's
    global random state are afterwards what they were, also where the pass fails.

    Args:
        mode: The mode the model is in during the pass. "eval" is the default; "train" scores
            with dropout and the batch's own statistics, as training will see it: modules of a
            training model that are in eval mode, such as a frozen BatchNorm, stay so.
        autocast: The type to compute in, such as ``torch.bfloat16``; None follows the autocast
            in force where the scores are made.
        compile: Whether to score through ``torch.compile(model)``. The first batches are slow
            while it compiles; the model itself, and how it is trained, stay as they are.

    Raises:
        ConfigError: If ``mode`` is neither, or ``autocast`` is not a floating-point type.

    >>> from siftback.loss_functions import pair_losses
    >>> losses, batch = pair_losses(nn.functional.mse_loss), (torch.eye(2), torch.zeros(2, 2))
    >>> Fresh().score(losses, nn.Identity(), batch, None)
    tensor([0.5000, 0.5000])
    """

    def __init__(
        self, mode: Mode = "eval", autocast: torch.dtype | None = None, *, compile: bool = False
    ) -> None:
        self._pass = SelectionPass(mode, autocast, compile)

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """One loss per example.

        Args:
            losses: ``losses(model, batch) -> Tensor[N]``.
            model: The model; read only.
            batch: A nested batch of N examples on the model's device.
            indices: Not used.

        Returns:
            float32[N].

        Raises:
            BatchError: If the batch is on another device than the model.
            LossError: If the losses are not a floating-point tensor of shape [N].
        """
        # `no_grad`, not `inference_mode`: a tensor that the model caches on the way, such as a
        # table of positions, must still be fit for training.
        with torch.no_grad(), self._pass.over(model, batch) as called:
            return check(losses(called, batch), tree.size(batch))  # type: ignore[arg-type]
