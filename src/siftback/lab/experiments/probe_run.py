"""What selection would cost and save on a model and a data set of the laboratory."""

import itertools
import math
import time
from dataclasses import replace
from typing import Any

import torch
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from torch import nn

from siftback import ProbeResult, Scorer, probe
from siftback.errors import ConfigError
from siftback.lab.data.batch_stream import BatchStream
from siftback.lab.data.data_set import DataSet
from siftback.lab.data.datasets import load
from siftback.lab.forward import (
    autocast_context,
    autocast_of,
    build_model,
    build_optimizer,
    check_model_fits,
    example_losses,
    mean_loss,
    training_device,
)
from siftback.lab.records.formatting import NOT_REACHED
from siftback.lab.records.tables import terminal
from siftback.lab.settings import Settings
from siftback.lab.training.strategies import STRATEGIES

SEED = 0

# Steps made before the probe, and the share of its time that they may take. Scores of fresh
# weights are all alike, and how cheap ones agree with them says little.
STEPS, SHARE = 100, 1 / 8


def probe_settings(
    settings: Settings, keeps: list[float], seconds: float, epochs: int = 10
) -> ProbeResult:
    """Probes a model, briefly trained, on its training batches, augmented as in training.

    Args:
        settings: Of the training asked about; the length in them does not matter.
        keeps: Shares of the examples to keep.
        seconds: How long all of it may take. Half of it is left for measuring in any case, also
            where the data set must be decoded first.
        epochs: Length of the training whose speed-up is shown.

    Raises:
        ConfigError: If something of this cannot be measured.
    """
    started = time.monotonic()
    if not 0 < seconds < math.inf:
        raise ConfigError(f"seconds={seconds:g}: give a number of seconds above 0")
    if len(set(keeps)) < len(keeps) or not all(0 < keep < 1 for keep in keeps):
        raise ConfigError(f"keeps {keeps}: give shares in (0, 1), and none twice")
    data = load(settings.data, settings.train_limit, max_tokens=settings.max_tokens)
    device = training_device(settings)
    check_model_fits(settings, data)
    torch.manual_seed(SEED)
    model = build_model(settings, data)
    optimizer = build_optimizer(
        model, replace(settings, lr=settings.lr / 5)
    )  # no warm-up: not the peak
    stream = BatchStream(
        data, settings.batch_size, SEED, device=device, channels_last=settings.channels_last
    )
    scorers = cheap_scorers(settings, data)
    brief = time.monotonic() + SHARE * seconds
    _train_briefly(model, optimizer, stream, settings, scorers.get("proxy"), brief)
    return probe(
        model,
        stream,
        losses=example_losses,
        keep=keeps,
        epochs=epochs,
        scorers=scorers,
        optimizer=optimizer,
        autocast=autocast_of(settings),
        seconds=max(seconds - (time.monotonic() - started), seconds / 2),
        seed=SEED,
    )


def _train_briefly(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    stream: BatchStream,
    settings: Settings,
    proxy: Scorer | None,
    deadline: float,
) -> None:
    for batch in itertools.islice(stream, STEPS):
        with autocast_context(settings, batch[0].device):
            loss = mean_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if proxy is not None:
            proxy.after_step(example_losses, model, batch)
        if time.monotonic() > deadline:
            break


def cheap_scorers(settings: Settings, data: DataSet) -> dict[str, Scorer]:
    """Those beside the exact one that a probe measures, by the end of their strategy's name."""
    found: dict[str, Scorer] = {}
    names = ("bf16", "int8", "small", "proxy")
    # In a training in bfloat16 the exact scores are of that type already.
    for name in names if autocast_of(settings) is None else names[1:]:
        strategy = STRATEGIES[f"sb-{name}"]
        assert strategy.scorer is not None
        if data.kind in strategy.kinds:
            found[name] = strategy.scorer(settings, data)
    return found


def probe_report(found: ProbeResult, title: str) -> Group:
    """What ``siftback probe`` prints: speed-ups, seconds, agreement, and what to do."""
    parts: list[Any] = [_speed_ups(found, title), "", _seconds(found)]
    if found.agreement:
        parts += ["", _agreement(found)]
    for name, reason in found.failures.items():
        parts += ["", f"{name} could not be measured: {reason}"]
    return Group(*parts, "", Padding(found.recommendation, (0, 0)))


def _speed_ups(found: ProbeResult, title: str) -> Table:
    rows = []
    for strategy in dict.fromkeys(row.strategy for row in found.rows[1:]):
        of_it = [row for row in found.rows if row.strategy == strategy]
        even = of_it[0].break_even
        cells = {
            f"keep {row.keep:.2f}": f"{row.measured:.2f}/{row.ideal:.2f}/{row.training:.2f}"
            for row in of_it
        }
        end = "never" if even is None else f"{even:.2f}"
        rows.append({"strategy": strategy} | cells | {"break-even": end})
    caption = (
        "Speed over Traditional: of an epoch that selects, loading included / what its forwards "
        f"and backwards alone would give / of a training of {found.epochs} epochs, the first on "
        "everything. An epoch pays below the last column's share kept."
    )
    return terminal(rows, title=title, caption=caption)


def _seconds(found: ProbeResult) -> Table:
    seconds = found.seconds
    parts = {
        "loading": seconds.loading,
        "training: forward": seconds.forward,
        "training: backward": seconds.backward,
        "training: optimizer": seconds.optimizer,
        "choosing (ranks, draws, pooling)": seconds.choosing,
        "choosing uniformly": seconds.choosing_uniformly,
        "memory: drawing": seconds.drawing,
        "memory: recording": seconds.recording,
    }
    parts |= {f"scores of {name}": each for name, each in seconds.scores.items()}
    parts |= {f"{name} after a step": s for name, s in seconds.refreshes.items() if s > 1e-4}
    parts |= {f"single pass, keep {k:.2f}": each for k, each in seconds.single_pass.items()}
    if found.seconds_compiling is not None:
        parts["single pass, compiling once"] = found.seconds_compiling
    return terminal(
        [{"part": name, "ms": f"{1000 * each:.2f}"} for name, each in parts.items()],
        title=f"Milliseconds for a batch of {found.batch_size} on {found.device}",
        caption=f"Medians of {found.rounds} rounds; training steps vary by ±{found.noise:.0%}. "
        f"Forward's share f of forward and backward: {found.forward_share:.3f}.",
    )


def _agreement(found: ProbeResult) -> Table:
    rows = []
    for name, each in found.agreement.items():
        correlation = each.rank_correlation
        written = NOT_REACHED if correlation is None else f"{correlation:.3f}"
        overlaps = {
            f"keep {overlap.keep:.2f}": f"{overlap.top:.2f} / {overlap.selected:.2f}"
            for overlap in each.overlaps
        }
        rows.append({"scorer": name, "rank correlation": written} | overlaps)
    caption = (
        "For each share kept: the top scores in common / the selections in common, both with the "
        "same random numbers; a random choice gives the share kept."
    )
    return terminal(rows, title="Agreement with the exact scores", caption=caption)
