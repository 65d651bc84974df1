"""A probe measures, and leaves everything as it was. No seconds are asserted."""

import copy
import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from siftback import (
    Fresh,
    Memory,
    Scorer,
    SelectiveLoader,
    SelectiveSampler,
    probe,
)
from siftback.errors import BatchError, ConfigError, LossError, TraceError
from siftback.probing.costs import cost_rows
from siftback.probing.result import ProbeResult
from siftback.probing.sample import Sample
from toys import (
    AT_ONCE,
    FEATURES,
    Writing,
    assert_same,
    dataset,
    network,
    numbered,
    optimizer_of,
    shuffled,
)

BASIC = ["traditional", "sb", "stale-sb", "sb-memory", "random"]


def quick(model=None, loader=None, loss_fn=F.cross_entropy, **options):
    """A probe that is over as soon as it may be."""
    options = {"keep": [0.5, 0.25], "seconds": 1e-3, "single_pass": False} | options
    return probe(model or network(), shuffled() if loader is None else loader, loss_fn, **options)


class Negated(Scorer):
    """Scores in the reverse of the exact order."""

    def score(self, losses, model, batch, indices):
        return -Fresh().score(losses, model, batch, indices)


class Broken(Scorer):
    def score(self, losses, model, batch, indices):
        raise RuntimeError("no kernel for this type")


class Learning(Scorer):
    """Learns after steps: what a probe must do to a copy."""

    def __init__(self):
        self.refreshed = 0

    def score(self, losses, model, batch, indices):
        return torch.zeros(len(batch[0]))

    def after_step(self, losses, model, batch):
        self.refreshed += 1


@pytest.fixture(scope="module")
def found():
    return quick(single_pass=True, scorers={"negated": Negated()})


def test_every_strategy_has_a_row_for_every_share(found):
    names = ["sb", "sb-negated", *BASIC[2:], "sb-single-pass"]
    pairs = [(row.strategy, row.keep) for row in found.rows]
    assert pairs == [("traditional", 1.0)] + [(name, k) for name in names for k in (0.5, 0.25)]
    assert found.failures == {}
    assert found.rows == cost_rows(found.seconds, [0.5, 0.25])
    assert found.seconds_compiling > 0
    assert (found.batch_size, found.rounds, found.device) == (8, 2, "cpu")
    assert found.parameters == sum(p.numel() for p in network().parameters())


def test_everything_measured_took_time(found):
    seconds = found.seconds
    parts = [seconds.loading, seconds.forward, seconds.backward, seconds.optimizer]
    parts += [seconds.choosing, seconds.choosing_uniformly, seconds.drawing, seconds.recording]
    parts += [*seconds.scores.values(), *seconds.single_pass.values()]
    assert len(parts) == 12
    assert min(parts) > 0
    assert found.forward_share == seconds.forward / (seconds.forward + seconds.backward)
    assert found.noise >= 0


def test_a_scorer_agrees_with_the_exact_one_as_far_as_it_does():
    found = quick(scorers={"same": Fresh(), "negated": Negated()})
    same, negated = found.agreement["sb-same"], found.agreement["sb-negated"]
    assert same.rank_correlation == 1
    assert [(o.top, o.selected) for o in same.overlaps] == [(1, 1)] * 2
    assert negated.rank_correlation == -1
    assert negated.overlaps[1].top == 0
    assert same.examples == 8 * 2  # a batch a round that it had time for, warming up included


def test_a_model_that_writes_to_its_inputs_has_the_same_for_each_scorer():
    batches = [(torch.randn(8, FEATURES), torch.randint(3, (8,))) for _ in range(4)]
    before = [inputs.clone() for inputs, _ in batches]
    writing = Writing(nn.Linear(FEATURES, 3))
    found = quick(writing, batches, scorers={"same": Fresh()}, single_pass=True)
    assert found.agreement["sb-same"].rank_correlation == 1
    assert found.agreement["sb-single-pass"].rank_correlation > 0.99
    assert_same([inputs for inputs, _ in batches], before)


