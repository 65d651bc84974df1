"""Losses that the host reads without waiting: which operations wait, and what is late then."""

import copy
import itertools

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from late_losses import LossWaits, late
from remembering import RULES, Numbered, bits, by_rule, plain, ruled, spread, steps_of
from siftback import (
    Epochs,
    Memory,
    NoiseGuard,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    Stale,
)
from siftback.errors import LossError
from siftback.host_reads import HostReads
from siftback.rules.rule import EpochRule
from siftback.tables.score_table import ScoreTable

by_each_rule = pytest.mark.parametrize("name", RULES)


def on_accelerator(test):
    """Marks a test that needs CUDA."""
    for mark in (
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no accelerator"),
        pytest.mark.filterwarnings("ignore"),  # of CUDA's own: prototypes, TF32, streams
    ):
        test = mark(test)
    return test


def network(kind):
    """A network on CUDA, called as it is, from a CUDA graph, compiled, or on another stream."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    model = layers.cuda()
    if kind == "CUDA graph":  # whose output is overwritten by its next replay
        return torch.cuda.make_graphed_callables(model, (torch.zeros(8, 6, device="cuda"),))
    if kind == "compiled":  # into CUDA graphs
        return torch.compile(model, mode="reduce-overhead")
    return model


def waits_of_step(loader, *, record, size=8):
    """Trains an epoch on losses that count as a device's; the operations that wait, by step."""
    waits = []
    for batch in loader:
        numbers = batch["number"]
        logits = torch.randn(len(numbers), 4, requires_grad=True)
        losses = F.cross_entropy(logits, numbers % 4, reduction="none")
        correct, confidence = logits.detach().softmax(1).max(1).indices == 0, losses.detach().exp()
        confidence = 1 / confidence
        with LossWaits(losses, correct, confidence) as mode:
            record(loader, batch, losses, correct, confidence)
        waits.append(mode.waits)
    return waits


def by_loss(loader, batch, losses, correct, confidence):
    loader.loss(losses, correct=correct, confidence=confidence).backward()


@pytest.mark.sampled(3)
@by_each_rule
@pytest.mark.parametrize("nonfinite", ["error", "keep", "drop"])
def test_no_step_by_a_rule_waits_for_its_losses(name, nonfinite):
    loader = ruled(RULES[name](), shorter_epochs=False, on_nonfinite=nonfinite)
    waits = []
    for _ in range(5):
        waits += waits_of_step(loader, record=by_loss)
    if "guarded" in name:  # whose losses are compared with cross-entropy's at steps 1, 2, 4, ...
        compared = [step for step, found in enumerate(waits, 1) if found]
        assert {step.bit_count() for step in compared} <= {1}
    else:
        assert waits == [[]] * len(waits)


@by_each_rule
def test_no_step_by_a_sampler_waits(name):
    sampler = SelectiveSampler(range(60), RULES[name](), epochs=8)
    for _ in range(4):
        for indices in sampler.batches(8):
            losses = torch.rand(len(indices))
            sampler.draw.weights_of(torch.tensor(indices))
            predictions = {"correct": losses > 0.5, "confidence": losses.clone()}
            with LossWaits(losses, *predictions.values()) as mode:
                sampler.update(torch.tensor(indices), losses, **predictions)
            assert mode.waits == []


def test_operations_that_wait_are_counted():
    losses = torch.rand(4)
    host = torch.empty(4)
    with LossWaits(losses) as mode:
        doubled = losses * 2
        assert mode.waits == []
        host.copy_(doubled, non_blocking=True)
        float(host.sum()), host.nonzero()
        assert mode.waits == []
        bool((doubled > 0).all()), doubled[doubled > 1], doubled.nonzero(), host.copy_(losses)
    assert len(mode.waits) == 4


@pytest.mark.sampled(3)
@by_each_rule
@pytest.mark.parametrize("queries", [1, 5, 10_000])
@pytest.mark.parametrize("shorter", [True, False])
def test_batches_and_states_are_those_of_losses_that_come_at_once(name, queries, shorter):
    def outcome():
        parts, steps, end = by_rule(
            RULES[name], lambda: plain(Numbered(spread(60))), epochs=4, shorter_epochs=shorter
        )()
        taken, states = [], []
        for step, batch in enumerate(steps()):
            taken.append(batch if batch is None else list(batch))
            if step % 7 == 3:  # a state has all losses until then
                states.append(bits(parts["loader"].memory.state_dict()))
        return taken, states, end()

    expected = outcome()
    with late(queries):
        found = outcome()
    assert str(found) == str(expected)


