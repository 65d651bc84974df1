"""Measures the costs and savings of selection on a user's model, within a minute."""

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from siftback.arguments import check_flag, check_integer, check_seed, format_value, is_number
from siftback.epochs.sampler import SelectiveSampler
from siftback.errors import ConfigError
from siftback.loader.face import SelectiveLoader
from siftback.losses.per_example import Losses, LossFn, resolve_losses
from siftback.probing.advice import advise
from siftback.probing.costs import EPOCHS, cost_rows
from siftback.probing.result import ProbeResult
from siftback.probing.rounds import Rounds
from siftback.probing.sample import Sample, unmoved
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import common_device, untouched
from siftback.tensor_arguments import check_module


def probe(
    model: nn.Module,
    loader: Iterable[Any],
    loss_fn: LossFn | None = None,
    *,
    losses: Losses | None = None,
    keep: Sequence[float] = (1 / 2, 1 / 3, 1 / 4),
    epochs: int = EPOCHS,
    scorers: Mapping[str, Scorer] | None = None,
    single_pass: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
    autocast: torch.dtype | None = None,
    seconds: float = 30,
    seed: int = 0,
) -> ProbeResult:
    """Measures whether selection would pay off for a model, on its own batches and device.

    Loading, forward, backward, optimizer, the loader's own part of a selection, memory's draws
    and records, each scorer and the single pass are each timed once per round, so that other load
    on the machine affects all equally; medians over the rounds are used. See
    `siftback.probing.costs.cost_rows` for how costs are computed from them.

    The model is not changed: its parameters are never stepped, and its buffers, modes and
    gradients, and the random states of PyTorch, NumPy, Python and the loader, are restored.
    Scorers and the optimizer are copied, and the copies used. Up to eight batches are held in
    memory. Each process measures by itself, so that one of several may do it alone, but for a model
    in `DistributedDataParallel`: communication between them is not measured.

    Args:
        model: The model to train. Batches are moved to its device.
        loader: The batches to train on; if it is a ``DataLoader`` with workers, loading counts as
            parallel to training.
        loss_fn: ``loss_fn(outputs, targets)``, as for `SelectiveLoader`.
        losses: In place of ``loss_fn``: ``losses(model, batch) -> Tensor[N]``.
        keep: Shares of the examples to keep, each in [0.001, 1), none twice.
        epochs: Length of the training whose speed-up is computed from that of its epochs, as its
            first ones are on all examples; by default 10.
        scorers: Cheaper scorers than a fresh forward, by name; "sb-" is prepended to the name.
        single_pass: Whether to measure the single pass, which compiles the model.
        optimizer: The optimizer of training; by default SGD with momentum.
        autocast: The dtype that training and the exact scores are computed in; None follows the
            active autocast.
        seconds: How long to measure. After a round to warm up every part is measured at least
            once, and training twice, however long they take.
        seed: Seed of the random numbers.

    Returns:
        A `ProbeResult`: the measured seconds, what each strategy saves at each share, and in
        ``answer`` the call to write, or why selection does not pay. That is of the share in
        ``keep`` nearest to a third, as the share of ``Memory()`` follows the losses of a training.

    Raises:
        BatchError: If the loader gives no batch.
        ConfigError: If an argument is out of range, or the loader leaves examples out.
        LossError: If there is not one finite floating-point loss per example.

    >>> from torch.nn import functional as F
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
    >>> loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    >>> result = probe(model, loader, F.cross_entropy, single_pass=False, seconds=0.1)
    >>> 0 < result.forward_share < 1, len(result.rows), result.rounds > 0
    (True, 13, True)
    """
    started = time.monotonic()
    check_module(model)
    scorers = {} if scorers is None else scorers
    check_arguments(loader, keep, scorers, seconds)
    keeps = tuple(map(float, keep))
    check_integer("epochs", epochs, least=1)
    check_flag("single_pass", single_pass)
    if not isinstance(autocast, torch.dtype | None):
        raise ConfigError(f"autocast={autocast!r}: give a dtype, such as torch.bfloat16, or None")
    if not isinstance(optimizer, torch.optim.Optimizer | None):
        raise ConfigError(f"optimizer={optimizer!r}: give a torch.optim.Optimizer, or None")
    check_seed(seed)
    compute = resolve_losses(loss_fn, losses)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f"no parameter of {type(model).__name__} requires a gradient: give a model to train"
        )
    with unmoved(loader):
        sample = Sample(loader, model)
        device = common_device(model, sample.first().data)
        with untouched(model, "train", device):
            rounds = Rounds(model, compute, sample, device, keeps, autocast, seed)
            rounds.prepare(scorers, optimizer, single_pass)
            rounds.run(started + seconds)
    measured = rounds.seconds()
    table = cost_rows(measured, keeps, epochs)
    agreements = rounds.agreements()
    steps = [f + b for f, b in zip(rounds.took["forward"], rounds.took["backward"], strict=True)]
    lower, middle, upper = statistics.quantiles(steps, n=4, method="inclusive")
    return ProbeResult(
        device=str(device),
        batch_size=sample.size,
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        optimizer="SGD" if optimizer is None else type(optimizer).__name__,
        epochs=epochs,
        rounds=len(steps),
        noise=(upper - lower) / 2 / middle,
        seconds=measured,
        seconds_compiling=rounds.seconds_compiling,
        rows=table,
        agreement=agreements,
        failures=rounds.failures,
        advice=advise(measured, table, agreements, keeps),
        seconds_taken=time.monotonic() - started,
    )


def check_arguments(
    loader: Iterable[Any], keeps: Sequence[float], scorers: Mapping[str, Scorer], seconds: float
) -> None:
    """Checks the arguments of `probe` that have no check of their own.

    Raises:
        ConfigError: If one is out of range, or the loader leaves examples out.
    """
    if isinstance(loader, SelectiveLoader):
        raise ConfigError("a SelectiveLoader was passed: give the loader that it wraps")
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, SelectiveSampler) and sampler.draw is not None:
        raise ConfigError(
            f"the SelectiveSampler leaves out examples by {type(sampler.draw.rule).__name__}: "
            "give a loader over all examples, with SelectiveSampler(dataset) or shuffle=True"
        )
    are_numbers = isinstance(keeps, Sequence) and keeps and all(map(is_number, keeps))
    if not are_numbers or not 1e-3 <= min(keeps) <= max(keeps) < 1 or len({*keeps}) < len(keeps):
        raise ConfigError(f"keep={format_value(keeps)}: give shares in [0.001, 1), none twice")
    if not isinstance(scorers, Mapping):
        raise ConfigError(f"scorers={format_value(scorers)}: give them by name, {{'ema': Ema()}}")
    for name, scorer in scorers.items():
        if not isinstance(scorer, Scorer):
            kind = type(scorer).__name__
            raise ConfigError(f"scorers[{name!r}] is a {kind}: give a siftback.Scorer")
    if not is_number(seconds) or seconds <= 0:
        raise ConfigError(f"seconds={format_value(seconds)}: give a number of seconds above 0")
