"""The benchmarks of a GPU, of reading and of the demo, at a tiny size on the processor."""

import importlib.util
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from benchmark_calls import FOLDER
from scripts import load_script
from siftback.lab.data.data_set import ImageData
from siftback.lab.recipes.recipe import Scale, find_recipe

SCRIPT = Path(__file__).parent / "benchmark_calls.py"
ANOTHER_RECIPE = ("--recipe", "map", "--only", "fonts:1000,hard=0.5", "--seeds", "1")


def run(*arguments):
    """Runs the script, and gives what it prints."""
    command = [sys.executable, SCRIPT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def ran(filled_once):
    """The folder of the script that imported all benchmarks and joined runs."""
    return filled_once("benchmarks", lambda out: run(out, "imports"))


@pytest.mark.nightly
def test_each_way_of_a_step_is_timed_beside_plain_training(tmp_path):
    run(tmp_path, "steps")
    record = json.loads((tmp_path / "steps.json").read_text())
    measured = defaultdict(dict)
    for row in record["rows"]:
        training, _, way = row["setting"].partition(": ")
        measured[training, way][row["what"]] = row["measured"]
    assert len({training for training, _ in measured}) == 2
    assert {way for _, way in measured} == {
        "plain", "Memory(keep=1/3)", "Memory()", "keep=1/3, after reading", "SinglePass(keep=1/3)",
    }  # fmt: skip
    for (training, _), row in measured.items():
        plain = measured[training, "plain"]["milliseconds a step"]
        assert row["over plain's"] == pytest.approx(row["milliseconds a step"] / plain)


def test_what_every_script_imports_is_there(ran):
    imported = json.loads((ran / "imported.json").read_text())
    assert len(imported) > 25
    assert {"gpu.py", "guides/tasks.py", "peers/compare.py"} <= {*imported}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "count", "page", "text"),
    [
        ((), 7, "pays-gpu-small/pays.md", "Memory()"),
        (ANOTHER_RECIPE, 7, "map-small/worst.md", "ratios of Memory()"),
    ],
    ids=["by default", "another recipe"],
)
@pytest.mark.nightly
def test_budgets_are_trained_in_calls_that_go_on_where_the_last_one_stopped(
    tmp_path, options, count, page, text
):
    printed = run(tmp_path, "budgets", *options)
    before, after = f"0 of {count} runs", f"{count} of {count} runs"
    assert printed.index(before) < printed.index(after)
    assert text in (tmp_path / page).read_text()


def test_a_run_that_is_trained_again_replaces_its_entry_too(ran):
    errors = json.loads((ran / "joined.json").read_text())
    assert errors == {"traditional": 30.0, "sb": 40.0}


def test_the_budgets_of_a_gpu_have_a_curve_of_five_for_each_set():
    budgets = defaultdict(set)
    for plan in find_recipe("pays-gpu").plans(Scale.FULL).values():
        assert (plan.settings.model, plan.settings.width, len(plan.seeds)) == ("resnet18", 64, 3)
        assert "traditional" in plan.strategies
        budgets[plan.settings.data].add(plan.settings.budget)
    assert budgets == {"cifar10": {2, 8, 16, 32, 48}, "gtsrb": {1, 2, 4, 8, 16}}


def test_the_map_has_a_curve_of_five_for_each_set_and_the_coarse_grid_first():
    budgets, of_default = defaultdict(set), defaultdict(set)
    for plan in find_recipe("map").plans(Scale.FULL).values():
        settings = plan.settings
        key = settings.data, settings.width, settings.flip
        assert plan.strategies[0] == "traditional"
        budgets[key].add(settings.budget)
        if "sb-memory-default@0.5" in plan.strategies:
            of_default[key].add(settings.budget)
    assert all(len(points) >= 5 for points in budgets.values())
    assert all(len(of_default[key]) >= 3 for key in budgets)
    assert len([*budgets][:12]) == len({key[0] for key in [*budgets][:12]})


@pytest.fixture(scope="module")
def reading():
    """The module of the benchmark of reading."""
    for name in ("datasets", "webdataset"):
        pytest.importorskip(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        spec = importlib.util.spec_from_file_location("reading", FOLDER / "reading.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
        del sys.modules["goals"]


def test_what_is_left_out_is_not_decoded_except_of_shards(reading, tmp_path):
    count = 128
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(count) % 10
    data = ImageData("random", pixels, labels, pixels[:1], labels[:1], names=tuple("0123456789"))
    reading.write_images(tmp_path, data, count)
    for reader in reading.READERS:
        shares = defaultdict(dict)
        for row in reading.measure(reader, tmp_path, count, 1):
            shares[row.setting][row.what] = row.measured
        for setting, row in shares.items():
            trained, decoded = row["share trained on"], row["share decoded"]
            assert decoded == (1 if reader == "WebDataset" else trained)
            if "keep=0.5" in setting:
                assert trained == 0.5


def test_the_demo_is_trained_with_other_seeds_by_its_own_command():
    plan = load_script("benchmarks/demo.py").demo_plan([7, 8])
    assert plan.strategies == ("traditional", "sb-memory-default")
    assert list(plan.seeds) == [7, 8]
    assert plan.settings.data.startswith("fonts:")
