"""Every rule in a loader: what is read, counted and saved, and stopping anywhere."""

import io

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from remembering import (
    REFRESHED,
    RULES,
    Numbered,
    Read,
    Streamed,
    by_rule,
    plain,
    ruled,
    spread,
    steps_of,
    weights_of,
)
from resuming import check_resumes
from siftback import Epochs, Indexed, Percentile, SelectiveSampler
from siftback.batches.pool import Pool
from siftback.contrib.ewma import Ewma
from siftback.contrib.gaussian_process import GaussianProcess
from siftback.errors import ConfigError, StateError
from siftback.rules.infobatch import InfoBatch
from siftback.rules.memory import Memory
from siftback.rules.rs2 import RS2
from siftback.rules.stale import Stale
from siftback.rules.ucb import UCB
from siftback.tables.score_table import ScoreTable
from toys import assert_same, seeded

every = pytest.mark.parametrize("name", RULES)


@every
def test_nothing_is_read_but_what_was_drawn(name):
    data = Read(Numbered(spread(60)))
    loader = ruled(RULES[name](), wrapped=plain(data))
    left_out = 0
    for epoch in range(8):
        found = weights_of(loader, epoch)
        assert data.take_reads() == list(found)  # these, in this order
        out = set(loader.left_out.tolist())
        assert out == set(range(60)) - found.keys()
        assert (epoch or name.startswith("rs2")) or not out
        left_out += len(out)
    assert left_out == loader.stats.unread > 0
    assert loader.stats.seen == 8 * 60
    assert loader.stats.scored == 0
    assert loader.stats.forwards + left_out == 8 * 60


@pytest.mark.parametrize("count", [1, 40])
@every
def test_a_single_example_and_equal_losses_are_trained_on(name, count):
    loader = ruled(RULES[name](), wrapped=plain(Numbered(torch.ones(count))))
    for _ in range(3):
        numbers = []
        for batch in loader:
            right = torch.zeros(len(batch["number"]), dtype=torch.bool)
            loader.record(batch["loss"], correct=right, confidence=batch["loss"])
            numbers += loader.weights.tolist()
        assert numbers or name == "ies"


SOURCES = {
    "shuffled": lambda **options: plain(Numbered(spread(44)), **options),
    "last batch dropped": lambda **options: plain(Numbered(spread(44)), drop_last=True, **options),
    "in order": lambda **options: plain(Numbered(spread(44)), shuffle=False, **options),
    "stream": lambda **options: DataLoader(Indexed(Streamed(spread(44))), 8, **options),
    "list": lambda: Indexed(
        list(plain(Numbered(spread(44)), shuffle=False)), index_of=lambda batch: batch["number"]
    ),
}
POOLS = {
    "smaller batches": Pool(3),
    "larger batches": Pool(20, drop_last="carry"),
    "carried": Pool(5, drop_last="carry"),
}
ALL = RULES | REFRESHED
VARIANTS = {f"{name}, shuffled": (name, "shuffled", None) for name in ALL}
VARIANTS |= {
    f"{name}, {source}": (name, source, None)
    for name in ("stale", "memory")
    for source in list(SOURCES)[1:]
}
VARIANTS |= {
    f"{name}, {pool}": (name, "shuffled", pool)
    for name, pool in zip(("stale", "process", "memory"), POOLS, strict=True)
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "source", "pool"), VARIANTS.values(), ids=VARIANTS)
def test_stopping_anywhere_equals_never_stopping(name, source, pool):
    often = name in ("infobatch", "memory", "stale")
    make = by_rule(ALL[name], SOURCES[source], pool=POOLS.get(pool))
    check_resumes(make, every=2 if often else 5)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("name", ["infobatch", "rs2", "memory", "stale"])
@pytest.mark.sampled(2)
def test_with_persistent_workers_too(name):
    workers = {"num_workers": 2, "persistent_workers": True}
    here, there = (by_rule(ALL[name], SOURCES["shuffled"], **how) for how in ({}, workers))
    check_resumes(there, every=15)
    whole = []
    for make in (here, there):
        _, steps, end = make()
        torch.manual_seed(6)
        whole.append(([*steps()], end()))
    assert_same(*whole)


