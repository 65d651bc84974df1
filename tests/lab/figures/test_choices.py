"""The pictures of what was kept, dropped and is suspect, from observations with a known answer."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from siftback.lab.data.load import load
from siftback.lab.experiments.comparison import describe_examples
from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.figures.choices import SHOWN
from siftback.lab.figures.figure import Gallery, Missing
from siftback.lab.records.observations import folder_of

EXAMPLES = 1437  # the digits to train on


@pytest.fixture
def observed(comparison, add_run):
    """Adds a run, and what was seen of it: uses and losses of each look."""
    comparison.environment["arguments"] |= {"data": "digits", "flip": 0.1}

    def add(strategy, seed, looks, keep=1.0):
        run = add_run(strategy, seed, [(1, 1, 1, 1)], keep=keep)
        folder = folder_of(comparison.folder, run.record)
        folder.mkdir(parents=True)
        for step, (uses, losses) in enumerate(looks):
            columns = {"index": np.arange(EXAMPLES), "loss": losses, "uses": uses}
            table = pa.table({"epoch": np.full(EXAMPLES, 1.0 * step), **columns})
            parquet.write_table(table, folder / f"losses-{step:09d}.parquet")

    return add


def rows_of(gallery):
    rows = {}
    for picture in gallery.pictures:
        rows.setdefault(picture.row.partition(":")[0], []).append(picture)
    return rows


def test_what_was_used_most_least_and_never_learnt(comparison, observed):
    data = load("digits", flipped=0.1)
    wrong = (data.true_labels != data.train_labels).numpy()
    uses = np.ones(EXAMPLES, np.int64)  # so far, at each look
    uses[0], uses[-1] = 0, 20
    learnt = np.where(wrong, 5.0, 0.1)
    observed("traditional", 0, [(np.ones(EXAMPLES), learnt)])
    for seed in (0, 1):
        # At the first look everything is wrong, which says nothing of a label.
        looks = [(uses, np.full(EXAMPLES, 9.0)), (uses, learnt), (uses, learnt + 0.01 * seed)]
        observed("sb", seed, looks, keep=0.5)
    gallery = ANALYSES["choices"]([comparison])
    assert isinstance(gallery, Gallery)
    rows = rows_of(gallery)
    assert {name: len(pictures) for name, pictures in rows.items()} == {
        "kept most": SHOWN,
        "dropped most": SHOWN,
        "suspect": SHOWN,
    }
    first = rows["kept most"][0]
    assert np.array_equal(first.image[..., 0], data.train_inputs[-1, 0].numpy())
    assert first.label == str(int(data.train_labels[-1]))
    assert ", used 20x" in first.caption
    assert np.array_equal(rows["dropped most"][0].image[..., 0], data.train_inputs[0, 0].numpy())
    assert ", used 0x" in rows["dropped most"][0].caption
    assert all(picture.caption.startswith("loss 5") for picture in rows["suspect"])
    assert all("truly" in picture.caption for picture in rows["suspect"])
    assert (
        f"Of the {SHOWN} suspect ones {SHOWN} have a wrong label, of all 10%." in gallery.sentence
    )


@pytest.mark.parametrize("same", [True, False])
def test_pictures_are_of_the_examples_that_were_trained_on(comparison, observed, same):
    examples = describe_examples(load("digits", flipped=0.1 if same else 0.2))
    comparison.environment["arguments"]["examples"] = examples
    observed("sb", 0, [(np.ones(EXAMPLES), np.arange(EXAMPLES) / 1e3)] * 2, keep=0.5)
    found = ANALYSES["choices"]([comparison])
    assert isinstance(found, Gallery) is same
    assert same or "on other examples than digits" in found.why


def test_nothing_observed_says_how_to_observe(comparison, add_run):
    add_run("sb", 0, [(1, 1, 1, 1)], keep=0.5)
    missing = ANALYSES["choices"]([comparison])
    assert isinstance(missing, Missing)
    assert "--observe losses" in missing.why


def test_traditional_alone_chose_nothing(comparison, observed):
    observed("traditional", 0, [(np.ones(EXAMPLES), np.ones(EXAMPLES))])
    assert isinstance(ANALYSES["choices"]([comparison]), Missing)
