"""One training that every framework runs: its data, model and settings, and what it notes."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

from resuming import restore, saved
from siftback import EpochRule, SelectiveLoader, Stale
from siftback.batches.stats import SelectionStats
from toys import AT_ONCE, numbered_examples

COUNT, BATCH, EPOCHS, RATE = 44, 8, 3, 0.1
STEPS = -(-COUNT // BATCH)  # of an epoch; its last batch has 4 examples
IN_STEP = "in-step"  # or ahead of it, in loops that have no step of their own
KEEP = 0.5


def data():
    return numbered_examples(COUNT)


class Network(nn.Module):
    """Notes the examples of each batch that it is trained on, in ``batches``."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.Dropout(dropout))
        self.head = nn.Linear(8, 3)
        self.batches = []

    def forward(self, inputs):
        if self.training and torch.is_grad_enabled():
            self.batches.append(inputs[:, 0].int().tolist())
        return self.head(self.body(inputs[:, 1:]))


def predictions(logits, targets):
    """Predictions, which some rules learn from too."""
    confidence, predicted = logits.detach().softmax(1).max(1)
    return {"correct": predicted == targets, "confidence": confidence}


@dataclass
class Training:
    """The settings of a training.

    Attributes:
        selection: A rule, ``IN_STEP``, or None for plain training.
        folder: Where its states lie, one for each step of the optimizer.
        saves: Whether it saves them.
        resumed: The step of the state that it begins with; 0 for a beginning without one.
        accumulated: Batches of a step.
        decays: Whether the learning rate follows a schedule, of the length that the framework
            tells users.
        rate: The highest learning rate.
        dropout: Of the network, where the framework's states hold PyTorch's random numbers.
        options: For the framework's own trainer.
    """

    selection: EpochRule | str | None = None
    folder: Path | None = None
    saves: bool = False
    resumed: int = 0
    accumulated: int = 1
    decays: bool = False
    rate: float = RATE
    dropout: float = 0.0
    options: dict = field(default_factory=dict)

    def __post_init__(self):
        self.rates = []
        self.network = Network(self.dropout)

    @property
    def rule(self):
        return self.selection if isinstance(self.selection, EpochRule) else None

    def of_selection(self):
        """Arguments of a loader that selects, by a rule or by scoring passes."""
        scoring = {"model": self.network, "loss_fn": F.cross_entropy}
        if self.rule is None:
            return {**scoring, "keep": KEEP, "schedule": AT_ONCE, "epochs": EPOCHS}
        scoring = scoring if isinstance(self.rule, Stale) else {}
        return {**scoring, "memory": self.rule, "epochs": EPOCHS}

    def optimizer(self, parameters=None):
        """SGD, which notes the rate of each step."""
        parameters = self.network.parameters() if parameters is None else parameters
        optimizer = torch.optim.SGD(parameters, self.rate, momentum=0.9)
        optimizer.register_step_pre_hook(
            lambda optimizer, *_: self.rates.append(optimizer.param_groups[0]["lr"])
        )
        return optimizer

    def schedule(self, optimizer, steps):
        return OneCycleLR(optimizer, self.rate, steps)

    def path(self, step):
        return self.folder / f"{step}.state"


@dataclass
class Run:
    """The course of a training, and its end.

    Attributes:
        batches: The examples of each batch trained on.
        rates: The learning rate of each step of the optimizer.
        lengths: All else that the framework counted: steps, validations, totals of progress bars.
        weights: In the end.
        stats: Statistics of selection.
        losses: ``float[COUNT]`` of the network in the end, without selection.
    """

    batches: list
    rates: list
    lengths: dict
    weights: list
    stats: SelectionStats | None
    losses: torch.Tensor | None = None


def run_of(training, lengths, stats):
    """The run of the network that all but Keras train."""
    network = training.network
    with torch.no_grad():
        inputs, targets = data().tensors
        losses = F.cross_entropy(network.eval()(inputs), targets, reduction="none")
    weights = [weight.detach().clone() for weight in network.parameters()]
    return Run(network.batches, training.rates, lengths, weights, stats, losses)


def plain(training):
    """A loop of PyTorch's own, which steps a last incomplete group of batches too."""
    loader = DataLoader(data(), BATCH, shuffle=True)
    if training.selection:
        settings = training.of_selection()
        exact = {"exact": True} if "model" in settings else {}
        loader = SelectiveLoader(loader, **settings, **exact)
    network, optimizer = training.network, training.optimizer()
    parts = {"loader": loader, "network": network, "optimizer": optimizer}
    if training.decays:
        steps = EPOCHS * -(-len(loader) // training.accumulated)
        parts["schedule"] = training.schedule(optimizer, steps)
    torch.manual_seed(6 if training.resumed else 5)
    if training.resumed:
        restore(parts, training.path(training.resumed).read_bytes())
    validations = 0
    for _ in range(getattr(loader, "epoch", 0), EPOCHS):
        waiting = 0
        for index, (inputs, targets) in enumerate(loader, 1):
            logits = network(inputs)
            losses = F.cross_entropy(logits, targets, reduction="none")
            loss = (
                loader.loss(losses, **predictions(logits, targets))
                if training.selection
                else losses
            )
            (loss.mean() / training.accumulated).backward()
            waiting += 1
            if waiting == training.accumulated or index == len(loader):
                optimizer.step()
                optimizer.zero_grad()
                if training.decays:
                    parts["schedule"].step()
                waiting = 0
            if training.saves:
                training.path(len(training.rates)).write_bytes(saved(parts))
        validations += 1
    return run_of(training, {"validations": validations}, getattr(loader, "stats", None))
