"""The papers' experiments: ``siftback recipes`` and ``siftback run``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from siftback.cli.app import app
from siftback.cli.options import (
    Json,
    Overwrite,
    Resume,
    Threads,
    existing_policy,
    parse_seeds,
    use_threads,
)
from siftback.errors import ConfigError

if TYPE_CHECKING:
    from siftback.lab.recipes import Scale

ScaleOption = Annotated[
    str, typer.Option(help="small, for two cores and the data at hand; or full, as the papers.")
]


@app.command("recipes")
def recipes_command(
    scale: ScaleOption = "small",
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown, of both scales.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the papers' experiments, each with what it needs."""
    from siftback.cli.ending import show_json
    from siftback.lab.recipes.listing import listing, listing_rows, markdown_listing

    if as_markdown and as_json:
        raise ConfigError("both --markdown and --json given: give one of them")
    if as_markdown:
        typer.echo(markdown_listing())
    elif as_json:
        show_json(listing_rows(_scale(scale)))
    else:
        Console().print(listing(_scale(scale)))


@app.command("run")
def run_command(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe, or a TOML file like one.")],
    scale: ScaleOption = "small",
    seed: Annotated[
        str | None,
        typer.Option("--seeds", help="Seeds in place of the recipe's, separated by commas."),
    ] = None,
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of every comparison."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Train and draw only the comparisons whose names begin so: mnist."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of all runs; recipes that share some find them here.")
    ] = Path("runs"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, and run nothing.")
    ] = False,
    threads: Threads = None,
    overwrite: Overwrite = False,
    resume: Resume = False,
) -> None:
    """Run an experiment of the papers and draw its figures."""
    from siftback.cli.ending import show
    from siftback.lab.analyses import Grid, Missing, export_markdown
    from siftback.lab.recipes import find_recipe
    from siftback.lab.recipes.listing import plan_table
    from siftback.lab.recipes.running import draw_recipe, tasks
    from siftback.lab.records.comparison_record import Comparison
    from siftback.lab.records.formatting import listed
    from siftback.lab.run.progress import ConsoleReporter
    from siftback.lab.run.workload import most_work

    chosen, size = find_recipe(recipe), _scale(scale)
    changes = _changes(changed or [])
    if seed is not None:
        changes["seeds"] = parse_seeds(seed)
    todo = [task for task in tasks(chosen, size, out, changes) if task.is_named(only)]
    if not todo:
        names = listed(task.folder.name for task in tasks(chosen, size, out, changes))
        raise ConfigError(f"--only {only}: no comparison's name begins so; there are {names}")
    old = existing_policy(overwrite, resume)
    plan = plan_table(todo)  # all of it is checked before anything runs
    if dry_run:
        Console().print(plan)
        return
    left = [task for task in todo if overwrite or not task.finished]
    begun = [task.folder for task in left] if resume else []
    use_threads(threads, lambda: most_work(task.plan.settings for task in left), begun)
    console = Console(stderr=True)
    try:
        with ConsoleReporter(console) as reporter:
            for task in todo:
                done = " is finished" if task.finished else ""
                console.print(f"{task.folder}{done}", markup=False, highlight=False, soft_wrap=True)
                task.train(reporter, old)
    except KeyboardInterrupt:
        typer.echo(f"stopped; go on with siftback run {recipe} ... --resume", err=True)
        sys.exit(130)
    for task in todo:
        show(Comparison.read(task.folder))
        typer.echo()
    for analysis, paths in draw_recipe(chosen, size, out, todo):
        if isinstance(analysis, Missing):
            typer.echo(f"{analysis.name} is missing: {analysis.why}", err=True)
        else:
            if isinstance(analysis, Grid):
                typer.echo(export_markdown(analysis))
            typer.echo(f"{analysis.title}: {analysis.sentence}")
            typer.echo("\n".join(f"  {path}" for path in paths))


def _scale(name: str) -> "Scale":
    from siftback.lab.recipes import SCALES
    from siftback.lab.records.formatting import one_of

    if name not in SCALES:
        raise ConfigError(f"--scale {name}: {one_of(name, SCALES)}")
    return name


def _changes(texts: list[str]) -> dict[str, Any]:
    from siftback.lab.recipes import changes_of

    for text in texts:
        if "=" not in text:
            raise ConfigError(f"--set {text}: give a key and a value, such as epochs=2")
    pairs = [text.split("=", 1) for text in texts]
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--set {', '.join(twice)}: given more than once; give each key once")
    return changes_of(dict(pairs))
