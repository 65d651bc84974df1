"""Every recipe is read and planned at both scales; what one is, what it runs and draws."""

import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from siftback import Share, cli
from siftback.errors import ConfigError
from siftback.lab import rates
from siftback.lab.experiments.comparison import Plan, compare, is_finished
from siftback.lab.recipes.recipe import (
    Scale,
    count_parameters,
    draw_recipe,
    find_recipe,
    markdown_listing,
    parse_changes,
    plan_cost,
    plan_table,
    read_recipe,
    recipe_names,
    recipe_plans,
    recipes_used,
)
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import pack
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings
from siftback.lab.strategies.table import STRATEGIES, find_strategy

AT_HAND = {"digits", "mnist", "cifar10", "gtsrb", "fonts"}
OF_OTHER_WIDTHS = {"map", "noise", "pays", "pays-gpu", "rates", "svhn-size"}

# What an analysis cannot be made without.
OBSERVED = {
    "fig2": "losses",
    "fig3": "losses",
    "fig4": "losses",
    "fig5": "gradients",
    "fig8": "confidence",
    "fig9": "confidence",
    "fig15": "losses",
    "diet-d": "losses",
    "diet-f": "losses",
}

PAPERS = [
    *(f"fig{number}" for number in range(1, 19)),
    *("table1", "static", "batch64", "diet-table", "diet-figs", "poster-cifar10", "poster-mnist"),
]

OWN = """
title = "An experiment"
source = "ours"
draw = ["fig6", "table1"]

[both]
data = "digits"
model = "cnn"
width = 2
train_limit = 256
batch_size = 32
device = "cpu"
strategies = ["traditional", "sb", "random@0.25"]
keep = [0.5]

[full]
epochs = 20

[small]
epochs = 2

[small.plain]

[small.noisy]
flip = 0.2
"""


@pytest.fixture
def own(tmp_path):
    """Writes a recipe's file and gives its path."""

    def write(text=OWN):
        path = tmp_path / "own.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@functools.cache
def plans_of(name, scale):
    return [plan for used in recipes_used(find_recipe(name)) for plan in used.plans(scale).values()]


@functools.cache
def parameters_of(data, model, width, norm):
    settings = Settings(data, model, width=width, norm=norm, epochs=1.0)
    return count_parameters(Plan(settings, ["traditional"], [1.0], [0]))


def test_all_that_the_papers_show_has_a_recipe():
    own = {
        "budget",
        "agreement",
        "ideal-cost",
        "map",
        "noise",
        "pays",
        "pays-gpu",
        "rare",
        "rates",
        "svhn-size",
    }
    assert set(PAPERS) | own == set(recipe_names())
    assert recipe_names()[:3] == ["fig1", "fig2", "fig3"]


@pytest.mark.parametrize("scale", Scale)
@pytest.mark.parametrize("name", recipe_names())
@pytest.mark.sampled(3)
def test_a_recipe_can_be_run(name, scale, tmp_path):
    recipe = find_recipe(name)
    plans = recipe_plans(recipe, scale, tmp_path)
    assert [*plans.values()] == plans_of(name, scale) != []
    assert not any(is_finished(plan, folder) for folder, plan in plans.items())
    for settings in (plan.settings for plan in plans.values()):
        assert parameters_of(settings.data, settings.model, settings.width, settings.norm) > 1000


def test_the_plan_of_a_recipe_is_shown_without_a_trace(tmp_path):
    table = plan_table(recipe_plans(find_recipe("fig17"), "small", tmp_path))
    assert table.row_count == 6
    told = list(table.columns[1].cells)
    assert "cnn-8 on cifar10" in told[0]
    assert "parameters" in told[0]
    assert "Kath18(keep=0.33, reweight=False); seeds 0, 1" in told[0]
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", recipe_names())
def test_small_scales_use_what_is_at_hand_and_full_ones_what_the_papers_do(name):
    assert {plan.settings.data.split(":")[0] for plan in plans_of(name, "small")} <= AT_HAND
    for plan in plans_of(name, "full"):
        assert plan.settings.subset is None
        assert plan.settings.width is None or name in OF_OTHER_WIDTHS
        assert (plan.settings.train_limit is None) == (name != "fig18")


