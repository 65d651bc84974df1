"""Small problems and plain loops that the loader's tests train on."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from siftback import Epochs, Schedule, Selection
from siftback.selectors.sampling import choose
from siftback.selectors.selection import check_call, check_scores, unweighted
from siftback.state import Stateful

FEATURES, CLASSES = 5, 3


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def dataset(count=44):
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(count, FEATURES, generator=generator, dtype=torch.float32)
    return TensorDataset(inputs, torch.randint(CLASSES, (count,), generator=generator))


def numbered_examples(count, features=6, classes=3):
    """Inputs whose first number is the example's index, and classes."""
    generator = seeded()
    inputs = torch.randn(count, features, generator=generator)
    inputs[:, 0] = torch.arange(count)
    return TensorDataset(inputs, torch.randint(classes, (count,), generator=generator))


def shuffled(count=44, batch_size=8, **options):
    generator = torch.Generator().manual_seed(12)
    return DataLoader(
        dataset(count), batch_size=batch_size, shuffle=True, generator=generator, **options
    )


def network():
    """Everything whose state a selection pass could disturb: dropout and batch normalisation."""
    torch.manual_seed(13)
    return nn.Sequential(
        nn.Unflatten(1, (1, FEATURES)),
        nn.Conv1d(1, 6, 3),
        nn.BatchNorm1d(6),  # over positions too, so that a batch of one can be normalised
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(6 * (FEATURES - 2), CLASSES),
    )


class Writing(nn.Module):
    """A network that normalizes its inputs in place."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        return self.model(inputs.sub_(1).div_(2))


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(model, optimizer, batch):
    inputs, targets = batch
    loss = F.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def train(loader, model, epochs=3):
    """The plain loop, whatever the loader is; gives the batches that were trained on."""
    optimizer, batches = optimizer_of(model), []
    for _ in range(epochs):
        for batch in loader:
            step(model, optimizer, batch)
            batches.append(batch)
    return batches


def assert_same(one, other):
    """Bit for bit."""
    torch.testing.assert_close(spelled(one), spelled(other), rtol=0, atol=0)


def spelled(value):
    """The same with numbers for strings, which are compared then too."""
    if isinstance(value, str):
        return list(value.encode())
    if isinstance(value, dict):
        return {key: spelled(part) for key, part in value.items()}
    return type(value)(map(spelled, value)) if type(value) in (list, tuple) else value


def numbered(losses, batch_size):
    """Batches of example numbers and the losses that they are to have, in order."""
    numbers = torch.arange(len(losses))
    return [{"number": rows, "loss": losses[rows]} for rows in numbers.split(batch_size)]


def given_losses(model, batch):
    """For ``losses=``: those that the batch says."""
    return batch["loss"]


AT_ONCE = Schedule(warmup=Epochs(0))


def at_once(arguments):
    """A loader's arguments, of one that selects from the first batch on, unless they say when.

    By a rule its epochs are passes over the data.
    """
    by_rule = arguments.get("memory") is not None
    return ({"shorter_epochs": True} if by_rule else {"schedule": AT_ONCE}) | arguments


class EveryOther:
    """Keeps every other example of a batch and weighs it with its loss."""

    needs_scores, reweights, keep = True, True, 0.5

    def select(self, scores, generator, count=None):
        rows = torch.arange(0, len(scores), 2)
        return Selection(rows, scores[rows])

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class All(Stateful):
    """Keeps every example: ordinary training.

    >>> All().select(torch.zeros(3), torch.Generator()).positions
    tensor([0, 1, 2])
    """

    needs_scores = False
    reweights = False
    keep = 1.0

    def probabilities(self, scores: Tensor) -> Tensor:
        """Returns float32[N], all 1."""
        check_scores(scores)
        return torch.ones_like(scores, dtype=torch.float32)

    def select(
        self, scores: Tensor, generator: torch.Generator, count: int | None = None
    ) -> Selection:
        """See `Selector.select`; no scores are used, and random numbers only with a count."""
        check_call(scores, generator, count)
        if count is not None:
            return choose(self.probabilities(scores), generator, count)
        return unweighted(torch.arange(len(scores), device=scores.device))

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        return {"selector": type(self).__name__}
