"""Examples with their index in the data set, and checks of these indices."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    get_worker_info,
)

from siftback.arguments import check_object, is_integer
from siftback.batches.collating import Collate, Reordered, TestedCollate, with_test
from siftback.batches.order import (
    TrackedBatches,
    first_rows,
    index_tensor,
    inner_datasets,
    is_table,
    is_trackable,
    sampler_of,
    with_attributes,
    with_order,
)
from siftback.errors import BatchError, ConfigError
from siftback.tensor_arguments import check_within, is_dense

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

CARRY = (
    "have each example carry its index through it, and give Indexed(loader, index_of=fn), where "
    "fn(batch) gives the indices of a batch, as in docs/guides/loaders.md"
)

IndexOf = Callable[[Any], Tensor]
"""``index_of(batch) -> int64[N]``, the dataset indices of a batch's examples."""


def Indexed(source: Any, index_of: IndexOf | None = None) -> Any:  # noqa: N802 - stands for classes
    """Wraps a data set or a loader so that it gives the indices of its examples too.

    A `SelectiveLoader` over a ``DataLoader`` of a map-style data set knows the indices without
    this. It is for iterable data sets, for loaders of other kinds, and for a `SelectiveSampler`
    that is used alone.

    Args:
        source: A data set, map-style or iterable: each example becomes ``(index, example)``, and a
            loader over it gives ``(indices, batch)``. An iterable one must give the same examples
            in the same order each epoch, as an example's index is its position; each worker
            process counts its own examples: its n-th gets ``n * workers + worker``. Or a
            ``DataLoader`` over a map-style data set, with a collate function that keeps the order
            and number of examples; or, with ``index_of``, any loader.
        index_of: ``index_of(batch) -> int64[N]``, for a loader whose batches hold the indices,
            such as those that rode with their examples through a collate function that sorts,
            leaves out or repeats examples. Those of a ``DataLoader`` over a map-style data set
            are positions in the data set; it is still ordered and drawn from before it is read.

    Raises:
        ConfigError: If ``source`` is none of these.

    >>> data = Indexed(["a", "b", "c"])
    >>> len(data), data[1]
    (3, (1, 'b'))
    >>> loader = Indexed([{"id": torch.tensor([7, 8])}], index_of=lambda batch: batch["id"])
    >>> [indices for indices, batch in loader]
    [tensor([7, 8])]
    """
    if _is_indexed_data(source) or is_indexed(source):
        raise ConfigError("Indexed(...) of what is Indexed already: its examples have their index")
    if index_of is not None:
        check_object("index_of", index_of, "index_of=fn(batch) -> int64[N]", "__call__")
        return _IndexedLoader(source, index_of, finds_indices=is_trackable(source))
    if is_trackable(source):
        order = TrackedBatches(source.batch_sampler)
        source = testing_order(with_order(source, order))
        return _IndexedLoader(source, lambda _: torch.tensor(order.take()))
    if isinstance(source, DataLoader):
        raise ConfigError(
            "a DataLoader of this kind does not say which examples a batch has: give it "
            "Indexed(dataset), or give Indexed(loader, index_of=fn)"
        )
    if hasattr(source, "__getitem__") and not isinstance(source, IterableDataset):
        return _IndexedMap(source)
    if hasattr(source, "__iter__"):
        return _IndexedIterable(source)
    raise ConfigError(
        f"a {type(source).__name__} has neither __getitem__ nor __iter__: give a data set"
    )


class _IndexedMap(Dataset[tuple[int, Any]]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return index, self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> list[tuple[int, Any]]:
        fetch = getattr(self.dataset, "__getitems__", None)  # a batch in one call
        examples = fetch(indices) if fetch else [self.dataset[index] for index in indices]
        return list(zip(indices, examples, strict=True))


class _IndexedIterable(IterableDataset[tuple[int, Any]]):
    counts_by_worker = True

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        stream, epoch = self.dataset, getattr(self.dataset, "epoch", 0)
        if epoch and type(stream).__module__.startswith("datasets.") and stream.num_shards > 1:
            raise BatchError(
                f"set_epoch({epoch}) reorders the table's {stream.num_shards} shards: leave it "
                "out, or number the rows in a column, and give Indexed(loader, index_of=fn)"
            )
        worker = get_worker_info()
        first, stride = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number, example in enumerate(self.dataset):
            yield first + number * stride, example

    def __len__(self) -> int:
        return len(self.dataset)


class _IndexedLoader:
    """Any loader, whose batches are given with the indices that a function finds in them.

    Args:
        loader: The loader.
        index_of: The function.
        finds_indices: Whether the loader's order is known too, which the indices must be of.
    """

    indexed = True

    def __init__(self, loader: Any, index_of: IndexOf, *, finds_indices: bool = False) -> None:
        self.loader, self._index_of, self.finds_indices = loader, index_of, finds_indices

    def __iter__(self) -> Iterator[tuple[Tensor, Any]]:
        # Not a generator: the loader draws its order as it is iterated, not at its first batch.
        batches = getattr(self, "batch_sampler", None)
        check_end = getattr(batches, "check_end", tuple)
        self._epoch = epoch = object() if isinstance(batches, TrackedBatches) else None
        return chain(map(partial(self._indexed, epoch), self.loader), check_end())

    def _indexed(self, epoch: object, batch: Any) -> tuple[Tensor, Any]:
        if isinstance(batch, Reordered):
            raise BatchError(f"the {batch.cause} gives examples in another order: {CARRY}")
        if epoch is not self._epoch:
            raise BatchError("the loader was iterated again: take the batches of one iter(loader)")
        return self._index_of(batch), batch

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # a copy without attributes yet
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)


