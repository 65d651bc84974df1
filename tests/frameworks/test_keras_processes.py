"""A Keras model in two processes: within ``DistributedDataParallel``, in a loop of one's own."""

import pytest
import torch

from torchrun import found_of_framework

pytest.importorskip("keras", reason="needs pip install siftback[keras]")


@pytest.fixture(scope="module")
def ranks(filled_once):
    return found_of_framework(filled_once, "keras")[1]


def by_pass(found, sizes):
    """The examples that each pass over the data had, on one rank."""
    examples = torch.tensor([index for _, indices in found["seen"] for index in indices])
    return [indices.tolist() for indices in examples.split(sizes)]


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("method", "steps", "sizes"),
    [
        # Of 41 examples, one is left out of an even share; the second epoch begins to draw.
        ("memory", 15, [20, 10, 10, 10, 10]),
        ("selective-backprop", 9, [10, 10, 10]),
        ("in_batch", 15, [20, 20, 20]),
    ],
)
def test_two_processes_share_the_examples_and_keep_one_model(ranks, method, steps, sizes):
    one, other = (found[method] for found in ranks)
    assert (one["rank"], other["rank"]) == (0, 1)
    assert len(one["seen"]) == len(other["seen"]) == steps
    for mine, others, size in zip(by_pass(one, sizes), by_pass(other, sizes), sizes, strict=True):
        assert len(mine) == len(others) == size
        assert len({*mine, *others}) == 2 * size
    assert by_pass(one, sizes)[-2] != by_pass(one, sizes)[-1]
    assert all(map(torch.equal, one["weights"], other["weights"]))


@pytest.mark.distributed
@pytest.mark.parametrize("method", ["memory", "selective-backprop"])
def test_two_processes_with_keras_resume_within_an_epoch_bit_for_bit(ranks, method):
    for found in ranks:
        whole, resumed = found[method], found[f"{method} resumed"]
        assert 0 < len(resumed["seen"]) < len(whole["seen"])
        assert resumed["before"] + resumed["seen"] == whole["seen"]
        assert resumed["before"][-1][0] == resumed["seen"][0][0]  # the epoch of the stop
        assert all(map(torch.equal, whole["weights"], resumed["weights"]))


@pytest.mark.distributed
def test_two_processes_have_moving_statistics_of_their_own(ranks):
    one, other = (found["normalised"] for found in ranks)
    assert all(map(torch.equal, one["weights"], other["weights"]))
    assert not all(map(torch.equal, one["others"], other["others"]))


@pytest.mark.distributed
def test_fit_in_several_processes_is_refused(ranks):
    for found in ranks:
        for wrapper, said in zip(("SelectiveModel", "LossRecorder"), found["refused"], strict=True):
            assert f"there are 2: train {wrapper} in one, or the model in" in said
