"""The pool loses nothing, invents nothing and holds no more memory than it needs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from pools import add, release_full, release_last
from siftback import Pool
from siftback.errors import BatchError, ConfigError

ENDINGS = (False, True, "carry")
endings = st.sampled_from(ENDINGS)
epochs = st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=4)


def numbered(sizes):
    """Batches of the given sizes whose examples are numbered on, from 0."""
    start = 0
    for size in sizes:
        rows = torch.arange(start, start + size)
        start += size
        yield {"row": rows, "name": [str(row) for row in rows.tolist()]}


def names(batches):
    return [batch["name"] for batch in batches]


def flat(lists):
    return [item for one in lists for item in one]


@given(epochs, st.integers(1, 8), endings)
def test_examples_are_conserved_in_order_for_any_sizes(epochs, batch_size, drop_last):
    pool, came, went = Pool(batch_size, drop_last), [], []
    source = numbered(flat(epochs))
    for sizes in epochs:
        for _ in sizes:
            batch = next(source)
            came += batch["name"]
            add(pool, batch)
            full = names(release_full(pool))
            assert all(len(batch) == batch_size for batch in full)
            assert len(pool) < batch_size
            went += flat(full)
        before = pool.dropped
        rest = names(release_last(pool))
        dropped = pool.dropped - before
        assert len(rest) <= (drop_last is False)
        assert dropped == 0 or drop_last is True
        went += flat(rest)
        if dropped:
            del came[-dropped:]
        assert went == came[: len(came) - len(pool)]
    assert went + flat(names(pool.state_dict()["pool"])) == came


@given(st.lists(st.sets(st.integers(0, 9)).map(sorted), min_size=1), st.integers(1, 8))
def test_only_the_rows_asked_for_are_pooled(rows_of, batch_size):
    pool, expected = Pool(batch_size), []
    for batch, rows in zip(numbered([10] * len(rows_of)), rows_of, strict=False):
        add(pool, batch, torch.tensor(rows, dtype=torch.int64))
        expected += [batch["name"][row] for row in rows]
    released = [*release_full(pool), *release_last(pool)]
    if len(expected) % batch_size == 1 and batch_size > 1:  # a single row stays
        assert len(pool) == 1
        expected.pop()
    assert flat(names(released)) == expected
    assert flat(batch["row"].tolist() for batch in released) == [int(name) for name in expected]


@given(epochs, st.integers(1, 8), endings, st.integers(0, 5))
def test_it_goes_on_from_a_state_taken_at_any_point(epochs, batch_size, drop_last, stop):
    one = Pool(batch_size, drop_last)
    sizes = flat(epochs)
    batches = list(numbered(sizes))
    for batch in batches[:stop]:
        add(one, batch)
    other = Pool(batch_size, drop_last)
    other.load_state_dict(one.state_dict())
    for pool in (one, other):
        for batch in batches[stop:]:
            add(pool, batch)
    went = [[*names(release_full(pool)), *names(release_last(pool))] for pool in (one, other)]
    assert went[0] == went[1]
    assert (len(one), one.dropped) == (len(other), other.dropped)


def stored(batch):
    return batch.untyped_storage().nbytes() // batch.element_size()


def held(pool):
    return sum(map(stored, pool.state_dict()["pool"]))


def test_the_pool_does_not_hold_the_memory_of_the_batches_it_took_from():
    pool = Pool(batch_size=4)
    add(pool, torch.zeros(1000, 8), torch.tensor([0, 5, 9]))
    assert held(pool) == 3 * 8
    add(pool, torch.zeros(1000, 8), torch.tensor([1, 2, 3]))
    (released,) = release_full(pool)
    assert stored(released) == 4 * 8
    assert held(pool) == 2 * 8


def test_what_stays_of_a_whole_batch_holds_only_itself():
    pool = Pool(batch_size=100)
    add(pool, torch.zeros(1001, 8))
    batches = release_full(pool)
    next(batches)
    assert held(pool) == 901 * 8  # also while more is to be released
    assert len(list(batches)) == 9
    assert held(pool) == 8


def test_a_state_does_not_change_with_what_is_released_after_it():
    pool = Pool(batch_size=2)
    add(pool, torch.ones(3))
    state = pool.state_dict()
    for batch in release_full(pool):
        batch.zero_()  # as a loop that scales its images in place
    assert [batch.tolist() for batch in state["pool"]] == [[1, 1, 1]]


def test_an_epoch_broken_off_is_dropped_unless_carried():
    for drop_last, left in ((False, 0), (True, 0), ("carry", 3)):
        pool = Pool(4, drop_last)
        add(pool, torch.arange(3))
        pool.abandon()
        assert (len(pool), pool.dropped) == (left, 3 - left)


def test_mismatched_sizes_are_refused_and_nothing_is_pooled():
    pool = Pool(4)
    with pytest.raises(BatchError, match=r"batch\['x'\]: 2, batch\['y'\]: 3"):
        add(pool, {"x": torch.zeros(2), "y": torch.zeros(3)})
    assert len(pool) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "batch_size=0: give an integer, at least 1"),
        ((-3,), "batch_size=-3"),
        ((2.0,), "batch_size=2.0"),
        ((True,), "batch_size=True"),
        ((8, "drop"), "drop_last='drop': give False, True or \"carry\""),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Pool(*arguments)


PADDING = {"ids": 0, "labels": -100}


def tokens(*rows):
    """A batch of sequences, padded to the longest of them."""
    width = max(map(len, rows))
    filled = {
        key: [[*row, *[fill] * (width - len(row))] for row in rows] for key, fill in PADDING.items()
    }
    return {
        **{key: torch.tensor(part) for key, part in filled.items()},
        "name": list(map(str, rows)),
    }


def sequences_of(batch):
    """Those of a batch, without the padding; both parts must agree on it."""
    for ids, labels, name in zip(*batch.values(), strict=True):
        count = int((labels != -100).sum())
        assert torch.equal(ids[:count], labels[:count])
        assert not ids[count:].any()
        assert str(ids[:count].tolist()) == name
        yield name


def joined_by_hand(batches):
    width = max(batch["ids"].shape[1] for batch in batches)
    parts = {
        key: torch.cat([F.pad(b[key], (0, width - b[key].shape[1]), value=fill) for b in batches])
        for key, fill in PADDING.items()
    }
    return {**parts, "name": flat(batch["name"] for batch in batches)}


@pytest.mark.parametrize("pad", [PADDING, joined_by_hand], ids=["values", "function"])
@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=5))
def test_batches_padded_to_different_lengths_are_pooled(pad, lengths):
    pool, came, went = Pool(3, pad=pad), [], []
    for sizes in lengths:
        batch = tokens(*([7] * size for size in sizes))
        came += batch["name"]
        add(pool, batch)
        again = Pool(3, pad=pad)
        again.load_state_dict(pool.state_dict())
        for released, resumed in zip(release_full(pool), release_full(again), strict=True):
            went += sequences_of(released)
            for key in PADDING:
                assert torch.equal(released[key], resumed[key])
    for rest in release_last(pool, single=True):
        went += sequences_of(rest)
    assert went == came


def test_arrays_and_several_dimensions_are_padded_too():
    pool = Pool(2, pad={0: -1})
    add(pool, (np.zeros((1, 2, 1)), torch.zeros(1)))
    add(pool, (np.ones((1, 1, 2)), torch.zeros(1)))
    ((images, _),) = release_full(pool)
    assert images.tolist() == [[[0, -1], [0, -1]], [[1, 1], [-1, -1]]]


@pytest.mark.parametrize("pad", [None, {"ids": 0}])
def test_lengths_that_nobody_says_how_to_pad_are_refused_by_name(pad):
    pool = Pool(2, pad=pad)
    add(pool, tokens([1]))
    add(pool, tokens([1, 2]))
    part = "ids" if pad is None else "labels"
    with pytest.raises(BatchError, match=rf"batch\['{part}'\] has rows of several shapes .*pad="):
        list(release_full(pool))


def test_rows_of_another_number_of_dimensions_are_refused():
    pool = Pool(2, pad={"ids": 0})
    add(pool, {"ids": torch.zeros(1, 2)})
    add(pool, {"ids": torch.zeros(1, 2, 2)})
    with pytest.raises(BatchError, match=r"batch\['ids'\]"):
        list(release_full(pool))


def test_what_cannot_pad_is_refused():
    with pytest.raises(ConfigError, match=r"pad=0: give the fill values by name"):
        Pool(2, pad=0)
