"""``siftback probe``, as a user calls it."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from siftback import cli
from siftback.lab.experiments.probe_run import probe_report, probe_settings
from siftback.lab.settings import Settings

QUICK = ("probe", "--data", "digits", "--width", "4", "--seconds", "0.1", "--device", "cpu")
FORECAST = ("--forecast", "--epochs", "4", "--batch-size", "32")


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["siftback", *arguments])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


def test_json_is_all_that_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *QUICK, *FORECAST, "--json", "--keep", "1/2,1/3") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["batch_size"] == 32
    cheap = ["sb-bf16", "sb-int8", "sb-small", "sb-proxy"]
    strategies = ["sb", *cheap, "stale-sb", "sb-memory", "random", "sb-single-pass"]
    assert [(row["strategy"], round(row["keep"], 2)) for row in found["rows"]] == [
        ("traditional", 1.0),
        *((strategy, keep) for strategy in strategies for keep in (0.5, 0.33)),
    ]
    assert found["failures"] == {}
    assert found["agreement"].keys() == {*cheap, "sb-single-pass"}
    assert found["advice"]["text"]
    assert 0 < found["forecast"]["low"] < found["forecast"]["ratio"] < found["forecast"]["high"]


def test_tables_say_the_same_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = torch.get_num_threads()
    assert call(monkeypatch, *QUICK, "--precision", "bf16", "--threads", str(before)) == 0
    printed = capsys.readouterr().out
    for said in (
        "cnn-4 on digits",
        "keep 0.33",
        "break-even",
        "scores of Fresh()",
        "compiling once",
    ):
        assert said in printed
    assert "Memory(keep=s)" in printed
    assert "sb-memory" not in printed
    assert "Reduced" not in printed  # the exact scores are of that type already
    first, *details = printed.splitlines()
    assert first.startswith(("Write Sel", "Write SinglePass(", "Selection does not pay here: "))
    assert first.endswith(".")  # in one line, though this terminal has 80 columns
    assert "compare with plain training cut to the same time" in " ".join(" ".join(details).split())


def test_a_reason_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    result = probe_settings(Settings("digits", "mlp", epochs=1.0, device="cpu"), [0.5], 0.1)
    failures = {"sb-int8": "ValueError: losses of [batch, 3]"}
    Console().print(probe_report(replace(result, failures=failures), "digits"))
    assert "losses of [batch, 3]" in capsys.readouterr().out


def test_a_forecast_is_in_the_first_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = (*QUICK, *FORECAST, "--model", "mlp")
    assert call(monkeypatch, *asked) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert " Memory() is expected to be worth " in first
    assert call(monkeypatch, *asked, "--train-limit", "500", "--json") == 0
    untold = json.loads(capsys.readouterr().out)["forecast"]
    assert untold["ratio"] is None
    assert "1,000 are needed" in untold["reason"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--keep", "1"), "give shares in [0.001, 1)"),
        (("--keep", "much"), "give numbers separated by commas"),
        (("--seconds", "0"), "give a number of seconds"),
        (("--threads", "0"), "give 1 to"),
        (("--model", "oracle"), "no model 'oracle'"),
    ],
)
def test_bad_options_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    said: str,
) -> None:
    quick = ("probe",) if options[0] in QUICK else QUICK
    assert call(monkeypatch, *quick, *options) == 2
    assert said in " ".join(capsys.readouterr().err.split())
