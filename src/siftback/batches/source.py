"""The wrapped loader: where in it training is, which examples come, and how to come back there."""

import copy
import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.data import default_collate

from siftback.batches import tree
from siftback.batches.batch import Batch
from siftback.batches.collating import Reordered
from siftback.batches.generators import Generators
from siftback.batches.indices import check_indices, end_test, examples_of, is_indexed, testing_order
from siftback.batches.order import (
    END,
    TrackedBatches,
    batches_of,
    data_loader_of,
    has_indices_within,
    index_tensor,
    is_plain,
    is_trackable,
    keeps_order,
    sampler_of,
    subset_name,
    with_order,
)
from siftback.batches.tree import Lists, read_structure
from siftback.errors import BatchError, StateError
from siftback.seeding import Stream, generator_from
from siftback.state import (
    MOST_EPOCHS,
    anything,
    check_entries,
    choice,
    dict_of,
    flag,
    integer,
    list_of,
    load_all_or_none,
    nothing,
    optional,
    raise_damaged,
    tensor,
    text,
)
from siftback.tensor_arguments import check_batches


class ScoredBatch(NamedTuple):
    """A batch whose scores were made before it is given, as `contrib.Pipelined` gives them.

    Attributes:
        batch: The batch.
        scores: float32[N], one for each of its examples.
    """

    batch: Any
    scores: Tensor


UNKNOWN_SIZE = -1
"""The size of a batch of unknown structure, where nothing else says it."""


