"""Examples that know their index, and an order that leaves examples out before they are read."""

from collections.abc import Callable, Iterator, Sized
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

from siftback.errors import BatchError, ConfigError
from siftback.loading import tree
from siftback.loading.distributed import rank_and_world

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

IndexOf = Callable[[Any], Tensor]
"""``index_of(batch) -> int64[N]``, the dataset indices of a batch's examples."""


def Indexed(dataset: Any) -> "Dataset[tuple[int, Any]]":  # noqa: N802 - it stands for two classes
    """The data set, each example with its index: ``(index, example)``.

    A loader over it gives ``(indices, batch)``; `SelectiveLoader` takes the indices off again, so
    that the training loop sees what it saw before.

    Args:
        dataset: Map-style, or iterable. An iterable one must give the same examples in the same
            order each epoch, as an example's index is its place; where it does not, give the
            loader ``index_of=`` in place of this. Each worker process counts its own examples:
            its n-th gets ``n * workers + worker``.

    Raises:
        ConfigError: Where it is neither.

    >>> data = Indexed(["a", "b", "c"])
    >>> len(data), data[1]
    (3, (1, 'b'))
    """
    if hasattr(dataset, "__getitem__") and not isinstance(dataset, IterableDataset):
        return _IndexedMap(dataset)
    if hasattr(dataset, "__iter__"):
        return _IndexedIterable(dataset)
    raise ConfigError(
        f"a {type(dataset).__name__} has neither __getitem__ nor __iter__: give a data set"
    )


