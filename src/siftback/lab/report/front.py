"""Parts of pages that are from the records: what is saved, and the papers' numbers."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from siftback.errors import ConfigError
from siftback.lab.figures.budget_ratios import Bounded
from siftback.lab.figures.drawing import FORMATS
from siftback.lab.figures.pays import DEFAULT_LABEL, MethodRatio, experiments, method_ratios
from siftback.lab.papers import by_recipe
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import NOT_REACHED
from siftback.lab.records.tables import markdown
from siftback.lab.report.measurements_page import rows_of
from siftback.lab.report.results_page import BENCHMARKS

# A page holds a table between its two marks.
MARKS = ("<!-- budget ratios -->\n", "<!-- end of budget ratios -->\n")
PAPERS = ("<!-- the papers' numbers -->\n", "<!-- end of the papers' numbers -->\n")

BUDGET = 4.0
"""In epochs: at which most methods were measured."""


def shown_ratios(ratios: Sequence[MethodRatio]) -> list[MethodRatio]:
    """Returns a budget ratio of `Memory()` for each experiment.

    It is that at `BUDGET`, or else at the one in the middle of those that it was measured at.
    """
    by_title: dict[str, list[MethodRatio]] = defaultdict(list)
    for case in ratios:
        if case.label == DEFAULT_LABEL:
            by_title[case.experiment.title].append(case)
    return [
        next((case for case in cases if case.budget == BUDGET), cases[len(cases) // 2])
        for cases in by_title.values()
    ]


def write_table(
    comparisons: Sequence[Comparison], page: Path, seconds: Mapping[str, float] | None = None
) -> None:
    """Writes the budget ratios of `Memory()` into a page between its marks.

    A row for each experiment, of `shown_ratios`. A ratio is bold where it is above 1 for sure, see
    `MethodRatio.exceeds`.

    Args:
        comparisons: The records.
        page: A Markdown file that holds both of `MARKS`, once each.
        seconds: Seconds of a step by `Memory()` over those of a plain step, by experiment. With
            them the table has the ratio of seconds too, which is that of budgets over them.

    Raises:
        ConfigError: If the page does not, or there are no ratios.
    """
    if not has_marks(page, MARKS):
        raise ConfigError(f"{page} lacks the lines {' and '.join(MARKS)}: put each there once")
    rows = [
        {
            "data and model": method.experiment.title,
            "epochs": f"{method.budget:g}",
            "budget ratio": f"**{method.ratio}**" if method.exceeds(1) else f"{method.ratio}",
            "95 % interval": method.ratio.interval,
            "seeds": str(method.ratio.seeds),
            **({"in seconds": _in_seconds(method, seconds)} if seconds else {}),
        }
        for method in shown_ratios(method_ratios(experiments(comparisons)))
    ]
    if not rows:
        raise ConfigError(
            f"{page}: there are no budget ratios of {DEFAULT_LABEL}. Record some: siftback run pays"
        )
    fill(page, MARKS, markdown(rows))


def seconds_of_steps(results: Path) -> dict[str, float]:
    """Reads how much longer a step by `Memory()` takes than a plain one, by experiment.

    Args:
        results: Folder of all records, in which `benchmarks/seconds.py` writes one.
    """
    rows = rows_of(results / BENCHMARKS, "Seconds of a step", "over plain")
    return {row["setting"]: row["measured"] for row in rows}


def _in_seconds(method: MethodRatio, seconds: Mapping[str, float]) -> str:
    """Returns a budget ratio in seconds; a dash where there is no ratio, or they are not known."""
    ratio, over = method.ratio.ratio, seconds.get(method.experiment.title)
    if method.ratio.flat or not over:
        return NOT_REACHED
    return str(Bounded(ratio.value / over, ratio.side))


def write_papers(results: Path, page: Path) -> None:
    """Writes the papers' numbers beside ours into a page, between its marks.

    Args:
        results: As for `siftback.lab.papers.beside`.
        page: A Markdown file that has the marks `PAPERS`, once each.
    """
    fill(page, PAPERS, markdown(by_recipe(results)))


def has_marks(page: Path, marks: tuple[str, str]) -> bool:
    """Whether a page has both marks, once each."""
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return all(text.count(mark) == 1 for mark in marks)


def fill(page: Path, marks: tuple[str, str], text: str) -> None:
    """Writes a text into a page in place of what stands between two marks."""
    filled = put_between(page.read_text(encoding="utf-8"), marks, f"\n{text}\n\n")
    page.write_text(filled, encoding="utf-8")


def ending_of(path: Path) -> str:
    """Returns the ending of a picture's file, without its dot.

    Raises:
        ConfigError: If it is none that pictures have.

    >>> ending_of(Path("docs/saved.svg"))
    'svg'
    """
    ending = path.suffix[1:]
    if ending not in FORMATS:
        raise ConfigError(f"{path}: give a file that ends in .{' or .'.join(FORMATS)}")
    return ending


def put_between(text: str, marks: tuple[str, str], inner: str) -> str:
    """A text, with what stands between two marks replaced.

    >>> put_between("a [old] z", ("[", "]"), "new")
    'a [new] z'
    """
    before, after = text.split(marks[0])
    return before + marks[0] + inner + marks[1] + after.split(marks[1])[1]
