"""The counting of host waits is held to what is known of PyTorch's operations."""

import numpy as np
import pytest
import torch

from host_waits import HostWaits

VALUES = torch.tensor([0.5, 3.0, 1.0])
MASK = torch.tensor([True, False, True])

WAITS = {
    "item": lambda: VALUES.sum().item(),
    "bool": lambda: bool((VALUES > 0).all()),
    "int": lambda: int(VALUES[0]),
    "format": lambda: f"{VALUES[0]:.1f}",
    "nonzero": lambda: MASK.nonzero(),
    "where": lambda: torch.where(MASK),
    "mask": lambda: VALUES[MASK],
    "masked_select": lambda: VALUES.masked_select(MASK),
    "assignment by a mask": lambda: VALUES.clone().index_put_((MASK,), VALUES[:2]),
    "unique": lambda: VALUES.unique(),
    "equal": lambda: VALUES.equal(VALUES),
    "index by a tensor": lambda: VALUES[torch.tensor(1)],
    "repeats": lambda: VALUES.repeat_interleave(torch.tensor([1, 0, 2])),
    "cpu": lambda: VALUES.cpu(),
    "to": lambda: VALUES.to("cpu"),
    "tolist": lambda: VALUES.tolist(),
    "numpy": lambda: VALUES.numpy(),
    "array": lambda: np.asarray(VALUES),
}

NO_WAITS = {
    "indices": lambda: VALUES[torch.tensor([0, 2])],
    "slice": lambda: VALUES[1:],
    "number by a mask": lambda: VALUES.clone().__setitem__(MASK, 0.0),
    "masked_fill": lambda: VALUES.masked_fill(MASK, 0.0),
    "topk": lambda: VALUES.topk(2).indices.sort().values,
    "repeats, of a size": lambda: VALUES.repeat_interleave(torch.tensor([1, 0, 2]), output_size=3),
    "repeats, of a number": lambda: VALUES.repeat_interleave(2),
    "to, without blocking": lambda: VALUES.to("cpu", non_blocking=True),
    "to a type": lambda: VALUES.to(torch.float64),
    "length": lambda: len(VALUES),
}


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_counted_once(name):
    with HostWaits() as waits:
        WAITS[name]()
    assert len(waits.seen) == 1
    assert "test_host_waits.py:" in waits.seen[0]


@pytest.mark.parametrize("name", NO_WAITS)
def test_what_does_not_wait_is_not_counted(name):
    with HostWaits() as waits:
        NO_WAITS[name]()
    assert waits.seen == []
