"""The loader that is wrapped: where in it training is, and how to come back there."""

from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from siftback.errors import StateError


class Source:
    """A loader, iterated once an epoch, with the place in it.

    The place is moved by whoever takes the batches, once a batch is dealt with (`position`), and
    at the end of an epoch (`end_epoch`).

    Args:
        loader: Any iterable of batches. Where it has a ``state_dict`` of its own, that is used to
            come back to a place. Otherwise the batches done are read again and skipped, after
            the generators that ordered them were put back: the loader's, its sampler's and
            PyTorch's global one, which is then left as it was.

    Attributes:
        epoch: The current epoch, from 0; or the next one, between epochs.
        position: Batches of this epoch that were dealt with.
        ahead: Batches read beyond those. Whoever reads ahead counts them, and keeps them.
        ended: Whether whoever reads ahead found that this epoch has no more.

    >>> source = Source([10, 20, 30])
    >>> first = next(source.batches())
    >>> source.position += 1
    >>> resumed = Source([10, 20, 30])
    >>> resumed.load_state_dict(source.state_dict())
    >>> list(resumed.batches())
    [20, 30]
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.epoch = 0
        self.position = 0
        self.ahead = 0
        self.ended = False
        # The states of the generators that order the loader, as the epoch began.
        self._order: list[Tensor] = []
        self._resumed = False

    def batches(self) -> Iterator[Any]:
        """The batches of this epoch: from the place of a loaded state on, else from the start."""
        if not self._resumed:
            self._start()
        elif self.ended and self._is_stateful():  # it would begin the next epoch
            self._resumed = False
            return iter(())
        read = self.position + self.ahead
        within = read > 0
        self.ended = False
        # What orders an epoch was drawn as it began, from the global generator too. Drawing it
        # again must not move that one.
        with torch.random.fork_rng([], enabled=within):
            if within:
                torch.set_rng_state(self._order[-1])
            self._order = self._orders()
            batches = iter(self.loader)
            if within and not self._is_stateful():
                for _ in range(read):
                    next(batches, None)
        self._resumed = False
        return batches

    def end_epoch(self) -> None:
        """Moves on to the next epoch."""
        self.epoch += 1
        self._start()

    @property
    def is_resumed(self) -> bool:
        """Whether a state was loaded that no epoch has yet gone on from."""
        return self._resumed

    @property
    def is_within(self) -> bool:
        """Whether batches of this epoch were read."""
        return self.position + self.ahead > 0

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
        return self._epochs(self.position)

    @property
    def epochs_read(self) -> float:
        """As `epochs_done`, with the batches read ahead."""
        return self._epochs(self.position + self.ahead)

    def set_epoch(self, epoch: int) -> None:
        """Says which epoch comes next, also to the loader or to its sampler."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._start()
        for owner in (
            self.loader,
            getattr(self.loader, "batch_sampler", None),
            getattr(self.loader, "sampler", None),
        ):
            if hasattr(owner, "set_epoch"):
                cast(Any, owner).set_epoch(epoch)
                break

    def state_dict(self) -> dict[str, Any]:
        """The place, and what the loader's order comes from."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "ahead": self.ahead,
            "ended": self.ended,
            "order": self._order if self.is_within else self._orders(),
            "loader": cast(Any, self.loader).state_dict() if self._is_stateful() else None,
        }

    def check(self, state: dict[str, Any]) -> None:
        """Makes sure that a state fits, and changes nothing.

        Raises:
            StateError: Where only one of the two loaders has a ``state_dict`` of its own, or
                they are ordered by unlike numbers of generators.
        """
        saved = state["loader"] is not None
        if saved != self._is_stateful():
            raise StateError(
                f"the state was saved with a wrapped loader {'with' if saved else 'without'} a "
                f"state_dict, and this {type(self.loader).__name__} is the other kind: wrap the "
                "same kind of loader"
            )
        before, here = len(state["order"]), len(self._orders())
        if before != here:
            raise StateError(
                f"the state was saved with {before - 1} generators in the wrapped loader and its "
                f"sampler, and here are {here - 1}: wrap the same kind of loader"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Comes back to a place.

        Raises:
            StateError: As `check`, before anything is changed.
        """
        self.check(state)
        for generator, order in zip(self._generators(), state["order"], strict=False):
            generator.set_state(order)
        if self._is_stateful():
            cast(Any, self.loader).load_state_dict(state["loader"])
        self.epoch, self.position = state["epoch"], state["position"]
        self.ahead, self.ended = state["ahead"], state["ended"]
        self._order = state["order"]
        self._resumed = True

    def _start(self) -> None:
        self.position, self.ahead, self.ended = 0, 0, False

    def _epochs(self, position: int) -> float:
        try:
            share = position / max(len(cast(Any, self.loader)), 1)
        except TypeError:  # an iterable without a length
            share = 0.0
        return self.epoch + min(share, 1.0)

    def _generators(self) -> list[torch.Generator]:
        """The loader's own generators, which its order may come from."""
        owners = (self.loader, getattr(self.loader, "sampler", None))
        found = [getattr(owner, "generator", None) for owner in owners]
        return [generator for generator in found if isinstance(generator, torch.Generator)]

    def _orders(self) -> list[Tensor]:
        """The states of all generators that the order may come from, the global one last."""
        return [*(generator.get_state() for generator in self._generators()), torch.get_rng_state()]

    def _is_stateful(self) -> bool:
        return hasattr(self.loader, "state_dict") and hasattr(self.loader, "load_state_dict")
