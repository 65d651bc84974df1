"""Batches with scores from a replica of the model that runs in parallel to training."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from siftback.arguments import check_integer, check_number, format_value
from siftback.batches import tree
from siftback.batches.batch import Batch
from siftback.batches.indices import is_indexed
from siftback.batches.source import ScoredBatch, Source
from siftback.contrib.replica_process import weights_of
from siftback.contrib.replicas import DeviceReplica, ProcessReplica, Waiting
from siftback.errors import BatchError, ConfigError, ReplicaError
from siftback.losses.per_example import Losses, LossFn, resolve_losses
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import Fresh
from siftback.state import (
    Check,
    Stateful,
    anything,
    check_entries,
    flag,
    integer,
    list_of,
    nothing,
    number,
    raise_damaged,
    seal,
    shaped_like,
    tensor,
    tuple_of,
)
from siftback.tensor_arguments import check_module

_LAGS = 1000

ScoredLater = tuple[Any, Waiting | Tensor, int]
"""A batch that waits for its turn, its scores, and the turn of the weights that score it."""


class Pipelined(Stateful):
    """A loader whose batches are scored in advance, on a replica of the model.

    Jiang et al. 2019, section 3.3, "Pipelining loss computation": while training runs on batch t,
    a replica in a process or on another device scores the batches ``t + 1 ... t + depth``. Its
    weights are those of training when a batch was read, or up to ``sync_every - 1`` turns older,
    where each batch given to training is one turn. If the replica keeps up, selection costs
    training only the copying of weights and batches.

    Wrap it in `SelectiveLoader`, which selects by the scores. Every batch that is read is scored,
    even while a schedule has selection off.

    Which weights score which batch depends only on turns, not on timing: the same run gives the
    same examples again, in any place, and ``depth=0, sync_every=1`` gives those of `Fresh`.

    The process runs on the CPU, and the script must start training below
    ``if __name__ == "__main__":``. The process ends with the training process, with `close`, or
    when the loader is no longer used. An autocast around the training loop does not affect it:
    give ``scorer=Fresh(autocast=...)``.

    Args:
        loader: The loader to wrap. If its batches are ``(indices, batch)``, as over an `Indexed`
            data set, this loader's are too.
        model: The model that is trained.
        loss_fn: ``loss_fn(outputs, targets)`` for batches that are ``(inputs, targets)`` pairs.
        losses: In its place, for any batch: ``losses(model, batch) -> Tensor[N]``.
        place: "process", or a device, such as ``torch.device("cuda:1")``. On CUDA the replica
            uses a separate stream, so it may be the training's device too. On "cpu" it does not
            run in parallel to training, which is useful only for tests.
        depth: Number of batches to read and score ahead; 0 makes training wait for each. More
            than 1 evens out batches and steps of different lengths, and makes scores older.
        sync_every: Turns after which the replica's weights are copied again, before the next batch
            is scored; 1 copies them for every batch.
        threads: Threads of the process; by default as many as the training process has. Divide the
            cores between the two: with this, and with ``torch.set_num_threads`` for training.
        scorer: Scores in the replica; `Fresh` by default. It must not have a state.
        timeout: Seconds to wait for the process's answer; for its start, at least 180.

    Attributes:
        loader: The wrapped loader.
        indexed: Whether batches are given as ``(indices, batch)``.
        syncs: Number of times weights were copied.
        lags: For each of the last 1000 batches given, the age in turns of the weights that scored
            it.

    Raises:
        ConfigError: If an argument is out of range, both or neither of ``loss_fn`` and ``losses``
            are given, or, when first iterated, the model or the losses cannot be copied to the
            place.

    While it is iterated:

    Raises:
        ReplicaError: If the process fails, with its traceback, ends, or does not answer in time.
            The next epoch starts another process. An error on a device is raised as it is.

    >>> from siftback import SelectiveLoader
    >>> x, y = torch.randn(512, 8), torch.randint(4, (512,))
    >>> data = torch.utils.data.TensorDataset(x, y)
    >>> source = torch.utils.data.DataLoader(data, batch_size=64)
    >>> model, cross_entropy = nn.Linear(8, 4), nn.functional.cross_entropy
    >>> scored = Pipelined(source, model, cross_entropy, place="cpu", sync_every=2)
    >>> for inputs, targets in SelectiveLoader(scored, model, cross_entropy, keep=0.9):
    ...     cross_entropy(model(inputs), targets).backward()
    >>> list(scored.lags)
    [0, 1, 2, 1, 2, 1, 2, 1]
    """

    def __init__(
        self,
        loader: Iterable[Any],
        model: nn.Module,
        loss_fn: LossFn | None = None,
        *,
        losses: Losses | None = None,
        place: Literal["process"] | torch.device | str = "process",
        depth: int = 1,
        sync_every: int = 1,
        threads: int | None = None,
        scorer: Scorer | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.depth = check_integer("depth", depth, 0)
        self.sync_every = check_integer("sync_every", sync_every, 1)
        timeout = check_number("timeout", timeout, above=0)
        if threads is not None:
            threads = check_integer("threads", threads, 1)
        self._scorer = Fresh() if scorer is None else scorer
        stateless = {"settings", "digest"}
        if not isinstance(self._scorer, Scorer) or {*self._scorer.state_dict()} - stateless:
            raise ConfigError(
                f"scorer={format_value(scorer)}: give a scorer without a state, such as Fresh()"
            )
        self.loader: Any = loader
        self.indexed = is_indexed(loader)
        self._model = check_module(model)
        scoring = model, resolve_losses(loss_fn, losses), self._scorer
        self._start_replica: Callable[[], DeviceReplica | ProcessReplica]
        if isinstance(place, str) and place == "process":
            slots = self.depth + 1
            self._start_replica = partial(
                ProcessReplica, *scoring, slots=slots, threads=threads, timeout=timeout
            )
        elif threads is not None:
            raise ConfigError(f"threads={format_value(threads)} is for a process: leave it out")
        else:
            self._start_replica = partial(DeviceReplica, *scoring, as_device(place))
        self._source = Source(loader)
        self.syncs = 0
        self.lags: deque[int] = deque(maxlen=_LAGS)
        self._seconds_before = 0.0  # of replicas that were stopped
        self._replica: DeviceReplica | ProcessReplica | None = None
        self._turn = 0  # batches given so far
        self._weights_turn = -1  # of the replica's weights; -1 before it has any
        self._weights: list[Tensor] | None = None  # of a loaded state, until the replica has them
        self._waiting: deque[ScoredLater] = deque()  # batches read and not yet given
        # The source is already in the next epoch: only waiting batches are left of this one.
        self._drains = False
        self._resumed = False

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[ScoredBatch]:
        if not self._resumed:
            self._source.epoch = self.epoch  # restarts an interrupted epoch
            self._waiting, self._drains = deque(), False
        self._resumed = False
        return self._in_turn(iter(()) if self._drains else self._source.batches())

    @property
    def batch_size(self) -> int | None:
        """That of the wrapped loader; None if it has none."""
        return cast(int | None, getattr(self.loader, "batch_size", None))

    @property
    def drop_last(self) -> bool:
        """Whether the wrapped loader drops an incomplete last batch."""
        return bool(getattr(self.loader, "drop_last", False))

    @property
    def epoch(self) -> int:
        """The current epoch, from 0; between epochs, the next one."""
        return self._source.epoch - self._drains

    @property
    def seconds_sync(self) -> float:
        """Seconds spent copying weights, of the training process or of the CUDA device."""
        return self._seconds_before + (self._replica.seconds_sync if self._replica else 0.0)

    def set_epoch(self, epoch: int) -> None:
        """Sets the next epoch, also of the wrapped loader or its sampler."""
        if epoch == self.epoch and self._drains:  # nothing is left to read
            return
        if epoch != self.epoch:
            self._waiting, self._drains, self._resumed = deque(), False, False
        self._source.set_epoch(epoch)

    def close(self) -> None:
        """Stops the replica, and so the epoch; the next epoch starts another replica."""
        self._waiting = deque()
        self._weights_turn, self._weights = -1, None
        if self._replica:
            self._seconds_before = self.seconds_sync
            self._replica.stop()
        self._replica = None

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        scorer = type(self._scorer).__name__
        return {"depth": self.depth, "sync_every": self.sync_every, "scorer": scorer}

    def members(self) -> dict[str, Any]:
        """See `Stateful.members`."""
        return {"source": self._source}

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        counts = ("_turn", "syncs")
        return {"_drains": flag, "_weights_turn": integer(-1), **dict.fromkeys(counts, integer())}

    def state_dict(self) -> dict[str, Any]:
        """Returns the place in the loader, the waiting batches with their scores, and the weights.

        Raises:
            ReplicaError: As above, while waiting for the scores.
        """
        waiting = [(tree.clone(b), self._wait(s).clone(), turn) for b, s, turn in self._waiting]
        weights = self._weights
        if weights is None and self._replica and self._weights_turn >= 0:
            weights = self._replica.weights()
        return seal(
            {
                **super().state_dict(),
                "ahead": len(waiting),
                "waiting": waiting,
                "weights": weights,
                "seconds_sync": self.seconds_sync,
                "lags": list(self.lags),
            }
        )

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is of another wrapped loader or other settings, or damaged.
        """
        super().check_state(state)
        checks = {
            "ahead": integer(most=self.depth + 1),
            "seconds_sync": number(0),
            "lags": list_of(integer()),
        }
        check_entries(self, state, checks)
        turn = state["turn"]
        scored = tuple_of(anything, tensor(torch.float32, None), integer(-1, turn + self.depth + 1))
        shapes = tuple_of(*(shaped_like(weight) for weight in weights_of(self._model)))
        weights = shapes if state["weights_turn"] >= 0 else nothing
        waiting = tuple_of(*[scored] * state["ahead"])
        check_entries(self, state, {"waiting": waiting, "weights": weights})
        if state["weights_turn"] > turn:
            raise_damaged("Pipelined.weights_turn", state["weights_turn"], f"at most {turn}")
        for batch, scores, _ in state["waiting"]:
            try:
                fits = tree.size(batch) == len(scores)
            except BatchError:
                fits = False
            if not fits:
                raise_damaged("Pipelined.waiting", scores, "a score for each example of its batch")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from another one's state, in any place.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        super().load_state_dict(state)
        self._resumed = True
        self._waiting = deque(
            (tree.clone(batch), scores, turn) for batch, scores, turn in state["waiting"]
        )
        self._weights = state["weights"]
        self._seconds_before += state["seconds_sync"] - self.seconds_sync
        self.lags = deque(state["lags"], _LAGS)

    def _in_turn(self, items: Iterator[Batch]) -> Iterator[ScoredBatch]:
        waiting = self._waiting
        while True:
            if self._waiting is not waiting:
                raise ReplicaError(
                    "this epoch was interrupted by close(), load_state_dict(), set_epoch() or "
                    "another iteration: call those between epochs, and iterate again"
                )
            while not self._drains and len(waiting) <= self.depth:
                item = next(items, None)
                if item is None:
                    self._source.end_epoch()
                    self._drains = True
                    break
                self._source.position += 1
                waiting.append(self._submit(item))
            if not waiting:
                break
            batch, scores, weights_turn = waiting.popleft()
            scored = ScoredBatch(batch, self._wait(scores))
            self.lags.append(self._turn - weights_turn)
            self._turn += 1
            yield scored
        self._drains = False

    def _submit(self, item: Batch) -> ScoredLater:
        """Submits a batch to the replica for scoring."""
        batch = (item.indices, item.data) if self.indexed else item.data
        if not tree.size(item.data):
            return batch, torch.empty(0, dtype=torch.float32), self._turn
        try:
            replica = self._replica = self._replica or self._start_replica()
            if self._weights_turn < 0 or self._turn - self._weights_turn >= self.sync_every:
                replica.sync(weights_of(self._model))
                self._weights_turn = self._turn
                self.syncs += 1
            elif self._weights is not None:
                replica.sync(self._weights)
            self._weights = None
            return batch, replica.submit(item.data, item.indices), self._weights_turn
        except BaseException:
            self.close()
            raise

    def _wait(self, scores: Waiting | Tensor) -> Tensor:
        if isinstance(scores, Tensor):
            return scores
        try:
            return scores()
        except BaseException:
            self.close()
            raise


def as_device(name: torch.device | str) -> torch.device:
    """Returns a device of this machine, with its number.

    Raises:
        ConfigError: If it cannot be used.
    """
    try:
        if not isinstance(name, str | torch.device):
            raise TypeError(f"a {type(name).__name__}")
        return torch.empty(0, device=name).device  # with its number
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise ConfigError(
            f'place={format_value(name)} cannot be used ({error}): give "process", or a device '
            "that this machine has"
        ) from error
