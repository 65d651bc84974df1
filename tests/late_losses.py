"""Losses that come to the host late, as from a device, and operations that would wait for one."""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from host_waits import waits
from siftback import host_reads


class Late:
    """An event of a device, which is seen to be over when it was asked for a few times."""

    def __init__(self, queries):
        self.queries = queries

    def query(self):
        self.queries -= 1
        return self.queries < 0

    def synchronize(self):
        self.queries = 0


@contextmanager
def late(queries):
    """Has every copy to the host be seen to be done only when it was asked for so many times."""

    def add(reads, then, *tensors):
        copies = []
        replaced(host_reads.HostReads(), lambda *values: copies.extend(values), *tensors)
        group = host_reads._Group()
        group.reads.append((then, copies))
        group.events = [Late(queries)]
        reads._groups.append(group)
        reads._run(waits=False)

    replaced = host_reads.HostReads.add
    host_reads.HostReads.add = add
    try:
        yield
    finally:
        host_reads.HostReads.add = replaced


class LossWaits(TorchDispatchMode):
    """Counts the operations for which the host would wait if some tensors were of a device.

    What is computed from these is of the device too; but not what is copied without waiting, as
    `HostReads` copies.

    Attributes:
        waits: Names of the operations that would wait, as they came.
    """

    def __init__(self, *tensors):
        super().__init__()
        self.waits, self._kept, self._storages = [], [], set()
        for tensor in tensors:
            self.mark(tensor)

    def mark(self, tensor):
        """Counts a tensor, and all its views, as one of the device."""
        self._kept.append(tensor)  # so that no other tensor comes to lie where it was
        self._storages.add(tensor.untyped_storage().data_ptr())

    def _is_marked(self, value):
        return isinstance(value, torch.Tensor) and (
            value.untyped_storage().data_ptr() in self._storages
        )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = [value for value in tree_flatten((args, kwargs))[0] if self._is_marked(value)]
        result = func(*args, **kwargs)
        if not given:
            return result
        is_copy = func is torch.ops.aten.copy_.default and not self._is_marked(args[0])
        is_awaited = is_copy and not (kwargs.get("non_blocking") or args[2:] == (True,))
        if waits(func, args, kwargs) or is_awaited:
            self.waits.append(str(func))
        if not is_copy:
            for value in tree_flatten(result)[0]:
                if isinstance(value, torch.Tensor) and value.numel():
                    self.mark(value)
        return result
