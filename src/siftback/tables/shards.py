"""A data set in shards: which examples a process holds, reads, and in which order."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from siftback.errors import BatchError, ConfigError, StateError
from siftback.processes.distributed import rank_and_world
from siftback.seeding import Stream, generator_from
from siftback.shuffled import WHOLE, permutation
from siftback.state import (
    Check,
    choice,
    dict_of,
    raise_damaged,
    seal_shards,
    tensor,
    tensor_checksum,
)

_BLOCK = 1 << 20  # examples of an order at a time


class Shards:
    """S shards of a data set, of which each process holds, and reads, equally many.

    Example i is in shard ``i % S``, at place ``i // S``: shards have equal sizes up to one, and
    classes that lie together in a data set are spread over all of them. The process of rank r
    holds the S / world shards from ``r S / world`` on, and reads no other example in any epoch.

    What a pass reads is decided shard by shard, so by the same losses it does not depend on the
    number of processes: of each shard equally many examples, so that processes make equally many
    steps. An epoch without a draw reads ``N // S`` of each: where S does not divide N, the last of
    some shards' orders are left out, at most S - 1 examples.

    A table of this process has ``height = ceil(N / S)`` rows for each of its shards. Where S does
    not divide N, the last row of some shards is no example's.

    Args:
        count: S.
        examples: N, of the whole data set.

    Attributes:
        count: S.
        examples: N.
        rank: Of this process.
        world: The number of processes.
        owned: int64[S / world], the numbers of this process's shards.
        height: Rows of each shard in a table.

    Raises:
        ConfigError: If there are more shards than examples, or they cannot be shared equally.

    >>> shards = Shards(2, examples=5)
    >>> shards.rows_of(torch.tensor([0, 2, 4, 1, 3])), shards.rows
    (tensor([0, 1, 2, 3, 4]), 6)
    >>> [block.tolist() for block in shards.order(None, 2, seed=1, epoch=0, shuffle=True)]
    [[4, 3, 2, 1]]
    """

    def __init__(self, count: int, examples: int) -> None:
        self.count, self.examples = count, examples
        self.rank, self.world = rank_and_world()
        if examples < count:
            raise ConfigError(
                f"shards={count} of {examples} examples: give a data set of a known length with an "
                "example for each shard at least, or fewer shards"
            )
        if count % self.world:
            raise ConfigError(
                f"shards={count} cannot be shared equally among {self.world} processes: give a "
                f"multiple of all numbers of processes to be used, such as {4 * self.world}"
            )
        self.first = self.rank * count // self.world
        self.owned = torch.arange(self.first, self.first + count // self.world)
        self.height = -(-examples // count)
        if self.world > 1:
            # States of torch.save hold its tensors, which torch.load takes once it is imported.
            from torch.distributed.tensor import DTensor  # noqa: F401

    @property
    def rows(self) -> int:
        """Rows of a table of this process."""
        return len(self.owned) * self.height

    @property
    def read(self) -> int:
        """Examples that all processes read in an epoch without a draw."""
        return self.count * (self.examples // self.count)

    def quota(self, count: int) -> int:
        """Returns how many examples of each shard are drawn, for a count of all examples.

        Raises:
            ConfigError: If it is none.
        """
        if count < self.count:
            raise ConfigError(
                f"shards={self.count} and {count} examples to draw, which is less than one of "
                "each: give fewer shards, or keep more"
            )
        return count // self.count

    def check_processes(self, rank: int, world: int) -> None:
        """Checks that shards are of the processes that read them.

        Args:
            rank: Of the sampler that reads them.
            world: Likewise.

        Raises:
            ConfigError: If they are not.
        """
        if (self.rank, self.world) != (rank, world):
            raise ConfigError(
                f"shards={self.count} are shared among {self.world} processes, of which this is "
                f"rank {self.rank}, and the sampler has rank={rank}, world={world}: make rule and "
                "loader when torch.distributed is initialised, and leave rank= and world= out"
            )

    def check_drawn(self, rule: str, weights: Tensor, count: int) -> None:
        """Checks that each shard has its quota: processes would make unequal steps else.

        Args:
            rule: Its name, for the error.
            weights: float[n], what it drew.
            count: How many it is to draw of all examples.

        Raises:
            ConfigError: If one has not.
        """
        quota, drawn = self.quota(count), [len(weights)]
        if len(weights) == self.rows:
            tables = weights.view(-1, self.height)  # `count_nonzero(1)` takes 8 bytes per example
            drawn = sorted({int(table.count_nonzero()) for table in tables})
        if len(weights) != self.rows or drawn != [quota]:
            raise ConfigError(
                f"{rule} draws {drawn} of the shards of this process, and its count means {quota} "
                "of each: have draw give float32[rows] with as many of each shard, so that all "
                "processes make the same number of steps"
            )

    def pack(self, weights: Tensor) -> Tensor:
        """Returns uint8[n], a bit for each row, 0 where it is left out, in bytes of one shard.

        Args:
            weights: float32[rows].
        """
        drawn = (weights != 0).view(-1, self.height).numpy()
        return torch.from_numpy(np.packbits(drawn, axis=1)).flatten()

    def unpack(self, bits: Tensor) -> Tensor:
        """Returns float32[rows], 1 and 0, of what `pack` gave."""
        drawn = np.unpackbits(bits.view(len(self.owned), -1).numpy(), axis=1, count=self.height)
        return torch.from_numpy(drawn).flatten().float()

    def rows_of(self, indices: Tensor) -> Tensor:
        """Returns int64[n], the rows of examples in a table of this process.

        Raises:
            BatchError: If one is another process's, or none's.
        """
        shards = indices % self.count - self.first
        foreign = (shards < 0) | (shards >= len(self.owned)) | (indices < 0)
        foreign |= indices >= self.examples
        if foreign.any():
            index = int(indices[foreign][0])
            raise BatchError(
                f"indices= holds {index}, and the process of rank {self.rank} holds the "
                f"examples of shards {self.first} to {self.first + len(self.owned) - 1}, which are "
                f"those of index % {self.count}: give losses to the process that read the example"
            )
        return shards * self.height + indices // self.count

    def indices_of(self, rows: Tensor) -> Tensor:
        """Returns int64[m], the examples of rows, without rows that are no example's."""
        indices = self.first + rows // self.height + rows % self.height * self.count
        return indices[indices < self.examples]

    def shards(self) -> Iterator[tuple[int, slice]]:
        """Yields the number of each of this process's shards, and its rows that are examples'."""
        for number, shard in enumerate(self.owned.tolist()):
            first = number * self.height
            yield shard, slice(first, first + len(range(shard, self.examples, self.count)))

    def order(
        self, weights: Tensor | None, quota: int, seed: int, epoch: int, shuffle: bool
    ) -> Iterator[Tensor]:
        """Yields this process's examples of an epoch in their order, int64[n] at a time.

        Each shard is shuffled by (seed, epoch, shard). Of each shard of this process, the next
        examples are shuffled together, a million at a time, so that batches mix all of its shards.
        Without shuffling, examples are in the order of their indices.

        Args:
            weights: float32[rows], 0 for what is left out; None leaves nothing out.
            quota: How many are given of each shard.
            seed: Of the order.
            epoch: Likewise.
            shuffle: Whether they are shuffled.
        """
        size, drawn = max(1, _BLOCK // len(self.owned)), None if weights is None else weights != 0
        if not shuffle:
            last = quota if drawn is None else self.height
            for start in range(0, last, size):
                rows = torch.arange(start, min(start + size, last))
                indices = rows[:, None] * self.count + self.owned
                if drawn is not None:
                    indices = indices[drawn.view(-1, self.height).T[rows]]
                yield indices.flatten()
            return
        shuffled = [
            self._shuffle(shard, None if drawn is None else drawn[rows], seed, epoch, size)
            for shard, rows in self.shards()
        ]
        for start in range(0, quota, size):
            block = torch.cat([next(indices)[: quota - start] for indices in shuffled])
            numbers = seed, epoch, Stream.ORDER, self.first, len(self.owned), start
            yield block[torch.randperm(len(block), generator=generator_from(*numbers))]

    def _shuffle(
        self, shard: int, drawn: Tensor | None, seed: int, epoch: int, size: int
    ) -> Iterator[Tensor]:
        """Yields the drawn examples of a shard in their order, as many at a time."""
        # Permutations are held in memory where those of all shards are few enough for it.
        whole = WHOLE if self.examples <= WHOLE else 0
        count = len(range(shard, self.examples, self.count))
        waiting = torch.empty(0, dtype=torch.int64)
        for rows in permutation(count, generator_from(seed, epoch, Stream.ORDER, shard), whole):
            rows = rows if drawn is None else rows[drawn[rows]]
            waiting = torch.cat((waiting, rows * self.count + shard))
            while len(waiting) >= size:
                yield waiting[:size]
                waiting = waiting[size:]
        yield waiting

    def joined(self, values: Tensor) -> Tensor:
        """Returns a table of all processes, which ``torch.distributed.checkpoint`` re-shards.

        Args:
            values: [rows, ...], of this process; it is not copied.

        Returns:
            [S, height, ...]: of several processes, a ``DTensor`` that is sharded by its first
            dimension. No process waits for another.
        """
        values = values.view(len(self.owned), -1, *values.shape[1:])
        if self.world == 1:
            return values
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.tensor import DTensor, Shard

        mesh = DeviceMesh.from_group(cast(dist.ProcessGroup, dist.group.WORLD), "cpu")
        return DTensor.from_local(values, mesh, [Shard(0)], run_check=False)

    def state_of(self, values: Tensor) -> dict[str, Any]:
        """Returns a copy of a table, with the numbers of its shards and a digest of each.

        The digests are sharded as the values are, so that they go with them to other processes.
        """
        tables = {"shards": self.owned.clone(), "values": values.clone()}
        tables["digests"] = _digests(self.owned, values.view(len(self.owned), -1))
        return seal_shards({name: self.joined(table) for name, table in tables.items()})

    def table_check(self, dtype: torch.dtype, *shape: int) -> Check:
        """Returns a check for a state of `state_of`, with this process's shards.

        Args:
            dtype: Of its values.
            shape: Of the values of one shard.
        """
        numbers = tensor(torch.int64, self.count, 1)
        fields = {"shards": numbers, "values": tensor(dtype, self.count, *shape)}
        fields |= {"digests": numbers, "digest": choice(seal_shards({})["digest"])}

        def check(name: str, state: Any) -> None:
            dict_of(fields)(name, state)
            self.rows_of_state(state)
            shards, values, digests = (_local(state[field]) for field in (*fields,)[:3])
            if not _digests(shards.flatten(), values.flatten(1)).equal(digests.flatten()):
                raise_damaged(name, state["values"], "what was saved, by the digest of each shard")

        return check

    def rows_of_state(self, state: dict[str, Any]) -> Tensor:
        """Returns the rows of this process's shards in a state of `state_of`: [rows, ...].

        Raises:
            StateError: If it is of other shards: those of another process, number or data set.
        """
        shards, values = (_local(state[name]) for name in ("shards", "values"))
        if len(shards) == self.count:  # of one process, or whole: it has those of all
            shards, values = shards[self.owned], values[self.owned]
        if not shards.flatten().equal(self.owned):
            saved = f"{int(shards.min())} to {int(shards.max())}" if len(shards) else "none"
            raise StateError(
                f"the state has shards {saved}, and this process holds {self.first} to "
                f"{self.first + len(self.owned) - 1} of {self.count}: each process loads what it "
                "saved, or all load one checkpoint of torch.distributed.checkpoint, which re-shards"
            )
        return values.flatten(0, 1)


def _digests(shards: Tensor, values: Tensor) -> Tensor:
    """Returns int64[n], of the numbers of shards and their values [n, ...]."""
    pairs = zip(shards.tolist(), values, strict=True)
    return torch.tensor([tensor_checksum(table, shard) for shard, table in pairs])


def _local(tensor: Tensor) -> Tensor:
    """Returns the rows of a tensor that this process has."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
