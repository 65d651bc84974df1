"""Scores for pruning that are collected while models train: forgetting events and margins.

As with all scores for pruning, higher means harder.
"""

from typing import Any

import torch
from torch import Tensor

from siftback.arguments import check_integer
from siftback.errors import BatchError, StateError
from siftback.state import (
    MOST_EPOCHS,
    Check,
    Stateful,
    check_digest,
    check_entries,
    raise_damaged,
    seal,
    tensor,
)
from siftback.tensor_arguments import check_tensor, check_within


class Recorder(Stateful):
    """Records something of each example; its state holds the number of examples as a length."""

    def __init__(self, examples: int) -> None:
        examples = check_integer("examples", examples, 1)
        self._seen = torch.zeros(examples, dtype=torch.int64)  # updates of each example

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        return {"examples": len(self._seen)}

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        return {"_seen": tensor(torch.int64, len(self._seen), least=0, most=MOST_EPOCHS)}

    def state_dict(self) -> dict[str, Any]:
        """Returns the records so far."""
        state = super().state_dict()
        return seal({name: state[name] for name in state if name != "settings"})

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is of another number of examples, or damaged.
        """
        check_digest(self, state)
        check_entries(self, state, {"seen": tensor(torch.int64, None)})
        super().check_state({**state, "settings": {"examples": len(state["seen"])}})


class Forgetting(Recorder):
    """Counts how often an example changes from correctly to wrongly predicted.

    With acc_t = 1 if the example is predicted correctly at its t-th update, else 0,

        events = #{t : acc_t > acc_(t+1)}.

    An example that was never predicted correctly was never learnt. Toneva et al. count infinitely
    many events for it; here its score is its number of updates, which is more than any learnt
    example can have, and keeps means over several models finite.

    Toneva et al. 2019, *An Empirical Study of Example Forgetting during Deep Neural Network
    Learning*.

    Args:
        examples: N, the number of examples in the data set.

    Raises:
        ConfigError: If ``examples`` is not an integer of at least 1.

    >>> forgetting = Forgetting(3)
    >>> for correct in ([True, True, False], [True, False, False], [True, True, False]):
    ...     forgetting.update(torch.arange(3), torch.tensor(correct))
    >>> forgetting.scores()  # the third was never correct
    tensor([0., 1., 3.])
    """

    def __init__(self, examples: int) -> None:
        super().__init__(examples)
        self._events = torch.zeros_like(self._seen)
        self._last = torch.zeros_like(self._seen, dtype=torch.bool)  # whether last correct
        self._learnt = torch.zeros_like(self._last)

    def update(self, indices: Tensor, correct: Tensor) -> None:
        """Records predictions of some examples, such as those of a training batch.

        Args:
            indices: int64[n], their indices, distinct.
            correct: bool[n], whether each is predicted correctly.

        Raises:
            BatchError: If shapes, types or indices do not fit.
        """
        indices = check_distinct(indices, len(self._seen))
        advice = ", one for each index, such as logits.argmax(1) == labels"
        correct = check_tensor("correct", correct, "bool", len(indices), advice=advice).cpu()
        self._events[indices] += self._last[indices] & ~correct
        self._last[indices] = correct
        self._learnt[indices] |= correct
        self._seen[indices] += 1

    def scores(self) -> Tensor:
        """Returns float32[N], forgetting events, or the number of updates of examples never learnt.

        Raises:
            StateError: If some examples were never updated.
        """
        check_all_seen(self._seen)
        return torch.where(self._learnt, self._events, self._seen).float()

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        counts, flags = super().state_fields(), tensor(torch.bool, len(self._seen))
        return counts | {"_events": counts["_seen"], "_last": flags, "_learnt": flags}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is of another number of examples, or damaged.
        """
        super().check_state(state)
        if bool((state["events"] > state["seen"]).any()):
            raise_damaged("Forgetting.events", state["events"], "at most as many as updates")


