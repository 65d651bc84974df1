"""The passes of an epoch, with the examples that a rule draws for each before they are read."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from siftback.arguments import format_value
from siftback.batches import tree
from siftback.batches.order import index_tensor
from siftback.epochs.rule_losses import RuleLosses
from siftback.errors import BatchError, ConfigError
from siftback.processes.barrier import settings_of_shards
from siftback.processes.distributed import broadcast, rank_and_world
from siftback.processes.exchange import pack_weights, packed_weights, unpack_weights
from siftback.rules.rule import EpochRule
from siftback.schedule import Schedule, check_schedule
from siftback.seeding import Stream, generator_from
from siftback.state import (
    MOST_EPOCHS,
    anything,
    check_entries,
    dict_of,
    flag,
    integer,
    list_of,
    nothing,
    number,
    raise_damaged,
    state_of,
    tensor,
    tuple_of,
)
from siftback.tables.example_rows import ExampleRows

NO_SAMPLER, UNSIZED = -1, -2
_MOST = 1 << 40  # examples of an epoch
NO_EXAMPLES = torch.arange(0)


@dataclass(eq=False)
class Pass:
    """A pass over the data, from which a rule may have left out examples.

    Attributes:
        number: Which pass of the training, from 0.
        draws: Whether a rule drew its examples.
        is_scoring: Whether its examples are scored, to refresh the rule.
        weights: float32[rows], the loss weight of each example, 0 for those left out; or bool[rows]
            where all weights are 0 or 1.
        drawn: Number of examples that all processes read in it.
        whole: Number of this process's examples that it stands for; 0 where that is not known.
        size: Number of those that this process reads; likewise.
        start: Index in the current epoch of its first example; below 0 where an earlier epoch
            began it.
        lr_scale: Factor of the learning rate.
        neighbors: int64[n], the examples that the batch in which it begins has already.
        order: int64[size], its examples, where a user's sampler gave them.
        packed: Its weights, as a state has them, once one was made.
    """

    number: int
    draws: bool
    is_scoring: bool
    weights: Tensor
    drawn: int
    whole: int
    size: int
    start: int = 0
    lr_scale: float = 1.0
    neighbors: Tensor = NO_EXAMPLES
    order: Tensor = NO_EXAMPLES
    packed: dict[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Index in the current epoch after its last example."""
        return self.start + self.size

    def passed(self, position: int) -> int:
        """Returns how many examples it stands for before an index in the current epoch.

        Each example that is read stands for an equal share of all; the fractions are rounded.

        >>> drawn = Pass(0, True, False, torch.ones(10), drawn=4, whole=10, size=4, start=2)
        >>> [drawn.passed(position) for position in range(8)]
        [0, 0, 0, 2, 5, 8, 10, 10]
        """
        read = min(max(position - self.start, 0), self.size)
        return min(round(self.whole * read / max(self.size, 1)), self.whole)


