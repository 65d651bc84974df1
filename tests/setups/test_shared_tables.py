"""One table, file, rule or selector of two trainings: refused in the first step that mixes them."""

import copy
import errno
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from siftback import (
    Annealing,
    Ema,
    Epochs,
    InBatch,
    Irreducible,
    Memory,
    Percentile,
    Pool,
    Schedule,
    SelectiveLoader,
    SelectiveSampler,
    SinglePass,
    TopK,
)
from siftback.errors import ConfigError, StateError
from siftback.tables import file_lock
from siftback.tables.score_table import ScoreTable

HOLDER = Path(__file__).with_name("table_holder.py")
ROWS = 12


def same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def recorded(table):
    table.grow(4)
    table.record(torch.arange(4), torch.tensor([0.5, 3.0, 1.0, 2.0]))
    return table


# Selectors, scorers and pools of several trainings, such as of folds

ANNEALED = Schedule(warmup=Epochs(0), anneal=Annealing(first=1.0, until=Epochs(3)))
AT_ONCE = Schedule(warmup=Epochs(0))
SHARED = {
    "a history": lambda: {"selector": Percentile(keep=0.5), "schedule": AT_ONCE},
    "a share": lambda: {"selector": TopK(keep=0.5), "schedule": ANNEALED},
    "an average": lambda: {"selector": TopK(keep=0.5), "scorer": Ema(0.5), "schedule": AT_ONCE},
}


def fold_of(arguments, examples=range(ROWS)):
    """A loader of some examples, and its model, whose losses are in proportion to them."""
    inputs = torch.tensor(examples, dtype=torch.float32)[:, None]
    data = TensorDataset(inputs, torch.zeros_like(inputs))
    model = torch.nn.Linear(1, 1)
    torch.nn.init.ones_(model.weight)
    return SelectiveLoader(DataLoader(data, 4), model, mse_loss, epochs=4, **arguments)


def inputs_of(loader):
    """An epoch, after each step of which the weights are others."""
    batches = []
    for inputs, _ in loader:
        batches.append(inputs.squeeze(1).tolist())
        loader.model.weight.data.mul_(1.5)
    return batches


@pytest.mark.parametrize("name", SHARED)
def test_what_another_training_has_taught_is_refused_in_its_first_batch(name):
    arguments = SHARED[name]()
    first, second = fold_of(arguments), fold_of(arguments)
    state = first.state_dict()
    expected = [inputs_of(first) for _ in range(2)]
    for _ in range(2):  # as where the cell of a notebook is run again
        with pytest.raises(
            ConfigError, match=r"what it learned in another training: give .* a new \w+\("
        ):
            inputs_of(second)
    first.load_state_dict(state)  # and begin again
    torch.nn.init.ones_(first.model.weight)
    assert [inputs_of(first) for _ in range(2)] == expected
    going_on = fold_of(arguments)
    going_on.set_epoch(2)
    assert inputs_of(going_on)


