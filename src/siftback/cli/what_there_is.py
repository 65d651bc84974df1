"""Lists: ``siftback strategies``, ``models`` and ``doctor``."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from siftback.cli.app import show_json, show_rows
from siftback.cli.options import command

if TYPE_CHECKING:
    from pathlib import Path

    from siftback.lab.experiments.installation import Package


@command("strategies")
def strategies_command(json: bool = False) -> None:
    """List the strategies, each with its ideal cost of one example."""
    from siftback.lab.strategies.table import STRATEGIES, call_of

    rows = [
        {
            "strategy": strategy.name,
            "what it does": strategy.summary,
            "call": call_of(strategy),
            "ideal cost": str(strategy.cost),
        }
        for strategy in STRATEGIES.values()
    ]
    if not json:  # four columns are too many for a terminal
        for row in rows:
            row["what it does"] = "\n".join(filter(None, (row["what it does"], row.pop("call"))))
    caption = (
        "ideal cost of one example in forwards; a backward costs 2, s is the share kept, n the "
        "interval of selection passes, r the price of one in forwards"
    )
    show_rows(rows, json, caption)


@command("models")
def models_command(
    width: int | None = None, channels: int = 3, classes: int = 10, json: bool = False
) -> None:
    """List the models, each with width and number of parameters.

    Args:
        width: Width of all of them; each one's own by default.
        channels: Channels of the images, of 32x32.
        classes: Number of classes.
    """
    from siftback.lab import models

    # Texts of 4,096 tokens in 192 places; a language of 66 characters in windows of 128; rows of 64
    # inputs.
    sizes: dict[str, dict[str, Any]] = {
        "images": {"classes": classes, "channels": channels},
        "texts": {"classes": classes, "vocabulary": 4096, "length": 192},
        "language": {"classes": 66, "vocabulary": 66, "length": 128},
        "rows": {"classes": classes, "channels": 64, "size": (1, 1)},
        "pixels": {"classes": 3, "channels": 2},
    }
    architectures = {name: models.find_architecture(name) for name in models.LISTED}
    rows = [
        {
            "model": name,
            "what it is": model.what,
            "width": str(width or model.width),
            "takes": model.takes,
            "parameters": f"{models.count(name, width, **sizes[model.takes]):,}",
        }
        for name, model in architectures.items()
    ]
    caption = (
        f"parameters at {classes} classes, for images of {channels}x32x32. In wrn-D-K and "
        "densenet-bc-D, D is any depth of 6n + 4; wrn-D-K-dropP drops out a share P. Models of "
        "texts have 4,096 tokens and 192 places, gpt 66 characters and 128, rows 64 inputs."
    )
    show_rows(rows, json, caption)


@command("doctor")
def doctor_command(json: bool = False) -> None:
    """Say what is installed and at hand, and how to get what is not.

    Ends with 1 where the library or the laboratory lacks a package or has one that is too old, and
    with 0 otherwise: frameworks and data sets are for those who want them.
    """
    from siftback.lab.experiments.installation import busy, data_sets, machine, packages

    installed, facts, sets = packages(), machine(), data_sets()
    if json:
        report = {
            "machine": facts,
            "busy": busy(facts),
            "packages": [asdict(package) | {"fits": package.fits} for package in installed],
            "data": {name: path and str(path) for name, path in sets.items()},
        }
        show_json(report)
    else:
        print_installation(installed, facts, sets)
    if any(not package.fits and package.extra in ("", "lab") for package in installed):
        sys.exit(1)


def print_installation(
    installed: "Sequence[Package]", facts: dict[str, Any], sets: "Mapping[str, Path | None]"
) -> None:
    """Prints a machine, its packages, and the data sets that it has."""
    from siftback.lab.experiments.installation import busy
    from siftback.lab.records.tables import terminal

    echo = typer.echo
    echo(f"siftback {facts['siftback']}, Python {facts['python']}, torch {facts['torch']}")
    echo(f"{facts['platform']}, {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB")
    cuda = f", torch built for CUDA {facts['cuda']}" if facts["cuda"] else ""
    echo(f"device: {facts['device']}{cuda}; threads of torch: {facts['threads']}")
    if busy(facts):
        echo(f"The processors are busy (load {facts['load']}): train with --threads 1.")
    rows = [
        {
            "package": package.name,
            "for": package.extra or "the library",
            "needed": package.needed,
            "installed": package.version or "no",
            "to do": "" if package.fits else package.install,
        }
        for package in installed
    ]
    Console().print(terminal(rows))
    folder = os.environ.get("SIFTBACK_DATA")
    where = f"in SIFTBACK_DATA={folder}" if folder else "SIFTBACK_DATA is not set"
    present = [name for name, path in sets.items() if path]
    echo(f"data, {where}: {', '.join(['digits', *present])}")
    if absent := [name for name, path in sets.items() if not path]:
        how = "put them there, or unset it: then they" if folder else "they"
        echo(f"not here: {', '.join(absent)}")
        echo(f"{how} are downloaded from the Hugging Face hub when asked for;")
        echo("gtsrb and tinyshakespeare are not on it: their errors say where to put them")
