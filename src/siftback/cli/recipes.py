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
    from siftback.lab.recipes.recipe import Scale

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
        show_json(listing_rows(_checked_scale(scale)))
    else:
        Console().print(listing(_checked_scale(scale)))


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
    from siftback.lab.analyses import Grid, Missing, as_markdown
    from siftback.lab.recipes.listing import plan_table
    from siftback.lab.recipes.recipe import draw_recipe, find_recipe, recipe_tasks
    from siftback.lab.records.comparison_record import Comparison
    from siftback.lab.records.formatting import listed
    from siftback.lab.run.progress import ConsoleReporter
    from siftback.lab.run.workload import most_work

    experiment, size = find_recipe(recipe), _checked_scale(scale)
    changes = _parse_assignments(changed or [])
    if seed is not None:
        changes["seeds"] = parse_seeds(seed)
    all_tasks = recipe_tasks(experiment, size, out, changes)
    tasks = [task for task in all_tasks if task.folder.name.startswith(only or "")]
    if not tasks:
        names = listed(task.folder.name for task in all_tasks)
        raise ConfigError(f"--only {only}: no comparison's name begins so; there are {names}")
    existing = existing_policy(overwrite, resume)
    table = plan_table(tasks)  # all of it is checked before anything runs
    if dry_run:
        Console().print(table)
        return
    left = [task for task in tasks if overwrite or not task.finished]
    begun = [task.folder for task in left] if resume else []
    use_threads(threads, lambda: most_work(task.plan.settings for task in left), begun)
    console = Console(stderr=True)
    try:
        with ConsoleReporter(console) as reporter:
            for task in tasks:
                done = " is finished" if task.finished else ""
                console.print(f"{task.folder}{done}", markup=False, highlight=False, soft_wrap=True)
                task.train(reporter, existing)
    except KeyboardInterrupt:
        typer.echo(f"stopped; go on with siftback run {recipe} ... --resume", err=True)
        sys.exit(130)
    for task in tasks:
        show(Comparison.read(task.folder))
        typer.echo()
    for analysis, paths in draw_recipe(experiment, size, out, tasks):
        if isinstance(analysis, Missing):
            typer.echo(f"{analysis.name} is missing: {analysis.why}", err=True)
        else:
            if isinstance(analysis, Grid):
                typer.echo(as_markdown(analysis))
            typer.echo(f"{analysis.title}: {analysis.sentence}")
            typer.echo("\n".join(f"  {path}" for path in paths))


def _checked_scale(name: str) -> "Scale":
    from siftback.lab.recipes.recipe import SCALES
    from siftback.lab.records.formatting import one_of

    if name not in SCALES:
        raise ConfigError(f"--scale {name}: {one_of(name, SCALES)}")
    return name


def _parse_assignments(texts: list[str]) -> dict[str, Any]:
    from siftback.lab.recipes.recipe import parse_changes

    for text in texts:
        if "=" not in text:
            raise ConfigError(f"--set {text}: give a key and a value, such as epochs=2")
    pairs = [text.split("=", 1) for text in texts]
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--set {', '.join(twice)}: given more than once; give each key once")
    return parse_changes(dict(pairs))
