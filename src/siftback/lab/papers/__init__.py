"""The papers' numbers beside ours, row by row."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

from siftback.lab.analyses.configurations import images, setup
from siftback.lab.analyses.reading import UNREADABLE
from siftback.lab.papers.claims import CLAIMS, OVERHEAD, RUNS, Claim
from siftback.lab.papers.ours import NotRecordedError, overhead
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.measures import TRADITIONAL

__all__ = ["CLAIMS", "RUNS", "Claim", "beside"]


def beside(results: Path) -> list[dict[str, str]]:
    """Each number of the papers, ours, and what either was measured on, a row each.

    Args:
        results: Holds the recipes' runs in ``recipes/``, as ``siftback run --scale small --out``
            leaves them, and ``benchmarks/``. What is not there, or cannot be read, is told in its
            row.
    """
    read = cache(lambda name: Comparison.read(results / name))  # many claims are of the same runs
    rows = [_row(claim, read) for claim in CLAIMS]
    benchmark = results / "benchmarks" / "overhead.json"
    return [*rows, _filled(OVERHEAD, _tried(lambda: overhead(benchmark)), "benchmarks/overhead.py")]


def _row(claim: Claim, read: Callable[[str], Comparison]) -> dict[str, str]:
    found: list[Comparison] = []

    def find() -> str:
        found.extend(map(read, claim.folders))
        return claim.ours(found)

    told = _tried(find)
    here = "; ".join(dict.fromkeys(_setup(one) for one in found if one.runs))
    return _filled((claim.place, claim.what, claim.paper, claim.there), told, here)


def _tried(find: Callable[[], str]) -> str:
    try:
        return find()
    except FileNotFoundError:
        return "not run"
    except NotRecordedError as error:
        return f"not recorded: {error}"
    except UNREADABLE as error:
        return f"unreadable ({type(error).__name__}: {error})"


def _filled(theirs: tuple[str, str, str, str], ours: str, here: str) -> dict[str, str]:
    place, what, paper, there = theirs
    return {
        "in": place,
        "what": what,
        "the paper's": paper,
        "ours": ours,
        "measured there on": there,
        "and here on": here,
    }


def _setup(comparison: Comparison) -> str:
    runs = comparison.runs
    whole = [run.epochs for run in runs if run.label == TRADITIONAL]
    epochs = f", {whole[0]:g} epochs" if whole else ""
    seeds = len({run.seed for run in runs})
    what = f"{setup(comparison)}{images(comparison)}{epochs}"
    return f"{what}, {seeds} seed{'s' if seeds > 1 else ''}"
