"""The papers' experiments: ``siftback recipes`` and ``siftback run``."""

from functools import partial
from pathlib import Path
from typing import Annotated

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
from siftback.lab.recipes import find_scale

ScaleOption = Annotated[
    str,
    typer.Option(help="small, for two cores and the data at hand; or full, as the papers."),
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
        show_json(listing_rows(find_scale(scale)))
    else:
        Console().print(listing(find_scale(scale)))


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
    from siftback.cli.ending import end_stopped, show_comparison
    from siftback.lab.experiments.comparison import is_finished
    from siftback.lab.figures import Grid, Missing, export_markdown
    from siftback.lab.recipes.listing import plan_table
    from siftback.lab.recipes.recipe import (
        draw_recipe,
        find_recipe,
        parse_changes,
        recipe_plans,
        run_unfinished,
    )
    from siftback.lab.records.comparison_record import Comparison
    from siftback.lab.records.formatting import listed
    from siftback.lab.run.progress import ConsoleReporter
    from siftback.lab.run.workload import most_work

    experiment, size = find_recipe(recipe), find_scale(scale)
    changes = parse_changes(changed or [])
    if seed is not None:
        changes["seeds"] = parse_seeds(seed)
    named = recipe_plans(experiment, size, out, changes)
    plans = {folder: plan for folder, plan in named.items() if folder.name.startswith(only or "")}
    if not plans:
        names = listed(folder.name for folder in named)
        raise ConfigError(f"--only {only}: no comparison's name begins so; there are {names}")
    existing = existing_policy(overwrite, resume)
    table = plan_table(plans)  # all of it is checked before anything runs
    if dry_run:
        Console().print(table)
        return
    finished = {folder for folder, plan in plans.items() if is_finished(plan, folder)}
    left = [folder for folder in plans if overwrite or folder not in finished]
    work = partial(most_work, [plans[folder].settings for folder in left])
    use_threads(threads, work, left if resume else [])
    console = Console(stderr=True)
    try:
        with ConsoleReporter(console) as reporter:
            for folder, plan in plans.items():
                done = " is finished" if folder in finished else ""
                console.print(f"{folder}{done}", markup=False, highlight=False, soft_wrap=True)
                run_unfinished(plan, folder, reporter, existing)
    except KeyboardInterrupt:
        end_stopped(f"siftback run {recipe} ... --resume")
    for folder in plans:
        show_comparison(Comparison.read(folder))
        typer.echo()
    for analysis, paths in draw_recipe(experiment, size, out, plans):
        if isinstance(analysis, Missing):
            typer.echo(f"{analysis.name} is missing: {analysis.why}", err=True)
        else:
            if isinstance(analysis, Grid):
                typer.echo(export_markdown(analysis))
            typer.echo(f"{analysis.title}: {analysis.sentence}")
            typer.echo("\n".join(f"  {path}" for path in paths))
