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
    steps, used = 0, []
    batches = asked("batches") // 2
    tracemalloc.start()
    try:
        for _ in make(batches):
            steps += 1
            if steps in (batches // 8, batches // 3):
                gc.collect()
                used.append((tracemalloc.get_traced_memory()[0], len(gc.get_objects())))
    finally:
        tracemalloc.stop()
    (early, fewer), (late, more) = used
    assert late - early < 50_000
    assert more - fewer < 500
    count(f"{batches} batches {make.__name__.replace('_', ' ')}: {late - early} bytes more")
