"""What a selector is, and what it gives."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class Selection(NamedTuple):
    """The examples of a batch to train on.

    Attributes:
        positions: int64[k], where in the batch they are, ascending.
        weights: float32[k], the factor of each one's loss.
    """

    positions: Tensor
    weights: Tensor


class Selector(Protocol):
    """Turns scores into a selection; holds no reference to data or model.

    Two more methods are optional. ``probabilities(scores)`` gives float32[N], each example's
    probability of being kept by a ``select`` without a count; what moves on in ``select``, such as
    a history, moves on in it too. `Unbiased` needs it. ``set_keep(keep)`` changes the share from
    the next batch on; a `Schedule` that anneals needs it. That share is set by whoever anneals,
    for each batch, and is not a part of the selector's state.

    Attributes:
        needs_scores: Whether ``select`` looks at the scores. Where it does not, no selection
            pass is made and the scores are all zero.
        reweights: Whether it gives weights other than 1, which training must then apply.
        keep: Share of the examples that it aims to keep.
    """

    needs_scores: bool
    reweights: bool
    keep: float

    def select(
        self, scores: Tensor, generator: torch.Generator, count: int | None = None
    ) -> Selection:
        """Chooses among the examples of a batch.

        Args:
            scores: float32[N], finite; for the selectors here, losses.
            generator: The source of randomness; on the CPU, so that a seed means the same
                examples on every device.
            count: Exactly how many to choose, 1 <= count <= N, without waiting for the device;
                None leaves the number to the selector.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """What ``select`` will depend on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another selector's state."""
        ...
