"""A real run that is looked at: training is the same, and the figures can be made."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from rich.console import Console

from siftback import Epochs
from siftback.errors import ConfigError
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.figures.analyses import analyse
from siftback.lab.figures.figure import Missing
from siftback.lab.figures.reading import read
from siftback.lab.figures.writing import export_csv
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.observations import KINDS, OBSERVED, looks
from siftback.lab.run.checkpoints import CheckpointPolicy
from siftback.lab.run.progress import ConsoleReporter, Reporter
from siftback.lab.settings import Settings

ALL = ",".join(KINDS)
STRATEGIES = ["traditional", "sb", "diet-sb"]
OF_LOSSES = ("fig2", "fig3", "fig4", "fig15", "diet-d", "diet-e", "diet-f")


def settings(**changes):
    quick = {"data": "digits", "width": 4, "epochs": 2.0, "device": "cpu", "batch_size": 32}
    return Settings(**(quick | {"train_limit": 320, "lr": 0.05, "warmup": Epochs(0)} | changes))


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    """The same comparison, looked at and not."""
    folder = tmp_path_factory.mktemp("runs")
    for name, observe in (("seen", ALL), ("unseen", "")):
        asked = settings(evaluations=3, score_models=1, observe=observe)
        plan = Plan(asked, STRATEGIES, [0.5], [0], matched=False)

        def keep(run, model, name=name):
            torch.save(model.state_dict(), folder / name / f"{run.name}.pt")

        with (
            (folder / f"{name}.txt").open("w") as said,
            ConsoleReporter(Console(file=said)) as reporter,
        ):
            compare(plan, folder / name, reporter, on_model=keep)
    return folder


def test_training_does_not_notice(observed):
    seen, unseen = (Comparison.read(observed / name) for name in ("seen", "unseen"))
    for one, other in zip(seen.runs, unseen.runs, strict=True):
        for with_it, without in zip(seen.evaluations(one), unseen.evaluations(other), strict=True):
            pairs = [asdict(each) for each in (with_it, without)]
            for each in pairs:
                del each["seconds"], each["phases"]
            assert pairs[0] == pairs[1]
        weights = [
            torch.load(path, weights_only=True)
            for path in sorted(observed.glob(f"*/{one.record[8:-6]}.pt"))
        ]
        assert len(weights) == 2
        assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    assert not (observed / "unseen" / OBSERVED).exists()


def test_what_looking_took_is_in_the_records(observed):
    for run in Comparison.read(observed / "seen").runs:
        assert set(run.seconds_observing) == set(KINDS)
        assert all(seconds > 0 for seconds in run.seconds_observing.values())
        lines = (observed / "seen" / run.record).read_text().splitlines()
        assert json.loads(lines[-1])["seconds_observing"] == run.seconds_observing
        assert len(looks(observed / "seen", run.record, "losses")) == 3
    assert Comparison.read(observed / "unseen").runs[0].seconds_observing == {}
    assert (observed / "seen.txt").read_text().count("; observing took") == len(STRATEGIES)
    assert "observing" not in (observed / "unseen.txt").read_text()


def test_uses_are_those_of_training(observed):
    for run in Comparison.read(observed / "seen").runs:
        seen = looks(observed / "seen", run.record, "losses")
        assert int(seen[-1].columns["uses"].sum()) == run.examples_backpropped
        index = seen[0].columns["index"]
        assert len(index) == (240 if run.strategy == "diet-sb" else 320)
        assert len(np.unique(index)) == len(index)
        assert index.max() >= 310


@pytest.mark.filterwarnings("ignore:.* leaves nothing out of:UserWarning")
@pytest.mark.parametrize("strategy", ["sb-single-pass", "infobatch"])
def test_uses_are_counted_however_examples_are_chosen(tmp_path, strategy):
    asked = settings(epochs=0.7, observe="losses", model="mlp")
    plan = Plan(asked, [strategy], [0.5], [0], matched=False)
    (run,) = compare(plan, tmp_path, Reporter()).runs
    (look,) = looks(tmp_path, run.record, "losses")
    assert int(look.columns["uses"].sum()) == run.examples_backpropped > 0


def test_selection_uses_high_losses_more(observed):
    (run,) = (one for one in Comparison.read(observed / "seen").runs if one.strategy == "sb")
    *_, before, after = looks(observed / "seen", run.record, "losses")
    used = after.columns["uses"] > before.columns["uses"]
    losses = before.columns["loss"]
    assert losses[used].mean() > losses[~used].mean()


def test_every_figure_that_looks_can_be_made(observed):
    comparisons, problems = read([observed / "seen"])
    assert problems == []
    for name, found in analyse(comparisons, [*OF_LOSSES, "fig5", "fig8", "fig9"]).items():
        assert not isinstance(found, Missing), f"{name}: {found}"
        assert found.sentence
        assert export_csv(found).count("\n") > 5
    similar = analyse(comparisons, ["fig5"])["fig5"]
    half = next(panels for view, panels in similar.views.items() if view.startswith("50"))
    for one in half[0].series:
        assert all(-1 <= cosine <= 1 for cosine in one.y)
    confidence = analyse(comparisons, ["fig8"])["fig8"].views["percentile"][0]
    assert all(np.all(np.diff(one.y) >= 0) for one in confidence.series)


class StoppedError(Exception):
    """As Ctrl-C would."""


class StopsAt(Reporter):
    """Stops a run once so much of it is done."""

    def __init__(self, share):
        self._share = share

    def update(self, done):
        """See `Reporter`."""
        if done >= self._share:
            raise StoppedError


@pytest.mark.parametrize("strategy", ["traditional", "sb"])
def test_a_run_that_goes_on_has_seen_the_same(tmp_path, strategy):
    plan = Plan(settings(observe=ALL, evaluations=4, model="mlp"), [strategy], [0.5], [0], False)
    (run,) = compare(plan, tmp_path / "whole", Reporter()).runs
    often = CheckpointPolicy(share=0.3, seconds=math.inf)
    with pytest.raises(StoppedError):  # beyond an evaluation that comes after the checkpoint
        compare(plan, tmp_path / "resumed", StopsAt(0.56), policy=often)
    assert len(looks(tmp_path / "resumed", run.record, "losses")) == 2
    compare(plan, tmp_path / "resumed", Reporter(), "resume", policy=often)
    for kind in KINDS:
        both = [looks(tmp_path / name, run.record, kind) for name in ("whole", "resumed")]
        assert len(both[0]) == len(both[1]) == 4
        for one, other in zip(*both, strict=True):
            assert one.epoch == other.epoch
            for name, column in one.columns.items():
                assert np.array_equal(column, other.columns[name]), (kind, name)


def test_a_run_begun_again_forgets_what_was_seen_before(tmp_path):
    for epochs, existing in ((2.0, "refuse"), (1.0, "overwrite")):
        asked = settings(epochs=epochs, observe="losses")
        compare(Plan(asked, ["traditional"], [0.5], [0]), tmp_path, Reporter(), existing)
    (run,) = Comparison.read(tmp_path).runs
    assert [look.epoch for look in looks(tmp_path, run.record, "losses")] == [1.0]


def test_what_cannot_be_looked_at():
    with pytest.raises(ConfigError, match="observe weights: give one of losses, gradients"):
        settings(observe="weights")
