"""A checkout is small: the repository holds the records that claims rest on, and little else."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MOST = 12 * 2**20  # bytes: the 12 MB of `du`
BLOCK = 4096  # a file takes whole blocks of a disk
BUILT = {".png", ".svg", ".html"}


@pytest.fixture(scope="module")
def tracked():
    """The files that git tracks here."""
    try:
        asked = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git repository, or there is no git")
    found = [ROOT / name for name in asked.stdout.split("\0") if name]
    return [path for path in found if path.is_file()]


def test_a_checkout_has_at_most_12_mb(tracked):
    sizes = [path.stat().st_size for path in tracked]
    assert sum(-(-size // BLOCK) * BLOCK for size in sizes) <= MOST


def test_records_are_packed(tracked):
    own = [path for path in tracked if path.parent.name == "records" and "results" in path.parts]
    assert own == [], "siftback pack results"


def test_pictures_and_pages_are_built_and_not_tracked_but_for_what_pages_show(tracked):
    built = [path.relative_to(ROOT).as_posix() for path in tracked if path.suffix in BUILT]
    assert built == ["docs/logged_statistics.png", "docs/map.svg", "docs/saved.svg"]
