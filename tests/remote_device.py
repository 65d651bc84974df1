"""An accelerator in the processor's memory: what would wait for it, without having one.

PyTorch takes the tensors for those of another device: they do not mix with the processor's, and a
copy from one to the other is an operation. It is registered for a whole process, so that tests run
`find_waits` in another.
"""

import math
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from host_waits import calling_line, waits
from selector_table import FAMILY
from siftback import Ema, Fresh, Irreducible
from siftback.batches.batch import Batch
from siftback.batches.pool import Pool
from siftback.losses.per_example import pair_losses
from toys import seeded

NAME, COUNT = "remote", 30

SCORERS = {
    "fresh": Fresh,
    "fresh, in train mode": lambda: Fresh("train"),
    "ema": Ema,
    "irreducible": lambda: Irreducible(torch.linspace(0, 1, COUNT)),
}


class Remote(torch.Tensor):
    """A tensor of the device, whose values are in ``local``."""

    local: torch.Tensor

    @staticmethod
    def __new__(cls, local: torch.Tensor) -> "Remote":
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            local.shape,
            strides=local.stride(),
            storage_offset=local.storage_offset(),
            dtype=local.dtype,
            device=NAME,
        )
        tensor.local = local.detach()
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return run_remotely(operation, args, kwargs or {})


class RemoteWaits(TorchDispatchMode):
    """Notes the operations that have the host wait for the device.

    Attributes:
        seen: Each, and the line of the library at it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        is_remote = [isinstance(tensor, Remote) for tensor in inputs]
        if operation is torch.ops.aten.copy_.default:
            crosses, blocks = is_remote[0] != is_remote[1], True not in args[2:]
        else:
            device = kwargs.get("device")
            to = torch.device(device).type == NAME if device is not None else any(is_remote)
            crosses = bool(inputs) and to != any(is_remote)
            blocks = not kwargs.get("non_blocking")
        if (crosses and blocks) or (any(is_remote) and waits(operation, args, kwargs)):
            self.seen.append(f"{operation} at {calling_line()}")
        return run_remotely(operation, args, kwargs)


def run_remotely(operation: Any, args: Any, kwargs: Any) -> Any:
    """Runs an operation in the processor's memory, and returns tensors of the device it is on."""
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    remote = [tensor for tensor in inputs if isinstance(tensor, Remote)]
    local_args, local_kwargs = tree_map(local_of, args), tree_map(local_of, kwargs)
    if operation is torch.ops.aten.copy_.default:
        operation(*local_args, **local_kwargs)
        return args[0]
    others = [tensor for tensor in inputs if tensor.ndim and not isinstance(tensor, Remote)]
    assert not (remote and others), f"{operation} of tensors on two devices"
    is_remote = bool(remote)
    if kwargs.get("device") is not None:
        is_remote = torch.device(kwargs["device"]).type == NAME
        local_kwargs["device"] = "cpu"
    results = operation(*local_args, **local_kwargs)
    if not is_remote:
        return results
    written = {id(tensor.local): tensor for tensor in remote}
    return tree_map_only(
        torch.Tensor,
        lambda tensor: written[id(tensor)] if id(tensor) in written else Remote(tensor),
        results,
    )


def local_of(value: Any) -> Any:
    """Returns a tensor in the processor's memory, or anything else as it is."""
    return value.local if isinstance(value, Remote) else value


def waits_of(run: Callable[[], object]) -> list[str]:
    """Returns what waits in a first or second call, the one with more."""
    seen: list[str] = []
    for _ in range(2):
        with RemoteWaits() as counted:
            run()
        seen = max(seen, counted.seen, key=len)
    return seen


def remote_model() -> nn.Module:
    """Returns a small model with batch statistics, on the device."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    for module in model.modules():
        for name, parameter in module._parameters.items():
            module._parameters[name] = nn.Parameter(Remote(parameter.detach()))
        for name, buffer in module._buffers.items():
            module._buffers[name] = Remote(buffer)
    return model


def keep_rows(data: tuple[Remote, Remote]) -> None:
    """Keeps some rows of a batch, and gives them and their weights to a pool."""
    rows, device = torch.arange(0, COUNT, 2), data[0].device
    whole = Batch(data, COUNT, device, torch.arange(COUNT), lists=frozenset())
    pool = Pool(len(rows) + 3)
    for batch in (whole.keep(rows, torch.ones(len(rows))), whole):
        pool.add_batch(batch)
    for batch in pool.release_full(math.inf):
        batch.loss_weights()


def keep_rows_of_the_device(data: torch.Tensor) -> None:
    """Keeps some rows, which were chosen on the device, of a batch on the host."""
    rows, weights = Remote(torch.arange(3)), Remote(torch.ones(3))
    Batch(data, COUNT, data.device, torch.arange(COUNT), lists=frozenset()).keep(rows, weights)


def find_waits(done: Connection) -> None:
    """Sends {"drawn": {selector: waits}, "counted": likewise with a count, "scored": scorers}.

    And "kept": the waits where a batch of the device keeps rows that were drawn on the host.
    """
    _setup_privateuseone_for_python_backend(NAME)
    found: dict[str, dict[str, list[str]]] = {"drawn": {}, "counted": {}, "scored": {}}
    rows, generator = torch.arange(COUNT), seeded()
    scores = Remote(torch.rand(COUNT, generator=generator))
    for name, row in FAMILY.items():
        for kind, count in (("drawn", None), ("counted", 10)):
            select = partial(row.make(0.5).select, scores, generator, count)
            found[kind][name] = waits_of(select)
    inputs = torch.randn(COUNT, 6, generator=generator, dtype=torch.float32)
    batch = Remote(inputs), Remote(torch.randint(3, (COUNT,), generator=generator))
    losses = pair_losses(nn.functional.cross_entropy)
    for name, make in SCORERS.items():
        scorer, model = make(), remote_model()

        def score(scorer=scorer, model=model) -> None:
            scorer.score(losses, model, batch, rows)
            scorer.after_step(losses, model, batch)

        found["scored"][name] = waits_of(score)
    found["kept"] = {
        "rows of the host": waits_of(partial(keep_rows, batch)),
        "rows of the device": waits_of(partial(keep_rows_of_the_device, inputs)),
    }
    done.send(found)
