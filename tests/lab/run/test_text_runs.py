"""Real runs on small texts: what they cost, what they leave, and what is refused."""

import math
import shutil
from dataclasses import asdict, replace

import numpy as np
import pytest
import texts as made
import torch
from tokenizers import Tokenizer

from siftback import Epochs
from siftback.errors import ConfigError
from siftback.lab.data.load import load
from siftback.lab.data.stream import BatchStream
from siftback.lab.experiments.comparison import Plan, compare, prepare_data
from siftback.lab.experiments.example_scores import score_examples
from siftback.lab.experiments.probe_run import probe_settings
from siftback.lab.experiments.summary_table import rows
from siftback.lab.figures.analyses import analyse
from siftback.lab.figures.error_plots import error_figure
from siftback.lab.models import attention
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.frame import speedups
from siftback.lab.records.observations import looks
from siftback.lab.report.page import write_report
from siftback.lab.report.pages import write_page
from siftback.lab.report.verdict import verdicts
from siftback.lab.run.checkpoints import CheckpointPolicy
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings

BATCH, KEEP = 16, 0.5


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Small texts in place of SST-2, a small text, and a cache of their own."""
    folder = tmp_path_factory.mktemp("texts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIFTBACK_CACHE", str(folder / "cache"))
        patch.setenv("SIFTBACK_DATA", str(made.write_sst2(folder / "data")))
        made.write_verses(folder / "verses.txt")
        yield folder


def of_texts(**changes):
    quick = {"data": "sst2", "model": "ngrams", "width": 4, "epochs": 3.0, "device": "cpu"}
    return Settings(**(quick | {"batch_size": BATCH, "warmup": Epochs(0)} | changes))


def of_language(sources, **changes):
    quick = {"data": f"text:{sources / 'verses.txt'}", "model": "gpt", "width": 8, "budget": 3.0}
    return Settings(
        **(
            quick
            | {"max_tokens": 16, "batch_size": BATCH, "device": "cpu", "warmup": Epochs(0)}
            | changes
        )
    )


class StoppedError(Exception):
    """As Ctrl-C would."""


class StopsAt(Reporter):
    def __init__(self, share):
        self._share = share

    def update(self, done):
        if done >= self._share:
            raise StoppedError


@pytest.fixture(scope="module")
def classified(sources):
    """The summaries of all strategies on texts with classes."""
    names = ["traditional", "random", "rs2", "sb", "sb-memory", "stale-sb-2", "infobatch", "ies"]
    names += ["sb-memory-weighted", "sb-memory-annealed", "kakurenbo", "el2n"]
    asked = of_texts(observe="losses,confidence", score_models=1)
    plan = Plan(asked, names, [KEEP], [0], matched=False)
    return compare(plan, sources / "classified", Reporter())


def test_texts_are_learnt_and_judged_by_the_error(classified):
    found = {run.strategy: run for run in classified.runs}
    assert {run.metric for run in found.values()} == {"error"}
    for name in ("traditional", "sb-memory", "sb-memory-weighted", "sb"):
        assert found[name].test_error_final == found[name].final < 20
    plain = found["traditional"]
    ends = classified.evaluations(plain)
    assert plain.test_loss_final == ends[-1].test_loss
    assert plain.test_loss_best == min(end.test_loss for end in ends)
    assert (plain.tokens_per_character, plain.data, plain.model) == (None, "sst2", "ngrams-4")
    assert "final error %" in rows(classified)[0]
    written = (classified.folder / "tokenizer.json").read_text(encoding="utf-8")
    assert written == load("sst2").tokenizer
    assert Tokenizer.from_str(written).encode("good").ids


def test_costs_count_valid_tokens(classified):
    """By how often each example was trained on, and by the batches that were scored."""
    data = load("sst2")
    sizes = data.sizes(data.train_inputs).double()
    stream = BatchStream(data, BATCH, seed=0, indexed=True)
    scored = 0.0
    for epoch in range(3):
        stream.set_epoch(epoch)
        scored += sum(float(sizes[indices].sum()) for indices, _ in stream)
    forwards = {"traditional": 0.0, "sb-memory": 0.0, "rs2": 0.0, "infobatch": 0.0, "random": 0.0}
    forwards |= {"sb": scored, "sb-memory-weighted": 0.0}
    for run in classified.runs:
        if run.strategy not in forwards:
            continue
        seen = looks(classified.folder, run.record, "losses")[-1].columns
        assert np.array_equal(seen["index"], np.arange(200))
        used = float((sizes.numpy() * seen["uses"]).sum())
        assert run.cost_forward_units == pytest.approx(forwards[run.strategy] + 3 * used, rel=1e-5)
        assert int(seen["uses"].sum()) == run.examples_backpropped
    # Which is not what the number of examples says.
    differences = [
        run.cost_forward_units - run.examples_forwarded - 2 * run.examples_backpropped
        for run in classified.runs
    ]
    assert max(map(abs, differences)) > 10


def test_what_all_images_cost_stays_as_it_was(tmp_path):
    images, labels = np.zeros((40, 8, 8), np.uint8), np.arange(40) % 2
    images[labels == 1] = 255
    np.savez(tmp_path / "a.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    asked = of_texts(data=f"npz:{tmp_path / 'a.npz'}", model="mlp", batch_size=8, lr=0.01)
    run, sb = compare(
        Plan(asked, ["traditional", "sb"], [KEEP], [0], matched=False),
        tmp_path / "out",
        Reporter(),
    ).runs
    assert run.cost_forward_units == 3 * 120
    assert sb.cost_forward_units == sb.examples_forwarded + 2 * sb.examples_backpropped
    assert not (tmp_path / "out" / "tokenizer.json").exists()


@pytest.fixture(scope="module")
def written(sources):
    """The summaries of strategies on the next characters of a text, at one budget."""
    names = ["traditional", "sb", "sb-memory", "sb-memory-annealed"]
    plan = Plan(of_language(sources, observe="losses"), names, [KEEP], [0, 1])
    return compare(plan, sources / "written", Reporter())


def test_language_is_judged_by_the_loss(written, sources):
    for run in written.runs:
        ends = written.evaluations(run)
        assert (run.metric, run.tokens_per_character) == ("loss", 1.0)
        assert run.final == run.test_loss_final == ends[-1].test_loss
        assert run.best == run.test_loss_best == min(end.test_loss for end in ends)
        assert run.final < ends[0].test_loss < np.log(written_classes(sources))
        assert 0 < run.test_error_final <= 100
    # All spent the same, and a window costs what any other does.
    costs = [run.cost_forward_units for run in written.runs]
    assert max(costs) - min(costs) <= 3 * BATCH
    for run in written.runs:
        by_number = run.examples_forwarded + 2 * run.examples_backpropped
        assert run.cost_forward_units == pytest.approx(by_number)
    assert Comparison.read(written.folder) == written


def written_classes(sources):
    return load(of_language(sources).data).classes


def test_the_loss_is_that_of_the_model_on_all_windows(sources, tmp_path):
    kept = {}
    asked = of_language(sources, budget=1.0)
    plan = Plan(asked, ["traditional"], [1.0], [0], matched=False)
    (run,) = compare(
        plan, tmp_path, Reporter(), on_model=lambda run, model: kept.update(model=model.eval())
    ).runs
    data = load(asked.data, max_tokens=16)
    with torch.no_grad():
        logs = kept["model"](data.test_inputs.long()).log_softmax(-1)
    each = -logs.gather(-1, data.test_labels[..., None])
    assert run.test_loss_final == pytest.approx(float(each.mean()), rel=1e-5)
    wrong = (logs.argmax(-1) != data.test_labels).float().mean()
    assert run.test_error_final == pytest.approx(100 * float(wrong), rel=1e-5)


def test_tables_plots_and_verdicts_follow_the_loss(written):
    first = rows(written)[0]
    assert {"final loss", "best loss", "bits per character"} <= set(first)
    assert not any("error" in column for column in first)
    mean = np.mean([run.final for run in written.runs if run.strategy == "traditional"])
    assert float(first["final loss"].split()[0]) == pytest.approx(mean, abs=5e-4)
    assert float(first["bits per character"].split()[0]) == pytest.approx(
        mean / np.log(2), abs=5e-4
    )
    figure = error_figure(written)
    assert {panel.y_label for panel in figure.views["all"]} == {"test loss (nats per token)"}
    assert "nats" in figure.views["all"][0].series[0].label
    assert speedups(written, (1.5,))["traditional"] == {1.5: pytest.approx((1.0, 1.0, 1.0))}
    for one in verdicts([written]):
        assert one.metric.name == "loss"
        assert ("nats" in one.sentence) == (one.baseline == "traditional")
    assert any(one.baseline for one in verdicts([written]))
    found = analyse([written])
    said = " ".join(getattr(one, "sentence", "") for one in found.values())
    assert "nats" in said
    assert " %" not in said.replace("95 %", "")
    for one in found.values():
        assert "error" not in one.title.lower(), one.name
        panels = [panel for view in getattr(one, "views", {}).values() for panel in view]
        assert not any("error" in f"{panel.x_label} {panel.y_label}" for panel in panels)
        assert not any("error" in column for column in getattr(one, "columns", ()))
    assert found["fig6"].title == "Test loss over training iterations"


def test_pages_of_texts_and_language_name_the_measure_of_each(written, classified, tmp_path):
    for of in (written, classified):
        shutil.copytree(of.folder, tmp_path / "results" / of.folder.name)
    titles = {name: one.title for name, one in analyse([written, classified]).items()}
    assert titles["fig7"] == "Test error or loss over training time"
    assert titles["table1"] == "Speed-up to near the final error or loss of plain training"
    assert analyse([classified])["fig7"].title == "Test error over training time"
    write_page(tmp_path / "results", tmp_path / "results.md")
    page = (tmp_path / "results.md").read_text()
    assert "in nats per token of final test loss" in " ".join(page.split())
    (line,) = (line for line in page.splitlines() if "`Memory(keep=" in line)
    assert " nats" in line
    report, problems = write_report([tmp_path / "results"], tmp_path / "report.html")
    assert not problems
    text = report.read_text(encoding="utf-8")
    assert "Test loss (nats per token): mean ±" in text
    assert "Test error (%): mean ±" in text


@pytest.mark.parametrize("strategy", ["sb", "sb-memory-annealed"])
def test_a_run_goes_on_as_if_nothing_had_been(sources, tmp_path, strategy):
    left, trained = [], []
    for name, stops in (("whole", ()), ("resumed", (0.37, 0.81))):
        plan = Plan(of_texts(), [strategy], [KEEP], [0], matched=False)
        folder = tmp_path / name
        for share in stops:
            with pytest.raises(StoppedError):
                compare(
                    plan, folder, StopsAt(share), "resume", policy=CheckpointPolicy(0.03, math.inf)
                )
        compare(plan, folder, Reporter(), "resume", lambda run, model: trained.append(model))
        comparison = Comparison.read(folder)
        ends = [asdict(end) for end in comparison.evaluations(comparison.runs[0])]
        left.append([{k: v for k, v in e.items() if k not in ("seconds", "phases")} for e in ends])
    assert left[0] == left[1]
    one, other = (model.state_dict() for model in trained)
    assert all(one[name].equal(other[name]) for name in one)


def test_texts_that_became_others_are_not_gone_on_with(sources, tmp_path):
    plan = Plan(of_texts(), ["traditional"], [1.0], [0], matched=False)
    compare(plan, tmp_path, Reporter())
    data = prepare_data(plan)
    others = replace(data, tokenizer=data.tokenizer.replace("good", "goad"))
    with pytest.raises(ConfigError, match=r"made with other settings .examples was"):
        compare(plan, tmp_path, Reporter(), "resume", data=others)


def test_training_ends_at_a_loss(sources, tmp_path):
    asked = of_language(sources, stop_at_loss=3.0, evaluations=12)
    (run,) = compare(
        Plan(asked, ["traditional"], [1.0], [0], matched=False), tmp_path, Reporter()
    ).runs
    ends = [end.test_loss for end in Comparison.read(tmp_path).evaluations(run)]
    assert ends[-1] <= 3.0 < min(ends[:-1], default=4.0)
    assert run.epochs < 3


@pytest.mark.parametrize(
    ("changes", "strategy", "message"),
    [
        ({"model": "cnn"}, "sb", "model 'cnn' takes images, and sst2 holds texts of a class each"),
        ({"model": "gpt"}, "sb", "give --model one of transformer, ngrams"),
        ({"data": "digits"}, "sb", "model 'ngrams' takes texts .* and digits holds images"),
        ({"cutout": 4}, "sb", "cutout=4 is of images, and sst2 holds texts"),
        ({"mixup": 0.5}, "sb", "mixup=0.5 is of images"),
        (
            {},
            "sb-small",
            r"scorer=contrib.Downsampled\(\)\) is a strategy for images, and sst2 holds texts",
        ),
        ({}, "sb-pipelined", r"sb-pipelined [\d.]+ is a strategy for images"),
        ({"epochs": None, "time_budget": 9.0}, "sb-memory-annealed", "known number of epochs"),
        ({"noise_guard": True}, "sb-memory-weighted", "cannot have a noise guard"),
        ({"max_tokens": 1}, "sb", "max_tokens=1: give an integer from 2"),
    ],
)
def test_what_texts_cannot_have_is_refused_before_training(changes, strategy, message, sources):
    with pytest.raises(ConfigError, match=message):
        prepare_data(Plan(of_texts(**changes), [strategy], [KEEP], [0]))


@pytest.mark.parametrize(
    ("changes", "strategy", "message"),
    [
        (
            {},
            "kakurenbo",
            r"Kakurenbo\(ratio=[\d.]+\) is a strategy for images or texts of a class each or rows "
            "of a table, and",
        ),
        ({}, "el2n", r"el2n\(models, dataset\), drop=.* is a strategy for images or texts"),
        ({}, "sb-memory-guarded", "a noise guard, which holds back wrong labels"),
        ({"flip": 0.1}, "sb", "whose examples have no class"),
        ({"observe": "confidence"}, "sb", "confidence is that in an example's class"),
    ],
)
def test_what_language_cannot_have_is_refused_before_training(changes, strategy, message, sources):
    with pytest.raises(ConfigError, match=message):
        prepare_data(Plan(of_language(sources, **changes), [strategy], [KEEP], [0]))


def test_a_single_pass_over_windows_costs_a_forward_of_all_and_a_backward_of_the_kept(
    sources, tmp_path, monkeypatch
):
    monkeypatch.setattr(attention, "GPT_DEPTH", 1)  # as tracing takes long
    asked = of_language(sources, budget=None, epochs=1.0)
    plan = Plan(asked, ["sb-single-pass"], [KEEP], [0], matched=False)
    (run,) = compare(plan, tmp_path, Reporter()).runs
    assert run.examples_forwarded == 2 * run.examples_backpropped == 32 * run.steps > 0
    assert run.cost_forward_units == pytest.approx(2 * run.examples_forwarded)


def test_windows_are_scored_by_their_losses(sources):
    asked = of_language(sources, score_models=1)
    found = score_examples("loss", asked, 0)
    assert len(found.scores) == len(load(asked.data, max_tokens=16).train_labels)
    assert bool(((found.scores > 0) & (found.scores < 9)).all())
    with pytest.raises(ConfigError, match=r"el2n is of .*a class each.*loss, irreducible"):
        score_examples("el2n", asked, 0)


def test_a_probe_takes_texts(sources):
    found = probe_settings(of_texts(), [KEEP], 0.2)
    assert {"traditional", "sb", "sb-bf16", "sb-memory"} <= {row.strategy for row in found.rows}
    assert "sb-small" not in {row.strategy for row in found.rows}
