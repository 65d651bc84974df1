"""An upper bound of the gradient norm, from the model's outputs only."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from siftback.batches import tree
from siftback.errors import LossError
from siftback.losses.per_example import Losses, check_losses
from siftback.scorers.selection_pass import PassScorer


class GradientBound(PassScorer):
    """Scores a batch by the norm of each loss's gradient with respect to the model's outputs.

    Katharopoulos & Fleuret 2018: up to a factor common to all examples, an upper bound of the
    norm of an example's gradient with respect to all weights. With cross-entropy it is
    ``|softmax(z) - target|``, with the mean of D squared errors ``2/D |z - y|``. It works for any
    loss, by autograd, for all rows at once: in the gradient of the sum of the losses, the row of
    an example is the gradient of its own loss. Only the loss is run backward, not the model, so
    that a pass costs as much as a forward.

    Like `Fresh`, it has no side effects.

    Args:
        mode: Mode of the model during the pass, "eval" or "train".
        autocast: The dtype to compute in, such as ``torch.bfloat16``; None follows the autocast
            that is active when the scores are computed.
        compile: Whether to score through ``torch.compile(model)``.

    Raises:
        ConfigError: If ``mode`` is neither, or ``autocast`` is not a floating-point dtype.

    >>> from siftback.losses.per_example import pair_losses
    >>> losses, logits = pair_losses(nn.functional.cross_entropy), torch.tensor([[0.0, 0.0]])
    >>> GradientBound().score(losses, nn.Identity(), (logits, torch.tensor([1])), None)
    tensor([0.7071])
    """

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """Computes one norm per example.

        Args:
            losses: ``losses(model, batch) -> Tensor[N]``, which calls the model.
            model: The model; read only. Its outputs have one row per example.
            batch: A nested batch of N examples on the model's device.
            indices: int64[N], of which only the length is used; None where they are not known.

        Returns:
            float32[N].

        Raises:
            BatchError: If the batch is on another device than the model.
            LossError: If the losses are not a floating-point tensor of shape [N], do not depend
                on the model's outputs, or these do not have one row per example.
        """
        count = tree.size(batch) if indices is None else len(indices)
        outputs: list[Tensor] = []

        def leaf(output: Tensor) -> Tensor:
            if output.is_floating_point():
                output = output.detach().requires_grad_()
                outputs.append(output)
            return output

        with self.calling(model, batch) as (called, renewed), torch.enable_grad():
            watched: Any = WatchedModel(model, called, leaf)
            values = losses(watched, renewed)
            check_losses(values, count)
            derivatives: tuple[Tensor | None, ...] = ()
            if outputs and values.requires_grad:
                derivatives = torch.autograd.grad(values.sum(), outputs, allow_unused=True)
        gradients = [gradient for gradient in derivatives if gradient is not None]
        if not gradients:
            raise LossError(
                "the losses do not depend on the outputs of the model: "
                "compute them as losses(model, batch) from model(...), or score with Fresh()"
            )
        squares = torch.zeros(count, device=gradients[0].device, dtype=torch.float32)
        for gradient in gradients:
            if gradient.ndim == 0 or len(gradient) != count:
                raise LossError(
                    f"the model's outputs have shape {list(gradient.shape)} and the batch "
                    f"{count} examples: give a model whose outputs have one row per example"
                )
            squares += gradient.float().square().reshape(count, -1).sum(1)
        return squares.sqrt()


class WatchedModel:
    """A model that is called without gradients, and returns outputs that require gradients.

    Args:
        model: The model.
        call: Computes its outputs.
        leaf: Replaces each tensor of the outputs.
    """

    def __init__(
        self, model: nn.Module, call: Callable[..., Any], leaf: Callable[[Tensor], Tensor]
    ) -> None:
        self._model, self._call, self._leaf = model, call, leaf
        self.get_base_model = lambda: model  # as of an adapter, to read what kind of model it is

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Returns the outputs, as leaves of a graph."""
        with torch.no_grad():
            return tree.map_outputs(self._leaf, self._call(*arguments, **named))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)
