"""The batches of each strategy for a seed, and the shape of each saved state, stay as they are.

Losses and scores are functions of an example's index and of the step, so that the numbers are the
same on every machine. A change of the format of states is meant to show here: it makes checkpoints
unreadable, and is written down with ``make golden``.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from remembering import RULES
from siftback import Epochs, Fresh, Indexed, Pool, Schedule, SelectiveLoader, Stale
from siftback.contrib import Ewma
from stateful_objects import KINDS
from stateful_parts import SELECTORS
from toys import CLASSES, network

EXAMPLES, EPOCHS = 90, 4
# Shares of a logarithm or an exponential would differ in the last digit between machines.
FLOATING = {"soft top-k"}


class IndexScores(Fresh):
    """Scores that are a function of the index and of the calls before."""

    calls = 0

    def score(self, losses, model, batch, indices):
        self.calls += 1
        return pseudo_losses(indices, self.calls)


def pseudo_losses(indices: torch.Tensor, step: int) -> torch.Tensor:
    """Multiples of 1 / 1024, exact in float32, most of them small as losses are."""
    mixed = (indices * 7919 + step * 104_729) % 1024
    return (mixed * mixed // 1024).float() / 1024


def data() -> DataLoader:
    inputs = torch.arange(EXAMPLES * 5).view(EXAMPLES, 5).float() / 100
    targets = torch.arange(EXAMPLES) % CLASSES
    generator = torch.Generator().manual_seed(12)
    return DataLoader(Indexed(TensorDataset(inputs, targets)), 8, shuffle=True, generator=generator)


def before_reading(rule: Any) -> SelectiveLoader:
    return SelectiveLoader(data(), memory=rule, epochs=EPOCHS, attach=True, shorter_epochs=True)


def refreshed(rule: Any) -> SelectiveLoader:
    source, model = data(), network()
    return SelectiveLoader(
        source, model, F.cross_entropy, memory=rule, epochs=EPOCHS, attach=True,
        shorter_epochs=True,
    )  # fmt: skip


def after_reading(selector: Any) -> SelectiveLoader:
    return SelectiveLoader(
        data(),
        network(),
        F.cross_entropy,
        selector=selector,
        scorer=IndexScores(),
        schedule=Schedule(warmup=Epochs(1)),
        pool=Pool(6),
        epochs=EPOCHS,
        attach=True,
    )


STRATEGIES: dict[str, Callable[[], SelectiveLoader]] = {
    **{f"rule: {name}": lambda make=make: before_reading(make()) for name, make in RULES.items()},
    "refreshed: stale": lambda: refreshed(Stale(0.5, scorer=IndexScores(), warmup=Epochs(0))),
    "refreshed: ewma": lambda: refreshed(
        Ewma(0.5, every=2, scorer=IndexScores(), warmup=Epochs(0))
    ),
    **{
        f"selector: {name}": lambda kind=kind: after_reading(kind.make())
        for name, kind in SELECTORS.items()
        if name not in FLOATING
    },
}


def batches_of(loader: SelectiveLoader) -> Iterator[list[Any]]:
    """For each epoch: steps, the examples' indices, their sum, a digest of indices, the weights."""
    step = 0
    for _ in range(EPOCHS):
        indices: list[int] = []
        weights = 0.0
        steps = 0
        for _ in loader:
            step, steps = step + 1, steps + 1
            indices += loader.indices.tolist()
            weights += float(loader.weights.double().sum())
            if loader.memory is not None:
                losses = pseudo_losses(loader.indices, step)
                loader.record(losses, correct=losses < 0.25, confidence=losses)
        digest = hashlib.sha256(repr(indices).encode()).hexdigest()[:12]
        yield [steps, len(indices), sum(indices), digest, round(weights, 3)]


def test_batches_for_a_seed(hold: Callable[[str, Any], None]) -> None:
    hold("batches", {name: [*batches_of(make())] for name, make in STRATEGIES.items()})


def outline(value: Any) -> Any:
    """The keys of a state with the types, and of tensors the dtypes and dimensions."""
    if isinstance(value, dict):
        return {str(name): outline(entry) for name, entry in sorted(value.items(), key=repr)}
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}, {value.ndim} dimensions"
    return type(value).__name__


@pytest.mark.filterwarnings("ignore")
def test_states(hold: Callable[[str, Any], None]) -> None:
    states = {}
    for name, kind in KINDS.items():
        thing = kind.make()
        kind.use(thing)
        states[name] = outline(thing.state_dict())
    hold("states", states)