@by_each_rule
def test_what_a_rule_remembers_is_read_with_all_losses_until_then(name):
    def remembered():
        loader, seen = ruled(RULES[name]()), []
        for epoch in range(3):
            for step, _ in enumerate(steps_of(loader, epoch)):
                if step % 5 == 2:
                    seen.append(bits({"values": loader.memory.values.clone()}))
        return seen

    expected = remembered()
    with late(10_000):
        assert str(remembered()) == str(expected)


def test_losses_may_be_overwritten_once_they_were_recorded():
    loader, buffer = ruled(Memory(0.5, warmup=Epochs(1))), torch.empty(8)
    with late(10_000):
        for batch in loader:
            losses = buffer[: len(batch["number"])].copy_(batch["number"])
            loader.record(losses)
            buffer.fill_(torch.nan)
    assert loader.memory.values[:, 0].tolist() == list(range(60))


@pytest.mark.parametrize("queries", [0, 3, 10_000])
def test_a_loss_that_is_not_finite_is_an_error_by_the_end_of_the_epoch(queries):
    losses = spread(60)
    losses[7] = torch.nan
    with late(queries):
        loader, steps = ruled(Memory(), wrapped=plain(Numbered(losses))), []

        def train():
            for batch in loader:
                steps.append(7 in batch["number"])
                loader.loss(batch["loss"])

        with pytest.raises(LossError, match="example 7 is nan"):
            train()
        assert loader.stats.nonfinite == 1
        assert queries or steps[-1]  # of what is there at once, in the step itself
        loader.set_epoch(0)
        for batch in loader:  # it is said once
            loader.record(batch["loss"].nan_to_num())


@pytest.mark.parametrize("nonfinite", ["keep", "drop"])
def test_late_losses_that_are_not_finite_are_counted_and_left_out(nonfinite):
    losses = spread(60)
    losses[torch.tensor([7, 40])] = torch.inf
    with late(10_000):
        loader = ruled(Memory(), wrapped=plain(Numbered(losses)), on_nonfinite=nonfinite)
        for batch in loader:
            stays = batch["loss"].isfinite()
            value = loader.loss(batch["loss"])
            if nonfinite == "drop":
                assert torch.allclose(value, batch["loss"][stays].mean())
    assert loader.stats.nonfinite == 2
    assert loader.memory.has_value.logical_not().nonzero().flatten().tolist() == [7, 40]


def test_a_batch_of_dropped_losses_alone_has_a_loss_of_zero():
    loader = ruled(Memory(), wrapped=plain(Numbered(spread(60))), on_nonfinite="drop")
    next(iter(loader))
    losses = torch.full((8,), torch.nan, requires_grad=True)
    value = loader.loss(losses)
    value.backward()
    assert float(value.detach()) == 0
    assert losses.grad.tolist() == [0.0] * 8


def test_another_training_takes_over_a_rule_with_all_losses():
    rule = Memory(0.5, warmup=Epochs(1))
    with late(10_000):
        first = ruled(rule)
        for batch in first:
            first.record(batch["loss"])
        second = ruled(rule)
        second.set_epoch(1)
        next(iter(second))
    assert torch.equal(rule.values[:, 0], spread(60))


def test_a_state_that_is_loaded_forgets_losses_on_their_way():
    loader = ruled(Memory(0.5, warmup=Epochs(1)))
    saved = loader.state_dict()
    with late(10_000):
        for batch in loader:
            loader.record(batch["loss"])
            if len(loader._pipeline.draw.losses.reads) == 3:
                break
        loader.load_state_dict(saved)
        assert len(loader._pipeline.draw.losses.reads) == 0
    assert not loader.memory.has_value.any()


def test_a_copy_of_a_rule_has_all_losses():
    loader = ruled(Memory(0.5, warmup=Epochs(1)))
    with late(10_000):
        for batch in loader:
            loader.record(batch["loss"])
            last = copy.deepcopy(loader.memory)
    assert torch.equal(last.table.values, loader.memory.values)


