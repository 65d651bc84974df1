"""Checkpoints on disk: the last ones, whole, whatever became of the process that wrote them."""

import hashlib
import io
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from siftback.errors import StateError
from siftback.lab.records.folder import atomic_write
from siftback.lab.run.checkpoints import CheckpointPolicy, Checkpoints

STATE = {"weights": torch.arange(4.0), "seconds": 1.5, "parts": [("a", None), {"b": True}]}


def saved(folder: Path, *steps: int, keep: int = 2) -> Checkpoints:
    checkpoints = Checkpoints(folder, CheckpointPolicy(share=0.5, keep=keep))
    for step in steps:
        checkpoints.save(STATE | {"step": step}, step)
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    found = saved(tmp_path, 3).latest()
    assert found is not None
    assert found["weights"].equal(STATE["weights"])
    assert {k: v for k, v in found.items() if k != "weights"} == {
        "seconds": 1.5, "parts": [("a", None), {"b": True}], "step": 3,
    }  # fmt: skip


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_last_are_kept(tmp_path: Path, keep: int) -> None:
    saved(tmp_path, 1, 20, 300, 4000, keep=keep)
    expected = ["000000001.pt", "000000020.pt", "000000300.pt", "000004000.pt"]
    assert names(tmp_path) == expected[-keep:]


def test_one_that_is_damaged_gives_way_to_the_one_before(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    newest = tmp_path / "000000002.pt"
    newest.write_bytes(newest.read_bytes()[:-200])
    assert checkpoints.latest()["step"] == 1  # type: ignore[index]
    assert checkpoints.damaged == [newest]
    (tmp_path / "000000001.pt").write_bytes(b"")
    with pytest.raises(StateError, match=r"2.pt and .*1.pt: damaged.*begin the run again"):
        checkpoints.latest()


def test_a_flipped_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    newest = tmp_path / "000000002.pt"
    whole = newest.read_bytes()
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        newest.write_bytes(flipped)
        assert checkpoints.latest()["step"] == 1, place  # type: ignore[index]
    newest.write_bytes(whole)
    assert checkpoints.latest()["step"] == 2  # type: ignore[index]
    assert not checkpoints.damaged


def test_one_of_another_version_is_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    torch.save({"version": 99, "state": {}}, content)
    checksum = hashlib.sha256(content.getvalue()).digest()
    (tmp_path / "000000001.pt").write_bytes(content.getvalue() + checksum)
    with pytest.raises(StateError, match=r"1.pt is a checkpoint of version 99.*remove"):
        Checkpoints(tmp_path, CheckpointPolicy()).latest()


class Foreign:
    """Leaves a file behind if it is unpickled as ``pickle`` would."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.red
def test_no_code_of_a_foreign_file_runs(tmp_path: Path, count: Callable[[str], None]) -> None:
    trace, content = tmp_path / "ran", io.BytesIO()
    torch.save({"version": 1, "state": Foreign(trace)}, content)
    checksum = hashlib.sha256(content.getvalue()).digest()
    (tmp_path / "000000001.pt").write_bytes(content.getvalue() + checksum)
    with pytest.raises(StateError, match=r"1.pt holds more than tensors, numbers, strings and"):
        Checkpoints(tmp_path, CheckpointPolicy()).latest()
    assert not trace.exists()
    count("1 pickle of a foreign file was not run")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_leaves_what_there_was_and_is_told_with_the_file(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    (tmp_path / "000000003.pt.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left.*000000003.pt'"):
        checkpoints.save(STATE, 3)
    assert names(tmp_path) == ["000000001.pt", "000000002.pt"]
    assert checkpoints.latest()["step"] == 2  # type: ignore[index]


def test_nothing_saved_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none", CheckpointPolicy())
    assert checkpoints.latest() is None
    checkpoints.clear()


def test_clearing_takes_half_written_ones_too(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path / "run", 1, 2)
    (tmp_path / "run" / "000000003.pt.tmp").write_bytes(b"half")
    assert checkpoints.latest()["step"] == 2  # type: ignore[index]
    checkpoints.clear()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("often", "at"),
    [
        (CheckpointPolicy(share=0.25), [3, 5, 8, 10]),
        (CheckpointPolicy(share=1.0), [10]),
        (CheckpointPolicy(seconds=math.inf), []),
        (CheckpointPolicy(seconds=0.0), list(range(1, 11))),
    ],
)
def test_how_often(tmp_path: Path, often: CheckpointPolicy, at: list[int]) -> None:
    if often.share < math.inf:
        often = CheckpointPolicy(often.share, math.inf)
    checkpoints = Checkpoints(tmp_path, often)
    assert [step for step in range(1, 11) if checkpoints.due(step / 10)] == at


def test_shares_go_on_from_what_was_saved(tmp_path: Path) -> None:
    first = Checkpoints(tmp_path, CheckpointPolicy(0.25, math.inf))
    assert first.due(0.3)
    first.save(STATE, 3)
    again = Checkpoints(tmp_path, CheckpointPolicy(0.25, math.inf))
    again.latest()
    assert not again.due(0.4)
    assert again.due(0.5)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file"
    with atomic_write(path) as temporary:
        temporary.write_text("first")
    with pytest.raises(UnicodeEncodeError), atomic_write(path) as temporary:
        temporary.write_text("sec\ud800", encoding="utf-8")
    assert path.read_text() == "first"
    with atomic_write(path) as temporary:  # whatever was left there
        temporary.write_text("third")
    assert path.read_text() == "third"
    assert names(path.parent) == ["file"]
