"""Ceilings that only fall: of style, and of the functions that a batch walks through.

Where a change makes a count smaller, its ceiling in ``style_ceilings.json`` follows in the same
commit; a ceiling is not raised. ``docs/style.md`` says what the counts are for.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from style_counts import CEILINGS_FILE, above_ceilings, style_counts

ROOT = Path(__file__).parents[1]
CEILINGS = json.loads(CEILINGS_FILE.read_text(encoding="utf-8"))
SLACK = 1.05  # a count far below its ceiling asks for a lower one


@pytest.fixture(scope="module")
def counts():
    return style_counts()


def test_no_count_is_above_its_ceiling(counts):
    assert above_ceilings(counts) == []


@pytest.mark.parametrize("name", [name for name in CEILINGS if name != "walks"])
def test_a_ceiling_follows_its_count(counts, name):
    assert CEILINGS[name] <= max(SLACK * counts[name], counts[name] + 1)


FIRST = '''"""Doc."""


def find(one):
    """What it is."""
    return one is None
'''
SECOND = """# why


def find():
    pass


def _inner():
    pass
"""


def test_counts_of_a_small_tree(tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "first.py").write_text(FIRST)
    (tmp_path / "lab" / "second.py").write_text(SECOND)
    assert style_counts(tmp_path) == {
        "code lines": 6,
        "code lines of the laboratory": 4,
        "vague names per 1,000 names": 1000,
        "private functions per 1,000 lines": pytest.approx(1000 / 6),
        "comparisons with None per 1,000 lines": pytest.approx(1000 / 6),
        "classes": 0,
        "docstrings that begin with What or How": 1,
        "public names defined in several modules": 1,
    }


@pytest.mark.slow
def test_walks_are_no_longer_than_their_ceilings():
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "walks.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    walks = json.loads(done.stdout)
    assert walks.keys() == CEILINGS["walks"].keys()
    for walk, ceilings in CEILINGS["walks"].items():
        for count, ceiling in ceilings.items():
            assert walks[walk][count] <= ceiling, f"{walk}: {count}"
