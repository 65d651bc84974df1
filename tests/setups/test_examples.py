"""The examples of a batch are known in every structure, or the batch is refused by name at once.

Each set-up has a data set whose example i holds the number i in all of its parts, and losses that
are those numbers. After a selection the parts of each kept example must still be of one example.
"""

import dataclasses
from collections import namedtuple
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from siftback import (
    Ema,
    Epochs,
    GradientBound,
    Memory,
    Pool,
    Reduced,
    Schedule,
    SelectiveLoader,
    Stale,
    TopK,
    Uniform,
)  # fmt: skip
from siftback.batches import tree
from siftback.errors import BatchError

COUNT = 44


class Detection(Dataset):
    """Images of unlike sizes with boxes, whose numbers of channels and boxes may look like rows."""

    def __init__(self, boxes=lambda index: 1 + index % 3):
        self.boxes = boxes

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        image = torch.full((3, 4 + index % 3, 5), float(index))
        count = self.boxes(index)
        return image, {"boxes": torch.full((count, 4), float(index)), "id": torch.tensor(index)}


class Graph:
    """An object of a library, with a method that moves it."""

    def __init__(self, index):
        self.x, self.index = torch.full((2 + index % 3, 2), float(index)), index

    def to(self, device):
        return self


Named = namedtuple("Named", "image label")


@dataclasses.dataclass
class Boxed:
    images: list
    numbers: torch.Tensor


def zipped(examples):
    return tuple(zip(*examples, strict=True))


def stacked(examples):
    images = torch.stack([image[:, :4] for image, _ in examples])
    return images, [target for _, target in examples]


def numbers_of(images, targets):
    """The numbers of the examples, after checking that image and target are of one example."""
    numbers = [int(target["id"]) for target in targets]
    for image, target, number in zip(images, targets, numbers, strict=True):
        assert torch.equal(image, torch.full_like(image, number))
        assert torch.equal(target["boxes"], torch.full_like(target["boxes"], number))
    return numbers


def in_lists(examples):
    return {
        "image": [image for image, _ in examples],
        "boxes": [target["boxes"] for _, target in examples],
        "number": [int(target["id"]) for _, target in examples],
    }


def numbers_in_lists(batch):
    for parts in zip(batch["image"], batch["boxes"], batch["number"], strict=True):
        assert {int(value) for value in (*parts[0].unique(), *parts[1].unique())} == {parts[2]}
    return batch["number"]


def as_dataclass(examples):
    return Boxed(
        [image for image, _ in examples], torch.tensor([int(t["id"]) for _, t in examples])
    )


def numbers_in_dataclass(batch):
    assert [int(image[0, 0, 0]) for image in batch.images] == batch.numbers.tolist()
    return batch.numbers.tolist()


def numbers_labelled(batch):
    assert [int(image[0, 0, 0]) for image in batch[0]] == list(batch[1])
    return list(batch[1])


