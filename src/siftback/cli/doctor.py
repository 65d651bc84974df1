"""What is installed and at hand: ``siftback doctor``."""

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from siftback.cli.app import app
from siftback.cli.options import Json

if TYPE_CHECKING:
    from pathlib import Path

    from siftback.lab.experiments.installation import Package


@app.command("doctor")
def doctor_command(as_json: Json = False) -> None:
    """Say what is installed and at hand, and how to get what is not.

    Ends with 1 where the library or the laboratory lacks a package or has one that is too old, and
    with 0 otherwise: frameworks and data sets are for those who want them.
    """
    from siftback.lab.experiments.installation import busy, data_sets, machine, packages

    installed, facts, sets = packages(), machine(), data_sets()
    if as_json:
        report = {
            "machine": facts,
            "busy": busy(facts),
            "packages": [asdict(package) | {"fits": package.fits} for package in installed],
            "data": {name: path and str(path) for name, path in sets.items()},
        }
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(installed, facts, sets)
    if any(not package.fits and package.extra in ("", "lab") for package in installed):
        sys.exit(1)


def _print(
    installed: "list[Package]", facts: dict[str, Any], sets: "dict[str, Path | None]"
) -> None:
    from siftback.lab.experiments.installation import busy
    from siftback.lab.records.tables import terminal

    echo = typer.echo
    echo(f"siftback {facts['siftback']}, Python {facts['python']}, torch {facts['torch']}")
    echo(f"{facts['platform']}, {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB")
    cuda = f", torch built for CUDA {facts['cuda']}" if facts["cuda"] else ""
    echo(f"device: {facts['device']}{cuda}; torch uses {facts['threads']} threads")
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
        echo(
            f"not here: {', '.join(absent)}; {how} are downloaded from the Hugging Face hub when "
            "asked for, but for tinyshakespeare, whose place the error names"
        )