class _IndexedMap(Dataset[tuple[int, Any]]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        if hasattr(dataset, "__getitems__"):  # fetches a batch in one go, where it can
            self.__getitems__ = self._getitems

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def _getitems(self, indices: list[int]) -> list[tuple[int, Any]]:
        return list(zip(indices, self.dataset.__getitems__(indices), strict=True))


class _IndexedIterable(IterableDataset[tuple[int, Any]]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for place, example in enumerate(self.dataset):
            yield first + place * stride, example


def is_indexed(loader: object) -> bool:
    """Whether a loader gives ``(indices, batch)``: over `Indexed` examples, or as it says itself.

    A loader of another kind than torch's says so by an attribute ``indexed = True``.
    """
    data = getattr(loader, "dataset", None)
    return isinstance(data, _IndexedMap | _IndexedIterable) or getattr(loader, "indexed", False)


class SelectiveSampler(Sampler[int]):
    """The order of an epoch, from which `SelectiveLoader` may leave examples out.

    For a ``DataLoader``: ``DataLoader(Indexed(dataset), 128, sampler=SelectiveSampler(dataset))``.
    What is left out is never read. What is left keeps the order of the whole epoch.

    In a training of several processes each has a share of one common order, so they need the
    same ``seed``: of n examples, the process of rank r has those at r, r + world, r + 2 world and
    so on. The shares are disjoint and of ``n // world`` each, so that all processes make equally
    many steps; the last ``n % world`` of the order are left out of that epoch.

    Args:
        dataset: Anything with a length.
        shuffle: Whether each epoch has an order of its own, drawn from ``generator``.
        seed: Of that generator; no global one is used.
        rank: Which process this is; by default that of ``torch.distributed`` where it is
            initialised, else 0.
        world: How many there are, likewise. ``rank=0, world=1`` has everything, such as in a
            process whose data set is a shard already.

    Attributes:
        examples: How many there are, for all processes.

    Raises:
        ConfigError: Where ``rank`` is none of ``world`` processes.

    >>> sampler = SelectiveSampler(range(5), shuffle=False)
    >>> sampler.only(torch.tensor([4, 1]))
    >>> list(sampler), len(sampler), sampler.examples
    ([1, 4], 2, 5)
    >>> sampler.only(None)
    >>> list(sampler)
    [0, 1, 2, 3, 4]
    >>> list(SelectiveSampler(range(5), shuffle=False, rank=1, world=2))
    [1, 3]
    """

    def __init__(
        self,
        dataset: Sized,
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        here, among = rank_and_world()
        self.rank, self.world = here if rank is None else rank, among if world is None else world
        if not 0 <= self.rank < self.world:
            raise ConfigError(
                f"rank={self.rank} is none of world={self.world} processes: give both, the rank "
                "from 0 on, or neither"
            )
        self.examples = len(dataset)
        self.generator = torch.Generator().manual_seed(seed)
        self._shuffle = shuffle
        self._chosen: Tensor | None = None  # bool[examples]
        self._count = self.examples

    def only(self, indices: Tensor | None) -> None:
        """Leaves out all others from the next epoch on; None leaves none out."""
        self._chosen, self._count = None, self.examples
        if indices is not None:
            self._chosen = torch.zeros(self.examples, dtype=torch.bool)
            self._chosen[indices.cpu()] = True
            self._count = int(self._chosen.sum())  # once, as the length is asked for every step

    def __iter__(self) -> Iterator[int]:
        if self._shuffle:
            order = torch.randperm(self.examples, generator=self.generator)
        else:
            order = torch.arange(self.examples)
        if self._chosen is not None:
            order = order[self._chosen[order]]
        return iter(order[: len(self) * self.world][self.rank :: self.world].tolist())

    def __len__(self) -> int:
        return self._count // self.world


class Indices:
    """Takes the dataset indices off batches, and makes sure that they can be relied upon.

    Args:
        loader: The wrapped loader.
        index_of: Gives the indices of a batch; None where the loader is one over `Indexed`.

    Attributes:
        examples: How many there are; None where the loader does not tell.
    """

    def __init__(self, loader: object, index_of: IndexOf | None) -> None:
        self.examples = examples = _count(loader)
        self._strip = index_of is None and is_indexed(loader)
        self._index_of = index_of
        self._given = torch.zeros(examples or 0, dtype=torch.bool)

    @property
    def known(self) -> bool:
        """Whether there are any."""
        return self._strip or self._index_of is not None

    def require(self, name: str) -> None:
        """Makes sure that there are any, for what is called so.

        Raises:
            ConfigError: Where there are none.
        """
        if not self.known:
            raise ConfigError(
                f"{name} needs each example's index: wrap the data set, DataLoader("
                "Indexed(dataset), ...), or give index_of=fn(batch) -> int64[N]"
            )

    def begin_epoch(self) -> None:
        """From here on each index may come again."""
        self._given.zero_()

    def take_off(self, batch: Any, place: str) -> tuple[Any, Tensor]:
        """The batch as training wants it, and int64[N], the indices of its examples.

        Args:
            batch: As the wrapped loader gave it.
            place: Which one it is, for errors.

        Raises:
            BatchError: Where indices are missing or no whole numbers, or one is negative, too
                large, or came before in this epoch.
        """
        indices: Any
        if self._strip:
            indices, batch = batch
        else:
            indices = cast(IndexOf, self._index_of)(batch)
        count = tree.size(batch)
        if not isinstance(indices, Tensor):
            indices = _tensor(indices, place)
        if indices.shape != (count,) or indices.dtype not in _WHOLE:
            raise BatchError(
                f"{place} has {count} examples, and its indices are {indices.dtype} of shape "
                f"{list(indices.shape)}: give one whole number each, int64[{count}]"
            )
        indices = indices.to("cpu", torch.int64)
        if count:
            self._check(indices, place)
        return batch, indices

    def _check(self, indices: Tensor, place: str) -> None:
        least, most = int(indices.min()), int(indices.max())
        if least < 0:
            raise BatchError(f"{place} has the index {least}: give indices from 0 on")
        if self.examples is not None and most >= self.examples:
            raise BatchError(
                f"{place} has the index {most}, and the data set has {self.examples} examples: "
                f"give indices from 0 to {self.examples - 1}"
            )
        if most >= len(self._given):
            more = max(most + 1, 2 * len(self._given)) - len(self._given)
            self._given = torch.cat((self._given, torch.zeros(more, dtype=torch.bool)))
        ordered = indices.sort().values
        repeated = torch.cat((indices[self._given[indices]], ordered[1:][ordered.diff() == 0]))
        self._given[indices] = True
        if len(repeated):
            raise BatchError(
                f"the index {int(repeated[0])} came before {place} in this epoch, or twice in it: "
                "remembered scores need each example at most once an epoch, so sample "
                "without replacement and give each example an index of its own"
            )


def _tensor(indices: Any, place: str) -> Tensor:
    try:
        return torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError):
        raise BatchError(
            f"the indices of {place} are a {type(indices).__name__} that is no tensor: give one "
            "whole number an example, int64[N]"
        ) from None


def _count(loader: object) -> int | None:
    """How many examples a loader is over: what it or its sampler says, or its data set's length."""
    for owner in (loader, getattr(loader, "sampler", None)):
        if hasattr(owner, "examples"):
            return int(cast(Any, owner).examples)
    data = getattr(loader, "dataset", None)
    if data is None or isinstance(data, IterableDataset):
        return None
    return len(data)
