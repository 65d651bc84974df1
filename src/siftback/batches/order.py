"""The order of a DataLoader's batches: which examples each has, and how to come back to a place."""

import copy
import itertools
import operator
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from functools import partial
from threading import get_ident
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler

from siftback.batches.generators import Generators
from siftback.errors import BatchError, StateError
from siftback.state import Check, Stateful, integer, tensor_checksum

_MOST_PASSES = 1000  # of an epoch over the data set, if that is of a million examples or more
END: Any = object()  # after the last batch; not None, which arrays compare to by element

_ENDLESS = (
    "where the order never ends, nor does the first epoch, in which nothing is left out. Give a "
    "sampler that ends and has a length, or shuffle=True, and iterate over the loader each epoch"
)


class TrackedBatches(Sampler[list[Any]]):
    """A batch sampler that remembers which examples each batch has, until the batch has come.

    A ``DataLoader`` gives batches in the order in which it asked for them, worker processes or
    not. So the examples of the batch that came are those that were asked for first: their indices
    are known without being part of the batch.

    Args:
        batches: The batch sampler whose order this is.
        examples: The number of examples of the data set.

    Attributes:
        begun: Whether a batch was asked for, since whoever reads it last set it to False.
        is_over: Whether all batches of an epoch were asked for.

    >>> batches = TrackedBatches(BatchSampler(range(5), batch_size=2, drop_last=False))
    >>> asked = [next(order) for order in [iter(batches)] for _ in range(2)]
    >>> batches.take()
    [0, 1]
    >>> batches.rest()
    [[2, 3], [4]]
    """

    def __init__(self, batches: Iterable[Any], examples: int = 1 << 40) -> None:
        self.batches, self._examples = batches, examples
        self._asked: deque[list[Any]] = deque()  # for batches that have not come yet
        self._order: Iterator[Any] = iter(())
        self._ahead = self._thread = -1  # batches that waited after the first one; who asks
        self.begun = self.is_over = False
        self._resumed: Iterable[Any] | None = None
        self._before: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self.batches)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[list[Any]]:
        # Nothing is drawn before the first batch is asked for: a DataLoader may call this twice.
        self._asked.clear()
        self._ahead = -1
        return self._ask()

    def __getattr__(self, name: str) -> Any:
        # Of a copy that is being made; and a state is that of the order, not of its batches.
        if name in ("batches", "state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.batches, name)  # which a loader of the user's own may read

    def take(self) -> list[Any]:
        """The indices of the batch that came next.

        Raises:
            BatchError: If no batch was asked for: the loader has another order than this one; or
                if one before was asked for and did not come.
        """
        if not self._asked:
            raise BatchError(
                "the wrapped DataLoader gave a batch that its batch_sampler was not asked for: "
                "wrap the DataLoader itself, before anything else wraps or prepares it; one that "
                "keeps its iterator for all epochs is a DataLoader(..., persistent_workers=True)"
            )
        batch, waiting = self._asked.popleft(), len(self._asked)
        self._ahead = waiting if self._ahead < 0 else self._ahead
        # It asks no further ahead than at first; in a thread of its own, as far as it comes.
        if waiting > self._ahead and self._thread == get_ident():
            raise self.left_out(waiting - self._ahead)
        return batch

    def check_end(self) -> Iterator[Any]:
        """Yields nothing: makes sure that all batches came which a loader asked for.

        Raises:
            BatchError: If some did not, as those of a loader that leaves batches out.
        """
        if self.is_over and self._asked:
            raise self.left_out(len(self._asked))
        yield from ()

    def left_out(self, count: int) -> BatchError:
        """Returns the error that a number of batches were asked for and did not come."""
        return BatchError(
            f"the wrapped loader asked its batch_sampler for {count} batches of this epoch that it "
            "did not give, so that which examples the others have is not known: leave batches out "
            "by the batch_sampler"
        )

    def rest(self) -> list[list[Any]]:
        """The indices of the batches of this epoch that have not come, asked for or not.

        Raises:
            StateError: If they go on for ten times as many batches as an epoch has.
        """
        if self._resumed is not None:  # and none of it was asked for yet
            return [list(batch) for batch in self._resumed]
        most = 10 * self._usual_length()
        left = [list(batch) for batch in itertools.islice(self._order, most)]
        if len(left) == most > 0:
            self._order = itertools.chain(left, self._order)
            raise StateError(f"the rest of this epoch is too long for a state: {_ENDLESS}")
        self._order = iter(left)
        return [*self._asked, *left]

    def _usual_length(self) -> int:
        """Returns how many batches an epoch has: its length, or those of the whole data set."""
        size = getattr(self.batches, "batch_size", None) or 1
        return len(self) if ends(self, self._examples, size) else -(-self._examples // size)

    def resume(self, batches: Iterable[Any]) -> None:
        """Has the next epoch that is begun consist of these batches."""
        self._resumed, self.begun = batches, True

    def draw_after(self, generators: Generators, states: list[Any]) -> None:
        """Puts generators into a state just before the next epoch's order is drawn from them."""
        self._before = partial(generators.put_back, states)

    def _ask(self) -> Iterator[list[Any]]:
        self.is_over = False
        if self._before:
            self._before()
        order = self.batches if self._resumed is None else self._resumed
        sampler: Any = getattr(order, "sampler", None)
        begun = getattr(sampler, "epochs_begun", -1) if getattr(sampler, "draw", None) else -1
        self._resumed = self._before = None
        self._order, number, usual = iter(order), 0, 0
        while (batch := next(self._order, END)) is not END:
            usual = usual or self._usual_length()  # which a draw may say with its first example
            if number == usual:
                warnings.warn(f"an epoch goes on after all its batches: {_ENDLESS}", stacklevel=2)
            number += 1
            if begun >= 0 and begun == sampler.epochs_begun:
                raise BatchError(
                    f"a {type(order).__name__} gives batches of an order from before this epoch, "
                    "and a rule draws each one anew: have its __iter__ iterate its sampler"
                )
            self.begun = True  # not before, as what it is drawn from may be interrupted
            self._asked.append(list(batch))
            self._thread = get_ident()
            yield self._asked[-1]
        self._order, self.is_over = iter(()), True  # a generator could not be copied


def ends(order: Any, examples: int, batch_size: int = 1) -> bool:
    """Returns whether an order has a length that a training comes to the end of.

    One for a loop that counts steps may say 10 billion, of which an epoch would never end.

    Args:
        order: An order of examples, or of batches.
        examples: The number of examples of the data set.
        batch_size: Examples per batch.

    >>> from torch.utils.data import RandomSampler
    >>> data = range(100)
    >>> [ends(RandomSampler(data, True, count), len(data)) for count in (200, 10**10)]
    [True, False]
    """
    with suppress(TypeError):
        return len(order) * batch_size < _MOST_PASSES * max(examples, 1_000_000)
    return False


def count_batches(examples: int, batch_size: int, drop_last: bool = False) -> int:
    """Returns the number of batches of some examples, none of which has a single row.

    A last batch of a single row shares the rows of the batch before it: B and 1 become B - 1 and 2,
    and 2 and 1 become 3. Only a single example, or a ``batch_size`` of 1, makes batches of one row.

    Args:
        examples: Number of examples.
        batch_size: Examples per batch.
        drop_last: Whether a last batch of fewer is left out.

    >>> count_batches(9, 4), count_batches(9, 4, drop_last=True), count_batches(5, 2)
    (3, 2, 2)
    """
    if drop_last:
        return examples // batch_size
    is_merged = batch_size == 2 and examples % 2 == 1 and examples > 1
    return -(-examples // batch_size) - is_merged


class SelectiveBatches(Stateful, BatchSampler):
    """Batches of an order from which examples are left out, none of a single row.

    Batch normalisation stops at a batch of one row, and how many rows the last batch has changes
    with every draw. So a last row that would be alone shares the rows of the batch before it, see
    `count_batches`. Where nothing is left out, batches are those of PyTorch's ``BatchSampler``.

    A state is of its sampler and of the place in the order, as a ``StatefulDataLoader`` saves it.

    Args:
        sampler: The order, with the ``draw`` that leaves examples out of it, if there is one.
        batch_size: Examples per batch.
        drop_last: Whether a last batch of fewer is left out.

    >>> list(SelectiveBatches(range(7), 3, False))
    [[0, 1, 2], [3, 4, 5], [6]]
    >>> from siftback import Epochs, Memory, SelectiveSampler
    >>> rule = Memory(keep=0.7, warmup=Epochs(0))
    >>> sampler = SelectiveSampler(range(10), rule, shorter_epochs=True)
    >>> [len(batch) for batch in SelectiveBatches(sampler, 3, False)]
    [3, 2, 2]
    """

    _count = 0  # examples of this epoch that were in batches
    _place = 0, 0  # the epoch that the next iter() goes on within, and its examples before

    def __iter__(self) -> Iterator[list[int]]:
        place, self._place = self._place, (0, 0)
        self._count = place[1]
        return self._batches(*place)

    def _batches(self, epoch: int, count: int) -> Iterator[list[int]]:
        size, order = self.batch_size, cast(Any, iter(self.sampler))
        take = getattr(order, "take", lambda size: list(itertools.islice(order, size)))
        if count:
            order.resume(epoch, count)
        batch = take(1)  # an epoch begins, and is drawn, with its first index
        draw = getattr(self.sampler, "draw", None)
        shares_rows = draw and draw.leaves_out and size > 1 and not self.drop_last
        while batch:
            rows = size
            if shares_rows and len(self.sampler) - count == size + 1:  # type: ignore[arg-type]
                rows = 3 if size == 2 else size - 1
            batch += take(rows - 1)
            self._count = count = count + len(batch)
            if len(batch) >= size or not self.drop_last:
                yield batch
            batch = take(1)

    def members(self) -> dict[str, Any]:
        """Returns the sampler."""
        return {"sampler": self.sampler}

    def state_fields(self) -> dict[str, Check]:
        """Returns the number of examples of this epoch that were in batches."""
        return {"_count": integer()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Has the next ``iter()`` go on within another one's epoch."""
        super().load_state_dict(state)
        self._place = state["sampler"]["last"], self._count

    def __len__(self) -> int:
        draw = getattr(self.sampler, "draw", None)
        if not (draw and draw.leaves_out):
            return super().__len__()
        return count_batches(len(self.sampler), self.batch_size, self.drop_last)  # type: ignore[arg-type]


def is_trackable(loader: object) -> bool:
    """Whether a loader gives batches in an order of indices: a DataLoader of a map-style data set.

    >>> is_trackable(DataLoader(range(4))), is_trackable([1, 2])
    (True, False)
    """
    inner = data_loader_of(loader)
    return (
        isinstance(inner, DataLoader)
        and inner.batch_sampler is not None
        and not isinstance(inner.dataset, IterableDataset)
        and keeps_order(inner)
    )


def data_loader_of(loader: Any) -> Any:
    """Returns what gives a loader's batches: itself, or the loader that it finds indices for."""
    return loader.loader if has_indices_within(loader) else loader


def has_indices_within(loader: Any) -> bool:
    """Whether the indices of a loader's batches are found in them, and checked by its order."""
    return getattr(loader, "finds_indices", False) is True


def keeps_order(loader: object) -> bool:
    """Whether a loader gives batches in the order in which it asked for them.

    >>> keeps_order(DataLoader(range(4), num_workers=2, in_order=False))
    False
    """
    return getattr(loader, "in_order", True) or getattr(loader, "num_workers", 0) == 0


def with_order(loader: "DataLoader[Any]", batches: TrackedBatches) -> Any:
    """The same loader, except for the examples that its batches have.

    Workers, pinning, collating and whatever else a subclass has stay as they are.

    Args:
        loader: One that `is_trackable`; it is not changed.
        batches: A batch sampler.
    """
    if has_indices_within(loader):
        return with_attributes(loader, loader=with_order(data_loader_of(loader), batches))
    sampler = getattr(batches.batches, "sampler", loader.sampler)
    return with_attributes(loader, batch_sampler=batches, sampler=sampler)


def with_attributes(loader: Any, /, **attributes: Any) -> Any:
    """Returns a copy of a loader with other attributes, which has no iterator yet."""
    same = copy.copy(loader)
    # A DataLoader refuses that some are set once it was made, as its iterator may have read them.
    same.__dict__.update(attributes, _iterator=None)
    return same


def batches_of(loader: object) -> Any:
    """The batch sampler of a loader; None where it has none."""
    batches = getattr(loader, "batch_sampler", None)
    return batches.batches if isinstance(batches, TrackedBatches) else batches


def sampler_of(loader: object) -> Any:
    """The sampler that a loader's batches are made from; None where it has none.

    Of a loader that was given a batch sampler it is the one within that.

    >>> sampler_of(DataLoader(range(4), batch_sampler=BatchSampler(range(3), 2, False)))
    range(0, 3)
    """
    return getattr(batches_of(loader), "sampler", getattr(loader, "sampler", None))


def is_plain(batches: object) -> bool:
    """Whether a batch sampler is one that cuts a sampler's order into batches, and no more.

    >>> is_plain(DataLoader(range(4)).batch_sampler)
    True
    """
    kind = type(batches)
    return kind in (BatchSampler, SelectiveBatches) or (
        kind.__name__ == "BatchSampler" and kind.__module__.startswith("torchdata.")
    )


def index_tensor(keys: Sequence[Any]) -> Tensor | None:
    """Returns int64[n], a sampler's keys; None where one is not an integer.

    >>> index_tensor([3, True]), index_tensor([0.5])
    (tensor([3, 1]), None)
    """
    with suppress(TypeError, ValueError, RuntimeError):
        # NumPy reads a list of integers several times as fast as PyTorch.
        array = np.array(keys)
        if array.dtype == np.int64 and array.ndim == 1:
            return torch.from_numpy(array)
    with suppress(TypeError):
        return torch.tensor([operator.index(key) for key in keys], dtype=torch.int64)
    return None


def subset_name(dataset: Any, *within: Any) -> str:
    """Returns a checksum of the indices of each ``Subset`` in a data set, and of tables of it.

    A state within another split, such as one of a ``random_split`` with another seed, would be of
    other examples. Of a data set without any, nothing is returned.

    Args:
        dataset: The data set.
        within: Those that it was found in.

    >>> from torch.utils.data import Subset
    >>> subset_name(Subset(range(9), [2, 5])), subset_name(range(9))
    ('crc32 23fb6052 of 2', '')
    """
    inner = inner_datasets(dataset, *within)
    names = [subset_name(member, *within, dataset) for member in inner]
    indices: Any = dataset.indices if inner and hasattr(dataset, "indices") else None
    if is_table(dataset):
        indices = first_rows(dataset)
    elif isinstance(indices, Sized):  # which is anything in a data set of a user's own
        indices = index_tensor(cast(Sequence[Any], indices))
    if isinstance(indices, Tensor):
        names.insert(0, f"crc32 {tensor_checksum(indices):08x} of {len(indices)}")
    return " ".join(filter(None, names))


def inner_datasets(dataset: Any, *within: Any) -> list[Any]:
    """Returns the data sets that a data set is made of, whatever its attributes are called.

    Args:
        dataset: The data set.
        within: Those that it was found in, which are left out: data sets may know each other.

    >>> from torch.utils.data import StackDataset, Subset
    >>> inner_datasets(Subset(range(9), [2, 5])), inner_datasets(StackDataset(x=[1], y=[2]))
    ([range(0, 9)], [[1], [2]])
    """
    if is_table(dataset):
        return []
    joined = getattr(dataset, "datasets", None)
    joined = list(joined.values()) if isinstance(joined, dict) else joined
    if not isinstance(joined, list | tuple):
        members = getattr(dataset, "__dict__", {}).values()
        joined = [member for member in members if isinstance(member, Dataset) or is_table(member)]
        if hasattr(dataset, "dataset") and all(dataset.dataset is not member for member in joined):
            joined.insert(0, dataset.dataset)
    holders = dataset, *within
    return [member for member in joined if all(member is not holder for holder in holders)]


def is_table(dataset: Any) -> bool:
    """Returns whether a data set is a table of Hugging Face ``datasets``."""
    return type(dataset).__module__ == "datasets.arrow_dataset"


def first_rows(table: Any) -> Tensor:
    """Returns uint8[n], the first rows of a table of Hugging Face ``datasets``."""
    rows = str(table.with_format("arrow")[:8].to_pydict()) if len(table) else ""
    return torch.frombuffer(bytearray(rows + " ", "utf-8"), dtype=torch.uint8)
