"""The wrapped loader: where in it training is, which examples come, and how to come back there."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from numbers import Integral
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from siftback.errors import StateError
from siftback.loading import tree
from siftback.loading.indices import checked_indices, collating, is_indexed
from siftback.loading.order import TrackedBatches, is_trackable, skipping, with_order


class ScoredBatch(NamedTuple):
    """A batch whose scores were made before it is given, as `contrib.Pipelined` gives them.

    Attributes:
        batch: The batch.
        scores: float32[N], one for each of its examples.
    """

    batch: Any
    scores: Tensor


class Item(NamedTuple):
    """What comes from a wrapped loader.

    Attributes:
        batch: The batch, as training is to get it.
        indices: int64[N], the dataset indices of its examples, on the CPU; None where unknown.
        scores: float32[N], where they came with it; else None.
    """

    batch: Any
    indices: Tensor | None
    scores: Tensor | None


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
        epoch: The current epoch, from 0; or the next one, between epochs.
        position: Batches of this epoch that were dealt with.

    >>> source = Source([torch.tensor([1]), torch.tensor([2]), torch.tensor([3])])
    >>> first = next(source.batches())
    >>> source.position += 1
    >>> resumed = Source([torch.tensor([1]), torch.tensor([2]), torch.tensor([3])])
    >>> resumed.load_state_dict(source.state_dict())
    >>> [item.batch.item() for item in resumed.batches()]
    [2, 3]
    """

    def __init__(self, loader: Iterable[Any], batches: Iterable[Any] | None = None) -> None:
        self.epoch = 0
        self.position = 0
        self._order: TrackedBatches | None = None
        self._indexed = is_indexed(loader)
        self.loader: Any = loader
        if is_trackable(loader):
            self._order = TrackedBatches(batches or cast(Any, loader).batch_sampler)
            self.loader = with_order(cast(Any, loader), self._order)
        if self._indexed:
            self.loader = collating(self.loader)
        # The states of the generators that order the loader, as the epoch began.
        self._began: list[Tensor] = []
        self._state: dict[str, Any] | None = None  # to be gone on from
        self._iterated = False

    def batches(self) -> Iterator[Item]:
        """The batches of this epoch: from the place of a loaded state on, else from the start."""
        state, self._state = self._state, None
        if state is None:
            self.position = 0
        if self._order is None:
            return map(self._item, self._read(state))
        return map(self._item, self._ordered(self._order, state))

    def end_epoch(self) -> None:
        """Moves on to the next epoch."""
        self._move_to(self.epoch + 1)

    @property
    def is_resumed(self) -> bool:
        """Whether a state was loaded that no epoch has yet gone on from."""
        return self._state is not None

    @property
    def is_within(self) -> bool:
        """Whether batches of this epoch were read."""
        return self.position > 0

    @property
    def knows_indices(self) -> bool:
        """Whether batches come with the indices of their examples."""
        return self._indexed or self._order is not None

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
        try:
            share = self.position / max(len(self.loader), 1)
        except TypeError:  # an iterable without a length
            share = 0.0
        return self.epoch + min(share, 1.0)

    def set_epoch(self, epoch: int) -> None:
        """Sets which epoch comes next, also of the loader or of its sampler."""
        if epoch != self.epoch:
            self._move_to(epoch)
        for owner in (
            self.loader,
            getattr(self.loader, "batch_sampler", None),
            getattr(self.loader, "sampler", None),
        ):
            if hasattr(owner, "set_epoch"):
                cast(Any, owner).set_epoch(epoch)
                break

    def state_dict(self) -> dict[str, Any]:
        """The place, and what the rest of the epoch and later ones come from."""
        if self._state is not None:  # nothing was read since it was loaded
            return self._state
        state = {
            "epoch": self.epoch,
            "position": self.position,
            "kind": self._kind,
            "generators": [generator.get_state() for generator in self._generators()],
        }
        if self._order is not None:
            begun = self._order.begun
            replayed = self._replayed is not None
            return state | {
                "rest": _packed(self._order.rest()) if begun and not replayed else None,
                "begun": begun,
                "workers": self._iterated and self.loader.persistent_workers,
            }
        own = _own_state(self.loader)
        began = self._began if self.is_within else self._orders()
        return (
            state
            | {"kind": "iterable" if own is None else "stateful", "began": began}
            | {"loader": own}
        )

    def check(self, state: dict[str, Any]) -> None:
        """Makes sure that a state fits, and changes nothing.

        Raises:
            StateError: Where it is of another kind of loader, or of one that is ordered by another
                number of generators.
        """
        kind = self._kind
        if self._order is None:
            kind = "iterable" if _own_state(self.loader) is None else "stateful"
        if state["kind"] != kind:
            raise StateError(
                f"the state was saved with {_KINDS[state['kind']]}, and this "
                f"{type(self.loader).__name__} is {_KINDS[kind]}: wrap the same kind of loader"
            )
        before, here = len(state["generators"]), len(self._generators())
        if before != here:
            raise StateError(
                f"the state was saved with {before} generators in the wrapped loader and its "
                f"sampler, and here are {here}: wrap the same kind of loader"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Comes back to a place.

        Raises:
            StateError: As `check`, before anything is changed.
        """
        self.check(state)
        began = state.get("began") or state["generators"]
        for generator, before in zip(self._generators(), began, strict=False):
            generator.set_state(before)
        if state.get("loader") is not None:
            self.loader.load_state_dict(state["loader"])
        self.epoch, self.position = state["epoch"], state["position"]
        self._state = state

    @property
    def _kind(self) -> str:
        return "iterable" if self._order is None else "ordered"

    @property
    def _replayed(self) -> Any:
        """The sampler, where its order is a function of a seed and the epoch."""
        sampler = getattr(self.loader, "sampler", None)
        return sampler if getattr(sampler, "replays", False) else None

    def _ordered(self, order: TrackedBatches, state: dict[str, Any] | None) -> Iterator[Any]:
        sampler = self._replayed
        if sampler is not None:
            sampler.set_epoch(self.epoch)
        self._iterated = True
        if state is None:
            return iter(self.loader)
        if not state["begun"]:
            if state["workers"]:
                # Workers that persist took their seed in an earlier epoch. Those here take one
                # now, from the generator that the order is to come from.
                saved = zip(self._generators(), state["generators"], strict=True)
                order.draw_after([*saved, (None, torch.get_rng_state())])
            return iter(self.loader)
        if sampler is not None:
            order.resume(skipping(order.batches, self.position))
        else:
            order.resume(_unpacked(state["rest"]))
        with torch.random.fork_rng([]):  # from which new workers take their seed
            batches = iter(self.loader)
        for generator, after in zip(self._generators(), state["generators"], strict=True):
            generator.set_state(after)
        return batches

    def _read(self, state: dict[str, Any] | None) -> Iterator[Any]:
        within = state is not None and self.is_within
        # What orders an epoch was drawn as it began, from the global generator too. Drawing it
        # again must not move that one.
        with torch.random.fork_rng([]) if within else nullcontext():
            if state is not None and within:
                torch.set_rng_state(state["began"][-1])
            self._began = self._orders()
            batches = iter(self.loader)
            if state is not None and within and state["loader"] is None:
                for _ in range(self.position):
                    next(batches, None)
        return batches

    def _item(self, given: Any) -> Item:
        scores = None
        if isinstance(given, ScoredBatch):
            given, scores = given
        if self._indexed:
            indices, batch = given
            if self._order is not None:
                self._order.take()
            return Item(batch, checked_indices(indices, tree.size(batch), self.place), scores)
        if self._order is None:
            return Item(given, None, scores)
        asked = self._order.take()
        # A sampler may give keys that are no numbers, and a collate function leave examples out.
        known = len(asked) == tree.size(given) and all(isinstance(key, Integral) for key in asked)
        return Item(given, torch.tensor(asked, dtype=torch.int64) if known else None, scores)

    def _move_to(self, epoch: int) -> None:
        self.epoch, self.position, self._state = epoch, 0, None
        if self._order is not None:
            self._order.begun = False

    def _generators(self) -> list[torch.Generator]:
        """The loader's own generators, which its order may come from."""
        owners = [self.loader, getattr(self.loader, "sampler", None)]
        if self._order is not None:
            owners.append(self._order.batches)
        found = [getattr(owner, "generator", None) for owner in owners]
        return [generator for generator in found if isinstance(generator, torch.Generator)]

    def _orders(self) -> list[Tensor]:
        """The states of all generators that the order may come from, the global one last."""
        return [*(generator.get_state() for generator in self._generators()), torch.get_rng_state()]


_KINDS = {
    "ordered": "a DataLoader over a map-style data set",
    "stateful": "a loader that has a state of its own",
    "iterable": "a loader without a state of its own",
}


def _own_state(loader: Any) -> Any:
    """What a loader says its state is; None where it has none, whatever methods it has."""
    if not (hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")):
        return None
    try:
        return loader.state_dict()
    except (AttributeError, NotImplementedError):  # a wrapper of one that has none
        return None


def _packed(batches: list[list[Any]]) -> Any:
    """Index lists as two tensors, which take a fraction of their room."""
    flat = [index for batch in batches for index in batch]
    if not all(isinstance(index, Integral) for index in flat):
        return batches
    sizes = torch.tensor([len(batch) for batch in batches], dtype=torch.int64)
    return {"indices": torch.tensor(flat, dtype=torch.int64), "sizes": sizes}


def _unpacked(packed: Any) -> list[list[Any]]:
    if not isinstance(packed, dict):
        return cast(list[list[Any]], packed)
    return [part.tolist() for part in packed["indices"].split(packed["sizes"].tolist())]
