"""The losses that `Memory` remembers at the end of its warm-up, which a forecast goes by."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from siftback import Forecast, forecast
from siftback.errors import ConfigError
from siftback.lab.experiments.comparison import Plan, prepare_data
from siftback.lab.run.train import Training
from siftback.lab.settings import Settings
from siftback.lab.strategies.before_reading import BeforeReading
from siftback.lab.strategies.strategy import OWN_SHARE


class WarmUp(NamedTuple):
    """A training up to its first draw.

    Attributes:
        losses: float32[n], those remembered.
        done: Share of the training's budget that was spent.
        budget: In epochs of plain training.
    """

    losses: Tensor
    done: float
    budget: float

    @property
    def forecast(self) -> Forecast:
        """The expected worth of ``Memory()`` in it."""
        return forecast(self.losses, epochs=self.budget, done=self.done * self.budget)


def warm_up(
    settings: Settings, seed: int = 0, update: Callable[[float], None] = lambda done: None
) -> WarmUp:
    """Trains a model by ``Memory()`` up to the end of its warm-up.

    Args:
        settings: How to train; the length is a budget.
        seed: Of its initial weights and data order.
        update: Called with the share of the training that is done.

    Raises:
        ConfigError: If the length is no budget, or something of this cannot be trained.
    """
    if not settings.budget:
        raise ConfigError("a warm-up without a budget: give the length of training as budget=")
    plan = Plan(settings, ["Memory()"], [OWN_SHARE], [seed], matched=False)
    training = Training(plan.runs()[0], settings, prepare_data(plan))
    batches, done = training.batches, 0.0
    assert isinstance(batches, BeforeReading)
    try:
        for _ in training.steps(update):
            if batches.loader.stats.considered:  # a batch after it
                break
            done = training.done
    finally:
        batches.close()
    losses = batches.rule.values[:, 0]
    return WarmUp(losses[~losses.isnan()], done, settings.budget)
