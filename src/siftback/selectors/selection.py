"""The `Selector` protocol, and the `Selection` that a selector returns."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Generator, Tensor

from siftback.arguments import format_value, is_integer
from siftback.errors import ConfigError, LossError
from siftback.state import seal
from siftback.tensor_arguments import is_dense


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
        """Returns bool[shape], True for selected examples or tokens; the shape is the losses'."""
        return fill_positions(shape, False, self.positions, True, torch.bool)

    def labels(self, labels: Tensor, ignored: int = -100) -> Tensor:
        """Returns a copy of labels of the losses' shape, ``ignored`` where not selected."""
        positions = self.positions.to(labels.device)
        selected = labels.flatten()[positions]
        return fill_positions(labels.shape, ignored, positions, selected, labels.dtype)

    def dense_weights(self, shape: Sequence[int]) -> Tensor:
        """Returns float32[shape], the weights of selected examples or tokens, else 0."""
        return fill_positions(shape, 0.0, self.positions, self.weights, torch.float32)


def fill_positions(
    shape: Sequence[int], default: Any, positions: Tensor, values: Any, dtype: torch.dtype
) -> Tensor:
    """Returns a tensor of a default value, and of other values at positions when flattened."""
    dense = torch.full(tuple(shape), default, dtype=dtype, device=positions.device)
    dense.view(-1)[positions] = values
    return dense


def unweighted(positions: Tensor) -> Selection:
    """Returns the selection of int64[k] positions, each with a weight of 1."""
    return Selection(positions, torch.ones_like(positions, dtype=torch.float32))


def check_scores(scores: Tensor) -> None:
    """Checks that scores can be selected by.

    Raises:
        LossError: If they are not one floating-point number for each of one or more examples.

    >>> check_scores(torch.zeros(0))
    Traceback (most recent call last):
    siftback.errors.LossError: scores=float32[0]: give one floating-point number for each example, \
float[N], N >= 1
    """
    fits = is_dense(scores) and scores.ndim == 1 and scores.is_floating_point() and len(scores)
    if not fits or scores.dtype.itemsize < 2:  # types of 8 bits have hardly an operation
        raise LossError(
            f"scores={format_value(scores)}: give one floating-point number for each example, "
            "float[N], N >= 1"
        )


def check_call(scores: Tensor, generator: Generator, count: int | None) -> None:
    """Checks what `Selector.select` is called with.

    Raises:
        LossError: As for `check_scores`; or if one is NaN, where looking at them costs nothing: on
            the CPU, without a count.
        ConfigError: If the generator is none of the CPU, or the count is not from 1 to N.
    """
    check_scores(scores)
    if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        raise ConfigError(f"generator={format_value(generator)}: give a torch.Generator of the CPU")
    if count is not None and not (is_integer(count) and 1 <= count <= len(scores)):
        raise ConfigError(f"count={format_value(count)}: give an integer from 1 to {len(scores)}")
    # An exact number is chosen without waiting for the device, and so without looking at scores.
    if count is None and scores.device.type == "cpu" and bool(scores.isnan().any()):
        raise LossError(
            f"scores: that of example {int(scores.isnan().nonzero()[0])} is nan: leave the example "
            "out, or give it a score"
        )


def check_untrained(*members: Any) -> None:
    """Checks that selectors and scorers are as they were before their first training.

    Args:
        members: Each has a state.

    Raises:
        ConfigError: If another training has changed the state of one, or its share.
    """
    for member in members:
        digest = seal({**member.state_dict(), "share": getattr(member, "keep", None)})["digest"]
        if getattr(member, "__dict__", {}).setdefault("_untrained", digest) != digest:
            name = type(member).__name__
            raise ConfigError(
                f"this {name} has what it learned in another training: give a new training a new "
                f"{name}(...); to go on with that one, load a state or call set_epoch(n)"
            )


class Selector(Protocol):
    """Turns scores into a selection; holds no reference to data or model.

    Three more methods are optional. ``probabilities(scores)`` returns float32[N], each example's
    probability of being kept by a ``select`` without a count; it updates the same state as
    ``select`` does, such as a history. `Unbiased` needs it. ``set_keep(keep)`` changes the share
    from the next batch on; a `Schedule` with annealing calls it before each batch, and the share
    is not part of the selector's state. ``check_state(state)`` raises a `StateError` for a state
    that does not fit, before anything else that is saved with it is loaded.

    Attributes:
        needs_scores: Whether ``select`` uses the scores. If not, no selection pass is made and
            the scores are all zero.
        reweights: Whether it returns weights other than 1, which training must then apply.
        keep: Share of the examples that it aims to keep.
    """

    needs_scores: bool
    reweights: bool
    keep: float

    def select(self, scores: Tensor, generator: Generator, count: int | None = None) -> Selection:
        """Chooses among the examples of a batch.

        Args:
            scores: float32[N], finite; for the selectors here, losses.
            generator: Source of random numbers; on the CPU, so that a seed gives the same
                examples on every device.
            count: Exact number of examples to choose, 1 <= count <= N, without synchronizing
                with the device; None leaves the number to the selector.

        Raises:
            LossError: If there is not one floating-point score per example, or none.
            ConfigError: If the generator is none, or the count is out of range.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that ``select`` depends on."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another selector's state."""
