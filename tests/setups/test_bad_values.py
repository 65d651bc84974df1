"""Bad values for everything public: refused by name, and never a raw error of our own code."""

import pytest
import torch

import pictures
from damaging import comparable
from stateful_objects import KINDS
from stateful_parts import COUNT, MODEL, rand
from toys import seeded

DTYPES = [torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture
def default_dtype():
    yield torch.set_default_dtype
    torch.set_default_dtype(torch.float32)


def results_of(name, made):
    """What an object that was put to use computes next."""
    room = name.partition(": ")[0]
    if room == "selector":
        some = rand(COUNT, 7)
        selected = [tuple(made.select(some, seeded(), count)) for count in (None, 5)]
        chances = made.probabilities(some) if hasattr(made, "probabilities") else None
        return selected, chances
    if room == "rule":
        drawn = made.draw(5, seeded(5))
        return drawn, made.lr_scale(drawn)
    if room == "scorer":
        return made.score(pictures.CROSS_ENTROPY, MODEL, pictures.batch(9), torch.arange(COUNT))
    return None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_the_default_dtype_changes_nothing(name, dtype, default_dtype):
    found = []
    for default in (torch.float32, dtype):
        torch.manual_seed(0)
        default_dtype(default)
        made = KINDS[name].make()
        KINDS[name].use(made)
        found.append((comparable(results_of(name, made)), comparable(made.state_dict())))
    assert found[0] == found[1]
