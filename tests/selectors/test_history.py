"""The fast percentile against Algorithm 2's, one loss at a time."""

from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import percentile
from siftback.errors import ConfigError, StateError
from siftback.selectors.percentile import LossHistory, rank_shares

few_values = st.integers(0, 4).map(float)  # so that many tie
any_values = st.floats(width=32, allow_nan=False, allow_infinity=False)
batches = st.lists(st.lists(few_values | any_values, min_size=1, max_size=12), min_size=1)
sizes = st.integers(1, 20)


def ranked(losses, **kwargs):
    return LossHistory(**kwargs).percentile(torch.tensor(losses, dtype=torch.float32)).tolist()


@given(batches, sizes)
def test_batches_rank_as_the_reference_where_the_batch_joins_first(batches, size):
    fast, slow = LossHistory(size), deque(maxlen=size)
    for losses in batches:
        joined = [*slow, *losses][-max(size, len(losses)) :]
        slow.extend(losses)
        expected = [percentile(joined, loss) for loss in losses]
        assert fast.percentile(torch.tensor(losses)).tolist() == pytest.approx(expected, abs=1e-6)
        assert len(fast) == len(slow)


@given(st.lists(few_values | any_values, min_size=1), sizes)
def test_single_losses_rank_as_in_algorithm_2(losses, size):
    fast, slow = LossHistory(size), deque(maxlen=size)
    for loss in losses:
        slow.append(loss)
        assert fast.percentile(torch.tensor([loss])).item() == pytest.approx(percentile(slow, loss))


@given(batches, sizes)
def test_a_batch_differs_from_one_at_a_time_by_less_than_its_share_of_the_history(batches, size):
    fast, slow = LossHistory(size), deque(maxlen=size)
    for losses in batches:
        strict = []
        for loss in losses:
            slow.append(loss)
            strict.append(percentile(slow, loss))
        together = fast.percentile(torch.tensor(losses)).tolist()
        if len(losses) <= size:
            apart = max(abs(one - other) for one, other in zip(strict, together, strict=True))
            assert apart <= (len(losses) - 1) / len(fast) + 1e-6


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([7.0], [0.5]),
        ([2.0, 2.0, 2.0], [0.5, 0.5, 0.5]),
        ([0.0, -0.0], [0.5, 0.5]),
        ([3.0, 1.0], [0.75, 0.25]),
        # The smallest number above zero and the largest of all are numbers like any other.
        ([0.0, 1e-45, -1e-45, 3.4028234e38], [0.375, 0.625, 0.125, 0.875]),
        ([-3.4028234e38, 3.4028234e38], [0.25, 0.75]),
        ([1.0, 1.0 + 2**-23], [0.25, 0.75]),
    ],
)
def test_percentiles_by_hand(losses, expected):
    assert ranked(losses) == expected


def test_oldest_losses_leave_first_and_a_large_batch_is_ranked_among_itself():
    history = LossHistory(size=3)
    history.percentile(torch.tensor([9.0, 8.0, 7.0, 6.0, 5.0]))
    assert history.state_dict()["losses"].tolist() == [7.0, 6.0, 5.0]
    assert history.percentile(torch.tensor([8.0])).item() == pytest.approx(5 / 6)
    assert history.percentile(torch.arange(4.0)).tolist() == [0.125, 0.375, 0.625, 0.875]


@given(batches, st.randoms(use_true_random=False))
def test_the_order_within_a_batch_does_not_matter(batches, random):
    before = LossHistory(1000)
    for losses in batches:
        before.percentile(torch.tensor(losses))
    one, other = LossHistory(1000), LossHistory(1000)
    one.load_state_dict(before.state_dict())
    other.load_state_dict(before.state_dict())
    losses, order = torch.tensor(batches[-1]), list(range(len(batches[-1])))
    random.shuffle(order)
    assert other.percentile(losses[order]).equal(one.percentile(losses)[order])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_type_is_ranked_in_float32(dtype):
    shares = LossHistory().percentile(torch.tensor([0.5, 2.0, 1.0], dtype=dtype))
    assert shares.dtype == torch.float32
    assert shares.tolist() == pytest.approx([1 / 6, 5 / 6, 0.5])


def test_a_history_holds_neither_the_graph_nor_the_memory_of_the_losses():
    history = LossHistory(size=2)
    history.percentile(torch.rand(1000, requires_grad=True))
    kept = history.state_dict()["losses"]
    assert not kept.requires_grad
    assert kept.untyped_storage().nbytes() == 2 * 4


@given(batches, sizes, st.data())
def test_it_goes_on_from_a_state_taken_at_any_point(batches, size, data):
    stop = data.draw(st.integers(0, len(batches)))
    first, second = LossHistory(size), LossHistory(size)
    for losses in batches[:stop]:
        first.percentile(torch.tensor(losses))
    second.load_state_dict(first.state_dict())
    for losses in batches[stop:]:
        scores = torch.tensor(losses)
        assert first.percentile(scores).equal(second.percentile(scores))


@pytest.mark.parametrize("size", [0, -1, 1.5, "8", None, True])
def test_a_bad_size_is_refused(size):
    with pytest.raises(ConfigError, match=r"history size=.* give an integer, at least 1"):
        LossHistory(size)


def test_a_state_of_another_size_is_refused():
    with pytest.raises(StateError, match="size=4, and this LossHistory has size=8"):
        LossHistory(8).load_state_dict(LossHistory(4).state_dict())


@pytest.mark.parametrize("batch", [700, 20000])
def test_a_long_history_ranks_as_a_short_one_by_sorting_all(batch):
    size = 17000  # which is sorted in parts
    history, seen = LossHistory(size), torch.empty(0)
    for seed in range(36 if batch < size else 3):
        # Of few values, so that many tie.
        losses = torch.randint(400, (batch,), generator=torch.Generator().manual_seed(seed)) / 7
        seen = torch.cat((seen, losses))[-max(size, batch) :]
        found, expected = history.rank(losses), rank_shares(losses, seen)
        assert all(one.equal(other) for one, other in zip(found, expected, strict=True))
        seen = seen[-size:]
        if seed == 30:  # a state begins with nothing sorted
            history, before = LossHistory(size), history
            history.load_state_dict(before.state_dict())
