"""Batches padded to the longest of each: losses of valid positions, pooled at any length."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from resuming import check_resumes
from siftback import Memory, Pool, SelectiveLoader, TopK, per_example
from siftback.errors import BatchError
from toys import AT_ONCE, optimizer_of, seeded

CLASSES, PADDING = 5, {"ids": 0, "labels": -100}
LENGTHS = torch.randint(1, 9, (44,), generator=seeded(0)).tolist()
SEQUENCES = [torch.randint(CLASSES, (length,), generator=seeded(length)) for length in LENGTHS]


class Tagger(nn.Module):
    """A class for each position, by its token alone: padding changes no other position."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(CLASSES, CLASSES)
        with torch.no_grad():
            self.table.weight.copy_(torch.randn(CLASSES, CLASSES, generator=seeded(1)))

    def forward(self, ids):
        return self.table(ids).movedim(-1, 1)


def collate(rows):
    sequences = [SEQUENCES[row] for row in rows]
    batch = {
        key: pad_sequence(sequences, batch_first=True, padding_value=fill)
        for key, fill in PADDING.items()
    }
    return {**batch, "row": torch.tensor(rows)}


def padded(seed=2):
    return DataLoader(range(44), 8, shuffle=True, generator=seeded(seed), collate_fn=collate)


def losses_of(model, batch):
    return per_example(F.cross_entropy)(model(batch["ids"]), batch["labels"])


def loss_alone(model, row):
    ids = SEQUENCES[row][None]
    return F.cross_entropy(model(ids), ids).item()


def test_selection_is_by_the_mean_over_valid_positions():
    model = Tagger()
    loader = SelectiveLoader(
        padded(),
        model,
        losses=losses_of,
        selector=TopK(keep=1 / 2),
        pool=Pool(4, pad=PADDING),
        schedule=AT_ONCE,
    )
    found = sorted(row for batch in loader for row in batch["row"].tolist())
    expected = []
    for batch in padded():
        rows = batch["row"].tolist()
        best = sorted(rows, key=lambda row: loss_alone(model, row), reverse=True)[: len(rows) // 2]
        cut = min(loss_alone(model, row) for row in best)
        ties = [row for row in rows if abs(loss_alone(model, row) - cut) < 1e-6]
        assert set(best) & set(found) >= set(best) - set(ties)
        expected += best
    assert len(found) == len(expected)


@pytest.mark.parametrize(
    "arguments",
    [
        {"losses": losses_of, "keep": 0.5},
        {"losses": losses_of, "keep": 0.8, "pool_size": 3},
        {"memory": Memory(keep=0.5)},
    ],
    ids=["two passes", "smaller batches", "memory"],
)
def test_padded_batches_are_pooled_and_resumed(arguments):
    arguments = dict(arguments)
    pool = Pool(arguments.pop("pool_size", 8), pad=PADDING)

    def make():
        model = Tagger()
        optimizer = optimizer_of(model)
        given = (padded(), model) if "losses" in arguments else (padded(),)
        fresh = Pool(pool.batch_size, pad=pool.pad)
        memory = {"memory": Memory(keep=0.5)} if "memory" in arguments else {}
        loader = SelectiveLoader(*given, **{**arguments, **memory}, pool=fresh, epochs=2)

        def steps():
            while loader.epoch < 2:
                for batch in loader:
                    for ids, labels, row in zip(
                        batch["ids"], batch["labels"], batch["row"].tolist(), strict=True
                    ):
                        assert torch.equal(ids[labels != -100], SEQUENCES[row])
                    loader.loss(losses_of(model, batch)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    yield batch
                yield None

        return {"model": model, "optimizer": optimizer, "loader": loader}, steps, model.state_dict

    check_resumes(make)


def test_without_pad_the_part_is_named():
    loader = SelectiveLoader(padded(), Tagger(), losses=losses_of, keep=0.5, schedule=AT_ONCE)
    with pytest.raises(BatchError, match=r"batch\['ids'\] has rows of several shapes .* pad="):
        list(loader)
