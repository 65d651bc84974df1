"""Draws whose weights come to undo their bias."""

import pytest
import torch

from siftback import Memory, Share
from siftback.errors import ConfigError, StateError
from siftback.lab.settings import Settings
from siftback.lab.strategies.before_reading import AnnealedMemory
from siftback.lab.strategies.table import find_strategy

N = 60


def filled(rule):
    """A rule that knows the losses of all examples, some of them equal."""
    rule.grow(N)
    losses = torch.rand(N, generator=torch.Generator().manual_seed(3)).mul(9).round()
    rule.update(torch.arange(N), losses, epoch=0)
    return rule


def test_annealed_weights_rise_from_none_to_whole():
    whole = filled(Memory(0.5, unbiased=True))
    risen = filled(AnnealedMemory(0.5, epochs=4.0))

    def weights(rule, epoch):
        return rule.draw(epoch, torch.Generator().manual_seed(0))

    assert set(weights(risen, 0).tolist()) == {0.0, 1.0}
    for epoch, exponent in ((1, 0.25), (2, 0.5), (4, 1.0), (9, 1.0)):
        expected = weights(whole, epoch) ** exponent
        torch.testing.assert_close(weights(risen, epoch), expected * (expected > 0))


def test_a_state_of_other_weights_is_refused():
    one = filled(AnnealedMemory(0.5, epochs=4.0))
    other = AnnealedMemory(0.5, epochs=3.0)
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
