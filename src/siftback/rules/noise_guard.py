"""Examples whose labels stay doubtful while others are learnt: suspects, held back."""

from typing import Any

import torch
from torch import Tensor

from siftback.errors import ConfigError, StateError
from siftback.selectors.percentile import is_number

_MOST = 255  # that a streak is counted to


def label_doubt(losses: Tensor, confidence: float) -> Tensor:
    """How far the probability of a label is below what the model's confidence lets expect.

    With ``p = exp(-L)``, the probability that the model gives an example's label where L is its
    cross-entropy, and t the confidence, the mean of p over all examples::

        t (1 - t) - p

    Above 0 the label is doubtful: ``p / t < 1 - t``, its share of the usual confidence is less than
    the usual doubt. A model that guesses among C classes has t = 1/C and p = 1/C, and doubts
    nothing; one that is right about all labels, t near 1, doubts only what it all but excludes.

    The mean t is the self-confidence that confident learning compares with, over all classes at
    once (Northcutt et al. 2021, *Confident Learning*, section 3.1), which also asks that another
    class be likely; the factor 1 - t stands for that, and is this project's own. So losses suffice.

    Args:
        losses: float32[n].
        confidence: t, in [0, 1].

    Returns:
        float32[n], above 0 where the label is doubtful.

    >>> label_doubt(torch.tensor([0.1, 1.0, 3.0]), confidence=0.5)
    tensor([-0.6548, -0.1179,  0.2002])
    """
    return confidence * (1 - confidence) - (-losses).exp()


class NoiseGuard:
    """Holds back examples whose labels stay doubtful while others are learnt.

    An argument of the loader, ``guard=NoiseGuard()``, over an `Indexed` data set. Selection by
    high losses prefers wrong labels; this keeps them from it. An example is a suspect while its
    label was doubtful (`label_doubt`) in each of its last m visits. A visit is a selection pass
    over it, whether it is selected or not; with a scorer that makes none, such as `Memory`, a step
    of training on it, whose losses the loop tells. Losses should be cross-entropies.

    Suspects are taken out of what the selector chooses from, and so out of its history: the share
    that it keeps is one of the others. A suspect is kept with chance ``min(cap, keep)`` and weight
    1, ``keep`` the selector's. One that is learnt after all is selected as the others are.

    ``loader.stats.capped`` counts how often an example was held back so, and `suspects` tells who
    is. In several processes, each one's guard knows what its own process saw.

    Args:
        cap: The highest chance of a suspect to be kept, in [0, 1]. With 0, a scorer that makes no
            passes never looks at a suspect again.
        visits: m, in how many visits on end a label must be doubtful, from 1 to 255. The memory
            taken is 5 bytes an example.

    Attributes:
        losses: float32[N], the last loss of each example there is room for; NaN where there was
            none.

    Raises:
        ConfigError: Where an argument is out of its range.

    >>> guard = NoiseGuard(visits=2)
    >>> everyone = torch.arange(4)
    >>> for losses in ([1.4, 1.4, 1.4, 1.4], [0.5, 0.7, 0.6, 3.0], [0.2, 2.5, 0.9, 4.0]):
    ...     guard.observe(everyone, torch.tensor(losses))
    >>> guard.suspects, round(guard.confidence, 4)
    (tensor([3]), 0.3314)
    """

    def __init__(self, cap: float = 0.05, visits: int = 3) -> None:
        if not is_number(cap) or not 0 <= cap <= 1:
            raise ConfigError(f"cap={cap!r}: give the highest chance of a suspect, in [0, 1]")
        if not isinstance(visits, int) or isinstance(visits, bool) or not 1 <= visits <= _MOST:
            raise ConfigError(f"visits={visits!r}: give a whole number from 1 to {_MOST}")
        self.cap, self.visits = float(cap), visits
        self.losses = torch.zeros(0)
        self._streaks = torch.zeros(0, dtype=torch.uint8)  # of visits with doubt
        self._sum, self._seen = 0.0, 0  # of the labels' last probabilities, and how many there are

    @property
    def confidence(self) -> float:
        """The mean probability of the labels, each as it was last seen; 0 before any was."""
        return self._sum / max(self._seen, 1)

    @property
    def suspects(self) -> Tensor:
        """int64[n], the suspects as things are, ascending."""
        return (self._streaks >= self.visits).nonzero().squeeze(1)

    def suspected(self, indices: Tensor) -> Tensor:
        """bool[n], which of some examples are suspects: int64[n]."""
        return self._streaks[indices] >= self.visits

    def observe(self, indices: Tensor, losses: Tensor) -> None:
        """Takes what some examples' losses are now: int64[n], distinct, and float[n]."""
        losses = losses.detach().float().cpu().nan_to_num(nan=torch.inf, posinf=torch.inf)
        if len(indices):
            self.grow(int(indices.max()) + 1)
        before = self.losses[indices]
        known = before[~before.isnan()]
        # Kept as a sum, as a mean over all examples at each batch would take longer than the rest.
        self._sum += float((-losses).exp().double().sum() - (-known).exp().double().sum())
        self._seen += len(indices) - len(known)
        self.losses[indices] = losses
        doubtful = label_doubt(losses, self.confidence) > 0
        longer = self._streaks[indices].clamp(max=_MOST - 1) + 1
        self._streaks[indices] = torch.where(doubtful, longer, 0)

    def grow(self, examples: int) -> None:
        """Makes room for so many examples."""
        more = examples - len(self.losses)
        if more > 0:
            self.losses = torch.cat((self.losses, torch.full((more,), torch.nan)))
            self._streaks = torch.cat((self._streaks, torch.zeros(more, dtype=torch.uint8)))

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
        """The last loss of each example, how long each label was doubtful, and the confidence."""
        return {
            "visits": self.visits,
            "losses": self.losses.clone(),
            "streaks": self._streaks.clone(),
            "sum": self._sum,
            "seen": self._seen,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state.

        Raises:
            StateError: Where that one asked for another number of visits.
        """
        if state["visits"] != self.visits:
            raise StateError(
                f"the state is of a NoiseGuard(visits={state['visits']}), and this one has "
                f"visits={self.visits}: build it with the same"
            )
        self.losses, self._streaks = state["losses"].clone(), state["streaks"].clone()
        self._sum, self._seen = state["sum"], state["seen"]