# Of each: the collate function, and the numbers in a batch, its parts checked against each other.
RIGHT = {
    "tuple(zip(*batch))": (zipped, lambda batch: numbers_of(*batch)),
    "lists of both": (lambda rows: [list(part) for part in zipped(rows)],
                      lambda batch: numbers_of(*batch)),
    "stacked images": (stacked, lambda batch: numbers_of(*batch)),
    "a list of pairs": (list, lambda batch: numbers_of(*zip(*batch, strict=True))),
    "a list of dicts": (
        lambda rows: [{"image": image, **target} for image, target in rows],
        lambda batch: numbers_of([row["image"] for row in batch], batch),
    ),
    "a list of named tuples": (
        lambda rows: [Named(*row) for row in rows],
        lambda batch: numbers_of([row.image for row in batch], [row.label for row in batch]),
    ),
    "a dict of lists": (in_lists, numbers_in_lists),
    "a dataclass with a list": (as_dataclass, numbers_in_dataclass),
    "images and a tuple of labels": (
        lambda rows: zipped([(image, int(target["id"])) for image, target in rows]),
        numbers_labelled,
    ),
    "a list of images": (
        lambda rows: [image for image, _ in rows],
        lambda batch: [int(image[0, 0, 0]) for image in batch],
    ),
    "a list of arrays": (
        lambda rows: {"image": [image.numpy() for image, _ in rows]},
        lambda batch: [int(image[0, 0, 0]) for image in batch["image"]],
    ),
    "objects": (
        lambda rows: [Graph(int(target["id"])) for _, target in rows],
        lambda batch: [int(graph.x[0, 0]) for graph in batch if graph.x[0, 0] == graph.index],
    ),
    "strings, some of them missing": (
        lambda rows: {"id": torch.stack([target["id"] for _, target in rows]),
                      "name": [str(int(t["id"])) if int(t["id"]) % 2 else None for _, t in rows]},
        lambda batch: [int(number) for number, name in zip(batch["id"], batch["name"], strict=True)
                       if name == (str(int(number)) if number % 2 else None)],
    ),
}  # fmt: skip
DATA = {"boxes": Detection(), "as many boxes as channels": Detection(lambda index: 3)}


def losses_by(numbers):
    def losses(model, batch):
        return torch.tensor(numbers(batch)).float()

    return losses


