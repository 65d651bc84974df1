"""Budget ratios against slow, obvious ways to the same numbers, and from records of comparisons."""

import itertools
import json
import math
import random
import statistics
from dataclasses import replace

import pytest

from siftback.errors import ConfigError
from siftback.lab.figures.analyses import ANALYSES
from siftback.lab.figures.budget_ratios import (
    RESAMPLES,
    Bounded,
    BudgetRatio,
    budget_for,
    budget_ratio,
    is_flat,
)
from siftback.lab.figures.figure import Missing
from siftback.lab.figures.pays import band_of, experiments, method_ratios
from siftback.lab.figures.writing import write_analysis
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.formatting import NOT_REACHED
from siftback.lab.report.pages import without_tables
from siftback.lab.report.verdict import verdicts

BUDGETS = [1.0, 2.0, 4.0, 8.0, 16.0]


def first_at(budgets, values, end, steps=20_000):
    """The first budget of a fine grid at which a curve is at an end or below it."""
    low, high = math.log(budgets[0]), math.log(budgets[-1])
    for step in range(steps + 1):
        log = low + (high - low) * step / steps
        place = max(p for p, one in enumerate(budgets) if math.log(one) <= log + 1e-12)
        after = min(place + 1, len(budgets) - 1)
        width = math.log(budgets[after] / budgets[place]) or 1.0
        part = (log - math.log(budgets[place])) / width
        if values[place] + part * (values[after] - values[place]) <= end + 1e-12:
            return math.exp(log)
    raise AssertionError("not reached")


def curves():
    chance = random.Random(3)
    for count in (5, 6, 9):
        for noise in (0.0, 1.0, 8.0):
            budgets = [1.7**place for place in range(count)]
            yield budgets, [20 / (1 + place) + noise * chance.random() for place in range(count)]
    yield BUDGETS, [9.0, 7.0, 7.0, 7.0, 3.0]  # ties
    yield BUDGETS, [5.0] * 5
    yield BUDGETS, [3.0, 4.0, 5.0, 6.0, 7.0]  # rises all along


@pytest.mark.parametrize(("budgets", "values"), list(curves()))
def test_budgets_are_those_of_the_reference(budgets, values):
    high, low = values[0], min(values)
    for part in (0.0, 0.03, 0.31, 0.5, 0.77, 1.0):
        end = low if part == 1.0 else high + part * (low - high)
        found = budget_for(budgets, values, end)
        assert found.side == "at" or abs(end - high) < 1e-9 or abs(end - low) < 1e-9
        assert found.value == pytest.approx(first_at(budgets, values, end), rel=2e-3)
    assert budget_for(budgets, values, high + 1e-6) == Bounded(budgets[0], "below")
    assert budget_for(budgets, values, low - 1e-6) == Bounded(budgets[-1], "above")


def test_of_a_plateau_it_is_the_least_budget():
    assert budget_for(BUDGETS, [9, 7, 7, 7, 3], 7) == Bounded(2.0)


@pytest.mark.parametrize(("budgets", "values"), list(curves()))
def test_a_method_no_better_than_traditional_of_its_budget_has_at_most_one(budgets, values):
    for budget, value in zip(budgets, values, strict=True):
        for end in (value, value + 0.01):
            found = budget_for(budgets, values, end)
            assert found.side != "above"
            assert found.value <= budget


def test_a_known_curve_gives_the_ratio_it_was_made_with():
    """Errors fall by 2 a doubling; a method at 4 that is as good as 6 has a ratio of 1.5."""
    curve = {one: {0: 20 - 2 * math.log2(one)} for one in BUDGETS}
    found = budget_ratio(curve, 4.0, {0: 20 - 2 * math.log2(6)})
    assert found.ratio.value == pytest.approx(1.5)
    assert (found.interval, found.seeds) == (NOT_REACHED, 1)
    assert not found.low.exceeds(0.01)
    assert found.high.side == "above"
    itself = budget_ratio(curve, 4.0, curve[4.0])
    assert itself.ratio.value == pytest.approx(1.0)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_interval_is_that_of_every_draw_of_the_seeds(count):
    chance, seeds = random.Random(count), list(range(count))
    curve = {b: {s: 20 / (1 + math.log(b)) + chance.gauss(0, 0.5) for s in seeds} for b in BUDGETS}
    ends = {seed: 9.5 + chance.gauss(0, 0.5) for seed in seeds}
    every = []
    for drawn in itertools.product(seeds, repeat=count):
        values = [statistics.fmean(curve[b][s] for s in drawn) for b in BUDGETS]
        needed = budget_for(BUDGETS, values, statistics.fmean(ends[s] for s in drawn))
        every.append((needed.rank[0], needed.value / 4.0))
    every.sort()
    found = budget_ratio(curve, 4.0, ends | {99: 0.0})  # of a seed that the curve lacks
    assert found.seeds == count
    inside = [one for one in every if found.low.rank <= one <= found.high.rank]
    assert len(inside) >= 0.95 * len(every)
    assert found.low.rank in every
    assert found.high.rank in every
    assert found.low.rank <= found.ratio.rank <= found.high.rank


