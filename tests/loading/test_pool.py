"""The pool loses nothing, invents nothing and holds no more memory than it needs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

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
            pool.add(batch)
            full = names(pool.full_batches())
            assert all(len(batch) == batch_size for batch in full)
            assert len(pool) < batch_size
            went += flat(full)
        before = pool.dropped
        rest = names(pool.end_epoch())
        dropped = pool.dropped - before
        assert len(rest) <= (drop_last is False)
        assert dropped == 0 or drop_last is True
        went += flat(rest)
        if dropped:
            del came[-dropped:]
        assert went == came[: len(came) - len(pool)]
    held = pool.state_dict()["pool"]
    assert went + (held["name"] if held else []) == came


@given(st.lists(st.sets(st.integers(0, 9)).map(sorted), min_size=1), st.integers(1, 8))
def test_only_the_rows_asked_for_are_pooled(rows_of, batch_size):
    pool, expected = Pool(batch_size), []
    for batch, rows in zip(numbered([10] * len(rows_of)), rows_of, strict=False):
        pool.add(batch, torch.tensor(rows, dtype=torch.int64))
        expected += [batch["name"][row] for row in rows]
    released = [*pool.full_batches(), *pool.end_epoch()]
    assert flat(names(released)) == expected
    assert flat(batch["row"].tolist() for batch in released) == [int(name) for name in expected]


@given(epochs, st.integers(1, 8), endings, st.integers(0, 5))
def test_it_goes_on_from_a_state_taken_at_any_point(epochs, batch_size, drop_last, stop):
    one = Pool(batch_size, drop_last)
    sizes = flat(epochs)
    batches = list(numbered(sizes))
    for batch in batches[:stop]:
        one.add(batch)
    other = Pool(batch_size, drop_last)
    other.load_state_dict(one.state_dict())
    for pool in (one, other):
        for batch in batches[stop:]:
            pool.add(batch)
    went = [[*names(pool.full_batches()), *names(pool.end_epoch())] for pool in (one, other)]
    assert went[0] == went[1]
    assert (len(one), one.dropped) == (len(other), other.dropped)


def stored(batch):
    return batch.untyped_storage().nbytes() // batch.element_size()


def test_the_pool_does_not_hold_the_memory_of_the_batches_it_took_from():
    pool = Pool(batch_size=4)
    pool.add(torch.zeros(1000, 8), torch.tensor([0, 5, 9]))
    assert stored(pool.state_dict()["pool"]) == 3 * 8
    pool.add(torch.zeros(1000, 8), torch.tensor([1, 2, 3]))
    (released,) = pool.full_batches()
    assert stored(released) == 4 * 8
    assert stored(pool.state_dict()["pool"]) == 2 * 8


def test_what_stays_of_a_whole_batch_holds_only_itself():
    pool = Pool(batch_size=100)
    pool.add(torch.zeros(1001, 8))
    batches = pool.full_batches()
    next(batches)
    assert stored(pool.state_dict()["pool"]) == 901 * 8  # also while more is to be released
    assert len(list(batches)) == 9
    assert stored(pool.state_dict()["pool"]) == 8


def test_a_state_does_not_change_with_what_is_released_after_it():
    pool = Pool(batch_size=2)
    pool.add(torch.ones(3))
    state = pool.state_dict()
    for batch in pool.full_batches():
        batch.zero_()  # as a loop that scales its images in place
    assert state["pool"].tolist() == [1, 1, 1]


def test_an_epoch_broken_off_is_dropped_unless_carried():
    for drop_last, left in ((False, 0), (True, 0), ("carry", 3)):
        pool = Pool(4, drop_last)
        pool.add(torch.arange(3))
        pool.abandon()
        assert (len(pool), pool.dropped) == (left, 3 - left)


def test_mismatched_sizes_are_refused_and_nothing_is_pooled():
    pool = Pool(4)
    with pytest.raises(BatchError, match=r"batch\['x'\]: 2, batch\['y'\]: 3"):
        pool.add({"x": torch.zeros(2), "y": torch.zeros(3)})
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
