"""Probes of a model and a data set of the laboratory: ``siftback probe``."""

import itertools
import re
import time
from dataclasses import replace
from typing import Any

import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text

from siftback import ProbeResult, probe
from siftback.lab import forward
from siftback.lab.data.load import load
from siftback.lab.records.formatting import NOT_REACHED
from siftback.lab.records.tables import terminal
from siftback.lab.settings import Settings
from siftback.lab.strategies.table import STRATEGIES, call_of, find_strategy

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
    data = load(settings.data, settings.train_limit, max_tokens=settings.max_tokens)
    forward.check_model_fits(settings, data)
    torch.manual_seed(SEED)
    model = forward.build_model(settings, data)
    # There is no warm-up, so that it is not the peak.
    optimizer = forward.build_optimizer(model, replace(settings, lr=settings.lr / 5))
    stream = forward.batch_stream(settings, data, settings.batch_size, SEED)
    # In a training in bfloat16 the exact scores are of that type already.
    half = () if forward.autocast_of(settings) else ("bf16",)
    strategies = {name: STRATEGIES[f"sb-{name}"] for name in (*half, "int8", "small", "proxy")}
    scorers = {
        name: strategy.scorer(settings, data, None)
        for name, strategy in strategies.items()
        if strategy.scorer and data.kind in strategy.kinds
    }
    brief = time.monotonic() + SHARE * seconds
    for batch in itertools.islice(stream, STEPS):
        with forward.autocast_context(settings, batch[0].device):
            loss = forward.mean_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if "proxy" in scorers:
            scorers["proxy"].after_step(forward.example_losses, model, batch)
        if time.monotonic() > brief:
            break
    return probe(
        model,
        stream,
        losses=forward.example_losses,
        keep=keeps,
        epochs=epochs,
        scorers=scorers,
        optimizer=optimizer,
        autocast=forward.autocast_of(settings),
        seconds=max(seconds - (time.monotonic() - started), seconds / 2),
        seed=SEED,
    )


def scorer_name(name: str) -> str:
    """Returns the call that a scorer of a probe is, or its name where there is no single one.

    >>> scorer_name("sb"), scorer_name("sb-bf16"), scorer_name("sb-proxy")
    ('Fresh()', 'Reduced("bf16")', 'proxy')
    """
    if name == "sb":
        return "Fresh()"
    library = STRATEGIES[name].library if name in STRATEGIES else ""
    return library.partition("scorer=")[2].removesuffix(")") or name.removeprefix("sb-")


def with_scorers(text: str) -> str:
    """Returns a probe's sentences with the calls that its scorers are."""
    return re.sub(r"(?<=scorer=)\w+", lambda name: scorer_name(f"sb-{name[0]}"), text)


def probe_report(result: ProbeResult, title: str) -> Group:
    """Returns what ``siftback probe`` prints below the answer: its reasons, and the tables."""
    tables: list[Any] = [Text(with_scorers(sentence)) for sentence in result.details]
    tables += ["", speed_up_table(result, title), "", seconds_table(result)]
    if result.agreement:
        tables += ["", agreement_table(result)]
    for name, reason in result.failures.items():
        tables += ["", Text(f"{scorer_name(name)} could not be measured: {reason}")]
    return Group(*tables)


def speed_up_table(result: ProbeResult, title: str) -> Table:
    """Returns the speed-ups of each strategy as a table, with a column for each share."""
    lines: dict[str, dict[str, str]] = {}
    for row in result.rows[1:]:
        # A probe's Stale-SB has a scoring pass every third epoch, as in its paper.
        name = "stale-sb-3" if row.strategy == "stale-sb" else row.strategy
        call = scorer_name(name) if name in result.seconds.scores else call_of(find_strategy(name))
        cells = lines.setdefault(row.strategy, {"call": call.removeprefix("contrib.")})
        cells[f"keep {row.keep:.2f}"] = f"{row.measured:.2f}/{row.ideal:.2f}/{row.training:.2f}"
    for row in result.rows[1:]:
        even = row.break_even
        lines[row.strategy]["break-even"] = "never" if even is None else f"{even:.2f}"
    caption = (
        "Speed over plain training: of an epoch that selects, loading included / what its forwards "
        f"and backwards alone would give / of a training of {result.epochs} epochs, the first on "
        "everything. An epoch pays below the last column's share kept. s is the share kept; a "
        "scorer stands for SelectiveLoader(..., keep=s, scorer=...)."
    )
    return terminal([*lines.values()], title=title, caption=caption)


def seconds_table(result: ProbeResult) -> Table:
    """Returns the milliseconds of each step of training and selection as a table."""
    seconds = result.seconds
    steps = {
        "loading": seconds.loading,
        "training: forward": seconds.forward,
        "training: backward": seconds.backward,
        "training: optimizer": seconds.optimizer,
        "choosing (ranks, draws, pooling)": seconds.choosing,
        "choosing uniformly": seconds.choosing_uniformly,
        "memory: drawing": seconds.drawing,
        "memory: recording": seconds.recording,
    }
    steps |= {f"scores of {scorer_name(name)}": taken for name, taken in seconds.scores.items()}
    steps |= {f"{scorer_name(n)} after a step": s for n, s in seconds.refreshes.items() if s > 1e-4}
    steps |= {f"single pass, keep {k:.2f}": taken for k, taken in seconds.single_pass.items()}
    if result.seconds_compiling is not None:
        steps["single pass, compiling once"] = result.seconds_compiling
    return terminal(
        [{"part": name, "ms": f"{1000 * taken:.2f}"} for name, taken in steps.items()],
        title=f"Milliseconds for a batch of {result.batch_size} on {result.device}",
        caption=f"Medians of {result.rounds} rounds; training steps vary by ±{result.noise:.0%}. "
        f"Forward's share f of forward and backward: {result.forward_share:.3f}.",
    )


def agreement_table(result: ProbeResult) -> Table:
    """Returns the agreement of each scorer with the exact scores as a table."""
    rows = []
    for name, agreement in result.agreement.items():
        correlation = agreement.rank_correlation
        written = NOT_REACHED if correlation is None else f"{correlation:.3f}"
        row = {"scorer": scorer_name(name), "rank correlation": written}
        row |= {f"keep {o.keep:.2f}": f"{o.top:.2f} / {o.selected:.2f}" for o in agreement.overlaps}
        rows.append(row)
    caption = (
        "For each share kept: the top scores in common / the selections in common, both with the "
        "same random numbers; a random choice gives the share kept."
    )
    return terminal(rows, title="Agreement with the exact scores", caption=caption)