def test_nothing_of_the_model_is_changed():
    model = network()
    model[2].eval()  # a frozen batch normalisation stays frozen
    model(torch.randn(4, 5)).sum().backward()
    before = copy.deepcopy(model.state_dict())
    gradients = [p.grad for p in model.parameters()]
    values = [g.clone() for g in gradients]
    modes = [m.training for m in model.modules()]
    optimizer = optimizer_of(model)
    optimizer.step()
    stepped = copy.deepcopy(optimizer.state_dict())
    before = copy.deepcopy(model.state_dict())
    quick(model, single_pass=True, scorers={"negated": Negated()}, optimizer=optimizer)
    assert_same(dict(model.state_dict()), dict(before))
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))
    assert_same([p.grad for p in model.parameters()], values)
    assert [m.training for m in model.modules()] == modes
    assert_same(optimizer.state_dict()["state"], stepped["state"])


def test_a_model_in_eval_mode_is_probed_in_train_mode_and_comes_back():
    model, seen = network().eval(), set()
    model[5].register_forward_hook(lambda module, *_: seen.add(module.training))
    before = copy.deepcopy(model.state_dict())
    quick(model)
    assert seen == {True, False}  # training steps and scores
    assert not any(m.training for m in model.modules())
    assert_same(dict(model.state_dict()), dict(before))


class Noisy(torch.utils.data.Dataset):
    """Augments by all the generators there are."""

    def __len__(self):
        return 32

    def __getitem__(self, index):
        noise = random.random() + np.random.random() + float(torch.rand(()))
        return torch.full((5,), index + noise), index % 3


def loaders():
    def by_global():
        return DataLoader(Noisy(), 8, shuffle=True)

    def by_own():
        return DataLoader(Noisy(), 8, shuffle=True, generator=torch.Generator().manual_seed(1))

    def by_sampler():
        sampler = RandomSampler(Noisy(), generator=torch.Generator().manual_seed(1))
        return DataLoader(Noisy(), 8, sampler=sampler)

    def by_seed_and_epoch():
        sampler = SelectiveSampler(Noisy())
        sampler.set_epoch(3)
        return DataLoader(Noisy(), 8, sampler=sampler)

    return [by_global, by_own, by_sampler, by_seed_and_epoch]


@pytest.mark.parametrize("make", loaders(), ids=lambda make: make.__name__)
def test_an_epoch_after_it_is_the_one_without_it(make):
    def epoch(probed):
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        model = nn.Linear(5, 3)
        loader = make()
        if probed:
            quick(model, loader)
        return [tuple(batch) for batch in loader], torch.rand(3)

    assert_same(epoch(probed=True), epoch(probed=False))


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's own
def test_a_loader_with_a_state_of_its_own_comes_back_to_it():
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def epoch(probed):
        torch.manual_seed(3)
        model, loader = nn.Linear(5, 3), stateful(dataset(), 8, shuffle=True)
        if probed:
            quick(model, loader)
        return list(loader)

    assert_same(epoch(probed=True), epoch(probed=False))


def test_persistent_workers_of_the_loader_are_left_alone():
    def epochs(probed):
        torch.manual_seed(3)
        model = nn.Linear(5, 3)
        loader = DataLoader(dataset(), 8, shuffle=True, num_workers=1, persistent_workers=True)
        if probed:
            quick(model, loader)
        return [list(loader) for _ in range(2)]

    assert_same(epochs(probed=True), epochs(probed=False))


class Asking(Scorer):
    """Notes the indices that it was given."""

    given: list = []  # noqa: RUF012 - a probe copies the scorer, and this is of the class

    def score(self, losses, model, batch, indices):
        self.given.append((batch[0], indices))
        return torch.zeros(len(batch[0]))


def test_scorers_are_given_indices_where_they_are_known():
    Asking.given.clear()
    quick(scorers={"asking": Asking()})
    assert len(Asking.given) == 2
    for inputs, indices in Asking.given:
        assert_same(inputs, dataset().tensors[0][indices])
    Asking.given.clear()
    quick(loader=list(shuffled()), scorers={"asking": Asking()})
    assert {indices for _, indices in Asking.given} == {None}


def test_what_was_given_is_copied_not_used():
    scorer, model = Learning(), network()
    quick(model, scorers={"learning": scorer})
    assert scorer.refreshed == 0


def test_an_optimizer_given_is_the_one_measured():
    model = network()
    used = []

    class Watched(torch.optim.SGD):
        def step(self, closure=None):
            used.append({id(p) for group in self.param_groups for p in group["params"]})
            return super().step(closure)

    assert quick(model, optimizer=Watched(model.parameters(), lr=1.0)).optimizer == "Watched"
    assert len(used) == 2
    assert not used[0] & {id(p) for p in model.parameters()}


