"""Accelerate: a loop of one's own, in this process and in two real ones."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    TensorDataset,
    WeightedRandomSampler,
)

from siftback import (
    Epochs,
    Indexed,
    InfoBatch,
    Memory,
    Pool,
    SelectiveLoader,
    SelectiveSampler,
)
from siftback.errors import BatchError, ConfigError, StateError
from torchrun import found_of_framework
from toys import AT_ONCE

accelerate = pytest.importorskip("accelerate", reason="needs pip install siftback[accelerate]")

from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from accelerate.utils import DistributedType  # noqa: E402
from accelerate_ranks import BATCH, COUNT, EPOCHS, STOP, Network, data  # noqa: E402

from siftback.frameworks.accelerate import prepare  # noqa: E402

ROOT = Path(__file__).parents[2]
METHODS = ["memory", "selective-backprop"]
STEPS = -(-COUNT // BATCH)


def network():
    return Network(nn.LayerNorm)  # as a batch of one example has no statistics


@pytest.fixture(autouse=True)
def fresh_state():
    """Accelerate's settings are one for a process."""
    reset()
    yield
    reset()


def reset():
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def on_cpu(**settings):
    return Accelerator(cpu=True, **settings)


def shuffled(batch=BATCH, **settings):
    return DataLoader(data(), batch, shuffle=True, **settings)


def arguments(method, net):
    if method == "memory":
        return {"memory": Memory(keep=0.5, warmup=Epochs(1)), "epochs": EPOCHS}
    scoring = {"model": net, "loss_fn": F.cross_entropy, "keep": 0.5}
    return {**scoring, "schedule": AT_ONCE, "epochs": EPOCHS}


def ends_of(accelerator, loader):
    """Whether each batch of an epoch is its last one."""
    ends = []
    for x, _ in loader:
        loader.record(torch.ones(len(x)))
        ends.append(accelerator.gradient_state.end_of_dataloader)
    return ends


def equal(one, other):
    return all(torch.equal(one[name], other[name]) for name in one)


def test_the_sampler_lies_within_the_batch_sampler():
    loader = prepare(on_cpu(), shuffled(), memory=Memory(0.55), epochs=4)
    assert isinstance(loader.batch_sampler, BatchSampler)
    assert isinstance(loader.batch_sampler.sampler, SelectiveSampler)
    assert len(loader) == loader.steps(0) == STEPS
    assert loader.total_steps == 4 * STEPS
    assert loader.memory.examples == COUNT


def test_preparing_again_does_no_harm():
    accelerator = on_cpu()
    loader = prepare(accelerator, shuffled(), memory=Memory(0.55), epochs=4)
    again = accelerator.prepare(loader)
    assert again is loader
    assert len(accelerator._custom_objects) == 1


def test_loaders_that_were_wrapped_or_prepared_are_refused():
    accelerator = on_cpu()
    prepared, selective = (
        accelerator.prepare(shuffled()),
        SelectiveLoader(
            shuffled(), keep=0.5, model=network(), loss_fn=F.cross_entropy, schedule=AT_ONCE
        ),
    )
    for loader, reason in (
        (prepared, "was prepared by Accelerate"),
        (selective, "is a SelectiveLoader"),
        (prepare(accelerator, shuffled(), memory=Memory(0.55), epochs=4), "is a AcceleratedLoader"),
        ([1, 2], "is a list"),
    ):
        with pytest.raises(ConfigError, match=reason):
            prepare(accelerator, loader, memory=Memory(0.55), epochs=4)


def test_a_rule_is_prepared_where_the_model_is_sharded():
    accelerator = on_cpu()
    accelerator.state.distributed_type = DistributedType.FSDP
    assert len(prepare(accelerator, shuffled(), memory=Memory(0.55), epochs=4)) == 12


def test_a_rule_of_any_count_has_a_last_batch_in_a_pool_of_its_own():
    accelerator = on_cpu(gradient_accumulation_steps=100)
    loader = prepare(accelerator, shuffled(), memory=InfoBatch(), epochs=4, pool=Pool(8))
    for _ in range(4):
        ends = ends_of(accelerator, loader)
        assert ends == [False] * (len(ends) - 1) + [True]


def test_a_sampler_of_one_s_own_is_counted_as_it_is():
    sampler = WeightedRandomSampler(torch.ones(COUNT), 30, generator=torch.Generator())
    source = DataLoader(data(), BATCH, sampler=sampler)
    accelerator = on_cpu()
    loader = prepare(accelerator, source, memory=Memory(keep=0.5), epochs=EPOCHS)
    for _ in range(EPOCHS):
        assert ends_of(accelerator, loader) == [False] * 7 + [True]


