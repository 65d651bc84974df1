"""What selection would cost and save on a user's own model, measured in a minute."""

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from siftback.arguments import is_number
from siftback.errors import ConfigError
from siftback.loader import SelectiveLoader
from siftback.loss_functions import Losses, LossFn, resolve
from siftback.probing.advice import advise
from siftback.probing.costs import rows
from siftback.probing.result import ProbeResult
from siftback.probing.rounds import Rounds
from siftback.probing.sample import Sample, unmoved
from siftback.rules.sampler import SelectiveSampler
from siftback.scorers.scorer import Scorer
from siftback.scorers.selection_pass import device_of, untouched


def probe(
    model: nn.Module,
    loader: Iterable[Any],
    loss_fn: LossFn | None = None,
    *,
    losses: Losses | None = None,
    keep: Sequence[float] = (1 / 2, 1 / 3, 1 / 4),
    scorers: Mapping[str, Scorer] | None = None,
    single_pass: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
    autocast: torch.dtype | None = None,
    seconds: float = 45,
    seed: int = 0,
) -> ProbeResult:
    """Measures whether selection would pay for a model, on its own batches and device.

    Loading, forward, backward, optimizer, the loader's own part of a selection, memory's draws
    and records, each scorer and the single pass have a turn in every round, so that a busy
    machine slows all alike; medians over the rounds count. `siftback.probing.costs.rows` has the
    formulas for what they add up to.

    The model is not changed: its parameters are never stepped, and its buffers, modes and
    gradients, and the random states of PyTorch, NumPy, Python and the loader, are afterwards
    what they were. Scorers and the optimizer are copied, and the copies used. Up to eight batches
    are held while it measures. Communication between processes is not measured.

    Args:
        model: The model to train. Batches are moved to its device.
        loader: The batches it is trained on; where it is of PyTorch and has workers, loading
            counts as going on beside training.
        loss_fn: ``loss_fn(outputs, targets)``, as for `SelectiveLoader`.
        losses: In place of ``loss_fn``: ``losses(model, batch) -> Tensor[N]``.
        keep: Shares of the examples to keep, each in (0, 1).
        scorers: Cheaper scorers than a fresh forward by name; "sb-" goes before the name.
        single_pass: Whether to measure the single pass, which compiles the model.
        optimizer: The optimizer of training; SGD with momentum where none is given.
        autocast: The type of mixed precision that training computes in, and the exact scores;
            None follows the autocast in force.
        seconds: How long to measure. Three rounds after warming up are made however long it takes.
        seed: Of draws.

    Raises:
        BatchError: If the loader gives no batch.
        ConfigError: If an argument is outside its range, or the loader leaves examples out.
        LossError: If there is not one floating-point loss per example.

    >>> from torch.nn import functional as F
    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    >>> data = torch.utils.data.TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
    >>> loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    >>> found = probe(model, loader, F.cross_entropy, single_pass=False, seconds=0.1)
    >>> 0 < found.forward_share < 1, len(found.rows), found.rounds > 0
    (True, 13, True)
    """
    started = time.monotonic()
    keeps = _checked(loader, keep, scorers, seconds)
    compute = resolve(loss_fn, losses)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f"no parameter of {type(model).__name__} takes a gradient: give a model to be trained"
        )
    with unmoved(loader):
        sample = Sample(loader, model)
        where = device_of(model, sample.first().batch)
        with untouched(model, "train", where):
            rounds = Rounds(model, compute, sample, where, keeps, autocast, seed)
            rounds.prepare(scorers or {}, optimizer, single_pass)
            rounds.run(started + seconds)
    measured = rounds.seconds()
    table = rows(measured, keeps)
    agreements = rounds.agreements()
    steps = [
        sum(pair) for pair in zip(rounds.took["forward"], rounds.took["backward"], strict=True)
    ]
    return ProbeResult(
        device=str(where),
        batch_size=sample.size,
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        optimizer="SGD" if optimizer is None else type(optimizer).__name__,
        rounds=len(steps),
        noise=_noise(steps),
        seconds=measured,
        seconds_compiling=rounds.seconds_compiling,
        rows=table,
        agreement=agreements,
        failures=rounds.failures,
        advice=advise(measured, table, agreements, keeps),
        seconds_taken=time.monotonic() - started,
    )


def _checked(
    loader: Iterable[Any],
    keeps: Sequence[float],
    scorers: Mapping[str, Scorer] | None,
    seconds: float,
) -> tuple[float, ...]:
    """The shares to keep, each once and in their order, after all arguments were checked."""
    if isinstance(loader, SelectiveLoader):
        raise ConfigError("a SelectiveLoader given: give the loader that it wraps")
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, SelectiveSampler) and sampler.draw is not None:
        raise ConfigError(
            f"the loader's SelectiveSampler leaves out what {type(sampler.draw.rule).__name__} "
            "says: give a loader over all examples, with SelectiveSampler(dataset) or shuffle=True"
        )
    if not keeps or not all(is_number(share) and 0 < share < 1 for share in keeps):
        raise ConfigError(f"keep={keeps!r}: give shares in (0, 1), such as (1/2, 1/3)")
    for name, scorer in (scorers or {}).items():
        if not isinstance(scorer, Scorer):
            raise ConfigError(
                f"scorers[{name!r}] is a {type(scorer).__name__}: give a siftback.Scorer"
            )
    if not is_number(seconds) or seconds <= 0:
        raise ConfigError(f"seconds={seconds!r}: give how long to measure, more than 0")
    return tuple(dict.fromkeys(float(share) for share in keeps))


def _noise(seconds: Sequence[float]) -> float:
    if len(seconds) < 2:
        return 0.0
    lower, middle, upper = statistics.quantiles(seconds, n=4, method="inclusive")
    return (upper - lower) / 2 / middle