@pytest.mark.parametrize("scale", Scale)
@pytest.mark.parametrize("name", recipe_names())
def test_what_is_drawn_is_recorded(name, scale):
    recipe, plans = find_recipe(name), plans_of(name, scale)
    assert recipe.draw
    for drawn in recipe.draw:
        if drawn in OBSERVED:
            assert any(OBSERVED[drawn] in plan.settings.observe for plan in plans)
    for plan in plans:
        assert "traditional" in plan.strategies or recipe.uses


# Section 5.1 of Jiang et al. 2019: data, cutout, keeps of SB and of Kath18, where the first
# schedule falls, where the second does, by what, and the length of training.
SECTION_5_1 = {
    "cifar10": ("cifar10", 16, 0.33, 0.33, (60, 120, 160), (48, 96, 128), 5, 200),
    "cifar100": ("cifar100", 8, 0.5, 0.5, (60, 120), (48, 96), 10, 200),
    "svhn": ("svhn+extra", 20, 0.25, 0.33, (60, 120), (48, 96), 10, 160),
}


@pytest.mark.parametrize("name", ["table1", "fig17", "static", "batch64"])
@pytest.mark.parametrize("case", SECTION_5_1)
def test_the_setups_are_those_of_the_paper(name, case):
    data, cutout, keep, kath18, first, second, divisor, epochs = SECTION_5_1[case]
    plan = find_recipe(name).plans("full")[case]
    settings = plan.settings
    assert (settings.data, settings.cutout, settings.epochs) == (data, cutout, epochs)
    assert settings.model.startswith("wrn-28-10")
    assert (settings.lr, settings.weight_decay, settings.train_limit) == (0.1, 5e-4, None)
    assert settings.time_budget == 3600 * (96 if case == "svhn" else 12)
    assert settings.batch_size == (64 if name == "batch64" else 128)
    kept = {run.strategy: run.keep for run in plan.runs() if run.strategy != "matched"}
    assert kept.pop("traditional") == 1
    assert kept.pop("kath18", kath18) == kath18
    assert set(kept.values()) == {keep}
    at = {"fig17": second, "static": ()}.get(name, first)
    rate = rates.find_rate(settings.rate, epochs)
    for epoch in range(epochs + 1):
        fallen = sum(epoch >= each for each in at)
        assert rate(epoch / epochs) == pytest.approx(divisor**-fallen)


def test_the_sweeps_are_those_of_the_paper():
    assert find_recipe("table1").plans("full")["svhn"].strategies[2:4] == (
        "stale-sb-2",
        "stale-sb-3",
    )
    flips = [plan.settings.flip for plan in find_recipe("fig12").plans("full").values()]
    assert flips == [0.01, 0.1, 0.2]
    for plan in find_recipe("fig13").plans("full").values():
        assert (min(plan.keeps), max(plan.keeps)) == (0.2, 0.65)
    models = [plan.settings.model for plan in find_recipe("fig16").plans("full").values()]
    assert models == ["resnet18", "densenet121", "mobilenetv2"]
    for poster in ("poster-cifar10", "poster-mnist"):
        assert all(max(plan.keeps) < 0.15 for plan in plans_of(poster, "full"))
    diet = {(plan.settings.data, plan.settings.model) for plan in plans_of("diet-figs", "full")}
    assert diet == {("cifar100", "resnet18"), ("cifar100", "googlenet"), ("cifar10", "resnet20")}


def test_runs_are_shared_by_the_figures_of_one_experiment(tmp_path):
    for name in ("fig1", "fig6", "fig7", "fig10", "fig11"):
        folders = [*recipe_plans(find_recipe(name), "small", tmp_path)]
        assert folders == [*recipe_plans(find_recipe("table1"), "small", tmp_path)]