@pytest.mark.parametrize(
    ("budget", "needed", "flat"),
    [
        (8, 4, True),  # 4 and 8 differ by 0.5, and the seeds by 0.7
        (8, 5, True),  # only 8 is from 5 to 8, and 5 lies between 4 and 8
        (16, 16, True),  # the largest, beside the one before
        (4, 16, True),
        (4, 1.5, False),  # 2 is far above 4
        (1, 1, False),  # the least, beside the one after
        (3, 3.5, False),  # of no budget on the curve those around it
        (2, 2, False),  # as long as plain training, on a steep part: the ratio is 1
    ],
)
def test_flat_is_a_curve_whose_errors_at_the_budgets_compared_lie_within_the_spread(
    budget, needed, flat
):
    means = dict(zip(BUDGETS, [30.0, 20.0, 10.0, 9.5, 9.75], strict=True))
    curve = {at: [mean - 0.5, mean + 0.5] for at, mean in means.items()}  # s is 0.71
    assert is_flat(curve, budget, needed) == flat
    assert not is_flat({at: [mean] for at, mean in means.items()}, budget, needed)


def test_a_flat_ratio_is_no_number_anywhere(tmp_path):
    """Plain training is done at a budget of 4, and the method is as good, or clearly worse."""
    comparisons = []
    for budget, mean in zip(BUDGETS, [30.0, 20.0, 10.0, 9.9, 9.95], strict=True):
        plain = {seed: mean + spread for seed, spread in enumerate((-0.5, 0.0, 0.5))}
        ends = {"traditional": plain}
        if budget in (4, 8):
            ends["sb-memory"] = {seed: end + 0.01 * seed - 0.02 for seed, end in plain.items()}
            ends["sb"] = {seed: end + 0.3 + 0.01 * seed for seed, end in plain.items()}
            ends["sb-memory-default"] = ends["sb"]
        comparisons.append(recorded(tmp_path / f"{budget:g}", budget, ends))
    made = ANALYSES["pays"](comparisons)
    cells = {(row[1], row[2]): (row[5], row[6], row[7]) for row in made.rows}
    assert cells["Memory(keep=0.5)", "8"] == (None, "flat: undecided", NOT_REACHED)
    assert cells["SelectiveLoader(..., keep=0.5)", "8"] == (None, "flat: worse", NOT_REACHED)
    assert made.sentences[0] == (
        "SelectiveLoader(..., keep=0.5): for sure below 1 on cnn-4 on digits (4 epochs); on a flat "
        "curve in 1 case."
    )
    worst = ANALYSES["worst"](comparisons)
    assert [[row[1], row[4]] for row in worst.rows] == [["4", "0.98"], ["8", "**flat: worse**"]]
    assert worst.sentences == [
        "1 of 1 ratios of Memory() are 0.97 or more; lower for sure: 0.",
        "On flat curves it is worse, or likely worse, in 1 of 1 cases.",
    ]


def test_many_seeds_are_drawn_the_same_way_each_time():
    seeds = range(7)
    assert len(seeds) ** len(seeds) > RESAMPLES
    curve = {b: {s: 20 / (1 + math.log(b)) + s / 10 for s in seeds} for b in BUDGETS}
    ends = {s: 9.0 + s / 5 for s in seeds}
    one, again = (budget_ratio(curve, 4.0, ends) for _ in range(2))
    assert one == again
    assert one.low.rank < one.ratio.rank < one.high.rank


