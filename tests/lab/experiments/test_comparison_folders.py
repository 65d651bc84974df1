"""A comparison's folder when something goes wrong: nothing is lost, and nothing is silent."""

import functools
import os
import shutil
import time
from pathlib import Path

import pytest
import torch

import runs_to_kill
from command_line import Call, start
from runs_to_kill import compare_and_keep, told
from siftback.errors import ConfigError, StateError
from siftback.lab.experiments.comparison import Plan, compare, is_finished
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import LOCK, is_locked, locked, pack, record_names
from siftback.lab.run.checkpoints import CHECKPOINTS
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Run

QUICK = ("--data", "digits", "--width", "4", "--epochs", "1", "--device", "cpu", "--warmup", "0")
QUICK += ("--train-limit", "320", "--batch-size", "32", "--model", "mlp")
settings = functools.partial(runs_to_kill.settings, model="mlp", width=16)

needs_locks = pytest.mark.skipif(os.name == "nt", reason="needs locks of files")
needs_full = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is always full"
)


class StoppedError(Exception):
    """As Ctrl-C would."""


class Watching(Reporter):
    """Keeps what begins and what is noted; stops at a share of the first run."""

    def __init__(self, stop_at: float = 2.0) -> None:
        self.begun: list[str] = []
        self.noted: list[str] = []
        self._stop_at = stop_at

    def start(self, run: Run, number: int, of: int) -> None:
        """See `Reporter`."""
        self.begun.append(run.name)

    def note(self, text: str) -> None:
        """See `Reporter`."""
        self.noted.append(text)

    def update(self, done: float) -> None:
        """See `Reporter`."""
        if done >= self._stop_at:
            raise StoppedError


