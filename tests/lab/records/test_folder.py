"""Records of runs packed into one file are read as they were."""

import gzip
import json

import pytest

from siftback.errors import ConfigError
from siftback.lab.figures import reading
from siftback.lab.records.comparison_record import Comparison, RecordWriter
from siftback.lab.records.folder import (
    LOCK,
    PACKED,
    locked,
    pack,
    record_lines,
    record_names,
)
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
    assert pack(filled.folder) == 4
    assert read_whole(filled.folder) == before
    assert record_names(filled.folder) == names
    assert {path.name for path in filled.folder.iterdir()} == {PACKED, "summary.json", LOCK}
    kept, problems = reading.read([filled.folder])
    assert (len(kept[0].runs), problems) == (4, [])


def test_runs_that_the_summary_lacks_are_found_in_the_packed_file(filled):
    pack(filled.folder)
    Comparison(filled.folder, filled.environment, []).write()
    found = Comparison.recover(filled.folder)
    assert {run.record for run in found.runs} == {run.record for run in filled.runs}


def test_packing_twice_changes_nothing_and_a_run_added_later_is_packed_with_the_others(filled):
    pack(filled.folder)
    packed = (filled.folder / PACKED).read_bytes()
    assert pack(filled.folder) == 0
    assert (filled.folder / PACKED).read_bytes() == packed
    add(filled, "traditional", POINTS, seed=2)
    assert len(record_names(filled.folder)) == 5
    assert pack(filled.folder) == 1
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
    assert pack(filled.folder) == 4
    assert path.exists()
    assert record_lines(filled.folder, "records/broken.jsonl") == [
        json.dumps({"kind": "run", "strategy": "sb"})
    ]


@pytest.mark.parametrize(("line", "what"), [(0, "missing"), (1, "damaged in line 2")])
def test_a_damaged_line_costs_its_own_run_alone(filled, line, what):
    pack(filled.folder)
    path = filled.folder / PACKED
    lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
    place = next(i for i, one in enumerate(lines) if b"sb-None-0.50-1" in one) + line
    lines[place] = lines[place][:40] + b"\n"
    path.write_bytes(gzip.compress(b"".join(lines)))
    kept, problems = reading.read([filled.folder])
    assert len(kept[0].runs) == 3
    named = f"{filled.folder.name}/records/sb-None-0.50-1.jsonl"
    assert problems == [f"{named} is {what}, and left out"]


@pytest.mark.parametrize("place", [0, 20, -20, -6, -1])
def test_a_damaged_packed_file_is_named_and_never_read_in_part(filled, place):
    pack(filled.folder)
    path = filled.folder / PACKED
    content = bytearray(path.read_bytes())
    content[place] ^= 0x10
    path.write_bytes(content)
    comparisons, problems = reading.read([filled.folder])
    assert [comparison.runs for comparison in comparisons] == [[]]
    assert sum("records.jsonl.gz is damaged" in problem for problem in problems) == 4
    add(filled, "traditional", POINTS, seed=2)
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
    assert pack(tmp_path) == 3
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
    path.write_bytes(gzip.compress(b"{" + gzip.decompress(path.read_bytes())[9:]))
    assert len(read_whole(filled.folder)) == 4


def test_a_folder_that_is_trained_in_is_refused(filled):
    with locked(filled.folder), pytest.raises(ConfigError, match="is being trained in"):
        pack(filled.folder)
    assert not (filled.folder / PACKED).exists()
