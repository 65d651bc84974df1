"""Pictures that are changed at random, after a resume within an epoch: as the guide says it."""

import random

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from siftback import Epochs, Memory, Schedule, SelectiveLoader, SelectiveSampler

COUNT, BATCH, EPOCHS = 26, 4, 3
WORKERS = {
    "no workers": {},
    "workers": {"num_workers": 2},
    "workers that persist": {"num_workers": 2, "persistent_workers": True},
}


class Augmented(Dataset):
    """The recipe of docs/guides/resuming.md."""

    def __init__(self, dataset, transform, seed=0):
        self.dataset, self.transform, self.seed = dataset, transform, seed
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        image, label = self.dataset[index]
        numbers = np.random.SeedSequence((self.seed, int(self.epoch), index)).generate_state(2)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(numbers[0]) << 32 | int(numbers[1]))
            return self.transform(image), label


class FromGlobals(Dataset):
    """Random changes from whatever the process has, as most data sets draw them."""

    def __init__(self, dataset, transform):
        self.dataset, self.transform = dataset, transform
        self.epoch = torch.zeros(())

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        image, label = self.dataset[index]
        noise = random.random() + np.random.rand()
        return self.transform(image) + noise, label


def transform(image):
    """Draws from PyTorch's global generator, as torchvision's transforms do."""
    image = image.flip(1) if torch.rand(()) < 0.5 else image
    return image.roll(int(torch.randint(4, ())), 1) + 0.1 * torch.randn_like(image)


def pictures():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(COUNT, 3, 4, 4, generator=generator)
    return TensorDataset(images, torch.arange(COUNT) % 3)


def remembering(data, **workers):
    plain = DataLoader(data, BATCH, shuffle=True, **workers)
    return SelectiveLoader(plain, memory=Memory(0.5, warmup=Epochs(1)), epochs=EPOCHS, seed=3)


def scoring(data, **workers):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    plain = DataLoader(data, BATCH, sampler=SelectiveSampler(data, seed=3), **workers)
    return SelectiveLoader(
        plain, model, F.cross_entropy, keep=0.6, schedule=Schedule(warmup=Epochs(0)), epochs=EPOCHS
    )


def steps_of(make, data, workers, state=None, most=None):
    """Batches and examples of the steps from a state on, with the state after each of them."""
    loader = make(data, **workers)
    if state is not None:
        loader.load_state_dict(state)
    found = []
    for epoch in range(loader.epoch, EPOCHS):
        data.epoch.fill_(epoch)
        for images, labels in loader:
            indices = loader.indices.clone()
            loader.record(images.square().mean((1, 2, 3)))
            found.append((images, labels, indices, loader.state_dict()))
            if len(found) == most:
                return found
    return found


def assert_equal(steps, others):
    torch.testing.assert_close(
        [step[:3] for step in steps], [step[:3] for step in others], rtol=0, atol=0
    )


@pytest.mark.parametrize("make", [remembering, scoring])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.sampled(3)
def test_the_recipe_gives_the_same_pictures_from_every_state_on(make, workers):
    whole = steps_of(make, Augmented(pictures(), transform), WORKERS[workers])
    assert len({images.sum().item() for images, *_ in whole}) == len(whole)
    stride = 3 if WORKERS[workers] else 1  # of states, as each starts workers
    for done in range(1, len(whole), stride):
        state = whole[done - 1][-1]
        torch.manual_seed(100 + done)  # whatever the process that goes on has
        data = Augmented(pictures(), transform)
        expected = whole[done : done + 4]
        assert_equal(steps_of(make, data, WORKERS[workers], state, len(expected)), expected)


def test_the_recipe_changes_with_seed_epoch_and_example_alone():
    data = Augmented(pictures(), transform)
    assert torch.equal(data[3][0], data[3][0])
    others = [Augmented(pictures(), transform, seed=1)[3][0], data[4][0]]
    data.epoch.fill_(1)
    others.append(data[3][0])
    data.epoch.fill_(0)
    assert not any(torch.equal(other, data[3][0]) for other in others)


def test_the_recipe_leaves_global_generators_alone():
    before = torch.get_rng_state()
    Augmented(pictures(), transform)[0]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", WORKERS)
def test_examples_of_the_epoch_are_the_same_though_pictures_from_global_generators_are_not(workers):
    torch.manual_seed(7)
    random.seed(7)
    np.random.seed(7)
    data, options = FromGlobals(pictures(), transform), WORKERS[workers]
    whole = steps_of(remembering, data, options)
    for done in (1, 5):  # in the warm-up, after which draws depend on the losses
        expected = whole[done : done + 2]
        again = steps_of(remembering, data, options, whole[done - 1][-1], len(expected))
        assert all(step[2].equal(same[2]) for step, same in zip(again, expected, strict=True))
        assert not any(step[0].equal(same[0]) for step, same in zip(again, expected, strict=True))
