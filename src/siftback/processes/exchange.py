"""What the processes of a training send each other: what each recorded, and a draw."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from siftback.errors import LossError
from siftback.processes.distributed import all_gather_rows, broadcast_tensor
from siftback.state import (
    MOST_EPOCHS,
    Check,
    anything,
    dict_of,
    flag,
    integer,
    tensor,
    tuple_of,
)

_MISSING, _BOOLEAN, _NUMBER = range(3)  # kinds of a part of a finding


class Finding(NamedTuple):
    """What training or a scoring pass found of some examples, as a rule takes it.

    Attributes:
        is_pass: Whether it is of a scoring pass.
        epoch: That it was found in.
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


def size_of(findings: list[Finding]) -> tuple[int, int]:
    """How many findings there are, and of how many examples together."""
    return len(findings), sum(len(finding.indices) for finding in findings)


def checked_parts(
    indices: Tensor, losses: Tensor, correct: Tensor | None, confidence: Tensor | None
) -> dict[str, Tensor | None]:
    """What training found of some examples, by name, as tensors on the CPU without gradients.

    Raises:
        LossError: If there is not one of each for each example.
    """
    parts: dict[str, Tensor | None] = {}
    for name, found in (("losses", losses), ("correct", correct), ("confidence", confidence)):
        if found is not None and getattr(found, "shape", None) != indices.shape:
            shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise LossError(
                f"{name} has shape {shape}, and there are {len(indices)} examples: give a "
                f"tensor with one for each, [{len(indices)}]"
            )
        if found is not None and found.is_floating_point():
            found = found.float()
        parts[name] = None if found is None else found.detach().cpu()
    return parts


def last_of_each(indices: Tensor, rows: Tensor) -> Tensor:
    """Of some rows of indices those whose index does not come again after them, ascending.

    >>> last_of_each(torch.tensor([7, 5, 7, 2]), torch.tensor([0, 1, 2]))
    tensor([1, 2])
    """
    order = indices[rows].sort(stable=True)
    is_last = order.values.diff(append=order.values.new_full((1,), -1)) != 0
    return rows[order.indices[is_last]].sort().values


def exchanged(own: list[Finding], sizes: list[tuple[int, int]]) -> list[list[Finding]]:
    """The findings of all processes, by rank, each process's in its order.

    They are sent as three tensors, of 20 bytes per example. All processes must call it.

    Args:
        own: Of this process.
        sizes: `size_of` those of each process, by rank.
    """
    heads, indices, values = _as_tensors(own)
    counts, rows = [size[0] for size in sizes], [size[1] for size in sizes]
    of_ranks = zip(
        all_gather_rows(heads, counts),
        all_gather_rows(indices, rows),
        all_gather_rows(values, rows),
        strict=True,
    )
    return [_from_tensors(*found) for found in of_ranks]


def shared_draw(weights: Tensor) -> Tensor:
    """The weights that rank 0 drew: a bit per example, and values only where they differ from 1.

    All processes must call it. It is not left to each of them to draw the same: a rule whose state
    depends on the order of what it was given, which processes have in different orders, would
    draw others.

    Args:
        weights: float32[N], as this process drew them; N is the same in all.

    Returns:
        float32[N].
    """
    packed = packed_weights(weights)
    values = packed["weights"]
    count = int(broadcast_tensor(torch.tensor([len(values)])))
    bits = broadcast_tensor(packed["bits"])
    if count:
        values = broadcast_tensor(
            values if len(values) == count else torch.empty(count, dtype=torch.float32)
        )
    found = {"bits": bits, "weighed": count > 0, "weights": values}
    return unpacked_weights(found, len(weights))


def packed_weights(weights: Tensor) -> dict[str, Any]:
    """Weights as a bit per example, and values only where some are neither 0 nor 1."""
    drawn = weights != 0
    weighed = bool((weights[drawn] != 1).any())
    bits = torch.from_numpy(np.packbits(drawn.numpy()))
    values = weights[drawn] if weighed else torch.empty(0, dtype=torch.float32)
    return {"bits": bits, "weighed": weighed, "weights": values}


def unpacked_weights(packed: dict[str, Any], examples: int) -> Tensor:
    """float32[examples], the weights that were packed.

    >>> unpacked_weights(packed_weights(torch.tensor([0.0, 2.0, 1.0])), 3)
    tensor([0., 2., 1.])
    """
    drawn = _bits(packed["bits"], examples)
    if not packed["weighed"]:
        return drawn.float()
    weights = torch.zeros(examples, dtype=torch.float32)
    weights[drawn] = packed["weights"]
    return weights


def check_packed(examples: int) -> Check:
    """Checks for the weights of so many examples, packed: a part of a state."""

    def check(name: str, value: Any) -> None:
        bits = tensor(torch.uint8, -(-examples // 8))
        dict_of({"bits": bits, "weighed": flag, "weights": anything})(name, value)
        count = int(_bits(value["bits"], examples).sum()) if value["weighed"] else 0
        tensor(torch.float32, count, least=0, finite=True)(f"{name}.weights", value["weights"])

    return check


def check_finding(name: str, value: Any) -> None:
    """Checks for a `Finding`, as the tuple that it is in a state."""
    epoch, indices = integer(most=MOST_EPOCHS), tensor(torch.int64, None, least=0)
    tuple_of(flag, epoch, indices, anything, anything, anything)(name, value)
    count = len(value[2])
    tensor(torch.float32, count)(f"{name}.losses", value[3])
    for part, found in zip(("correct", "confidence"), value[4:], strict=True):
        if found is not None:
            of = torch.bool if getattr(found, "dtype", None) == torch.bool else torch.float32
            tensor(of, count)(f"{name}.{part}", found)


def _bits(packed: Tensor, examples: int) -> Tensor:
    return torch.from_numpy(np.unpackbits(packed.numpy(), count=examples)).bool()


def _as_tensors(findings: list[Finding]) -> tuple[Tensor, Tensor, Tensor]:
    """int64[findings, 5], int64[rows] and float32[rows, 3]."""
    heads = torch.empty(len(findings), 5, dtype=torch.int64)
    indices, values = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, 3)]
    for head, finding in zip(heads, findings, strict=True):
        kinds = _kind(finding.correct), _kind(finding.confidence)
        count = len(finding.indices)
        head.copy_(torch.tensor([finding.is_pass, finding.epoch, count, *kinds]))
        indices.append(finding.indices)
        parts = (finding.losses, finding.correct, finding.confidence)
        none = torch.zeros(count, dtype=torch.float32)
        values.append(torch.stack([none if part is None else part.float() for part in parts], 1))
    return heads, torch.cat(indices), torch.cat(values)


def _from_tensors(heads: Tensor, indices: Tensor, values: Tensor) -> list[Finding]:
    findings, place = [], 0
    for is_pass, epoch, count, *kinds in heads.tolist():
        rows = slice(place, place + count)
        losses, *parts = values[rows].clone().unbind(1)
        correct, confidence = map(_of_kind, parts, kinds)
        findings.append(Finding(bool(is_pass), epoch, indices[rows], losses, correct, confidence))
        place += count
    return findings


def _kind(part: Tensor | None) -> int:
    if part is None:
        return _MISSING
    return _BOOLEAN if part.dtype == torch.bool else _NUMBER


def _of_kind(part: Tensor, kind: int) -> Tensor | None:
    if kind == _MISSING:
        return None
    return part != 0 if kind == _BOOLEAN else part
