"""A barrier that names the process that does not come, and the setting that is not alike."""

import contextlib
import hashlib
import json
import os
import weakref
from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from siftback.arguments import format_value, is_number
from siftback.errors import ConfigError, ProcessError
from siftback.state import tensor_checksum


class _Passed:
    """The barriers that processes passed since they made their group, as keys of its store.

    A store may outlive a group: the keys begin with the number of groups of as many processes that
    used it before, and with how often ``torchrun`` started them again: some may have joined none.
    """

    def __init__(self, group: Any, store: Any, world: int) -> None:
        self.group, self.count = weakref.ref(group), 0
        is_alone = os.environ.get("GROUP_WORLD_SIZE") == "1"  # else nodes may count unlike restarts
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_alone else "0"
        joined = store.add(f"siftback/{restarts}/{world}/joined", 1)
        self._prefix = f"siftback/{restarts}/{world}/{(joined - 1) // world}"

    def key(self, rank: int, back: int = 0) -> str:
        """Returns the key of a process at the present barrier, or at one before."""
        return f"{self._prefix}/{self.count - back}/{rank}"


_passed: _Passed | None = None


def barrier(name: str, settings: Mapping[str, Any] | None = None) -> None:
    """Waits until all processes are at this barrier with the same settings, or says which are not.

    It asks the store through which the processes found each other. So it cannot be taken for a
    collective of the model's, as a collective here would be if another process were still in a
    step of its training, and a process that does not come can be named, whatever the backend.

    Args:
        name: What each process is about to do, for the error.
        settings: What all processes must have alike, by name; see `describe_settings`.

    Raises:
        ConfigError: If another process has another setting. All processes raise it.
        ProcessError: If not all come within the timeout of the process group, or one is at
            another barrier.

    >>> barrier("the beginning of epoch 3", {"seed": 1})  # of one process
    """
    global _passed
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return
    # PyTorch has no public name for the store; there is none where MPI starts the processes.
    store: Any = distributed_c10d._get_default_store()
    if store is None:
        return
    rank, world = dist.get_rank(), dist.get_world_size()
    texts = describe_settings(settings or {})
    content = json.dumps(texts)
    # Settings are stored once by their digest, which barriers name: a few bytes.
    digest = hashlib.sha256(content.encode()).hexdigest()
    try:
        if not _passed or _passed.group() is not dist.group.WORLD:
            _passed = _Passed(dist.group.WORLD, store, world)
        keys = [_passed.key(other) for other in range(world)]
        store.set(f"siftback/settings/{digest}", content)
        store.set(keys[rank], f"{name}\n{digest}")
        with contextlib.suppress(RuntimeError):  # of what kind depends on the store
            store.wait(keys)
        all_came = store.check(keys)
        missing = [other for other in range(world) if not (all_came or store.check([keys[other]]))]
        if missing:
            raise ProcessError(
                f"rank {rank} waited {store.timeout.total_seconds():g} seconds at {name}, and rank "
                f"{', '.join(map(str, missing))} did not come: it was killed or raised an error, "
                "see its own output; or it is still in a step, as it has more batches than this "
                "one. All processes must make equally many steps; `with model.join():` may go "
                "round an epoch, not round several"
            )
        messages = [message.decode().split("\n") for message in store.multi_get(keys)]
        if _passed.count:  # all are at this barrier, so that none waits at the one before
            store.delete_key(_passed.key(rank, back=1))
        _passed.count += 1
        for other, (other_name, _) in enumerate(messages):
            if other_name != name:
                raise ProcessError(
                    f"rank {rank} is at {name}, and rank {other} at {other_name}: all processes "
                    "must iterate their loaders and take their states equally often"
                )
        for other, (_, other_digest) in enumerate(messages):
            if other_digest != digest:
                others = json.loads(store.get(f"siftback/settings/{other_digest}"))
                raise ConfigError(_unlike(rank, texts, other, others))
    except dist.DistNetworkError as error:
        raise ProcessError(
            f"rank {rank} waited at {name}, and the process through which the others reach each "
            f"other, mostly that of rank 0, is gone: see its own output ({error})"
        ) from error


def describe_settings(settings: Mapping[Any, Any]) -> dict[str, str]:
    """Returns settings as text that is the same in all processes where the settings are.

    Args:
        settings: Values by name. Those of a mapping, of an object that has ``settings()``, and of
            its ``members()``, have names with dots. Tensors are compared by their contents, and
            objects of other kinds by their type or, of functions, their name.

    >>> from siftback import Memory
    >>> texts = describe_settings({"epochs": 3.0, "memory": Memory(keep=0.5), "pad": {"x": -100}})
    >>> texts["epochs"], texts["memory"], texts["memory.keep"], texts["pad.x"]
    ('3', 'Memory', '0.5', '-100')
    """
    texts: dict[str, str] = {}
    for name, value in settings.items():
        nested = [value]
        if not isinstance(value, Mapping):
            texts[f"{name}"] = _text(value)
            methods = [getattr(value, method, None) for method in ("settings", "members")]
            is_class = isinstance(value, type)
            nested = [method() for method in methods if callable(method) and not is_class]
        for inner in nested:
            if isinstance(inner, Mapping):
                texts |= {f"{name}.{key}": text for key, text in describe_settings(inner).items()}
    return texts


def settings_of_shards(settings: Mapping[Any, Any]) -> dict[str, str]:
    """Returns `describe_settings` without tensors, which shards have of their own.

    >>> settings_of_shards({"epochs": 3, "labels": "crc32 0ecf"})
    {'epochs': '3'}
    """
    texts = describe_settings(settings).items()
    return {name: text for name, text in texts if not ("crc32" in text or "digest" in text)}


def _text(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{format_value(value)} of digest {tensor_checksum(value):08x}"
    if isinstance(value, str | bool | int) or value is None:
        return str(value)
    if is_number(value):  # 3.0 epochs are 3
        return repr(int(value)) if value == int(value) else repr(float(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _unlike(rank: int, texts: dict[str, str], other: int, others: dict[str, str]) -> str:
    """Names a setting that two processes do not have alike: an object before its details."""
    names = [name for name in texts | others if texts.get(name) != others.get(name)]
    name = min(names, key=lambda name: name.count("."))
    text, other_text = texts.get(name, "nothing"), others.get(name, "nothing")
    shard = "; or, of a shard for each, sampler=SelectiveSampler(shard, rank=0, world=1)"
    return (
        f"{name}={text} in the process of rank {rank}, and {other_text} in that of rank {other}: "
        f"give all processes the same {name}, as they make the same steps of one training"
        f"{shard if name == 'dataset' else ''}"
    )
