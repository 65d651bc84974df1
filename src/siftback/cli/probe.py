"""Measuring before training: ``siftback probe``."""

from typing import Annotated, Any

import typer
from rich.console import Console

from siftback.cli.app import app
from siftback.cli.options import Json, Threads, settings_of, use_threads, with_settings


@app.command("probe")
@with_settings("data", "model", "width", "norm", "batch_size", "precision", "device")
def probe_command(
    values: dict[str, Any],
    keep: Annotated[
        str, typer.Option(help="Shares of the examples to keep, separated by commas.")
    ] = "1/2,1/3,1/4",
    epochs: Annotated[
        int, typer.Option(help="Length of the training whose speed-up is shown.")
    ] = 10,
    threads: Threads = None,
    seconds: Annotated[float, typer.Option(help="How long to take.")] = 45,
    as_json: Json = False,
) -> None:
    """Measure what selection would cost and save, and whether it pays.

    Per epoch, on one model and its data, within a minute.
    """
    from siftback.lab.experiments.probe_run import probe_report, probe_settings
    from siftback.lab.run.workload import most_work
    from siftback.lab.settings import parse_numbers

    settings = settings_of(values)
    use_threads(threads, lambda: most_work([settings]))
    with Console(stderr=True).status("measuring"):
        result = probe_settings(settings, parse_numbers("--keep", keep), seconds, epochs)
    if as_json:
        typer.echo(result.to_json())
    else:
        Console().print(probe_report(result, f"{settings.model_name} on {settings.data}"))