def test_examples_that_carry_their_indices_may_come_in_any_order():
    net, accelerator = network(), on_cpu(gradient_accumulation_steps=2)
    numbered = TensorDataset(*data().tensors, torch.arange(COUNT))

    def sort(examples):
        return torch.utils.data.default_collate(sorted(examples, key=lambda row: float(row[0][0])))

    source = DataLoader(numbered, BATCH, shuffle=True, collate_fn=sort)
    with pytest.raises(BatchError, match="give Indexed"):
        next(iter(prepare(accelerator, source, memory=Memory(), epochs=2)))
    indexed = Indexed(source, index_of=lambda batch: batch[2])
    loader = prepare(accelerator, indexed, memory=Memory(keep=0.5), epochs=2)
    for epoch in range(2):
        for step, (inputs, targets, indices) in enumerate(loader, 1):
            losses = F.cross_entropy(net(inputs), targets, reduction="none")
            loader.loss(losses)
            assert loader.end_of_dataloader == (step == STEPS)
            if epoch == 0:
                torch.testing.assert_close(loader.memory.values[indices, 0], losses.detach())


@pytest.mark.parametrize("accumulation", [1, 2])
def test_streams_without_a_length_accumulate_nothing(accumulation):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(data())

    accelerator, net = on_cpu(gradient_accumulation_steps=accumulation), network()
    selected = {"loss_fn": F.cross_entropy, "keep": 0.5, "schedule": AT_ONCE}
    loader, steps = prepare(accelerator, DataLoader(Stream(), BATCH), net, **selected), 0
    if accumulation > 1:
        with pytest.raises(ConfigError, match="which batch is its last one is not known"):
            next(iter(loader))
        return
    for _ in loader:
        with accelerator.accumulate(net):
            steps += accelerator.sync_gradients
    assert steps == -(-loader.stats.released // BATCH)


def test_an_epoch_that_ends_early_is_an_error():
    def losing(examples):
        return torch.utils.data.default_collate(examples[:2])

    source = DataLoader(TensorDataset(*data()[:44]), BATCH, collate_fn=losing)
    loader = prepare(on_cpu(), source, network(), F.cross_entropy, keep=0.5, schedule=AT_ONCE)
    with pytest.raises(BatchError, match="where 6 were expected"):
        list(loader)


def test_an_attribute_that_neither_has_is_refused():
    loader = prepare(on_cpu(), shuffled(), memory=Memory(0.55), epochs=4)
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        loader.other  # noqa: B018


@pytest.mark.parametrize("stop", [2, 12])
@pytest.mark.filterwarnings("ignore:epoch 0 was left after 2 batches:UserWarning")
def test_an_epoch_that_a_loop_left_has_ended(stop):
    accelerator = on_cpu(gradient_accumulation_steps=100)
    loader = prepare(accelerator, shuffled(), memory=Memory(keep=0.5, warmup=Epochs(2)), epochs=4)
    for number, (x, _) in enumerate(loader, 1):
        loader.record(torch.ones(len(x)))
        if number == stop:
            break
    assert accelerator.gradient_state.active_dataloader is None
    assert loader.epoch == 1
    assert ends_of(accelerator, loader) == [False] * 11 + [True]
    loader.set_epoch(3)
    assert loader.epoch == 3
    assert len(ends_of(accelerator, loader)) == STEPS


def test_a_validation_within_an_epoch_does_not_end_it():
    accelerator = on_cpu(gradient_accumulation_steps=100)
    loader = prepare(accelerator, shuffled(), memory=Memory(0.55), epochs=4)
    validation, ends = accelerator.prepare(DataLoader(data(), 20)), []
    for x, _ in loader:
        loader.record(torch.ones(len(x)))
        counted = sum(len(accelerator.gather_for_metrics(y)) for _, y in validation)
        assert counted == COUNT
        assert len(accelerator.gather_for_metrics(x)) == len(x)
        ends.append(accelerator.gradient_state.end_of_dataloader)
    assert ends == [False] * 11 + [True]


class Noting(nn.Module):
    """Notes in which precision it computes, with and without gradients."""

    def __init__(self):
        super().__init__()
        self.layer, self.noted = nn.Linear(3, 2), set()

    def forward(self, inputs):
        outputs = self.layer(inputs)
        self.noted.add((torch.is_grad_enabled(), outputs.dtype))
        return outputs


@pytest.mark.parametrize("prepared_first", [True, False])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_scoring_passes_compute_in_the_precision_of_training(precision, prepared_first):
    accelerator, net = on_cpu(mixed_precision=precision), Noting()
    model = accelerator.prepare(net) if prepared_first else net
    given = {"keep": 0.5, "epochs": 1, "schedule": AT_ONCE}
    loader = prepare(accelerator, shuffled(), model, F.cross_entropy, **given)
    model = model if prepared_first else accelerator.prepare(net)
    for x, y in loader:
        accelerator.backward(F.cross_entropy(model(x), y))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    assert net.noted == {(False, dtype), (True, dtype)}


@pytest.mark.parametrize("method", METHODS)
def test_the_entries_for_a_tracker_are_those_of_the_statistics(method):
    net = network()
    loader = prepare(on_cpu(), shuffled(), **arguments(method, net))
    for x, y in loader:
        loader.loss(F.cross_entropy(net(x), y, reduction="none"))
    assert loader.log_entries() == loader.stats.log_entries(loader.share)
    assert loader.log_entries()["sift/backwards"] == loader.stats.released > 0


# Two processes


@pytest.fixture(scope="module")
def folder_and_ranks(filled_once):
    """Where both processes saved to, and their notes, by rank."""
    return found_of_framework(filled_once, "accelerate")


@pytest.fixture
def ranks(folder_and_ranks):
    return folder_and_ranks[1]


def examples_of(found, epoch):
    return [index for at, batch in found["seen"] if at == epoch for index in batch]


@pytest.mark.distributed
@pytest.mark.parametrize("method", [*METHODS, "split"])
def test_each_example_is_given_to_one_of_two_processes(ranks, method):
    one, other = (rank[method] for rank in ranks)
    for epoch in range(EPOCHS):
        mine, yours = examples_of(one, epoch), examples_of(other, epoch)
        whole = 22 if method != "selective-backprop" else 11
        assert len(mine) == len(yours) == whole
        share = 11 if epoch else whole  # of a pass
        for start in range(0, len(mine), share):
            both = mine[start : start + share] + yours[start : start + share]
            assert len(set(both)) == len(both)
    # Passes that keep half see two examples for each that is trained on.
    assert one["stats"]["seen"] == (EPOCHS * 22 if method == "selective-backprop" else 5 * 22)
    assert one["devices"] == {"cpu"}


@pytest.mark.distributed
@pytest.mark.parametrize("method", [*METHODS, "split"])
def test_two_processes_step_together_and_keep_the_same_weights(ranks, method):
    one, other = (rank[method] for rank in ranks)
    assert [len(batch) for _, batch in one["seen"]] == [len(batch) for _, batch in other["seen"]]
    assert one["synchronized"] == other["synchronized"]
    sizes = [sum(at == epoch for at, _ in one["seen"]) for epoch in range(EPOCHS)]
    wanted = [number % 2 == 0 or number == size for size in sizes for number in range(1, size + 1)]
    assert one["synchronized"] == wanted
    for name, weight in one["weights"].items():
        if "running" not in name:  # each process's own until the next forward
            assert torch.equal(weight, other["weights"][name])
    assert [rank[method]["rate"] for rank in ranks] == pytest.approx([0.01, 0.01])


@pytest.mark.distributed
@pytest.mark.parametrize("method", METHODS)
def test_each_of_two_processes_goes_on_from_its_own_state(ranks, method):
    for rank in ranks:
        whole, resumed = rank[method], rank[f"{method} resumed"]
        assert resumed["seen"] == whole["seen"][STOP[method] :]
        assert len(resumed["seen"]) > 3
        assert equal(resumed["weights"], whole["weights"])


@pytest.mark.distributed
def test_each_process_has_random_numbers_of_its_own(ranks):
    seeds = [rank["selective-backprop"]["generator"] for rank in ranks]
    assert seeds[0] != seeds[1]
    assert {rank["memory"]["generator"] for rank in ranks} == {0}


@pytest.mark.distributed
def test_what_two_processes_would_both_read_is_refused(ranks):
    assert {rank["kind"] for rank in ranks} == {"MULTI_CPU"}
    for rank in ranks:
        assert "a WeightedRandomSampler over a TensorDataset gives each of 2" in rank["refused"]
        assert "splits batches of 3 among 2 processes" in rank["odd"]
        sees, reason = rank["alone"]
        assert reason is None if sees == 2 else "Accelerator(cpu=True)" in reason


@pytest.mark.distributed
def test_a_state_of_another_number_of_processes_is_refused(folder_and_ranks):
    accelerator, net = on_cpu(), Network()
    prepare(accelerator, shuffled(), **arguments("memory", net))
    accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    with pytest.raises(StateError, match="saved by 2 processes, and there are 1"):
        accelerator.load_state(folder_and_ranks[0] / "memory")


@pytest.mark.slow
def test_the_accelerate_example_learns_imdb_and_prints_what_it_saved(monkeypatch, capsys):
    example = ROOT / "examples" / "accelerate_imdb.py"
    monkeypatch.setattr(sys, "argv", [str(example), "--examples", "2000"])
    try:
        runpy.run_path(str(example), run_name="__main__")  # in this process, as imports are slow
    except SystemExit as stop:
        if "put IMDB" in str(stop):
            pytest.skip("needs IMDB in SIFTBACK_DATA or ../shared/data")
        raise
    accuracy, counts = capsys.readouterr().out.splitlines()[-2:]
    assert float(re.match(r"test accuracy ([\d.]+)%", accuracy)[1]) > 75
    assert accuracy.endswith("after 315 steps")  # 63 of each epoch
    assert counts == "10000 examples run backward in each process, and 8000 left unread"
