"""Strategies that select among tokens, or weigh losses: what they train on, cost and refuse."""

import math

import pytest
import texts as made
import torch
from torch.nn import functional as F

from siftback import Epochs
from siftback.cli.before_training import prune_command
from siftback.errors import ConfigError
from siftback.lab.data.load import load
from siftback.lab.experiments.comparison import Plan, compare, prepare_data
from siftback.lab.experiments.example_scores import Scores, score_examples
from siftback.lab.experiments.summary_table import rows
from siftback.lab.length import Length, PhaseClock
from siftback.lab.models.attention import Gpt
from siftback.lab.models.layers import ModelSpec
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Run, Settings
from siftback.lab.strategies.after_forward import TokenBatches, head_share
from siftback.lab.strategies.strategy import Job
from siftback.lab.strategies.table import STRATEGIES

BATCH, KEEP, LENGTH = 16, 0.25, 16
OF_TOKENS = [name for name, strategy in STRATEGIES.items() if strategy.tokens]
WEIGHTED = [name for name, strategy in STRATEGIES.items() if strategy.weighted]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of a small text, with a cache of its own."""
    folder = tmp_path_factory.mktemp("verses")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIFTBACK_CACHE", str(folder / "cache"))
        yield f"text:{made.write_verses(folder / 'verses.txt')}"


def settings(address, **changes):
    quick = {"data": address, "model": "gpt", "width": 8, "epochs": 2.0, "max_tokens": LENGTH}
    quick |= {"batch_size": BATCH, "train_limit": 96, "device": "cpu", "score_models": 1}
    return Settings(**(quick | changes))


@pytest.fixture(scope="module")
def compared(address, tmp_path_factory):
    """A run of each."""
    names = ["traditional", *OF_TOKENS, *WEIGHTED]
    plan = Plan(settings(address), names, [KEEP], [0], matched=False)
    return compare(plan, tmp_path_factory.mktemp("compared"), Reporter())


def test_only_the_heads_share_is_saved_and_scoring_is_paid(compared, address):
    data = load(address, max_tokens=LENGTH)
    share = head_share(Gpt(ModelSpec(width=8, length=LENGTH, **tokens_of(data))))
    assert 0.01 < share == pytest.approx(data.classes / (data.classes + 4 * 12 * 8))
    found = {run.strategy: run for run in compared.runs}
    plain = found["traditional"].cost_forward_units
    for name in OF_TOKENS:
        # Those that go by scores keep everything in the first of two epochs; one remembers them.
        kept, scoring = (1 + KEEP) / 2, {"token-memory": 1 / 3}.get(name, 1 / 6)
        if name == "token-random":
            kept, scoring = KEEP, 0
        run = found[name]
        assert run.keep_measured == pytest.approx(KEEP)
        assert run.cost_forward_units - run.cost_scoring == pytest.approx(
            plain * (1 - share * (1 - kept - scoring))
        )
        assert (run.cost_scoring > plain / 2) == (name == "token-rho")
        assert 0 < run.seconds_selection < run.seconds_train
    for name in WEIGHTED:
        assert found[name].cost_forward_units == plain
        assert found[name].keep_measured == 1
    finals = [run.final for run in compared.runs]
    assert len(set(finals)) == len(finals), "each trains on something else"
    assert all(math.isfinite(final) for final in finals)
    labels = [row["strategy"] for row in rows(compared)]
    assert {"token-loss 0.25", "linupper", "dft", "inverse-probability"} <= set(labels)


def tokens_of(data):
    return {"classes": data.classes, "vocabulary": data.classes}


@pytest.mark.parametrize("name", OF_TOKENS)
def test_the_gradient_is_that_of_the_selected_tokens_alone(name, address):
    data = load(address, max_tokens=LENGTH)
    torch.manual_seed(0)
    model = Gpt(ModelSpec(width=8, length=LENGTH, **tokens_of(data)))
    reference = torch.rand(data.train_labels.shape)
    score = STRATEGIES[name].tokens
    given = reference.flatten() if score == "reference" else None
    run, at_once = Run(name, KEEP, 0), settings(address, warmup=Epochs(0))
    device = torch.device("cpu")
    length, clock = Length.of(run, at_once, len(data.train_labels)), PhaseClock(device)
    tokens = TokenBatches(
        Job(run, STRATEGIES[name], at_once, data, model, device, length, clock, given)
    )
    remembered = torch.zeros(data.train_labels.shape)
    for indices in (torch.tensor([5, 0, 7]), torch.tensor([7, 3, 5])):
        inputs, labels = data.train_inputs[indices].long(), data.train_labels[indices]
        model.zero_grad()
        tokens.positions = indices
        loss = tokens.loss(inputs, labels)
        loss.backward()
        found = [parameter.grad.clone() for parameter in model.parameters()]

        model.zero_grad()
        logits = model(inputs)
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        entropies = torch.distributions.Categorical(logits=logits.detach().flatten(0, 1)).entropy()
        detached = losses.detach()
        scores = {
            "loss": detached,
            "reference": detached - reference[indices].flatten(),
            "memory": detached - remembered[indices].flatten(),
            "entropy": entropies,
        }
        remembered[indices] = detached.view(labels.shape)
        count = round(KEEP * labels.numel())
        assert (tokens.kept, tokens.tokens) in ((count, labels.numel()), (2 * count, 96))
        if score == "random":
            continue
        kept = scores[score].topk(count).indices
        losses[kept].mean().backward()
        assert loss.item() == pytest.approx(losses[kept].mean().item(), rel=1e-5)
        for one, parameter in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(one, parameter.grad, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", WEIGHTED)
def test_weighted_losses_are_means_of_weights_times_losses(name):
    weighted = STRATEGIES[name].weighted
    logits = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([[0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, -100]])
    log = logits.detach().log_softmax(-1)
    each = [-log[b, t, labels[b, t]] for b in range(3) for t in range(4) if labels[b, t] >= 0]
    of_windows = [sum(each[:4]) / 4, sum(each[4:8]) / 4, sum(each[8:]) / 3]
    losses = torch.stack(of_windows if name == "linupper" else each)
    assert weighted(logits, labels).item() == pytest.approx(expected(name, losses), rel=1e-5)
    weighted(logits, labels).backward()
    assert logits.grad[2, 3].abs().sum() == 0 < logits.grad[2, 2].abs().sum()
    of_class = torch.stack(each[:4])
    assert weighted(logits[0], labels[0]).item() == pytest.approx(expected(name, of_class))


def expected(name, losses):
    if name == "linupper":
        low, high = losses.min(), losses.max()
        heights = torch.clamp((2 * losses - low - high) / (high - low) + 1, max=1.0)
        weights = len(losses) * heights.exp() / heights.exp().sum()
    elif name == "dft":
        weights = torch.exp(-losses)
    else:
        weights = torch.exp(losses).clamp(max=10)
        weights = weights / weights.mean()
    return float((weights * losses).mean())


@pytest.mark.parametrize("name", ["traditional", *OF_TOKENS, *WEIGHTED])
def test_a_training_that_diverges_goes_on_to_its_end(name, address, tmp_path):
    plan = Plan(settings(address, lr=1e4, epochs=3.0), [name], [KEEP], [0], matched=False)
    (run,) = compare(plan, tmp_path, Reporter()).runs
    assert (run.diverged, run.epochs) == (True, 3.0)


def test_the_reference_is_a_model_of_the_other_half(address, tmp_path):
    asked = settings(address, score_epochs=1.0)
    for name in ("token-irreducible", "irreducible"):
        score_examples(name, asked, 0).write(tmp_path / name)
    tokens, windows = (
        Scores.read(tmp_path / name) for name in ("token-irreducible", "irreducible")
    )
    of_windows = tokens.scores.view(len(windows.scores), LENGTH).mean(1)
    torch.testing.assert_close(of_windows, windows.scores)
    assert tokens.origin["cost"] == windows.origin["cost"]
    with pytest.raises(ConfigError, match="holds token-irreducible, a score of each token"):
        prune_command(scores=tmp_path / "token-irreducible", out=tmp_path / "kept", drop="0.5")


@pytest.mark.parametrize(
    ("strategy", "changes", "message"),
    [
        *((name, {"data": "digits", "model": "mlp"}, rf"{name} [\d.]+ is a .* digits holds images")
          for name in OF_TOKENS),
        ("token-loss", {"label_smoothing": 0.1}, r"label_smoothing=0.1 with token-loss [\d.]+, "
         "which goes"),
        ("dft", {"label_smoothing": 0.1}, "label_smoothing=0.1 with dft, which goes by"),
        ("linupper", {"data": "digits", "model": "mlp", "mixup": 0.4}, "mixup=0.4 with linupper"),
        *((name, {"data": "digits", "model": "mlp", "label_smoothing": 0.1, "noise_guard": guard},
           r"label_smoothing=0.1 with Memory\(.*, which goes by")
          for name, guard in (("sb-memory-guarded", False), ("Memory()", True))),
        ("linupper@0.5", {}, "linupper keeps everything, leave out @0.5"),
        ("token-rho", {"score_epochs": 0.0}, "token-irreducible of models that are trained for"),
        ("token-loss", {"noise_guard": True}, r"token-loss [\d.]+ cannot have a noise guard"),
    ],
)  # fmt: skip
def test_what_they_cannot_have_is_refused_before_training(strategy, changes, message, address):
    asked = {"max_tokens": None} if "data" in changes else {}
    with pytest.raises(ConfigError, match=message):
        prepare_data(Plan(settings(address, **asked, **changes), [strategy], [KEEP], [0]))
