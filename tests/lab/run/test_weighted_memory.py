"""Draws whose weights undo their bias."""

import pytest
import torch

from siftback import Memory, Share
from siftback.errors import ConfigError, StateError
from siftback.lab.settings import Settings
from siftback.lab.strategies.before_reading import WeightedMemory
from siftback.lab.strategies.table import find_strategy

N = 60
DRAWS = 800


def filled(rule, unknown=0):
    """A rule that knows the losses, some of them equal, of all examples but the last few."""
    rule.grow(N)
    losses = torch.rand(N, generator=torch.Generator().manual_seed(3)).mul(9).round()
    known = torch.arange(N - unknown)
    rule.update(known, losses[known], epoch=0)
    return rule, losses


@pytest.mark.parametrize("unknown", [0, 4])
@pytest.mark.parametrize(("keep", "floor"), [(0.5, 0.1), (0.25, 0.05), (0.8, 0.3)])
def test_the_weighted_mean_of_a_draw_is_that_of_all_on_average(keep, floor, unknown):
    rule, losses = filled(WeightedMemory(keep, floor=floor), unknown)
    plain, _ = filled(Memory(keep, floor=floor), unknown)
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    draws = torch.stack([rule.draw(1, generators[0]) for _ in range(DRAWS)])
    unweighted = torch.stack([plain.draw(1, generators[1]) for _ in range(DRAWS)])
    assert torch.equal(draws > 0, unweighted > 0)  # the same examples
    kept = rule.count(1)
    assert bool(((draws > 0).sum(1) == kept).all())
    means, biased = ((each * losses).sum(1).div(kept) for each in (draws, unweighted))
    spread = float(means.std()) / DRAWS**0.5
    assert abs(float(means.mean() - losses.mean())) < 5 * spread + 1e-3
    assert float(biased.mean()) > float(losses.mean()) + 0.2
    assert float(draws.sum(1).mean()) == pytest.approx(kept, rel=0.06)


def test_annealed_weights_rise_from_none_to_whole():
    whole, _ = filled(WeightedMemory(0.5))
    risen, _ = filled(WeightedMemory(0.5, epochs=4.0))

    def weights(rule, epoch):
        return rule.draw(epoch, torch.Generator().manual_seed(0))

    assert set(weights(risen, 0).tolist()) == {0.0, 1.0}
    for epoch, exponent in ((1, 0.25), (2, 0.5), (4, 1.0), (9, 1.0)):
        expected = weights(whole, epoch) ** exponent
        torch.testing.assert_close(weights(risen, epoch), expected * (expected > 0))


def test_a_state_of_other_weights_is_refused():
    one, _ = filled(WeightedMemory(0.5))
    other = WeightedMemory(0.5, epochs=3.0)
    other.grow(N)
    with pytest.raises(StateError):
        other.load_state_dict(one.state_dict())


def test_they_rise_over_the_epochs_of_a_run():
    by_epochs = Settings("digits", epochs=10.0)
    by_budget = Settings("digits", budget=10.0, warmup=Share(0.2))
    rule = find_strategy("sb-memory-annealed").choice(0.5, by_epochs)
    assert rule.settings()["epochs"] == 9.0
    # Two epochs of all, then eight's cost in epochs of half.
    assert find_strategy("sb-memory-annealed").choice(0.5, by_budget).settings()["epochs"] == 17.0
    with pytest.raises(ConfigError, match="over a known number of epochs"):
        find_strategy("sb-memory-annealed").choice(0.5, Settings("digits", time_budget=9.0))