def test_what_fails_is_reported_and_the_rest_measured():
    found = quick(scorers={"broken": Broken(), "same": Fresh()})
    assert found.failures == {"sb-broken": "RuntimeError: no kernel for this type"}
    assert list(dict.fromkeys(r.strategy for r in found.rows)) == [
        "traditional", "sb", "sb-same", *BASIC[2:],
    ]  # fmt: skip
    assert list(found.agreement) == ["sb-same"]


class Branching(nn.Linear):
    """Cannot be traced: what it does depends on the values."""

    def forward(self, x):
        out = super().forward(x)
        return out * 2 if float(out.detach().sum()) > 0 else out


def test_a_model_that_cannot_be_traced_is_reported_not_raised():
    found = quick(Branching(5, 3), single_pass=True)
    assert list(found.failures) == ["sb-single-pass"]
    assert found.failures["sb-single-pass"].startswith(TraceError.__name__)
    assert "test_probe.py" in found.failures["sb-single-pass"]
    assert found.seconds.single_pass == {}
    assert list(dict.fromkeys(r.strategy for r in found.rows)) == BASIC
    assert "sb-single-pass" not in found.agreement


def test_batches_that_are_not_pairs_come_with_losses():
    model = nn.Linear(1, 1)

    def losses(model, batch):
        return batch["loss"] + 0 * model(batch["loss"][:, None])[:, 0]

    batches = numbered(torch.linspace(0, 1, 24), 8)
    found = quick(model, batches, None, losses=losses, single_pass=True)
    assert found.failures == {}
    assert found.agreement["sb-single-pass"].rank_correlation == 1


def test_the_precision_of_training_is_that_of_the_exact_scores():
    types = set()

    def loss_fn(outputs, targets):
        types.add(outputs.dtype)
        return F.cross_entropy(outputs.float(), targets, reduction="none")

    quick(loss_fn=loss_fn, autocast=torch.bfloat16)
    assert types == {torch.bfloat16}
    types.clear()
    with torch.autocast("cpu", torch.bfloat16):
        quick(loss_fn=loss_fn)
    assert types == {torch.bfloat16}


def test_it_is_plain_data_and_json():
    found = quick(single_pass=True, scorers={"same": Fresh(), "broken": Broken()})
    data = json.loads(found.to_json())
    assert data == json.loads(json.dumps(found.to_dict()))
    assert data["rows"] == [json.loads(json.dumps(row)) for row in found.table()]
    assert data["advice"]["text"] == found.recommendation
    assert data["advice"]["answer"] == found.recommendation.splitlines()[0]
    assert [each["keep"] for each in data["seconds"]["single_pass"]] == [0.5, 0.25]
    assert data["agreement"]["sb-same"]["rank_correlation"] == 1
    assert data["forward_share"] == found.forward_share
    assert isinstance(found, ProbeResult)


def test_batches_of_one_example_are_measured_too():
    loader = DataLoader(dataset(16), 1)
    found = quick(nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), loader, single_pass=True)
    assert {row.keep for row in found.rows if row.strategy == "sb-single-pass"} == {0.5, 0.25}


def test_short_batches_and_the_end_of_an_epoch_are_passed_over():
    sample = Sample([torch.zeros(4), torch.ones(4), torch.ones(1)], nn.Identity())
    assert len(sample.first().data) == sample.size == 4
    assert [int(sample.next(turn)[1].data[0]) for turn in range(6)] == [0, 1, 0, 1, 0, 1]
    assert len(sample.items) == 2
    assert len(sample.took) == 5  # one of seven reads was the short batch's, one found the end


def test_an_iterable_that_ends_for_good_is_read_once():
    generator = torch.Generator().manual_seed(0)
    batches = iter([(torch.randn(8, 5, generator=generator), torch.arange(8) % 3)])
    assert quick(loader=batches).rounds == 2


class Counted(IterableDataset):
    def __iter__(self):
        return iter(dataset(40))


class Choosing(list):
    """Batches of which only some can be asked for."""

    def only(self, indices):
        raise AssertionError("a probe reads everything")