def test_an_end_that_is_not_finite_is_refused():
    with pytest.raises(ConfigError, match="the end of seed 0 is nan"):
        budget_ratio({b: {0: math.nan} for b in BUDGETS}, 2.0, {0: 2.5})


def recorded(folder, budget, ends, metric="error", processor="Abacus 9", **settings):
    """A comparison by budget, as it is read from a folder: final ends by strategy and seed."""
    data = settings.get("data", "digits")
    runs = [
        {
            "strategy": name, "matched_to": None, "seed": seed, "data": data,
            "model": "cnn-4", "keep_asked": 0.5, "keep_measured": 0.5, "epochs": budget,
            "steps": 9, "examples_forwarded": 9, "examples_backpropped": 9, "seconds_train": 1.0,
            "seconds_selection": 0.0, "cost_forward_units": 27.0, "test_error_final": end,
            "test_error_best": end, "record": f"records/{name}-{seed}.jsonl", "metric": metric,
            "test_loss_final": end, "test_loss_best": end,
        }
        for name, by_seed in ends.items()
        for seed, end in by_seed.items()
    ]  # fmt: skip
    folder.mkdir(parents=True)
    asked = {
        "data": settings.get("data", "digits"),
        "budget": budget,
        "strategies": list(ends),
        **settings,
    }
    summary = {"environment": {"arguments": asked, "cpu": processor}, "runs": runs}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return Comparison.read(folder)


def test_a_curve_may_be_of_several_devices(tmp_path):
    comparisons = []
    for budget in BUDGETS:
        ends = {"traditional": plain_error(budget)}
        device = "cpu" if budget < 4 else "cuda"
        folder = tmp_path / f"{budget:g}"
        comparisons.append(recorded(folder, budget, ends, processor=device, device=device))
    (experiment,) = experiments(comparisons)
    assert list(experiment.curve) == BUDGETS
    assert set(experiment.runs.machine) == {"cpu", "cuda"}


def test_comparisons_with_runs_that_diverged_are_left_to_the_verdicts(tmp_path):
    comparisons = []
    for budget in [*BUDGETS, 32.0, 64.0]:
        ends = {"traditional": plain_error(budget)}
        if budget == 4:
            ends |= {"sb-memory": plain_error(6)}
        if budget == 8:
            ends |= {"sb-memory": dict.fromkeys(plain_error(8), math.nan)}
        if budget == 64:
            ends = {"traditional": dict.fromkeys(plain_error(8), math.nan)}
        comparisons.append(recorded(tmp_path / f"{budget:g}", budget, ends, metric="loss"))
    (experiment,) = experiments(comparisons)
    assert list(experiment.curve) == [1, 2, 4, 16, 32]
    (ratio,) = method_ratios([experiment])
    assert ratio.budget == 4
    others = without_tables(comparisons)
    assert [item.arguments["budget"] for item in others] == [8, 64]
    assert [verdict.points for verdict in verdicts(others)] == ["+nan nats"]


def test_the_lowest_of_several_is_one_that_did_not_diverge(tmp_path):
    ends = {"traditional": {0: 2.0, 1: 2.1}, "random": {0: math.nan, 1: 2.0}}
    comparison = recorded(tmp_path / "a", 4.0, ends | {"sb-memory": {0: 1.5, 1: 1.8}}, "loss")
    (sentence,) = ANALYSES["budget"]([comparison]).sentences
    assert "the lowest, Memory(keep=0.5), is at -0.400 nats" in sentence


