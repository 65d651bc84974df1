"""The README's numbers are those of the records."""

import json

import pytest

from siftback.errors import ConfigError
from siftback.lab.figures.pays import experiments, method_ratios
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.report.front import ratio_table, shown_ratios


def test_the_budget_in_the_middle_is_shown_where_the_usual_one_was_not_measured(tmp_path):
    comparisons = []
    for budget in (1, 2, 8, 16, 32):
        ends = {"traditional": [64 / budget, 64 / budget + 0.01]}
        if budget in (2, 8, 16):
            ends["sb-memory-default"] = [32 / budget, 32 / budget + 0.01]
        comparisons.append(written(tmp_path / f"at-{budget}", budget, ends))
    (shown,) = shown_ratios(method_ratios(experiments(comparisons)))
    assert (shown.budget, str(shown.ratio)) == (8, "2.00")


@pytest.mark.parametrize("measured", [(2, 4), (2, 4, 8)], ids=["most methods", "in the middle"])
def test_a_ratio_is_that_of_one_budget_and_bold_where_it_is_sure(tmp_path, measured):
    """Plain training's error is inverse to its budget; the method's is that of twice the budget."""
    comparisons = []
    for budget in (1, 2, 4, 8, 16):
        ends = {"traditional": [64 / budget, 64 / budget + 0.01]}
        if budget in measured:
            ends["sb-memory-default"] = [32 / budget, 32 / budget + 0.02]
        if budget == 4 or len(measured) > 2:
            ends["rs2"] = [24.0, 12.0]
        comparisons.append(written(tmp_path / f"at-{budget}", budget, ends))
    ratios = method_ratios(experiments(comparisons))
    head, _, *rows = ratio_table(ratios).splitlines()
    assert head == "| data and model | epochs | budget ratio | 95 % interval | seeds | in seconds |"
    assert rows == ["| cnn-4 on digits | 4 | **2.00** | 2.00 to 2.00 | 2 | – |"]  # noqa: RUF001
    *_, row = ratio_table([ratio._replace(seconds=1.25) for ratio in ratios]).splitlines()
    assert row == "| cnn-4 on digits | 4 | **2.00** | 2.00 to 2.00 | 2 | 1.60 |"


def test_a_ratio_that_may_be_one_is_not_bold(tmp_path):
    comparisons = []
    for budget in (1, 2, 4, 8, 16):
        ends = {"traditional": [64 / budget, 64 / budget + 0.01]}
        if budget == 4:
            ends["sb-memory-default"] = [24.0, 12.0]  # one seed above, the other below
        comparisons.append(written(tmp_path / f"at-{budget}", budget, ends))
    *_, row = ratio_table(method_ratios(experiments(comparisons))).splitlines()
    assert "**" not in row
    assert 0.67 < float(row.split("|")[3]) < 1.34


def written(folder, budget, ends):
    """A comparison of two seeds by budget, as it is read from a folder."""
    run = {
        "matched_to": None, "data": "digits", "model": "cnn-4", "keep_measured": 0.5,
        "epochs": budget, "steps": 9, "examples_forwarded": 9, "examples_backpropped": 9,
        "seconds_train": 1.0, "seconds_selection": 0.0, "cost_forward_units": 27.0,
        "metric": "error",
    }  # fmt: skip
    runs = []
    for name, by_seed in ends.items():
        keep = 0.55 if name == "sb-memory" else 0.5
        for seed, end in enumerate(by_seed):
            own = {"strategy": name, "seed": seed, "keep_asked": keep}
            own |= {f"test_{what}": end for what in ("error_final", "error_best")}
            own |= {f"test_loss_{what}": end for what in ("final", "best")}
            runs.append(run | own | {"record": f"records/{name}-{seed}.jsonl"})
    folder.mkdir()
    asked = {"data": "digits", "budget": budget, "strategies": list(ends)}
    summary = {"environment": {"arguments": asked}, "runs": runs}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return Comparison.read(folder)


def test_ratios_are_needed():
    with pytest.raises(ConfigError, match="siftback run pays"):
        ratio_table([])
