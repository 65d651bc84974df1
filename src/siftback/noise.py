"""Examples that are not learnt while the others are: suspects of a wrong label, held back."""

from typing import Any

import torch
from torch import Tensor

from siftback.errors import ConfigError, StateError
from siftback.selectors import is_number


def least_above_start(losses: Tensor, start: float) -> Tensor:
    """How far an example's last losses all are above the loss that training began with.

    ::

        min of the last m losses - start

    ``start`` is the mean loss of the model before its first step. For a classifier that knows
    nothing it is about ``log C``, C the number of classes, so that above 0 the label was given less
    than a guess would give it, m times on end. Where a share e of the labels is wrong, uniformly
    over the other classes, the best model of such labels gives a wrong one the probability
    ``e / (C - 1)``: its loss is above ``log C`` for any e below ``(C - 1) / C``.

    The rule is this project's own. That wrong labels keep a high loss while others are learnt is
    known from Arpit et al. 2017, *A Closer Look at Memorization in Deep Networks*.

    Args:
        losses: float32[N, m], the last losses of each example; minus infinity where there were
            fewer.
        start: The mean loss that training began with.

    Returns:
        float32[N], above 0 for suspects.

    >>> losses = torch.tensor([[3.0, 2.5], [3.0, 0.1], [-torch.inf, 3.0]])
    >>> least_above_start(losses, start=2.25)
    tensor([ 0.2500, -2.1500,    -inf])
    """
    return losses.amin(1) - start


class NoiseGuard:
    """Holds back examples whose loss stays where training began while the others are learnt.

    An argument of the loader, ``guard=NoiseGuard()``, over an `Indexed` data set. Selection by
    high losses prefers wrong labels; this keeps them from it. An example is a suspect while each of
    its last m losses is above the mean loss that training began with (`least_above_start`). The
    losses are those of selection passes, also of passes that are not selected from; of a scorer
    that makes none, such as `Memory`, those that training tells.

    Suspects are taken out of what the selector chooses from, and so out of its history: the share
    that it keeps is one of the others. A suspect is kept with chance ``min(cap, keep)`` and weight
    1, ``keep`` the selector's. One whose loss falls is selected as others are again.

    ``loader.stats.capped`` counts how often an example was held back so, and `suspects` tells who
    is. Where training begins with a model that is not new, its first losses say little of a guess:
    give ``start``, such as ``math.log(classes)``. In several processes, each one's guard knows what
    its own process saw.

    Args:
        cap: The highest chance of a suspect to be kept, in [0, 1]. With 0 a scorer that makes no
            passes never looks at a suspect again.
        visits: m, after how many losses on end an example is a suspect. The memory taken is 4 m
            bytes an example.
        start: What losses must be above; by default the mean of the first batch's, as far as
            they are finite.

    Raises:
        ConfigError: Where an argument is out of its range.

    >>> guard = NoiseGuard(visits=2)
    >>> everyone = torch.arange(4)
    >>> for losses in ([2.0, 2.1, 2.2, 2.3], [0.5, 0.1, 1.5, 3.0], [0.2, 2.5, 0.9, 4.0]):
    ...     guard.observe(everyone, torch.tensor(losses))
    >>> guard.suspects
    tensor([3])
    """

    def __init__(self, cap: float = 0.05, visits: int = 3, start: float | None = None) -> None:
        if not is_number(cap) or not 0 <= cap <= 1:
            raise ConfigError(f"cap={cap!r}: give the highest chance of a suspect, in [0, 1]")
        if not isinstance(visits, int) or isinstance(visits, bool) or visits < 1:
            raise ConfigError(f"visits={visits!r}: give a whole number, at least 1")
        if start is not None and not is_number(start):
            raise ConfigError(f"start={start!r}: give the loss of a guess, such as log(classes)")
        self.cap, self.visits, self.start = float(cap), visits, start
        self._losses = torch.zeros(0, visits)  # the oldest first

    def observe(self, indices: Tensor, losses: Tensor) -> None:
        """Takes what some examples' losses are now: int64[n], distinct, and float[n]."""
        if not len(indices):
            return
        losses = losses.detach().float().cpu().nan_to_num(nan=torch.inf, posinf=torch.inf)
        finite = losses[losses.isfinite()]
        if self.start is None and len(finite):
            self.start = float(finite.mean())
        self.grow(int(indices.max()) + 1)
        before = self._losses[indices]
        self._losses[indices] = torch.cat((before[:, 1:], losses.unsqueeze(1)), 1)

    def grow(self, examples: int) -> None:
        """Makes room for so many examples."""
        more = examples - len(self._losses)
        if more > 0:
            room = self._losses.new_full((more, self.visits), -torch.inf)
            self._losses = torch.cat((self._losses, room))

    @property
    def scores(self) -> Tensor:
        """float32[N], by `least_above_start`, of the examples there is room for."""
        return least_above_start(self._losses, self.start or 0.0)

    @property
    def suspects(self) -> Tensor:
        """int64[n], the suspects as things are, ascending."""
        return (self.scores > 0).nonzero().squeeze(1)

    def suspected(self, indices: Tensor) -> Tensor:
        """bool[n], which of some examples are suspects: int64[n]."""
        return least_above_start(self._losses[indices], self.start or 0.0) > 0

    def let_in(self, count: int, keep: float, generator: torch.Generator) -> Tensor:
        """Chooses among suspects, each with chance ``min(cap, keep)``.

        Args:
            count: How many there are.
            keep: The share that the selector keeps.
            generator: Where chance comes from, on the CPU.

        Returns:
            bool[count], which are kept.
        """
        return torch.rand(count, generator=generator) < min(self.cap, keep)

    def state_dict(self) -> dict[str, Any]:
        """The last losses of each example, and what they must be above."""
        return {"losses": self._losses.clone(), "start": self.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state.

        Raises:
            StateError: Where that one looked at another number of visits.
        """
        visits = state["losses"].shape[1]
        if visits != self.visits:
            raise StateError(
                f"a guard's state over {visits} visits, and this guard is of {self.visits}: build "
                "it with the same visits"
            )
        self._losses, self.start = state["losses"].clone(), state["start"]