@pytest.mark.parametrize(
    ("make", "columns"),
    [(lambda table: Memory(table=table), 1), (lambda t: Ewma(0.5, table=t, warmup=Epochs(0)), 2)],
)
def test_a_table_in_a_file_goes_back_to_the_state(make, columns, tmp_path):
    # Each run begins with the file of the one before, as of its end.
    check_resumes(
        by_rule(
            lambda: make(ScoreTable(columns=columns, path=tmp_path / "scores.table")),
            SOURCES["shuffled"],
        ),
        every=4,
    )


@pytest.mark.parametrize("name", ALL)
def test_a_state_does_not_change_as_its_loader_goes_on(name):
    loader = ruled(ALL[name](), 40, epochs=3)
    for epoch in range(2):
        for place, _ in enumerate(steps_of(loader, epoch)):
            if (epoch, place) == (0, 1):
                file, state = io.BytesIO(), loader.state_dict()
                torch.save(state, file)
    before = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    assert repr(state["draw"]) == repr(before["draw"])


@pytest.mark.parametrize(
    "make", [lambda: Memory(), lambda: GaussianProcess(0.5, warmup=Epochs(0)), UCB]
)
def test_a_state_of_fewer_examples_is_refused(make):
    few, more = ruled(make(), 40), ruled(make(), 41)
    with pytest.raises(StateError, match=r"examples=40, and this .* has examples=41: build"):
        more.load_state_dict(few.state_dict())


REFUSED_STATES = {
    "another rule": (
        lambda: Ewma(0.5, warmup=Epochs(0)),
        lambda: Stale(0.5, warmup=Epochs(0)),
        "memory",
    ),
    "another share": (
        lambda: Memory(0.2),
        lambda: Memory(0.5),
        r"keep=0.5, .* has keep=0.2",
    ),
    "another history": (
        lambda: GaussianProcess(0.5, history=5, warmup=Epochs(0)),
        lambda: GaussianProcess(0.5, warmup=Epochs(0)),
        "history=6",
    ),
}


@pytest.mark.parametrize(("here", "there", "message"), REFUSED_STATES.values(), ids=REFUSED_STATES)
def test_a_state_of_another_rule_or_share_is_refused(here, there, message):
    with pytest.raises(StateError, match=message):
        ruled(here()).load_state_dict(ruled(there()).state_dict())


@pytest.mark.parametrize("given", [{"keep": 0.5}, {"selector": Percentile(keep=0.5)}])
def test_a_rule_and_another_choice_are_refused(given):
    with pytest.raises(ConfigError, match="UCB"):
        ruled(UCB(), **given)


def test_a_share_of_training_needs_its_length():
    with pytest.raises(ConfigError, match="epochs="):
        ruled(InfoBatch(), epochs=None)
    ruled(InfoBatch(delta=1.0), epochs=None)


def test_a_batch_sampler_that_cannot_leave_examples_out_is_refused():
    class Own(BatchSampler):
        pass

    data = Numbered(spread(9))
    batches = Own(SequentialSampler(data), 4, False)
    with pytest.raises(ConfigError, match="RS2 leaves examples out before they are read"):
        ruled(RS2(), wrapped=DataLoader(data, batch_sampler=batches))
    ruled(RS2(), wrapped=DataLoader(data, batch_size=4, sampler=SelectiveSampler(data)))


class Forever(DataLoader):
    """Keeps one iterator, and so its workers, for all epochs, as loaders of timm and YOLO do."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        object.__setattr__(self, "batch_sampler", Repeated(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class Repeated:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from self.sampler


@pytest.mark.parametrize("sampler", [SequentialSampler, SelectiveSampler])
def test_a_loader_that_keeps_its_iterator_for_all_epochs_is_told_what_to_give(sampler):
    data = Numbered(spread(9))
    with pytest.raises(ConfigError, match=r"a Repeated cannot: .* give a DataLoader.*persistent_w"):
        ruled(RS2(), wrapped=Forever(data, batch_size=4, sampler=sampler(data)))


def test_alone_in_a_sampler_a_rule_draws_too():
    data, rule = Numbered(spread(40)), Memory(0.5)
    sampler = SelectiveSampler(data, rule, epochs=8, seed=3, shorter_epochs=True)
    lengths = []
    for _ in range(4):
        numbers = []
        for indices, batch in DataLoader(Indexed(data), 8, sampler=sampler):
            sampler.update(indices, batch["loss"])
            numbers += indices.tolist()
        lengths.append(len(numbers))
    assert lengths == [40, 40, 20, 20]
    assert_same(rule.table.scores(), data.losses)
    assert_same(rule.draw(9, seeded(1)).sum(), torch.tensor(20.0))
