"""What there is and was: ``siftback strategies``, ``models`` and ``results``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from siftback.cli.app import app
from siftback.cli.options import Json


@app.command("strategies")
def strategies_command(as_json: Json = False) -> None:
    """List the strategies, each with its ideal cost of one example."""
    from siftback.cli.ending import show_json
    from siftback.lab.records.tables import terminal
    from siftback.lab.strategies.table import STRATEGIES

    rows = [
        {
            "strategy": strategy.name,
            "what it does": strategy.summary,
            "ideal cost": str(strategy.cost),
        }
        for strategy in STRATEGIES.values()
    ]
    if as_json:
        show_json(rows)
        return
    caption = (
        "ideal cost of one example in forwards; a backward costs 2, s is the share kept, n the "
        "interval of selection passes, r the price of one in forwards"
    )
    Console().print(terminal(rows, caption=caption))


@app.command("models")
def models_command(
    width: Annotated[
        int | None, typer.Option(help="Width of all of them; each one's own by default.")
    ] = None,
    channels: Annotated[int, typer.Option(help="Channels of the images, of 32x32.")] = 3,
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 10,
    as_json: Json = False,
) -> None:
    """List the models, each with width and number of parameters."""
    from siftback.cli.ending import show_json
    from siftback.lab import models
    from siftback.lab.records.tables import terminal

    # Texts of 4,096 tokens in 192 places; a language of 66 characters in windows of 128.
    sizes = {
        "images": {"channels": channels},
        "texts": {"vocabulary": 4096, "length": 192},
        "language": {"vocabulary": 66, "length": 128},
    }
    rows = []
    for name in models.LISTED:
        model = models.find_architecture(name)
        outputs = 66 if model.takes == "language" else classes
        parameters = models.count(name, width, outputs, **sizes[model.takes])
        rows.append(
            {
                "model": name,
                "what it is": model.what,
                "width": str(width or model.width),
                "takes": model.takes,
                "parameters": f"{parameters:,}",
            }
        )
    if as_json:
        show_json(rows)
        return
    caption = (
        f"parameters at {classes} classes, for images of {channels}x32x32. In wrn-D-K and "
        "densenet-bc-D, D is any depth of 6n + 4; wrn-D-K-dropP drops out a share P. Models of "
        "texts have 4,096 tokens and 192 places, gpt 66 characters and 128."
    )
    Console().print(terminal(rows, caption=caption))


@app.command("results")
def results_command(
    folder: Annotated[Path, typer.Argument(help="Folder of recorded comparisons.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("docs/results.md"),
    into: Annotated[
        Path | None,
        typer.Option(help="A page that is given what to use where, between its marks."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="An SVG or PNG file, drawn of what budgets buy."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print every verdict as JSON, and nothing else.")
    ] = False,
) -> None:
    """Build the page of results from recorded comparisons."""
    from siftback.cli.ending import show_json
    from siftback.lab.report.front import write_picture, write_table
    from siftback.lab.report.numbers import verdict_numbers
    from siftback.lab.report.results_page import write_page
    from siftback.lab.report.verdict import verdicts

    comparisons = write_page(folder, out)
    if into is not None:
        write_table(comparisons, into)
    if picture is not None:
        write_picture(comparisons, picture)
    written = [str(path) for path in (out, into, picture) if path is not None]
    if as_json:
        numbers = [verdict_numbers(verdict) for verdict in verdicts(comparisons)]
        show_json({"written": written, "verdicts": numbers})
    else:
        typer.echo("\n".join(written))