@pytest.mark.parametrize(
    ("loader", "reads_chosen_only"),
    [
        (shuffled(), True),
        (DataLoader(dataset(), batch_sampler=BatchSampler(range(44), 8, drop_last=False)), True),
        (DataLoader(dataset(), batch_sampler=[list(range(8)), list(range(8, 16))]), False),
        (DataLoader(Counted(), 8), False),
        (list(shuffled()), False),
        (Choosing(shuffled()), True),
    ],
    ids=["map-style", "plain batches", "own batches", "iterable", "list", "only"],
)
def test_what_is_left_out_before_reading_saves_reading_where_it_can(loader, reads_chosen_only):
    found = quick(nn.Linear(5, 3), loader)
    assert found.seconds.reads_chosen_only is reads_chosen_only
    memory = next(row for row in found.rows if row.strategy == "sb-memory")
    read = memory.keep if reads_chosen_only else 1
    each = found.seconds.training + found.seconds.recording
    expected = read * found.seconds.loading + found.seconds.drawing + memory.keep * each
    assert memory.seconds == pytest.approx(expected)
    assert (found.advice.strategy in ("sb-memory", None)) or not reads_chosen_only


@pytest.mark.parametrize("source", [dataset(40), Counted()], ids=["map", "iterable"])
def test_workers_load_ahead(source):
    found = quick(loader=DataLoader(source, 8, num_workers=1))
    assert found.seconds.loads_ahead
    assert found.seconds.loading > 0
    assert not quick().seconds.loads_ahead


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep": []}, "give shares in"),
        ({"keep": [0.5, 1.0]}, "give shares in"),
        ({"seconds": 0}, "give a number of seconds"),
        ({"scorers": {"own": len}}, "give a siftback.Scorer"),
        ({"losses": F.mse_loss}, "loss_fn=.* and losses=.*: give one of them"),
        ({"model": nn.Flatten()}, "no parameter of Flatten requires a gradient"),
    ],
)
def test_bad_arguments_are_named(options, said):
    with pytest.raises(ConfigError, match=said):
        quick(**options)


def test_a_selective_loader_is_not_what_to_probe():
    model = network()
    with pytest.raises(ConfigError, match="give the loader that it wraps"):
        quick(
            model, SelectiveLoader(shuffled(), model, F.cross_entropy, keep=0.5, schedule=AT_ONCE)
        )


def test_a_loader_that_leaves_examples_out_is_not_what_to_probe():
    sampler = SelectiveSampler(dataset(), Memory(keep=0.5), epochs=2)
    with pytest.raises(ConfigError, match="leaves out examples by Memory"):
        quick(loader=DataLoader(dataset(), 8, sampler=sampler))


def test_a_loader_without_batches_is_an_error():
    with pytest.raises(BatchError, match="gave no batch"):
        quick(loader=DataLoader(dataset(0), 8))


def test_losses_that_are_reduced_are_an_error_and_leave_the_model_alone():
    model = network()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(LossError, match="reduced"):
        quick(model, None, lambda outputs, targets: outputs.sum())
    assert_same(dict(model.state_dict()), dict(before))
    assert model.training


def test_the_faster_of_two_passes_and_one_is_named():
    found = quick(keep=[0.5])
    assert found.faster_pass(0.5) == "two_pass"
    two = next(row for row in found.rows if row.strategy == "sb")
    shares = {0.5: "single_pass", 0.89: "single_pass", 0.91: "two_pass", 2: "two_pass"}
    for share, name in shares.items():
        row = replace(two, strategy="sb-single-pass", seconds=share * two.seconds)
        both = replace(found, rows=(*found.rows, row), noise=0.01, seconds_compiling=two.seconds)
        assert both.faster_pass(0.5) == name
    once = replace(found, rows=(*found.rows, replace(row, seconds=0.7 * two.seconds)))
    assert replace(once, noise=0.4).faster_pass(0.5) == "two_pass"  # within what steps vary by
    traced = replace(once, noise=0.01, seconds_compiling=two.seconds)
    assert traced.faster_pass(0.5, steps=2) == "two_pass"  # 0.7 + 1 / 2 of two passes' time
    assert traced.faster_pass(0.5, steps=20) == "single_pass"
    with pytest.raises(ConfigError, match="steps"):
        traced.faster_pass(0.5, steps=0)
    with pytest.raises(ConfigError, match=r"keep=0\.3 was not measured: give one of \[0\.5\]"):
        found.faster_pass(0.3)
