"""What is installed and at hand: ``siftback doctor``."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from siftback.cli.app import app
from siftback.cli.options import Json

if TYPE_CHECKING:
    from siftback.lab.experiments.installation import Package


@app.command("doctor")
def doctor_command(
    as_json: Json = False,
) -> None:
    """Say what is installed and at hand, and how to get what is not.

    Ends with 1 where the library or the laboratory lacks a package or has one that is too old, and
    with 0 otherwise: frameworks and data sets are for those who want them.
    """
    from siftback.lab.experiments.installation import busy, data_sets, machine, packages

    installed, found, sets = packages(), machine(), data_sets()
    if as_json:
        said = {
            "machine": found,
            "busy": busy(found),
            "packages": [asdict(one) | {"fits": one.fits} for one in installed],
            "data": {name: None if at is None else str(at) for name, at in sets.items()},
        }
        typer.echo(json.dumps(said, indent=2))
    else:
        _print(installed, found, sets)
    if any(not one.fits and one.extra in ("", "lab") for one in installed):
        sys.exit(1)


def _print(installed: "list[Package]", found: dict[str, Any], sets: dict[str, Path | None]) -> None:
    from siftback.lab.experiments.installation import busy
    from siftback.lab.records.tables import terminal

    console = Console()

    def line(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    line(f"siftback {found['siftback']}, Python {found['python']}, torch {found['torch']}")
    line(f"{found['platform']}, {found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB")
    built = f", torch built for CUDA {found['cuda']}" if found["cuda"] else ""
    line(f"device: {found['device']}{built}; torch uses {found['threads']} threads")
    if busy(found):
        line(f"The processors are busy (load {found['load']}): train with --threads 1.")
    rows = [
        {
            "package": one.name,
            "for": one.extra or "the library",
            "needed": one.needed,
            "installed": one.version or "no",
            "to do": "" if one.fits else one.install,
        }
        for one in installed
    ]
    console.print(terminal(rows))
    given = os.environ.get("SIFTBACK_DATA")
    where = f"in SIFTBACK_DATA={given}" if given else "SIFTBACK_DATA is not set"
    here = [name for name, at in sets.items() if at is not None]
    away = [name for name, at in sets.items() if at is None]
    line(f"data, {where}: digits, {', '.join(here)}" if here else f"data, {where}: digits")
    if away:
        how = "put them there, or unset it: then they" if given else "they"
        line(
            f"not here: {', '.join(away)}; {how} are downloaded from the Hugging Face hub when "
            "asked for, but for tinyshakespeare, whose place the error names"
        )
