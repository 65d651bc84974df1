"""Checks that every framework passes: lengths, examples, losses, weights and resuming.

A framework is a file ``..._training.py``, whose ``train`` runs the training of `trainings`.
"""

import functools
from importlib import import_module

import pytest
import torch
import trainings
from trainings import COUNT, EPOCHS, IN_STEP, RATE, STEPS, Training

from siftback import RS2, Epochs, InfoBatch, Kakurenbo, Memory, Schedule, Stale
from siftback.errors import BatchError, ConfigError
from toys import assert_same

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*callbacks used to create the checkpoint"),
    pytest.mark.filterwarnings("ignore:.*set_vital.*deprecated"),  # by importing torchdata
]

PACKAGES = {
    "plain": "torch",
    "Accelerate": "accelerate",
    "Lightning": "lightning",
    "Hugging Face": "transformers",
    "Keras": "keras",
}
FRAMEWORKS = list(PACKAGES)
LOOPS, STEPPING = FRAMEWORKS[:2], FRAMEWORKS[2:]  # whose users write the loop, or a step
RULES = {
    "adaptive": lambda: Memory(warmup=Epochs(1)),
    "fixed": lambda: Memory(keep=0.4, warmup=Epochs(1)),  # passes end within batches
    "weights": lambda: InfoBatch(0.7, 1.0),
    "predictions": lambda: Kakurenbo(0.5, warmup=Epochs(1)),
    "random": lambda: RS2(0.25),
    "refreshed": lambda: Stale(keep=0.5, every=2, warmup=Epochs(0)),
}
LEARNING = ("adaptive", "fixed", "weights")  # from the losses of training alone
DROPOUT = {name: 0.0 if name == "Lightning" else 0.3 for name in FRAMEWORKS}


def run(framework, selection=None, **settings):
    """Trains, by the rule of a name or by a rule."""
    pytest.importorskip(PACKAGES[framework])
    if selection in RULES:
        selection = RULES[selection]()
    if framework == "plain":
        return trainings.plain(Training(selection, **settings))
    module = import_module(f"{framework.lower().replace(' ', '')}_training")
    return module.train(Training(selection, **settings))


LENGTHS = {
    "plain": [{}, {"accumulated": 5}],
    "Accelerate": [{}, {"accumulated": 5}],
    "Lightning": [
        {},
        {"accumulated": 4},
        {"options": {"val_check_interval": 0.34}},
        {"options": {"val_check_interval": 5}},
        {"options": {"limit_train_batches": 0.5, "val_check_interval": 0.5}},
        {"accumulated": 2, "options": {"limit_train_batches": 5, "val_check_interval": 0.4}},
        {
            "options": {
                "max_epochs": -1,
                "max_steps": 11,
                "val_check_interval": 4,
                "check_val_every_n_epoch": None,
            }
        },
    ],
    "Hugging Face": [
        {"options": {"warmup_steps": 2}},
        {"accumulated": 2},
        {"options": {"num_train_epochs": 2.5, "eval_strategy": "steps", "eval_steps": 2}},
        {"options": {"max_steps": 7, "eval_strategy": "steps", "eval_steps": 2}},
    ],
    "Keras": [{}],
}
# Each selection for the whole length, and each other length for two selections.
COMPARED = [
    (name, selection, length)
    for name, lengths in LENGTHS.items()
    for length in range(len(lengths))
    for selection in (*LEARNING, "predictions", IN_STEP)
    if not (length and selection in ("adaptive", "predictions"))
    and not (selection == "predictions" and name in ("Hugging Face", "Keras"))
    and not (selection == IN_STEP and name in LOOPS)  # which get fewer batches
]


@functools.cache
def run_plainly(framework, length):
    return run(framework, **LENGTHS[framework][length], decays=True)