STEPS = {
    "after the forward": lambda selector: InBatch(selector=selector, steps_per_epoch=1).select,
    "a single pass": lambda selector: SinglePass(
        torch.nn.Linear(1, 1), mse_loss, selector=selector, steps_per_epoch=1
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_selector_of_steps_that_another_training_has_taught_is_refused_in_its_first(name):
    def step(train):
        batch = torch.rand(8, 1)
        train(batch[:, 0]) if name == "after the forward" else train((batch, batch))

    selector = Percentile(keep=0.5)
    first, second = STEPS[name](selector), STEPS[name](selector)
    for _ in range(3):
        step(first)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"another training: give .* a new Percentile\("):
            step(second)
    step(first)


def test_what_no_training_teaches_may_be_of_several():
    arguments = {"selector": TopK(keep=0.5), "scorer": Irreducible(torch.ones(ROWS))}
    arguments["schedule"] = AT_ONCE
    first, second = fold_of(arguments), fold_of(arguments)
    assert inputs_of(first) == inputs_of(second)


def test_a_pool_gives_no_training_what_another_left_in_it():
    pool = Pool(5, drop_last="carry")
    arguments = {"selector": TopK(keep=0.5), "schedule": AT_ONCE, "pool": pool}
    folds = [range(ROWS), range(ROWS, 2 * ROWS)]
    for fold in folds:
        (trained,) = inputs_of(fold_of(arguments, fold))
        assert len(trained) == 5
        assert {*trained} <= {*fold}


# Two trainings in turns


def loader_with(rule, add=0):
    """Over other examples, as many."""
    data = TensorDataset(torch.arange(ROWS) + add)
    return SelectiveLoader(DataLoader(data, 4, shuffle=True), memory=rule, epochs=4, attach=True)


def sampler_with(rule):
    return SelectiveSampler(range(ROWS), rule, epochs=4)


def epoch_of(trained):
    """The examples of an epoch, whose losses are recorded batch by batch."""
    if isinstance(trained, SelectiveSampler):
        indices = torch.tensor(list(trained))
        trained.update(indices, indices / 7)
        return indices
    found = []
    for _, indices, _ in trained:
        trained.loss(indices / 7)
        found.append(indices)
    return torch.cat(found)


def rule_of(table=None, keep=0.5):
    return Memory(keep, warmup=Epochs(1), table=table)


def two_of_one_rule(path):
    rule = rule_of()
    return loader_with(rule), loader_with(rule, add=100)


def two_of_one_table(path):
    table = ScoreTable()
    return loader_with(rule_of(table)), loader_with(rule_of(table, None), add=100)


def two_of_one_table_in_a_file(path):
    table = ScoreTable(path=path)
    return loader_with(rule_of(table)), loader_with(rule_of(table))


def two_of_one_path(path):
    return tuple(loader_with(rule_of(ScoreTable(path=path))) for _ in range(2))


def a_sampler_and_a_loader(path):
    rule = rule_of()
    return sampler_with(rule), loader_with(rule)


def two_samplers(path):
    rule = rule_of()
    return sampler_with(rule), sampler_with(rule)


MIXED = [
    two_of_one_rule,
    two_of_one_table,
    two_of_one_table_in_a_file,
    two_of_one_path,
    a_sampler_and_a_loader,
    two_samplers,
]
REFUSED = r"began to train with this Memory or its table|was opened again by another ScoreTable"


@pytest.mark.parametrize("make", MIXED)
def test_trainings_in_turns_are_refused_before_their_losses_mix(make, tmp_path):
    first, second = make(tmp_path / "scores.table")
    if make is not two_of_one_path:  # of which the older one is refused from the start
        epoch_of(first)
        with pytest.raises(ConfigError, match=r"begins with epoch 0: give a new training a new Me"):
            epoch_of(second)
        second.set_epoch(1)
    epoch_of(second)
    before = second.memory.values.clone() if hasattr(second, "memory") else None
    with pytest.raises(ConfigError, match=REFUSED):
        epoch_of(first)
    if before is not None:
        same(second.memory.values, before)
    epoch_of(second)  # goes on


@pytest.mark.parametrize("make", [two_of_one_rule, two_of_one_table])
def test_a_training_is_refused_in_the_step_after_another_began(make, tmp_path):
    first, second = make(tmp_path)
    batches = iter(first)
    _, indices, _ = next(batches)
    first.loss(indices / 7)
    second.set_epoch(1)
    next(iter(second))
    _, indices, _ = next(batches)
    with pytest.raises(ConfigError, match="give each training a rule of its own"):
        first.loss(indices / 7)


def test_a_rule_goes_on_in_another_loader():
    rule, loaders, orders = rule_of(), [], []
    for epoch in range(3):
        loaders.append(loader_with(rule))
        loaders[epoch].set_epoch(epoch)
        orders.append(epoch_of(loaders[epoch]).tolist())
    assert [loader.stats.unread for loader in loaders] == [0, ROWS, ROWS]
    assert len({*map(tuple, orders)}) == 3
    expected = torch.arange(ROWS) / 7
    same(rule.values[:, 0], expected)


def test_counting_the_steps_of_another_loader_changes_nothing():
    rule = rule_of()
    loader = loader_with(rule)
    epoch_of(loader)
    assert loader_with(rule).total_steps == loader.total_steps
    assert len(epoch_of(loader)) == ROWS


def test_a_sampler_with_the_rule_of_the_loader_round_it_is_one_training():
    rule = rule_of()
    data = TensorDataset(torch.arange(ROWS))
    sampler = SelectiveSampler(data, rule, epochs=4)
    loader = SelectiveLoader(DataLoader(data, 4, sampler=sampler), epochs=4, attach=True)
    assert [len(epoch_of(loader)) for _ in range(3)] == [ROWS] * 3
    assert loader.stats.unread == 2 * ROWS


def test_a_training_goes_on_from_its_state_after_another_had_the_rule():
    rule = rule_of()
    first, second = loader_with(rule), loader_with(rule)
    epoch_of(first)
    state, values = first.state_dict(), rule.values.clone()
    second.set_epoch(1)
    epoch_of(second)
    first.load_state_dict(state)
    same(rule.values, values)
    assert len(epoch_of(first)) == ROWS
    with pytest.raises(ConfigError, match=REFUSED):
        epoch_of(second)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda loader: pickle.loads(pickle.dumps(loader))}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_loader_has_all_losses_in_its_values_and_its_state(copied):
    loader = loader_with(rule_of())
    epoch_of(loader)
    both = {2.0: loader, 3.0: copied(loader)}
    for scale, trained in both.items():
        _, indices, _ = next(iter(trained))
        trained.loss(indices * scale)
        same(trained.memory.values[indices, 0], indices * scale)
        trained.record(indices * scale + 1, indices=indices)
        saved = trained.state_dict()["draw"]["rule"]["table"]["values"]
        same(saved[indices, 0], indices * scale + 1)


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_loader_within_an_epoch_is_refused(copied):
    loader = loader_with(rule_of())
    for _, indices, _ in loader:
        loader.loss(indices + 1.0)
        with pytest.raises(ConfigError, match=r"within an epoch .*state_dict\(\)"):
            copied(loader)
        break
    with pytest.raises(ConfigError, match=r"within an epoch .*state_dict\(\)"):
        copied(loader)  # which the loop may go on with, as far as is known
    resumed = loader_with(rule_of())
    resumed.load_state_dict(loader.state_dict())
    same(epoch_of(copied(resumed)), epoch_of(resumed))


