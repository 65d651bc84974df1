"""States of a table in a file, which hold no values: gone back to from any later time."""

import random
import signal

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from siftback import Epochs, Memory, SelectiveLoader
from siftback.errors import StateError
from siftback.tables.score_table import ScoreTable
from started import started

ROWS = 50


def same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def changed(table, chance, steps):
    for _ in range(steps):
        rows = torch.tensor(chance.sample(range(ROWS), 7))
        values = torch.randn(7, table.columns)
        if chance.random() < 0.3:
            table.record(rows, values[:, 0], column=table.columns - 1)
        else:
            table.record(rows, values)


@pytest.fixture(params=[1, 3])
def path(request, tmp_path):
    ScoreTable(ROWS, request.param, path=tmp_path / "scores.table")
    return tmp_path / "scores.table", request.param


@pytest.mark.parametrize("seed", range(4))
def test_it_goes_back_to_any_of_its_last_states(path, seed, monkeypatch):
    # At most some changes, so that files are begun anew; by another process or by this one.
    monkeypatch.setattr("siftback.tables.undo_journal._LEAST", 10)
    monkeypatch.setattr("siftback.tables.undo_journal._CHUNK", 8)
    chance, (file, columns) = random.Random(seed), path
    torch.manual_seed(seed)
    table, states = ScoreTable(path=file, columns=columns), []
    last, files = 0, set()  # of the states, the one that was gone back to
    for _ in range(60):
        changed(table, chance, chance.randint(0, 4))
        what = chance.choice(["save", "save", "open", "load", "load"])
        if what == "save":
            states.append((table.state_dict(), table.values.clone()))
        elif what == "open":  # as after a kill
            table = ScoreTable(path=file, columns=columns)
        elif states:
            place = max(0, len(states) - chance.randint(1, 4))
            before, refusal = table.values.clone(), None
            try:
                table.load_state_dict(states[place][0])
                last = place
            except StateError as error:
                refusal = str(error)
            if refusal is not None:
                assert "does not go back to the state" in refusal
                assert place < max(len(states) - 2, last)
                same(table.values, before)
                continue
            same(table.values, states[place][1])
            del states[place + 1 :]  # which may be gone
        files |= {other.name for other in file.parent.iterdir()}
    assert files == {"scores.table", "scores.table.undo", "scores.table.undo-before"}


def test_it_goes_back_and_forth_between_courses_of_training(path):
    table, chance = ScoreTable(path=path[0], columns=path[1]), random.Random(0)
    states = []
    for _ in range(3):
        changed(table, chance, 2)
        states.append((table.state_dict(), table.values.clone()))
    for place in (0, 2, 1, 1, 0):
        table.load_state_dict(states[place][0])
        same(table.values, states[place][1])
        changed(table, chance, 3)
        states.append((table.state_dict(), table.values.clone()))
    for state, values in states:
        table.load_state_dict(state)
        same(table.values, values)


def test_half_an_entry_is_one_that_was_not_made(path):
    file, columns = path
    table, chance = ScoreTable(path=file, columns=columns), random.Random(1)
    changed(table, chance, 3)
    state, values = table.state_dict(), table.values.clone()
    changed(table, chance, 3)
    with file.with_name("scores.table.undo").open("ab") as journal:
        journal.write(b"\1\2\3")
    table = ScoreTable(path=file, columns=columns)
    changed(table, chance, 2)
    table.load_state_dict(state)
    same(table.values, values)


def test_a_journal_that_is_removed_is_missed_by_the_next_loss(path):
    file, columns = path
    table = ScoreTable(path=file, columns=columns)
    table.state_dict()
    file.with_name("scores.table.undo").unlink()
    with pytest.raises(FileNotFoundError, match=r"scores.table.undo"):
        table.record(torch.arange(3), torch.ones(3, columns))
    assert table.values.isnan().all()


def test_a_table_that_is_moved_needs_its_journal(path, tmp_path):
    file, columns = path
    table = ScoreTable(path=file, columns=columns)
    state = table.state_dict()
    moved = file.rename(tmp_path / "moved.table")
    table = ScoreTable(path=moved, columns=columns)
    with pytest.raises(StateError, match=r"moved.table.undo .* moved without this file"):
        table.load_state_dict(state)
    file.with_name("scores.table.undo").rename(tmp_path / "moved.table.undo")
    table = ScoreTable(path=moved, columns=columns)
    table.load_state_dict(state)


