"""Eight training loops end where plain training does: steps, validations and learning rate."""

import functools

import pytest

from scripts import load_script
from siftback import RS2, InfoBatch, Memory

loops = load_script("benchmarks/loops/equal_steps.py")

NEEDS = {
    "Lightning": "lightning", "Hugging Face Trainer": "transformers", "Accelerate": "accelerate",
    "Keras": "keras", "Ignite": "ignite", "skorch": "skorch",
}  # fmt: skip
RULES = {
    "adaptive": Memory,
    "fixed": lambda: Memory(keep=0.3),
    "random": lambda: RS2(0.25),
    "weighted": lambda: InfoBatch(0.5),
}


@functools.cache
def plain(loop):
    return loops.LOOPS[loop](None)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loop", loops.LOOPS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.sampled(3)
def test_a_loop_ends_where_plain_training_does(rule, loop):
    if loop in NEEDS:
        pytest.importorskip(NEEDS[loop])
    expected = plain(loop)
    assert expected.steps == (20 if loop in ("timm's loop", *loops.ACCUMULATING) else 52)
    assert expected.validations == loops.EPOCHS
    assert loops.LOOPS[loop](RULES[rule]()) == expected
