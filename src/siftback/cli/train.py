"""Training: ``siftback compare``, ``train``, ``sweep``, and the papers' experiments."""

import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from siftback import SiftbackError
from siftback.cli.app import end_stopped, print_error, show_json
from siftback.cli.options import (
    checkpoint_policy,
    command,
    existing_policy,
    keeps_of,
    parse_seeds,
    settings_of,
    use_threads,
    warn_of_varied,
)
from siftback.errors import ConfigError
from siftback.lab.settings import SETTINGS, parse_names

if TYPE_CHECKING:
    from torch import nn

    from siftback.lab.experiments.comparison import Plan
    from siftback.lab.experiments.sweep import GridCell
    from siftback.lab.records.comparison_record import Comparison

SEVERAL = "0,1,2"  # seeds

# Not a space to break a line at.
_FIRM = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"


def train_plan(
    plan: "Plan",
    several: Sequence[int],
    out: Path,
    on_model: "Callable[[Any, nn.Module], None]" = lambda run, model: None,
    *,
    threads: int | None = None,
    checkpoint_every: str = "10m",
    checkpoints: int = 2,
    tensorboard: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Carries out a plan, with several seeds where it is short, and prints the results.

    Without ``several`` seeds it is of one model alone, which there is nothing to judge by.
    """
    from siftback.lab.experiments.comparison import check_settings_used, compare, prepare_data
    from siftback.lab.figures.error_plots import draw_errors
    from siftback.lab.forward import batch_work
    from siftback.lab.records.comparison_record import Comparison
    from siftback.lab.records.folder import is_comparison
    from siftback.lab.report.numbers import numbers
    from siftback.lab.run.progress import TENSORBOARD, ConsoleReporter, TensorBoardReporter
    from siftback.lab.run.workload import is_short
    from siftback.lab.strategies.table import find_strategy

    existing, settings = existing_policy(overwrite, resume), plan.settings
    policy = checkpoint_policy(checkpoint_every, checkpoints)
    check_settings_used([plan])
    data = prepare_data(plan)
    if several and is_short(settings, data):
        plan = replace(plan, seeds=several)
    selects = any(find_strategy(run.strategy).selects for run in plan.runs())
    if several and len(plan.seeds) == 1 and selects:
        typer.echo(f"one seed decides nothing: --seed {SEVERAL} would show their spread", err=True)
    use_threads(threads, lambda: batch_work(settings, data), [out] if resume else [])
    stopped = False
    try:
        reporter = ConsoleReporter(Console(stderr=True))
        if tensorboard:
            reporter = TensorBoardReporter(Console(stderr=True), out / TENSORBOARD)
        with reporter:
            compare(plan, out, reporter, existing, on_model, policy, data)
    except KeyboardInterrupt:
        stopped = True
    if is_comparison(out) and (comparison := Comparison.read(out)).runs:
        picture = draw_errors(comparison, out)[0]
        if json:
            show_json(numbers(comparison) | {"picture": str(picture)})
        else:
            show_comparison(comparison, judges=bool(several))
            typer.echo(f"picture: {picture}")
    if stopped:
        end_stopped(f"--out {out} --resume")


@command("compare", *SETTINGS, options_of=train_plan)
def compare_command(
    values: dict[str, Any],
    strategies: str = "traditional,Memory()",
    keep: str | None = None,
    beta: str | None = None,
    seed: str | None = None,
    out: Path = Path("runs/compare"),
    no_matched: bool = False,
    **options: Any,
) -> None:
    """Train with several strategies; print one table, draw the errors.

    All start from the same weights and see the data in the same order. It ends with a sentence for
    each strategy that selects: whether it paid, beside plain training of the same cost.

    Args:
        strategies: Names or calls, separated by commas: 'traditional,Memory()'; sb@0.5 has a
            share to keep of its own.
        keep: Shares of the examples to keep, separated by commas; 0.33 by default.
        seed: Seeds, separated by commas; by default 0,1,2 where a run takes less than about a
            minute, and otherwise 0.
        out: Folder for summary, records and plots.
        no_matched: Leave out plain training of each selective run's budget.
    """
    from siftback.lab.experiments.comparison import Plan

    names, seeds = parse_names(strategies), [0] if seed is None else parse_seeds(seed)
    plan = Plan(settings_of(values), names, keeps_of(keep, beta, names), seeds, not no_matched)
    train_plan(plan, parse_seeds(SEVERAL) if seed is None else plan.seeds, out, **options)


@command("train", *SETTINGS, options_of=train_plan)
def train_command(
    values: dict[str, Any],
    strategy: str = "Memory()",
    keep: str | None = None,
    beta: str | None = None,
    seed: int = 0,
    out: Path = Path("runs/train"),
    **options: Any,
) -> None:
    """Train one model with one strategy; keep its weights.

    They are in weights.pt, in the folder of --out.

    Args:
        strategy: Name of the strategy, or its call, such as 'Memory()'.
        keep: Share of the examples to keep; 0.33 by default.
        seed: Seed of weights, data order and selection.
        out: Folder for summary, records and plots.
    """
    import torch

    from siftback.lab.experiments.comparison import WEIGHTS, Plan
    from siftback.lab.records.folder import atomic_write, record_names

    keeps = keeps_of(keep, beta, [strategy])
    if len(keeps) > 1:
        option = f"--keep {keep}" if beta is None else f"--beta {beta}"
        raise ConfigError(f"{option}: give one; siftback compare trains several models")

    def save(_: Any, trained: "nn.Module") -> None:
        with atomic_write(out / WEIGHTS) as path, path.open("wb") as file:
            torch.save(trained.state_dict(), file)

    plan = Plan(settings_of(values), [strategy], keeps, [seed], matched=False)
    others = {*record_names(out)} - {plan.runs()[0].record}
    if options["resume"] and others:
        raise ConfigError(
            f"{out} holds {', '.join(sorted(others))}, and one model is trained into a folder, as "
            f"{WEIGHTS} is its alone: give another --out, or --overwrite to lose what it holds"
        )
    train_plan(plan, [], out, save, **options)
    if not options["json"]:
        typer.echo(f"weights: {out / WEIGHTS}")


def show_comparison(comparison: "Comparison", *, judges: bool = True) -> None:
    """Prints the table of a comparison, and a sentence for each selective strategy if it judges."""
    from siftback.lab.experiments.summary_table import comparison_table
    from siftback.lab.report.verdict import verdicts

    console = Console()
    console.print(comparison_table(comparison), "")
    for verdict in verdicts([comparison]) if judges else []:
        sentence = verdict.sentence.replace(" ± ", _FIRM)
        lines = textwrap.fill(sentence, console.width, subsequent_indent="  ")
        typer.echo(lines.replace(_FIRM, " ± "))


@command("sweep", *SETTINGS)
def sweep_command(
    values: dict[str, Any],
    grid: list[str] | None = None,
    strategies: str = "traditional,Memory()",
    keep: str | None = None,
    seed: str = "0",
    out: Path = Path("runs/sweep"),
    matched: bool = False,
    status: bool = False,
    threads: int | None = None,
    checkpoint_every: str = "10m",
    checkpoints: int = 2,
    overwrite: bool = False,
    resume: bool = False,
    json: bool = False,
) -> None:
    """Compare in every cell of a grid of settings; print one table.

    Args:
        grid: A setting's values: lr=0.05,0.1. Once for each setting; keep is one.
        strategies: Names or calls, separated by commas.
        keep: Shares of the examples to keep, separated by commas, where the grid has none; 0.33
            by default.
        seed: Seeds, separated by commas.
        out: Gets a comparison's folder for each cell.
        matched: Add plain training of each selective run's budget.
        status: Train nothing; print what is done and missing.
    """
    from siftback.lab.experiments.comparison import Plan, check_settings_used
    from siftback.lab.experiments.sweep import KEEP, cells, read_grid, sweep, sweep_table
    from siftback.lab.report.numbers import numbers
    from siftback.lab.run.progress import ConsoleReporter
    from siftback.lab.run.workload import most_work

    def plan_of(cell: dict[str, Any]) -> Plan:
        names, seeds = parse_names(strategies), parse_seeds(seed)
        keeps = keeps_of(str(cell.pop(KEEP)) if KEEP in cell else keep, None, names)
        plan = Plan(settings_of(values | cell), names, keeps, seeds, matched)
        check_settings_used([plan])
        if matched and not any(run.matched_to for run in plan.runs()):
            raise ConfigError(f"--matched: all runs of {strategies} cost the same; leave it out")
        return plan

    varied = read_grid(grid or [])
    grid_cells = cells(varied, plan_of, out)
    warn_of_varied(values | {KEEP: keep}, varied)
    failed: list[GridCell] = []

    def report(cell: "GridCell", error: SiftbackError) -> None:
        failed.append(cell)
        print_error(f"{cell.folder.name}: {error}")

    stopped = False
    if not status:
        settings = [cell.plan.settings for cell in grid_cells if overwrite or cell.state != "done"]
        folders = [cell.folder for cell in grid_cells] if resume else []
        use_threads(threads, lambda: most_work(settings), folders)
        policy = checkpoint_policy(checkpoint_every, checkpoints)
        try:
            with ConsoleReporter(Console(stderr=True)) as reporter:
                sweep(grid_cells, reporter, existing_policy(overwrite, resume), policy, report)
        except KeyboardInterrupt:
            stopped = True
    if json:
        cells_json = [
            {
                "values": cell.values,
                "folder": str(cell.folder),
                "state": cell.state,
                "comparison": cell.comparison and numbers(cell.comparison),
            }
            for cell in grid_cells
        ]
        show_json(cells_json)
    else:
        Console().print(sweep_table(grid_cells))
    if stopped:
        end_stopped(f"--out {out} --resume")
    if failed:
        sys.exit(1)


@command("recipes")
def recipes_command(scale: str = "small", markdown: bool = False, json: bool = False) -> None:
    """List the papers' experiments, each with what it needs.

    Args:
        markdown: Print Markdown, of both scales.
    """
    from siftback.lab.recipes.recipe import find_scale, listing, listing_rows, markdown_listing

    if markdown and json:
        raise ConfigError("both --markdown and --json given: give one of them")
    if markdown:
        typer.echo(markdown_listing())
    elif json:
        show_json(list(listing_rows(find_scale(scale))))
    else:
        Console().print(listing(find_scale(scale)))


@command("run")
def run_command(
    recipe: str,
    scale: str = "small",
    seeds: str | None = None,
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of every comparison."),
    ] = None,
    only: str | None = None,
    out: Path = Path("runs"),
    dry_run: bool = False,
    threads: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
) -> None:
    """Run an experiment of the papers and draw its figures.

    Args:
        recipe: Name of a recipe, or a TOML file like one.
        seeds: Seeds in place of the recipe's, separated by commas.
        only: Train and draw only some comparisons, separated by commas: names, such as mnist-4, or
            beginnings of several, such as mnist.
        out: Folder of all runs; recipes that share some find them here.
        dry_run: Print what would run, and run nothing.
    """
    from siftback.lab.experiments.comparison import check_settings_used, compare, is_finished
    from siftback.lab.figures.figure import Grid, Missing
    from siftback.lab.figures.writing import format_rows
    from siftback.lab.recipes import recipe as recipes
    from siftback.lab.records import tables
    from siftback.lab.records.comparison_record import Comparison
    from siftback.lab.records.formatting import listed
    from siftback.lab.run.progress import ConsoleReporter
    from siftback.lab.run.workload import most_work

    experiment, size = recipes.find_recipe(recipe), recipes.find_scale(scale)
    changes = recipes.parse_changes(changed or [])
    if seeds is not None:
        changes["seeds"] = parse_seeds(seeds)
    plans = recipes.recipe_plans(experiment, size, out, changes)
    if only:
        names, matches = [folder.name for folder in plans], set[str]()
        for name in map(str.strip, only.split(",")):
            if not (begun := {other for other in names if name and other.startswith(name)}):
                raise ConfigError(f"--only {only}: no name begins so; there are {listed(names)}")
            matches |= begun & {name} or begun
        plans = {folder: plan for folder, plan in plans.items() if folder.name in matches}
    check_settings_used([*plans.values()], changes)
    existing = existing_policy(overwrite, resume)
    table = recipes.plan_table(plans)  # all of it is checked before anything runs
    if dry_run:
        Console().print(table)
        return
    left = [folder for folder, plan in plans.items() if overwrite or not is_finished(plan, folder)]
    settings = [plans[folder].settings for folder in left]
    use_threads(threads, lambda: most_work(settings), left if resume else [])
    try:
        with ConsoleReporter(Console(stderr=True)) as reporter:
            for folder, plan in plans.items():
                reporter.note(f"{folder}" if folder in left else f"{folder} is finished")
                if folder in left:
                    compare(plan, folder, reporter, existing)
    except KeyboardInterrupt:
        end_stopped(f"siftback run {recipe} ... --resume")
    for folder in plans:
        show_comparison(Comparison.read(folder))
        typer.echo()
    for analysis, paths in recipes.draw_recipe(experiment, size, out, plans):
        if isinstance(analysis, Missing):
            typer.echo(f"{analysis.name} is missing: {analysis.why}", err=True)
        else:
            if isinstance(analysis, Grid):
                typer.echo(tables.markdown(format_rows(analysis)))
            typer.echo(f"{analysis.title}: {analysis.sentence}")
            typer.echo("\n".join(f"  {path}" for path in paths))
