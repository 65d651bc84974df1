"""Every fenced Python block of the README and the docs runs."""

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_its_blocks_run_in_turn(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)  # where the compiler looks up names
    for block in FENCED.finditer(text):
        # Lines are numbered as in the page, so that a failure names the page's own line.
        padding = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(padding + block[1], page, "exec"), vars(module))


def test_every_fence_that_is_python_is_found():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(FENCED.findall(text)) == len(re.findall(r"```\s*(?:python|py)\b", text)), (
            page.name
        )
