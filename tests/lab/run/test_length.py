"""When a run ends: by epochs, by cost, by the clock, at an error; and where it is tested."""

import itertools
from pathlib import Path
from types import SimpleNamespace

import pytest

from siftback.errors import ConfigError
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.length import Length
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import Evaluation, RunSummary
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Run, Settings

RUN = Run("traditional", 1.0, 0)
EPOCH = 320  # examples, ten batches of 32


def settings(**changes: object) -> Settings:
    quick = {"data": "digits", "model": "mlp", "width": 4, "device": "cpu", "batch_size": 32}
    return Settings(**(quick | {"train_limit": EPOCH} | changes))


def ran(folder: Path, strategy: str = "traditional", **changes: object) -> RunSummary:
    plan = Plan(settings(**changes), [strategy], [0.5], [0])
    return compare(plan, folder, Reporter()).runs[0]


def made(folder: Path) -> list[Evaluation]:
    (run,) = Comparison.read(folder).runs
    return Comparison.read(folder).evaluations(run)


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ({"epochs": 5.0}, Length("epochs", 5.0)),
        ({"budget": 2.0}, Length("cost", 2.0 * 3 * 100)),
        ({"cost_budget": 700.0}, Length("cost", 700.0)),
        ({"time_budget": 60.0}, Length("seconds", 60.0)),
        ({"epochs": 5.0, "time_budget": 60.0}, Length("epochs", 5.0, most_seconds=60.0)),
        ({"epochs": 5.0, "cost_budget": 700.0}, Length("epochs", 5.0, 700.0)),
        ({"budget": 2.0, "time_budget": 60.0}, Length("cost", 600.0, most_seconds=60.0)),
        ({"cost_budget": 700.0, "time_budget": 60.0}, Length("cost", 700.0, most_seconds=60.0)),
    ],
)
def test_the_first_of_epochs_cost_and_time_is_the_length(
    changes: dict[str, float], length: Length
) -> None:
    assert Length.of(RUN, settings(**changes), 100) == length


def test_a_matched_run_is_as_long_as_what_it_is_matched_to_cost() -> None:
    run = Run("matched", 0.5, 0, "sb", cost_budget=900.0)
    asked = settings(epochs=5.0, time_budget=60.0)
    assert Length.of(run, asked, 100) == Length("cost", 900.0, most_seconds=60.0)


def test_scores_made_before_count() -> None:
    scoring = (200.0, 8.0)
    asked = settings(cost_budget=700.0, time_budget=60.0)
    assert Length.of(RUN, asked, 100, *scoring) == Length("cost", 500.0, most_seconds=60.0)
    for changes, message in (
        ({"cost_budget": 200.0}, "budget of 200 forwards, and its scores cost 200"),
        ({"time_budget": 7.0}, "budget of 7 seconds, and its scores cost 8"),
    ):
        with pytest.raises(ConfigError, match=message):
            Length.of(RUN, settings(**changes), 100, *scoring)


def test_a_cost_budget_alone_is_the_length(tmp_path: Path) -> None:
    run = ran(tmp_path, cost_budget=3.0 * EPOCH * 2)
    assert (run.epochs, run.steps, run.cost_forward_units) == (2.0, 20, 3 * EPOCH * 2)
    assert len(made(tmp_path)) == 10


def test_a_cost_budget_beside_epochs_ends_them_early(tmp_path: Path) -> None:
    run = ran(tmp_path, epochs=4.0, cost_budget=3.0 * 32 * 13)
    assert run.steps == 13
    assert [e.steps for e in made(tmp_path)] == [10, 13]


@pytest.fixture
def counted_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the clock of a run is a thousandth of a second after the one before."""
    readings = (number / 1000 for number in itertools.count())
    clock = SimpleNamespace(perf_counter=readings.__next__)
    monkeypatch.setattr("siftback.lab.length.time", clock)


@pytest.mark.usefixtures("counted_time")
@pytest.mark.parametrize("strategy", ["traditional", "sb-memory", "infobatch"])
def test_a_time_budget_ends_with_a_last_evaluation(tmp_path: Path, strategy: str) -> None:
    run = ran(tmp_path, strategy, time_budget=0.4)
    assert 0.4 <= run.seconds_train < 0.41
    assert len(Comparison.read(tmp_path).runs) == 1, "equal times need no match"
    assert made(tmp_path)[-1].steps == run.steps
    assert made(tmp_path)[-1].test_error == run.test_error_final
    assert run.seconds_train == made(tmp_path)[-1].seconds


@pytest.mark.usefixtures("counted_time")
def test_a_time_budget_beside_epochs_ends_them_early(tmp_path: Path) -> None:
    run = ran(tmp_path, epochs=100000.0, time_budget=0.3)
    assert 0.3 <= run.seconds_train < 0.31
    assert run.epochs < 100000


def test_rates_follow_the_time_where_it_is_the_length(tmp_path: Path) -> None:
    """A rate that falls to nothing leaves a training loss that moves no more; a cap does not."""
    length = Length.of(RUN, settings(time_budget=10.0), 100)
    assert length.done(99.0, 1e9, 2.5) == 0.25
    cap = Length.of(RUN, settings(epochs=4.0, time_budget=10.0), 100)
    assert cap.done(1.0, 1e9, 9.9) == 0.25
    assert not cap.is_over(1.0, 1e9, 9.9)
    assert cap.is_over(1.0, 1e9, 10.0)


def test_an_error_ends_training_where_it_is_first_measured(tmp_path: Path) -> None:
    whole = ran(tmp_path / "whole", epochs=6.0)
    errors = [e.test_error for e in made(tmp_path / "whole")]
    enough = sorted(errors)[2]
    at = next(number for number, error in enumerate(errors) if error <= enough)
    run = ran(tmp_path / "stopped", epochs=6.0, stop_at=enough)
    assert [e.test_error for e in made(tmp_path / "stopped")] == errors[: at + 1]
    assert run.test_error_final == errors[at]
    assert run.steps == 10 * (at + 1) < whole.steps


def test_tests_are_made_where_asked_besides(tmp_path: Path) -> None:
    plain = ran(tmp_path / "plain", epochs=2.0)
    run = ran(tmp_path / "more", epochs=2.0, evaluate_at=(0.01, 0.3, 0.31, 0.5))
    # Of 20 steps: after the first that is at least there, and once where two points meet.
    assert [e.steps for e in made(tmp_path / "more")] == [1, 6, 7, 10, 20]
    assert run.test_error_final == plain.test_error_final


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "give one of them, epochs, budget, cost_budget, time_budget"),
        ({"budget": 1.0, "cost_budget": 5.0}, "budget=1.0 and cost_budget=5.0"),
        ({"time_budget": 0.0}, "time_budget=0.0: give a number"),
        ({"cost_budget": -1.0}, "cost_budget=-1.0: give a number"),
        ({"epochs": 1.0, "evaluate_at": (0.5, 1.0)}, r"evaluate_at=1.0: give a number in \(0, 1\)"),
        ({"epochs": 1.0, "stop_at": 100.0}, "stop_at=100.0"),
        ({"epochs": 1.0, "ema": 1.0}, "ema=1.0"),
        ({"epochs": 1.0, "clip": 0.0}, "clip=0.0"),
        ({"epochs": 1.0, "label_smoothing": 1.0}, "label_smoothing=1.0"),
        ({"epochs": 1.0, "mixup": -0.1}, "mixup=-0.1"),
    ],
)
def test_bad_settings_say_so_at_once(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**changes)