class EpochDraw:
    """Draws examples by a rule before they are read, pass by pass.

    An epoch is `length` examples of this process, whatever the rule leaves out: it has as many
    passes over the data as that takes. Each is drawn when the first of its examples is asked for,
    and the last one goes on in the next epoch. With ``shorter``, each epoch is one pass.

    Where a sampler shares the examples among several processes, each has everything that is
    remembered: as a pass is drawn, each takes up what the others recorded since the last draw, and
    the draw of rank 0 is that of all.

    Args:
        rule: What remembers and draws.
        epochs: Of the whole training; None where it is not known.
        schedule: When the rule draws, in place of its own.
        seed: Of the draws: each is a function of it and the number of the pass.
        rank: Which process this is.
        world: Among how many.
        rows: The rows of examples whose number or numbering is not known beforehand; by default
            the examples are 0, 1, 2 and so on.
        shorter: Whether each epoch is one pass.

    Attributes:
        is_ahead: Whether the passes of an epoch are all drawn as it begins, since what reads the
            order may read it ahead, or a state may.
        losses: Gives the rule the losses of training.
        passes: The passes of the current epoch that were drawn so far.
        requested: Number of this epoch's examples that were asked for.
        seconds: Time that draws took, since whoever counts it set it to 0.
        reweights: Whether any weight was other than 0 and 1, so far.
        gave_weights: Whether weights were asked for.
        sampler: The user's sampler that gives the examples, in words; None without such a one. A
            pass is then drawn once it is known what the sampler gives.
        sampled: Number of examples that such a sampler gives; `UNSIZED` of one without a length,
            and `NO_SAMPLER` without one.

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
        shorter: bool = False,
    ) -> None:
        name = type(rule).__name__
        self.rule, self.epochs, self.shorter = rule, epochs, shorter
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
        processes = rank_and_world()
        if world > 1 and processes != (rank, world):
            raise ConfigError(
                f"a sampler of rank={rank}, world={world} shares what {name} remembers with other "
                f"processes, and this one has rank={processes[0]}, world={processes[1]}: call "
                "init_process_group before it is made; or, where some processes read the same "
                "examples, give each its own Subset, and SelectiveSampler(subset, rank=0, world=1)"
            )
        self._shards, self.losses = rule.shards, RuleLosses(rule, rank, world, rows)
        self.is_ahead = False
        self.sampler: str | None = None
        self.sampled = NO_SAMPLER
        self._epoch = self._number = 0  # the current epoch, and the next pass
        self._expected = 0  # the epoch that comes after the one begun last
        self._is_on, self._is_over = False, True
        self.requested, self.seconds = 0, 0.0
        # This epoch's examples that came, those before a batch, and of all those it came past.
        self._read = self._before = self._passed = 0
        self.reweights = self.gave_weights = False
        self.passes = [self._make_pass(0, draws=False, weights=self._ones())]

    @property
    def whole(self) -> int:
        """Number of examples that this process reads of a pass from which none is left out."""
        if self.sampled >= 0:
            return self.sampled
        return (self._shards.read if self._shards else self.rule.examples) // self.world

    @property
    def length(self) -> int:
        """Number of examples of this process in an epoch; of the current one, if it is a pass."""
        return self.passes[-1].size if self.shorter else self.whole

    @property
    def current(self) -> Pass:
        """The pass that the batch that came last begins in."""
        left = (drawn for drawn in self.passes if self._before < drawn.start + drawn.size)
        return next(left, self.passes[-1])

    def pass_sizes(self, size: int) -> list[tuple[int, int]]:
        """Returns the numbers of the passes that the batch that came last is of, with its rows.

        Args:
            size: Its rows. What is pooled, or compared within a batch, is of its first one's pass.
        """
        before, read = self._before, self._read
        rows = [(p.number, min(p.start + p.size, read) - max(p.start, before)) for p in self.passes]
        rows = [(number, count) for number, count in rows if count > 0]
        is_whole = sum(count for _, count in rows) == size and not self.rule.updates_by_batch
        return rows if is_whole else [(self.current.number, size)]

    @property
    def draws(self) -> bool:
        """Whether this epoch leaves out what its draws did, before it is read."""
        return self.passes[-1].draws

    @property
    def share(self) -> float:
        """Share of the examples that this pass has."""
        current = self.current
        return current.size / current.whole if current.whole else 1.0

    @property
    def leaves_out(self) -> bool:
        """Whether this epoch has fewer examples than if none were left out."""
        last = self.passes[-1]
        return self.shorter and last.draws and last.size < last.whole

    @property
    def lr_scale(self) -> float:
        """Factor of the learning rate in this epoch; 1 where epochs are of equal length."""
        return self.passes[-1].lr_scale if self.shorter else 1.0

    def begin(self, epoch: int, *, number: int | None = None, again: bool = False) -> None:
        """Begins an epoch; unless a pass goes on in it, the first one is drawn.

        None goes on where not all examples of the epoch before were asked for.

        Args:
            epoch: The epoch.
            number: The pass, where each epoch is one; by default the epoch.
            again: Whether it begins again as it was drawn, as nothing of it was trained on.

        Raises:
            BatchError: If the rule leaves out all examples.
            ConfigError: If another training used the rule or its table since the last epoch;
                shards are not those of the processes; or a rule draws too few of a shard, or not
                one weight for each example.
        """
        self.losses.claim_once(from_start=epoch == 0)
        before, last = vars(self).copy(), self.passes[-1]
        self._read = self._before = self._passed = 0
        if again:  # as it was drawn, whatever a user's sampler would give now
            self.requested, self._is_over = 0, False
            return
        if self._shards:
            self._shards.check_processes(self.rank, self.world)
        follows, length = epoch == self._expected, self.length
        is_on = self.schedule.is_on(epoch, self.epochs)
        goes_on = follows and self.requested == length < last.end and is_on and self._is_on
        try:
            if self.shorter or not follows:
                self._number = epoch if number is None else number
            self._epoch, self._expected, self.requested = epoch, epoch + 1, 0
            self._is_on, self._is_over = is_on, False
            if goes_on and not (self.shorter or self._shards):
                self.passes = [replace(last, start=last.start - length)]
            elif self.sampler and is_on and not self.rule.is_pass(self._number):
                # The first pass waits for what the user's sampler gives.
                self.passes = [self._make_pass(self._number, draws=True, weights=self._ones())]
            else:
                self.passes = []
                self.draw_pass()
            while self.is_ahead and self.passes[-1].end < self.length:
                self.draw_pass()
        except BaseException:  # as by Ctrl-C in a long draw: the epoch is not begun
            vars(self).update(before)
            raise

    @property
    def is_waiting(self) -> bool:
        """Whether the first pass of this epoch waits for what the user's sampler gives."""
        last = self.passes[-1]
        return bool(self.sampler) and last.draws and not last.size

    def end(self) -> None:
        """Ends the epoch; what is left of its last pass goes on in the next one.

        Its passes stay until then, as what was read ahead of them may still be trained on.
        """
        self._is_over = True
        self.requested = self.length  # by a loop that does not ask for more than it has steps

    def leave(self) -> None:
        """Leaves the epoch early; none of its passes goes on in the next one."""
        self._is_over, self.requested = True, 0

    def order(
        self,
        order_of: Callable[[Pass], Iterator[Tensor]],
        draw_pass: Callable[[Tensor], Any],
        batch_size: int = 1,
    ) -> Iterator[Tensor]:
        """Yields the examples of the current epoch, int64[n], and draws its passes as they come.

        Args:
            order_of: Yields the examples of a pass.
            draw_pass: Draws the next pass; called with the examples of an unfinished batch.
            batch_size: Examples per batch.
        """
        number = count = self.requested = 0
        recent = torch.arange(0)
        while number == 0 or count < self.length:
            if number == len(self.passes) or self.is_waiting:
                draw_pass(recent[len(recent) - count % batch_size :])
            drawn = self.passes[number]
            number, skipped = number + 1, count - drawn.start
            for block in order_of(drawn):
                left = block[skipped : skipped + self.length - count]
                skipped = max(skipped - len(block), 0)
                count += len(left)
                recent = torch.cat((recent, left[-batch_size:]))[-batch_size:]
                if len(left):
                    yield left
                self.requested = count
                if count == self.length:
                    break

    def draw_pass(self, neighbors: Tensor = NO_EXAMPLES) -> None:
        """Draws the next pass among all examples, unless it is one in which everything is read.

        Args:
            neighbors: int64[n], the examples of the batch in which it begins.

        Raises:
            BatchError: If the rule leaves out all examples.
            ConfigError: If the rule does not draw one weight for each example.
        """
        started, number = time.perf_counter(), self._number
        self._prepare_draw()
        is_scoring = self._is_on and self.rule.is_pass(number)
        draws, weights = self._is_on and not is_scoring, self._ones()
        if draws:
            weights = self._draw_weights()
            if self.losses.exchanges:
                # Not left to each process: a rule whose state depends on the order of what it
                # was given, which is another in each, would draw others.
                weights = unpack_weights(broadcast(pack_weights(weights)), len(weights))
        drawn = self._make_pass(number, draws=draws, weights=weights, is_scoring=is_scoring)
        # New examples of a stream come whatever the draw.
        if draws and not self.losses.stream and drawn.drawn < self.world:
            raise BatchError(
                f"{type(self.rule).__name__} draws {drawn.drawn} of {self.rule.examples} "
                f"examples in epoch {self._epoch}, fewer than there are processes, {self.world}: "
                "have it keep more, or end training before"
            )
        drawn.neighbors = neighbors
        self._append(drawn, weights, started)

    def draw_pass_among(self, order: Tensor | None, *, is_weighted: bool = False) -> None:
        """Draws the next pass among the examples that a user's sampler gives.

        Args:
            order: int64[n], these examples; None where they are not known beforehand.
            is_weighted: Whether it gives them with probabilities of its own: `find_candidates`.

        Raises:
            ConfigError: If the rule does not draw one weight for each candidate.
        """
        started, weights = time.perf_counter(), self._ones()
        if self.is_waiting:
            self.passes = []
        self._prepare_draw()
        candidates = find_candidates(self.rule, order, is_weighted=is_weighted)
        if len(candidates) == self.rule.examples:  # as without a sampler
            weights = self._draw_weights()
        elif len(candidates):
            weights[candidates] = self._draw_weights(candidates)
        drawn = self._make_pass(self._number, draws=True, weights=weights)
        sampled = weights[candidates if order is None else order]
        if order is not None:
            drawn.order = order[sampled != 0]
            drawn.whole, drawn.size, drawn.drawn = len(order), len(drawn.order), len(drawn.order)
        self._append(drawn, sampled, started)

    def _prepare_draw(self) -> None:
        """Takes up the losses of other processes, and the share that the schedule gives."""
        self.losses.take_up_others()
        done = float(self._epoch)
        if self.passes:
            done += self.passes[-1].end / max(self.length, 1)
        if self.schedule.anneal:
            rule: Any = self.rule
            rule.set_keep(self.schedule.keep(done, self.epochs, own=self._keep_of_rule))

    def _draw_weights(self, candidates: Tensor | None = None) -> Tensor:
        """Returns the weights that the rule draws for a pass, among all examples or some of them.

        Args:
            candidates: int64[m], ascending, the examples to draw among; None for all.

        Returns:
            float32[rows], or float32[m] of candidates.

        Raises:
            ConfigError: If the rule does not draw one weight for each.
        """
        rule, number, name = self.rule, self._number, type(self.rule).__name__
        with rule.among(candidates):
            weights = rule.draw(number, generator_from(self._seed, number, Stream.DRAW))
            if rule.shards:
                rule.shards.check_drawn(name, weights, rule.count(number) or 0)
            elif getattr(weights, "shape", None) != (rule.rows,):
                kind = "examples" if candidates is None else "candidates"
                raise ConfigError(
                    f"{name}.draw gave {format_value(weights)} in epoch {number}, and there are "
                    f"{rule.rows} {kind}: have it give float32[{rule.rows}], one weight for each; "
                    "its state per example is indexed by self.candidates, where there are some"
                )
        return weights

    def _append(self, drawn: Pass, weights: Tensor, started: float) -> None:
        """Appends a pass that was drawn, with the weights of the examples it was drawn among."""
        drawn.start = self.passes[-1].end if self.passes else 0
        if drawn.draws and len(weights):
            drawn.lr_scale = float(self.rule.lr_scale(weights))
        self.passes.append(drawn)
        epochs, begins = self.epochs or math.inf, self.schedule.span(self.epochs)[0]
        is_whole = 0 < drawn.whole == drawn.size and not drawn.is_scoring
        if self._number == 0 and is_whole and begins < epochs <= 1:  # the first pass is the last
            warnings.warn(
                f"{type(self.rule).__name__} leaves nothing out of {epochs:g} epoch, as it first "
                "remembers the losses of all examples: train for more epochs, or without it",
                stacklevel=3,
            )
        self._number += 1
        self.seconds += time.perf_counter() - started

    def _ones(self) -> Tensor:
        return torch.ones(self.rule.rows, dtype=torch.float32)

    def _make_pass(
        self, number: int, *, draws: bool, weights: Tensor, is_scoring: bool = False
    ) -> Pass:
        """Returns a pass, with what its weights leave of it."""
        drawn, whole = int(weights.count_nonzero()), len(weights)
        if self._shards:
            whole = self.rule.examples
            drawn = drawn * self.world if draws else self._shards.read
        sizes = (0, 0) if self.sampler else (whole // self.world, drawn // self.world)
        is_drawn = weights != 0
        if bool((is_drawn & (weights != 1)).any()):
            self.reweights = True
        else:
            weights = is_drawn  # in a quarter of the room
        return Pass(number, draws, is_scoring, weights, drawn, *sizes)

    def weights_of(self, indices: Tensor, requested: Sequence[Any] = ()) -> Tensor:
        """Returns the loss weights of the batch that came last; 1 for what came after the draw.

        Args:
            indices: int64[n], its examples.
            requested: Those that were asked for, in their order; by default the same.

        Returns:
            float32[n].

        Raises:
            BatchError: If some of the examples of a batch in which a pass ends did not come.
        """
        before, read, self.gave_weights = self._before, self._read, True
        passes = [drawn for drawn in self.passes if drawn.start < read and before < drawn.end]
        if len(passes) < 2:
            return self._weights_in(self.current, self.losses.rows_of(indices))
        expected: Any = index_tensor(requested) if requested else indices
        rows = self.losses.rows_of(expected)
        if len(rows) != read - before:
            raise BatchError(
                f"{read - before} examples were asked for and {len(rows)} came in a batch in which "
                "a pass over the data ends, so that their weights are not known: have the collate "
                "function give every example"
            )
        bounds = [(max(p.start, before) - before, min(p.end, read) - before) for p in passes]
        pairs = zip(passes, bounds, strict=True)
        parts = [self._weights_in(drawn, rows[first:last]) for drawn, (first, last) in pairs]
        weights: dict[int, list[float]] = {}
        for index, weight in zip(expected.tolist(), torch.cat(parts).tolist(), strict=True):
            weights.setdefault(index, []).append(weight)
        # An example of both passes may come twice: its weights are taken in turn, the last again.
        by_row = [weights[index] for index in indices.tolist()]
        values = [left.pop(0) if len(left) > 1 else left[0] for left in by_row]
        return torch.tensor(values, dtype=torch.float32)

    def _weights_in(self, drawn: Pass, rows: Tensor) -> Tensor:
        """Returns float32[n], the weights of rows in a pass; 1 for what came after its draw."""
        if len(drawn.weights) == self.rule.rows:
            return drawn.weights[rows].float()
        known = rows < len(drawn.weights)
        weights = torch.ones(len(rows), dtype=torch.float32)
        weights[known] = drawn.weights[rows[known]].float()
        return weights

    def advance(self, count: int) -> int:
        """Goes past the examples of a batch that came, and returns how many they stand for.

        Over a pass these are all of the data set, each step having its share.
        """
        self._before, self._read = self._read, self._read + count
        before, read, passed = self._before, self._read, self._passed
        if self.sampled == UNSIZED:  # which is counted whenever it is read to its end
            last = self.passes[-1]
            self._passed = last.passed(read) if last.whole else passed + count
        else:
            # Of a pass that has no example of the batch, as many are passed before and after it.
            self._passed += sum(drawn.passed(read) - drawn.passed(before) for drawn in self.passes)
        return self._passed - passed

    @property
    def remaining(self) -> int:
        """Number of the data set's examples that the pass of this epoch did not come past."""
        return max(self.passes[-1].whole - self._passed, 0) if self.shorter else 0

    @property
    def left_out(self) -> Tensor:
        """int64[n], the examples that this pass's draw left out; of several processes, a share."""
        rows = (self.current.weights == 0).nonzero().squeeze(1)
        rows = rows if self._shards else rows[self.rank :: self.world]
        return self.losses.rows.indices_of(rows) if self.losses.rows else rows

    def state_dict(self) -> dict[str, Any]:
        """Returns the rule's state, the passes of this epoch, and what others are to know."""
        self.losses.finish()
        # A pass in shards ends with its epoch, after which other processes may share them.
        passes = [] if self._shards and self._is_over else self.passes
        return {
            "settings": self._settings(),
            "rule": self.rule.state_dict(),
            "rows": self.losses.stream.state_dict() if self.losses.stream else None,
            "passes": [self._state_of_pass(drawn) for drawn in passes] or None,
            "epoch": (self._epoch, self._expected, self._number),
            "is_on": self._is_on,
            "is_over": self._is_over,
            "read": (self._before, self._read, self._passed, self.requested),
            "reweights": self.reweights,
            "recorded": self.losses.recorded,
        }

    def _state_of_pass(self, drawn: Pass) -> dict[str, Any]:
        weights = None
        if self._shards:  # which are packed once, as those of any pass
            drawn.packed = drawn.packed or {"bits": self._shards.pack(drawn.weights)}
            weights = self._shards.state_of(drawn.packed["bits"])
        elif drawn.draws:
            drawn.packed = drawn.packed or pack_weights(drawn.weights)
            weights = tree.clone(drawn.packed)
        return {
            "number": drawn.number,
            "draws": drawn.draws,
            "is_scoring": drawn.is_scoring,
            "examples": len(drawn.weights),
            "drawn": weights,
            "place": (drawn.start, drawn.whole, drawn.size),
            "lr_scale": drawn.lr_scale,
            "neighbors": drawn.neighbors.clone(),
            "order": drawn.order.clone(),
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is that of another rule or schedule, of one with other settings, or
                is damaged.
        """
        members = {"rule": state_of(self.rule), "rows": state_of(self.losses.stream)}
        check_entries(self, state, members, self._settings())
        epoch = integer(most=MOST_EPOCHS)
        checks = {
            "epoch": tuple_of(epoch, epoch, integer()),
            "read": tuple_of(*[integer()] * 4),
            **dict.fromkeys(("is_on", "is_over", "reweights"), flag),
            "recorded": self.losses.check_recorded,
        }
        check_entries(self, state, checks)
        most = state["rule"]["examples"]
        if self._shards:
            most = self._shards.count * self._shards.height
        is_over = self._shards and state["is_over"]
        passes = nothing if is_over else list_of(partial(self._check_pass, most=most))
        check_entries(self, state, {"passes": passes})
        if not is_over:
            places = [saved["place"] for saved in state["passes"]]
            starts, ends = [start for start, *_ in places], [start + n for start, _, n in places]
            if not places or starts[0] > 0 or starts[1:] != ends[:-1]:
                raise_damaged("EpochDraw.passes", places, "passes that follow each other")

    def _check_pass(self, name: str, value: Any, most: int) -> None:
        """Checks the state of a pass over at most ``most`` examples."""
        place = integer(-_MOST, _MOST)
        checks = {
            "number": integer(),
            "draws": flag,
            "is_scoring": flag,
            "examples": integer(most=most),
            "drawn": anything,
            "place": tuple_of(place, integer(), integer()),
            "lr_scale": number(0),
            "neighbors": tensor(torch.int64, None, least=0),
            "order": tensor(torch.int64, None, least=0),
        }
        dict_of(checks)(name, value)
        shards = self._shards
        drawn = packed_weights(value["examples"]) if value["draws"] else nothing
        if shards:
            drawn = shards.table_check(torch.uint8, -(-shards.height // 8))
        drawn(f"{name}.drawn", value["drawn"])
        (_, whole, size), count = value["place"], len(value["order"])
        fits = size <= whole if self.sampler else shards or whole == value["examples"] // self.world
        if not fits or count not in (0, size):
            raise_damaged(f"{name}.place", value["place"], "counts of its examples")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on within another's epoch.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self.losses.forget()
        self.rule.load_state_dict(state["rule"])
        self.losses.claim()
        if self.losses.stream:
            self.losses.stream.load_state_dict(state["rows"])
        passes = [self._loaded_pass(saved) for saved in state["passes"] or []]
        self.passes = passes or [self._make_pass(0, draws=False, weights=self._ones())]
        self._epoch, self._expected, self._number = state["epoch"]
        self._is_on = state["is_on"]
        self.go_to(state)
        self.reweights = state["reweights"]
        self.losses.recorded = state["recorded"]

    def go_to(self, state: dict[str, Any]) -> None:
        """Goes to the place of a state within its epoch, whose passes this draw has."""
        self._before, self._read, self._passed, self.requested = state["read"]
        self._is_over = state["is_over"]

    def _loaded_pass(self, saved: dict[str, Any]) -> Pass:
        weights = torch.ones(saved["examples"], dtype=torch.float32)
        if self._shards:
            weights = self._shards.unpack(self._shards.rows_of_state(saved["drawn"]))
        elif saved["draws"]:
            weights = unpack_weights(saved["drawn"], saved["examples"])
        flags = {name: saved[name] for name in ("draws", "is_scoring")}
        drawn = self._make_pass(saved["number"], weights=weights, **flags)
        drawn.lr_scale = saved["lr_scale"]
        drawn.neighbors, drawn.order = saved["neighbors"].clone(), saved["order"].clone()
        drawn.start, whole, size = saved["place"]
        if self.sampler:
            drawn.whole, drawn.size, drawn.drawn = whole, size, size
        return drawn

    def common_settings(self) -> dict[str, Any]:
        """Returns what all processes must have alike, see `barrier`."""
        settings = {"memory": self.rule, "schedule": repr(self.schedule), "epochs": self.epochs}
        settings |= {"shorter_epochs": self.shorter}
        if rank_and_world()[1] > self.world:  # each has examples of its own
            return settings_of_shards(settings)
        return {**settings, "examples": self.rule.examples, "seed": self._seed}

    def _settings(self) -> dict[str, Any]:
        settings = {"memory": type(self.rule).__name__, "sampler": self.sampler}
        return {**settings, "shorter_epochs": self.shorter, **self.schedule.settings(self.epochs)}


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
