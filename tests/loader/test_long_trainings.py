"""Very many batches leave nothing behind."""

import gc
import tracemalloc

import pytest
import torch
from torch import nn

from siftback import Memory, Percentile, Pool, SelectiveLoader
from toys import AT_ONCE, given_losses


class Endless:
    """Batches of examples that hold their losses, as many as are asked for."""

    batch_size = 8

    def __init__(self, count):
        self.count = count

    def __iter__(self):
        losses = torch.rand(64, generator=torch.Generator().manual_seed(0))
        for number in range(self.count):
            rows = torch.arange(number, number + 8) % 64
            yield {"number": rows, "loss": losses[rows]}


def by_selection(batches):
    source, selector = Endless(batches), Percentile(keep=0.5, history=100)
    loader = SelectiveLoader(
        source,
        nn.Identity(),
        losses=given_losses,
        selector=selector,
        pool=Pool(8),
        schedule=AT_ONCE,
    )
    for batch in loader:
        yield loader.loss(batch["loss"])


def by_memory(batches):
    data = torch.utils.data.TensorDataset(torch.rand(64))
    plain = torch.utils.data.DataLoader(data, 8, shuffle=True)
    loader = SelectiveLoader(plain, memory=Memory(keep=0.5), epochs=batches // 4)
    for _ in range(batches // 4):
        for (losses,) in loader:
            yield loader.loss(losses)


@pytest.mark.red
@pytest.mark.parametrize("make", [by_selection, by_memory])
def test_batches_leave_nothing_behind(make, asked, count):
    steps, objects = 0, []
    batches = asked("batches") // 2
    try:
        for _ in make(batches):
            steps += 1
            if steps in (batches // 8, batches // 4, batches * 2 // 5):
                gc.collect()
                objects.append(len(gc.get_objects()))
            if steps == batches // 8:
                tracemalloc.start()  # for a part of them, as it makes all slower
            elif steps == batches // 4:
                grown = tracemalloc.get_traced_memory()[0]
                tracemalloc.stop()
    finally:
        tracemalloc.stop()
    assert len(objects) == 3
    assert grown < 100_000  # some 400 objects that are used again; 8 bytes a batch were more
    assert objects[-1] - objects[0] < 500
    count(f"{batches} batches {make.__name__.replace('_', ' ')}: {grown} bytes more")
