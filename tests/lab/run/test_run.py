"""A run on real digits: its costs, its baselines, and what strategies share."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from siftback import Epochs
from siftback.errors import ConfigError
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import RunSummary
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Run, Settings

EXAMPLES = 1408  # 11 batches of 128 out of the 1437 training digits


def settings(**changes: object) -> Settings:
    given = {"data": "digits", "model": "mlp", "width": 4, "epochs": 2.0, "device": "cpu"}
    return Settings(**(given | {"warmup": Epochs(0)} | changes))


def runs(folder: Path, asked: Settings, strategies: str, keep: float = 0.5) -> list[RunSummary]:
    plan = Plan(asked, strategies.split(","), [keep], [0])
    return compare(plan, folder, Reporter()).runs


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("compared")
    runs(folder, settings(), "traditional,sb,random,sb-single-pass")
    return Comparison.read(folder)


def by_strategy(comparison: Comparison) -> dict[str, RunSummary]:
    return {run.matched_to or run.strategy: run for run in comparison.runs if not run.matched_to}


def test_every_selective_run_is_followed_by_its_match(compared: Comparison) -> None:
    labels = [run.label for run in compared.runs]
    assert labels == [
        "traditional",
        "sb 0.5",
        "matched to sb 0.5",
        "random 0.5",
        "matched to random 0.5",
        "sb-single-pass 0.5",
        "matched to sb-single-pass 0.5",
    ]


def test_traditional_costs_a_forward_and_a_backward_of_each_example(compared: Comparison) -> None:
    run = by_strategy(compared)["traditional"]
    assert run.examples_forwarded == run.examples_backpropped == 2 * EXAMPLES
    assert run.cost_forward_units == 3 * 2 * EXAMPLES
    assert run.steps == 22
    assert run.epochs == 2.0
    assert run.keep_measured == 1.0
    assert run.seconds_selection == 0.0


def test_sb_forwards_every_example_and_the_kept_ones_again(compared: Comparison) -> None:
    run = by_strategy(compared)["sb"]
    trained = 128 * run.steps
    assert run.examples_backpropped == trained
    assert run.examples_forwarded == 2 * EXAMPLES + trained
    # Less than a batch of the kept ones is still pooled at the end.
    assert 0 <= run.keep_measured * 2 * EXAMPLES - trained < 128
    assert 0 < run.seconds_selection < run.seconds_train


def test_random_forwards_only_what_it_trains_on(compared: Comparison) -> None:
    run = by_strategy(compared)["random"]
    assert run.examples_forwarded == run.examples_backpropped == 128 * run.steps
    assert run.keep_measured == pytest.approx(0.5, abs=0.05)


def test_a_single_pass_forwards_every_example_once(compared: Comparison) -> None:
    run = by_strategy(compared)["sb-single-pass"]
    assert run.examples_backpropped == 128 * run.steps
    assert run.examples_forwarded == 256 * run.steps
    assert 2 * EXAMPLES <= run.examples_forwarded < 2 * EXAMPLES + 256
    assert run.keep_measured == 0.5
    assert run.cost_forward_units < by_strategy(compared)["sb"].cost_forward_units
    assert 0 < run.seconds_selection < run.seconds_train


def test_a_match_costs_what_its_run_costs(compared: Comparison) -> None:
    for run in compared.runs:
        if run.matched_to:
            budget = by_strategy(compared)[run.matched_to].cost_forward_units
            assert budget <= run.cost_forward_units < budget + 3 * 128


def test_a_budget_gives_every_strategy_the_same_cost(tmp_path: Path) -> None:
    asked = settings(epochs=None, budget=2.0)
    for run in runs(tmp_path, asked, "traditional,sb,random,random-single-pass"):
        over = run.cost_forward_units - 3 * 2 * EXAMPLES
        # A last step may overshoot, with the selection batches that fill it.
        assert 0 <= over < 3 * 128 + 4 * 128, run.label


def test_keeping_all_is_traditional_bit_for_bit(tmp_path: Path) -> None:
    weights: dict[str, torch.Tensor] = {}

    def keep_weights(run: Run, model: torch.nn.Module) -> None:
        weights[run.strategy] = torch.cat([weight.flatten() for weight in model.parameters()])

    plan = Plan(
        settings(), ["traditional", "sb", "random", "sb-single-pass"], [1.0], [0], matched=False
    )
    compare(plan, tmp_path, Reporter(), on_model=keep_weights)
    assert torch.equal(weights["traditional"], weights["sb"])
    assert torch.equal(weights["traditional"], weights["random"])
    assert torch.equal(weights["traditional"], weights["sb-single-pass"])


def test_a_seed_decides_everything(tmp_path: Path) -> None:
    first, again = (runs(tmp_path / name, settings(), "sb")[0] for name in ("a", "b"))
    assert first.test_error_final == again.test_error_final
    assert first.keep_measured == again.keep_measured


def test_evaluations_are_spread_over_training(compared: Comparison, tmp_path: Path) -> None:
    for run in compared.runs:
        made = compared.evaluations(run)
        assert len(made) == 2, run.label
        assert made[-1].steps == run.steps
        assert made[-1].test_error == run.test_error_final
        assert made[-1].cost == run.cost_forward_units
        for earlier, later in pairwise(made):
            assert earlier.seconds < later.seconds
            assert earlier.examples < later.examples
    (run,) = runs(tmp_path, settings(evaluations=5), "traditional")
    assert len(Comparison.read(tmp_path).evaluations(run)) == 5


def test_bf16_group_norm_and_cutout_train_too(tmp_path: Path) -> None:
    asked = settings(precision="bf16", norm="group", cutout=2, model="resnet18", train_limit=256)
    summary = runs(tmp_path, asked, "sb")[0]
    assert summary.model == "resnet18-4-groupnorm"
    assert 0 < summary.test_error_final <= 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": None}, "give one of them"),
        ({"budget": 2.0}, "give one of them"),
        ({"epochs": 0.0}, "epochs=0.0: give a number"),
        ({"rate": "linear"}, "no schedule 'linear': give one of step, cosine"),
        ({"model": "vgg"}, "no model 'vgg': give one of cnn"),
        ({"precision": "fp8"}, "give one of fp32, bf16, fp16"),
        ({"batch_size": 0}, "batch_size=0: give an integer from 1"),
        ({"lr": 0.0}, "lr=0.0"),
    ],
)
def test_bad_settings_say_so_at_once(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategies": ["sgd"]}, "no strategy 'sgd': give one of traditional, sb"),
        ({"strategies": ["matched"]}, "matched is not a strategy of its own"),
        ({"strategies": ["sb", "sb"]}, "none twice"),
        ({"keeps": [1.5]}, "keep=1.5 is not a share"),
        ({"seeds": []}, "give at least one"),
        ({"seeds": [-1]}, "seed=-1: give an integer from 0"),
    ],
)
def test_a_bad_plan_says_so_at_once(change: dict[str, list[object]], message: str) -> None:
    plan = {"strategies": ["sb"], "keeps": [0.5], "seeds": [0]} | change
    with pytest.raises(ConfigError, match=message):
        Plan(settings(), **plan)


def test_a_training_that_ends_before_its_first_step_says_so(tmp_path: Path) -> None:
    asked = settings(epochs=None, time_budget=1e-9)  # which nothing can tell beforehand
    plan = Plan(asked, ["sb"], [0.05], [0], matched=False)
    with pytest.raises(ConfigError, match=r"sb-keep0.05-seed0 ended before it had kept"):
        compare(plan, tmp_path, Reporter())
