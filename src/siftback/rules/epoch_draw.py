"""Between a loader and a rule: which examples an epoch has, and what training found of them."""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from siftback.errors import BatchError, ConfigError, LossError
from siftback.loading.distributed import all_gather, rank_and_world
from siftback.loading.seeding import Stream, generator_of
from siftback.rules.example_rows import ExampleRows
from siftback.rules.exchange import (
    Finding,
    check_finding,
    check_packed,
    exchanged,
    packed_weights,
    shared_draw,
    size_of,
    unpacked_weights,
)
from siftback.rules.rule import EpochRule, RefreshedRule
from siftback.rules.shards import Shards
from siftback.schedule import Schedule, checked_schedule
from siftback.selectors.selection import Selection
from siftback.states import (
    check_state,
    each,
    entries,
    flag,
    integer,
    nothing,
    part,
    refuse,
)


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
        is_filtered: Whether a sampler of the user's own gives the examples, whose number is then
            known only once it has (`takes`).

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
        self.is_filtered = False
        self._packed: dict[str, Any] | None = None  # the weights, as a state has them
        self._count = rule.examples  # drawn, by all processes
        self._whole = self._mine = 0  # of all examples and of the drawn, what this process reads
        self._read = self._passed = 0  # of the drawn examples and of all, in this epoch
        self._recorded: list[Finding] = []  # in this epoch, where others are to know it

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

    def count(self, epoch: int) -> int | None:
        """How many examples all processes read in an epoch; None where nobody knows before it."""
        if not self.schedule.is_on(epoch, self.epochs) or self.plans_pass(epoch):
            return self.rule.examples if self._shards is None else self._shards.read
        if self.schedule.anneal is None:
            return self.rule.count(epoch)
        keep = getattr(self.rule, "keep", 1.0)
        try:
            self._anneal(epoch)
            return self.rule.count(epoch)
        finally:
            cast(Any, self.rule).set_keep(keep)

    def begin(self, epoch: int) -> None:
        """Draws for an epoch, unless it is one in which everything is read.

        Raises:
            ConfigError: If the processes have rules, data or seeds that do not fit each other.
        """
        if self._shards is not None:
            self._shards.check_processes(self.rank, self.world)
        self._take_up_others()
        self._anneal(epoch)
        self._read = self._passed = 0
        self.draws = self.schedule.is_on(epoch, self.epochs) and not self.is_pass(epoch)
        if not self.draws:
            self.weights = torch.ones(self.rule.rows, dtype=torch.float32)
        else:
            weights = self.rule.draw(epoch, generator_of(self._seed, epoch, Stream.DRAW))
            if self._shards is not None:
                count = self.rule.count(epoch) or 0
                self._shards.check_drawn(type(self.rule).__name__, weights, count)
            self.weights = shared_draw(weights) if self._shares else weights
        self._count_drawn()

    @property
    def drawn(self) -> int:
        """How many examples all processes read in this epoch."""
        return self._count

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

    def takes(self, whole: int, mine: int) -> None:
        """Sets of how many examples this process reads how many, where a sampler decides that."""
        self._whole, self._mine = whole, mine

    @property
    def mine(self) -> int | None:
        """How many examples this process reads in this epoch; None where nobody knows yet."""
        return None if self.is_filtered and not self._whole else self._mine

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
        return self.rule.lr_scale(self.weights) if self.draws else 1.0

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
            ConfigError: If a rule that needs them was not given correct and confidence.
            LossError: If there is not one of each for each example.
        """
        parts: dict[str, Tensor | None] = {}
        for name, found in (("losses", losses), ("correct", correct), ("confidence", confidence)):
            if found is not None and getattr(found, "shape", None) != indices.shape:
                shape = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
                raise LossError(
                    f"{name} has shape {shape}, and there are {len(indices)} examples: give a "
                    f"tensor with one for each, [{len(indices)}]"
                )
            if found is not None and found.is_floating_point():
                found = found.float()
            parts[name] = None if found is None else found.detach().cpu()
        rows = losses.isfinite().nonzero().squeeze(1)
        rows = _last_of_each(indices, rows)
        indices = self.rows_of(indices)
        if self.learns and len(rows):
            taken: Any = {
                name: None if part is None else part[rows] for name, part in parts.items()
            }
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
            "recorded": [tuple(finding) for finding in self._recorded],
        }

    def check_state(self, state: dict[str, Any]) -> None:
        """Checks that a state fits.

        Raises:
            StateError: If it is that of another rule or schedule, of one with other settings, or
                is damaged.
        """
        rule, rows = part(self.rule), nothing if self._rows is None else part(self._rows)
        check_state(self, state, {"rule": rule, "rows": rows}, self._settings())
        shards = self._shards
        most = state["rule"]["examples"] if shards is None else shards.count * shards.height
        own = {"examples": integer(most=most), "draws": flag, "reweights": flag}
        check_state(self, state, {**own, "read": entries(*[integer()] * 4)})
        drawn = check_packed(state["examples"]) if state["draws"] else nothing
        drawn = drawn if shards is None else self._check_drawn
        check_state(self, state, {"drawn": drawn, "recorded": each(self._check_recorded)})
        if shards is not None:  # the counts may be those of another number of processes
            return
        whole, mine, read, passed = state["read"]
        share = state["examples"] // self.world
        fits = self.is_filtered or whole in (0, share)  # 0 before the first epoch
        if not fits or max(mine, passed) > whole or read > max(mine, whole):
            refuse("EpochDraw.read", state["read"], "counts of this epoch's examples")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on within another's epoch.

        Raises:
            StateError: As for `check_state`, before anything is changed.
        """
        self.check_state(state)
        self.rule.load_state_dict(state["rule"])
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
        whole, mine, self._read, self._passed = state["read"]
        if self._shards is None:  # whose state may be that of another number of processes
            self._whole, self._mine = whole, mine
        self._recorded = [Finding(*finding) for finding in state["recorded"]]

    def _settings(self) -> dict[str, Any]:
        schedule = self.schedule
        return {"memory": type(self.rule).__name__, **schedule.settings(self.epochs)}

    def _check_recorded(self, name: str, value: Any) -> None:
        if not self._shares:
            refuse(name, value, "nothing, as no other process is to know it")
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
        if not self.is_filtered:
            self._whole, self._mine = whole // self.world, self._count // self.world
        weighed = (self.weights != 0) & (self.weights != 1)
        self.reweights = self.reweights or bool(weighed.any())

    def _give(self, finding: Finding) -> None:
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
        if self.world == 1:
            return
        own = {
            "seed": self._seed,
            "memory": type(self.rule).__name__,
            "examples": self.rule.examples,
            **self.rule.settings(),
        }
        others = all_gather((own, size_of(self._recorded)))
        for rank, (theirs, _) in enumerate(others):
            for name in own | theirs:
                here, there = own.get(name), theirs.get(name)
                if here != there:
                    raise ConfigError(
                        f"{name}={here} in the process of rank {self.rank}, and {there} in that "
                        f"of rank {rank}: give all processes the same {name}, as they share one "
                        "order and one draw"
                    )
        if self._shards is not None:
            return
        found = exchanged(self._recorded, [size for _, size in others])
        for rank, findings in enumerate(found):
            for finding in findings if rank != self.rank else ():
                self._take(finding)
        self._recorded = []


def _last_of_each(indices: Tensor, rows: Tensor) -> Tensor:
    """Of some rows of indices those whose index does not come again after them, ascending.

    >>> _last_of_each(torch.tensor([7, 5, 7, 2]), torch.tensor([0, 1, 2]))
    tensor([1, 2])
    """
    order = indices[rows].sort(stable=True)
    is_last = order.values.diff(append=order.values.new_full((1,), -1)) != 0
    return rows[order.indices[is_last]].sort().values
