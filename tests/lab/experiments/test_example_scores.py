"""Tables of scores made by early models, and training on what they keep."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy.stats import spearmanr
from torch.nn import functional as F

from siftback import Epochs
from siftback.errors import ConfigError
from siftback.lab import models
from siftback.lab.data.data_set import ImageData
from siftback.lab.data.load import load
from siftback.lab.data.stream import BatchStream, evaluation_batches
from siftback.lab.experiments import example_scores as scores
from siftback.lab.experiments.comparison import Plan, compare
from siftback.lab.experiments.example_scores import read_subset, write_subset
from siftback.lab.length import Length, PhaseClock
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.run_summary import RunSummary
from siftback.lab.run.progress import Reporter
from siftback.lab.run.train import stages
from siftback.lab.settings import Run, Settings
from siftback.lab.strategies.strategy import Job
from siftback.lab.strategies.table import STRATEGIES, find_strategy
from siftback.pruning import prune

COUNT, BATCH, EPOCHS = 200, 50, 2
QUICK = Settings(
    data="digits", width=4, train_limit=COUNT, batch_size=BATCH, epochs=1.0, device="cpu",
    score_models=2, score_epochs=float(EPOCHS), warmup=Epochs(0),
)  # fmt: skip
TRAINING = 3 * EPOCHS * COUNT  # what one early model costs


def logits_of(seed: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Logits of all examples after each epoch of a model, and the labels."""
    data = load("digits", COUNT)
    images, labels = next(BatchStream(data, COUNT, 0).plain(COUNT))
    found = []
    for stage in stages(seed, QUICK, data, EPOCHS):
        stage.model.eval()
        found.append(stage.model(images).detach())
        stage.model.train()
    assert len(found) == EPOCHS
    return found, labels


