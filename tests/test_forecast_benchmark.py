"""The coefficients of the forecast are those of the records, and so is its table."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from siftback.rules import forecast

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def benchmark():
    """The module `benchmarks/forecast.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.delitem(sys.modules, "forecast", raising=False)
        import forecast

        yield forecast
        del sys.modules["forecast"]


@pytest.fixture(scope="module")
def cases(benchmark):
    """Those of the records."""
    return benchmark.read_cases()


def test_the_library_s_coefficients_are_fitted_to_the_records(benchmark, cases):
    assert pytest.approx(benchmark.fit(cases), abs=0.005) == forecast.SLOPE
    assert pytest.approx(benchmark.spread_of(cases), abs=0.005) == forecast.SPREAD


def test_nothing_is_forecast_beyond_the_records(benchmark, cases):
    shares = [case.share for case in cases if case.is_fitted]
    assert forecast.LEAST_SHARE <= min(shares) < forecast.LEAST_SHARE + 0.01
    assert max(case.budget for case in cases if case.is_fitted) == forecast.MOST_EPOCHS


def test_longer_trainings_are_not_forecast_as_a_ratio_of_1_is_nearer(benchmark, cases):
    curved = [case for case in cases if not case.ratio.flat and "wrong" not in case.title]
    for is_longer in (False, True):
        some = [case for case in curved if is_longer == (case.budget > forecast.MOST_EPOCHS)]
        weights = benchmark.weights_of(some)
        told = [benchmark.told(case, cases).error for case in some]
        of_one = [benchmark.error_of(case, 0.0) for case in some]
        nearer = benchmark.typical(told, weights) < benchmark.typical(of_one, weights)
        assert nearer is not is_longer


def test_a_fit_without_a_data_set_does_not_know_it(benchmark, cases):
    case = next(case for case in cases if case.is_fitted)
    wrong = [replace(other, share=0.5) if other.data == case.data else other for other in cases]
    assert benchmark.fit_without(case, wrong) == benchmark.fit_without(case, cases)
    assert benchmark.fit(wrong) != benchmark.fit(cases)


def test_the_guide_says_how_many_ratios_lie_in_the_interval(benchmark, cases):
    fitted = [case for case in cases if case.is_fitted]
    within = sum(benchmark.told(case, cases).is_within for case in fitted)
    page = " ".join((ROOT / "docs" / "guides" / "probing.md").read_text(encoding="utf-8").split())
    sets = len({case.data for case in fitted})
    assert f"{len(fitted)} cases of {sets} data sets that are fitted {within} lie" in page


def test_all_data_sets_count_alike_in_a_fit(benchmark, cases):
    fitted = [case for case in cases if case.is_fitted]
    twice = [*fitted, *(case for case in fitted if case.data == "mnist")]
    assert benchmark.fit(twice) == pytest.approx(benchmark.fit(fitted))
    assert sum(benchmark.weights_of(fitted)) == pytest.approx(len({case.data for case in fitted}))


def test_wrong_labels_and_a_flat_curve_are_not_fitted(cases):
    left_out = [case for case in cases if "wrong" in case.title or case.ratio.flat]
    assert left_out
    assert not any(case.is_fitted for case in left_out)


def test_a_number_that_a_ratio_is_above_pulls_up_alone(benchmark, cases):
    case = next(case for case in cases if case.ratio.ratio.side == "above" and case.is_fitted)
    bound = math.log(case.ratio.ratio.value) / math.log(case.bound)
    assert benchmark.fit([case]) == pytest.approx(bound)
    assert benchmark.log_ratio(case, 2 * bound) == pytest.approx(2 * bound * math.log(case.bound))
    assert benchmark.error_of(case, 2 * bound) == pytest.approx(0)


# Both are written by: python benchmarks/forecast.py --json results/benchmarks/forecast.json
def test_the_recorded_errors_are_those_of_the_records(benchmark, cases):
    path = ROOT / "results" / "benchmarks" / "forecast.json"
    recorded = json.loads(path.read_text(encoding="utf-8"))["rows"]
    rows = {(row.setting, row.what): row.measured for row in benchmark.rows_of(cases)}
    assert {(row["setting"], row["what"]) for row in recorded} == rows.keys()
    for row in recorded:
        assert row["measured"] == pytest.approx(rows[row["setting"], row["what"]])


def test_the_table_of_the_guide_is_that_of_the_records(benchmark, cases):
    page = (ROOT / "docs" / "guides" / "probing.md").read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if line.startswith("|")]
    assert len(shown) > len(benchmark.FITTED)
    assert set(shown) <= set(benchmark.table_of(cases).splitlines())
