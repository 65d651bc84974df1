"""Records of runs packed into one file are read as they were."""

import gzip
import json
import math
import shutil
from contextlib import nullcontext
from dataclasses import replace
from threading import Thread

import pytest

from siftback.errors import ConfigError, StateError
from siftback.lab.figures import reading
from siftback.lab.records.comparison_record import Comparison, RecordWriter
from siftback.lab.records.folder import (
    LOCK,
    PACKED,
    SUMMARY,
    comparison_folders,
    locked,
    pack,
    record_lines,
    record_names,
)
from siftback.lab.records.run_summary import ScoringCost
from siftback.lab.report.page import raw_files
from written_records import add, comparison

POINTS = [(1.0, 10, 300.0, 50.0), (2.0, 20, 600.0, 25.0)]


@pytest.fixture
def filled(tmp_path):
    """Two strategies, two seeds each."""
    made = comparison(tmp_path)
    for seed in (0, 1):
        add(made, "traditional", POINTS, seed)
        add(made, "sb", POINTS[:1], seed, keep=0.5)
    return made


def read_whole(folder):
    """The numbers that every analysis goes by."""
    found = Comparison.read(folder)
    return [(run, found.evaluations(run), found.machine_of(run)) for run in found.runs]


def test_all_is_read_from_the_packed_file_as_it_was(filled):
    before, names = read_whole(filled.folder), record_names(filled.folder)
    assert pack(filled.folder) == (5, [])
    assert read_whole(filled.folder) == before
    assert record_names(filled.folder) == names
    assert {path.name for path in filled.folder.iterdir()} == {PACKED, LOCK}
    kept, problems = reading.read([filled.folder])
    assert (len(kept[0].runs), problems) == (4, [])


def test_the_summary_is_read_from_the_packed_file_as_it_was(filled):
    filled.runs.reverse()
    filled.prices["sb-int8"] = ScoringCost(0.3, 0.2, 0.4, 9)
    add(filled, "sb", POINTS, seed=3, test_loss_final=math.nan)
    before = (filled.folder / SUMMARY).read_text()
    raw = raw_files("x", filled)
    assert pack(filled.folder) == (6, [])
    packed = Comparison.read(filled.folder)
    assert packed.to_json() == before
    assert raw_files("x", packed) == raw
    assert comparison_folders(filled.folder) == [filled.folder]


def test_comparisons_are_found_while_folders_beside_them_go(filled, tmp_path):
    def come_and_go():
        for _ in range(100):
            for number in range(20):
                (tmp_path / "beside" / "checkpoints" / f"run{number}").mkdir(parents=True)
            shutil.rmtree(tmp_path / "beside")

    thread = Thread(target=come_and_go)
    thread.start()
    while thread.is_alive():
        assert comparison_folders(tmp_path) == [filled.folder]


def test_the_run_of_a_comparison_that_goes_on_is_said_to_be_written(filled):
    name = f"{filled.folder.name}/records/random-seed0.jsonl"
    (filled.folder / "records" / "random-seed0.jsonl").write_text('{"kind": "run"}\n')
    for is_running, told in ((True, "is being written"), (False, "was broken off")):
        with locked(filled.folder) if is_running else nullcontext():
            _, problems = reading.read([filled.folder])
        assert problems == [f"{name} {told}, and left out"]


