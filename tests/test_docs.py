"""Every fenced Python block of the README and the docs runs."""

import pkgutil
import re
import runpy
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

import siftback
import siftback.contrib
from siftback.lab.strategies.table import STRATEGIES, call_of
from torchrun import run_by_ranks

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCED = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page):
    """Each Python block of a page, with line breaks before it that number its lines as there."""
    text = page.read_text(encoding="utf-8")
    for block in FENCED.finditer(text):
        yield "\n" * text.count("\n", 0, block.start(1)), block[1]


@pytest.mark.parametrize("page", PAGES[1:], ids=name_of)
def test_its_blocks_run_in_turn(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)  # where the compiler looks up names
    for padding, block in blocks(page):
        exec(compile(padding + block, page, "exec"), vars(module))


CALLS = """
def main(out):
    one_of_several()
    for _ in range(2):  # saves, and goes on from there
        saved_by_four_and_loaded_by_two(out / "saved")
"""


def test_the_functions_for_several_processes_run_in_them(tmp_path):
    page = ROOT / "docs" / "guides" / "processes.md"
    script = tmp_path / "page.py"
    script.write_text("\n".join(block for _, block in blocks(page)) + CALLS, encoding="utf-8")
    run_by_ranks(tmp_path, script.with_suffix(""), timeout=180)


def test_every_fence_that_is_python_is_found():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(FENCED.findall(text)) == len(re.findall(r"```\s*(?:python|py)\b", text)), (
            page.name
        )


def first_example():
    return FENCED.search((ROOT / "README.md").read_text(encoding="utf-8"))[1]


def test_the_first_example_s_loop_is_twelve_lines():
    loop = first_example().partition("\nloader = DataLoader(")[2].partition("\n\n")[0]
    assert len(loop.splitlines()) <= 12


def test_the_readme_s_blocks_run_as_a_file_to_the_exact_step_and_print_what_was_saved(
    tmp_path, capsys
):
    script = ""
    for padding, block in blocks(ROOT / "README.md"):
        script += padding[script.count("\n") :] + block
        if block == first_example():
            script += "assert schedule.last_epoch == loader.total_steps; ends = True\n"
    path = tmp_path / "example.py"
    path.write_text(script + "assert ends", encoding="utf-8")
    runpy.run_path(str(path), run_name="__main__")  # in this process, as imports are slow
    found = re.fullmatch(
        r"(\d+) passes over the data in 4 epochs, (\d+) examples not read\n",
        capsys.readouterr().out,
    )
    passes, unread = map(int, found.groups())
    assert 9 < passes < 14, "about twelve, as the README says"
    assert round(unread / 4096) in (passes - 5, passes - 4, passes - 3)


@pytest.mark.parametrize("sign", ["-", "+"], ids=["before", "after"])
def test_both_sides_of_the_change_run(sign, monkeypatch, capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    change = re.search(r"^```diff\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    loop = "\n".join(line[2:] for line in change.splitlines() if line[:1] in (sign, " ", ""))
    before = first_example().partition("loader = DataLoader(")[0].replace("4096", "1024")
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(f"{before}{loop}\nprint(epoch, schedule.last_epoch)", vars(module))
    assert capsys.readouterr().out == "3 32\n"


def test_the_badges_say_what_the_package_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {"python": project["requires-python"], "pytorch": project["dependencies"][0]}
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, requirement in needed.items():
        assert f"badge/{name}-{requirement.partition('>=')[2]}+-" in text
    assert f"badge/licence-{project['license']}-" in text
    assert f"badge/version-{siftback.__version__}-" in text
    least = re.search(r"--cov-fail-under=(\d+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert f"badge/coverage-{least[1]}%25+-" in text


def test_the_citation_is_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {siftback.__version__}\n" in citation
    bibtex = (ROOT / "README.md").read_text(encoding="utf-8").partition("```bibtex\n")[2]
    assert f"version = {{{siftback.__version__}}}" in bibtex


def test_the_readme_is_a_page_and_a_half():
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    assert sum(not set(word) <= set("|:-") for word in words) <= 1010


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_its_links_lead_to_files_and_headings(page):
    for target, anchor in re.findall(
        r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text("utf-8")
    ):
        linked = (page.parent / target) if target else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text("utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings}
            assert anchor in slugs, f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_names_of_the_package_in_its_text_are_found(page):
    for name in re.findall(r"`(siftback(?:\.\w+)+)", page.read_text(encoding="utf-8")):
        pkgutil.resolve_name(name)


def methods():
    """Of each strategy in the table of methods, the cells of its row."""
    lines = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8").splitlines()
    head, _, *rows = lines[lines.index(next(x for x in lines if x.startswith("| method"))) :]
    width = len(head.split("|"))
    for row in rows[: next(n for n, line in enumerate(rows) if not line)]:
        cells = [cell.strip() for cell in row.split("|")]
        assert len(cells) == width, row
        yield next(name for name in re.findall("`(.+?)`", cells[1]) if name in STRATEGIES), cells


def test_every_strategy_is_in_the_table_of_methods_with_its_cost():
    costs = {name: cells[7] for name, cells in methods()}
    assert costs == {name: str(strategy.cost) for name, strategy in STRATEGIES.items()}
    assert list(costs) == list(STRATEGIES)


def test_a_method_that_is_a_call_begins_with_it():
    for name, cells in methods():
        first = call_of(STRATEGIES[name]) or name
        assert cells[1].startswith(f"`{first}`")


def test_every_class_in_the_table_of_methods_is_public():
    for _, cells in methods():
        row = " ".join(cells)
        for name in re.findall("`([A-Z][A-Za-z0-9]+)`", row):
            assert name in siftback.__all__
        for name in re.findall(r"`contrib\.(\w+)`", row):
            assert name in siftback.contrib.__all__


def test_a_benchmark_of_a_standard_module_s_name_stands_in_nobody_s_way():
    folder = ROOT / "benchmarks"
    asked = f"import sys; sys.path.insert(0, {str(folder)!r}); import selectors, subprocess"
    done = subprocess.run(
        [sys.executable, "-c", f"{asked}; print(selectors.DefaultSelector)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Selector" in done.stdout
