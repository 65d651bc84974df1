"""The base class of scorers."""

from typing import Any

from torch import Tensor, nn

from siftback.losses.per_example import Losses


class Scorer:
    """Computes one score per example; the base class of all scorers, and of your own.

    A loader calls `score` with each selection batch, and `after_step` once training is done with
    a batch. The scorer's state is part of the loader's.

    >>> import torch
    >>> class Length(Scorer):
    ...     def score(self, losses, model, batch, indices):
    ...         return (batch["tokens"] != 0).sum(1).float()
    >>> Length().score(None, None, {"tokens": torch.tensor([[3, 5, 0], [4, 0, 0]])}, None)
    tensor([2., 1.])
    """

    def score(self, losses: Losses, model: nn.Module, batch: Any, indices: Tensor | None) -> Tensor:
        """Computes one score per example, higher for those more worth training on.

        Args:
            losses: ``losses(model, batch) -> Tensor[N]``, those of training.
            model: The model that is trained; read only.
            batch: A nested batch of N examples on the model's device.
            indices: int64[N], the examples' dataset indices, on the CPU; None if the loader does
                not know them.

        Returns:
            float32[N], detached.
        """
        raise NotImplementedError

    def after_step(self, losses: Losses, model: nn.Module, batch: Any) -> None:
        """Follows a training step, such as by refreshing a copy of the model.

        Args:
            losses: As for `score`.
            model: The model, with its weights after the step.
            batch: The batch that was trained on.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that later scores depend on, besides the model; for ``torch.save``."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another scorer's state."""
