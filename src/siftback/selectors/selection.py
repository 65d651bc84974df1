"""The `Selector` protocol, and the `Selection` that a selector returns."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class Selection(NamedTuple):
    """The examples of a batch to train on, or the tokens.

    Attributes:
        positions: int64[k], their positions in the batch, ascending; for tokens, in the flattened
            ``[B, T]``.
        weights: float32[k], the factor of each one's loss.

    >>> selection = Selection(torch.tensor([0, 4]), torch.tensor([1.0, 2.0]))
    >>> selection.mask((2, 3))
    tensor([[ True, False, False],
            [False,  True, False]])
    >>> selection.labels(torch.tensor([[5, 6, 7], [8, 9, -100]]))
    tensor([[   5, -100, -100],
            [-100,    9, -100]])
    >>> selection.dense_weights((2, 3))
    tensor([[1., 0., 0.],
            [0., 2., 0.]])
    """

    positions: Tensor
    weights: Tensor

    def mask(self, shape: Sequence[int]) -> Tensor:
        """bool[shape], where an example or token is kept; the shape is that of the losses."""
        return _filled(shape, False, self.positions, True, torch.bool)

    def labels(self, labels: Tensor, ignored: int = -100) -> Tensor:
        """A copy of labels of the losses' shape, with ``ignored`` where nothing is kept."""
        kept = labels.flatten()[self.positions.to(labels.device)]
        return _filled(labels.shape, ignored, self.positions.to(labels.device), kept, labels.dtype)

    def dense_weights(self, shape: Sequence[int]) -> Tensor:
        """float32[shape], the weights where an example or token is kept, else 0."""
        return _filled(shape, 0.0, self.positions, self.weights, torch.float32)


def _filled(
    shape: Sequence[int], rest: Any, positions: Tensor, values: Any, dtype: torch.dtype
) -> Tensor:
    dense = torch.full(tuple(shape), rest, dtype=dtype, device=positions.device)
    dense.view(-1)[positions] = values
    return dense


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
