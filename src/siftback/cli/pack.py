"""Comparisons kept for long: ``siftback pack``."""

from pathlib import Path
from typing import Annotated

import typer

from siftback.cli.app import app
from siftback.errors import ConfigError


@app.command("pack")
def pack_command(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders that siftback compare wrote, or that hold such.")
    ],
) -> None:
    """Put the records of comparisons that ended into one file each.

    A run writes a file of its own under records/; here those of a comparison become one,
    records.jsonl.gz, compressed, as is best in a repository. Every command reads both, and
    --resume goes on from both.
    """
    from siftback.lab.records.comparison_record import SUMMARY
    from siftback.lab.records.run_files import pack

    paths = [path.parent for folder in folders for path in sorted(folder.rglob(SUMMARY))]
    if not paths:
        names = ", ".join(map(str, folders))
        raise ConfigError(f"{names} holds no {SUMMARY}: give folders that siftback compare wrote")
    moved = [pack(folder) for folder in paths]
    typer.echo(f"{sum(moved)} runs packed, of {sum(map(bool, moved))} comparisons")