def test_what_was_packed_but_not_yet_removed_is_removed_the_next_time(filled):
    files = {name: (filled.folder / name).read_bytes() for name in (SUMMARY, filled.runs[0].record)}
    pack(filled.folder)
    packed, whole = (filled.folder / PACKED).read_bytes(), read_whole(filled.folder)
    for name, content in files.items():
        (filled.folder / name).parent.mkdir(exist_ok=True)
        (filled.folder / name).write_bytes(content)
    assert read_whole(filled.folder) == whole
    assert pack(filled.folder) == (2, [])
    assert read_whole(filled.folder) == whole
    assert (filled.folder / PACKED).read_bytes() == packed
    assert not (filled.folder / SUMMARY).exists()


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        (lambda runs: None, "JSONDecodeError"),
        (lambda runs: [*runs, replace(runs[0], record="records/x.jsonl")], "records/x.jsonl"),
        (lambda runs: [*runs[:3], replace(runs[3], steps=9)], "records/sb-None-0.50-1.jsonl"),
    ],
    ids=["torn", "without a record", "another number"],
)
@pytest.mark.parametrize("before", [False, True], ids=["first", "again"])
def test_a_summary_that_differs_from_the_records_stays(filled, runs, why, before):
    if before:
        pack(filled.folder)
    summary = "{"
    if (differing := runs(filled.runs)) is not None:
        summary = replace(filled, runs=differing).to_json()
    path = filled.folder / SUMMARY
    path.write_text(summary)
    moved, (problem,) = pack(filled.folder)
    assert moved == (0 if before else 4)
    assert problem.startswith(f"{path} stays: it is damaged, or not what the runs say (")
    assert why in problem
    assert path.read_text() == summary
    path.unlink()
    assert comparison_folders(filled.folder) == ([filled.folder] if before else [])


def test_a_run_that_the_packed_summary_lacks_is_left_out_and_found_by_resuming(filled):
    pack(filled.folder)
    add(filled, "traditional", POINTS, seed=2)
    (filled.folder / SUMMARY).unlink()
    for files in (1, 0):
        comparisons, problems = reading.read([filled.folder])
        assert [len(comparison.runs) for comparison in comparisons] == [4]
        (problem,) = problems
        assert problem.endswith("-2.jsonl is not in records.jsonl.gz, and left out")
        assert len(Comparison.recover(filled.folder).runs) == 5
        assert pack(filled.folder) == (files, [])


def test_a_packed_file_of_runs_alone_is_no_comparison_without_a_summary(filled):
    pack(filled.folder)
    path = filled.folder / PACKED
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).partition(b"\n")[2]))
    assert comparison_folders(filled.folder) == []
    with pytest.raises(FileNotFoundError, match=SUMMARY):
        Comparison.read(filled.folder)
    assert pack(filled.folder) == (0, [])
    filled.write()
    assert comparison_folders(filled.folder) == [filled.folder]
    assert pack(filled.folder) == (1, [])
    assert len(read_whole(filled.folder)) == 4


def test_runs_that_the_summary_lacks_are_found_in_the_packed_file(filled):
    pack(filled.folder)
    Comparison(filled.folder, filled.environment, []).write()
    found = Comparison.recover(filled.folder)
    assert {run.record for run in found.runs} == {run.record for run in filled.runs}


def test_packing_twice_changes_nothing_and_a_run_added_later_is_packed_with_the_others(filled):
    pack(filled.folder)
    packed = (filled.folder / PACKED).read_bytes()
    assert pack(filled.folder) == (0, [])
    assert (filled.folder / PACKED).read_bytes() == packed
    add(filled, "traditional", POINTS, seed=2)
    assert len(record_names(filled.folder)) == 5
    assert pack(filled.folder) == (2, [])
    assert len(read_whole(filled.folder)) == 5


def test_a_run_of_its_own_file_is_read_in_place_of_the_packed_one(filled):
    pack(filled.folder)
    run = filled.runs.pop(0)
    again = add(filled, "traditional", [(3.0, 10, 300.0, 5.0)], seed=0)
    assert again.record == run.record
    assert [one.test_error for one in filled.evaluations(again)] == [5.0]
    pack(filled.folder)
    assert [one.test_error for one in filled.evaluations(again)] == [5.0]


def test_a_run_that_was_broken_off_keeps_its_file(filled):
    path = filled.folder / "records" / "broken.jsonl"
    RecordWriter(path, {"strategy": "sb"}).close()
    assert pack(filled.folder) == (5, [])
    assert path.exists()
    assert record_lines(filled.folder, "records/broken.jsonl") == [
        json.dumps({"kind": "run", "strategy": "sb"})
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (0, "records.jsonl.gz: run 4 of 4 is damaged, and left out (TypeError: "),
        (1, "records/sb-None-0.50-1.jsonl is damaged in line 2, and left out"),
        (2, "records.jsonl.gz: run 4 of 4 is damaged, and left out (TypeError: "),
    ],
)
def test_a_damaged_line_costs_its_own_run_alone(filled, line, what):
    pack(filled.folder)
    path = filled.folder / PACKED
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    header = b'{"kind": "run", "record": "records/sb-None-0.50-1'
    place = next(i for i, one in enumerate(lines) if one.startswith(header)) + line
    lines[place] = lines[place][:40] + b"\n"
    path.write_bytes(gzip.compress(b"".join(lines)))
    kept, problems = reading.read([filled.folder])
    assert len(kept[0].runs) == 3
    (problem,) = problems
    assert problem.startswith(f"{filled.folder.name}/{what}")


