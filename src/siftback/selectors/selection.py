"""The `Selector` protocol, and the `Selection` that a selector returns."""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class Selection(NamedTuple):
    """The examples of a batch to train on.

    Attributes:
        positions: int64[k], their positions in the batch, ascending.
        weights: float32[k], the factor of each example's loss.
    """

    positions: Tensor
    weights: Tensor


class Selector(Protocol):
    """Turns scores into a selection; holds no reference to data or model.

    Three more methods are optional. ``probabilities(scores)`` returns float32[N], each example's
    probability of being kept by a ``select`` without a count; it updates the same state as
    ``select`` does, such as a history. `Unbiased` needs it. ``set_keep(keep)`` changes the share
    from the next batch on; a `Schedule` with annealing calls it before each batch, and the share
    is not part of the selector's state. ``check_state(state)`` raises a `StateError` for a state
    that does not fit, before anything else that is saved with it is taken up.

    Attributes:
        needs_scores: Whether ``select`` uses the scores. If not, no selection pass is made and
            the scores are all zero.
        reweights: Whether it returns weights other than 1, which training must then apply.
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
            generator: Source of random numbers; on the CPU, so that a seed gives the same
                examples on every device.
            count: Exact number of examples to choose, 1 <= count <= N, without synchronizing
                with the device; None leaves the number to the selector.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """State that ``select`` depends on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another selector's state."""
        ...
