"""A table remembers each example: in memory, in a file, and after a crash."""

import contextlib
import os
import signal

import numpy as np
import pytest
import torch

from siftback.errors import ConfigError, StateError
from siftback.tables.score_table import ScoreTable
from started import started

HEADER = 4096  # bytes before the first row of a file
NAN, INF = torch.nan, torch.inf


@pytest.fixture(params=["memory", "file"])
def make(request, tmp_path):
    """Makes tables in either place, each in a file of its own."""
    places = iter(range(99))

    def table(rows=0, columns=1):
        if request.param == "memory":
            return ScoreTable(rows, columns)
        return ScoreTable(rows, columns, path=tmp_path / f"{next(places)}.table")

    return table


def same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("columns", [1, 3])
def test_it_holds_what_a_dictionary_holds(make, columns):
    table, expected = make(500, columns), {}
    generator = torch.Generator().manual_seed(1)
    for epoch in range(6):
        indices = torch.randperm(500, generator=generator)[:150]
        scores = torch.randn(150, columns, generator=generator) * 10**epoch
        table.record(indices, scores if columns > 1 else scores[:, 0])
        expected |= dict(zip(indices.tolist(), scores.tolist(), strict=True))
    rows = torch.tensor([expected.get(index, [NAN] * columns) for index in range(500)])
    same(table.values, rows)
    same(table.scores(), rows[:, 0])


def test_scores_are_a_copy_and_values_are_what_is_held(make):
    table = make(3)
    table.scores().fill_(1.0)
    assert table.values.isnan().all()
    table.values[1] = 2.0
    same(table.scores(), torch.tensor([NAN, 2.0, NAN]))


def test_scores_of_every_kind_come_back_as_they_were(make):
    table = make(7)
    scores = torch.tensor([-0.0, 1e-45, -1e-45, 3.4e38, INF, -INF, NAN])
    table.record(torch.arange(7), scores)
    same(table.scores().view(torch.int32), scores.view(torch.int32))
    table.record(torch.arange(7), scores.double())
    same(table.scores(), scores)


def test_it_grows_and_keeps_what_it_had(make):
    table = make()
    assert len(table) == 0
    for rows in (3, 4, 5, 2, 9):
        before = table.scores()
        table.grow(rows)
        same(table.scores()[: len(before)], before)
        assert len(table) == max(rows, len(before))
        assert table.scores()[len(before) :].isnan().all()
        table.record(torch.tensor([len(table) - 1]), torch.tensor([float(rows)]))
    same(table.scores()[-1], torch.tensor(9.0))


def test_growing_row_by_row_keeps_to_the_size_that_is_asked():
    table = ScoreTable(columns=2)
    for index in range(100):
        table.grow(index + 1)
        table.record(torch.tensor([index]), torch.tensor([[float(index), 1.0]]))
        assert len(table) == len(table.scores()) == len(table.values) == index + 1
    same(table.scores(), torch.arange(100.0))
    assert table.state_dict()["values"].shape == (100, 2)


def test_without_columns_it_counts_rows_alone():
    table = ScoreTable(2, columns=0)
    table.grow(5)
    assert len(table) == 5
    assert table.values.shape == (5, 0)
    other = ScoreTable(columns=0)
    other.load_state_dict(table.state_dict())
    assert len(other) == 5


