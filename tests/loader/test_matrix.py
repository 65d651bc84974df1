"""Each method under DistributedDataParallel and FSDP2, in two and in four real processes."""

from collections import Counter

import pytest
import torch
from matrix_ranks import (
    BAD,
    BATCH,
    COUNT,
    EPOCHS,
    METHODS,
    RATE,
    WRAPPERS,
    data,
    losses_of,
    network,
)

pytestmark = pytest.mark.distributed

DRAWN = [name for name in METHODS if name not in ("selective-backprop", "stale")]


@pytest.fixture(scope="module", params=[2, 4], ids="{} processes".format)
def ranks(request, found_in):
    """The notes of each process, by rank."""
    return found_in("matrix_ranks", processes=request.param)


def of(ranks, method, wrapper, what="whole"):
    return [rank[method, wrapper][what] for rank in ranks]


each = pytest.mark.parametrize("wrapper", WRAPPERS)
each_method = pytest.mark.parametrize("method", METHODS)


@each
@each_method
def test_all_make_equal_steps_of_different_examples_and_keep_equal_weights(ranks, method, wrapper):
    for what in ("whole", "again", "bad"):
        found = of(ranks, method, wrapper, what)
        sizes = [[(epoch, len(rows)) for epoch, rows, _ in one["steps"]] for one in found]
        assert sizes[0]
        assert all(other == sizes[0] for other in sizes)
        assert len({one["forwards"] for one in found}) == 1
        for one in found:
            torch.testing.assert_close(one["weights"], found[0]["weights"], rtol=0, atol=0)
            assert all(weight.isfinite().all() for weight in one["weights"])
        given = Counter(
            (epoch, row)
            for one in found
            for epoch, rows, _ in one["steps"]
            for row in rows.tolist()
        )
        assert max(given.values()) == 1


@each
@each_method
def test_training_is_that_of_one_process_on_the_batches_of_all(ranks, method, wrapper):
    model, whole = network(), of(ranks, method, wrapper)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    inputs, targets = data().tensors
    for steps in zip(*(one["steps"] for one in whole), strict=True):
        means = [
            (losses_of(model, (inputs[rows], targets[rows])) * weights).mean()
            for _, rows, weights in steps
        ]
        (sum(means) / len(means)).backward()
        optimizer.step()
        optimizer.zero_grad()
    expected = [weight.detach() for weight in model.parameters()]
    torch.testing.assert_close(whole[0]["weights"], expected, rtol=1e-3, atol=1e-4)


@each
@each_method
def test_each_goes_on_within_an_epoch_bit_for_bit(ranks, method, wrapper):
    for rank in ranks:
        whole, again = (rank[method, wrapper][what] for what in ("whole", "again"))
        rest = whole["steps"][rank[method, wrapper]["before"] :]
        assert 0 < len(again["steps"]) == len(rest) < len(whole["steps"])
        for step, same in zip(rest, again["steps"], strict=True):
            torch.testing.assert_close(step, same, rtol=0, atol=0)
        torch.testing.assert_close(whole["weights"], again["weights"], rtol=0, atol=0)


@each
@pytest.mark.parametrize("method", DRAWN)
def test_an_epoch_has_all_but_what_the_one_draw_left_out(ranks, method, wrapper):
    left_out = ranks[0][method, wrapper]["left out"].tolist()
    given = [
        row
        for one in of(ranks, method, wrapper)
        for epoch, rows, _ in one["steps"]
        for row in rows.tolist()
        if epoch == EPOCHS - 1
    ]
    assert left_out
    assert not {*left_out} & {*given}
    assert len({*left_out}) == len(left_out)
    # The remainder of the draw is that of nobody.
    assert COUNT - len(given) - len(left_out) == (COUNT - len(left_out)) % len(ranks)


@each
def test_scoring_passes_are_forwards_of_all(ranks, wrapper):
    share = COUNT // len(ranks)
    for one in of(ranks, "selective-backprop", wrapper):
        assert one["scored"] == EPOCHS * share
        assert one["forwards"] == len(one["steps"]) + EPOCHS * -(-share // BATCH)
    for one in of(ranks, "stale", wrapper):
        assert one["scored"] == 2 * share  # of three epochs the first and the last


@each
@each_method
def test_a_loss_of_one_process_that_is_not_finite_changes_no_number_of_steps(
    ranks, method, wrapper
):
    whole, bad = (of(ranks, method, wrapper, what) for what in ("whole", "bad"))
    assert sum(one["nonfinite"] for one in bad) > 0 == sum(one["nonfinite"] for one in whole)
    if method == "selective-backprop":  # others are kept in the place of those dropped
        assert all(BAD not in rows for one in bad for _, rows, _ in one["steps"])
    if method != "infobatch":  # of which the number kept depends on the losses
        assert len(bad[0]["steps"]) == len(whole[0]["steps"])


def test_ddp_and_fsdp2_train_on_the_same_examples(ranks):
    for method in METHODS:
        one, other = (of(ranks, method, wrapper)[0] for wrapper in WRAPPERS)
        for step, same in zip(one["steps"], other["steps"], strict=True):
            torch.testing.assert_close(step, same, rtol=0, atol=0)


def test_fewer_examples_than_processes_are_refused_before_the_first_step(ranks):
    few = len(ranks) - 1
    for rank in ranks:
        for message in rank["few"].values():
            assert f"{few} examples are fewer than world={few + 1} processes" in message


def test_orders_of_their_own_are_refused(ranks):
    for rank, found in enumerate(ranks):
        other = 0 if rank else 1
        for message in found["unlike"]:
            here = f"loader.seed={rank} in the process of rank {rank}"
            assert message.startswith(f"{here}, and {other} in that of rank {other}: give all")
        here = f"examples={COUNT + rank} in the process of rank {rank}"
        assert found["unequal"].startswith(f"{here}, and {COUNT + other} in that of rank {other}")


def test_a_scorer_that_copies_a_sharded_model_is_refused(ranks):
    for rank in ranks:
        assert "FSDPSequential cannot be copied" in rank["copied"]


def test_what_was_made_before_the_processes_knew_of_each_other_is_refused(ranks):
    for rank in ranks:
        for message in rank["early"]:
            assert f"made when processes=1 were known, and there are {len(ranks)}" in message


def test_an_epoch_that_draws_fewer_than_processes_is_refused(ranks):
    for rank in ranks:
        message, steps = rank["few kept"]
        assert steps == 0
        count = 2 * len(ranks)
        assert f"of {count} examples in epoch 0, fewer than there are processes" in message