@pytest.mark.parametrize("metric", ["error", "loss"])
def test_the_table_is_made_of_comparisons_by_budget(tmp_path, metric):
    def plain(budget, spread=0.01):
        return {seed: 20 - 2 * math.log2(budget) + (seed - 0.5) * spread for seed in (0, 1)}

    comparisons = []
    for budget in BUDGETS:
        ends = {"traditional": plain(budget)}
        if budget == 4:
            worth = {"sb-memory": 6, "sb": 32, "random": 0.5}
            ends |= {name: plain(as_good_as, 0.02) for name, as_good_as in worth.items()}
        comparisons.append(recorded(tmp_path / f"{metric}-{budget:g}", budget, ends, metric))
    made = ANALYSES["pays"](comparisons[::-1])
    assert {row[1]: row[6] for row in made.rows} == {
        "Memory(keep=0.5)": "1.50", "SelectiveLoader(..., keep=0.5)": "> 4.00",
        "Uniform(keep=0.5)": "< 0.25",
    }  # fmt: skip
    assert {row[5] for row in made.rows} == {"6.00", "> 16.00", "< 1.00"}
    assert {row[8] for row in made.rows} == {"1.00"}  # as many epochs as the budget has
    assert made.sentences == [
        "Memory(keep=0.5): for sure above 1 on cnn-4 on digits (4 epochs).",
        "SelectiveLoader(..., keep=0.5): for sure above 1 on cnn-4 on digits (4 epochs).",
        "Uniform(keep=0.5): for sure below 1 on cnn-4 on digits (4 epochs).",
    ]
    assert isinstance(ANALYSES["budgets"](comparisons), Missing)  # no method at two budgets
    few = ANALYSES["pays"](comparisons[1:])
    assert isinstance(few, Missing)
    assert "plain training at 5 budgets or more" in few.why


def test_it_says_where_more_budget_makes_traditional_no_better(tmp_path):
    comparisons = []
    for budget, plain in zip(BUDGETS, [9.0, 7.0, 6.0, 6.5, 6.25], strict=True):
        ends = {"traditional": {0: plain, 1: plain}}
        if budget == 8:
            ends |= {"sb-memory": {0: 6.25, 1: 6.25}}
        comparisons.append(recorded(tmp_path / f"{budget:g}", budget, ends))
    made = ANALYSES["pays"](comparisons)
    assert made.rows[0][5] == "3.36"  # three quarters of the doubling from 2 to 4
    assert made.sentences[-1] == "cnn-4 on digits: plain training ends lowest at 4 of 16 epochs."


def test_a_curve_that_only_rises_is_flat_where_no_budget_of_it_does_as_well():
    rising = {1: [9.0, 9.2], 2: [7.0, 7.2], 4: [7.5, 7.7], 8: [7.6, 7.5]}
    better = budget_ratio(
        {at: dict(enumerate(ends)) for at, ends in rising.items()}, 2, {0: 6, 1: 6}
    )
    assert better.flat
    falling = {**rising, 8: [6.4, 6.5]}
    better = budget_ratio(
        {at: dict(enumerate(ends)) for at, ends in falling.items()}, 2, {0: 6, 1: 6}
    )
    assert (str(better.ratio), better.flat) == ("> 4.00", False)


def test_it_says_on_which_side_of_1_a_ratio_is_for_sure(tmp_path):
    """A whole interval is not enough: with two seeds the errors of "ucb" are only likely lower."""

    def plain(budget, worth=1.0, spread=0.01):
        end = 20 - 2 * math.log2(worth * budget)
        return {seed: end + (seed - 0.5) * spread * worth for seed in (0, 1)}

    comparisons = []
    for budget in BUDGETS:
        ends = {"traditional": plain(budget)}
        if budget in (2, 4):
            ends |= {"sb-memory": plain(budget, 1.6), "rs2": plain(budget, 0.5 * budget)}
        if budget == 4:
            ends |= {"random": {0: 15.0, 1: 17.0}, "sb": plain(budget, 0.8)}
            ends |= {"ucb": plain(budget, 1.6, spread=0.5)}
        comparisons.append(recorded(tmp_path / f"{budget:g}", budget, ends))
    assert ANALYSES["pays"](comparisons).sentences == [
        "Memory(keep=0.5): for sure above 1 on cnn-4 on digits (2, 4 epochs).",
        "RS2(keep=0.5): for sure above 1 on cnn-4 on digits (4 epochs); neither for sure in 1 "
        "case.",
        "SelectiveLoader(..., keep=0.5): for sure below 1 on cnn-4 on digits (4 epochs).",
    ]
    cases = method_ratios(experiments(comparisons))
    (likely,) = [case for case in cases if case.label == "ucb 0.5"]
    assert likely.ratio.low.exceeds(1)
    assert (likely.outcome, likely.exceeds(1)) == ("likely better", False)


