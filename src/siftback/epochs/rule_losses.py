"""The losses that training records, on their way to a rule, in one process or several."""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.host_reads import HostReads
from siftback.processes.exchange import (
    RecordedLosses,
    exchange_losses,
    join_records,
    recorded_losses,
)
from siftback.rules.noise_guard import check_cross_entropy
from siftback.rules.rule import EpochRule, check_prediction_types, check_predictions
from siftback.state import Check, list_of, tuple_of
from siftback.tables.example_rows import ExampleRows
from siftback.tensor_arguments import check_within

_UNCLAIMED = -1  # the turn with a rule's table, before the first epoch
_MOST_WAITING = 64  # batches


class RuleLosses:
    """Gives a rule the losses of examples, and each process's losses to the others.

    Args:
        rule: What remembers them.
        rank: Which process this is.
        world: Among how many that share the examples.
        stream: The rows of examples whose number or numbering is not known beforehand; by default
            the examples are 0, 1, 2 and so on.

    Attributes:
        rule: The same.
        stream: The same.
        rows: The rows of examples in the rule's table; None where those are their indices.
        exchanges: Whether each process remembers what all record.
        reads: Reads losses of a device, in the order of the steps, before they come here.
    """

    def __init__(
        self, rule: EpochRule, rank: int = 0, world: int = 1, stream: ExampleRows | None = None
    ) -> None:
        self.rule, self.stream = rule, stream
        self.rows = stream or rule.shards
        if rule.guard:
            rule.guard.rows = stream
        self.exchanges = world > 1 and not rule.shards
        # A file has what is recorded at once, as it is to outlive the process.
        self._joins = rule.joins_updates and not rule.table.path
        self._rank, self._turn = rank, _UNCLAIMED
        self.reads = HostReads()
        self._waiting: list[RecordedLosses] = []  # of batches that the rule is given in one call
        self._kind: tuple[int, bool, bool] = 0, True, True  # of those: pass, without predictions
        self._is_giving = False
        self._guarded_calls = 0
        self._recorded: list[RecordedLosses] = []  # since the last exchange

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        # A copy of a table knows no training; the copy of the one that has it is this one.
        if self._turn == self.rule.table.turn:
            self.claim()

    def claim(self) -> None:
        """Has the rule's table be this training's; another one may not use it any more.

        What that one did not send to other processes yet, this one sends.
        """
        unsent = self.rule.table.unsent
        self._turn = self.rule.table.claim(self.finish, self._recorded)  # that one finishes first
        if self.exchanges:
            self._recorded += unsent

    def claim_once(self, *, from_start: bool) -> None:
        """Claims the rule's table, as the first epoch begins.

        Args:
            from_start: Whether that is epoch 0.

        Raises:
            ConfigError: If another training used the rule or its table since it was claimed, or
                before it, if the examples are a stream's, whose rows only that one knows, or
                ``from_start`` and another training has given the rule losses.
        """
        if self._turn == _UNCLAIMED:
            if self.stream and not bool(self.rule.table.values.isnan().all()):
                raise ConfigError(
                    "the rule remembers examples of a stream by rows that its loader alone knows: "
                    "give a new rule, or load a state of that loader"
                )
            rule, table = self.rule, self.rule.table
            if from_start and table.turn and table.columns and bool(rule.has_value.any()):
                name = type(rule).__name__
                raise ConfigError(
                    f"this {name} remembers losses of another loader or sampler, and this one "
                    f"begins with epoch 0: give a new training a new {name}(...), with a table of "
                    "its own; make the loader of a training once, before its epochs; or, to go on "
                    "with that training in a new loader, call its set_epoch(n), or load a state"
                )
            self.claim()
        self._check_turn()

    def admit(self, indices: Tensor) -> None:
        """Makes room for examples of a stream that came: int64[n]."""
        if self.stream:
            self.stream.add(indices)
            self.rule.grow(self.stream.count)

    def rows_of(self, indices: Tensor) -> Tensor:
        """Returns int64[n], the rows of examples in the rule's table.

        Raises:
            BatchError: If an index is not that of an example.
        """
        if self.rows:
            return self.rows.rows_of(indices)
        check_within("indices", indices, self.rule.examples, "give indices of the data set")
        return indices

    def check_guarded(self, losses: Tensor) -> None:
        """Checks losses by whose graph a `NoiseGuard` would misjudge labels.

        Raises:
            ConfigError: As for `check_cross_entropy`, in the first call, the second, the fourth and
                so on, as it reads numbers.
        """
        if self.rule.guard and losses.grad_fn is not None:
            self._guarded_calls += 1
            if self._guarded_calls.bit_count() == 1:
                check_cross_entropy(losses)

    def update(
        self,
        indices: Tensor,
        losses: Tensor,
        passes: Sequence[tuple[int, int]],
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> None:
        """Gives the rule the losses of some examples that were trained on.

        Args:
            indices: int64[n], on the CPU. Of one that comes twice, the last loss counts.
            losses: float[n], on any device. What is not finite is left out.
            passes: The passes in which they were trained on, by number, each with how many of them.
            correct: bool[n], for rules that need it.
            confidence: float[n], likewise.

        Raises:
            ConfigError: If a rule that needs them was not given correct and confidence, or another
                training used the rule or its table since this epoch began; or as for
                `check_guarded`.
            LossError: If there is not one prediction for each example, or a confidence is none.
        """
        self._check_turn()
        self.check_guarded(losses)
        rows = self.rows_of(indices)
        check_prediction_types(correct, confidence, len(indices))
        self.reads.add(partial(self.receive, rows, passes), losses, correct, confidence)

    def receive(
        self,
        rows: Tensor,
        passes: Sequence[tuple[int, int]],
        losses: Tensor,
        correct: Tensor | None,
        confidence: Tensor | None,
    ) -> None:
        """Gives the rule losses that are on the host: at once, or with those of batches after them.

        Args:
            rows: int64[n], see `rows_of`.
            passes: As for `update`.
            losses: float32[n].
            correct: As for `update`.
            confidence: float32[n], or None.

        Raises:
            ConfigError: As for `update`.
            LossError: As for `update`.
        """
        if self._turn != self.rule.table.turn:
            self._check_turn()
        lacks = correct is None, confidence is None
        if not all(lacks):
            check_predictions(correct, confidence, losses)
        if not self.rule.learns:
            return
        first = 0
        for number, count in passes:
            span = slice(first, first := first + count)
            predicted = (p[span] if isinstance(p, Tensor) else p for p in (correct, confidence))
            record = RecordedLosses(False, number, rows[span], losses[span], *predicted)
            if not self._joins or self._turn == _UNCLAIMED:
                self._update([record])
                continue
            if self._kind != (number, *lacks):
                self._give_waiting()
                self._kind = number, *lacks
            self._waiting.append(record)
            if len(self._waiting) == _MOST_WAITING:
                self._give_waiting()

    def _give_waiting(self) -> None:
        """Gives the rule the losses of the batches that wait, in few calls."""
        waiting, self._waiting = self._waiting, []
        self._is_giving = True
        try:
            self._update(waiting)
        finally:
            self._is_giving = False

    def _update(self, records: list[RecordedLosses]) -> None:
        """Gives the rule losses of batches: the last one of each example that are finite.

        They are given in one call if they can be, else one half after the other: two passes of an
        epoch have examples in common.
        """
        if not records:
            return
        half = len(records) // 2
        joined = join_records(records) if half else records[0]
        if joined.is_clean:  # each is noted, so that a state does not depend on the joining
            self._learn(joined, records)
        elif half:
            self._update(records[:half])
            self._update(records[half:])
        elif len((record := joined.clean()).losses):
            self._learn(record, [record])

    def finish(self) -> None:
        """Gives the rule all losses that were recorded, waiting for the device if need be.

        Raises:
            LossError: If a loop does not accept losses that are not finite, and one is not.
        """
        if self._is_giving:  # as the rule reads its own table
            return
        self.reads.finish()
        self._give_waiting()

    def forget(self) -> None:
        """Drops the losses that the rule was not given yet."""
        self.reads.forget()
        self._waiting = []

    def rescore(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Gives the rule the scores of a pass: int64[n] and float[n], on any device."""
        self._check_turn()
        self.reads.add(partial(self._receive_scores, self.rows_of(indices), epoch), scores)

    def _receive_scores(self, rows: Tensor, epoch: int, scores: Tensor) -> None:
        self._give_waiting()
        record = RecordedLosses(True, epoch, rows, scores)
        self._learn(record, [record])

    def _learn(self, record: RecordedLosses, noted: Sequence[RecordedLosses] = ()) -> None:
        """Gives the rule losses or scores.

        Args:
            record: These.
            noted: The same in the records that other processes are to be sent.
        """
        is_pass, epoch, rows, losses, correct, confidence = record
        if is_pass:
            cast(Any, self.rule).rescore(rows, losses, epoch)
        else:
            self.rule.update(rows, losses, epoch, correct=correct, confidence=confidence)
        if self.exchanges:  # after the rule, which may refuse it
            self._recorded += noted

    def take_up_others(self) -> None:
        """Gives the rule what other processes recorded since the last exchange.

        Workers that read ahead have a pass drawn before all losses of the one before are recorded,
        so that two processes may have the same example. Processes make equal steps, and of such an
        example the loss of the later step counts; of the same one, that of the higher rank.
        """
        self.finish()
        if not self.exchanges:
            return
        recorded = [*self._recorded]
        self._recorded.clear()
        gathered, latest = exchange_losses(recorded), torch.full((self.rule.examples,), -1)
        # This process's own, which the rule has, are left out by this like others that are older.
        for step, record in enumerate([] if self.rule.updates_by_batch else recorded):
            latest[record.indices] = step
        for step, records in enumerate(itertools.zip_longest(*gathered)):
            for rank, record in enumerate(records):
                if record:
                    record = record.take(latest[record.indices] < step + (rank > self._rank))
                if record and len(record.losses):
                    self._learn(record)

    @property
    def recorded(self) -> list[tuple[Any, ...]]:
        """The losses that other processes are to know, for a state."""
        is_new = self.exchanges and self._turn == _UNCLAIMED  # of the loader before
        return [tuple(record) for record in (self.rule.table.unsent if is_new else self._recorded)]

    @recorded.setter
    def recorded(self, recorded: list[tuple[Any, ...]]) -> None:
        self._recorded[:] = [RecordedLosses(*record) for record in recorded]

    @property
    def check_recorded(self) -> Check:
        """Checks for `recorded`, as it is in a state."""
        return list_of(recorded_losses) if self.exchanges else tuple_of()

    def _check_turn(self) -> None:
        """Makes sure that no other training has begun to use what the rule remembers."""
        if self._turn in (_UNCLAIMED, self.rule.table.turn):
            return
        name = type(self.rule).__name__
        raise ConfigError(
            f"another loader or sampler began to train with this {name} or its table, so that its "
            "losses are of both trainings: give each training a rule of its own, such as "
            f"{name}(...), with a table of its own; to go on with this one, load a state of it"
        )