# One file


def test_a_file_that_another_process_has_is_refused_until_that_is_killed(tmp_path):
    path = tmp_path / "scores.table"
    table = ScoreTable(2, path=path)
    del table  # which lets the other process have it
    command = [sys.executable, HOLDER, path]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        found = json.loads(process.stdout.readline())
        content = path.read_bytes()
        for _ in range(2):
            with pytest.raises(ConfigError, match=r"scores.table is in use by another process"):
                ScoreTable(4, path=path)
        assert path.read_bytes() == content
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # At once, though its workers may not have ended yet.
        table = ScoreTable(path=path)
    assert found["values"] == table.scores().tolist() == [5.0, 1.0, 2.0, 3.0]
    table.record(torch.tensor([3]), torch.tensor([0.5]))
    for index, (value, message) in enumerate(found["forked"]):
        assert value == index
        assert "was opened by the process that this one was forked from" in message
    # Those have a copy, whose changes are their own.
    assert found["spawned"] == [[float(index), "recorded"] for index in range(4)]


def test_the_table_that_was_opened_last_has_the_file(tmp_path):
    path = tmp_path / "scores.table"
    older = recorded(ScoreTable(path=path))
    state = older.state_dict()
    newer = ScoreTable(path=path)
    same(newer.values, older.values)
    writing = (
        lambda: older.record(torch.tensor([0]), torch.tensor([9.0])),
        lambda: older.grow(5),
        older.state_dict,
        lambda: older.load_state_dict(state),
    )
    for write in writing:
        with pytest.raises(ConfigError, match="was opened again by another ScoreTable of this"):
            write()
    newer.record(torch.tensor([0]), torch.tensor([7.0]))
    newer.load_state_dict(state)
    same(newer.scores(), torch.tensor([0.5, 3.0, 1.0, 2.0]))