def test_experiments_of_one_title_that_differ_in_a_setting_stay_apart(tmp_path):
    comparisons = []
    for lr, worth in ((0.1, 1.5), (0.2, 2.0)):
        for budget in BUDGETS:
            ends = {"traditional": {0: 20 - 2 * math.log2(budget)}}
            if budget == 4:
                ends["sb-memory"] = {0: 20 - 2 * math.log2(worth * budget)}
            comparisons.append(recorded(tmp_path / f"{lr}-{budget:g}", budget, ends, lr=lr))
    made = ANALYSES["pays"](comparisons)
    assert {(row[0], row[6]) for row in made.rows} == {
        ("cnn-4 on digits", "1.50"),
        ("cnn-4 on digits (2)", "2.00"),
    }


def test_a_weight_decay_that_is_not_the_model_s_own_is_in_the_title(tmp_path):
    comparisons = [
        recorded(tmp_path / f"{decay}-{budget:g}", budget, {"traditional": {0: 20 - budget}}, **of)
        for decay, of in (("own", {}), ("other", {"weight_decay": 0.005}))
        for budget in BUDGETS
    ]
    titles = [experiment.title for experiment in experiments(comparisons)]
    assert titles == ["cnn-4 on digits", "cnn-4 on digits, weight decay 0.005"]


def test_it_says_where_a_curve_and_its_methods_are_of_several_machines(tmp_path):
    def made(name, processor):
        comparisons = [
            recorded(tmp_path / f"{name}-{budget:g}", budget, {"traditional": {0: 20 - budget}})
            for budget in BUDGETS
        ]
        ends = {"sb-memory": {0: 14.0}}
        comparisons.append(recorded(tmp_path / name, 4.0, ends, processor=processor))
        return ANALYSES["pays"](comparisons).sentences

    assert not any("Abacus" in one for one in made("one", "Abacus 9"))
    assert made("two", "Abacus 10")[-1].startswith(
        "cnn-4 on digits: trained on Abacus 10 and Abacus 9, where the same seed ends at "
    )


def test_the_curves_are_those_of_what_was_measured_at_several_budgets(tmp_path):
    comparisons = []
    for budget in BUDGETS:
        ends = {"traditional": {0: 32 / budget, 1: 36 / budget}}
        if budget in (2, 4):
            ends["sb-memory"] = {0: 20 / budget, 1: 22 / budget}
        if budget == 4:
            ends["rs2"] = {0: 9.0, 1: 9.5}
        comparisons.append(recorded(tmp_path / f"{budget:g}", budget, ends))
    made = ANALYSES["budgets"](comparisons)
    (panel,) = made.views["budget"]
    assert [one.label for one in panel.series] == ["plain training", "Memory(keep=0.5)"]
    memory = panel.series[1]
    assert (memory.x, memory.y) == ([2, 4], [10.5, 5.25])
    assert (memory.low, memory.high) == ([10.0, 5.0], [11.0, 5.5])
    assert made.sentences == [
        "cnn-4 on digits, 4 epochs: Memory(keep=0.5) ends at 5.25 %, plain training at 8.50 %."
    ]
    write_analysis(made, tmp_path / "drawn")
    assert (tmp_path / "drawn" / "budgets.svg").exists()


def plain_error(budget, scale=1.0):
    """Plain training's end, of every seed."""
    end = scale * (20 - 2 * math.log2(budget))
    return {0: end, 1: end}


def by_models(folder, at_budgets, strategy):
    """Comparisons of two data sets, in which a method is worth what is said at some budgets."""
    comparisons = []
    for data, worth in at_budgets.items():
        for budget in BUDGETS:
            scale = 0.1 if data == "mnist" else 1.0
            ends = {"traditional": plain_error(budget, scale)}
            if budget in worth:
                as_good_as = plain_error(worth[budget] * budget, scale)
                ends[strategy] = {
                    seed: end + (seed - 0.5) / 1e4 for seed, end in as_good_as.items()
                }
            asked = recorded(folder / f"{data}-{budget:g}", budget, ends, data=data)
            comparisons.append(asked)
    return comparisons