class Source:
    """A loader, iterated once an epoch, with the place in it.

    The place is moved by whoever takes the batches, once a batch is dealt with (`position`), and
    at the end of an epoch (`end_epoch`).

    Of a ``DataLoader`` over a map-style data set the indices of each batch are known, and to come
    back to a place none of the batches done is read again: the rest of the epoch's order is part
    of the state. Any other loader is asked for a state of its own; where it has none, the batches
    done are read again and skipped, after the generators that ordered them were put back: the
    loader's, its sampler's and PyTorch's global one, which is then left as it was.

    Args:
        loader: Any iterable of batches. One that says ``indexed = True``, or is over an `Indexed`
            data set, gives pairs ``(indices, batch)``.
        batches: A batch sampler to take the place of the loader's own; for a ``DataLoader`` only.

    Attributes:
        loader: What is iterated.
        is_ordered: Whether the order of the examples is known before they are read.
        epoch: The current epoch, from 0; or the next one, between epochs.
        position: Batches of this epoch that were dealt with.
        lists: Which lists in a batch hold one example per entry, as the first batch said; None
            where none has come that can be split into examples.
        order_is_lost: What gives examples in another order, in words; nothing where none does.
        has_keys: Whether the sampler gives keys that are not integers.

    >>> source = Source([torch.tensor([1]), torch.tensor([2]), torch.tensor([3])])
    >>> first = next(source.batches())
    >>> source.position += 1
    >>> resumed = Source([torch.tensor([1]), torch.tensor([2]), torch.tensor([3])])
    >>> resumed.load_state_dict(source.state_dict())
    >>> [batch.data.item() for batch in resumed.batches()]
    [2, 3]
    """

    def __init__(self, loader: Iterable[Any], batches: Iterable[Any] | None = None) -> None:
        self.epoch = self.position = 0
        self._order: Any = None  # a `TrackedBatches`, where the order can be known
        self.lists: Lists | None = None
        self.order_is_lost, self.has_keys = "", False
        self._indexed = is_indexed(loader)
        self.loader: Any = check_batches(loader)
        self.is_ordered = is_trackable(loader)
        if self.is_ordered:
            batches = batches_of(loader) if batches is None else batches
            self._order = TrackedBatches(batches, examples_of(loader) or 1 << 24)
            self.loader = with_order(cast(Any, loader), self._order)
        self._collated = getattr(data_loader_of(loader), "collate_fn", None) is default_collate
        if self.knows_indices:
            self.loader = testing_order(self.loader)
        # By identity, as the truth of a batch sampler is its length, which it may not have.
        batches = getattr(self._order, "batches", None)
        self._generators = Generators([self.loader, data_loader_of(self.loader), batches])
        self._began: list[Any] = []  # the generators' states as the epoch began
        self._state: dict[str, Any] = {}  # to be gone on from; empty without one
        self._iterated = False
        self._batches: int | None = None  # of this epoch, 0 where that is not known

    def batches(self) -> Iterator[Batch]:
        """The batches of this epoch: from the place of a loaded state on, else from the start."""
        state, self._state = self._state, {}
        self._batches = None
        if not state:
            self.position = 0
        if not self.is_ordered:
            return map(self._batch, self._read(state))
        return itertools.chain(map(self._batch, self._ordered(state)), self._order.check_end())

    def end_epoch(self) -> None:
        """Moves on to the next epoch."""
        end_test(self.loader)
        self.go_to(self.epoch + 1)

    def go_to(self, epoch: int) -> None:
        """Goes to the beginning of an epoch, which may be the current one."""
        self.epoch, self.position, self._state, self._batches = epoch, 0, {}, None
        if self.is_ordered:
            self._order.begun = False

    @property
    def is_resumed(self) -> bool:
        """Whether a state was loaded that no epoch has yet gone on from."""
        return bool(self._state)

    @property
    def is_within(self) -> bool:
        """Whether batches of this epoch were read."""
        return self.position > 0

    @property
    def is_exhausted(self) -> bool:
        """Whether all batches of this epoch were read, though the loop did not end yet."""
        return 0 < (self._length() or 0) <= self.position

    @property
    def knows_indices(self) -> bool:
        """Whether batches come with the indices of their examples."""
        return self._indexed or self.is_ordered

    @property
    def place(self) -> str:
        """The current batch, in words.

        >>> Source([]).place
        'batch 0 of epoch 0'
        """
        return f"batch {self.position} of epoch {self.epoch}"

    @property
    def epochs_done(self) -> float:
        """Epochs done, with the fraction of the current one where the loader has a length."""
        if self.position and self._batches is None:  # known with the first batch at the latest
            self._batches = self._length() or 0
        length = self._batches if self.position else 0
        return self.epoch + (min(self.position / length, 1.0) if length else 0.0)

    def set_epoch(self, epoch: int) -> None:
        """Sets which epoch comes next, also of the loader or of its sampler."""
        if epoch != self.epoch:
            self.go_to(epoch)
        for owner in (self.loader, batches_of(self.loader), sampler_of(self.loader)):
            if hasattr(owner, "set_epoch"):
                owner.set_epoch(epoch)
                break

    def state_dict(self) -> dict[str, Any]:
        """The place, and what the rest of the epoch and later ones come from.

        Raises:
            StateError: Within an epoch of a loader whose order nothing can repeat.
        """
        if self._state:  # nothing was read since it was loaded
            return self._state
        workers = self._iterated and bool(getattr(self.loader, "persistent_workers", False))
        length = self._length()
        state = {
            "settings": self.settings(within=self.is_within),
            "epoch": self.epoch,
            "position": self.position,
            "batches": -1 if length is None else length,
            "workers": workers,
            # As text, since a checkpoint of many processes leaves out a list without entries.
            "lists": None if self.lists is None else json.dumps(sorted(self.lists)),
        }
        if self.is_ordered:
            begun, remaining, sampler = self._order.begun, None, sampler_of(self.loader)
            # Whether the sampler can give the order of this epoch again, from its beginning.
            replays = getattr(sampler, "replays", False) or getattr(sampler, "replays_draws", False)
            if begun and not (replays and is_plain(batches_of(self.loader))):
                # Before the generators' states, which a sampler may draw it from.
                remaining = packed(self._order.rest())
            states = self._generators.states()
            extra = {"kind": "ordered", "generators": states, "rest": remaining, "begun": begun}
            return state | extra
        inner = getattr(self.loader, "loader", self.loader)
        if self.is_within and type(inner).__module__.startswith("torchdata.nodes."):
            raise StateError(
                "a torchdata.nodes.Loader begins another epoch if its state was taken after its "
                "last batch, which it does not tell from the others: save the state between "
                "epochs, or wrap a StatefulDataLoader"
            )
        saved = saved_state(self.loader)
        if saved is None and self.is_within and not keeps_order(self.loader):
            raise StateError(
                "a DataLoader with in_order=False gives batches in an order that cannot be "
                "repeated: save the state between epochs, or leave in_order= out"
            )
        kind = "iterable" if saved is None else "stateful"
        began = self._began if self.is_within else self._generators.states()
        return state | {"kind": kind, "generators": began, "loader": saved}

    def settings(self, *, within: bool = False) -> dict[str, Any]:
        """Returns what the order depends on, ``within`` an epoch, as far as the loader says it."""
        if not self.is_ordered:
            loader = self.loader
            counts = getattr(getattr(loader, "dataset", None), "counts_by_worker", False)
            workers, has_state = getattr(loader, "num_workers", 0), hasattr(loader, "state_dict")
            # Of another number, examples have other indices, or come in another order.
            depends = workers > 0 if has_state else workers > 1 and (counts or within)
            return {"loader": type(loader).__name__} | ({"num_workers": workers} if depends else {})
        sampler, batches = sampler_of(self.loader), self._order.batches
        order = {name: getattr(sampler, name, None) for name in ("shuffle", "seed")}
        kind = {"sampler": type(sampler).__name__, "batch_sampler": type(batches).__name__}
        size = {name: getattr(batches, name, None) for name in ("batch_size", "drop_last")}
        subset = subset_name(getattr(self.loader, "dataset", None))
        return {"source": {**kind, **order, **size}, **({"subset": subset} if subset else {})}

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is of another kind of loader or another order, or is damaged.
        """
        checks = {"kind": choice(*_KINDS), "generators": list_of(anything)}
        check_entries(self, state, checks)
        has_state = state["kind"] != "stateful" or hasattr(self.loader, "load_state_dict")
        if not has_state or self.is_ordered != (state["kind"] == "ordered"):
            raise StateError(
                f"the state was saved with {_KINDS[state['kind']]}, and this "
                f"{type(self.loader).__name__} is not one: wrap the same kind of loader"
            )
        checks = {
            "generators": self._generators.check,
            "epoch": integer(most=MOST_EPOCHS),
            "batches": integer(-1),
            "position": integer(),
            "workers": flag,
            "lists": optional(_check_lists),
        }
        check_entries(self, state, checks, self.settings(within=state.get("position") != 0))
        if self.is_ordered:
            check_entries(self, state, {"begun": flag})
            rest = optional(check_packed) if state["begun"] else nothing
            check_entries(self, state, {"rest": rest})
        else:
            check_entries(self, state, {"loader": anything})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Comes back to a place.

        Raises:
            StateError: As for `check_state`, or if the loader cannot load its own state, before
                anything is changed.
        """
        self.check_state(state)
        if state["kind"] == "stateful":  # whose generators are its own to put back
            with torch.random.fork_rng([]):
                load_all_or_none((self.loader, copy.deepcopy(state["loader"])))
        else:
            self._generators.put_back_own(state["generators"])
        self.epoch, self.position, self._batches = state["epoch"], state["position"], None
        self.lists = saved_lists(state)
        self._state = state

    def _length(self) -> int | None:
        with suppress(TypeError):  # of an iterable without a length
            return len(self.loader)
        return None

    def _ordered(self, state: dict[str, Any]) -> Iterator[Any]:
        order, sampler = self._order, sampler_of(self.loader)
        if getattr(sampler, "replays", False):
            sampler.set_epoch(self.epoch)
        self._iterated = True
        if not state or not state["begun"]:
            if state and state["workers"]:
                # Workers that persist took their seed in an earlier epoch. Those here take one
                # now, from the generator that the order is to come from.
                states = [*state["generators"][:-1], torch.get_rng_state()]
                order.draw_after(self._generators, states)
            return iter(cast(Iterable[Any], self.loader))
        if state["rest"] is None:
            order.resume(itertools.islice(order.batches, self.position, None))
        else:
            order.resume(unpacked(state["rest"]))
        with torch.random.fork_rng([]):  # from which new workers take their seed
            batches: Iterator[Any] = iter(self.loader)
        self._generators.put_back_own(state["generators"])
        return batches

    def _read(self, state: dict[str, Any]) -> Iterator[Any]:
        within = bool(state) and self.is_within
        # A loader that has a state may take numbers from the global generator as it is asked for
        # it, or as it is iterated: in a resumed run at other times. So both leave that one alone.
        has_state = hasattr(self.loader, "state_dict")
        # Workers that persist took their seed in an earlier epoch; new ones must not move a
        # generator.
        again = bool(state) and not within and not has_state and state["workers"]
        self._iterated = True
        # What orders an epoch was drawn as it began, from the global generator too. Drawing it
        # again must not move that one.
        with torch.random.fork_rng([]) if within or again or has_state else nullcontext():
            if within:
                torch.set_rng_state(state["generators"][-1])
            elif has_state:
                seed = int(torch.empty((), dtype=torch.int64).random_())
                torch.set_rng_state(generator_from(seed, self.epoch, Stream.ORDER).get_state())
            self._began = self._generators.states()
            # A stream of `datasets` goes on from its state in later epochs too, and so it does in
            # workers that persist, where it cannot be told to forget it.
            table = getattr(self.loader, "dataset", None)
            is_stream = has_state and type(table).__module__ == "datasets.iterable_dataset"
            if is_stream and state:
                vars(getattr(self.loader, "loader", self.loader))["persistent_workers"] = False
            batches: Iterator[Any] = iter(self.loader)
            if is_stream and not within:
                cast(Any, table).load_state_dict({})
            if within and state["loader"] is None:
                for done in range(self.position):
                    if next(batches, END) is END:
                        raise StateError(
                            f"the state is of after {self.position} batches, and the wrapped "
                            f"{type(self.loader).__name__} gave only {done}: wrap the same loader"
                        )
        if again:
            self._generators.put_back_own(self._began)
        return batches

    def _batch(self, data: Any) -> Batch:
        """Returns a batch as the loader gave it, with its size, indices and structure."""
        scores, indices, lists, known = None, None, None, UNKNOWN_SIZE
        if isinstance(data, ScoredBatch):
            data, scores = data
            known = len(scores)
        requested = self._order.take() if self.is_ordered else []
        known = len(requested) or known
        if self._indexed:
            indices, data = data
            known = len(indices) if hasattr(indices, "__len__") else UNKNOWN_SIZE
        if isinstance(data, Reordered):
            data, self.order_is_lost = data
        size, device = known, None
        with suppress(BatchError):  # of an unknown structure, which matters only where it is split
            if self.lists is None:
                size, lists = self.read_structure(data, known)
            else:
                (size, device), lists = tree.measure(data, self.lists), self.lists
        if self._indexed:
            if size != UNKNOWN_SIZE:
                indices = check_indices(indices, size, self.place)
            if self.is_ordered and has_indices_within(self.loader):
                self._check_requested(indices, requested)
        elif size == len(requested):  # a collate function may leave some out
            indices = index_tensor(requested)
            self.has_keys |= indices is None
        if self.order_is_lost:
            indices = None
        device = device or tree.device(data)
        return Batch(data, size, device, indices, scores=scores, lists=lists, requested=requested)

    def _check_requested(self, indices: Any, requested: list[Any]) -> None:
        """Makes sure that indices found in a batch are of examples that its sampler asked for.

        Raises:
            BatchError: If one is not.
        """
        # A sampler may give tensors, which are unlike each other in a set.
        others = set(indices.tolist()) - {int(k) if isinstance(k, Tensor) else k for k in requested}
        if others:
            raise BatchError(
                f"index_of found the index {min(others)} in {self.place}, for which the sampler "
                "did not ask: have it give positions in the data set, as for dataset[i]"
            )

    def read_structure(self, data: Any, known: int) -> tuple[int, Lists]:
        """Returns the size of a batch, and its lists: those of the first batch with an example.

        Args:
            data: The batch.
            known: Its number of examples, where that is known from elsewhere.

        Raises:
            BatchError: If it cannot be split into examples.
        """
        if self.lists is not None:
            return tree.measure(data, self.lists)[0], self.lists
        known_size = None if known == UNKNOWN_SIZE else known
        structure = read_structure(data, known_size, collated=self._collated)
        if structure.size:
            self.lists = structure.lists
        return structure.size, structure.lists