def test_a_recipe_is_read_from_its_file(own):
    recipe = read_recipe(own())
    assert (recipe.name, recipe.title, recipe.draw) == ("own", "An experiment", ("fig6", "table1"))
    assert list(recipe.plans("full")) == [""]
    small = recipe.plans("small")
    assert [plan.settings.flip for plan in small.values()] == [0.0, 0.2]
    assert [(run.strategy, run.keep) for run in small["noisy"].runs()] == [
        ("traditional", 1.0), ("sb", 0.5), ("random", 0.25),
    ]  # fmt: skip
    assert recipe.plans("full")[""].settings.epochs == 20


def test_comparisons_share_budgets_by_their_name(own):
    budgets = "[budgets.short]\n1 = ['traditional']\n'2.5' = ['traditional', 'sb']\n"
    text = OWN.replace(
        "epochs = 20", "a = { budgets = 'short' }\nb = { flip = 0.1, budgets = 'short' }"
    )
    plans = read_recipe(own(text + budgets)).plans("full")
    assert list(plans) == ["a-1", "a-2.5", "b-1", "b-2.5"]
    assert [plan.settings.budget for plan in plans.values()] == [1, 2.5, 1, 2.5]
    assert [plan.settings.flip for plan in plans.values()] == [0, 0, 0.1, 0.1]
    assert plans["b-2.5"].strategies == ("traditional", "sb")
    with pytest.raises(ConfigError, match=r"a: no budgets 'short': give one of long"):
        read_recipe(own(text + budgets.replace("short", "long")))