def margins(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.stack(
        [z[y] - max(z[c] for c in range(10) if c != y) for z, y in zip(logits, labels, strict=True)]
    )


def expected(name: str, epochs: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    last = epochs[-1]
    chances = last.softmax(1)
    if name == "el2n":
        return (chances - F.one_hot(labels, 10)).norm(dim=1)
    if name == "margin":
        ordered = chances.sort(1).values
        return 1 - ordered[:, -1] + ordered[:, -2]
    if name == "entropy":
        return -(chances * chances.log()).sum(1)
    if name == "loss":
        return F.cross_entropy(last, labels, reduction="none")
    if name == "aum":
        return -(margins(epochs[0], labels) + margins(epochs[1], labels)) / 2
    first, second = ((z.argmax(1) == labels) for z in epochs)
    return torch.where(first | second, (first & ~second).float(), 2.0)


PRICES = {"el2n": 1, "margin": 1, "entropy": 1, "loss": 1, "aum": EPOCHS, "forgetting": EPOCHS}


def test_every_score_has_a_row() -> None:
    apart = {"grand", "irreducible", "token-irreducible", "sb-uses"}  # tests of their own
    assert set(scores.SCORES) == PRICES.keys() | apart


@pytest.mark.parametrize("name", PRICES)
def test_columns_are_those_of_models_trained_alone(name: str) -> None:
    table = scores.score_examples(name, QUICK, seed=0)
    assert table.columns.shape == (COUNT, 2)
    for column, seed in zip(table.columns.T, (1000, 1001), strict=True):
        torch.testing.assert_close(column, expected(name, *logits_of(seed)), rtol=1e-4, atol=1e-5)
    assert table.origin["seeds"] == [1000, 1001]
    assert table.origin["cost"] == 2 * (TRAINING + PRICES[name] * COUNT)
    assert table.origin["seconds"] > 0
    assert table.labels.equal(load("digits", COUNT).train_labels)


def test_gradients_at_the_start_cost_no_training() -> None:
    table = scores.score_examples("grand", replace(QUICK, score_epochs=0.0, score_models=1), seed=3)
    assert table.origin["cost"] == 3 * COUNT
    data = load("digits", COUNT)
    (stage,) = stages(4000, QUICK, data, 0)
    stage.model.eval()
    images, labels = next(BatchStream(data, COUNT, 0).plain(COUNT))
    for i in (0, 17, COUNT - 1):
        stage.model.zero_grad()
        F.cross_entropy(stage.model(images[i : i + 1]), labels[i : i + 1]).backward()
        norm = sum((w.grad**2).sum() for w in stage.model.parameters() if w.grad is not None)
        torch.testing.assert_close(table.scores[i], torch.as_tensor(norm).sqrt())


def test_irreducible_losses_are_of_models_that_have_not_seen_the_example() -> None:
    table = scores.score_examples("irreducible", replace(QUICK, score_models=1), seed=0)
    assert table.origin["cost"] == TRAINING + COUNT
    data = load("digits", COUNT)
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(1000))
    seen, unseen = (half.sort().values for half in order.split(COUNT // 2))
    half, other = data.subset(seen), data.subset(unseen)
    *_, stage = stages(1000, QUICK, half, EPOCHS)
    stage.model.eval()
    held = replace(half, test_inputs=other.train_inputs, test_labels=other.train_labels)
    ((images, labels),) = evaluation_batches(held, COUNT)
    losses = F.cross_entropy(stage.model(images), labels, reduction="none")
    torch.testing.assert_close(table.scores[unseen], losses.detach())


def test_uses_are_those_of_a_run_of_selective_backprop(tmp_path: Path) -> None:
    table = scores.score_examples("sb-uses", replace(QUICK, score_models=1), seed=0)
    plan = Plan(replace(QUICK, epochs=float(EPOCHS)), ["sb"], [0.5], [1000], matched=False)
    (summary,) = compare(plan, tmp_path, Reporter()).runs
    assert table.scores.sum() == summary.examples_backpropped
    assert table.origin["cost"] == summary.cost_forward_units
    assert set(table.scores.tolist()) == {0.0, 1.0, 2.0}
    # What was used least is mostly what is easiest.
    easy = scores.score_examples("loss", replace(QUICK, score_models=1), seed=0)
    ((_, dropped, _),) = scores.overlaps(table, easy, [0.25])
    assert dropped > 0.35


def test_a_table_survives_its_file_and_tells_how_it_was_made(tmp_path: Path) -> None:
    made = scores.score_examples("el2n", replace(QUICK, score_epochs=0.0), seed=0)
    path = tmp_path / "deep" / "el2n.parquet"
    made.write(path)
    read = scores.Scores.read(path)
    assert read.columns.equal(made.columns)
    assert read.labels.equal(made.labels)
    assert read.origin == made.origin
    environment = read.origin["environment"]
    assert environment["arguments"]["train_limit"] == COUNT
    assert {"commit", "torch", "cpu"} <= environment.keys()
    ((drop, dropped, kept),) = scores.overlaps(read, made, [0.25])
    assert (drop, dropped, kept) == (0.25, 1.0, 1.0)


def test_overlap_is_of_what_both_drop_and_of_what_both_keep() -> None:
    labels = torch.zeros(8, dtype=torch.int64)
    up = scores.Scores(torch.arange(8.0)[:, None], labels, {})
    swapped = torch.tensor([0.0, 1, 4, 5, 2, 3, 6, 7])
    other = scores.Scores(swapped[:, None], labels, {})
    assert scores.overlaps(up, other, [0.25, 0.5]) == [(0.25, 1.0, 1.0), (0.5, 0.5, 0.5)]
    opposite = scores.Scores(-up.columns, labels, {})
    assert scores.overlaps(up, opposite, [0.25]) == [(0.25, 0.0, 4 / 6)]
    fewer = scores.Scores(up.columns[:4], labels[:4], {})
    with pytest.raises(ConfigError, match="give two of the same training set"):
        scores.overlaps(up, fewer, [0.5])


# -- strategies


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("pruned")
    names = ["traditional", "el2n", "diet-sb", "diet-random", "rho"]
    compare(Plan(QUICK, names, [0.5], [0]), folder, Reporter())
    return Comparison.read(folder)


def run(comparison: Comparison, strategy: str) -> RunSummary:
    return next(run for run in comparison.runs if run.strategy == strategy)


SCORING = 2 * (TRAINING + COUNT)


@pytest.mark.parametrize("strategy", ["el2n", "diet-sb", "diet-random", "rho"])
def test_scores_are_charged_to_each_apart_and_in_the_total(
    compared: Comparison, strategy: str
) -> None:
    summary = run(compared, strategy)
    assert summary.cost_scoring == SCORING
    own = summary.examples_forwarded + 2 * summary.examples_backpropped
    assert summary.cost_forward_units == own + SCORING
    assert 0 < summary.seconds_scoring < summary.seconds_train
    assert summary.seconds_by_phase["scoring"] == summary.seconds_scoring
    for evaluation in compared.evaluations(summary):
        assert evaluation.cost > SCORING
        assert evaluation.seconds > summary.seconds_scoring
    tables = sorted((compared.folder / "scores").iterdir())
    assert [table.name for table in tables] == ["el2n-seed0.parquet", "irreducible-seed0.parquet"]
    for table in tables:
        assert scores.Scores.read(table).origin["cost"] == SCORING
    matched = next(run for run in compared.runs if run.matched_to == strategy)
    assert 0 <= matched.cost_forward_units - summary.cost_forward_units < 3 * BATCH
    assert matched.cost_scoring == run(compared, "traditional").cost_scoring == 0


def test_each_prunes_its_share_and_selects_from_what_is_left(compared: Comparison) -> None:
    el2n, diet = run(compared, "el2n"), run(compared, "diet-sb")
    assert el2n.keep_measured == 0.5
    assert el2n.examples_forwarded == el2n.examples_backpropped == 100
    assert el2n.epochs == 1.0
    # 150 are left, and two thirds of them are to be kept: half in all.
    assert diet.epochs == 1.0
    assert diet.examples_forwarded - diet.examples_backpropped == 150
    assert diet.keep_measured == pytest.approx(0.5, abs=0.12)
    assert run(compared, "diet-random").keep_measured == pytest.approx(0.5, abs=0.12)


@pytest.mark.parametrize(("keep", "drop"), [(0.5, 0.25), (0.375, 0.25), (0.9, 0.1), (1.0, 0.0)])
def test_diet_prunes_a_quarter_where_it_can(keep: float, drop: float) -> None:
    assert find_strategy("diet-sb").dropped(keep) == pytest.approx(drop)
    assert find_strategy("el2n").dropped(keep) == pytest.approx(1 - keep)
    assert find_strategy("sb").dropped(keep) == 0


def test_what_is_pruned_has_the_lowest_scores(tmp_path: Path) -> None:
    data = load("digits", COUNT)
    quick = replace(QUICK, score_epochs=0.0)
    left = scores.score_for_run(Run("el2n", 0.5, 7), quick, data, tmp_path)
    table = scores.Scores.read(tmp_path / "scores" / "el2n-seed7.parquet")
    kept = prune(table.scores, 0.5)
    assert left.data.train_inputs.equal(data.train_inputs[kept])
    assert left.data.train_labels.equal(data.train_labels[kept])
    unscored = scores.score_for_run(Run("sb", 0.5, 7), quick, data, tmp_path)
    assert (unscored.data, unscored.cost, unscored.scores) == (data, 0, None)
    assert {"el2n", "diet-sb", "diet-random"} <= STRATEGIES.keys()


def test_rho_scores_each_batch_and_keeps_the_highest_of_it(compared: Comparison) -> None:
    summary = run(compared, "rho")
    assert summary.score_cost == 1  # a fresh forward
    assert summary.examples_forwarded - summary.examples_backpropped == COUNT
    assert summary.keep_measured == 0.5
    (evaluation,) = compared.evaluations(summary)
    assert evaluation.agreement is not None
    assert -1 <= evaluation.agreement <= 1


def test_a_warm_up_may_be_longer_than_the_training_of_the_models_that_score(tmp_path: Path) -> None:
    settings = replace(QUICK, epochs=4.0, score_epochs=1.0, warmup=Epochs(2))
    found = scores.score_for_run(Run("rho", 0.5, 0), settings, load("digits", COUNT), tmp_path)
    assert found.cost == 2 * (3 * COUNT + COUNT)


def test_rho_selects_by_the_loss_less_the_irreducible_one(tmp_path: Path) -> None:
    data = load("digits", COUNT)
    torch.manual_seed(0)
    found = scores.score_for_run(Run("rho", 0.5, 0), QUICK, data, tmp_path)
    table = scores.Scores.read(tmp_path / "scores" / "irreducible-seed0.parquet")
    assert found.data is data
    assert found.scores is not None
    assert found.scores.equal(table.scores)
    device = torch.device("cpu")
    model = models.build("cnn", width=4, classes=10, channels=1)
    run = Run("rho", 0.5, 0)
    length = Length.of(run, QUICK, COUNT)
    rho = find_strategy("rho")
    job = Job(
        run, rho, rho.warmed(QUICK), data, model, device, length, PhaseClock(device), found.scores
    )
    batches = rho.moment(job)
    given = iter(batches)
    first, second = next(given), next(given)  # pooled from two batches each
    images, labels = (torch.cat(both) for both in zip(first, second, strict=True))
    expected = []
    plain = BatchStream(data, BATCH, 0, indexed=True)
    for indices, (x, y) in plain:
        model.eval()
        excess = F.cross_entropy(model(x), y, reduction="none") - table.scores[indices]
        expected += [x[row] for row in excess.topk(BATCH // 2).indices.sort().values]
    model.train()
    assert images.equal(torch.stack(expected))
    assert len(labels) == COUNT // 2
    losses = F.cross_entropy(model.eval()(plain_images(data)), data.train_labels, reduction="none")
    assert batches.agreement() == pytest.approx(
        spearmanr((losses - table.scores).detach(), losses.detach()).statistic, abs=1e-3
    )


def plain_images(data: ImageData) -> torch.Tensor:
    (images, _) = next(BatchStream(data, COUNT, 0).plain(COUNT))
    return images


def test_what_is_done_is_told_as_a_share_that_grows() -> None:
    for name, quick in (
        ("el2n", QUICK),
        ("aum", QUICK),
        ("irreducible", QUICK),
        ("sb-uses", QUICK),
        ("grand", replace(QUICK, score_epochs=0.0)),
    ):
        told: list[float] = []
        scores.score_examples(name, quick, 0, update=told.append)
        assert told == sorted(told)
        assert len(told) >= COUNT // BATCH
        assert 0 <= told[0] < 0.5
        assert told[-1] == pytest.approx(1)


def test_a_budget_counts_the_scores(tmp_path: Path) -> None:
    quick = replace(QUICK, epochs=None, budget=3.0, score_models=1, score_epochs=1.0)
    for summary in compare(Plan(quick, ["el2n", "diet-sb"], [0.5], [0]), tmp_path, Reporter()).runs:
        assert summary.cost_scoring == 4 * COUNT
        assert 0 <= summary.cost_forward_units - 3 * 3 * COUNT < 3 * BATCH + 2 * BATCH
    small = Plan(replace(quick, budget=1.0), ["el2n"], [0.5], [0])
    with pytest.raises(ConfigError, match="a budget of 600 forwards, and its scores cost 800"):
        compare(small, tmp_path / "small", Reporter())


# -- subsets


def test_a_subset_is_the_training_set_and_is_recorded(tmp_path: Path) -> None:
    table = scores.score_examples("el2n", replace(QUICK, score_epochs=0.0), seed=0)
    kept = prune(table.scores, 0.25)
    path = tmp_path / "kept.parquet"
    write_subset(path, table, kept, {"drop": 0.25})
    data = load("digits", COUNT)
    assert read_subset(path, QUICK, data).equal(kept)
    assert read_subset(path, QUICK, load("digits", COUNT, flipped=0.1)).equal(kept)
    reordered = replace(data, train_labels=data.train_labels.flip(0))  # as of a file sorted since
    with pytest.raises(ConfigError, match="200 examples, are 200, of other labels"):
        read_subset(path, QUICK, reordered)

    asked = replace(QUICK, subset=str(path))
    plan = Plan(asked, ["traditional"], [0.5], [0])
    (summary,) = compare(plan, tmp_path / "c", Reporter()).runs
    assert summary.examples_forwarded == 150
    assert summary.epochs == 1.0
    told = Comparison.read(tmp_path / "c").environment["arguments"]["subset"]
    assert told == asked.recorded()["subset"]
    assert told.startswith("kept.parquet, sha256 ")

    compare(plan, tmp_path / "c", Reporter(), "resume")
    write_subset(path, table, kept[1:], {"drop": 0.25})
    with pytest.raises(ConfigError, match="subset was"):
        compare(plan, tmp_path / "c", Reporter(), "resume")

    other = replace(asked, train_limit=100)
    with pytest.raises(ConfigError, match="train_limit was 200, is 100"):
        compare(Plan(other, ["traditional"], [0.5], [0]), tmp_path / "d", Reporter())


def test_bad_files_and_scores_say_so(tmp_path: Path) -> None:
    data = load("digits", COUNT)
    missing = tmp_path / "missing.parquet"
    with pytest.raises(ConfigError, match="does not exist: make it with siftback score --out"):
        scores.Scores.read(missing)
    with pytest.raises(ConfigError, match="does not exist: make it with siftback prune"):
        read_subset(missing, QUICK, data)
    (tmp_path / "text").write_text("no table")
    with pytest.raises(ConfigError, match="cannot be read as a Parquet file"):
        scores.Scores.read(tmp_path / "text")
    table = scores.score_examples("el2n", replace(QUICK, score_epochs=0.0), seed=0)
    table.write(tmp_path / "scores.parquet")
    with pytest.raises(ConfigError, match="holds no subset: give a file that siftback prune"):
        read_subset(tmp_path / "scores.parquet", QUICK, data)
    write_subset(tmp_path / "kept.parquet", table, torch.arange(3), {})
    with pytest.raises(ConfigError, match="holds no scores: give a table that siftback score"):
        scores.Scores.read(tmp_path / "kept.parquet")
    with pytest.raises(ConfigError, match="no score 'luck': give one of el2n, grand"):
        scores.score_examples("luck", QUICK, seed=0)
    with pytest.raises(ConfigError, match="aum of models that are trained for score_epochs=0"):
        scores.score_examples("aum", replace(QUICK, score_epochs=0.0), seed=0)
    with pytest.raises(ConfigError, match="score_models=0: give an integer from 1"):
        replace(QUICK, score_models=0)
