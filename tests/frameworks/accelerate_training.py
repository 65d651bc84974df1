"""The training of every framework, in a loop with Accelerate."""

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.nn import functional as F
from torch.utils.data import DataLoader
from trainings import BATCH, EPOCHS, data, predictions, run_of

from siftback.frameworks.accelerate import prepare


def forget():
    """Accelerate's settings are those of a process, and not of one training."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def train(training):
    forget()
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=training.accumulated, **training.options
    )
    loader = DataLoader(data(), BATCH, shuffle=True)
    if training.selection:
        loader = prepare(accelerator, loader, **training.of_selection())
    else:
        loader = accelerator.prepare(loader)
    optimizer = training.optimizer()
    network, prepared = accelerator.prepare(training.network, optimizer)
    if training.decays:
        steps = EPOCHS * -(-len(loader) // training.accumulated)
        schedule = accelerator.prepare(training.schedule(optimizer, steps))
    torch.manual_seed(6 if training.resumed else 5)
    if training.resumed:
        accelerator.load_state(training.path(training.resumed))
    validations = 0
    for _ in range(getattr(loader, "epoch", 0), EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(network):
                logits = network(inputs)
                losses = F.cross_entropy(logits, targets, reduction="none")
                if training.selection:
                    losses = loader.loss(losses, **predictions(logits, targets))
                accelerator.backward(losses.mean())
                prepared.step()
                if training.decays:
                    schedule.step()
                prepared.zero_grad()
            if training.saves:
                accelerator.save_state(training.path(len(training.rates)))
        validations += 1
    found = run_of(training, {"validations": validations}, getattr(loader, "stats", None))
    accelerator.free_memory()
    forget()
    return found
