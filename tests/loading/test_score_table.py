"""What is remembered of each example: in memory, in a file, and after a crash."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from siftback import ConfigError, ScoreTable, StateError

HEADER = 4096  # bytes before the first row of a file
NAN, INF = torch.nan, torch.inf


@pytest.fixture(params=["memory", "file"])
def make(request, tmp_path):
    """Makes tables in either place, each in a file of its own."""
    places = iter(range(99))

    def table(rows=0):
        if request.param == "memory":
            return ScoreTable(rows)
        return ScoreTable(rows, path=tmp_path / f"{next(places)}.table")

    return table


def same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_it_holds_what_a_dictionary_holds(make):
    table, expected, counts = make(500), {}, {}
    generator = torch.Generator().manual_seed(1)
    for epoch in range(6):
        indices = torch.randperm(500, generator=generator)[:150]
        scores = torch.randn(150, generator=generator) * 10**epoch
        table.record(indices, scores, epoch)
        for index, score in zip(indices.tolist(), scores.tolist(), strict=True):
            expected[index] = score, epoch
            counts[index] = counts.get(index, 0) + 1
    unseen = (NAN, None)
    rows = [expected.get(index, unseen) for index in range(500)]
    ages = torch.tensor([-1 if epoch is None else 7 - epoch for _, epoch in rows])
    same(table.scores(), torch.tensor([score for score, _ in rows]))
    same(table.ages(7), ages)
    same(table.counts(), torch.tensor([counts.get(index, 0) for index in range(500)]))
    some = torch.tensor([499, 3, 3, 250])
    same(table.scores(some), table.scores()[some])
    same(table.ages(7, some), ages[some])
    same(table.counts(some), table.counts()[some])


def test_scores_of_every_kind_come_back_as_they_were(make):
    table = make(7)
    scores = torch.tensor([-0.0, 1e-45, -1e-45, 3.4e38, INF, -INF, NAN])
    table.record(torch.arange(7), scores, epoch=0)
    scores[-1] = INF  # one that is no number is the largest
    same(table.scores().view(torch.int32), scores.view(torch.int32))
    table.record(torch.arange(7), scores.double(), epoch=0)
    same(table.scores(), scores)


def test_epochs_and_counts_stop_at_their_most(make):
    table = make(2)
    for epoch in range(300):
        table.record(torch.tensor([1]), torch.tensor([0.5]), epoch)
    assert table.counts().tolist() == [0, 255]
    table.record(torch.tensor([1]), torch.tensor([-0.5]), epoch=70_000)
    assert table.ages(80_000).tolist() == [-1, 0]
    assert table.ages(3).tolist() == [-1, 0]  # of an epoch before it
    same(table.scores(), torch.tensor([NAN, -0.5]))


def test_it_grows_and_keeps_what_it_had(make):
    table = make()
    assert len(table) == 0
    for rows in (3, 4, 5, 2, 9):
        before = table.scores()
        table.grow(rows)
        same(table.scores()[: len(before)], before)
        assert len(table) == max(rows, len(before))
        assert table.scores()[len(before) :].isnan().all()
        table.record(torch.tensor([len(table) - 1]), torch.tensor([float(rows)]), epoch=1)
    same(table.scores()[-1], torch.tensor(9.0))


def test_growing_row_by_row_keeps_to_the_size_that_is_asked():
    table = ScoreTable()
    for index in range(100):
        table.grow(index + 1)
        table.record(torch.tensor([index]), torch.tensor([float(index)]), epoch=0)
        assert len(table) == len(table.scores()) == index + 1
    same(table.scores(), torch.arange(100.0))
    assert len(table.state_dict()["rows"]) == 100


def test_a_state_is_taken_up_wherever_the_rows_were(make):
    table = make(5)
    table.record(torch.tensor([4, 1]), torch.tensor([0.25, 8.0]), epoch=2)
    state = table.state_dict()
    table.record(torch.tensor([4]), torch.tensor([1.0]), epoch=3)
    for other in (make(), make(5), ScoreTable(3)):
        other.load_state_dict(state)
        same(other.scores(), torch.tensor([NAN, 8.0, NAN, NAN, 0.25]))
        assert other.ages(3).tolist() == [-1, 1, -1, -1, 1]
    with pytest.raises(StateError, match="a table of 5 examples does not fit one of 6"):
        make(6).load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": -1}, "rows=-1: give the number of examples, at least 0"),
        ({"rows": 2.5}, "rows=2.5: give"),
        ({"device": "cpu", "path": "a.table"}, "device='cpu' and path='a.table': .* give one"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ScoreTable(**arguments)


@pytest.fixture
def written(tmp_path):
    """A file of 40 rows, 30 of them recorded, and what they hold."""
    path = tmp_path / "scores.table"
    table = ScoreTable(40, path=path)
    table.record(torch.arange(30), torch.arange(30.0) / 7, epoch=5)
    return path, table.scores()


def test_a_file_is_opened_again_with_what_it_held(written):
    path, scores = written
    assert path.stat().st_size == HEADER + 8 * 40
    table = ScoreTable(10, path=path)  # holds more, and keeps them
    same(table.scores(), scores)
    assert table.ages(6).tolist() == [1] * 30 + [-1] * 10
    same(ScoreTable(50, path=path).scores()[:40], scores)
    assert path.stat().st_size == HEADER + 8 * 50


def test_a_flush_reaches_the_file(tmp_path):
    path = tmp_path / "scores.table"
    table = ScoreTable(4, path=path)
    table.record(torch.tensor([2]), torch.tensor([1.5]), epoch=0)
    table.flush()
    row = int(np.frombuffer(path.read_bytes()[HEADER:], np.int64)[2])
    assert np.uint32(row & 0xFFFFFFFF).view(np.float32) == 1.5
    ScoreTable(3).flush()  # elsewhere does nothing


def change(path, place, value):
    content = bytearray(path.read_bytes())
    content[place] ^= value
    path.write_bytes(content)


def test_every_flipped_bit_is_found_told_and_forgotten(written):
    path, scores = written
    whole = path.read_bytes()
    for bit in range(64):
        change(path, HEADER + 8 * 17 + bit // 8, 1 << bit % 8)
        with pytest.warns(UserWarning, match=r"scores.table: 1 of 40 rows .* first is example 17"):
            table = ScoreTable(path=path)
        expected = scores.clone()
        expected[17] = NAN
        same(table.scores(), expected)
        assert table.counts()[17] == 0
        same(ScoreTable(path=path).scores(), expected)  # found and told once
        path.write_bytes(whole)


def test_a_damaged_stretch_is_told_with_its_first_row_and_can_be_learnt_anew(written):
    path, scores = written
    rng = np.random.default_rng(0)
    content = bytearray(path.read_bytes())
    content[HEADER + 80 : HEADER + 160] = rng.bytes(80)
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"10 of 40 rows are damaged, the first is example 10"):
        table = ScoreTable(path=path)
    table.record(torch.arange(10, 20), scores[10:20], epoch=6)
    same(ScoreTable(path=path).scores(), scores)


def test_a_file_that_was_cut_off_within_a_row_is_refused(written):
    path, _ = written
    os.truncate(path, HEADER + 8 * 20 + 3)
    with pytest.raises(StateError, match=r"cut off within a row: it has 4259 bytes. Restore it"):
        ScoreTable(40, path=path)


@pytest.mark.parametrize("content", [b"", b"siftback score", b"other" * 2000])
def test_a_file_of_another_kind_is_refused_and_left_as_it_is(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"notes.txt is no score table of this version: give"):
        ScoreTable(4, path=path)
    assert path.read_bytes() == content


WRITER = """
import sys, torch
from siftback import ScoreTable
rows, epoch = 20_000, int(sys.argv[2])
table = ScoreTable(rows, path=sys.argv[1])
generator = torch.Generator().manual_seed(epoch)
while True:
    epoch += 1
    for indices in torch.randperm(rows, generator=generator).split(2_000):
        table.record(indices, (epoch % 64) * 2.0**15 + indices, epoch)
    print(epoch, flush=True)
"""


def test_a_process_that_is_killed_leaves_whole_rows(tmp_path):
    path, epoch = tmp_path / "scores.table", 0
    for rounds in (1, 2, 5):
        writing = [sys.executable, "-c", WRITER, str(path), str(epoch)]
        with subprocess.Popen(writing, stdout=subprocess.PIPE, text=True) as process:
            for _ in range(rounds):
                epoch = int(process.stdout.readline())
            os.kill(process.pid, signal.SIGKILL)
            told = process.stdout.read().split()
        assert process.returncode == -signal.SIGKILL
        last = int(told[-1]) if told else epoch
        table = ScoreTable(path=path)  # without a warning: no row is damaged
        written = 60_000 - table.ages(60_000)
        assert written.min() >= last  # what it said was done is there
        assert written.max() <= last + 1
        same(table.scores(), (written % 64) * 2.0**15 + torch.arange(20_000))
        epoch = int(written.max())