def test_what_was_not_recorded_is_found_out(path):
    file, columns = path
    table = ScoreTable(path=file, columns=columns)
    table.values[3] = 1.0  # before any state, it is as good
    state = table.state_dict()
    table.values[3] = 2.0
    with pytest.raises(StateError, match=r"were written to directly, .* by ScoreTable.record"):
        table.record(torch.tensor([0]), torch.ones(1, columns))
    with pytest.raises(StateError, match="were written to directly"):
        table.state_dict()
    again = ScoreTable(path=file, columns=columns)
    with pytest.raises(StateError, match="are not those of the state: the machine failed"):
        again.load_state_dict(state)


def test_states_of_other_files_are_refused(path, tmp_path):
    file, columns = path
    table = ScoreTable(path=file, columns=columns)
    state = table.state_dict()
    for other, where in (
        (ScoreTable(ROWS, columns), "this one is in memory"),
        (ScoreTable(ROWS, columns, path=tmp_path / "other"), "other, which is another one"),
    ):
        with pytest.raises(StateError, match=f"which has its values, and .*{where}: give"):
            other.load_state_dict(state)
    file.with_name("scores.table.undo").unlink()
    with pytest.raises(StateError, match="does not go back to the state"):
        ScoreTable(path=file, columns=columns).load_state_dict(state)


def test_saving_takes_the_same_room_for_any_number_of_rows(tmp_path):
    sizes = []
    for rows in (100, 100_000):
        table = ScoreTable(rows, path=tmp_path / f"{rows}.table")
        torch.save(table.state_dict(), tmp_path / "state.pt")
        sizes.append((tmp_path / "state.pt").stat().st_size)
    assert abs(sizes[1] - sizes[0]) < 300


DATA = TensorDataset(torch.arange(ROWS))


def loader_over(path):
    rule = Memory(keep=0.5, warmup=Epochs(1), table=ScoreTable(path=path))
    plain = DataLoader(DATA, 6, shuffle=True)
    return SelectiveLoader(plain, memory=rule, epochs=5, attach=True)


def steps_of(loader, epochs):
    for _ in range(epochs):
        epoch = loader.epoch
        for _, indices, _ in loader:
            loader.loss(torch.frac(indices * 0.618 + epoch * 0.37))
            yield indices


def test_a_loader_goes_on_within_an_epoch_though_the_file_went_on(tmp_path):
    loader = loader_over(tmp_path / "scores.table")
    steps = list(steps_of(loader, 2))
    training = steps_of(loader, 3)
    steps += [next(training), next(training)]
    torch.save(loader.state_dict(), tmp_path / "state.pt")
    rest = list(training)
    values = loader.memory.values.clone()
    for _ in range(2):
        again = loader_over(tmp_path / "scores.table")
        again.load_state_dict(torch.load(tmp_path / "state.pt"))
        found = list(steps_of(again, 3))
        assert len(found) == len(rest)
        assert all(map(torch.equal, found, rest))
        same(again.memory.values, values)


def record_steps(folder, done):
    rows, step = 3_000, 0
    table = ScoreTable(rows, path=folder / "scores.table")
    if (folder / "state.pt").exists():
        state = torch.load(folder / "state.pt")
        table.load_state_dict(state["table"])
        step = state["step"]
    while True:
        if step % 7 == 0:
            torch.save({"table": table.state_dict(), "step": step}, folder / "new")
            (folder / "new").rename(folder / "state.pt")
            done.send(step)
        generator = torch.Generator().manual_seed(step)
        indices = torch.randperm(rows, generator=generator)[:200]
        table.record(indices, step + indices / rows)
        step += 1


def test_a_process_that_is_killed_goes_on_from_its_last_state(tmp_path):
    for lines in (30, 2):
        with started(record_steps, tmp_path) as (process, done):
            for _ in range(lines):
                done.recv()
            process.kill()
            process.join()
        assert process.exitcode == -signal.SIGKILL
    table, state = ScoreTable(path=tmp_path / "scores.table"), torch.load(tmp_path / "state.pt")
    table.load_state_dict(state["table"])
    expected = torch.full((3_000,), torch.nan)
    for step in range(state["step"]):
        indices = torch.randperm(3_000, generator=torch.Generator().manual_seed(step))[:200]
        expected[indices] = step + indices / 3_000
    same(table.scores(), expected)
