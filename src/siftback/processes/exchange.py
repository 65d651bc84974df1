"""The losses that each process of a training sends to the others, and draws as bits."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from siftback.processes.distributed import all_gather
from siftback.state import (
    MOST_EPOCHS,
    Check,
    anything,
    dict_of,
    flag,
    integer,
    optional,
    tensor,
    tuple_of,
)


class RecordedLosses(NamedTuple):
    """Losses of training, or scores of a pass, of some examples, as a rule takes them.

    Attributes:
        is_pass: Whether they are the scores of a pass.
        epoch: The pass in which they were computed.
        indices: int64[n], rows of the rule's table.
        losses: float32[n], or scores.
        correct: bool[n], or None.
        confidence: float32[n], or None.
    """

    is_pass: bool
    epoch: int
    indices: Tensor
    losses: Tensor
    correct: Tensor | None = None
    confidence: Tensor | None = None

    def take(self, rows: Tensor) -> "RecordedLosses":
        """Returns those of some examples: int64[k], their positions, or bool[n]."""
        taken: Any = (value[rows] if isinstance(value, Tensor) else value for value in self)
        return RecordedLosses(*taken)

    @property
    def is_clean(self) -> bool:
        """Whether all losses are finite, and of distinct examples."""
        ordered = np.sort(self.indices.numpy())
        return bool((ordered[1:] != ordered[:-1]).all()) and bool(self.losses.isfinite().all())

    def clean(self) -> "RecordedLosses":
        """Returns, in their order, the last finite loss of each example.

        >>> indices, losses = torch.tensor([3, 1, 3, 2]), torch.tensor([0.1, 0.2, 0.3, torch.nan])
        >>> RecordedLosses(False, 0, indices, losses).clean().indices
        tensor([1, 3])
        """
        finite = self.losses.isfinite().nonzero().squeeze(1)
        order = self.indices[finite].sort(stable=True)
        is_last = order.values.diff(append=order.values.new_full((1,), -1)) != 0
        return self.take(finite[order.indices[is_last].sort().values])


def join_records(records: list[RecordedLosses]) -> RecordedLosses:
    """Joins records of the same pass and with the same predictions, at least one.

    >>> first = RecordedLosses(False, 0, torch.tensor([3]), torch.tensor([0.5]))
    >>> join_records([first, first._replace(indices=torch.tensor([1]))]).indices
    tensor([3, 1])
    """
    first = records[0]
    columns = zip(*(record[2:] for record in records), strict=True)
    joined: Any = (None if c[0] is None else torch.cat(c) for c in columns)
    return RecordedLosses(first.is_pass, first.epoch, *joined)


def exchange_losses(records: list[RecordedLosses]) -> list[list[RecordedLosses]]:
    """Returns the records of all processes, by rank. All processes must call it.

    Args:
        records: Those of this process.
    """
    # NumPy pickles the values of an array alone, where a tensor takes a thousand bytes more.
    arrays = [[v.numpy() if isinstance(v, Tensor) else v for v in record] for record in records]
    return [[_as_tensors(values) for values in gathered] for gathered in all_gather(arrays)]


def _as_tensors(values: list[Any]) -> RecordedLosses:
    tensors: Any = (torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in values)
    return RecordedLosses(*tensors)


def pack_weights(weights: Tensor) -> dict[str, Any]:
    """Returns weights as a bit per example, and values only where some are neither 0 nor 1."""
    drawn = weights != 0
    weighed = bool((weights[drawn] != 1).any())
    bits = torch.from_numpy(np.packbits(drawn.numpy()))
    values = weights[drawn] if weighed else torch.empty(0, dtype=torch.float32)
    return {"bits": bits, "weighed": weighed, "weights": values}


def unpack_weights(packed: dict[str, Any], examples: int) -> Tensor:
    """Returns float32[examples], the weights that were packed.

    >>> unpack_weights(pack_weights(torch.tensor([0.0, 2.0, 1.0])), 3)
    tensor([0., 2., 1.])
    """
    drawn = torch.from_numpy(np.unpackbits(packed["bits"].numpy(), count=examples))
    weights = drawn.float()
    if packed["weighed"]:
        weights[drawn.bool()] = packed["weights"]
    return weights


def packed_weights(examples: int) -> Check:
    """Returns a check for weights that were packed, as they are in a state."""

    def check(name: str, value: Any) -> None:
        bits = tensor(torch.uint8, -(-examples // 8))
        dict_of({"bits": bits, "weighed": flag, "weights": anything})(name, value)
        drawn = np.unpackbits(value["bits"].numpy(), count=examples)
        count = int(drawn.sum()) if value["weighed"] else 0
        tensor(torch.float32, count, least=0, finite=True)(f"{name}.weights", value["weights"])

    return check


def recorded_losses(name: str, value: Any) -> None:
    """Checks for `RecordedLosses`, as the tuple that they are in a state."""
    indices = tensor(torch.int64, None, least=0)
    tuple_of(flag, integer(most=MOST_EPOCHS), indices, *[anything] * 3)(name, value)
    losses, correct = tensor(torch.float32, len(value[2])), tensor(torch.bool, len(value[2]))
    tuple_of(*[anything] * 3, losses, optional(correct), optional(losses))(name, value)
