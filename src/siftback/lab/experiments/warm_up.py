"""The losses that `Memory` remembers at the end of its warm-up, which a forecast goes by."""

from collections.abc import Callable

from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.experiments.comparison import Plan, prepare_data
from siftback.lab.run.train import Training
from siftback.lab.settings import Settings
from siftback.lab.strategies.before_reading import BeforeReading
from siftback.lab.strategies.strategy import OWN_SHARE


def warm_up(
    settings: Settings, seed: int = 0, update: Callable[[float], None] = lambda done: None
) -> tuple[Tensor, float]:
    """Trains a model by ``Memory()`` up to the end of its warm-up.

    Args:
        settings: How to train; the length is a budget.
        seed: Of its initial weights and data order.
        update: Called with the share of the training that is done.

    Returns:
        The losses that are remembered before the first draw, float32[n]; and the share of the
        budget that was spent by then.

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
    return losses[~losses.isnan()], done