def is_indexed(loader: object) -> bool:
    """Whether a loader gives ``(indices, batch)``.

    A ``DataLoader`` does so over `Indexed` examples; any other loader declares it by an attribute
    ``indexed = True``.
    """
    data = getattr(loader, "dataset", None)
    declared = getattr(loader, "indexed", False) is True
    return declared or (isinstance(loader, DataLoader) and _is_indexed_data(data))


def _is_indexed_data(data: object) -> bool:
    if isinstance(data, Subset | ConcatDataset):
        wrapped = [data.dataset] if isinstance(data, Subset) else data.datasets
        if any(_is_indexed_data(dataset) for dataset in wrapped):
            kind = type(data).__name__
            raise ConfigError(
                f"a {kind} of Indexed(...) gives the indices of another data set as examples: "
                f"give Indexed({kind}(...))"
            )
    return isinstance(data, _IndexedMap | _IndexedIterable)


def testing_order(loader: Any) -> Any:
    """The same loader, whose first batch is `Reordered` if its rows are not as it asked for them.

    Over `Indexed` examples it gives ``(indices, batch)``, with any collate function, which is
    called with the examples without their index.
    """
    # Without a batch sampler its examples are batches already.
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None:
        return loader
    dataset = loader.dataset
    is_indexed = _is_indexed_data(dataset)
    while isinstance(dataset, Subset | _IndexedMap):
        dataset = dataset.dataset
    # Those of PyTorch and of Hugging Face keep the order.
    is_known = type(dataset).__module__.startswith(("torch.", "datasets."))
    read = None if is_known else getattr(dataset, "__getitems__", None)
    tested = with_test(loader.collate_fn, read)
    return with_attributes(loader, collate_fn=_IndexedCollate(tested) if is_indexed else tested)


def end_test(loader: Any) -> None:
    """Has the collate function of a loader `testing_order` not be tested in workers made later."""
    collate = getattr(loader, "collate_fn", None)
    if isinstance(collate, _IndexedCollate):
        collate = collate.function
    if isinstance(collate, TestedCollate):
        collate.tested = True


class _IndexedCollate:
    """Collates pairs of index and example to ``(indices, batch)``; sent to worker processes."""

    def __init__(self, collate: Collate) -> None:
        self.function = collate

    def __call__(self, pairs: list[tuple[int, Any]]) -> tuple[Tensor, Any]:
        indices, examples = zip(*pairs, strict=True)
        return torch.tensor(indices), self.function(list(examples))


def check_indices(indices: Any, count: int, where: str) -> Tensor:
    """The indices of a batch as int64[N] on the CPU.

    Args:
        indices: Indices as given by the wrapped loader.
        count: N.
        where: Description of the batch, for the error.

    Raises:
        BatchError: If there is not one integer per example.
    """
    try:
        indices = torch.as_tensor(indices)
    except (TypeError, ValueError, RuntimeError):
        raise BatchError(
            f"the indices of {where} are a {type(indices).__name__} that is not a tensor: "
            f"give one integer for each example, int64[{count}]"
        ) from None
    if indices.shape != (count,) or indices.dtype not in _INTEGERS:
        raise BatchError(
            f"{where} has {count} examples, and its indices are {indices.dtype} of shape "
            f"{list(indices.shape)}: give one integer for each, int64[{count}]; where a collate "
            f"function leaves out or repeats examples, {CARRY}"
        )
    # A copy, as a loop or a loader may fill the same memory with the indices of the next batch.
    return cast(Tensor, indices).to("cpu", torch.int64, copy=True)


