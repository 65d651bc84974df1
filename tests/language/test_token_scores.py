"""Entropies, and what tokens' losses are above those remembered."""

import pytest
import torch
from torch.distributions import Categorical

from siftback import ScoreTable
from siftback.errors import BatchError, ConfigError, LossError, StateError
from siftback.language import TokenMemory, token_entropies
from toys import seeded

EXAMPLES, LENGTH = 7, 5


def visits(count=20, seed=0):
    """Indices, losses and masks of batches of different lengths."""
    generator = seeded(seed)
    for _ in range(count):
        indices = torch.randperm(EXAMPLES, generator=generator)[:3]
        length = int(torch.randint(1, LENGTH + 1, (1,), generator=generator))
        losses = torch.rand(3, length, generator=generator)
        yield indices, losses, torch.rand(3, length, generator=generator) < 0.8


def test_entropies_are_those_of_the_distribution():
    logits = 5 * torch.randn(4, 6, 9, generator=seeded())
    torch.testing.assert_close(token_entropies(logits), Categorical(logits=logits).entropy())
    barred = torch.cat([logits, torch.full((4, 6, 1), -torch.inf)], -1)
    torch.testing.assert_close(token_entropies(barred), token_entropies(logits))


def test_the_excess_is_over_the_last_loss_of_that_token():
    memory, last = TokenMemory(EXAMPLES, LENGTH), {}
    for indices, losses, mask in visits():
        excess = memory.excess(indices, losses, mask)
        for row, index in enumerate(indices.tolist()):
            for position, loss in enumerate(losses[row]):
                if not mask[row, position]:
                    continue
                before = last.get((index, position), 0.0)
                assert float(excess[row, position]) == pytest.approx(float(loss) - before)
                last[index, position] = float(loss)
    assert len(last) > 20


def test_stopping_anywhere_equals_never_stopping():
    memory, batches = TokenMemory(EXAMPLES, LENGTH), list(visits())
    reference = [memory.excess(*batch) for batch in batches]
    for stop in range(len(batches)):
        one, other = TokenMemory(EXAMPLES, LENGTH), TokenMemory(EXAMPLES, LENGTH)
        for batch in batches[:stop]:
            one.excess(*batch)
        other.load_state_dict(one.state_dict())
        rest = [other.excess(*batch) for batch in batches[stop:]]
        for found, expected in zip(rest, reference[stop:], strict=True):
            assert found.equal(expected)


def test_what_does_not_fit_is_refused():
    memory = TokenMemory(EXAMPLES, LENGTH)
    losses = torch.rand(2, 3)
    with pytest.raises(LossError, match=r"losses=float32\[2, 3\]: give float\[3, t\]"):
        memory.excess(torch.arange(3), losses, losses > 0)
    with pytest.raises(LossError, match="6 tokens do not fit length=5"):
        memory.excess(torch.arange(2), torch.rand(2, 6), torch.rand(2, 6) > 0)
    with pytest.raises(BatchError, match=rf"outside of \[0, {EXAMPLES}\)"):
        memory.excess(torch.tensor([0, EXAMPLES]), losses, losses > 0)
    with pytest.raises(ConfigError, match=r"TokenMemory remembers 5 .* the table has 2 columns"):
        TokenMemory(EXAMPLES, LENGTH, table=ScoreTable(columns=2))
    with pytest.raises(StateError):
        memory.load_state_dict(TokenMemory(EXAMPLES, LENGTH + 1).state_dict())