class FillsDisk(Reporter):
    """Has a file's next writing find the disk full, once a run is done."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def update(self, done: float) -> None:
        """See `Reporter`."""
        if done >= 1:
            self._path.with_name(self._path.name + ".tmp").symlink_to("/dev/full")


def test_what_is_added_takes_its_place_in_the_plan(call: Call, tmp_path: Path) -> None:
    compare = ("compare", *QUICK, "--no-matched", "--out", str(tmp_path / "c"))
    assert call(*compare, "--strategies", "random,sb", "--seed", "1")[0] == 0
    more = ("--strategies", "traditional,sb", "--seed", "0,1", "--resume")
    assert call(*compare, *more)[0] == 0
    ran = [(run.strategy, run.seed) for run in Comparison.read(tmp_path / "c").runs]
    here = [("traditional", 0), ("sb", 0), ("traditional", 1), ("sb", 1)]
    assert ran == [*here, ("random", 1)]


def test_shares_that_would_be_one_row_are_not_added(call: Call, tmp_path: Path) -> None:
    compare = ("compare", *QUICK, "--no-matched", "--strategies", "random", "--out", tmp_path)
    assert call(*compare, "--keep", "0.33", "--seed", "0")[0] == 0
    for seed in ("0", "1"):
        code, _, error = call(*compare, "--keep", "1/3", "--seed", seed, "--resume")
        assert (code, "keep of random 0.33 was '0.33', is '0.3333'" in error) == (2, True)
    assert call(*compare, "--keep", "0.33,0.5", "--seed", "0", "--resume")[0] == 0


def test_examples_that_became_others_are_not_gone_on_with(call: Call, tmp_path: Path) -> None:
    table, rows = tmp_path / "a.csv", [f"{x / 7},{x % 2}" for x in range(200)]
    compare = ("compare", *QUICK[4:10], "--data", f"table:{table}", "--model", "tabular-mlp")
    compare += ("--strategies", "traditional", "--seed", "0", "--out", tmp_path / "c")
    table.write_text("\n".join(["x,label", *rows]))
    assert call(*compare)[0] == 0
    assert call(*compare, "--resume")[0] == 0
    for others in (rows[1:], rows[::-1]):
        table.write_text("\n".join(["x,label", *others]))
        code, _, error = call(*compare, "--resume")
        assert (code, "examples was '160 and 40 of crc32" in error) == (2, True)
    table.write_text("\n".join(["y,x,label", *(f"{y % 9},{row}" for y, row in enumerate(rows))]))
    code, _, error = call(*compare, "--resume")  # the same labels, and another column
    assert (code, "examples was '160 and 40 of crc32" in error) == (2, True)


@needs_locks
@pytest.mark.slow
@pytest.mark.distributed
def test_a_second_process_is_refused_and_a_killed_one_blocks_nothing(
    call: Call, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    compare = ("compare", *QUICK, "--strategies", "traditional,sb", "--no-matched")
    compare += ("--out", str(out))
    first = start(tmp_path, *compare, "--seed", ",".join(map(str, range(500))))
    while not (out / "records" / "sb-keep0.33-seed0.jsonl").exists():
        assert first.is_alive(), "it ended before it could be disturbed"
        time.sleep(0.05)
    for more in ("--resume", "--overwrite"):
        status, _, err = call(*compare, more)
        assert status == 2
        assert f"another process is at work in {out}: wait until it has ended, or give" in err
    assert first.is_alive(), "it was not disturbed"
    first.kill()
    first.join()
    assert (out / LOCK).exists()
    for _ in range(100):  # a git that it has just forked holds the lock until it is executed
        if not is_locked(out):
            break
        time.sleep(0.05)
    assert not is_locked(out)
    assert call(*compare, "--resume")[0] == 0
    comparison = Comparison.read(out)
    assert {run.strategy for run in comparison.runs} == {"traditional", "sb"}
    assert all(len(comparison.evaluations(run)) == 1 for run in comparison.runs)


@needs_locks
def test_a_locked_folder_is_left_as_it_is(tmp_path: Path) -> None:
    plan = Plan(settings(epochs=1.0), ["traditional"], [0.5], [0], matched=False)
    with locked(tmp_path) as is_ours:
        assert is_ours
        assert is_locked(tmp_path)
        with pytest.raises(ConfigError, match="another process is at work in"):
            compare(plan, tmp_path, Reporter(), "overwrite")
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    assert not is_locked(tmp_path)
    compare(plan, tmp_path, Reporter())


def test_what_no_comparison_wrote_is_not_overwritten(call: Call, tmp_path: Path) -> None:
    theirs = [tmp_path / "own" / name / "model.pt" for name in ("checkpoints", "scores", "records")]
    for path in theirs:
        path.parent.mkdir(parents=True)
        path.write_text("of another project")
    options = ("--strategies", "traditional", "--seed", "0", "--out", str(tmp_path / "own"))
    assert call("compare", *QUICK, *options, "--overwrite")[0] == 0
    assert all(path.read_text() == "of another project" for path in theirs)


def test_what_is_overwritten_leaves_no_record(tmp_path: Path) -> None:
    for seed in (0, 1):
        plan = Plan(settings(epochs=1.0), ["traditional"], [0.5], [seed], matched=False)
        compare(plan, tmp_path, Reporter(), "overwrite")
        assert record_names(tmp_path) == [f"records/traditional-seed{seed}.jsonl"]
        pack(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the files of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    compare_and_keep(folder, settings(), ["sb"], 1.0, Reporter())
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the files of a run that was stopped between two checkpoints."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(StoppedError):
        compare_and_keep(folder, settings(), ["sb"], 0.1, Watching(0.65))
    return folder


def flip(path: Path, share: float) -> None:
    """Flips a bit at this share of a file."""
    content = bytearray(path.read_bytes())
    content[int(share * len(content))] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.5, 0.7, 0.999])
def test_a_flipped_byte_of_a_checkpoint_has_the_run_go_on_from_the_one_before(
    tmp_path: Path, whole: Path, stopped: Path, share: float
) -> None:
    folder = shutil.copytree(stopped, tmp_path / "c")
    before, newest = sorted(folder.glob(f"{CHECKPOINTS}/*/*.pt"))
    flip(newest, share)
    reporter = Watching()
    compare_and_keep(folder, settings(), ["sb"], 0.1, reporter)
    assert told(folder) == told(whole)
    assert reporter.noted == [
        f"{newest} is damaged, and left aside: the run goes on from the one before"
    ]
    assert not before.exists()


def test_checkpoints_that_are_all_damaged_are_named(tmp_path: Path, stopped: Path) -> None:
    folder = shutil.copytree(stopped, tmp_path / "c")
    paths = sorted(folder.glob(f"{CHECKPOINTS}/*/*.pt"))
    for path in paths:
        flip(path, 0.5)
    with pytest.raises(StateError, match="begin the run again") as raised:
        compare_and_keep(folder, settings(), ["sb"], 0.1, Reporter())
    assert all(str(path) in str(raised.value) for path in paths)
    shutil.rmtree(paths[0].parent)  # as it says
    compare_and_keep(folder, settings(), ["sb"], 0.1, Reporter())


def test_a_flipped_byte_of_a_record_is_named(tmp_path: Path, stopped: Path) -> None:
    folder = shutil.copytree(stopped, tmp_path / "c")
    (record,) = folder.glob("records/*.jsonl")
    flip(record, 0.9)
    with pytest.raises(StateError, match=r"sb-keep0.5-seed0.jsonl is not what it was"):
        compare_and_keep(folder, settings(), ["sb"], 0.1, Reporter())


def test_a_summary_that_is_gone_is_made_again_without_training(tmp_path: Path, whole: Path) -> None:
    folder = shutil.copytree(whole, tmp_path / "c")
    (folder / "summary.json").unlink()
    with pytest.raises(ConfigError, match="holds a comparison already"):
        compare(Plan(settings(), ["sb"], [0.5], [0], matched=False), folder, Reporter())
    with pytest.raises(ConfigError, match=r"lr was 0\.05, is 0\.1"):
        compare_and_keep(folder, settings(lr=0.1), ["sb"], 1.0, Reporter())
    reporter = Watching()
    compare_and_keep(folder, settings(), ["sb"], 1.0, reporter)
    assert not reporter.begun
    assert told(folder) == told(whole)


def test_a_packed_comparison_is_refused_or_gone_on_with_without_training(
    tmp_path: Path, whole: Path
) -> None:
    folder = shutil.copytree(whole, tmp_path / "c")
    before = Comparison.read(folder)
    assert pack(folder) == (2, [])
    plan = Plan(settings(), ["sb"], [0.5], [0], matched=False)
    assert is_finished(plan, folder)
    with pytest.raises(ConfigError, match="holds a comparison already"):
        compare(plan, folder, Reporter())
    reporter = Watching()
    compare(plan, folder, reporter, "resume")
    assert not reporter.begun
    assert Comparison.read(folder) == before
    assert (folder / "summary.json").exists()
    assert pack(folder) == (1, [])
    assert Comparison.read(folder) == before


@needs_full
def test_a_run_whose_end_the_summary_could_not_take_is_not_run_again(
    tmp_path: Path, whole: Path
) -> None:
    folder = tmp_path / "c"
    with pytest.raises(OSError, match=r"No space left.*summary.json'"):
        compare_and_keep(folder, settings(), ["sb"], 0.9, FillsDisk(folder / "summary.json"))
    assert Comparison.read(folder).runs == []
    reporter = Watching()
    compare_and_keep(folder, settings(), ["sb"], 0.9, reporter)
    assert not reporter.begun
    assert told(folder) == told(whole)


@needs_full
def test_a_full_disk_is_a_sentence_and_the_run_goes_on_when_there_is_room(
    call: Call, tmp_path: Path
) -> None:
    train = ("train", *QUICK, "--strategy", "sb", "--keep", "0.5", "--checkpoint-every", "0.2")
    assert call(*train, "--out", tmp_path / "whole")[0] == 0
    kept = torch.load(tmp_path / "whole" / "weights.pt", weights_only=True)
    checkpoint = f"{CHECKPOINTS}/sb-keep0.5-seed0/000000002.pt.tmp"
    for number, file in enumerate(("summary.json.tmp", checkpoint, "weights.pt.tmp")):
        out = tmp_path / f"c{number}"
        full = out / file
        full.parent.mkdir(parents=True)
        full.symlink_to("/dev/full")
        status, _, err = call(*train, "--out", out)
        assert status == 2
        assert f"error: {str(full).removesuffix('.tmp')}: No space left on device" in err
        assert "Traceback" not in err
        full.unlink(missing_ok=True)
        assert call(*train, "--out", out, "--resume")[0] == 0
        same = torch.load(out / "weights.pt", weights_only=True)
        assert all(kept[name].equal(same[name]) for name in kept)
        (run,) = Comparison.read(out).runs
        assert run.strategy == "sb"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that is read-only")
@pytest.mark.parametrize(
    "command",
    [
        ("compare", *QUICK, "--out"),
        ("train", *QUICK, "--out"),
        ("sweep", *QUICK, "--grid", "lr=0.1", "--out"),
        ("score", "--width", "4", "--out"),
    ],
    ids=lambda command: command[0],
)
def test_a_read_only_folder_is_a_sentence_before_training(
    call: Call, command: tuple[str, ...]
) -> None:
    status, _, err = call(*command, "/proc/self/results")
    assert status == 2
    assert "error: /proc/self/results" in err
    assert "Traceback" not in err
