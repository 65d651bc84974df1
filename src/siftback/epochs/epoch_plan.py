"""The lengths of a training's epochs, where a rule draws a known number of examples."""

import math
from dataclasses import dataclass

from siftback.batches.last_batches import count_batches
from siftback.epochs.epoch_draw import EpochDraw
from siftback.errors import ConfigError, StateError
from siftback.rules.rule import EpochRule


@dataclass(frozen=True)
class EpochPlan:
    """The batches and steps of each epoch.

    Attributes:
        batches: Of each epoch and process.
        accumulation: Batches per step; the last step of an epoch may have fewer.
        steps: Of the whole training.
        read: Examples that all processes read in it.
        epochs: Of the whole training, for rules that count in shares of it.
    """

    batches: list[int]
    accumulation: int
    steps: int
    read: int
    epochs: float

    def updates(self, epoch: int) -> int:
        """Steps of an epoch."""
        return math.ceil(self.batches[epoch] / self.accumulation)

    def place(self, step: int) -> tuple[int, int]:
        """The epoch that a step is in, both from 0, and the steps of that epoch before it."""
        epoch = 0
        while epoch < len(self.batches) and step >= self.updates(epoch):
            step -= self.updates(epoch)
            epoch += 1
        return epoch, step

    def check(self, saved: list[int], step: int) -> None:
        """Checks that a training whose epochs had other numbers of batches is the same up to here.

        Raises:
            StateError: If it is not.
        """
        epoch, done = self.place(step)
        begun = epoch + (done > 0)
        if saved[:begun] != self.batches[:begun]:
            raise StateError(
                f"the epochs before the checkpoint had {saved[:begun]} batches, and with these "
                f"arguments they would have had {self.batches[:begun]}: resume with the same "
                "number of epochs or steps, and the same rule"
            )


def plan_of(
    rule: EpochRule,
    batch_size: int,
    *,
    epochs: float,
    max_steps: int | None = None,
    accumulation: int = 1,
    world: int = 1,
    drop_last: bool = False,
) -> EpochPlan:
    """Plans the length of the epochs that a rule draws.

    Args:
        rule: The rule, which knows its examples.
        batch_size: Of each process.
        epochs: Of the whole training; the last one may be a part.
        max_steps: In place of ``epochs``: there are as many whole ones as so many steps begin.
        accumulation: Batches per step.
        world: Number of processes.
        drop_last: Whether the examples that fill no batch are left out.

    Raises:
        ConfigError: If the rule does not know its number of examples beforehand, or an epoch has
            no batch.

    >>> from siftback import Epochs, Memory
    >>> rule = Memory(keep=0.5, warmup=Epochs(1))
    >>> rule.grow(100)
    >>> plan = plan_of(rule, 10, epochs=3)
    >>> plan.batches, plan.steps, plan.place(12)
    ([10, 5, 5], 20, (1, 2))
    """
    whole = math.ceil(math.ceil(rule.examples / world / batch_size) / accumulation)
    if max_steps is not None:
        epochs = float(max(1, math.ceil(max_steps / max(whole, 1))))  # no epoch has more steps
    draw = EpochDraw(rule, epochs=epochs)
    while True:
        draw.epochs = epochs
        counts = [_count(draw, epoch) // world for epoch in range(math.ceil(epochs))]
        batches_of_epochs = [
            count_batches(count, batch_size, drop_last, whole=rule.examples // world)
            for count in counts
        ]
        if not all(batches_of_epochs):
            epoch = batches_of_epochs.index(0)
            raise ConfigError(
                f"the {counts[epoch]} examples of epoch {epoch} for each of {world} processes "
                f"make no batch of {batch_size}: give smaller batches, or keep more"
            )
        updates = [math.ceil(batches / accumulation) for batches in batches_of_epochs]
        last = math.ceil((epochs - len(batches_of_epochs) + 1) * updates[-1])
        steps = sum(updates[:-1]) + last
        if max_steps is None or steps >= max_steps:
            break
        epochs += 1
    if max_steps is not None:
        last, steps = last - (steps - max_steps), max_steps
    read = sum(counts[:-1]) + round(counts[-1] * last / updates[-1])
    return EpochPlan(batches_of_epochs, accumulation, steps, read * world, epochs)


def _count(draw: EpochDraw, epoch: int) -> int:
    count = draw.count(epoch)
    if count is None:
        raise ConfigError(
            f"how many examples {type(draw.rule).__name__} draws is not known before an epoch, "
            "and steps are counted before training: give one of a fixed number, such as "
            "Memory(keep=0.5)"
        )
    return count
