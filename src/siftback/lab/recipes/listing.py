"""Recipes as tables: what there is and what each takes, and the plan of one."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from rich.table import Table

from siftback.errors import ConfigError
from siftback.lab import models
from siftback.lab.data.load import NAMES, PUBLISHED
from siftback.lab.data.source import parse_address
from siftback.lab.data.texts import LENGTH
from siftback.lab.experiments.comparison import Plan, is_finished
from siftback.lab.length import BACKWARD, FORWARD
from siftback.lab.recipes import Scale
from siftback.lab.recipes.recipe import (
    find_recipe,
    recipe_names,
    recipes_used,
)
from siftback.lab.records.formatting import listed, one_of, readable
from siftback.lab.records.tables import markdown, terminal
from siftback.lab.settings import Settings
from siftback.lab.strategies.table import find_strategy

COST = "about what all runs take, in forwards of one example, a backward being two"

# Training examples of each set, as they are published; of running text its windows of `LENGTH`.
_EXAMPLES = {
    "digits": 1437,
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "svhn": 73_257,
    "svhn+extra": 604_388,
    "imdb": 25_000,
    "sst2": 6_920,
    "tinyshakespeare": 7_842,
}


def plan_cost(plan: Plan) -> float | None:
    """Returns about what a plan costs, in forwards of one example: by the ideal costs.

    A run of a given budget costs that; scores for pruning are charged to each run that prunes.

    Returns:
        None where the data set's size is not known, or training ends by the clock.
    """
    settings = plan.settings
    examples = settings.train_limit or _EXAMPLES.get(settings.data)
    if examples and settings.data == "tinyshakespeare" and settings.max_tokens:
        examples = examples * LENGTH // settings.max_tokens
    if examples is None or (settings.epochs is None and settings.budget is None):
        return None
    total = 0.0  # for each example
    for run in plan.runs():
        # A matched run costs what the other does.
        strategy = find_strategy(run.matched_to or run.strategy)
        if settings.budget is not None:
            total += (FORWARD + BACKWARD) * settings.budget
            continue
        if strategy.drop is not None:
            early = settings.score_epochs * (FORWARD + BACKWARD) + FORWARD
            total += settings.score_models * early
        epochs = settings.epochs or 0.0
        warm = strategy.warmed(settings).warmup_epochs(epochs)
        total += warm * (FORWARD + BACKWARD) * (1 - strategy.dropped(run.keep))
        total += (epochs - warm) * strategy.cost.amount(run.keep, settings.stale_every)
    return examples * total


def count_parameters(plan: Plan) -> int:
    """Builds the model of a plan, which needs neither data nor a device; returns its parameters.

    Raises:
        ConfigError: If the data set is none, or the model cannot be had.
    """
    data, settings = plan.settings.data, plan.settings
    classes, channels = 10, 1 if data == "digits" else 3  # a guess for a user's own data
    if published := PUBLISHED.get(data):
        classes, channels = published.classes, published.channels
    elif data not in NAMES and parse_address(data) is None:
        raise ConfigError(f"data set {data!r} is not known: {one_of(data, NAMES)}")
    return models.count(
        settings.model, settings.width, classes, channels=channels, norm=settings.norm
    )


def listing_rows(scale: Scale) -> list[dict[str, str]]:
    """Returns a row for each recipe."""
    rows = []
    for recipe in map(find_recipe, recipe_names()):
        plans = [plan for used in recipes_used(recipe) for plan in used.plans(scale).values()]
        count = sum(len(plan.runs()) for plan in recipe.plans(scale).values())
        row = {
            "recipe": recipe.name,
            "shows": recipe.title,
            "of": recipe.source,
            "data": listed(_data(plan.settings) for plan in plans),
            "model": listed(plan.settings.model_name for plan in plans),
            "runs": ", ".join(
                [*(f"of {name}" for name in recipe.uses), *[str(count)] * bool(count)]
            ),
            "cost": _cost(plans),
        }
        rows.append(row)
    return rows


def listing(scale: Scale) -> Table:
    """Returns the table that ``siftback recipes`` prints."""
    rows = [{name: row[name] for name in row if name != "of"} for row in listing_rows(scale)]
    caption = f"cost: {COST}. siftback run RECIPE --dry-run says more"
    return terminal(rows, title=f"recipes at the {scale} scale", caption=caption)


def markdown_listing() -> str:
    """Returns the rows at both scales, and the recipes' notes, in Markdown."""
    sections = []
    for scale in Scale:
        rows = [row | {"recipe": f"`{row['recipe']}`"} for row in listing_rows(scale)]
        sections.append(f"### The {scale} scale\n\n{markdown(rows)}")
    recipes = map(find_recipe, recipe_names())
    notes = [f"- `{recipe.name}`: {recipe.note}" for recipe in recipes if recipe.note]
    return "\n\n".join([*sections, "### Notes\n\n" + "\n".join(notes)])


def plan_table(plans: Mapping[Path, Plan]) -> Table:
    """Returns the comparisons that a recipe draws from, for ``--dry-run``; each is checked.

    Raises:
        ConfigError: If a data set, a model or a strategy is none.
    """
    rows = []
    for folder, plan in plans.items():
        done = "finished; " if is_finished(plan, folder) else ""
        settings, runs = plan.settings, plan.runs()
        changed = [
            f"{field.name} {value}"
            for field in fields(Settings)
            if field.name not in ("data", "model", "width", "norm", "train_limit")
            and (value := getattr(settings, field.name)) != field.default
        ]
        what = (
            f"{done}{settings.model_name} on {_data(settings)}, {', '.join(changed)}; "
            f"{count_parameters(plan):,} parameters\n{listed(run.name for run in runs)}"
        )
        count, cost = str(len(runs)), _cost([plan])
        rows.append({"folder": str(folder), "what": what, "runs": count, "cost": cost})
    return terminal(rows, caption=f"cost: {COST}")


def _data(settings: Settings) -> str:
    limited = f" ({settings.train_limit:,} images)" if settings.train_limit else ""
    return f"{settings.data}{limited}"


def _cost(plans: Sequence[Plan]) -> str:
    costs = [cost for plan in plans if (cost := plan_cost(plan)) is not None]
    return readable(sum(costs)) if len(costs) == len(plans) else "not known"
