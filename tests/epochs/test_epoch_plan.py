"""The lengths of epochs, known before training, compared with epochs that are drawn."""

import math

import pytest
import torch

from siftback import RS2, Epochs, InfoBatch, Memory, SelectiveSampler, Share
from siftback.epochs.epoch_plan import plan_of
from siftback.errors import ConfigError, StateError


def rule(**settings):
    rule = Memory(**settings)
    rule.grow(100)
    return rule


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("epochs", [1, 4, 6.5])
def test_it_is_what_a_sampler_gives(epochs, world, drop_last):
    plan = plan_of(
        rule(keep=0.4), 8, epochs=epochs, accumulation=3, world=world, drop_last=drop_last
    )
    batches = []
    for epoch in range(math.ceil(epochs)):
        each = 0
        sampler = SelectiveSampler(range(100), Memory(keep=0.4), epochs=epochs)
        sampler.set_epoch(epoch)
        each = len(list(sampler)) // world
        batches.append(each // 8 if drop_last else math.ceil(each / 8))
    assert plan.batches == batches
    updates = [math.ceil(count / 3) for count in batches]
    assert [plan.updates(epoch) for epoch in range(len(batches))] == updates
    last = math.ceil((epochs - len(updates) + 1) * updates[-1])
    assert plan.steps == sum(updates[:-1]) + last


@pytest.mark.parametrize("most", [1, 10, 11, 57])
def test_so_many_steps_begin_the_fewest_epochs(most):
    plan = plan_of(rule(keep=0.4, warmup=Share(0.3)), 10, epochs=3, max_steps=most)
    assert plan.steps == most
    assert sum(plan.batches[:-1]) < most <= sum(plan.batches)
    assert plan.epochs == len(plan.batches)
    fewer = plan_of(rule(keep=0.4, warmup=Share(0.3)), 10, epochs=max(plan.epochs - 1, 1))
    assert fewer.steps < most or plan.epochs == 1
    place = plan.place(most - 1)
    assert sum(plan.batches[: place[0]]) + place[1] == most - 1


def test_it_is_refused_where_it_is_not_known():
    few = RS2(keep=0.1)
    few.grow(100)
    with pytest.raises(ConfigError, match="make no batch of 200"):
        plan_of(few, 200, epochs=2, drop_last=True)
    unknown = InfoBatch()
    unknown.grow(100)
    with pytest.raises(ConfigError, match="InfoBatch draws is not known"):
        plan_of(unknown, 10, epochs=2)
    plan = plan_of(rule(keep=0.5, warmup=Epochs(1)), 10, epochs=3)
    plan.check([10, 5, 7], step=12)  # of the third epoch nothing was trained on
    with pytest.raises(StateError, match=r"\[10, 5, 7\].*\[10, 5, 5\]"):
        plan.check([10, 5, 7], step=16)


def test_a_sampler_goes_on_with_an_epoch_as_it_was_drawn():
    def sampler():
        return SelectiveSampler(range(40), Memory(keep=0.5, warmup=Epochs(1)), epochs=3)

    one = sampler()
    list(one)
    one.update(torch.arange(40), torch.rand(40, generator=torch.Generator().manual_seed(0)))
    order = list(one)
    one.update(torch.tensor(order[:10]), torch.zeros(10))  # a new draw would be another
    again = sampler()
    again.load_state_dict(one.state_dict())
    again.resume(1)
    again.set_epoch(1)
    assert list(again) == order
    again.set_epoch(2)
    one.set_epoch(2)
    assert list(again) == list(one)