class AUM(Recorder):
    """Averages an example's margin over training (its area under the margin) and negates it.

    With logits z_t(x) at the t-th of T updates of an example with label y,

        AUM(x, y) = 1/T sum_t [z_t(x)_y - max over i != y of z_t(x)_i],   score = -AUM.

    Mislabelled examples have the highest scores, which is how the paper finds them.

    Pleiss et al. 2020, *Identifying Mislabeled Data using the Area Under the Margin Ranking*.

    Args:
        examples: N, the number of examples in the data set.

    Raises:
        ConfigError: If ``examples`` is not an integer of at least 1.

    >>> aum = AUM(2)
    >>> labels = torch.tensor([0, 1])
    >>> aum.update(torch.arange(2), torch.tensor([[3.0, 1.0], [3.0, 1.0]]), labels)
    >>> aum.update(torch.arange(2), torch.tensor([[5.0, 1.0], [0.0, 1.0]]), labels)
    >>> aum.scores()
    tensor([-3.0000,  0.5000])
    """

    def __init__(self, examples: int) -> None:
        super().__init__(examples)
        self._sum = torch.zeros_like(self._seen, dtype=torch.float64)

    def update(self, indices: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Records the margins of some examples, such as those of a training batch.

        Args:
            indices: int64[n], their indices, distinct.
            logits: float[n, C], with at least two classes; no gradient is kept.
            labels: int64[n].

        Raises:
            BatchError: If shapes, types or indices do not fit.
        """
        indices = check_distinct(indices, len(self._seen))
        check_logits(logits, labels, len(indices))
        margins = label_margins(logits.detach().float(), labels.to(logits.device))
        self._sum[indices] += margins.cpu().double()
        self._seen[indices] += 1

    def scores(self) -> Tensor:
        """Returns float32[N], minus the mean margin.

        Raises:
            StateError: If some examples were never updated.
        """
        check_all_seen(self._seen)
        return (-self._sum / self._seen).float()

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        return super().state_fields() | {"_sum": tensor(torch.float64, len(self._seen))}


def label_margins(logits: Tensor, labels: Tensor) -> Tensor:
    """Subtracts the largest of the other logits from that of the label.

    Args:
        logits: float[N, C], C at least 2.
        labels: int64[N].

    >>> label_margins(torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]), torch.tensor([0, 2]))
    tensor([ 1., -1.])
    """
    columns = labels.unsqueeze(1)
    return logits.gather(1, columns).squeeze(1) - logits.scatter(1, columns, -torch.inf).amax(1)


def check_logits(logits: Tensor, labels: Tensor, count: int) -> None:
    """Checks that there is one row of logits and one label per example.

    Raises:
        BatchError: If there is not.
    """
    check_tensor("logits", logits, "float", count, "C", advice=", a column for each class")
    if logits.shape[1] < 2:
        raise BatchError("the logits have one class: give a column for each of at least two")
    check_tensor("labels", labels, "int64", count, advice=", the class of each example")
    check_within("labels", labels, logits.shape[1], "give logits with a column for each class")


def check_distinct(indices: Tensor, examples: int) -> Tensor:
    """Checks the indices of an update, and returns them on the CPU.

    Raises:
        BatchError: If they are out of range, or one appears twice.
    """
    indices = check_tensor("indices", indices, "int64", "n").cpu()
    check_within("indices", indices, examples, "give indices of the data set")
    if len(torch.unique(indices)) < len(indices):
        raise BatchError(
            "an index appears twice in one update: call update once for each of its predictions"
        )
    return indices


def check_all_seen(seen: Tensor) -> None:
    """Checks that each example was updated.

    Raises:
        StateError: If some were not.
    """
    missing = (seen == 0).nonzero().flatten()
    if len(missing):
        raise StateError(
            f"{len(missing)} of {len(seen)} examples were never updated, the first is "
            f"{int(missing[0])}: update each example at least once before calling scores()"
        )
