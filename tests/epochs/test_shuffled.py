"""Shuffled orders: every example once, in an order that is as good as random."""

import pytest
import torch

from siftback.seeding import Stream, generator_from
from siftback.shuffled import permutation, shuffled

# Of the permutation in memory, and of the network that takes its place for large data sets.
KINDS = {"in memory": {}, "network": {"whole": 0}}


def order(examples, seed=0, epoch=0, **kind):
    return torch.cat(list(permutation(examples, generator(seed, epoch), **kind)))


def generator(seed, epoch):
    return generator_from(seed, epoch, Stream.ORDER)


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request):
    return request.param


@pytest.mark.parametrize("examples", [1, 2, 3, 5, 64, 65, 1000, 40_000, 2**16 + 1])
def test_every_example_comes_once(examples, kind):
    assert torch.equal(order(examples, **kind).sort().values, torch.arange(examples))


def test_no_examples_have_no_order(kind):
    assert sum(map(len, permutation(0, generator(0, 0), **kind))) == 0


def test_it_is_a_function_of_seed_and_epoch(kind):
    assert torch.equal(order(500, 1, 2, **kind), order(500, 1, 2, **kind))
    assert torch.equal(order(500, 1, 2), torch.cat(list(shuffled(500, 1, 2))))
    orders = [order(500, seed, epoch, **kind) for seed in range(3) for epoch in range(3)]
    for number, one in enumerate(orders):
        for other in orders[:number]:
            # Two independent permutations have one place in common on average.
            assert int((one == other).sum()) < 10


EXAMPLES, ORDERS, PARTS = 3000, 200, 10


@pytest.fixture
def orders(kind):
    """int64[ORDERS, EXAMPLES]"""
    return torch.stack([order(EXAMPLES, epoch=epoch, **kind) for epoch in range(ORDERS)])


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


def test_each_part_of_the_examples_is_as_often_in_each_part_of_the_order(orders):
    size = EXAMPLES // PARTS
    where = torch.arange(EXAMPLES) // size
    cells = (orders // size) * PARTS + where
    counts = torch.bincount(cells.flatten(), minlength=PARTS**2).double()
    # Permutations vary less than independent draws; 99 degrees of freedom, 5 deviations above.
    assert chi_square(counts, ORDERS * size / PARTS) < 99 + 5 * (2 * 99) ** 0.5


@pytest.mark.parametrize("lag", [1, 2, 7, 64])
def test_the_distance_between_examples_in_a_row_is_that_of_two_at_random(orders, lag):
    distances = (orders[:, lag:] - orders[:, :-lag]) % EXAMPLES
    counts = torch.bincount(distances.flatten(), minlength=EXAMPLES).double()
    assert counts[0] == 0
    expected = distances.numel() / (EXAMPLES - 1)
    degrees = EXAMPLES - 2
    assert chi_square(counts[1:], expected) < degrees + 5 * (2 * degrees) ** 0.5


def test_each_example_comes_first_equally_often(kind):
    firsts = torch.tensor([int(order(16, epoch=epoch, **kind)[0]) for epoch in range(4000)])
    counts = torch.bincount(firsts, minlength=16).double()
    assert chi_square(counts, 250) < 15 + 5 * 30**0.5
