"""Records are read back as written, and torn ones do no harm."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from siftback.errors import StateError
from siftback.lab.figures.reading import read
from siftback.lab.records.comparison_record import Comparison, RecordWriter, parse_evaluations
from siftback.lab.records.run_summary import RunSummary

POINTS = [(1.5, 4, 150.0, 50.0), (3.25, 8, 300.0, 20.5)]


def test_a_comparison_comes_back(comparison, add_run):
    add_run("traditional", 0, POINTS)
    add_run("matched", 1, POINTS, keep=1 / 3, matched_to="sb")
    assert Comparison.read(comparison.folder) == comparison
    assert not list(comparison.folder.glob("*.tmp"))


def test_evaluations_come_back(comparison, add_run):
    evaluations = comparison.evaluations(add_run("sb", 0, POINTS))
    found = [(one.seconds, one.steps, one.cost, one.test_error) for one in evaluations]
    assert found == POINTS
    assert [one.epoch for one in evaluations] == [1, 2]


def test_a_record_is_readable_while_the_run_goes_on(comparison, add_run, tmp_path):
    evaluation = comparison.evaluations(add_run("sb", 0, POINTS))[0]
    path = tmp_path / "records" / "going.jsonl"
    writer = RecordWriter(path, {"strategy": "sb"})
    assert list(parse_evaluations(path.read_text().splitlines())) == []
    writer.evaluation(evaluation)
    assert list(parse_evaluations(path.read_text().splitlines())) == [evaluation]
    writer.close()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_record_is_cut_back_and_gone_on_with(comparison, add_run, tmp_path, elsewhere):
    made = comparison.evaluations(add_run("sb", 0, POINTS))
    path = tmp_path / "going.jsonl"
    here = {"torch": "2", "date": "monday", "arguments": {"epochs": 2}}
    writer = RecordWriter(path, {"strategy": "sb", "environment": here})
    writer.evaluation(made[0])
    mark = writer.mark()
    assert mark["bytes"] == path.stat().st_size
    writer.evaluation(made[1])
    writer.close()
    with path.open("a") as file:
        file.write('{"kind": "evalu')  # as a process that was killed may leave it

    now = here | {"date": "friday", "torch": "3" if elsewhere else "2"}
    writer = RecordWriter(path, {"strategy": "sb", "environment": now}, mark)
    assert writer.evaluations == made[:1]
    later = replace(made[1], steps=99)
    writer.evaluation(later)
    assert writer.evaluations == [made[0], later]
    writer.close()
    assert list(parse_evaluations(path.read_text().splitlines())) == [made[0], later]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = [line["kind"] for line in lines]
    assert kinds == ["run", "evaluation", *["resumed"] * elsewhere, "evaluation"]
    assert lines[0]["environment"]["date"] == "monday"
    if elsewhere:
        assert lines[2]["environment"] == now


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_text("{}"),
        lambda path: path.write_text(path.read_text()[:-1]),
        lambda path: path.write_text("[" + path.read_text()[1:]),
    ],
)
def test_a_record_that_has_changed_is_not_gone_on_with(tmp_path, damage):
    path = tmp_path / "going.jsonl"
    writer = RecordWriter(path, {"strategy": "sb"})
    mark = writer.mark()
    writer.close()
    damage(path)
    with pytest.raises(StateError, match=r"going.jsonl is not what it was .*remove going"):
        RecordWriter(path, {}, mark)


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_torn_last_line_ends_the_record(comparison, add_run, cut):
    run = add_run("sb", 0, POINTS)
    path = comparison.folder / run.record
    whole = path.read_text(encoding="utf-8")
    until_last_evaluation = "".join(whole.splitlines(keepends=True)[:-1])
    path.write_text(until_last_evaluation[: -1 - cut], encoding="utf-8")
    assert [one.test_error for one in comparison.evaluations(run)] == [50.0]


def test_fields_of_later_versions_are_left_aside(comparison, add_run):
    run = add_run("sb", 0, POINTS)
    path = comparison.folder / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    summary["runs"][0]["watts"] = 12
    path.write_text(json.dumps(summary), encoding="utf-8")
    assert Comparison.read(comparison.folder).runs == [run]


def test_a_missing_field_is_an_error():
    with pytest.raises(TypeError, match="strategy"):
        RunSummary.from_json({"seed": 0})


def rewritten(comparison, **fields):
    """The summary, with other fields of its last run."""
    path = comparison.folder / "summary.json"
    summary = json.loads(path.read_text(encoding="utf-8"))
    summary["runs"][-1] |= fields
    path.write_text(json.dumps(summary), encoding="utf-8")


@pytest.mark.parametrize(
    "record",
    [
        "../x",
        "../records/x.jsonl",
        "/etc/passwd",
        "records/../x",
        "records/a/b.jsonl",
        "records/x",
        "records\\\\x.jsonl",
        5,
        "",
    ],
)
def test_a_record_elsewhere_is_not_read(comparison, add_run, record):
    add_run("sb", 0, POINTS)
    rewritten(comparison, record=record)
    with pytest.raises(StateError, match=r"summary.json is damaged \(.*record is .*--resume"):
        Comparison.read(comparison.folder)
    comparisons, problems = read([comparison.folder])
    assert comparisons[0].runs == []
    assert "run 1 of 1 is damaged, and left out" in problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "5",
        "[]",
        "{}",
        '{"runs": [], "environment": 3}',
        '{"runs": 3, "environment": {}}',
        '{"environment": {}}',
        '{"runs": [{"seed": 0}], "environment": {}}',
        "\x00" * 900,
    ],
)
def test_a_damaged_summary_is_named_and_made_again_from_the_records(comparison, add_run, text):
    runs = [add_run("sb", seed, POINTS) for seed in (0, 1)]
    path = comparison.folder / "summary.json"
    for run in runs:  # as a comparison's own records say
        record = comparison.folder / run.record
        first, rest = record.read_text(encoding="utf-8").split("\n", 1)
        header = json.loads(first) | {"environment": comparison.environment}
        record.write_text(f"{json.dumps(header)}\n{rest}", encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    for reading in (Comparison.read, Comparison.recover):
        with pytest.raises(StateError, match=r"summary.json is damaged \(.*remove it"):
            reading(comparison.folder)
    path.unlink()
    assert Comparison.recover(comparison.folder) == comparison


def test_a_run_that_the_summary_could_not_take_is_found_by_its_record(comparison, add_run):
    first, second = (add_run("sb", seed, POINTS) for seed in (0, 1))
    comparison.runs.remove(second)
    comparison.write()
    stopped = comparison.folder / "records" / "stopped.jsonl"
    stopped.write_text((comparison.folder / first.record).read_text()[:-20], encoding="utf-8")
    found = Comparison.recover(comparison.folder)
    assert found is not None
    assert found.runs == [first, second]


def test_a_folder_without_runs_has_nothing_to_recover(tmp_path):
    assert Comparison.recover(tmp_path) is None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_with_the_file(comparison, add_run, tmp_path):
    run = add_run("sb", 0, POINTS)
    (comparison.folder / "summary.json.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left.*summary.json'"):
        comparison.write()
    assert Comparison.read(comparison.folder).runs == [run]
    (tmp_path / "full.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left.*full.jsonl'"):
        RecordWriter(tmp_path / "full.jsonl", {})


def test_runs_of_one_configuration_stand_together(comparison, add_run):
    for seed in (0, 1):
        add_run("sb", seed, POINTS, keep=0.5)
        add_run("traditional", seed, POINTS)
    seeds = {label: [run.seed for run in runs] for label, runs in comparison.by_label().items()}
    assert seeds == {"sb 0.5": [0, 1], "traditional": [0, 1]}


def test_a_folder_without_a_summary(tmp_path):
    with pytest.raises(FileNotFoundError):
        Comparison.read(tmp_path)
