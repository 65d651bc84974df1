"""Scores for pruning that are gathered while models train: forgetting events and margins.

As with all scores for pruning, higher means harder.
"""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import checked_integer
from siftback.errors import BatchError, StateError


class Forgetting:
    """Counts how often an example that was right turns wrong.

    With acc_t = 1 where the example is right when it is looked at for the t-th time,

        events = #{t : acc_t > acc_(t+1)}.

    An example that was never right was never learnt. Toneva et al. count infinitely many events
    for it; here it has as many as it was looked at, which is more than any learnt example can
    have, and keeps means over several models finite.

    Toneva et al. 2019, *An Empirical Study of Example Forgetting during Deep Neural Network
    Learning*.

    Args:
        examples: N, how many the data set has.

    Raises:
        ConfigError: If that is not an integer of at least 1.

    >>> forgetting = Forgetting(3)
    >>> for correct in ([True, True, False], [True, False, False], [True, True, False]):
    ...     forgetting.update(torch.arange(3), torch.tensor(correct))
    >>> forgetting.scores()  # the third was never right
    tensor([0., 1., 3.])
    """

    def __init__(self, examples: int) -> None:
        examples = checked_integer("examples", examples, 1)
        self._seen = torch.zeros(examples, dtype=torch.int64)
        self._events = torch.zeros(examples, dtype=torch.int64)
        self._last = torch.zeros(examples, dtype=torch.bool)  # whether right when last looked at
        self._learnt = torch.zeros(examples, dtype=torch.bool)

    def update(self, indices: Tensor, correct: Tensor) -> None:
        """Takes one look at some examples, such as those of a training batch.

        Args:
            indices: int64[n], their indices, distinct.
            correct: bool[n], whether the model is right about each.

        Raises:
            BatchError: If shapes, types or indices do not fit.
        """
        indices = _checked(indices, len(self._seen))
        if correct.shape != indices.shape or correct.dtype != torch.bool:
            raise BatchError(
                f"correct is {correct.dtype} of shape {list(correct.shape)}: give one bool for "
                f"each of the {len(indices)} indices, such as logits.argmax(1) == labels"
            )
        correct = correct.cpu()
        self._events[indices] += self._last[indices] & ~correct
        self._last[indices] = correct
        self._learnt[indices] |= correct
        self._seen[indices] += 1

    def scores(self) -> Tensor:
        """float32[N], forgetting events, or how often it was looked at where never learnt.

        Raises:
            StateError: If some examples were never looked at.
        """
        _check_seen(self._seen)
        return torch.where(self._learnt, self._events, self._seen).float()

    def state_dict(self) -> dict[str, Any]:
        """What was gathered so far."""
        parts = {"seen": self._seen, "events": self._events, "last": self._last}
        return {name: part.clone() for name, part in (parts | {"learnt": self._learnt}).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from what another recorder gathered.

        Raises:
            StateError: If it gathered another number of examples.
        """
        _check_state(state, len(self._seen))
        self._seen, self._events = state["seen"].clone(), state["events"].clone()
        self._last, self._learnt = state["last"].clone(), state["learnt"].clone()


class AUM:
    """Averages an example's margin over training (its area under the margin); negated, the score.

    With logits z_t(x) at the t-th of T looks at an example of label y,

        AUM(x, y) = 1/T sum_t [z_t(x)_y - max over i != y of z_t(x)_i],   score = -AUM.

    Mislabelled examples have the highest scores: the paper finds them so.

    Pleiss et al. 2020, *Identifying Mislabeled Data using the Area Under the Margin Ranking*.

    Args:
        examples: N, how many the data set has.

    Raises:
        ConfigError: If that is not an integer of at least 1.

    >>> aum = AUM(2)
    >>> labels = torch.tensor([0, 1])
    >>> aum.update(torch.arange(2), torch.tensor([[3.0, 1.0], [3.0, 1.0]]), labels)
    >>> aum.update(torch.arange(2), torch.tensor([[5.0, 1.0], [0.0, 1.0]]), labels)
    >>> aum.scores()
    tensor([-3.0000,  0.5000])
    """

    def __init__(self, examples: int) -> None:
        examples = checked_integer("examples", examples, 1)
        self._seen = torch.zeros(examples, dtype=torch.int64)
        self._sum = torch.zeros(examples, dtype=torch.float64)

    def update(self, indices: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Takes one look at some examples, such as those of a training batch.

        Args:
            indices: int64[n], their indices, distinct.
            logits: float[n, C], of at least two classes; no gradient is kept.
            labels: int64[n].

        Raises:
            BatchError: If shapes, types or indices do not fit.
        """
        indices = _checked(indices, len(self._seen))
        check_predictions(logits, labels, len(indices))
        margins = label_margins(logits.detach().float(), labels.to(logits.device))
        self._sum[indices] += margins.cpu().double()
        self._seen[indices] += 1

    def scores(self) -> Tensor:
        """float32[N], minus the mean margin.

        Raises:
            StateError: If some examples were never looked at.
        """
        _check_seen(self._seen)
        return (-self._sum / self._seen).float()

    def state_dict(self) -> dict[str, Any]:
        """What was gathered so far."""
        return {"seen": self._seen.clone(), "sum": self._sum.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from what another recorder gathered.

        Raises:
            StateError: If it gathered another number of examples.
        """
        _check_state(state, len(self._seen))
        self._seen, self._sum = state["seen"].clone(), state["sum"].clone()


def label_margins(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit of the label minus the largest of the others.

    Args:
        logits: float[N, C], C at least 2.
        labels: int64[N].

    >>> label_margins(torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]), torch.tensor([0, 2]))
    tensor([ 1., -1.])
    """
    own = labels.unsqueeze(1)
    others = logits.scatter(1, own, -torch.inf).amax(1)
    return logits.gather(1, own).squeeze(1) - others


def check_predictions(logits: Tensor, labels: Tensor, count: int) -> None:
    """Makes sure of one row of logits and one class per example.

    Raises:
        BatchError: If there is not.
    """
    if not logits.is_floating_point() or logits.ndim != 2 or len(logits) != count:
        raise BatchError(
            f"the logits are {logits.dtype} of shape {list(logits.shape)}: give floats, a row "
            f"for each of the {count} examples and a column for each class"
        )
    if logits.shape[1] < 2:
        raise BatchError("the logits are of one class: give a column for each of at least two")
    if labels.shape != (count,) or labels.dtype != torch.int64:
        raise BatchError(
            f"the labels are {labels.dtype} of shape {list(labels.shape)}: give the class of each "
            f"example, int64[{count}]"
        )
    if count and not (int(labels.min()) >= 0 and int(labels.max()) < logits.shape[1]):
        raise BatchError(
            f"the labels are from {int(labels.min())} to {int(labels.max())}, and the logits have "
            f"{logits.shape[1]} classes: give labels from 0 to {logits.shape[1] - 1}"
        )


def _checked(indices: Tensor, examples: int) -> Tensor:
    if indices.ndim != 1 or indices.dtype != torch.int64:
        raise BatchError(
            f"the indices are {indices.dtype} of shape {list(indices.shape)}: give int64[n]"
        )
    indices = indices.cpu()
    if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < examples):
        raise BatchError(
            f"the indices are from {int(indices.min())} to {int(indices.max())}: give those of "
            f"the data set, from 0 to {examples - 1}"
        )
    ordered = indices.sort().values
    if (ordered[1:] == ordered[:-1]).any():
        raise BatchError(
            "an index appears twice in one update: give each look an update of its own"
        )
    return indices


def _check_state(state: dict[str, Any], examples: int) -> None:
    if len(state["seen"]) != examples:
        raise StateError(
            f"a state of {len(state['seen'])} examples does not fit {examples}: resume with the "
            "data set that it was saved with"
        )


def _check_seen(seen: Tensor) -> None:
    missing = (seen == 0).nonzero().flatten()
    if len(missing):
        raise StateError(
            f"{len(missing)} of {len(seen)} examples were never looked at, the first is "
            f"{int(missing[0])}: update with each example at least once before asking for scores"
        )
