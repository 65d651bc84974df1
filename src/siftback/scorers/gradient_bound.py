"""How large a gradient can be, from the last layer alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from siftback.errors import LossError
from siftback.loading import tree
from siftback.loss_functions import Losses, check
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import Mode, SelectionPass


class GradientBound(Scorer):
    """Scores a batch by the norm of each loss's gradient with respect to the model's outputs.

    Katharopoulos & Fleuret 2018: up to a factor that all examples share, an upper bound of
    the norm of an example's gradient with respect to all weights. With cross-entropy it is
    ``|softmax(z) - target|``, with the mean of D squared errors ``2/D |z - y|``; no formula is
    needed for any loss, as autograd gives all rows at once: the gradient of the sum of the losses
    has, in the row of an example, that of its own loss. Only the loss is run backward, not the
    model, so that a pass costs what a forward does.

    It leaves as little trace as `Fresh`.

    Args:
        mode: The mode the model is in during the pass, "eval" or "train".
        autocast: The type to compute in, such as ``torch.bfloat16``; None follows the autocast
            in force where the scores are made.
        compile: Whether to score through ``torch.compile(model)``.

    Raises:
        ConfigError: If ``mode`` is neither, or ``autocast`` is not a floating-point type.

    >>> from siftback.loss_functions import pair_losses
    >>> losses, logits = pair_losses(nn.functional.cross_entropy), torch.tensor([[0.0, 0.0]])
    >>> GradientBound().score(losses, nn.Identity(), (logits, torch.tensor([1])), None)
    tensor([0.7071])
    """

    def __init__(
        self, mode: Mode = "eval", autocast: torch.dtype | None = None, *, compile: bool = False
    ) -> None:
        self._pass = SelectionPass(mode, autocast, compile)

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """One norm per example.

        Args:
            losses: ``losses(model, batch) -> Tensor[N]``, which calls the model with what it needs
                of the batch.
            model: The model; read only. Its outputs have a row for each example.
            batch: A nested batch of N examples on the model's device.
            indices: Not used.

        Returns:
            float32[N].

        Raises:
            BatchError: If the batch is on another device than the model.
            LossError: If the losses are not a floating-point tensor of shape [N], do not come
                from the model's outputs, or these do not have a row for each example.
        """
        count = tree.size(batch)
        with self._pass.over(model, batch) as called, torch.enable_grad():
            watched: Any = _Watched(model, called)
            values = losses(watched, batch)
            check(values, count)
            outputs = watched.outputs
            found: tuple[Tensor | None, ...] = ()
            if outputs and values.requires_grad:
                found = torch.autograd.grad(values.sum(), outputs, allow_unused=True)
        gradients = [gradient for gradient in found if gradient is not None]
        if not gradients:
            raise LossError(
                "the losses do not follow from the outputs of the model when it was called: "
                "compute them as losses(model, batch) from model(...), or score with Fresh()"
            )
        squares = torch.zeros(count, device=gradients[0].device)
        for gradient in gradients:
            if gradient.ndim == 0 or len(gradient) != count:
                raise LossError(
                    f"the model's outputs have shape {list(gradient.shape)} and the batch "
                    f"{count} examples: give a model whose outputs have a row for each"
                )
            squares += gradient.float().square().reshape(count, -1).sum(1)
        return squares.sqrt()


class _Watched:
    """A model that is called without gradients, and gives outputs that gradients go back to."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        self._model, self._call = model, call
        self.outputs: list[Tensor] = []

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with torch.no_grad():
            outputs = self._call(*arguments, **named)
        return tree_map_only(Tensor, self._leaf, outputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _leaf(self, output: Tensor) -> Tensor:
        if not output.is_floating_point():
            return output
        leaf = output.detach().requires_grad_()
        self.outputs.append(leaf)
        return leaf
