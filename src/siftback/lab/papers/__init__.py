"""The papers' numbers beside ours, row by row."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from siftback.lab.figures.configurations import task
from siftback.lab.papers.claims import CLAIMS, OVERHEAD, RUNS, Claim
from siftback.lab.papers.ours import NotRecordedError, overhead
from siftback.lab.records.comparison_record import UNREADABLE, Comparison
from siftback.lab.records.run_summary import TRADITIONAL

__all__ = ["CLAIMS", "RUNS", "Claim", "beside", "short"]


def beside(results: Path) -> list[dict[str, str]]:
    """Each number of the papers, ours, and what either was measured on, a row each.

    Args:
        results: Holds the recipes' runs in ``recipes/``, as ``siftback run --scale small --out``
            leaves them, and ``benchmarks/``. A row says where they are not
            there, or cannot be read.
    """
    return [*_rows(CLAIMS, results), _overhead(results)]


def short(results: Path) -> list[dict[str, str]]:
    """The main numbers alone, in fewer columns.

    Args:
        results: As for `beside`.
    """
    main = [claim for claim in CLAIMS if claim.main]
    rows = [*_rows(main, results, brief=True), _overhead(results)]
    return [
        {"what": f"{row['what']} ({row['in']}: {row['measured there on']})"}
        | {name: row[name] for name in ("the paper's", "ours")}
        | {"ours measured on": row["and here on"]}
        for row in rows
    ]


def _rows(claims: Sequence[Claim], results: Path, brief: bool = False) -> list[dict[str, str]]:
    read = cache(lambda name: Comparison.read(results / name))  # many claims are of the same runs
    return [_row(claim, read, brief) for claim in claims]


def _overhead(results: Path) -> dict[str, str]:
    benchmark = results / "benchmarks" / "overhead.json"
    return _filled(OVERHEAD, _tried(lambda: overhead(benchmark)), "benchmarks/overhead.py")


def _row(claim: Claim, read: Callable[[str], Comparison], brief: bool) -> dict[str, str]:
    comparisons: list[Comparison] = []

    def find() -> str:
        comparisons.extend(map(read, claim.folders))
        return claim.ours(comparisons)

    ours = _tried(find)
    setups = list(
        dict.fromkeys(_setup(comparison) for comparison in comparisons if comparison.runs)
    )
    setup = f"{len(setups)} comparisons" if brief and len(setups) > 1 else "; ".join(setups)
    return _filled((claim.place, claim.what, claim.paper, claim.there), ours, setup)


def _tried(find: Callable[[], str]) -> str:
    try:
        return find()
    except FileNotFoundError:
        return "not run"
    except NotRecordedError as error:
        return f"not recorded: {error}"
    except UNREADABLE as error:
        return f"unreadable ({type(error).__name__}: {error})"


def _filled(theirs: tuple[str, str, str, str], ours: str, setup: str) -> dict[str, str]:
    source, what, paper, setup_there = theirs
    return {
        "in": source,
        "what": what,
        "the paper's": paper,
        "ours": ours,
        "measured there on": setup_there,
        "and here on": setup,
    }


def _setup(comparison: Comparison) -> str:
    runs = comparison.runs
    whole = [run.epochs for run in runs if run.label == TRADITIONAL]
    epochs = f", {whole[0]:g} epochs" if whole else ""
    seeds = len({run.seed for run in runs})
    what = f"{task(comparison)}{epochs}"
    return f"{what}, {seeds} seed{'s' if seeds > 1 else ''}"
