"""The site's build adds to the documentation's pages."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

from siftback.lab.recipes.recipe import find_recipe, recipe_names
from siftback.lab.strategies.table import STRATEGIES

DOCS = Path(__file__).parents[2] / "docs"
PLAIN = {"traditional", "matched"}  # these leave nothing out


@pytest.fixture
def hook(monkeypatch):
    """Imports a module of the hooks."""
    monkeypatch.syspath_prepend(str(DOCS / "hooks"))
    return importlib.import_module


def marked(page, what):
    """The strategies of each comment of a kind."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return [names.split(", ") for names in re.findall(rf"<!-- {what}: (.*?) -->", text)]


def test_every_strategy_has_its_place_among_the_methods():
    shown = [name for names in marked("methods.md", "kept") for name in names]
    assert sorted(shown) == sorted(set(STRATEGIES) - PLAIN)


def test_each_paper_s_row_tells_of_the_strategies_that_it_names():
    text = (DOCS / "papers.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if "<!-- came out" in line]
    assert len(rows) == len(marked("papers.md", "came out"))
    for row in rows:
        _, method, outcome = row.strip("| ").split(" | ")
        named = [name for name in re.findall("`([a-z0-9-]+)`", method) if name in STRATEGIES]
        assert re.search("came out: (.*?) -->", outcome)[1].split(", ") == named


def test_every_source_is_among_the_papers():
    papers = (DOCS / "papers.md").read_text(encoding="utf-8")
    methods = (DOCS / "methods.md").read_text(encoding="utf-8")
    table = methods[methods.index("| method |") :].partition("\n\n")[0].splitlines()[2:]
    sources = [line.split("|")[8].strip() for line in table]
    cited = {each for source in sources for each in re.findall(r"\w+ et al\. \d{4}", source)}
    assert len(cited) > 10
    assert [each for each in cited if each not in papers] == []
    of_recipes = {find_recipe(name).source for name in recipe_names()} - {"Siftback"}
    titles = {re.sub(r",? (table|figure|section).*", "", source) for source in of_recipes}
    assert [each for each in titles if not all(part in papers for part in each.split(", "))] == []


def test_parts_of_your_own_take_thirty_lines_each():
    text = (DOCS / "guides" / "your_own.md").read_text(encoding="utf-8")
    _, *parts = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(parts) == 3
    assert max(part.count("\n") for part in parts) <= 30


def test_what_is_kept_is_what_the_formulas_say(hook):
    kept_by = hook("kept").kept_by
    middles = [(place + 0.5) / 20 for place in range(20)]

    def shares(name):
        (kept,) = kept_by(name)
        return kept.shares

    for share, percentile in zip(shares("sb"), middles, strict=True):
        assert share == pytest.approx(percentile**2, abs=0.08)
    assert shares("random") == pytest.approx([1 / 3] * 20, abs=0.08)
    assert shares("topk")[:8] == [0] * 8
    assert min(shares("topk")[-4:]) > 0.9
    floored = [0.1 + 0.9 * percentile ** (0.9 / (1 / 3 - 0.1) - 1) for percentile in middles]
    assert shares("sb-memory") == pytest.approx(floored, abs=0.08)
    (infobatch,) = kept_by("infobatch")
    assert infobatch.weights == pytest.approx([1] * 20, abs=0.15)  # as if all were kept
    (guarded,) = kept_by("sb-memory-guarded")
    assert guarded.shares[-1] < guarded.shares[-2]
    assert kept_by("traditional") == []


def test_a_verdict_has_its_numbers_from_the_page_of_results(hook):
    verdicts = hook("verdicts")
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    told = verdicts.tables(["sb"])
    for number in re.findall(r"[+-]\d+\.\d+ ± \d+\.\d+", told):
        assert number in page
    assert "**" not in told
    assert "`SelectiveLoader(..., keep=s)`: " in verdicts.in_brief(["sb"])


def rows_of(page):
    """The rows of the tables of a page, as cells by heading."""
    heading = None
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells:
            heading = None
        elif heading is None:
            heading = cells
        elif not set(line) <= set("|:- "):
            yield dict(zip(heading, cells, strict=True))


def test_what_a_method_saves_is_quoted_from_the_page_of_results():
    """Or of measurements: a row that fails is to be copied from what `make results` has written."""
    recorded = [*rows_of("results.md"), *rows_of("measurements.md")]
    quoted = [row for row in rows_of("which_method.md") if "data and model" in row]
    assert len(quoted) > 10
    for row in quoted:
        assert any(row.items() <= other.items() for other in recorded), row
    in_short = [row["what it saved"] for row in rows_of("which_method.md") if "task" in row]
    numbers = [number for cell in in_short for number in re.findall(r"\d+\.\d\d", cell)]
    cells = " ".join(cell for row in recorded for cell in row.values()).split()
    assert len(numbers) > 5
    assert not set(numbers) - set(cells)


def test_median_and_lowest_ratios_are_quoted_from_the_map():
    ratios = [row.get("budget ratio", "") for row in rows_of("map.md")]
    missing = [found[1] for cell in ratios if (found := re.fullmatch(r"\*\*(\d\.\d+)\*\*", cell))]
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    ((medians, lowest),) = re.findall(r"\[(.*)\]\(docs/map\.md\), down to (.*?);", readme)
    assert lowest == min(missing)
    assert medians in (DOCS / "map.md").read_text(encoding="utf-8")
    assert medians.count(" at ") == 3


def test_each_task_in_short_has_a_section_with_an_example():
    text = (DOCS / "which_method.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    tasks = [row["task"] for row in rows_of("which_method.md") if "task" in row]
    assert len(tasks) == 14
    for task in tasks:
        slug = re.search(r"\(#([a-z-]+)\)", task)[1]
        (section,) = (
            part for name, part in sections.items() if name.lower().replace(" ", "-") == slug
        )
        assert "```python" in section or "guides/" in section, task


@pytest.mark.parametrize("name", ["docstrings", "kept", "verdicts"])
def test_their_examples_hold(hook, name):
    found = doctest.testmod(hook(name))
    assert found.attempted
    assert not found.failed


def test_no_line_of_a_cell_ends_before_a_percent_sign(hook):
    cells = "<td>0.89 (10.03 %)</td><td>10 %</td><td>no % of it</td><p>10 % more</p>"
    assert hook("pages").on_page_content(cells) == (
        "<td>0.89 (10.03&nbsp;%)</td><td>10&nbsp;%</td><td>no % of it</td><p>10 % more</p>"
    )


def test_no_line_of_a_cell_ends_after_a_sign_of_a_bound(hook):
    cells = "<td>2.07 (1.33 to &gt; 4.00)</td><td>&lt; 0.5</td><td>a &gt; b</td><p>&gt; 4</p>"
    assert hook("pages").on_page_content(cells) == (
        "<td>2.07 (1.33 to &gt;&nbsp;4.00)</td><td>&lt;&nbsp;0.5</td><td>a &gt; b</td><p>&gt; 4</p>"
    )
