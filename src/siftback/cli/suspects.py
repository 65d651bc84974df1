"""Examples that seem mislabelled: ``siftback suspects``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from siftback.cli.app import app


@app.command("suspects")
def suspects_command(
    run: Annotated[Path, typer.Option(help="Folder of a comparison with a guarded strategy.")],
    name: Annotated[
        str | None,
        typer.Option(help="Which of its guarded runs; by default all, the first listed."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A Parquet file, to list all label issues of that run in.")
    ] = None,
    most: Annotated[int, typer.Option(help="How many to print.")] = 20,
) -> None:
    """List the training examples that seem mislabelled.

    The label issues of a noise guard, beside those of cleanlab.
    """
    from siftback.lab.experiments.suspects_report import (
        read_suspects,
        suspects_tables,
        write_ranked,
    )

    suspects = read_suspects(run, name)
    if out is not None:
        write_ranked(out, *next(iter(suspects.items())))
    Console().print(suspects_tables(suspects, most))