SELECTIONS = {
    "top": lambda: {"selector": TopK(keep=0.5)},
    "top after a warm-up": lambda: {"selector": TopK(keep=0.5), "schedule": Schedule()},
    "smaller batches": lambda: {"selector": TopK(keep=0.5), "pool": Pool(3)},
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
@pytest.mark.parametrize("make", SELECTIONS.values(), ids=SELECTIONS)
@pytest.mark.parametrize(("collate", "numbers"), RIGHT.values(), ids=RIGHT)
def test_what_is_kept_of_a_batch_is_whole_examples(collate, numbers, make, data):
    plain = DataLoader(data, 8, collate_fn=collate)
    arguments = {"schedule": Schedule(warmup=Epochs(0))} | make()
    loader = SelectiveLoader(plain, nn.Identity(), losses=losses_by(numbers), **arguments)
    first, second = ([n for batch in loader for n in numbers(batch)] for _ in range(2))
    assert second == [index for index in range(COUNT) if index % 8 >= (4 if index < 40 else 2)]
    assert first == (second if loader.stats.scored == 2 * COUNT else list(range(COUNT)))


@pytest.mark.parametrize("collate", [zipped, stacked, list])
def test_as_many_examples_as_channels_and_boxes(collate):
    numbers = dict(RIGHT.values())[collate]
    plain = DataLoader(DATA["as many boxes as channels"], 3, collate_fn=collate)
    loader = SelectiveLoader(
        plain,
        nn.Identity(),
        losses=losses_by(numbers),
        pool=Pool(4),
        selector=TopK(keep=2 / 3),
        schedule=Schedule(warmup=Epochs(0)),
    )
    found = [number for batch in loader for number in numbers(batch)]
    assert found == [index for index in range(COUNT) if index % 3 and index != 42]


RULES = [(Memory, size) for size in (1, 2, 3, 8)] + [(lambda: Stale(0.5, every=2), 8)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rule", "size"), RULES, ids=["1", "2", "3", "8", "stale"])
@pytest.mark.parametrize(("collate", "numbers"), RIGHT.values(), ids=RIGHT)
def test_rules_remember_the_loss_of_the_right_example(collate, numbers, size, rule):
    data = DATA["as many boxes as channels"]
    plain = DataLoader(data, size, shuffle=True, generator=torch.Generator(), collate_fn=collate)
    memory = rule()
    model = {} if rule is Memory else {"model": nn.Identity(), "losses": losses_by(numbers)}
    loader = SelectiveLoader(plain, memory=memory, epochs=4, **model)
    for _ in range(4):
        for batch in loader:
            found = numbers(batch)
            assert loader.indices.tolist() == found
            loader.loss(torch.tensor(found).float())
    assert memory.values[:, 0].tolist() == list(range(COUNT))


def packed(examples):
    return pack_sequence([image[0] for image, _ in examples], enforce_sorted=False)


class Rows(Mapping):
    """A mapping of columns whose iterator and length are those of its rows, as a TensorDict's."""

    batch_dims = 1

    def __init__(self, columns):
        self.columns = columns

    def __getitem__(self, name):
        return self.columns[name]

    def __iter__(self):
        return iter(next(iter(self.columns.values())))

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def items(self):
        return self.columns.items()


# Which no rule needs to split, and nothing can.
WHOLE = {
    "a mapping by rows": (lambda rows: Rows({"x": torch.zeros(len(rows))}), "is a Rows, which"),
    "an object of many": (lambda rows: Graph(len(rows)), r"is a Graph, which has no rows: give"),
    "a packed sequence": (packed, r"is a PackedSequence, which has no rows: give a tensor"),
    "a string for all": (
        lambda rows: {"x": torch.zeros(len(rows)), "split": "train"},
        r"batch\['split'\] is a str, which has no rows",
    ),
    "a number for all": (
        lambda rows: {"x": torch.zeros(len(rows)), "epoch": 3},
        r"batch\['epoch'\] is a int, which has no rows",
    ),
    "a tensor without rows": (
        lambda rows: (torch.zeros(len(rows)), torch.tensor(0.5)),
        r"batch\[1\] is Tensor\[\], which has no rows: give a tensor with a row",
    ),
    "None": (lambda rows: None, r"a batch without examples"),
    "a sparse tensor": (
        lambda rows: (torch.eye(len(rows)).to_sparse(), torch.zeros(len(rows))),
        r"batch\[0\] is a sparse_coo Tensor, which has no rows",
    ),
    "a nested tensor": (
        lambda rows: torch.nested.nested_tensor([image[0, 0] for image, _ in rows]),
        r"is a nested Tensor, which has no rows",
    ),
    "the shape of all images": (
        lambda rows: (torch.zeros(len(rows), 3), (32, 64)), r"batch\[1\]\[0\] is a int, which has",
    ),
    "parts of unlike lengths": (
        lambda rows: (torch.zeros(len(rows)), torch.zeros(len(rows) + 1)),
        r"mismatched sizes \(batch\[0\]: 8, batch\[1\]: 9\)",
    ),
}  # fmt: skip
SPLITTING = {
    "a scoring pass after a warm-up": lambda plain: SelectiveLoader(
        plain, nn.Identity(), losses=lambda model, batch: torch.zeros(8), keep=0.5
    ),
    "a scoring pass at once": lambda plain: SelectiveLoader(
        plain, nn.Identity(), losses=lambda model, batch: torch.zeros(8), keep=0.5,
        schedule=Schedule(warmup=Epochs(0)),
    ),
    "chance": lambda plain: SelectiveLoader(plain, selector=Uniform(keep=0.5)),
    "a rule with passes": lambda plain: SelectiveLoader(
        plain, nn.Identity(), losses=lambda model, batch: torch.zeros(8), memory=Stale(0.5),
        epochs=4,
    ),
    "a rule and a pool": lambda plain: SelectiveLoader(
        plain, memory=Memory(), epochs=4, pool=Pool(5)
    ),
}  # fmt: skip
quiet = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


@quiet
@pytest.mark.parametrize("make", SPLITTING.values(), ids=SPLITTING)
@pytest.mark.parametrize(("collate", "message"), WHOLE.values(), ids=WHOLE)
def test_what_cannot_be_split_is_refused_at_the_first_batch(collate, message, make):
    loader = make(DataLoader(Detection(), 8, collate_fn=collate))
    with pytest.raises(BatchError, match=r"batch 0 of epoch 0 cannot be split .*" + message):
        next(iter(loader))
    assert loader.stats.released == 0


@quiet
@pytest.mark.parametrize("collate", [row[0] for row in WHOLE.values()], ids=WHOLE)
def test_rules_pass_what_cannot_be_split(collate):
    plain = DataLoader(Detection(), 8, shuffle=True, collate_fn=collate)
    memory = Memory(0.5, warmup=Epochs(1))
    loader, other = (
        SelectiveLoader(plain, model, memory=rule, epochs=4)
        for model, rule in ((nn.Linear(1, 1), memory), (None, Memory(0.5, warmup=Epochs(1))))
    )
    for epoch in range(4):
        steps = 0
        for _ in loader:
            indices = loader.indices
            assert float(loader.loss(indices.float())) == float(indices.float().mean())
            steps += 1
            if steps == 2:  # what was loaded goes on in the same epoch
                other.load_state_dict(loader.state_dict())
        assert steps == loader.steps(epoch) == 6
        assert sum(other.loss(torch.zeros(len(other.indices))) == 0 for _ in other) == steps - 2
    assert memory.values[:, 0].tolist() == list(range(COUNT))


@pytest.mark.parametrize(("collate", "accepted"), [(zipped, True), (list, False), (packed, False)])
def test_attached_indices_ride_on_parts_or_are_refused(collate, accepted):
    plain = DataLoader(Detection(), 8, shuffle=True, collate_fn=collate)
    loader = SelectiveLoader(plain, memory=Memory(), epochs=2, attach=True)
    if not accepted:
        with pytest.raises(BatchError, match="attach=True adds index and weight to a dict, or to"):
            next(iter(loader))
        return
    for images, targets, index, weight in loader:
        assert numbers_of(images, targets) == index.tolist()
        loader.loss(torch.zeros(len(index)), indices=index, weights=weight)


class Streamed(IterableDataset):
    def __iter__(self):
        return map(Detection().__getitem__, range(COUNT))


@pytest.mark.parametrize("name", ["tuple(zip(*batch))", "stacked images", "a list of pairs",
                                  "a list of dicts", "a list of named tuples", "a dict of lists",
                                  "a dataclass with a list", "objects"])  # fmt: skip
def test_without_a_sampler_a_list_of_objects_is_a_list_of_examples(name):
    collate, numbers = RIGHT[name]
    loader = SelectiveLoader(
        DataLoader(Streamed(), 8, collate_fn=collate), nn.Identity(),
        losses=losses_by(numbers), selector=TopK(keep=0.5), schedule=Schedule(warmup=Epochs(0)),
    )  # fmt: skip
    expected = [index for index in range(COUNT) if index % 8 >= (4 if index < 40 else 2)]
    assert [number for batch in loader for number in numbers(batch)] == expected


AMBIGUOUS = {
    "as many images as channels": (3, lambda rows: {"image": [image for image, _ in rows]}),
    "a list of them alone": (3, lambda rows: [image for image, _ in rows]),
    "one image of one row": (1, lambda rows: {"image": [image[:1] for image, _ in rows]}),
    "two views of two": (
        2, lambda rows: {"views": [torch.zeros(2, 4), torch.ones(2, 4)], "y": torch.zeros(2)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("size", "collate"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_what_may_be_an_entry_or_a_row_is_refused(size, collate):
    loader = SelectiveLoader(
        DataLoader(Detection(), size, collate_fn=collate), selector=Uniform(keep=0.5)
    )
    with pytest.raises(BatchError, match="an entry or a row may be an example"):
        next(iter(loader))


def default_collate_too(examples):
    return default_collate(examples)


class Views(Dataset):
    """Two views of a picture and its number, which PyTorch's collate function puts in lists."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return [torch.full((4,), float(index)), torch.full((4,), index + 0.5)], index


ALIKE = [(1, None), (2, None), (8, None), (1, default_collate_too), (8, default_collate_too)]


@pytest.mark.parametrize(("size", "collate"), ALIKE)
def test_parts_stay_parts_in_batches_of_any_length(size, collate):
    loader = SelectiveLoader(
        DataLoader(Views(), size, collate_fn=collate), nn.Identity(),
        losses=lambda model, batch: batch[1].float(), keep=0.7, pool=Pool(4),
        schedule=Schedule(warmup=Epochs(0)),
    )  # fmt: skip
    batches = [batch for _ in range(5) for batch in loader]
    assert {len(views) for views, _ in batches} == {2}
    for views, numbers in batches:
        assert torch.equal(views[0][:, 0], numbers.float())
        assert torch.equal(views[1][:, 0], numbers + 0.5)


def test_pairs_of_two_examples_are_pairs():
    x, y = torch.rand(8, 2), torch.rand(8, 2)
    for make in (tuple, list):
        batches = [make((x[row : row + 2], y[row : row + 2])) for row in range(0, 8, 2)]
        loader = SelectiveLoader(batches, nn.Identity(), nn.functional.mse_loss, keep=0.5,
                                 schedule=Schedule(warmup=Epochs(0)), exact=True)  # fmt: skip
        for inputs, targets in loader:
            assert all(row in x.tolist() for row in inputs.tolist())
            assert all(row in y.tolist() for row in targets.tolist())


READINGS = {
    "channels and boxes that agree": (
        (tuple(torch.zeros(3, 2, 2) for _ in range(4)), [{"box": torch.zeros(3, 4)}] * 4), 4,
    ),
    "pictures of unlike sizes": (([torch.zeros(3, 2, n) for n in (2, 4)], torch.zeros(2)), 2),
    "lists of arrays": (([np.zeros((3, 2))] * 5, np.zeros(5)), 5),
    "a list of dicts": ([{"x": torch.zeros(2)}] * 4, 4),
    "a pair of dicts": (({"x": torch.zeros(4)}, {"y": torch.zeros(4)}), 4),
    "parts": ([torch.zeros(4, 2), torch.zeros(4, 3)], 4),
}  # fmt: skip


@pytest.mark.parametrize(("batch", "size"), READINGS.values(), ids=READINGS)
def test_a_batch_by_itself_is_as_large_as_all_its_parts_may_be(batch, size):
    assert tree.size(batch) == size
    assert tree.size(tree.take(batch, torch.tensor([1]))) == 1


class Numbered(Dataset):
    """Inputs and labels by name, with each example's index, and more in a dictionary of its own."""

    inputs = torch.rand(COUNT, 6, generator=torch.Generator().manual_seed(0)) + 1

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        x = self.inputs[index]
        return {"x": x, "more": {"x": x}, "label": index % 3, "index": index}


def rewriting(model, batch):
    """Losses of a function that puts what it computes into its batch, under old and new names."""
    batch["x"] = (batch["x"] - 1) / 2
    batch["more"]["x"] = batch["more"]["x"] - 1
    batch["logits"] = model(batch["x"] + batch["more"]["x"])
    return nn.functional.cross_entropy(batch["logits"], batch["label"], reduction="none")


REWRITTEN = {
    "fresh": {"keep": 0.5},
    "average": {"keep": 0.5, "scorer": Ema()},
    "bound": {"keep": 0.5, "scorer": GradientBound()},
    "reduced": {"keep": 0.5, "scorer": Reduced("bf16")},
    "rule": {"memory": Stale(0.5, every=1, warmup=Epochs(1))},
}


@pytest.mark.parametrize("arguments", REWRITTEN.values(), ids=REWRITTEN)
def test_what_losses_put_into_a_batch_is_not_trained_on(arguments):
    model = nn.Linear(6, 3)
    plain = DataLoader(Numbered(), 8, shuffle=True)
    loader = SelectiveLoader(plain, model, losses=rewriting, epochs=3, **arguments)
    for _ in range(3):
        for batch in loader:
            assert batch.keys() == {"x", "more", "label", "index"}
            assert torch.equal(batch["x"], Numbered.inputs[batch["index"]])
            assert torch.equal(batch["more"]["x"], batch["x"])
            if loader.memory is not None:
                loader.loss(batch["x"].sum(1))
    assert loader.stats.scored > COUNT
