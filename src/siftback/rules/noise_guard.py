"""Examples whose labels stay doubtful while others are learnt: suspects, held back."""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import checked_integer, checked_share
from siftback.errors import ConfigError, StateError

_MOST = 255  # that a streak is counted to


def label_doubt(losses: Tensor, confidence: float) -> Tensor:
    """How far the probability of a label is below what the model's confidence suggests.

    With ``p = exp(-L)``, the probability that the model gives an example's label where L is its
    cross-entropy, and t the confidence, the mean of p over all examples, this is::

        t (1 - t) - p

    Above 0 the label is doubtful: ``p / t < 1 - t``, its share of the usual confidence is less than
    the usual doubt. A model that guesses among C classes has t = 1/C and p = 1/C, and doubts
    nothing; one that is right about all labels, t near 1, doubts only what it nearly rules out.

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

    A part of a rule, ``Memory(guard=NoiseGuard())``. Choosing high losses prefers wrong labels;
    this prevents it. An example is a suspect while its label was doubtful (`label_doubt`) in each
    of its last m visits; a visit is a step of training on it. Losses should be cross-entropies.

    Suspects are taken out of what the rule ranks and draws from. Of S suspects exactly
    ``round(min(cap, keep) * S)`` are admitted, ``keep`` the share that the rule keeps, each with
    the same probability and with weight 1. One that is learnt after all is no longer a suspect.

    Args:
        cap: The largest share of the suspects to admit, in [0, 1]. With 0, a suspect is never
            trained on, and so stays one.
        visits: m, in how many successive visits a label must be doubtful, from 1 to 255. Memory
            used: 5 bytes per example.

    Attributes:
        losses: float32[N], the last loss of each example there is room for; NaN where there was
            none.
        held_back: How often an example was held back, over all draws.

    Raises:
        ConfigError: If an argument is out of its range.

    >>> guard = NoiseGuard(visits=2)
    >>> everyone = torch.arange(4)
    >>> for losses in ([1.4, 1.4, 1.4, 1.4], [0.5, 0.7, 0.6, 3.0], [0.2, 2.5, 0.9, 4.0]):
    ...     guard.observe(everyone, torch.tensor(losses))
    >>> guard.suspects, round(guard.confidence, 4)
    (tensor([3]), 0.3314)
    """

    def __init__(self, cap: float = 0.05, visits: int = 3) -> None:
        self.cap = checked_share("cap", cap, most=True)
        self.visits = checked_integer("visits", visits, 1)
        if self.visits > _MOST:
            raise ConfigError(f"visits={visits!r}: give an integer from 1 to {_MOST}")
        self.held_back = 0
        self.losses = torch.zeros(0)
        self._streaks = torch.zeros(0, dtype=torch.uint8)  # of visits with doubt
        self._sum, self._seen = 0.0, 0  # of the labels' last probabilities, and how many there are

    @property
    def confidence(self) -> float:
        """The mean probability of the labels, each as it was last seen; 0 before any was."""
        return self._sum / max(self._seen, 1)

    @property
    def suspects(self) -> Tensor:
        """int64[n], the present suspects, ascending."""
        return (self._streaks >= self.visits).nonzero().squeeze(1)

    def suspected(self, indices: Tensor) -> Tensor:
        """bool[n], whether each of some examples is a suspect: int64[n]."""
        return self._streaks[indices] >= self.visits

    def observe(self, indices: Tensor, losses: Tensor) -> None:
        """Learns the losses of a visit.

        Args:
            indices: int64[n], distinct examples, on the CPU.
            losses: float[n], their losses; one that is not finite counts as infinite.
        """
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

    def admit(
        self,
        count: int,
        keep: float,
        generator: torch.Generator,
        *,
        least: int = 0,
        most: int | None = None,
    ) -> Tensor:
        """Draws the suspects that are admitted, and counts the others as held back.

        Args:
            count: S, how many suspects there are.
            keep: The share that the rule keeps.
            generator: On the CPU.
            least: How many to admit at least, where the other examples do not suffice.
            most: How many to admit at most; None is no limit.

        Returns:
            bool[count], exactly ``round(min(cap, keep) * count)`` of them True, within the limits.

        >>> guard = NoiseGuard(cap=0.25)
        >>> guard.admit(8, 0.5, torch.Generator().manual_seed(0)).sum(), guard.held_back
        (tensor(2), 6)
        """
        number = max(round(min(self.cap, keep) * count), least)
        number = min(number, count if most is None else most, count)
        admitted = torch.zeros(count, dtype=torch.bool)
        admitted[torch.randperm(count, generator=generator)[:number]] = True
        self.held_back += count - number
        return admitted

    def settings(self) -> dict[str, Any]:
        """The arguments, by name, that a state must have been saved with to fit."""
        return {"cap": self.cap, "visits": self.visits}

    def state_dict(self) -> dict[str, Any]:
        """The last loss of each example, how long each label was doubtful, and the counts."""
        return {
            "settings": self.settings(),
            "losses": self.losses.clone(),
            "streaks": self._streaks.clone(),
            "sum": self._sum,
            "seen": self._seen,
            "held_back": self.held_back,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another's state.

        Raises:
            StateError: If that one had another cap or number of visits.
        """
        if state["settings"] != self.settings():
            theirs, own = _described(state["settings"]), _described(self.settings())
            raise StateError(
                f"the state is of a {theirs}, and this is a {own}: make it with the same arguments"
            )
        self.losses, self._streaks = state["losses"].clone(), state["streaks"].clone()
        self._sum, self._seen = state["sum"], state["seen"]
        self.held_back = state["held_back"]


def _described(settings: dict[str, Any]) -> str:
    return f"NoiseGuard({', '.join(f'{name}={value!r}' for name, value in settings.items())})"
