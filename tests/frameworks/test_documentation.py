"""Each cell of the table of frameworks is backed by tests, which exist."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
TABLE = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
ROWS = re.findall(r"^\| (?!framework|---)(.+) \|$", TABLE, re.MULTILINE)
TESTS = {
    name
    for path in Path(__file__).parents[1].rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}


def test_every_framework_has_a_row():
    frameworks = [row.partition(" | ")[0] for row in ROWS]
    expected = ("Accelerate", "Hugging Face", "Keras", "Lightning", "plain")
    for name in expected:
        assert [name in framework for framework in frameworks].count(True) == 1, name
    assert len(frameworks) == len(expected)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.partition(" | ")[0])
def test_each_cell_names_tests_that_exist(row):
    cells = row.split(" | ")
    assert len(cells) == 5
    for cell in cells[1:]:
        named = re.findall(r"`(test_\w+)`", cell)
        assert named, cell
        assert not set(named) - TESTS
