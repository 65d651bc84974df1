"""Selection in Hugging Face's Trainer in two real processes."""

import pytest
import torch

from torchrun import found_of_framework

pytest.importorskip("transformers")

from hugging_face_models import (
    RESUMES_PROCESSES,
    LookupForCausalLM,
    Plain,
    lookup_model,
    padded,
    same,
    sentences,
    trainer,
    weights_of,
)

from siftback import sequence_losses

pytestmark = pytest.mark.distributed


@pytest.fixture(scope="module")
def folder_and_ranks(filled_once):
    """Where both processes saved to, and their notes, by rank."""
    return found_of_framework(filled_once, "huggingface")


@pytest.fixture
def ranks(folder_and_ranks):
    return folder_and_ranks[1]


def test_two_processes_keep_rows_of_their_own_and_make_one_step(ranks, tmp_path):
    one, other = (rank["step"] for rank in ranks)
    assert same(one["weights"], other["weights"])
    places = [[row % 8 for batch in rank["batches"] for row in batch] for rank in (one, other)]
    assert places[0] != places[1]  # random numbers of their own
    rows = [row for rank in (one, other) for batch in rank["batches"] for row in batch]
    assert len(set(rows)) == 16
    data = [sentences(64, "language model")[row] for row in rows]
    whole = trainer(
        tmp_path,
        "language model",
        of=Plain,
        max_steps=1,
        max_grad_norm=0.0,
        per_device_train_batch_size=16,
        train_sampling_strategy="sequential",
    )
    whole.train_dataset = data
    whole.train()
    for found, weight in zip(one["weights"], weights_of(whole), strict=True):
        torch.testing.assert_close(found, weight)
    assert one["loss"] == pytest.approx(whole.state.log_history[0]["loss"], rel=1e-5)


def test_the_first_process_says_which_method_is_taken(ranks):
    assert [rank["decided"] for rank in ranks] == ["two_pass", "two_pass"]


def test_the_first_process_measures_alone_whichever_method_it_takes(ranks):
    (method, failures), (other, none) = (rank["measured"] for rank in ranks)
    assert method == other
    assert method in ("two_pass", "single_pass")
    assert (failures, none) == ([{}], [])


def test_two_processes_read_each_example_once_and_know_all_losses(ranks):
    one, other = (rank["memory"]["whole"] for rank in ranks)
    assert same(one["weights"], other["weights"])
    assert one["steps"] == other["steps"] == one["max_steps"] == 3 * 3
    assert one["rate"] == 0.0
    sizes = [[len(batch) for batch in rank["batches"]] for rank in (one, other)]
    assert sizes[0] == sizes[1] == [8, 8, 8, 8, 5] * 3
    rows = [[row for batch in rank["batches"] for row in batch] for rank in (one, other)]
    ends = [37, 56, 75, 94, 111]  # an epoch of everything, and passes of 19, the last one cut off
    for first, last in zip([0, *ends], ends, strict=False):
        drawn = [row for own in rows for row in own[first:last]]
        assert len(drawn) == len(set(drawn)) == 2 * (last - first)
    # By the first draw all were trained on; later ones are asked for a batch ahead of training.
    assert torch.equal(one["known"][0].nan_to_num(-1), other["known"][0].nan_to_num(-1))
    # Nobody read the odd one of 75 examples in the first epoch, so it was drawn for the second.
    missing = [int(known.isnan().sum()) for known in one["known"]]
    assert (missing[0], missing[-1]) == (1, 0)


@pytest.mark.skipif(not RESUMES_PROCESSES, reason="transformers before 5.23 resumes none on CPUs")
@pytest.mark.parametrize("method", ["two_pass", "single_pass", "memory"])
def test_two_processes_resumed_within_an_epoch_go_on_bit_for_bit(ranks, method):
    for rank in ranks:
        whole = rank[method]["whole"]
        again = rank[method]["resumed"]
        assert 0 < len(again["batches"]) < len(whole["batches"])
        assert again["batches"] == whole["batches"][-len(again["batches"]) :]
        assert same(again["weights"], whole["weights"])
        assert again["steps"] == whole["steps"]
        if method == "single_pass":
            kept = rank[method]["kept"]
            assert same(again["kept"], kept[-len(again["kept"]) :])


def test_a_single_pass_in_two_processes_is_the_mean_of_their_kept_rows(ranks):
    found = [rank["single_pass"] for rank in ranks]
    one, other = (rank["whole"] for rank in found)
    assert same(one["weights"], other["weights"])
    assert one["steps"] == other["steps"] == 4
    # Each has random numbers and examples of its own, and keeps half of each of its batches.
    assert not same(found[0]["kept"], found[1]["kept"])
    first = [rank["batches"][:5] for rank in (one, other)]
    assert len({row for batches in first for batch in batches for row in batch}) == 75
    sizes = [[len(rows) for rows in rank["kept"]] for rank in found]
    assert sizes[0] == sizes[1] == [4] * 7  # the last batch of an epoch is filled up, as without
    assert [rank["stats"] for rank in found] == [(56, 28)] * 2

    # The gradient of the first step: two batches in each process.
    data, model = sentences(75, "language model"), lookup_model()
    for rank, trained in zip(found, (one, other), strict=True):
        for rows, batch in zip(rank["kept"][:2], trained["batches"], strict=False):
            losses = sequence_losses(model, padded([data[batch[row]] for row in rows]))
            (losses.mean() / 4).backward()
    for rank in found:
        for gradient, weight in zip(rank["gradients"][0], model.parameters(), strict=True):
            torch.testing.assert_close(gradient, weight.grad)


def test_a_single_pass_in_two_processes_evaluates_and_saves_the_model_itself(folder_and_ranks):
    folder, ranks = folder_and_ranks
    for rank in ranks:
        ours, plain = rank["single_pass"]["evaluated"]
        assert ours == plain
    saved, report = LookupForCausalLM.from_pretrained(
        folder / "single_pass" / "checkpoint-4", output_loading_info=True
    )
    assert not any(report.values())
    assert same(list(saved.parameters()), ranks[0]["single_pass"]["whole"]["weights"])
