"""Selection batches larger than training's: fewer passes, and the same training batches."""

import pytest
import torch
from torch import nn

from siftback import Pool, SelectiveLoader
from toys import assert_same, given_losses, numbered


@pytest.mark.parametrize("times", [1, 2, 4, 8])
def test_larger_selection_batches_make_fewer_passes_and_the_same_training_batches(times):
    passes = []

    def losses(model, batch):
        passes.append(len(batch["number"]))
        return batch["loss"]

    loader = SelectiveLoader(
        numbered(torch.rand(800), 10 * times), nn.Identity(), losses=losses,
        keep=0.5, pool=Pool(10, drop_last=True),
    )  # fmt: skip
    sizes = {len(batch["number"]) for batch in loader}
    assert passes == [10 * times] * (80 // times)
    assert sizes == {10}
    assert loader.stats.scored == 800


def test_continuing_from_any_batch_equals_never_stopping():
    losses = torch.rand(200, generator=torch.Generator().manual_seed(0))

    def run(state=None):
        loader = SelectiveLoader(
            numbered(losses, 20), nn.Identity(), losses=given_losses, keep=0.5, pool=Pool(7)
        )
        batches, states = [], []
        if state is not None:
            loader.load_state_dict(state)
        while loader.epoch < 2:
            for batch in loader:
                batches.append(batch)
                states.append(loader.state_dict())
        return batches, states, loader.stats.scored

    batches, states, scored = run()
    assert scored == 400
    for done, state in enumerate(states, start=1):
        rest, _, same_scored = run(state)
        assert_same(rest, batches[done:])
        assert same_scored == scored
