"""The repository's own records, read once for all pages that are made of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from siftback.lab.figures.pays import MethodRatio
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.report.pages import write_page

RESULTS = Path(__file__).parents[3] / "results"


class Recorded(NamedTuple):
    """The page of results, and what it was made of."""

    page: Path
    comparisons: Sequence[Comparison]
    ratios: Sequence[MethodRatio]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The page of the repository's own records, written now."""
    page = tmp_path_factory.mktemp("repository") / "docs" / "results.md"
    return Recorded(page, *write_page(RESULTS, page))