def test_a_state_of_values_is_loaded_anywhere(make):
    table = ScoreTable(5)
    table.record(torch.tensor([4, 1]), torch.tensor([0.25, 8.0]))
    state = table.state_dict()
    table.record(torch.tensor([4]), torch.tensor([1.0]))
    for other in (make(), make(5), ScoreTable(3)):
        other.load_state_dict(state)
        same(other.scores(), torch.tensor([NAN, 8.0, NAN, NAN, 0.25]))


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(make):
    state, larger, wider = ScoreTable(5).state_dict(), make(6), make(4, 2)
    for table, message in (
        (larger, "a table of 5 examples does not fit one of 6"),
        (wider, "a table of 1 columns does not fit one of 2"),
    ):
        table.values.fill_(3.0)
        before = table.values.clone()
        with pytest.raises(StateError, match=message):
            table.load_state_dict(state)
        same(table.values, before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": -1}, "rows=-1: give an integer, at least 0"),
        ({"rows": 2.5}, "rows=2.5: give an integer"),
        ({"columns": -1}, "columns=-1: give an integer, at least 0"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ScoreTable(**arguments)


@pytest.fixture(params=[1, 3])
def columns(request):
    return request.param


@pytest.fixture
def written(tmp_path, columns):
    """A file of 40 rows, 30 of them recorded, and what they hold."""
    path = tmp_path / "scores.table"
    table = ScoreTable(40, columns, path=path)
    table.record(torch.arange(30), (torch.arange(30.0 * columns) / 7).view(30, columns))
    return path, table.values.clone()


def test_a_file_is_opened_again_with_what_it_held(written, columns):
    path, values = written
    assert path.stat().st_size == HEADER + 4 * columns * 40
    table = ScoreTable(10, columns, path=path)  # holds more, and keeps them
    same(table.values, values)
    larger = ScoreTable(50, columns, path=path).values
    same(larger[:40], values)
    assert larger[40:].isnan().all()
    assert path.stat().st_size == HEADER + 4 * columns * 50


def test_a_flush_reaches_the_file(tmp_path):
    path = tmp_path / "scores.table"
    table = ScoreTable(4, path=path)
    table.record(torch.tensor([2]), torch.tensor([1.5]))
    table.flush()
    assert np.frombuffer(path.read_bytes()[HEADER:], np.float32)[2] == 1.5
    ScoreTable(3).flush()  # elsewhere does nothing


@pytest.mark.parametrize("columns", [1, 3], indirect=True)
def test_a_file_that_was_cut_off_within_a_row_is_refused(written, columns):
    path, _ = written
    os.truncate(path, HEADER + 4 * columns * 20 + 3)
    size = path.stat().st_size
    with pytest.raises(StateError, match=rf"cut off within a row: it has {size} bytes. Restore"):
        ScoreTable(40, columns, path=path)


@pytest.mark.parametrize(
    "content", [b"", b"siftback score", b"other" * 2000, b"siftback score table 1\n".ljust(5000)]
)
def test_a_file_of_another_kind_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"notes.txt is not a score table .* with 1"):
        ScoreTable(4, path=path)
    assert path.read_bytes() == content


@contextlib.contextmanager
def no_larger_files(size):
    """Has writes beyond a size fail as on a full disk, after what fits was written."""
    resource = pytest.importorskip("resource")  # which Windows has not
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("again", [False, True], ids=["opened", "grown"])
def test_a_table_that_grew_on_a_full_disk_is_as_before(written, columns, again):
    path, values = written
    table = ScoreTable(40, columns, path=path)
    with no_larger_files(path.stat().st_size + 4 * columns * 5 + 1):  # within a value
        table.grow(90)
    if again:  # once there is room
        table.grow(90)
        assert table.values[40:].isnan().all()
    same(ScoreTable(40, columns, path=path).values[:40], values)


def test_a_file_of_another_number_of_columns_is_refused(written, columns):
    path, _ = written
    with pytest.raises(StateError, match=f"with 2 columns, and begins with .*: {columns} columns"):
        ScoreTable(40, 2, path=path)


def write_epochs(path, epoch, done):
    rows = 20_000
    table = ScoreTable(rows, path=path)
    generator = torch.Generator().manual_seed(epoch)
    while True:
        epoch += 1
        for indices in torch.randperm(rows, generator=generator).split(2_000):
            table.record(indices, (epoch % 64) * 2.0**15 + indices)
        done.send(epoch)


def test_a_process_that_is_killed_leaves_whole_rows(tmp_path):
    path, epoch = tmp_path / "scores.table", 0
    for rounds in (1, 2, 5):
        with started(write_epochs, path, epoch) as (process, done):
            for _ in range(rounds):
                epoch = done.recv()
            process.kill()
            process.join()
            last = epoch
            with contextlib.suppress(EOFError):
                while True:
                    last = done.recv()
        assert process.exitcode == -signal.SIGKILL
        scores = ScoreTable(path=path).scores()
        written = ((scores - torch.arange(20_000)) / 2.0**15).long()  # the epoch, modulo 64
        same(scores, written * 2.0**15 + torch.arange(20_000))
        ahead = (written - last) % 64  # what it said was done is there
        assert ahead.max() <= 1
        epoch = last + int(ahead.max())