class IndexCheck:
    """Checks that indices are within the data set, and distinct within an epoch.

    Args:
        examples: Number of examples; None if unknown.
        repeats: Whether an index may repeat within an epoch, as from a sampler that draws
            with replacement.
        rows_of: The row of each example, where only some of them come: int64[N] to int64[N].
    """

    def __init__(
        self,
        examples: int | None,
        *,
        repeats: bool = False,
        rows_of: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.examples, self._repeats, self._rows_of = examples, repeats, rows_of
        # NumPy takes a fraction of PyTorch's time for as few numbers as a batch has.
        self._given = np.zeros(0 if rows_of else examples or 0, dtype=bool)

    def begin_epoch(self) -> None:
        """Starts a new epoch, in which each index may appear again."""
        self._given[:] = False

    def check(self, indices: Tensor, where: str) -> None:
        """Checks the indices of a batch.

        Args:
            indices: int64[N], on the CPU.
            where: Description of the batch, for the error.

        Raises:
            BatchError: If one is negative, too large, or repeated in this epoch.
        """
        if not len(indices):
            return
        size = math.inf if self.examples is None else self.examples
        check_within(f"the indices of {where}", indices, size, "give indices of the data set")
        if self._repeats:
            return
        numbers = np.sort(indices.numpy())
        rows = self._rows_of(torch.from_numpy(numbers)).numpy() if self._rows_of else numbers
        last, size = rows.max(), len(self._given)
        if last >= size:
            self._given = np.pad(self._given, (0, max(last + 1 - size, size)))
        is_repeated = self._given[rows]
        is_repeated[1:] |= numbers[1:] == numbers[:-1]
        self._given[rows] = True
        if is_repeated.any():
            raise BatchError(
                f"the index {numbers[is_repeated][0]} came before {where} in this epoch, or twice "
                "in it: remembered losses need each example at most once per epoch, so sample "
                "without replacement and give each example an index of its own"
            )


def examples_of(loader: Iterable[Any]) -> int | None:
    """Number of examples, as a loader, its data set or its sampler says; None if unknown."""
    inner = getattr(loader, "loader", loader)
    is_batched = hasattr(getattr(inner, "batch_sampler", ()), "__iter__")
    if isinstance(inner, DataLoader) and not is_batched and length_of(inner.dataset):
        return None  # batch_size=None: an item of the data set may be a whole batch
    # Of a loader or sampler of the user's own, attributes of that name may be anything.
    stated, sampled = (getattr(owner, "examples", None) for owner in (loader, sampler_of(loader)))
    counts: list[Any] = [stated, length_of(getattr(loader, "dataset", None)), sampled]
    return next((int(count) for count in counts if is_integer(count)), None)


def length_of(dataset: Any) -> int | None:
    """Returns the length of a map-style data set; None where it has none."""
    known = hasattr(dataset, "__len__") and not isinstance(dataset, IterableDataset)
    return len(dataset) if known else None


def fingerprint(dataset: Any, *within: Any) -> Any:
    """Returns what a data set says of its examples, which differs between shards of equal length.

    No example is read, as a data set may open its files where it is first read.

    Args:
        dataset: The data set.
        within: Those that it was found in.

    >>> fingerprint(Subset(TensorDataset(torch.arange(9)), [2, 5]))
    [tensor([2, 5]), [tensor([0, 1, 2, 3, 4, 5, 6, 7])]]
    """
    if isinstance(dataset, Subset):
        return [index_tensor(dataset.indices), fingerprint(dataset.dataset, *within, dataset)]
    if isinstance(dataset, TensorDataset):
        return [tensor[:8] for tensor in dataset.tensors if is_dense(tensor)]
    if is_table(dataset):
        return first_rows(dataset)
    inner = inner_datasets(dataset, *within)
    return [fingerprint(member, *within, dataset) for member in inner] or None


def check_length(maker: str, examples: int, dataset: Any) -> None:
    """Checks that a data set has as many examples as something was made for.

    Args:
        maker: Name of what was made for it, for the error.
        examples: Length of the data set then.
        dataset: The data set.

    Raises:
        ConfigError: If its length is another one now.

    >>> check_length("SelectiveLoader", 3, ["a", "b", "c"])
    """
    length = length_of(dataset)
    if length is None or length == examples:
        return
    if length > examples:
        advice = (
            f", whose new examples would never be read: make a new {maker}, with the same rule, "
            "and call its set_epoch(n) to go on with this training"
        )
    else:
        advice = f": make a new {maker}, and a new rule for it, as rules remember examples by index"
    raise ConfigError(
        f"the data set had {examples} examples when the {maker} was made, and has {length} "
        f"now{advice}"
    )
