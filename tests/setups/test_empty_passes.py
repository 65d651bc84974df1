"""A sampler that gives nothing in a pass, or nothing that the rule keeps, ends training by name."""

import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from siftback import EpochRule, Epochs, Memory, SelectiveLoader
from siftback.errors import BatchError

EXAMPLES, EPOCHS = 8, 4
ALL = range(EXAMPLES)


class Planned(Sampler):
    """Gives other examples each time that it is iterated; the last plan for all times after it."""

    def __init__(self, *plans):
        self.plans, self.iterations = plans, 0

    def __iter__(self):
        self.iterations += 1
        return iter(self.plans[min(self.iterations, len(self.plans)) - 1])

    def __len__(self):
        return EXAMPLES


class NothingLeft(EpochRule):
    def __init__(self):
        super().__init__(warmup=Epochs(1))

    def draw(self, epoch, generator):
        return torch.zeros(self.examples)


def train(sampler, rule):
    """Trains, and returns the examples of each step."""
    loader = DataLoader(TensorDataset(torch.arange(1.0, EXAMPLES + 1)), 4, sampler=sampler)
    loader = SelectiveLoader(loader, memory=rule, epochs=EPOCHS)
    steps = []
    for _ in range(EPOCHS):
        for (values,) in loader:
            loader.loss(values)
            steps.append((values - 1).long().tolist())
    return steps


def remembering():
    return Memory(keep=0.5, warmup=Epochs(1))


@pytest.mark.parametrize("plans", [(ALL, ()), (ALL, (), ()), (ALL, (), (), ALL), (ALL, ALL, ())])
def test_a_pass_without_examples_is_an_error_that_names_the_sampler(plans):
    with pytest.raises(BatchError, match="Planned gave no examples"):
        train(Planned(*plans), remembering())


def test_a_rule_that_leaves_out_all_of_a_sampler_is_an_error_that_names_both():
    with pytest.raises(BatchError, match=r"Planned gave 8 examples .* NothingLeft left all"):
        train(Planned(ALL), NothingLeft())


def test_passes_of_few_examples_fill_every_epoch():
    sampler = Planned(ALL, (0, 1), (2,), (3, 4, 5))
    steps = train(sampler, remembering())
    assert len(steps) == EPOCHS * 2
    assert all(len(step) == 4 for step in steps)
    assert sampler.iterations > EPOCHS