@pytest.mark.parametrize(("framework", "selection", "length"), COMPARED)
@pytest.mark.sampled(3)
def test_steps_validations_and_learning_rates_are_those_without_selection(
    framework, selection, length
):
    ours = run(framework, selection, **LENGTHS[framework][length], decays=True)
    without = run_plainly(framework, length)
    assert ours.lengths == without.lengths
    assert ours.rates == without.rates
    assert len(ours.batches) == len(without.batches)
    assert len(ours.rates) == ours.lengths.get("steps", len(ours.rates))
    if framework in ("Hugging Face", "Keras"):
        assert without.rates[-1] < without.rates[len(without.rates) // 2]
    else:
        assert without.rates[-1] == pytest.approx(RATE / 25 / 1e4)  # where OneCycleLR ends
    if selection in RULES:
        assert [len(rows) for rows in ours.batches] == [len(rows) for rows in without.batches]
        assert ours.stats.unread > 0 or length
    else:
        assert {len(rows) for rows in ours.batches} <= {4, 2}


class Noting(Memory):
    """Notes by which losses it drew which examples, and of which passes their losses were."""

    def __init__(self, keep=0.5):
        super().__init__(keep=keep, warmup=Epochs(1))
        self.draws, self.recorded = [], []

    def update(self, indices, losses, epoch, **predictions):
        self.recorded += [(epoch, index) for index in indices.tolist()]
        super().update(indices, losses, epoch, **predictions)

    def draw(self, epoch, generator):
        drawn = super().draw(epoch, generator)
        self.draws.append((self.values[:, 0].clone(), drawn))
        return drawn


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_epoch_has_each_example_once_or_passes_over_those_drawn(framework):
    rule, half = Noting(), COUNT // 2
    ours = run(framework, rule)
    examples = [index for rows in ours.batches for index in rows]
    assert sorted(examples[:COUNT]) == list(range(COUNT))
    passes = [examples[start : start + half] for start in range(COUNT, EPOCHS * COUNT, half)]
    assert len(passes) == len(rule.draws) == 2 * (EPOCHS - 1)
    for rows, (known, drawn) in zip(passes, rule.draws, strict=True):
        assert not known.isnan().any()
        assert sorted(rows) == drawn.nonzero().squeeze(1).tolist()
    stats, later = ours.stats, (EPOCHS - 1) * COUNT
    assert (stats.seen, stats.considered, stats.kept) == (COUNT + 2 * later, 2 * later, later)
    assert (stats.unread, stats.scored, stats.backwards) == (later, 0, EPOCHS * COUNT)


@pytest.mark.parametrize(
    ("framework", "accumulated"), [*((name, 1) for name in FRAMEWORKS), ("Hugging Face", 2)]
)
def test_losses_are_of_the_pass_of_their_batch_which_one_may_end_within(framework, accumulated):
    rule = Noting(keep=0.4)
    ours = run(framework, rule, accumulated=accumulated)
    examples = [index for rows in ours.batches for index in rows]
    size = round(0.4 * COUNT)
    passes = [1 + place // size for place in range((EPOCHS - 1) * COUNT)]
    assert rule.recorded == list(zip([0] * COUNT + passes, examples, strict=True))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_losses_recorded_are_those_of_the_examples_trained_on(framework):
    rule = Memory(keep=0.5)
    losses = run(framework, rule, rate=0.0).losses  # evaluated with other targets after an epoch
    torch.testing.assert_close(rule.values[:, 0], losses)


@pytest.mark.parametrize("framework", FRAMEWORKS[1:])
def test_a_draw_without_losses_gives_the_batches_of_the_plain_loop(framework):
    assert run(framework, "random").batches == run("plain", "random").batches


@pytest.mark.parametrize(
    ("framework", "selection", "accumulated"),
    [
        *(("Accelerate", selection, count) for selection in (*RULES, IN_STEP) for count in (1, 4)),
        *(("Lightning", rule, count) for rule in LEARNING for count in (1, 4)),
        ("Hugging Face", "random", 1),  # it reads a batch ahead, and so draws by fewer losses
    ],
)
@pytest.mark.sampled(3)
def test_weights_are_those_of_the_plain_loop(framework, selection, accumulated):
    settings = {"accumulated": accumulated}
    if framework == "Accelerate":
        settings["dropout"] = DROPOUT[framework]
    ours, plain = run(framework, selection, **settings), run("plain", selection, **settings)
    assert ours.batches == plain.batches
    assert ours.rates == plain.rates
    assert_same(ours.weights, plain.weights)


@pytest.mark.parametrize("framework", STEPPING)
def test_batches_of_which_each_row_is_kept_are_refused_at_the_first_one(framework, monkeypatch):
    pytest.importorskip(PACKAGES[framework])
    module = f"{framework.lower().replace(' ', '')}_training"
    monkeypatch.setattr(f"{module}.BATCH", 2)
    monkeypatch.setattr(f"{module}.AT_ONCE", None, raising=False)  # but after a warm-up
    with pytest.raises((BatchError, ConfigError), match=r"all of which keep=0\.5 keeps"):
        run(framework, IN_STEP)


@pytest.mark.parametrize("framework", ["Lightning", "Hugging Face"])
def test_a_training_that_is_over_before_selection_begins_warns(framework, monkeypatch):
    pytest.importorskip(PACKAGES[framework])
    schedule = Schedule(warmup=Epochs(EPOCHS))
    monkeypatch.setattr(f"{framework.lower().replace(' ', '')}_training.AT_ONCE", schedule)
    with pytest.warns(UserWarning, match="never selects in a training of epochs=3"):
        ours = run(framework, IN_STEP)
    assert sum(map(len, ours.batches)) == EPOCHS * COUNT


RESUMED = [
    *((framework, rule, {}) for framework in FRAMEWORKS for rule in (*LEARNING, IN_STEP)),
    ("Accelerate", "refreshed", {}),
    ("Lightning", "adaptive", {"options": {"limit_train_batches": 4, "val_check_interval": 0.5}}),
    ("Lightning", "fixed", {"options": {"max_epochs": -1, "max_steps": 11}}),
    ("Hugging Face", "fixed", {"accumulated": 2}),
    ("Hugging Face", "weights", {"options": {"dataloader_num_workers": 2}}),
]


@pytest.mark.filterwarnings("ignore:epoch . was left after:UserWarning")
@pytest.mark.parametrize("case", range(len(RESUMED)), ids=lambda case: "-".join(RESUMED[case][:2]))
@pytest.mark.sampled(3)
def test_a_training_resumes_after_any_step_bit_for_bit(case, tmp_path):
    framework, selection, settings = RESUMED[case]
    settings = settings | {"folder": tmp_path, "decays": True, "dropout": DROPOUT[framework]}
    whole = run(framework, selection, saves=True, **settings)
    steps, batches = len(whole.rates), len(whole.batches)
    for done in range(1 + case % 8, steps, 8):  # other steps in each case
        if (framework, selection, done % STEPS) == ("Lightning", IN_STEP, 0):
            continue  # the order of an epoch is PyTorch's, whose random numbers are not saved
        rest = run(framework, selection, resumed=done, **settings)
        before = batches - len(rest.batches)
        assert before == done * settings.get("accumulated", 1)
        assert rest.batches == whole.batches[before:]
        assert rest.rates == whole.rates[done:]
        assert_same(rest.weights, whole.weights)
        if framework != "Keras":  # whose statistics are those of a `fit`
            assert (rest.stats.seen, rest.stats.kept) == (whole.stats.seen, whole.stats.kept)
            assert rest.stats.backwards == whole.stats.backwards
