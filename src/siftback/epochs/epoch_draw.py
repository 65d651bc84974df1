"""Between a loader and a rule: which examples an epoch has, and what training found of them."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from siftback.epochs.candidates import candidates_of, check_count, weights_drawn
from siftback.errors import BatchError, ConfigError
from siftback.processes.distributed import all_gather, rank_and_world
from siftback.processes.exchange import (
    Finding,
    check_finding,
    check_packed,
    checked_parts,
    exchanged,
    last_of_each,
    packed_weights,
    shared_draw,
    size_of,
    unpacked_weights,
)
from siftback.rules.rule import EpochRule, RefreshedRule, check_guesses
from siftback.schedule import Schedule, checked_schedule
from siftback.seeding import Stream, generator_of
from siftback.selectors.selection import Selection
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
from siftback.tables.shards import Shards


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
        rows: The rows of examples whose number or numbering nobody knows beforehand; None if the
            examples are 0, 1, 2 and so on.

    Attributes:
        weights: float32[rows], the loss weight of each in this epoch, 0 for those left out.
        draws: Whether this epoch leaves out what its draw did, before it is read.
        reweights: Whether any weight was other than 0 and 1, in this epoch or before.
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
        self.rule, self.epochs, self._rows = rule, epochs, rows
        self.schedule = rule.schedule if schedule is None else checked_schedule(schedule)
        self.schedule.is_on(0, epochs)  # shares without epochs are an error now, not later
        if self.schedule.interrupt:
            raise ConfigError(
                f"interrupt={self.schedule.interrupt} passes whole batches, and "
                f"{type(rule).__name__} leaves examples out before there are any: leave it out"
            )
        self.schedule.check_selector(rule)
        self._own_keep = getattr(rule, "keep", 1.0)
        self._seed = seed
        self.rank, self.world = rank, world
        if world > 1 and rank_and_world() != (rank, world):
            raise ConfigError(
                f"a sampler of rank={rank}, world={world} shares what {type(rule).__name__} "
                "remembers with other processes: call torch.distributed.init_process_group before "
                "it is made, or give it rank=0, world=1"
            )
        self.draws = self.reweights = False
        self.weights = torch.ones(rule.rows, dtype=torch.float32)
        self.sampler: str | None = None
        self._packed: dict[str, Any] | None = None  # the weights, as a state has them
        self._count = rule.examples  # drawn, by all processes
        self._waits: int | None = None  # the epoch that `draw_from` is to draw
        self._scale = 1.0  # of the learning rate, as `draw_from` found it
        self._whole = self._mine = 0  # of all examples and of the drawn, what this process reads
        self._read = self._passed = 0  # of the drawn examples and of all, in this epoch
        self._recorded: list[Finding] = []  # in this epoch, where others are to know it
        self._turn: int | None = None  # with the rule's table; None before the first epoch

    @property
    def learns(self) -> bool:
        """Whether the rule takes training's losses: it is then to be given them."""
        return type(self.rule).update is not EpochRule.update

    @property
    def is_common(self) -> bool:
        """Whether a state between epochs is that of all processes, whatever their number."""
        return self._shards is not None

    def is_pass(self, epoch: int) -> bool:
        """Whether a scoring pass is due in an epoch, from which the rule is refreshed."""
        on = self.schedule.is_on(epoch, self.epochs)
        return on and isinstance(self.rule, RefreshedRule) and self.rule.is_pass(epoch)

    def plans_pass(self, epoch: int) -> bool:
        """Whether an epoch has a scoring pass in a training from the first epoch to the last."""
        if not isinstance(self.rule, RefreshedRule):
            return False
        last: int | None = None
        for earlier in range(epoch + 1):
            due = last is None or earlier - last >= self.rule.every
            if due and self.schedule.is_on(earlier, self.epochs):
                last = earlier
        return last == epoch

    def count(self, epoch: int, given: int | None = None) -> int | None:
        """How many examples all processes read in an epoch; None where nobody knows before it.

        Args:
            epoch: The epoch.
            given: How many examples a sampler of the user's gives; None where it gives all.
        """
        if not self.schedule.is_on(epoch, self.epochs) or self.plans_pass(epoch):
            if given is not None:
                return given
            return self.count_whole
        keep = getattr(self.rule, "keep", 1.0)
        with self.rule.among(None if given is None else torch.arange(given)):
            try:
                self._anneal(epoch)
                return self.rule.count(epoch)
            finally:
                if self.schedule.anneal is not None:
                    cast(Any, self.rule).set_keep(keep)

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
        if self._turn is None:
            self._turn = self.rule.table.claim()
        self._check_turn()
        if again:
            self.place = 0, 0
            # A sampler of the user's may give others now, among which the rule draws anew.
            self._waits = epoch if self.draws and self.sampler is not None else None
            return
        if self._shards is not None:
            self._shards.check_processes(self.rank, self.world)
        self._take_up_others()
        self._anneal(epoch)
        self._read = self._passed = 0
        self.draws = self.schedule.is_on(epoch, self.epochs) and not self.is_pass(epoch)
        self._waits = epoch if self.draws and self.sampler is not None else None
        if not self.draws or self._waits is not None:
            self.weights = torch.ones(self.rule.rows, dtype=torch.float32)
        else:
            generator = generator_of(self._seed, epoch, Stream.DRAW)
            weights = weights_drawn(self.rule, epoch, generator)
            self.weights = shared_draw(weights) if self._shares else weights
        self._count_drawn()
        if self.draws and self._rows is None:  # as new examples of a stream come all the same
            check_count(self.rule, epoch, self._count, self.world)

    def draw_from(self, order: Tensor | None, *, is_weighted: bool = False) -> None:
        """Draws an epoch whose examples a sampler of the user's gives; once after each `begin`.

        Args:
            order: int64[n], what the sampler gives; None where that is not known beforehand.
            is_weighted: Whether it gives them with probabilities of its own: `candidates_of`.

        Raises:
            ConfigError: If the rule does not draw one weight for each candidate.
        """
        if self._waits is None:
            return
        epoch, self._waits = self._waits, None
        candidates = candidates_of(self.rule, order, is_weighted=is_weighted)
        self.weights = weights_drawn(
            self.rule, epoch, generator_of(self._seed, epoch, Stream.DRAW), candidates
        )
        self._count_drawn()
        given = self.weights[candidates if order is None else order]
        self._scale = float(self.rule.lr_scale(given)) if len(given) else 1.0
        if order is not None:
            self.takes(len(given), int(given.count_nonzero()))

    def takes(self, whole: int, mine: int) -> None:
        """Sets of how many examples that a sampler of the user's gave how many are left."""
        self._whole, self._mine = whole, mine

    @property
    def drawn(self) -> int:
        """How many examples all processes read in this epoch."""
        return self._count

    @property
    def count_whole(self) -> int:
        """Number of examples that all processes read where none is left out."""
        return self.rule.examples if self._shards is None else self._shards.read

    @property
    def leaves_out(self) -> bool:
        """Whether this epoch has fewer examples than if none were left out."""
        return self.draws and self._mine < self._whole

    def admit(self, indices: Tensor) -> None:
        """Makes room for examples that came: int64[n]."""
        if self._rows is not None:
            self._rows.add(indices)
            self.rule.grow(len(self._rows))
        elif self._shards is None:
            self.rule.grow(int(indices.max()) + 1)

    def rows_of(self, indices: Tensor) -> Tensor:
        """int64[n], the rows of examples in the rule's table.

        Raises:
            BatchError: If one is not that of an example.
        """
        if self._rows is not None:
            return self._rows.of(indices)
        if self._shards is not None:
            return self._shards.rows_of(indices)
        for index in indices.aminmax() if len(indices) else ():
            if not 0 <= int(index) < self.rule.examples:
                raise BatchError(
                    f"indices= holds {int(index)}, and there are {self.rule.examples} examples: "
                    "give indices of the data set"
                )
        return indices

    def keep(self, indices: Tensor) -> Selection:
        """Which rows of a batch were drawn, by the indices of its examples.

        What was not there as the draw was made is kept, with weight 1.
        """
        indices = self.rows_of(indices)
        if int(indices.max()) < len(self.weights):
            weights = self.weights[indices]
        else:
            known = indices < len(self.weights)
            weights = torch.ones(len(indices), dtype=torch.float32)
            weights[known] = self.weights[indices[known]]
        rows = weights.nonzero().squeeze(1)
        return Selection(rows, weights[rows])

    def weights_of(self, indices: Tensor) -> Tensor:
        """float32[n], the loss weights of examples in this epoch."""
        return self.weights[self.rows_of(indices)]

    @property
    def mine(self) -> int | None:
        """How many examples this process reads in this epoch; None where nobody knows yet."""
        return None if self.sampler is not None and not self._whole else self._mine

    def passed(self, count: int) -> int:
        """How many examples of the data set a batch of drawn ones stands for.

        Over an epoch these are all of its examples, each step having its share.
        """
        self._read += count
        before = self._passed
        self._passed = self._read
        if self._whole:
            self._passed = min(round(self._whole * self._read / max(self._mine, 1)), self._whole)
        return self._passed - before

    @property
    def place(self) -> tuple[int, int]:
        """How many of the drawn examples, and of all, this epoch has come past."""
        return self._read, self._passed

    @place.setter
    def place(self, place: tuple[int, int]) -> None:
        self._read, self._passed = place

    def end_epoch(self) -> int:
        """What is missing of the data set's examples, where a last short batch was dropped."""
        return max(self._whole - self._passed, 0)

    @property
    def left_out(self) -> Tensor:
        """int64[n], the examples that this epoch's draw left out; of several processes, a share."""
        rows = (self.weights == 0).nonzero().squeeze(1)
        if self._shards is not None:
            return self._shards.indices_of(rows)
        rows = rows[self.rank :: self.world]
        return rows if self._rows is None else self._rows.indices[rows]

    def order(self, seed: int, epoch: int, shuffle: bool) -> Iterator[Tensor] | None:
        """This process's examples of an epoch in their order, where the rule has shards of them.

        Args:
            seed: Of the order.
            epoch: Likewise.
            shuffle: Whether they are shuffled.

        Returns:
            int64[n] at a time; None where the order is not the rule's to say.
        """
        if self._shards is None:
            return None
        weights, quota = self.weights if self.draws else None, self._count // self._shards.count
        return self._shards.order(weights, quota, seed, epoch, shuffle)

    @property
    def lr_scale(self) -> float:
        """What the rule multiplies the learning rate with in this epoch."""
        if not self.draws:
            return 1.0
        return self.rule.lr_scale(self.weights) if self.sampler is None else self._scale

    def update(
        self,
        indices: Tensor,
        losses: Tensor,
        epoch: int,
        *,
        correct: Tensor | None = None,
        confidence: Tensor | None = None,
    ) -> None:
        """Gives the rule what training found of some examples.

        Args:
            indices: int64[n], on the CPU. Of one that comes twice, the last loss counts.
            losses: float32[n], on the CPU. What is not finite is left out.
            epoch: That they were trained on in.
            correct: bool[n], for rules that need it.
            confidence: float[n], likewise.

        Raises:
            ConfigError: If a rule that needs them was not given correct and confidence, or another
                training used the rule or its table since this epoch began.
            LossError: If there is not one of each for each example, or a confidence is none.
        """
        parts = checked_parts(indices, losses, correct, confidence)
        rows = losses.isfinite().nonzero().squeeze(1)
        rows = last_of_each(indices, rows)
        indices = self.rows_of(indices)
        if self.learns and len(rows):
            taken: Any = {
                name: None if column is None else column[rows] for name, column in parts.items()
            }
            check_guesses(taken["correct"], taken["confidence"], taken["losses"])
            self._give(Finding(False, epoch, indices[rows], **taken))

    def rescore(self, indices: Tensor, scores: Tensor, epoch: int) -> None:
        """Gives the rule the scores of a pass: int64[n] and float32[n]."""
        self._give(Finding(True, epoch, self.rows_of(indices), scores))

    def state_dict(self) -> dict[str, Any]:
        """The rule's state, what was drawn for this epoch, and what others are to know."""
        return {
            "settings": self._settings(),
            "rule": self.rule.state_dict(),
            "examples": len(self.weights),
            "rows": None if self._rows is None else self._rows.state_dict(),
            "draws": self.draws,
            "drawn": self._drawn_state(),
            "reweights": self.reweights,
            "read": (self._whole, self._mine, self._read, self._passed),
            "lr_scale": None if self.sampler is None else self._scale,
            "recorded": [tuple(finding) for finding in self._recorded],
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is that of another rule or schedule, of one with other settings, or
                is damaged.
        """
        rule, rows = state_of(self.rule), nothing if self._rows is None else state_of(self._rows)
        check_entries(self, state, {"rule": rule, "rows": rows}, self._settings())
        shards = self._shards
        most = state["rule"]["examples"] if shards is None else shards.count * shards.height
        own = {"examples": integer(most=most), "draws": flag, "reweights": flag}
        scale = nothing if self.sampler is None else number(0)
        check_entries(self, state, {**own, "read": tuple_of(*[integer()] * 4), "lr_scale": scale})
        drawn = check_packed(state["examples"]) if state["draws"] else nothing
        drawn = drawn if shards is None else self._check_drawn
        check_entries(self, state, {"drawn": drawn, "recorded": list_of(self._check_recorded)})
        if shards is not None:  # the counts may be those of another number of processes
            return
        whole, mine, read, passed = state["read"]
        share = state["examples"] // self.world
        fits = self.sampler is not None or whole in (0, share)  # 0 before the first epoch
        if self.sampler is not None and not whole:  # of a sampler without a length
            fits, whole = mine == 0 and passed == read, read
        if not fits or max(mine, passed) > whole or read > max(mine, whole):
            raise_damaged("EpochDraw.read", state["read"], "counts of this epoch's examples")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on within another's epoch.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self.rule.load_state_dict(state["rule"])
        self._turn = self.rule.table.claim()
        if self._rows is not None:
            self._rows.load_state_dict(state["rows"])
        self.draws = state["draws"]
        if self._shards is not None:
            self.weights = self._shards.unpacked(self._shards.own(state["drawn"]))
        elif self.draws:
            self.weights = unpacked_weights(state["drawn"], state["examples"])
        else:
            self.draws, self.weights = False, torch.ones(state["examples"], dtype=torch.float32)
        self._count_drawn()
        self.reweights = state["reweights"]
        self._waits = None
        if self.sampler is not None:
            self._scale = state["lr_scale"]
        whole, mine, self._read, self._passed = state["read"]
        if self._shards is None:  # whose state may be that of another number of processes
            self._whole, self._mine = whole, mine
        self._recorded = [Finding(*finding) for finding in state["recorded"]]

    def common_settings(self) -> dict[str, Any]:
        """What all processes must have alike, see `meet`; of the draw, where they share one."""
        own = {"memory": self.rule, "schedule": repr(self.schedule), "epochs": self.epochs}
        shared = {"examples": self.rule.examples, "seed": self._seed}
        return {**own, **(shared if self.world > 1 else {})}

    def _settings(self) -> dict[str, Any]:
        own = {"memory": type(self.rule).__name__, "sampler": self.sampler}
        return {**own, **self.schedule.settings(self.epochs)}

    def _check_recorded(self, name: str, value: Any) -> None:
        if not self._shares:
            raise_damaged(name, value, "nothing, as no other process is to know it")
        check_finding(name, value)

    def _check_drawn(self, name: str, value: Any) -> None:
        assert self._shards is not None
        self._shards.check(name, value, torch.uint8, -(-self._shards.height // 8))

    def _anneal(self, epoch: int) -> None:
        """Has the rule keep the share that the schedule gives an epoch."""
        if self.schedule.anneal is not None:
            rule: Any = self.rule
            rule.set_keep(self.schedule.keep(epoch, self.epochs, own=self._own_keep))

    @property
    def _shards(self) -> Shards | None:
        return self.rule.shards

    @property
    def _shares(self) -> bool:
        """Whether all processes know what each of them records."""
        return self.world > 1 and self._shards is None

    def _count_drawn(self) -> None:
        self._packed = None
        whole, self._count = len(self.weights), int(self.weights.count_nonzero())
        if self._shards is not None:
            whole, self._count = self.rule.examples, self._count * self.world
            if not self.draws:
                self._count = self._shards.read
        self._whole = self._mine = 0
        if self.sampler is None:
            self._whole, self._mine = whole // self.world, self._count // self.world
        weighed = (self.weights != 0) & (self.weights != 1)
        self.reweights = self.reweights or bool(weighed.any())

    def _check_turn(self) -> None:
        """Checks that no other training has begun to use what the rule remembers."""
        if self._turn not in (None, self.rule.table.turn):
            name = type(self.rule).__name__
            raise ConfigError(
                f"another loader or sampler began to train with this {name} or its table, so that "
                "its losses are of both trainings: give each training a rule of its own, such as "
                f"{name}(...), with a table of its own; to go on with this one, load a state of it"
            )

    def _give(self, finding: Finding) -> None:
        self._check_turn()
        self._take(finding)
        if self._shares:
            self._recorded.append(finding)

    def _take(self, found: Finding) -> None:
        if found.is_pass:
            assert isinstance(self.rule, RefreshedRule)
            self.rule.rescore(found.indices, found.losses, found.epoch)
        else:
            judged = {"correct": found.correct, "confidence": found.confidence}
            self.rule.update(found.indices, found.losses, found.epoch, **judged)

    def _drawn_state(self) -> dict[str, Any] | None:
        if self._packed is None:  # once an epoch, as it takes longer the more examples there are
            if self._shards is not None:
                self._packed = {"bits": self._shards.packed(self.weights)}
            elif self.draws:
                self._packed = packed_weights(self.weights)
        if self._shards is not None and self._packed is not None:
            return self._shards.state_of(self._packed["bits"])
        if self._packed is None:
            return None
        own = {name: self._packed[name].clone() for name in ("bits", "weights")}
        return {**self._packed, **own}

    def _take_up_others(self) -> None:
        if not self._shares:
            return
        found = exchanged(self._recorded, all_gather(size_of(self._recorded)))
        for rank, findings in enumerate(found):
            for finding in findings if rank != self.rank else ():
                self._take(finding)
        self._recorded = []
