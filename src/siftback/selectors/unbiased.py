"""Any selector's probabilities, with weights that make training unbiased."""

from typing import Any

from torch import Generator, Tensor

from siftback.arguments import check_flag, check_object, check_share, format_value, is_number
from siftback.errors import ConfigError
from siftback.selectors.sampling import choose, inclusion_probabilities
from siftback.selectors.selection import Selection, Selector, check_call, check_scores
from siftback.state import Stateful


class Unbiased(Stateful):
    """Another selector's probabilities, with weights 1/p that keep the expected loss unbiased.

    With p the inner selector's probability, an example is kept with probability
    ``q = f + (1 - f) p``, f the floor, independently of the others, and has the weight ``s / q``,
    with ``s = f + (1 - f) keep`` the share kept on average (Horvitz & Thompson 1952)::

        E[sum over the kept of w_i L_i] = s * sum over all of L_i

    so that, divided by the s N examples kept on average, the expectation is the mean of all N, and
    steps keep their size. The variance of that sum is ``s^2 * sum of L_i^2 (1 - q_i) / q_i``; the
    floor bounds it, as no weight is above ``s / f``.

    Self-normalised (Hájek 1971), the weights of a selection are scaled to a mean of 1. This
    removes the variance of the number kept, and adds a bias of order 1/k.

    With ``count=k``, probabilities are scaled to sum to k, and the weights are ``k / (N q)``.

    Args:
        selector: The inner selector; it must have a method ``probabilities``. Its own weights are
            not used.
        floor: f, the minimum probability of an example, in [0, 1). With 0, examples that the
            selector never keeps are missing, which biases training.
        self_normalised: Whether the weights of a selection are scaled to a mean of 1.

    Raises:
        ConfigError: If the selector has no ``probabilities``, or the floor is out of range.

    >>> from siftback import Percentile, TopK
    >>> import torch
    >>> scores, generator = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.Generator().manual_seed(2)
    >>> Unbiased(Percentile(keep=0.5), floor=0.2).select(scores, generator)
    Selection(positions=tensor([1, 2, 3]), weights=tensor([1.2000, 0.8571, 0.6667]))
    >>> Unbiased(TopK(keep=0.5), floor=0.25).probabilities(scores)
    tensor([0.2500, 0.2500, 1.0000, 1.0000])
    """

    reweights = True

    def __init__(
        self, selector: Selector, *, floor: float = 0.1, self_normalised: bool = False
    ) -> None:
        if not hasattr(selector, "probabilities"):
            raise ConfigError(
                f"{type(selector).__name__} has no method probabilities(scores), of which weights "
                "are computed: give a selector that has one, such as Percentile or InBatchRank"
            )
        needed = ("select", "needs_scores", "keep", "state_dict", "load_state_dict")
        self.selector: Any = check_object("selector", selector, "TopK(keep=0.5)", *needed)
        self.floor = check_share("floor", floor)
        self.self_normalised = check_flag("self_normalised", self_normalised)

    @property
    def needs_scores(self) -> bool:
        """Whether the inner selector uses scores."""
        return bool(self.selector.needs_scores)

    @property
    def keep(self) -> float:
        """Share kept on average: ``floor + (1 - floor)`` times the inner selector's."""
        return self.floor + (1 - self.floor) * float(self.selector.keep)

    def set_keep(self, keep: float) -> None:
        """Changes the share to keep, in (floor, 1], and the inner selector's accordingly.

        Raises:
            ConfigError: If it is out of range, or the inner selector's cannot be changed.
        """
        if not is_number(keep) or not self.floor < keep <= 1:
            raise ConfigError(
                f"keep={format_value(keep)}: give a share in ({self.floor}, 1], above the floor"
            )
        if not hasattr(self.selector, "set_keep"):
            raise ConfigError(
                f"{type(self.selector).__name__} has no share to change: give one with set_keep"
            )
        self.selector.set_keep((keep - self.floor) / (1 - self.floor))

    def probabilities(self, scores: Tensor) -> Tensor:
        """Returns float32[N], ``floor + (1 - floor) p``; updates the inner selector's state."""
        check_scores(scores)
        probabilities: Tensor = self.selector.probabilities(scores)
        return self.floor + (1 - self.floor) * probabilities

    def select(self, scores: Tensor, generator: Generator, count: int | None = None) -> Selection:
        """See `Selector.select`."""
        check_call(scores, generator, count)
        probabilities, share = self.probabilities(scores), self.keep
        if count is not None:
            probabilities = inclusion_probabilities(probabilities, count)
            share = count / len(scores)
        positions, _ = choose(probabilities, generator, count)
        weights = share / probabilities[positions]
        if self.self_normalised:
            weights = weights * (len(weights) / weights.sum())
        return Selection(positions, weights.float())

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        arguments = {"floor": self.floor, "self_normalised": self.self_normalised}
        return {"selector": type(self).__name__, "inner": type(self.selector).__name__, **arguments}

    def members(self) -> dict[str, Any]:
        """See `Stateful.members`."""
        return {"selector": self.selector}
