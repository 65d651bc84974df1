"""Damaged folders and hostile names: reported on, and escaped."""

import random
import shutil

import pytest

from siftback.lab.figures.analyses import analyse
from siftback.lab.figures.reading import read
from siftback.lab.report.page import render_page

pytestmark = pytest.mark.red

INJECTIONS = [
    "<script>alert(1)</script>",
    "</script><script>alert(1)//",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "<!--<script>",
    "]]><b>",
    "&lt;b&gt;<b>",
    "javascript:alert(1)",
    "<style>*{display:none}</style>",
    "\u2028</title><h1>",
    "<a href=//evil.example>",
    "{{7*7}}<iframe>",
]


def page_of(folder):
    comparisons, problems = read([folder])
    analyses = analyse(comparisons, ("table1", "budget", "fig7", "fig1"))
    return render_page(comparisons, problems, list(analyses.values()), {})


def test_no_name_becomes_markup(comparison, add_run, count):
    add_run("traditional", 0, [(10, 1, 100, 40)])
    for place, name in enumerate(INJECTIONS):
        add_run(name, 0, [(10, 1, 100, 40 - place)], keep=0.5)
    page = page_of(comparison.folder.parent)
    kept = [name for name in INJECTIONS if "<" in name or '"' in name]
    assert not [name for name in kept if name in page]
    assert "alert(1)" in page  # they are shown
    for begun in (
        "<script>alert",
        "<img src=x",
        "<svg onload",
        "<iframe",
        "<a href=//evil",
        "<h1>\u2028",
    ):
        assert begun not in page
    count(f"{len(INJECTIONS)} injections shown as text")


def spoil(path, chance):
    """Damages a file: it is gone, cut off, has a byte flipped, or holds something else."""
    content = bytearray(path.read_bytes())
    place = chance.randrange(len(content))
    kind = chance.choice(["gone", "cut", "flipped", "flipped", "other", "empty"])
    if kind == "gone":
        path.unlink()
        return
    if kind == "flipped":
        content[place] ^= 1 << chance.randrange(8)
    others = {"cut": content[:place], "other": b"[1, {}]\n\xff", "empty": b""}
    path.write_bytes(others.get(kind, content))


def test_damaged_folders_are_reported_on(comparison, add_run, tmp_path, asked, count):
    for seed in (0, 1):
        add_run("traditional", seed, [(10, 1, 100, 40), (20, 2, 200, 10 + seed)])
        add_run("sb", seed, [(6, 1, 50, 30), (12, 2, 100, 12 + seed)], keep=0.5)
    chance, folders = random.Random(0), asked("folders")
    for number in range(folders):
        spoilt = tmp_path / f"spoilt-{number}" / "abacus"
        shutil.copytree(comparison.folder, spoilt)
        shutil.copytree(comparison.folder, spoilt.with_name("whole"))
        files = sorted(path for path in spoilt.rglob("*") if path.is_file())
        for path in chance.sample(files, chance.randint(1, 2)):
            spoil(path, chance)
        assert "<html" in page_of(spoilt.parent)
    count(f"{folders} damaged folders reported on")
