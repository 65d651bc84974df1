"""Examples that stay hard while the others are learnt: suspects of a wrong label, held back.

On top the rules, pure functions; below, the guard that holds what they are judged by.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from siftback.errors import ConfigError, StateError
from siftback.selectors import is_number

Rule = Literal["cap", "other", "trend", "start", "self"]


def above_quantile(losses: Tensor, remembered: Tensor, quantile: float) -> Tensor:
    """How far losses are above a quantile of all remembered ones: ``L - Q_q(remembered)``.

    Args:
        losses: float32[n].
        remembered: float32[N], the last loss of each example, NaN where there is none.
        quantile: q, in (0, 1).

    Returns:
        float32[n], above 0 for what is suspicious.

    >>> above_quantile(torch.tensor([1.0, 4.0]), torch.tensor([0.0, 1.0, 2.0, torch.nan]), 0.5)
    tensor([0., 3.])
    """
    return losses - remembered.nanquantile(quantile)


def confident_other(probabilities: Tensor, labels: Tensor, thresholds: Tensor) -> Tensor:
    """How far the model is confident of another class, as confident learning has it.

    With t_j the mean probability of class j over the examples labelled j, an example of label y is
    counted off the diagonal of the confident joint where some other class has ``p_j >= t_j``, and
    its own has not (Northcutt et al. 2021, *Confident Learning*, section 3.1)::

        min(max over j != y of (p_j - t_j), t_y - p_y)

    Args:
        probabilities: float32[n, C].
        labels: int64[n].
        thresholds: float32[C].

    Returns:
        float32[n], above 0 for what is suspicious.

    >>> p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.5, 0.5]])
    >>> confident_other(p, torch.tensor([0, 1, 1]), torch.tensor([0.8, 0.7]))
    tensor([-0.6000,  0.1000, -0.3000])
    """
    own = labels.unsqueeze(1)
    margins = probabilities - thresholds
    others = margins.scatter(1, own, -torch.inf).amax(1)
    return torch.minimum(others, -margins.gather(1, own).squeeze(1))


def not_falling(losses: Tensor, earlier: Tensor, mean: float) -> Tensor:
    """How far losses are above the mean of the example's earlier ones, and above everyone's.

    ::

        min(L(t) - mean of L(1), ..., L(t - 1), L(t) - mean over all examples)

    Args:
        losses: float32[n].
        earlier: float32[n], the mean of each example's earlier losses; infinite where none.
        mean: That of the last losses of all examples.

    Returns:
        float32[n], above 0 for what is suspicious.

    >>> not_falling(torch.tensor([2.0, 2.0]), torch.tensor([1.5, 3.0]), 1.0)
    tensor([ 0.5000, -1.0000])
    """
    return torch.minimum(losses - earlier, losses - mean)


def above_start(losses: Tensor, start: float) -> Tensor:
    """How far losses are above the mean loss of the model before it was trained.

    A cross-entropy above that, log C in the mean, gives the label less than a guess would. Where
    labels are flipped uniformly with a chance e below (C - 1)/C, the loss of a flipped one under
    the best model of the noisy labels is ``log((C - 1)/e)``, above log C.

    Args:
        losses: float32[n].
        start: The mean loss when training began.

    Returns:
        float32[n], above 0 for what is suspicious.

    >>> above_start(torch.tensor([0.5, 3.0]), start=2.5)
    tensor([-2.0000,  0.5000])
    """
    return losses - start


def below_confidence(losses: Tensor, remembered: Tensor) -> Tensor:
    """How far the probability of a label is below what the model's confidence lets expect.

    With ``p = exp(-L)`` and t the mean of it over all examples: ``t (1 - t) - p``.

    Args:
        losses: float32[n].
        remembered: float32[N], the last loss of each example, NaN where there is none.

    Returns:
        float32[n], above 0 for what is suspicious.

    >>> below_confidence(torch.tensor([0.1, 3.0]), torch.tensor([0.6931, 0.6931, torch.nan]))
    tensor([-0.6548,  0.2002])
    """
    confidence = float((-remembered).exp().nanmean())
    return confidence * (1 - confidence) - (-losses).exp()


class NoiseGuard:
    """Holds back examples whose loss stays high while the others are learnt.

    Args:
        cap: The most that a suspect's chance of being kept may be, in [0, 1].
        visits: m, for how many visits on end an example must be suspicious.
        rule: By what.
        quantile: Of the rule "cap".

    Raises:
        ConfigError: Where an argument is out of its range.

    >>> guard = NoiseGuard(visits=2, rule="start")
    >>> everyone = torch.arange(4)
    >>> for losses in ([2.0, 2.0, 2.0, 2.4], [0.5, 0.1, 3.0, 2.2], [0.2, 2.5, 4.0, 0.1]):
    ...     guard.observe(everyone, torch.tensor(losses))
    >>> guard.suspects
    tensor([2])
    """

    def __init__(
        self, cap: float = 0.05, visits: int = 3, rule: Rule = "self", quantile: float = 0.9
    ) -> None:
        if not is_number(cap) or not 0 <= cap <= 1:
            raise ConfigError(f"cap={cap!r}: give the highest chance of a suspect, in [0, 1]")
        if not isinstance(visits, int) or isinstance(visits, bool) or visits < 1:
            raise ConfigError(f"visits={visits!r}: give a whole number, at least 1")
        self.cap, self.visits, self.rule, self.quantile = float(cap), visits, rule, quantile
        self._start: float | None = None
        self._excess = torch.zeros(0, visits)  # of the last visits, the oldest first
        self._last = torch.zeros(0)
        self._sum, self._count = torch.zeros(0), torch.zeros(0)
        self._own: Tensor = torch.zeros(0)  # probability of the label
        self._labels = torch.zeros(0, dtype=torch.int64)
        self._seen: tuple[Tensor, Tensor] | None = None

    def predicted(self, probabilities: Tensor, labels: Tensor) -> None:
        """Told of what is observed next, for the rule "other"."""
        self._seen = probabilities.float().cpu(), labels.cpu()

    def observe(self, indices: Tensor, losses: Tensor) -> None:
        """Takes the losses of some examples: int64[n], float[n]."""
        losses = losses.detach().float().cpu().nan_to_num(nan=torch.inf, posinf=torch.inf)
        if not len(losses):
            return
        self.grow(int(indices.max()) + 1)
        if self._start is None:
            self._start = float(losses.mean())
        if self.rule == "cap":
            self._last[indices] = losses
            excess = above_quantile(losses, self._last, self.quantile)
        elif self.rule == "trend":
            self._last[indices] = losses
            earlier = torch.where(
                self._count[indices] > 0, self._sum[indices] / self._count[indices], torch.inf
            )
            excess = not_falling(losses, earlier, float(self._last.nanmean()))
            self._sum[indices] += losses
            self._count[indices] += 1
        elif self.rule == "other":
            assert self._seen is not None
            probabilities, labels = self._seen
            self._own[indices] = probabilities.gather(1, labels.unsqueeze(1)).squeeze(1)
            self._labels[indices] = labels
            known = ~self._own.isnan()
            classes = probabilities.shape[1]
            totals = torch.zeros(classes).index_add(0, self._labels[known], self._own[known])
            counts = self._labels[known].bincount(minlength=classes).clamp(min=1)
            excess = confident_other(probabilities, labels, totals / counts)
        elif self.rule == "self":
            self._last[indices] = losses
            excess = below_confidence(losses, self._last)
        else:
            excess = above_start(losses, self._start)
        window = self._excess[indices]
        self._excess[indices] = torch.cat((window[:, 1:], excess.unsqueeze(1)), 1)

    def grow(self, examples: int) -> None:
        """Makes room for so many examples."""
        more = examples - len(self._excess)
        if more <= 0:
            return

        def longer(values: Tensor, fill: float) -> Tensor:
            return torch.cat((values, values.new_full((more, *values.shape[1:]), fill)))

        self._excess = longer(self._excess, -torch.inf)
        self._last, self._own = longer(self._last, torch.nan), longer(self._own, torch.nan)
        self._sum, self._count = longer(self._sum, 0), longer(self._count, 0)
        self._labels = longer(self._labels, 0)

    @property
    def scores(self) -> Tensor:
        """float32[N], the least excess of the last visits: above 0 for suspects."""
        return self._excess.amin(1)

    @property
    def suspects(self) -> Tensor:
        """int64[n], the suspects as things are, ascending."""
        return (self.scores > 0).nonzero().squeeze(1)

    def suspected(self, indices: Tensor) -> Tensor:
        """bool[n], which of some examples are suspects: int64[n]."""
        return self._excess[indices].amin(1) > 0

    def let_in(self, count: int, keep: float, generator: torch.Generator) -> Tensor:
        """bool[count], which of so many suspects are kept: each with chance ``min(cap, keep)``."""
        return torch.rand(count, generator=generator) < min(self.cap, keep)

    def state_dict(self) -> dict[str, Any]:
        """What was seen of each example."""
        return {"start": self._start, "excess": self._excess.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state."""
        if state["excess"].shape[1] != self.visits:
            raise StateError(
                f"a state over {state['excess'].shape[1]} visits, and this guard is of "
                f"{self.visits}: build it with the same visits"
            )
        self._start, self._excess = state["start"], state["excess"].clone()