def saved_lists(state: dict[str, Any]) -> Lists | None:
    """Returns which lists of a batch hold one example per entry, from the state of a source."""
    return None if state["lists"] is None else frozenset(json.loads(state["lists"]))


def _check_lists(name: str, value: Any) -> None:
    """Checks for a list of paths, as JSON."""
    text(name, value)
    try:
        list_of(text)(name, json.loads(value))
    except ValueError:
        raise_damaged(name, value, "a list of paths, as JSON")


_KINDS = {
    "ordered": "a DataLoader over a map-style data set",
    "stateful": "a loader that has a state of its own",
    "iterable": "a loader without a state of its own",
}


def saved_state(loader: Any) -> Any:
    """Returns the state of a loader or sampler; None without one, whatever methods it has."""
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return None
    # Of a wrapper of one that has none.
    with suppress(AttributeError, NotImplementedError), torch.random.fork_rng([]):
        return copy.deepcopy(loader.state_dict())
    return None


def packed(batches: list[list[Any]]) -> Any:
    """Index lists as two tensors, which take a fraction of their room."""
    indices = index_tensor([index for batch in batches for index in batch])
    if indices is None:
        return batches
    sizes = torch.tensor([len(batch) for batch in batches], dtype=torch.int64)
    return {"indices": indices, "sizes": sizes}


def check_packed(name: str, value: Any) -> None:
    """Checks for what `packed` returns."""
    if isinstance(value, list):
        list_of(list_of(anything))(name, value)
        return
    dict_of(dict.fromkeys(("indices", "sizes"), tensor(torch.int64, None, least=0)))(name, value)
    if int(value["sizes"].sum()) != len(value["indices"]):
        raise_damaged(f"{name}.sizes", value["sizes"], f"of {len(value['indices'])} examples")


def unpacked(value: Any) -> list[list[Any]]:
    """The index lists that `packed` was called with."""
    if not isinstance(value, dict):
        return cast(list[list[Any]], value)
    return [indices.tolist() for indices in value["indices"].split(value["sizes"].tolist())]
