"""The progress that a user sees while a comparison runs."""

import math
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from siftback.lab.records.run_summary import Evaluation, RunSummary
from siftback.lab.run import progress
from siftback.lab.run.progress import ConsoleReporter
from siftback.lab.settings import Run

RUN = Run("sb", keep=0.5, seed=3)
LINE = "[1/2] SelectiveLoader(..., keep=0.5), seed 3"
EVALUATION = Evaluation(1.0, 100, 10, 2.0, 300.0, 0.5, 0.6, test_error=12.5)
SUMMARY = RunSummary(
    strategy="sb", matched_to=None, seed=3, data="digits", model="cnn-8", keep_asked=0.5,
    keep_measured=0.5, epochs=1.0, steps=10, examples_forwarded=100, examples_backpropped=100,
    seconds_train=2.0, seconds_selection=1.0, cost_forward_units=3e5, test_error_final=12.5,
    test_error_best=12.5, record="records/sb.jsonl",
)  # fmt: skip


def shown(terminal: bool) -> str:
    text = StringIO()
    with ConsoleReporter(Console(file=text, force_terminal=terminal, width=100)) as reporter:
        reporter.start(RUN, 1, 2)
        reporter.update(0.5)
        reporter.evaluation(EVALUATION)
        reporter.finish(SUMMARY)
    return text.getvalue()


def scored(terminal: bool) -> str:
    text = StringIO()
    with ConsoleReporter(Console(file=text, force_terminal=terminal, width=100)) as reporter:
        reporter.start(RUN, 1, 2)
        reporter.scoring(0.25)
        reporter.scoring(0.5)
        reporter.update(0.5)
        reporter.finish(SUMMARY)
    return text.getvalue()


def test_long_comparisons_say_how_long_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    # Made, begun, gone on with, tested, asked twice whether to say so, ended.
    now = iter([0.0, 0.0, 0.0, 30.0, 30.0, 30.0, 240.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now, 240.0))
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 20)
    text = StringIO()
    with ConsoleReporter(Console(file=text, width=100)) as reporter:
        reporter.start(RUN, 2, 5)
        reporter.update(0.5)  # it goes on from a checkpoint
        reporter.update(0.6)
        reporter.evaluation(EVALUATION)
        reporter.finish(replace(SUMMARY, seconds_train=200.0))
    tested, ended = text.getvalue().splitlines()
    assert tested.endswith("loss 0.600; about 2.0 min left")
    assert ended.endswith("3.3 min, 300 k forwards; about 12.0 min left for 3 more")


def test_a_loss_that_is_not_finite_is_named() -> None:
    text = StringIO()
    with ConsoleReporter(Console(file=text, width=100)) as reporter:
        reporter.start(RUN, 1, 1)
        reporter.finish(replace(SUMMARY, test_loss_final=math.nan))
    assert "test error 12.50 %, loss not finite, 2.0 s, 300 k forwards" in text.getvalue()


def test_scoring_has_a_bar_of_its_own_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    shown_first, _, then = scored(terminal=True).rpartition("scoring")
    assert f"{LINE} " in shown_first
    assert f"{LINE}: test error" in then
    alone = f"{LINE}: test error 12.50 %, 2.0 s, 300 k forwards"
    assert scored(terminal=False).splitlines() == [alone]
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1)
    lines = scored(terminal=False).splitlines()
    assert lines[:2] == [f"{LINE} scoring {share}" for share in ("25%", "50%")]


def test_a_score_alone_has_a_bar_too() -> None:
    text = StringIO()
    with ConsoleReporter(Console(file=text, force_terminal=True, width=60)) as reporter:
        reporter.scoring(1.0)
    assert "scoring" in text.getvalue()
    assert "100%" in text.getvalue()


def test_a_terminal_gets_a_bar_and_a_line_a_run() -> None:
    text = shown(terminal=True)
    assert "━" in text
    assert f"{LINE}: test error 12.50 %, 2.0 s, 300 k forwards" in text


def test_elsewhere_there_are_plain_lines_and_not_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = shown(terminal=False)
    assert quick == f"{LINE}: test error 12.50 %, 2.0 s, 300 k forwards\n"
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1)
    slow = shown(terminal=False).splitlines()
    assert slow[0] == f"{LINE} epoch 1.00: test error 12.50 %, loss 0.600"
    assert len(slow) == 2