@pytest.mark.parametrize("place", [0, 20, -20, -6, -1])
def test_a_damaged_packed_file_is_named_and_never_read_in_part(filled, place):
    pack(filled.folder)
    path = filled.folder / PACKED
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)
    comparisons, (problem,) = reading.read([filled.folder])
    assert comparisons == []
    assert problem.startswith(f"{filled.folder.name}/records.jsonl.gz is damaged, and left out (")
    for read in (Comparison.read, Comparison.recover):
        with pytest.raises(StateError, match=r"records.jsonl.gz is damaged \(.*--resume"):
            read(filled.folder)
    add(filled, "traditional", POINTS, seed=2)
    comparisons, problems = reading.read([filled.folder])
    assert [run.seed for comparison in comparisons for run in comparison.runs] == [2]
    assert sum("records.jsonl.gz is damaged" in problem for problem in problems) == 4
    with pytest.raises(ConfigError, match="restore"):
        pack(filled.folder)
    assert path.read_bytes() == content


def test_what_environments_share_is_kept_once_and_each_is_read_whole(tmp_path):
    environments = {
        f"records/{number}.jsonl": {
            "torch": "2.13.0",
            "date": f"2026-11-2{number}",
            "arguments": {"epochs": epochs, "lr": 0.1, "stop_at": None, "keeps": [0.5, number]},
            **more,
        }
        for number, (epochs, more) in enumerate([(2, {}), (2.0, {"gpu": "H100"}), (2, {})])
    }
    for record, environment in environments.items():
        lines = [{"kind": "run", "environment": environment}, {"kind": "end"}]
        (tmp_path / record).parent.mkdir(exist_ok=True)
        (tmp_path / record).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert pack(tmp_path) == (3, [])
    shared, *lines = map(json.loads, gzip.decompress((tmp_path / PACKED).read_bytes()).splitlines())
    assert shared["environment"] == {
        "torch": "2.13.0",
        "arguments": {"lr": 0.1, "stop_at": None},
    }
    assert "torch" not in lines[0]["environment"]
    read = {name: json.loads(record_lines(tmp_path, name)[0]) for name in record_names(tmp_path)}
    assert {name: header["environment"] for name, header in read.items()} == environments
    assert [type(header["environment"]["arguments"]["epochs"]) for header in read.values()] == [
        int,
        float,
        int,
    ]


def test_without_what_environments_share_the_runs_are_read_all_the_same(filled):
    pack(filled.folder)
    path = filled.folder / PACKED
    summary, _, runs = gzip.decompress(path.read_bytes()).partition(b"\n")
    path.write_bytes(gzip.compress(summary + b"\n{" + runs[9:]))
    assert len(read_whole(filled.folder)) == 4


@pytest.mark.parametrize("first", [b"", b"{\n"], ids=["nothing", "torn"])
def test_without_its_first_line_a_packed_file_is_damaged(filled, first):
    pack(filled.folder)
    path = filled.folder / PACKED
    content = gzip.decompress(path.read_bytes()).partition(b"\n")[2]
    path.write_bytes(gzip.compress(first and first + content))
    with pytest.raises(StateError, match=r"records.jsonl.gz is damaged \(.*first line"):
        Comparison.read(filled.folder)
    with pytest.raises(ConfigError, match="restore"):
        pack(filled.folder)


def test_a_folder_that_is_trained_in_is_refused(filled):
    with locked(filled.folder), pytest.raises(ConfigError, match="is being trained in"):
        pack(filled.folder)
    assert not (filled.folder / PACKED).exists()