def test_both_scales_have_the_budgets_of_both(own):
    budgets = "[both.a]\nbudgets = { 1 = ['traditional'], 2 = ['traditional', 'sb'] }\n"
    recipe = read_recipe(own(f"{OWN.partition('[full]')[0]}{budgets}[full]\n[small]\n"))
    assert [*recipe.plans("full")] == [*recipe.plans("small")] == ["a-1", "a-2"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("title =", "titel =", r"own.toml: no key 'titel'; did you mean title\?"),
        ('source = "ours"\n', "", "own.toml says no source: add it"),
        ('"fig6"', '"fig0"', r"own.toml: draw: no analysis fig0; did you mean fig10\?"),
        ("[full]", "[large]", "own.toml: no key 'large'"),
        ("[full]\nepochs = 20", "", r"own.toml trains nothing: add \[full\], or uses"),
        ("[full]\n", "full = 1\n[none]\n", "own.toml: "),
        ("[both]", "[both", "own.toml is not TOML"),
        ('"cnn"', '"cmm"', r"own.toml \[full\]: .*cmm"),
        ('"sb"', '"bs"', r"own.toml \[full\]: no strategy 'bs'"),
        ("flip", "flop", r"own.toml \[small.noisy\]: no key 'flop'; did you mean flip\?"),
        ("epochs = 2\n", "epochs = 'a'\n", r"own.toml \[small.plain\]: epochs 'a': give a number"),
        ("width = 2", "width = 2.5", r"\[full\]: width '2.5': give an integer"),
        ("width = 2", "width = true", r"\[full\]: width 'True': give an integer"),
        ("keep = [0.5]", "keep = 0.5", r"keep = 0.5 is not a list; write it as \[...\]"),
        ("keep = [0.5]", "keep = [1.5]", r"\[full\]: keep=1.5 is not a share"),
        ("keep = [0.5]", "keep = [0.5]\nseeds = [0.5]", r"seeds = 0.5 is not int"),
        ("epochs = 20", "", r"\[full\]: .*length"),
        ('model = "cnn"\n', "", r"\[full\] says no model: add it"),
        ("[small.noisy]", '[small."../noisy"]', "own.toml: '../noisy' is not a name of a folder"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_key(own, old, new, said):
    assert old in OWN
    with pytest.raises(ConfigError, match=said):
        read_recipe(own(OWN.replace(old, new)))


def test_a_share_to_keep_that_no_strategy_goes_by_is_refused(own, tmp_path):
    recipe = read_recipe(own(OWN.replace('"sb", "random@0.25"', '"Memory()", "random@0.25"')))
    with pytest.raises(ConfigError, match=r"keep of recipe own: traditional, Memory\(\), random@0"):
        recipe_plans(recipe, "small", tmp_path)
    plans = recipe_plans(recipe, "small", tmp_path, parse_changes(["strategies=Memory(),sb"]))
    assert all(plan.keeps == (0.5,) for plan in plans.values())
    without = read_recipe(own(OWN.replace('"sb", "random@0.25"', '"rs2@0.5"').replace("keep", "#")))
    assert len(recipe_plans(without, "small", tmp_path)) == 2
    with pytest.raises(ConfigError, match=r"keep of recipe own: traditional, rs2@0.5 would not go"):
        recipe_plans(without, "small", tmp_path, {"keep": [0.5]})


def test_a_data_set_that_is_none_is_told_before_anything_runs(own, tmp_path):
    recipe = read_recipe(own(OWN.replace('"digits"', '"digit"')))
    with pytest.raises(ConfigError, match="'digit'"):
        plan_table(recipe_plans(recipe, "small", tmp_path / "runs"))


def test_a_recipe_that_is_none_is_told():
    with pytest.raises(ConfigError, match=r"no recipe 'fig0': .*fig10\? give one of fig1"):
        find_recipe("fig0")
    with pytest.raises(ConfigError, match=r"no file fig0.toml: give the path of a recipe"):
        find_recipe("fig0.toml")


def test_only_recipes_that_train_can_be_used(own):
    with pytest.raises(ConfigError, match=r"own uses fig6, which trains nothing.*table1"):
        recipes_used(
            read_recipe(own('title = "a"\nsource = "b"\ndraw = ["fig6"]\nuses = ["fig6"]\n'))
        )


def test_changes_take_the_place_of_what_a_recipe_says(own):
    recipe = read_recipe(own())
    told = ["budget=3", "strategies=sb,random", "keep=1/4,0.5", "rate=constant"]
    plan = recipe.plans("full", parse_changes(told) | {"seeds": [4, 5]})[""]
    assert (plan.settings.budget, plan.settings.epochs) == (3, None)
    assert (plan.strategies, plan.keeps, plan.seeds) == (("sb", "random"), (0.25, 0.5), (4, 5))
    assert plan.settings.rate == "constant"
    assert recipe.plans("full")[""].settings.epochs == 20
    with pytest.raises(ConfigError, match=r"--set: no key 'epoch'; did you mean epochs\?"):
        parse_changes(["epoch=3"])
    with pytest.raises(ConfigError, match="width 'wide': give an integer"):
        recipe.plans("full", parse_changes(["width=wide"]))
    with pytest.raises(ConfigError, match=r"recipe own \[full\]: no strategy 'bs'"):
        recipe.plans("full", parse_changes(["strategies=bs"]))
    limited = recipe.plans("full", parse_changes(["time_budget=1h30m", "evaluate_at=0.1"]))[""]
    assert (limited.settings.time_budget, limited.settings.epochs) == (5400, 20)
    assert limited.settings.evaluate_at == (0.1,)
    assert recipe.plans("full", parse_changes(["warmup=5%"]))[""].settings.warmup == Share(0.05)
    with pytest.raises(ConfigError, match=r"warmup '0.05': give epochs such as 1e"):
        recipe.plans("full", parse_changes(["warmup=0.05"]))


def test_a_recipe_runs_draws_and_grows(own, tmp_path):
    recipe, out = read_recipe(own()), tmp_path / "runs"
    plans = recipe_plans(recipe, "small", out)
    assert [*plans] == [out / "own-small" / n for n in ("plain", "noisy")]
    for folder, plan in plans.items():
        compare(plan, folder, Reporter(), "refuse")
    unpacked = [Comparison.read(folder) for folder in plans]
    for folder in plans:
        assert pack(folder) == (4, [])
    assert [Comparison.read(folder) for folder in plans] == unpacked
    assert all(is_finished(plan, folder) for folder, plan in plans.items())
    drawn = list(draw_recipe(recipe, "small", out, plans))
    assert [analysis.name for analysis, _ in drawn] == ["fig6", "table1"]
    assert {path.parent for _, paths in drawn for path in paths} == {out / "own-small"}
    suffixes = [{path.suffix for path in paths} for _, paths in drawn]
    assert suffixes == [{".png", ".svg", ".csv"}, {".md", ".csv"}]
    assert all(path.stat().st_size > 100 for _, paths in drawn for path in paths)

    before = [Comparison.read(folder).runs for folder in plans]
    folder, larger = next(iter(recipe_plans(recipe, "small", out, {"seeds": [0, 1]}).items()))
    with pytest.raises(ConfigError, match="--resume"):
        compare(larger, folder, Reporter(), "refuse")
    compare(larger, folder, Reporter(), "resume")
    runs = Comparison.read(folder).runs
    assert runs[: len(before[0])] == before[0]
    assert [run.seed for run in runs] == [0, 0, 0, 1, 1, 1]


def test_runs_of_other_settings_are_not_taken_for_finished(own, tmp_path):
    plan = read_recipe(own()).plans("small", {"strategies": ["traditional"], "epochs": 1})["plain"]
    folder = tmp_path / "c"
    assert not is_finished(plan, folder)
    compare(plan, folder, Reporter(), "refuse")
    assert is_finished(plan, folder)
    other = Plan(replace(plan.settings, lr=0.05), ["traditional"], [0.5], [0])
    assert not is_finished(other, folder)


def test_a_plan_s_cost_is_added_up_from_its_runs():
    settings = Settings("digits", "cnn", epochs=10, score_models=2, score_epochs=1)
    plan = Plan(settings, ["traditional", "sb", "stale-sb-2@0.25"], [0.5], [0, 1], matched=True)
    of_a_seed = 10 * 3 + 2 * (3 + 9 * (1 + 1.5)) + 2 * (3 + 9 * (0.5 + 0.75))
    assert plan_cost(plan) == pytest.approx(1437 * 2 * of_a_seed)
    limited = replace(settings, train_limit=100)
    diet = Plan(limited, ["el2n@0.75"], [0.5], [0], matched=False)
    assert plan_cost(diet) == pytest.approx(100 * (10 * 3 * 0.75 + 2 * (3 + 1)))
    budget = Plan(replace(limited, epochs=None, budget=4), ["sb", "random"], [0.5], [0])
    assert plan_cost(budget) == pytest.approx(100 * 2 * 4 * 3)
    assert plan_cost(Plan(replace(settings, data="npz:own.npz"), ["sb"], [0.5], [0])) is None
    text = Settings("tinyshakespeare", "gpt", budget=1, max_tokens=64)
    # 1,003,854 characters are trained on: windows of 64 are twice as many as those of 128.
    windows = plan_cost(Plan(text, ["traditional"], [0.5], [0])) / 3
    assert windows == pytest.approx(1_003_854 / 64, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "ideal"),
    [
        ("traditional", 3.0),
        ("sb", 1 + 3 * 0.4),
        ("random", 3 * 0.4),
        ("sb-single-pass", 1 + 2 * 0.4),
        ("stale-sb", 1 / 3 + 3 * 0.4),
        ("stale-sb-5", 1 / 5 + 3 * 0.4),
        ("sb-proxy", 1 + 3 * 0.4 + 3 * 0.4),
        ("sb-pipelined", 1 + 3 * 0.4),
        ("diet-sb", 0.75 + 3 * 0.4),
    ],
)
def test_the_ideal_cost_is_that_of_the_formula(name, ideal):
    cost = find_strategy(name).cost.amount(0.4, stale_every=3)
    assert cost == pytest.approx(ideal)


def test_every_strategy_has_an_ideal_cost():
    for name, strategy in STRATEGIES.items():
        if name != "matched":
            assert 0 < strategy.cost.amount(0.5) < 10


def test_the_documentation_lists_them_as_they_are():
    page = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert page.endswith(markdown_listing() + "\n"), "make recipes writes it again"


def test_the_wheel_holds_them(tmp_path):
    wheel = pytest.importorskip("hatchling.builders.wheel")
    from zipfile import ZipFile

    built = next(iter(wheel.WheelBuilder(str(Path(__file__).parents[3])).build(
        directory=str(tmp_path), versions=["standard"]
    )))  # fmt: skip
    with ZipFile(built) as archive:
        paths = [Path(name) for name in archive.namelist() if name.endswith(".toml")]
    held = {path.stem for path in paths if path.parent.name == "recipes"}
    assert held == set(recipe_names())


def run_siftback(monkeypatch, capsys, *arguments):
    """Calls ``siftback``; gives its exit status, output and errors."""
    monkeypatch.setattr("sys.argv", ["siftback", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_two_figures_of_the_same_runs_train_once(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", "400")
    asked = [
        "data=digits",
        "model=mlp",
        "train_limit=256",
        "width=2",
        "epochs=1",
        "evaluations=1",
        "warmup=0",
        "batch_size=32",
        "device=cpu",
        "strategies=traditional,sb",
    ]
    changes = [part for one in asked for part in ("--set", one)]
    out = ("--seeds", "0", "--out", tmp_path / "runs", *changes)

    status, printed, _ = run_siftback(monkeypatch, capsys, "run", "fig6", *out, "--dry-run")
    assert status == 0
    assert "table1-small" in printed
    words = " ".join(printed.replace("│", " ").split())
    assert "warmup 0; " in words
    assert "plain training, SelectiveLoader(..., keep=" in words
    assert not (tmp_path / "runs").exists()

    status, printed, _ = run_siftback(monkeypatch, capsys, "run", "fig6", *out)
    assert status == 0
    picture = tmp_path / "runs" / "table1-small" / "fig6.svg"
    assert str(picture) in printed.replace("\n", "")
    assert picture.stat().st_size > 1000
    summaries = sorted((tmp_path / "runs" / "table1-small").glob("*/summary.json"))
    before = {path: path.read_bytes() for path in summaries}
    assert [path.parent.name for path in before] == ["cifar10", "digits", "mnist"]

    status, printed, err = run_siftback(monkeypatch, capsys, "run", "fig7", *out)
    assert status == 0
    assert err.count("is finished") == 3
    assert picture.with_name("fig7.svg").is_file()
    assert {path: path.read_bytes() for path in summaries} == before

    again = ("--only", "digits", "--overwrite")
    status, printed, err = run_siftback(monkeypatch, capsys, "run", "fig7", *out, *again)
    assert status == 0
    assert "is finished" not in err


@pytest.mark.parametrize(
    ("only", "expected"),
    [
        ("mnist-1", ["mnist-1"]),
        ("mnist", ["mnist-1", "mnist-2", "mnist-4", "mnist-8", "mnist-16"]),
        ("mnist-16, digits-1,mnist-1", ["digits-16", "mnist-1", "mnist-16"]),
    ],
)
def test_comparisons_are_named_whole_or_by_their_beginning(
    monkeypatch, capsys, tmp_path, only, expected
):
    monkeypatch.setenv("COLUMNS", "400")
    arguments = ("run", "pays", "--only", only, "--out", tmp_path, "--dry-run")
    status, printed, err = run_siftback(monkeypatch, capsys, *arguments)
    assert status == 0, err
    names = re.findall(r"pays-small/(\S+)", printed)
    assert sorted(names) == sorted(expected)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "fig0"), "no recipe 'fig0'"),
        (("run", "fig5", "--scale", "big"), "--scale big: give one of full, small"),
        (("run", "fig5", "--set", "epochs"), "give a key and a value, such as epochs=2"),
        (("run", "fig5", "--set", "epoch=2"), "did you mean epochs?"),
        (("recipes", "--scale", "big"), "--scale big"),
    ],
)
def test_a_wrong_call_is_told(monkeypatch, capsys, arguments, said):
    status, _, err = run_siftback(monkeypatch, capsys, *arguments)
    assert status == 2
    assert said in err


def test_the_list_names_every_recipe(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    status, printed, _ = run_siftback(monkeypatch, capsys, "recipes")
    assert status == 0
    assert all(re.search(rf"\b{name}\b", printed) for name in recipe_names())
