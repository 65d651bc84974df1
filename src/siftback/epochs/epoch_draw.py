"""The draw of an epoch: the examples that a rule chose before any is read, and their losses."""

import itertools
from typing import Any, cast

import torch
from torch import Tensor

from siftback.arguments import format_value
from siftback.errors import BatchError, ConfigError, LossError
from siftback.processes.distributed import broadcast, rank_and_world
from siftback.processes.exchange import (
    RecordedLosses,
    exchange_losses,
    pack_weights,
    packed_weights,
    recorded_losses,
    unpack_weights,
)
from siftback.rules.rule import EpochRule, check_predictions
from siftback.schedule import Schedule, check_schedule
from siftback.seeding import Stream, generator_of
from siftback.state import (
    check_entries,
    flag,
    integer,
    list_of,
    nothing,
    number,
    raise_damaged,
    state_of,
    tuple_of,
)
from siftback.tables.example_rows import ExampleRows

_UNCLAIMED = -1  # the turn with a rule's table, before the first epoch


class EpochDraw:
    """Draws an epoch's examples by a rule before they are read, and takes losses back to it.

    Where a sampler shares the examples among several processes, each has everything that is
    remembered: as an epoch begins, each takes up what the others recorded during the last one, and
    the draw of rank 0 is that of all.

    Args:
        rule: What remembers and draws.
        epochs: Of the whole training; None where it is not known.
        schedule: When the rule draws, in place of its own.
        seed: Of the draws: each is a function of it and the epoch.
        rank: Which process this is.
        world: Among how many.
        rows: The rows of examples whose number or numbering is not known beforehand; by default
            the examples are 0, 1, 2 and so on.

    Attributes:
        weights: float32[rows], the loss weight of each in this epoch, 0 for those left out.
        draws: Whether this epoch leaves out what its draw did, before it is read.
        drawn: Number of examples that all processes read in this epoch.
        leaves_out: Whether this epoch has fewer examples than if none were left out.
        reweights: Whether any weight was other than 0 and 1, in this epoch or before.
        lr_scale: Factor of the learning rate in this epoch.
        sampler: The user's sampler that gives the examples, in words; None without such a one. An
            epoch is then drawn by `draw_from`, once it is known what the sampler gives.

    Raises:
        ConfigError: If the schedule needs the number of epochs, or there are not as many
            processes.
    """

    def __init__(
        self,
        rule: EpochRule,
        *,
        epochs: float | None = None,
        schedule: Schedule | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        rows: ExampleRows | None = None,
    ) -> None:
        name = type(rule).__name__
        self.rule, self.epochs = rule, epochs
        self.schedule = check_schedule(rule.schedule if schedule is None else schedule)
        self.schedule.is_on(0, epochs)  # shares without epochs are an error now, not later
        if self.schedule.interrupt:
            raise ConfigError(
                f"interrupt={self.schedule.interrupt} passes whole batches, and {name} leaves "
                "examples out before there are any: leave it out"
            )
        self.schedule.check_selector(rule)
        self._keep_of_rule = getattr(rule, "keep", 1.0)
        self._seed, self.rank, self.world = seed, rank, world
        if world > 1 and rank_and_world() != (rank, world):
            raise ConfigError(
                f"a sampler of rank={rank}, world={world} shares what {name} remembers with other "
                "processes: call torch.distributed.init_process_group before it is made, or give "
                "it rank=0, world=1"
            )
        self._shards, self._stream = rule.shards, rows
        self._rows = rows or rule.shards  # without either, an example's row is its index
        self._exchanges = world > 1 and not rule.shards  # each remembers what all record
        self._recorded: list[RecordedLosses] = []  # in this epoch, where others are to know it
        self._turn = _UNCLAIMED
        self.sampler: str | None = None
        self._epoch, self._is_drawn = 0, True  # an epoch of a user's sampler waits for `draw_from`
        self._read = self._passed = 0  # of the drawn examples and of all, in this epoch
        self.reweights = False
        self._set_draw(False, torch.ones(rule.rows, dtype=torch.float32))

    @property
    def is_common(self) -> bool:
        """Whether a state between epochs is that of all processes, whatever their number."""
        return bool(self._shards)

    def is_pass(self, epoch: int) -> bool:
        """Returns whether a scoring pass is due in an epoch, from which the rule is refreshed."""
        return self.schedule.is_on(epoch, self.epochs) and self.rule.is_pass(epoch)

    def plans_pass(self, epoch: int) -> bool:
        """Returns whether an epoch has a scoring pass in a training from first epoch to last."""
        return self.rule.plans_pass(epoch, lambda other: self.schedule.is_on(other, self.epochs))

    def count(self, epoch: int, sampled: int | None = None) -> int | None:
        """Returns the number of examples that all processes read; None if not known before it.

        Args:
            epoch: The epoch.
            sampled: Number of examples that a user's sampler gives; None where it gives all.
        """
        if not self.schedule.is_on(epoch, self.epochs) or self.plans_pass(epoch):
            return self.count_whole if sampled is None else sampled
        keep = getattr(self.rule, "keep", 1.0)
        with self.rule.among(None if sampled is None else torch.arange(sampled)):
            try:
                self._anneal(epoch)
                return self.rule.count(epoch)
            finally:
                if self.schedule.anneal:
                    cast(Any, self.rule).set_keep(keep)

    @property
    def count_whole(self) -> int:
        """Number of examples that all processes read where none is left out."""
        return self._shards.read if self._shards else self.rule.examples

    def begin(self, epoch: int, *, again: bool = False) -> None:
        """Draws for an epoch, unless it is one in which everything is read.

        Args:
            epoch: The epoch.
            again: Whether it begins again as it was drawn, as nothing of it was trained on.

        Raises:
            BatchError: If the rule leaves out all examples.
            ConfigError: If another training used the rule or its table since the last epoch;
                shards are not those of the processes; or a rule draws too few of a shard, or not
                one weight for each example.
        """
        if self._turn == _UNCLAIMED:
            self._turn = self.rule.table.claim()
        if self._turn != self.rule.table.turn:
            raise self._other_training()
        self._epoch, self._read, self._passed = epoch, 0, 0
        if not again:
            if self._shards:
                self._shards.check_processes(self.rank, self.world)
            self._take_up_others()
            self._anneal(epoch)
            draws = self.schedule.is_on(epoch, self.epochs) and not self.is_pass(epoch)
            weights = torch.ones(self.rule.rows, dtype=torch.float32)
            if draws and not self.sampler:
                weights = draw_weights(self.rule, epoch, self._generator())
                if self._exchanges:
                    # Not left to each process: a rule whose state depends on the order of what it
                    # was given, which is another in each, would draw others.
                    weights = unpack_weights(broadcast(pack_weights(weights)), len(weights))
            self._set_draw(draws, weights)
            # New examples of a stream come whatever the draw.
            if draws and not self._stream and self.drawn < self.world:
                raise BatchError(
                    f"{type(self.rule).__name__} draws {self.drawn} of {self.rule.examples} "
                    f"examples in epoch {epoch}, fewer than there are processes, {self.world}: "
                    "have it keep more, or end training before"
                )
        # A user's sampler may give others now, among which the rule draws anew.
        self._is_drawn = not (self.draws and self.sampler)

    def draw_from(self, order: Tensor | None, *, is_weighted: bool = False) -> None:
        """Draws an epoch whose examples a user's sampler gives; once after each `begin`.

        Args:
            order: int64[n], what the sampler gives; None where that is not known beforehand.
            is_weighted: Whether it gives them with probabilities of its own: `find_candidates`.

        Raises:
            ConfigError: If the rule does not draw one weight for each candidate.
        """
        if self._is_drawn:
            return
        self._is_drawn = True
        candidates = find_candidates(self.rule, order, is_weighted=is_weighted)
        weights = draw_weights(self.rule, self._epoch, self._generator(), candidates)
        self._set_draw(True, weights)
        sampled = weights[candidates if order is None else order]
        self.lr_scale = float(self.rule.lr_scale(sampled)) if len(sampled) else 1.0
        if order is not None:
            self.set_read_counts(len(sampled), int(sampled.count_nonzero()))

    def set_read_counts(self, whole: int, drawn: int) -> None:
        """Sets the number of examples that this process has of an epoch, and of those drawn."""
        self._whole, self._to_read = whole, drawn
        self.leaves_out = self.draws and drawn < whole

    def admit(self, indices: Tensor) -> None:
        """Makes room for examples of a stream that came: int64[n]."""
        if self._stream:
            self._stream.add(indices)
            self.rule.grow(self._stream.count)

    def rows_of(self, indices: Tensor) -> Tensor:
        """Returns int64[n], the rows of examples in the rule's table.

        Raises:
            BatchError: If an index is not that of an example.
        """
        if self._rows:
            return self._rows.rows_of(indices)
        for index in indices.aminmax() if len(indices) else ():
            if not 0 <= int(index) < self.rule.examples:
                raise BatchError(
                    f"indices= holds {int(index)}, and there are {self.rule.examples} examples: "
                    "give indices of the data set"
                )
        return indices

    def weights_of(self, indices: Tensor) -> Tensor:
        """Returns float32[n], the loss weights of examples; 1 for what came after the draw."""
        rows = self.rows_of(indices)
        known = rows < len(self.weights)
        weights = torch.ones(len(rows), dtype=torch.float32)
        weights[known] = self.weights[rows[known]]
        return weights

    @property
    def to_read(self) -> int | None:
        """Number of examples that this process reads in this epoch; None if not known yet."""
        return None if self.sampler and not self._whole else self._to_read

    @property
    def progress(self) -> tuple[int, int]:
        """Counts of the drawn examples, and of all, that this epoch has come past."""
        return self._read, self._passed

    @progress.setter
    def progress(self, progress: tuple[int, int]) -> None:
        self._read, self._passed = progress

    def advance(self, count: int) -> int:
        """Goes past drawn examples, and returns how many of the data set they stand for.

        Over an epoch these are all of its examples, each step having its share.
        """
        before, self._read = self._passed, self._read + count
        self._passed = self._read
        if self._whole:
            self._passed = min(round(self._whole * self._read / max(self._to_read, 1)), self._whole)
        return self._passed - before

    @property
    def remaining(self) -> int:
        """Number of the data set's examples that this epoch did not come past."""
        return max(self._whole - self._passed, 0)

    @property
    def left_out(self) -> Tensor:
        """int64[n], the examples that this epoch's draw left out; of several processes, a share."""
        rows = (self.weights == 0).nonzero().squeeze(1)
        rows = rows if self._shards else rows[self.rank :: self.world]
        return self._rows.indices_of(rows) if self._rows else rows

    def update(
        self,
        indices: Tensor,
        losses: Tensor,
        epoch: int,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> None:
        """Gives the rule the losses of some examples that were trained on.

        Args:
            indices: int64[n], on the CPU. Of one that comes twice, the last loss counts.
            losses: float32[n], on the CPU. What is not finite is left out.
            epoch: The epoch in which they were trained on.
            correct: bool[n], for rules that need it.
            confidence: float[n], likewise.

        Raises:
            ConfigError: If a rule that needs them was not given correct and confidence, or another
                training used the rule or its table since this epoch began.
            LossError: If there is not one of each for each example, or a confidence is none.
        """
        if getattr(losses, "shape", None) != indices.shape:
            raise LossError(
                f"losses={format_value(losses)}: give one for each of {len(indices)} examples"
            )
        check_predictions(correct, confidence, losses)
        if self._turn not in (_UNCLAIMED, self.rule.table.turn):
            raise self._other_training()
        rows, losses = self.rows_of(indices), losses.detach().float().cpu()
        finite = losses.isfinite().nonzero().squeeze(1)
        # Of an index that comes again, the last occurrence.
        order = indices[finite].sort(stable=True)
        is_last = order.values.diff(append=order.values.new_full((1,), -1)) != 0
        last = finite[order.indices[is_last].sort().values]
        if not self.rule.learns or not len(last):
            return
        if correct is not None:
            correct = correct.detach().cpu()[last]
        if confidence is not None:
            confidence = confidence.detach().float().cpu()[last]
        record = RecordedLosses(False, epoch, rows[last], losses[last], correct, confidence)
        self._learn(record, is_exchanged=self._exchanges)

    def rescore(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Gives the rule the scores of a pass: int64[n] and float32[n]."""
        if self._turn not in (_UNCLAIMED, self.rule.table.turn):
            raise self._other_training()
        record = RecordedLosses(True, epoch, self.rows_of(indices), scores)
        self._learn(record, is_exchanged=self._exchanges)

    def _learn(self, record: RecordedLosses, *, is_exchanged: bool) -> None:
        """Gives the rule losses; those of this process are exchanged with the others."""
        is_pass, epoch, rows, losses, correct, confidence = record
        if is_pass:
            cast(Any, self.rule).rescore(rows, losses, epoch)
        else:
            self.rule.update(rows, losses, epoch, correct=correct, confidence=confidence)
        if is_exchanged:  # after the rule, which may refuse it
            self._recorded.append(record)

    def state_dict(self) -> dict[str, Any]:
        """Returns the rule's state, what was drawn for this epoch, and what others are to know."""
        return {
            "settings": self._settings(),
            "rule": self.rule.state_dict(),
            "examples": len(self.weights),
            "rows": self._stream.state_dict() if self._stream else None,
            "draws": self.draws,
            "drawn": self._drawn_state(),
            "reweights": self.reweights,
            "read": (self._whole, self._to_read, self._read, self._passed),
            "lr_scale": self.lr_scale if self.sampler else None,
            "recorded": [tuple(record) for record in self._recorded],
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is that of another rule or schedule, of one with other settings, or
                is damaged.
        """
        members = {"rule": state_of(self.rule), "rows": state_of(self._stream)}
        check_entries(self, state, members, self._settings())
        shards, counts = self._shards, tuple_of(*[integer()] * 4)
        scale = number(0) if self.sampler else nothing
        checks = {"draws": flag, "reweights": flag, "read": counts, "lr_scale": scale}
        most = shards.count * shards.height if shards else state["rule"]["examples"]
        check_entries(self, state, {"examples": integer(most=most), **checks})
        drawn = packed_weights(state["examples"]) if state["draws"] else nothing
        if shards:
            drawn = shards.table_check(torch.uint8, -(-shards.height // 8))
        recorded = list_of(recorded_losses) if self._exchanges else tuple_of()
        check_entries(self, state, {"drawn": drawn, "recorded": recorded})
        if shards:  # the counts may be those of another number of processes
            return
        whole, to_read, read, passed = state["read"]
        fits = bool(self.sampler) or whole in (0, state["examples"] // self.world)
        if self.sampler and not whole:  # of a sampler without a length
            fits, whole = to_read == 0 and passed == read, read
        if not fits or max(to_read, passed) > whole or read > max(to_read, whole):
            raise_damaged("EpochDraw.read", state["read"], "counts of this epoch's examples")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on within another's epoch.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self.rule.load_state_dict(state["rule"])
        self._turn, self._is_drawn = self.rule.table.claim(), True
        if self._stream:
            self._stream.load_state_dict(state["rows"])
        weights = torch.ones(state["examples"], dtype=torch.float32)
        if self._shards:
            weights = self._shards.unpack(self._shards.rows_of_state(state["drawn"]))
        elif state["draws"]:
            weights = unpack_weights(state["drawn"], state["examples"])
        self._set_draw(state["draws"], weights)
        whole, to_read, self._read, self._passed = state["read"]
        if not self._shards:  # whose counts may be those of another number of processes
            self.set_read_counts(whole, to_read)
        self.reweights = state["reweights"]
        if self.sampler:
            self.lr_scale = state["lr_scale"]
        self._recorded = [RecordedLosses(*record) for record in state["recorded"]]

    def common_settings(self) -> dict[str, Any]:
        """Returns what all processes must have alike, see `barrier`."""
        settings = {"memory": self.rule, "schedule": repr(self.schedule), "epochs": self.epochs}
        shared = {"examples": self.rule.examples, "seed": self._seed}
        return {**settings, **(shared if self.world > 1 else {})}

    def _settings(self) -> dict[str, Any]:
        settings = {"memory": type(self.rule).__name__, "sampler": self.sampler}
        return {**settings, **self.schedule.settings(self.epochs)}

    def _generator(self) -> torch.Generator:
        return generator_of(self._seed, self._epoch, Stream.DRAW)

    def _anneal(self, epoch: int) -> None:
        """Has the rule keep the share that the schedule gives an epoch."""
        if self.schedule.anneal:
            rule: Any = self.rule
            rule.set_keep(self.schedule.keep(epoch, self.epochs, own=self._keep_of_rule))

    def _set_draw(self, draws: bool, weights: Tensor) -> None:
        """Sets the weights of an epoch, and counts what they leave of it."""
        self.draws, self.weights = draws, weights
        self._packed: dict[str, Any] = {}  # the weights, as a state has them
        whole, self.drawn = len(weights), int(weights.count_nonzero())
        if self._shards:
            whole = self.rule.examples
            self.drawn = self.drawn * self.world if draws else self._shards.read
        counts = (0, 0) if self.sampler else (whole // self.world, self.drawn // self.world)
        self.set_read_counts(*counts)
        self.reweights |= bool(((weights != 0) & (weights != 1)).any())
        self.lr_scale = float(self.rule.lr_scale(weights)) if draws else 1.0

    def _other_training(self) -> ConfigError:
        """Returns the error that another training has begun to use what the rule remembers."""
        name = type(self.rule).__name__
        return ConfigError(
            f"another loader or sampler began to train with this {name} or its table, so that its "
            "losses are of both trainings: give each training a rule of its own, such as "
            f"{name}(...), with a table of its own; to go on with this one, load a state of it"
        )

    def _drawn_state(self) -> dict[str, Any] | None:
        if not self._packed and self._shards:  # once an epoch, as packing takes longer than a copy
            self._packed = {"bits": self._shards.pack(self.weights)}
        elif not self._packed and self.draws:
            self._packed = pack_weights(self.weights)
        if self._shards:
            return self._shards.state_of(self._packed["bits"])
        copies = {name: v.clone() for name, v in self._packed.items() if isinstance(v, Tensor)}
        return {**self._packed, **copies} or None

    def _take_up_others(self) -> None:
        """Gives the rule what other processes recorded since the last epoch began."""
        if not self._exchanges:
            return
        gathered, self._recorded = exchange_losses(self._recorded), []
        for record in itertools.chain(*gathered[: self.rank], *gathered[self.rank + 1 :]):
            self._learn(record, is_exchanged=False)


def find_candidates(rule: EpochRule, order: Tensor | None, *, is_weighted: bool) -> Tensor:
    """Returns the examples that a rule draws among in an epoch of a user's sampler.

    Where a sampler gives some examples, each once, the rule draws among these. Where it gives them
    with probabilities of its own, the rule draws among all those that it knows, whatever the
    sampler gives in this epoch: that an example is trained on then has the product of both
    probabilities. One that the rule does not know yet is trained on as it first comes, and takes
    the place of no other.

    Args:
        rule: The rule.
        order: int64[n], what the sampler gives; None where that is not known beforehand.
        is_weighted: Whether it gives them with probabilities of its own.

    Returns:
        int64[m], ascending.

    >>> from siftback import Memory
    >>> rule = Memory()
    >>> rule.grow(9)
    >>> rule.update(torch.tensor([2, 3, 7]), torch.ones(3), epoch=0)
    >>> find_candidates(rule, torch.tensor([8, 0, 3]), is_weighted=False)
    tensor([0, 3, 8])
    >>> find_candidates(rule, torch.tensor([8, 8, 3]), is_weighted=False)  # an example twice
    tensor([2, 3, 7])
    """
    if order is not None and not is_weighted:
        candidates = order.sort().values
        if not (candidates.diff() == 0).any():
            return candidates
    return rule.has_value.nonzero().squeeze(1)


def draw_weights(
    rule: EpochRule, epoch: int, generator: torch.Generator, candidates: Tensor | None = None
) -> Tensor:
    """Returns the weights that a rule draws, among all examples or some of them.

    Args:
        rule: The rule.
        epoch: The epoch.
        generator: Source of random numbers, on the CPU.
        candidates: int64[m], ascending, the examples to draw among; None for all.

    Returns:
        float32[rows], 1 for examples that are no candidates.

    Raises:
        ConfigError: If the rule does not draw one weight for each.
    """
    if candidates is not None and len(candidates) == rule.examples:
        candidates = None  # all, as without a sampler
    elif candidates is not None and not len(candidates):
        return torch.ones(rule.rows, dtype=torch.float32)
    name = type(rule).__name__
    with rule.among(candidates):
        weights = rule.draw(epoch, generator)
        if rule.shards:
            rule.shards.check_drawn(name, weights, rule.count(epoch) or 0)
        elif getattr(weights, "shape", None) != (rule.rows,):
            kind = "examples" if candidates is None else "candidates"
            raise ConfigError(
                f"{name}.draw gave {format_value(weights)} in epoch {epoch}, and there are "
                f"{rule.rows} {kind}: have it give float32[{rule.rows}], one weight for each; "
                "state of its own per example is indexed by self.candidates, where a sampler "
                "gives some alone"
            )
    if candidates is None:
        return weights
    weights_of_all = torch.ones(rule.rows, dtype=torch.float32)
    weights_of_all[candidates] = weights
    return weights_of_all