def test_a_link_to_a_file_is_the_file(tmp_path):
    older = recorded(ScoreTable(path=tmp_path / "scores.table"))
    (tmp_path / "link.table").symlink_to(tmp_path / "scores.table")
    ScoreTable(path=tmp_path / "link.table")
    with pytest.raises(ConfigError, match="was opened again"):
        recorded(older)


def test_files_are_told_apart_though_one_is_a_copy_of_the_other(tmp_path):
    older = recorded(ScoreTable(path=tmp_path / "scores.table"))
    (tmp_path / "copy.table").write_bytes((tmp_path / "scores.table").read_bytes())
    newer = ScoreTable(path=tmp_path / "copy.table")
    newer.record(torch.tensor([0]), torch.tensor([7.0]))
    recorded(older)
    assert newer.scores()[0] == 7.0


def test_a_file_of_another_kind_is_not_locked(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"notes")
    with pytest.raises(StateError, match="is not a score table") as refused:
        ScoreTable(path=path)
    fcntl = pytest.importorskip("fcntl")
    with path.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert path.read_bytes() == b"notes"
    del refused


@pytest.mark.parametrize("arguments", [{"columns": 2}, {"rows": -1}])
def test_a_table_that_is_refused_takes_no_file_from_another(arguments, tmp_path):
    table = recorded(ScoreTable(path=tmp_path / "scores.table"))
    with pytest.raises((ConfigError, StateError)):
        ScoreTable(**arguments, path=tmp_path / "scores.table")
    recorded(table)


def test_tables_leave_no_files_open(tmp_path):
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("the open files of a process are listed by Linux alone")
    gc.collect()
    before = len(list(folder.iterdir()))
    for _ in range(20):
        recorded(ScoreTable(path=tmp_path / "scores.table"))
    assert len(list(folder.iterdir())) == before


@pytest.mark.parametrize("system", ["without locks", "whose file system has none"])
def test_without_locks_of_the_system_one_process_is_still_told_apart(system, tmp_path, monkeypatch):
    path = tmp_path / "scores.table"
    if system == "without locks":
        monkeypatch.setattr(file_lock, "fcntl", None)
        older, newer = recorded(ScoreTable(path=path)), ScoreTable(path=path)
    else:
        monkeypatch.setattr(file_lock, "fcntl", NoLocks)
        with pytest.warns(UserWarning, match=r"scores.table has no locks .* no other training"):
            older = recorded(ScoreTable(path=path))
        with pytest.warns(UserWarning, match="has no locks"):
            newer = ScoreTable(path=path)
    recorded(newer)
    with pytest.raises(ConfigError, match="was opened again"):
        recorded(older)


class NoLocks:
    """A file system that cannot lock, as some in networks."""

    LOCK_EX, LOCK_NB, LOCK_UN = 2, 4, 8

    @staticmethod
    def flock(descriptor, operation):
        if operation != NoLocks.LOCK_UN:
            raise OSError(errno.ENOLCK, "No locks available")


# Copies


@pytest.mark.parametrize("where", ["memory", "file"])
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda table: pickle.loads(pickle.dumps(table))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_is_in_memory_and_apart(where, copied, tmp_path):
    path = None if where == "memory" else tmp_path / "scores.table"
    table = recorded(ScoreTable(3, path=path))
    table.state_dict()
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    other = copied(table)
    same(other.values, table.values)
    assert other.path is None
    other.grow(6)
    other.record(torch.tensor([0, 5]), torch.tensor([9.0, 8.0]))
    state = other.state_dict()
    assert len(table) == 4
    assert table.scores()[0] == 0.5
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files
    table.record(torch.tensor([1]), torch.tensor([4.0]))
    assert other.scores()[1] == 3.0
    again = ScoreTable()
    again.load_state_dict(state)
    same(again.values, other.values)


def test_a_copy_of_a_rule_is_a_training_of_its_own(tmp_path):
    rule = rule_of(ScoreTable(path=tmp_path / "scores.table"))
    loader = loader_with(rule)
    epoch_of(loader)
    other = copy.deepcopy(rule)
    same(other.values, rule.values)
    follower = loader_with(other)
    follower.set_epoch(1)
    epoch_of(follower)
    assert len(epoch_of(loader)) == ROWS