def test_the_default_is_shown_case_by_case_the_worst_first(tmp_path):
    worth = {"digits": {2: 1.5, 4: 0.9}, "mnist": {4: 2.0, 8: 0.97}}
    made = ANALYSES["worst"](by_models(tmp_path / "one", worth, "sb-memory-default"))
    assert [[row[0], row[1], row[3], row[4]] for row in made.rows] == [
        ["cnn-4 on digits", "4", "16.00 %", "**0.90**"],
        ["cnn-4 on mnist", "8", "1.40 %", "0.97"],
        ["cnn-4 on digits", "2", "18.00 %", "1.50"],
        ["cnn-4 on mnist", "4", "1.60 %", "2.00"],
    ]
    assert made.sentences == ["3 of 4 ratios of Memory() are 0.97 or more; lower for sure: 1."]
    others = ANALYSES["worst"](by_models(tmp_path / "two", worth, "sb-memory"))
    assert isinstance(others, Missing)


def test_the_median_of_a_budget_is_given_where_it_has_five_ratios(tmp_path):
    names = ["digits", "mnist", "cifar10", "cifar100", "gtsrb", "fonts:64"]
    at_4, at_2 = [1.5, 0.9, 1.1, 2.0, 1.3, 1.2], [0.9, 1.4, 1.6, 1.2]
    worth = {name: {4: ratio} for name, ratio in zip(names, at_4, strict=True)}
    for name, ratio in zip(names, at_2, strict=False):
        worth[name][2] = ratio
    made = ANALYSES["worst"](by_models(tmp_path, worth, "sb-memory-default"))
    assert made.sentences[1:] == ["Medians by the budget in epochs: 1.30 at 4."]  # not 1.20


def test_the_map_has_ratios_as_colours_over_error_examples_and_epochs(tmp_path):
    worth = {"digits": {2: 1.6, 4: 0.9}, "mnist": {4: 2.0}}
    made = ANALYSES["map"](by_models(tmp_path / "both", worth, "sb-memory"))
    points = {
        view: {line.label: [*zip(line.x, line.y, strict=True)] for line in panels[0].series}
        for view, panels in made.views.items()
    }
    mnist = pytest.approx(1.6)
    assert points["examples"] == {
        "1.5 or more": [(18.0, 1437), (mnist, 60_000)], "below 0.97": [(16.0, 1437)]
    }  # fmt: skip
    assert points["epochs"] == {"1.5 or more": [(18.0, 2), (mnist, 4)], "below 0.97": [(16.0, 4)]}
    assert made.sentences == [
        "Memory(keep=0.5): 3 ratios from 0.90 (cnn-4 on digits, 4 epochs) to 2.00 (cnn-4 on mnist, "
        "4 epochs)."
    ]
    one = ANALYSES["map"](by_models(tmp_path / "one", {"digits": {2: 1.5, 4: 0.9}}, "sb-memory"))
    assert isinstance(one, Missing)  # of a single experiment
    write_analysis(made, tmp_path / "drawn")
    assert (tmp_path / "drawn" / "map.svg").exists()


def test_where_nothing_is_left_out_there_is_no_case(tmp_path):
    worth = {"digits": {2: 1.5, 4: 0.9}, "mnist": {4: 2.0, 8: 1.0}}
    comparisons = by_models(tmp_path, worth, "sb-memory-default")
    for comparison in comparisons:
        if comparison.folder.name == "digits-4":
            comparison.runs[:] = [replace(run, keep_measured=1.0) for run in comparison.runs]
    cases = ANALYSES["worst"](comparisons).rows
    assert [(row[0], row[1]) for row in cases] == [
        ("cnn-4 on mnist", "8"), ("cnn-4 on digits", "2"), ("cnn-4 on mnist", "4")
    ]  # fmt: skip
    assert "below 0.97" not in str(ANALYSES["map"](comparisons).views)


@pytest.mark.parametrize(
    ("bound", "band"),
    [
        (Bounded(1.5), "1.5 or more"),
        (Bounded(1.49), "1.2 to 1.5"),
        (Bounded(0.969), "below 0.97"),
        (Bounded(1.5, "above"), "1.5 or more"),
        (Bounded(1.1, "above"), None),
        (Bounded(0.9, "below"), "below 0.97"),
        (Bounded(1.1, "below"), None),
    ],
)
def test_a_colour_is_that_of_all_that_a_ratio_may_be(bound, band):
    assert band_of(BudgetRatio(bound, bound, bound, 1)) == band
    assert band_of(BudgetRatio(bound, bound, bound, 2, flat=True)) == "flat"