class Noting(EpochRule):
    """Notes the sizes of what it is given."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def draw(self, epoch, generator):
        return torch.ones(self.examples)

    def update(self, indices, losses, epoch, *, correct=None, confidence=None):
        self.sizes.append(len(indices))


class NotingJoined(Noting):
    """The same, one example by itself as good as many."""

    updates_by_example = True

    def update(self, indices, losses, epoch, *, correct=None, confidence=None):
        super().update(indices, losses, epoch)


class NotingAgain(NotingJoined):
    """The same, with another `update`, of which nothing is said."""

    def update(self, indices, losses, epoch, *, correct=None, confidence=None):
        super().update(indices, losses, epoch)


@pytest.mark.parametrize(
    ("make", "sizes"),
    [(Noting, [8] * 7 + [4]), (NotingJoined, [60]), (NotingAgain, [8] * 7 + [4])],
)
def test_only_a_rule_that_says_so_is_given_several_batches_at_once(make, sizes):
    rule = make()
    loader = ruled(rule)
    for batch in loader:
        loader.record(batch["loss"])
    rule.table.finish()
    assert rule.sizes == sizes


def test_an_example_that_comes_again_in_a_pass_is_given_once_a_batch():
    rule = NotingJoined()
    sampler = torch.utils.data.RandomSampler(
        range(6), replacement=True, num_samples=48, generator=torch.Generator().manual_seed(0)
    )
    data = Numbered(spread(6))
    loader = SelectiveLoader(DataLoader(data, 3, sampler=sampler), memory=rule, epochs=2)
    batches = []
    for batch in loader:
        loader.record(batch["loss"])
        batches.append(len(set(batch["number"].tolist())))
    rule.table.finish()
    assert rule.sizes == batches


class DrawsTen(Memory):
    """Draws the first ten examples, and notes the sizes of what it is given."""

    updates_by_example = True

    def __init__(self):
        super().__init__(0.5, warmup=Epochs(0))
        self.sizes = []

    def draw(self, epoch, generator):
        return (torch.arange(self.examples) < 10).float()

    def update(self, indices, losses, epoch, **others):
        self.sizes.append(len(indices))
        super().update(indices, losses, epoch, **others)


def test_losses_of_several_passes_at_once_are_given_in_their_order_and_in_few_calls():
    rule = DrawsTen()
    sampler = SelectiveSampler(range(60), rule, epochs=1)
    given = list(sampler)  # six passes, drawn before there is a loss
    for step, index in enumerate(given):
        sampler.update(torch.tensor([index]), torch.tensor([float(step)]))
    rule.table.finish()
    assert sum(rule.sizes) == len(given) == 60
    assert len(rule.sizes) < 30
    latest = {index: float(step) for step, index in enumerate(given)}
    assert rule.values[:, 0].nan_to_num(-1).tolist() == [latest.get(i, -1.0) for i in range(60)]


def test_a_guard_is_given_each_batch_by_itself():
    assert not Memory(guard=NoiseGuard(10)).joins_updates
    assert Memory().joins_updates


def test_functions_are_called_in_order_and_once_though_one_raises():
    reads, seen = HostReads(), []

    def take(copied):
        seen.append(float(copied))
        if copied == 1:
            raise LossError("the first")

    with late(10_000):
        for value in range(3):
            reads.add(take, torch.tensor(value))
    with pytest.raises(LossError):
        reads.finish()
    reads.finish()
    assert seen == [0, 1, 2]
    assert len(reads) == 0


def test_a_table_that_is_recorded_to_is_as_it_was_left():
    table, order = ScoreTable(3), []
    table.claim(lambda: order.append("first"))
    table.claim(lambda: order.append("second"))
    table.record(torch.tensor([0]), torch.tensor([1.0]))
    assert order == ["first", "second"]


@pytest.mark.parametrize("guard", [None, 4])
@pytest.mark.parametrize("in_file", [True, False])
def test_a_rule_that_goes_back_alone_takes_nothing_that_was_on_its_way(guard, in_file, tmp_path):
    table = ScoreTable(60, path=tmp_path / "table" if in_file else None)
    rule = Memory(0.5, warmup=Epochs(1), guard=guard and NoiseGuard(guard), table=table)
    loader = ruled(rule)
    saved = rule.state_dict()
    with late(10_000):
        for batch in loader:
            loader.record(batch["loss"])
            if rule.guard is None and len(loader._pipeline.draw.losses.reads) == 3:
                break
        rule.load_state_dict(saved)
        rule.table.finish()
    assert not rule.has_value.any()
    assert rule.guard is None or rule.guard.confidence == 0


@on_accelerator
@by_each_rule
def test_no_step_waits_for_an_accelerator(name):
    loader = ruled(RULES[name](), shorter_epochs=False)
    for epoch in range(3):  # in the fourth, IES would leave out all, whose losses do not change
        trained = []
        for step, batch in enumerate(loader):
            trained.append(loader.indices)
            losses = batch["loss"].cuda().requires_grad_()
            correct, confidence = losses > 1, losses.detach().clamp(0, 1)
            torch.cuda.set_sync_debug_mode("error" if epoch or step else "default")
            try:
                loader.loss(losses, correct=correct, confidence=confidence).backward()
            finally:
                torch.cuda.set_sync_debug_mode("default")
    assert len(trained) > 1
    assert loader.memory.has_value[torch.cat(trained)].all()


@on_accelerator
@pytest.mark.parametrize(
    ("kind", "batches_per_step"),
    [
        *itertools.product(["eager", "CUDA graph", "other stream"], [1, 2]),
        ("compiled", 1),  # PyTorch's own graphs do not add up gradients over several replays
    ],
)
def test_an_accelerator_that_is_behind_gives_the_losses_of_every_batch(kind, batches_per_step):
    inputs, targets = torch.randn(64, 6), torch.arange(64) % 4
    source = DataLoader(TensorDataset(inputs, targets), 8, shuffle=True)
    loader = SelectiveLoader(source, memory=Memory(0.5, warmup=Epochs(1)), epochs=6)
    model = network(kind)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    stream = torch.cuda.Stream() if kind == "other stream" else torch.cuda.current_stream()
    expected, seen = torch.full((64,), torch.nan, device="cuda"), 0
    stream.wait_stream(torch.cuda.current_stream())
    for _ in range(4):
        for step, (x, y) in enumerate(loader):
            if kind == "compiled":
                torch.compiler.cudagraph_mark_step_begin()
            with torch.cuda.stream(stream):
                x, y, rows = (
                    part.pin_memory().cuda(non_blocking=True) for part in (x, y, loader.indices)
                )
                torch.cuda._sleep(20_000_000)  # cycles, so that the host is ahead
                losses = F.cross_entropy(model(x), y, reduction="none")
                expected[rows] = losses.detach()
                (loader.loss(losses) / batches_per_step).backward()
                seen = max(seen, len(loader._pipeline.draw.losses.reads))
                if step % batches_per_step == batches_per_step - 1:
                    optimizer.step()
                    optimizer.zero_grad()
    loader.state_dict()  # takes up what is late
    assert torch.equal(loader.memory.values[:, 0], expected.cpu())
    assert seen > 1


@on_accelerator
def test_an_exact_selection_does_not_wait_for_an_accelerator():
    data = TensorDataset(torch.randn(64, 6).cuda(), (torch.arange(64) % 4).cuda())
    model, schedule = network("eager"), Schedule(warmup=Epochs(0))
    loader = SelectiveLoader(
        DataLoader(data, 16), model, F.cross_entropy, keep=0.25, exact=True, schedule=schedule
    )
    for epoch in range(3):
        torch.cuda.set_sync_debug_mode("error" if epoch else "default")
        try:
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert len(loader.indices.unique()) == 16
    assert loader.stats.released == 3 * 16


@pytest.mark.parametrize("compiled", [False, True])
def test_a_compiled_step_records_the_losses_of_every_batch(compiled):
    loader = ruled(Memory(0.5, warmup=Epochs(1)))

    def step(losses):
        return loader.loss(losses * 2)

    step = torch.compile(step, backend="eager") if compiled else step
    for batch in loader:
        assert float(step(batch["loss"])) == pytest.approx(float(batch["loss"].mean()) * 2)
    assert torch.equal(loader.memory.values[:, 0], spread(60) * 2)


@pytest.mark.parametrize(("exact", "expected"), [(True, []), (False, ["aten.nonzero.default"])])
@pytest.mark.parametrize("rule", [None, "stale"])
def test_a_scored_batch_waits_once_at_most_and_not_at_all_for_an_exact_number(
    exact, expected, rule, monkeypatch
):
    # Which is checked on the CPU alone.
    monkeypatch.setattr("siftback.selectors.sampling.check_call", lambda *arguments: None)
    inputs, targets = torch.randn(64, 8), torch.arange(64) % 4
    model = torch.nn.Linear(8, 4)
    data = torch.utils.data.TensorDataset(inputs, targets)
    choice = {"memory": Stale(1 / 2, warmup=Epochs(0))} if rule else {"keep": 1 / 2}
    schedule = {} if rule else {"schedule": Schedule(warmup=Epochs(0))}
    loader = SelectiveLoader(
        DataLoader(data, 16), model, F.cross_entropy, exact=exact, **choice, **schedule
    )
    for _ in loader:  # whose first batch is tried
        pass
    loader.set_epoch(0)
    with LossWaits(*model.parameters()) as mode:
        for _ in loader:
            pass
    assert mode.waits == expected * 4
