"""Recipes as tables: what there is and what each takes, and the plan of one."""

from collections.abc import Sequence
from dataclasses import fields

from rich.table import Table

from siftback.lab import strategies
from siftback.lab.compare import Plan
from siftback.lab.recipes import SCALES, Recipe, Scale, experiments, find, names
from siftback.lab.recipes.running import Task, check
from siftback.lab.settings import Settings
from siftback.lab.table import listed, markdown

_BACKWARD_AND_FORWARD = 3


def traditional_epochs(plan: Plan) -> float:
    """About what a plan costs, in epochs of Traditional: by the strategies' ideal costs.

    A run of a given budget costs that; scores for pruning are charged to each run that prunes.
    """
    return sum(_cost(plan.settings, run.strategy, run.matched_to, run.keep) for run in plan.runs())


def _cost(settings: Settings, name: str, matched_to: str | None, keep: float) -> float:
    if settings.budget is not None:
        return settings.budget
    strategy = strategies.find(matched_to or name)
    cost = strategy.ideal_cost(keep, settings.stale_every) / _BACKWARD_AND_FORWARD
    scoring = 0.0
    if strategy.drop is not None:
        scoring = settings.score_models * (settings.score_epochs + 1 / _BACKWARD_AND_FORWARD)
    return settings.length * cost + scoring


def listing(scale: Scale) -> Table:
    """What ``siftback recipes`` prints."""
    rows = [_row(find(name), scale) for name in names()]
    table = Table(
        *rows[0],
        title=f"recipes at the {scale} scale",
        title_justify="left",
        caption="epochs: about what all runs cost, in epochs of Traditional; siftback run RECIPE "
        "--dry-run tells more",
        caption_justify="left",
    )
    for row in rows:
        table.add_row(*row.values())
    return table


def markdown_listing() -> str:
    """The same at both scales, and what the recipes' notes say, in Markdown."""
    every = [find(name) for name in names()]
    parts = []
    for scale in SCALES:
        rows = [_row(recipe, scale) for recipe in every]
        for row in rows:
            row["recipe"] = f"`{row['recipe']}`"
        parts.append(f"### The {scale} scale\n\n{markdown(rows)}")
    notes = [f"- `{recipe.name}`: {recipe.note}" for recipe in every if recipe.note]
    return "\n\n".join([*parts, "### Notes\n\n" + "\n".join(notes)])


def plan_table(tasks: Sequence[Task]) -> Table:
    """The comparisons that a recipe draws from, for ``--dry-run``; each is checked.

    Raises:
        ConfigError: Where a data set, a model or a strategy is none.
    """
    table = Table(
        "folder",
        "what",
        "runs",
        "epochs",
        caption="epochs: about what the runs cost, in epochs of Traditional",
        caption_justify="left",
    )
    for task in tasks:
        runs = task.plan.runs()
        done = "finished; " if task.finished else ""
        told = f"{_settings(task.plan.settings)}; {check(task.plan):,} parameters"
        names = listed(run.name for run in runs)
        table.add_row(
            str(task.folder), f"{done}{told}\n{names}", str(len(runs)), _epochs([task.plan])
        )
    return table


def _row(recipe: Recipe, scale: Scale) -> dict[str, str]:
    plans = [plan for used in experiments(recipe) for plan in used.plans(scale).values()]
    own = len(recipe.plans(scale))
    return {
        "recipe": recipe.name,
        "shows": recipe.title,
        "of": recipe.source,
        "data": listed(_data(plan.settings) for plan in plans),
        "model": listed(plan.settings.model_name for plan in plans),
        "runs": " and ".join(
            [*(f"those of {name}" for name in recipe.uses)]
            + ([str(sum(len(plan.runs()) for plan in plans[-own:]))] if own else [])
        ),
        "epochs": _epochs(plans),
    }


def _data(settings: Settings) -> str:
    limited = f" ({settings.train_limit:,} images)" if settings.train_limit else ""
    return f"{settings.data}{limited}"


def _epochs(plans: Sequence[Plan]) -> str:
    return f"{sum(map(traditional_epochs, plans)):,.0f}"


def _settings(settings: Settings) -> str:
    """Model, data, and what is not as it is by default."""
    named = ("data", "model", "width", "norm", "train_limit")
    others = [
        f"{field.name} {value}"
        for field in fields(Settings)
        if field.name not in named and (value := getattr(settings, field.name)) != field.default
    ]
    return f"{settings.model_name} on {_data(settings)}, {', '.join(others)}"
