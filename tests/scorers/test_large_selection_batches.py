"""Selection batches larger than training's: fewer passes, and the same training batches."""

import pytest
import torch
from torch import nn

from resuming import check_resumes
from siftback import Pool, SelectiveLoader
from toys import AT_ONCE, given_losses, numbered, seeded


@pytest.mark.parametrize("times", [1, 2, 4, 8])
def test_larger_selection_batches_make_fewer_passes_and_the_same_training_batches(times):
    passes = []

    def losses(model, batch):
        passes.append(len(batch["number"]))
        return batch["loss"]

    loader = SelectiveLoader(
        numbered(torch.rand(800), 10 * times), nn.Identity(), losses=losses,
        keep=0.5, pool=Pool(10, drop_last=True), schedule=AT_ONCE,
    )  # fmt: skip
    sizes = {len(batch["number"]) for batch in loader}
    assert passes == [10 * times] * (80 // times)
    assert sizes == {10}
    assert loader.stats.scored == 800


def test_continuing_from_any_batch_equals_never_stopping():
    losses = torch.rand(200, generator=seeded())

    def make():
        loader = SelectiveLoader(
            numbered(losses, 20),
            nn.Identity(),
            losses=given_losses,
            keep=0.5,
            pool=Pool(7),
            schedule=AT_ONCE,
        )

        def steps():
            while loader.epoch < 2:
                yield from loader

        return {"loader": loader}, steps, lambda: loader.stats.scored

    check_resumes(make)
