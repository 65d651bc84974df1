"""Runs that are stopped and resumed leave what undisturbed ones leave, bit for bit."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from texts import write_verses

import runs_to_kill
from runs_to_kill import compare_and_keep, settings, told
from siftback import Epochs
from siftback.errors import StateError
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import RECORDS
from siftback.lab.run.checkpoints import CHECKPOINTS
from siftback.lab.run.progress import Reporter
from siftback.lab.strategies.table import STRATEGIES

EVERY = [name for name in STRATEGIES if name != "matched"]


# What is compiled for it, or another process, takes seconds each time.
SLOW_TO_START = ("sb-single-pass", "random-single-pass", "sb-pipelined")


class StoppedError(Exception):
    """As Ctrl-C would."""


class StopsAt(Reporter):
    """Stops a run once so much of it is done."""

    def __init__(self, share: float) -> None:
        self._share = share

    def update(self, done: float) -> None:
        """See `Reporter`."""
        if done >= self._share:
            raise StoppedError


def disturbed(folder: Path, asked: runs_to_kill.Settings, strategy: str) -> None:
    """A run that is stopped, mostly twice; checkpoints are at other steps."""
    for share in (0.63,) if strategy in SLOW_TO_START else (0.37, 0.81):
        with pytest.raises(StoppedError):
            compare_and_keep(folder, asked, [strategy], 0.03, StopsAt(share))
        assert list((folder / CHECKPOINTS).rglob("*.pt")), "there is something to go on from"
    compare_and_keep(folder, asked, [strategy], 0.03, Reporter())


@pytest.mark.usefixtures("forked_replicas")
@pytest.mark.parametrize("strategy", EVERY)
@pytest.mark.sampled(5)
def test_every_strategy_goes_on_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    model = "cnn" if strategy == "sb-small" else "mlp"  # which takes no smaller images
    asked = settings(stale_every=2, score_models=1, model=model)
    if "images" not in STRATEGIES[strategy].kinds:
        monkeypatch.setenv("SIFTBACK_CACHE", str(tmp_path / "cache"))
        data = f"text:{write_verses(tmp_path / 'verses.txt')}"
        of_text = {"data": data, "model": "gpt", "max_tokens": 16, "train_limit": 96}
        asked = replace(asked, **of_text)
    compare_and_keep(tmp_path / "whole", asked, [strategy], 1.0, Reporter())
    disturbed(tmp_path / "resumed", asked, strategy)
    assert told(tmp_path / "resumed") == told(tmp_path / "whole")
    assert not list((tmp_path / "resumed" / CHECKPOINTS).iterdir()), "no longer needed"


@pytest.mark.parametrize(
    "change",
    [
        {"ema": 0.9, "clip": 0.5, "label_smoothing": 0.1},
        {"mixup": 0.4, "channels_last": False},
        {"precision": "bf16", "evaluate_at": (0.01, 0.5)},
        {"model": "wrn-10-1-drop0.3", "train_limit": 160, "epochs": 4.0},  # of global chance
        {"epochs": None, "cost_budget": 3.0 * 4 * 320},
    ],
    ids=lambda change: "-".join(change),
)
def test_so_does_every_setting(tmp_path: Path, change: dict[str, object]) -> None:
    asked = settings(**{"epochs": 2.0} | change)
    compare_and_keep(tmp_path / "whole", asked, ["sb"], 1.0, Reporter())
    disturbed(tmp_path / "resumed", asked, "sb")
    assert told(tmp_path / "resumed") == told(tmp_path / "whole")


def test_a_run_stopped_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    compare_and_keep(tmp_path / "whole", settings(), ["sb"], 1.0, Reporter())
    with pytest.raises(StoppedError):
        compare_and_keep(tmp_path / "resumed", settings(), ["sb"], 0.9, StopsAt(0.6))
    assert not (tmp_path / "resumed" / CHECKPOINTS).exists()
    compare_and_keep(tmp_path / "resumed", settings(), ["sb"], 0.9, Reporter())
    assert told(tmp_path / "resumed") == told(tmp_path / "whole")


def test_a_record_that_lost_lines_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        compare_and_keep(tmp_path, settings(), ["sb"], 0.1, StopsAt(0.6))
    (record,) = (tmp_path / RECORDS).iterdir()
    record.write_text(record.read_text()[:-400])
    with pytest.raises(StateError, match=r"sb-keep0.5-seed0.jsonl is not what it was"):
        compare_and_keep(tmp_path, settings(), ["sb"], 0.1, Reporter())


def test_overwriting_forgets_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        compare_and_keep(tmp_path, settings(), ["sb"], 0.1, StopsAt(0.6))
    plan = Plan(settings(epochs=1.0, warmup=Epochs(0)), ["random"], [0.5], [0], matched=False)
    compare(plan, tmp_path, Reporter(), "overwrite")
    assert not list(tmp_path.rglob("*.pt"))


KILLED = ("traditional", "sb", "sb-single-pass", "sb-memory", "stale-sb", "infobatch",
          "kakurenbo", "sb-proxy")  # fmt: skip
EPOCHS, SHARE = 8.0, 0.03


@pytest.mark.red
@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_kills_change_nothing(
    tmp_path: Path,
    asked: Callable[[str], int],
    count: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills = asked("kills")
    strategies = KILLED if kills >= 2 * len(KILLED) else KILLED[:3]
    most = max(1, 17 * len(strategies) // kills)  # checkpoints before a kill, about half of all
    processes = multiprocessing.get_context("forkserver")  # imports once, then starts at once
    # Of Python 3.11 it has no other path, and fails to import without a word.
    monkeypatch.setenv("PYTHONPATH", str(Path(runs_to_kill.__file__).parent))
    processes.set_forkserver_preload(
        ["runs_to_kill", "siftback.single_pass.single_pass", "sklearn.datasets"]
    )
    chance = random.Random(0)

    def start(folder: Path) -> multiprocessing.process.BaseProcess:
        process = processes.Process(
            target=runs_to_kill.go, args=(folder, list(strategies), EPOCHS, SHARE)
        )
        process.start()
        return process

    def reached(folder: Path) -> set[str]:
        # Not by `Path.glob`, which fails where a folder goes while it is listed.
        walk = ((at, name) for at, _, names in os.walk(folder) for name in names)
        return {f"{at}/{name}" for at, name in walk if name.endswith(".pt")}

    folder = tmp_path / "killed"
    killed_in = set()
    for _ in range(kills):
        before = reached(folder)
        process = start(folder)
        news, enough = set[str](), chance.randint(most // 2 + 1, most)
        while len(news) < enough:
            assert process.is_alive(), "a run that cannot be killed as often is too short"
            time.sleep(0.002)
            news |= reached(folder) - before
        time.sleep(chance.uniform(0, 0.02))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, "it ended by itself"
        killed_in |= {path.name for path in (folder / CHECKPOINTS).glob("*")}
    process = start(folder)
    process.join()
    assert process.exitcode == 0
    assert len(killed_in) > 1, "kills met several strategies"
    assert [run.strategy for run in Comparison.read(folder).runs] == list(strategies)

    process = start(tmp_path / "whole")
    process.join()
    assert told(folder) == told(tmp_path / "whole")
    count(f"{kills} kills of a comparison of {len(strategies)} strategies resumed bit for bit")
