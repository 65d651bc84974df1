"""Weights of losses, against their formulas."""

import pytest
import torch
from torch.nn import functional as F

from siftback.errors import ConfigError, LossError
from siftback.language import dft_weights, inverse_probability_weights, linupper_weights
from toys import seeded

WEIGHTS = [linupper_weights, dft_weights, inverse_probability_weights]
every_function = pytest.mark.parametrize("weigh", WEIGHTS)


@every_function
def test_padding_has_no_weight_and_no_say(weigh):
    losses = torch.rand(4, 9, generator=seeded(), requires_grad=True) * 5
    mask = torch.rand(4, 9, generator=seeded(1)) < 0.6
    padded = torch.where(mask, losses, torch.nan)
    weights = weigh(padded, mask)
    assert weights.shape == losses.shape
    assert not weights.requires_grad
    assert not weights[~mask].any()
    torch.testing.assert_close(weights[mask], weigh(losses[mask]))


@pytest.mark.parametrize("weigh", [linupper_weights, inverse_probability_weights])
def test_the_mean_is_one(weigh):
    assert float(weigh(6 * torch.rand(1000, generator=seeded())).mean()) == pytest.approx(1)
    torch.testing.assert_close(weigh(torch.full((5,), 2.0)), torch.ones(5))  # all alike


def test_linupper_rises_to_the_middle_of_the_losses_and_stays():
    losses, delta = torch.linspace(1, 5, 9), 0.7
    weights = linupper_weights(losses, delta=delta)
    lower = losses <= 3
    assert (weights[lower].diff() > 0).all()
    assert len(weights[losses >= 3].unique()) == 1
    assert float(weights.max() / weights.min()) == pytest.approx(torch.tensor(delta).exp())


def test_dft_is_the_probability_of_the_label():
    logits = torch.randn(50, 7, generator=seeded())
    labels = torch.randint(0, 7, (50,), generator=seeded(1))
    losses = F.cross_entropy(logits, labels, reduction="none")
    right = logits.softmax(1)[torch.arange(50), labels]
    torch.testing.assert_close(dft_weights(losses), right)
    inverse = inverse_probability_weights(losses, largest=1e9)
    torch.testing.assert_close(inverse, 1 / right / (1 / right).mean())


@every_function
def test_what_is_not_finite_or_does_not_fit_is_refused(weigh):
    losses = torch.tensor([1.0, torch.nan])
    with pytest.raises(LossError, match="of 2 losses 2 count, and 1 of these are not finite"):
        weigh(losses)
    with pytest.raises(LossError, match="of 2 losses 0 count"):
        weigh(losses, torch.zeros(2, dtype=torch.bool))
    with pytest.raises(LossError, match=r"mask=bool\[3\]: give bool\[2\]"):
        weigh(losses, torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize(
    ("weigh", "argument"),
    [(linupper_weights, {"delta": -1}), (inverse_probability_weights, {"largest": 0.5})],
)
def test_bad_arguments_are_refused(weigh, argument):
    with pytest.raises(ConfigError, match=f"{next(iter(argument))}="):
        weigh(torch.ones(2), **argument)
