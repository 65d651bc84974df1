"""Recipes as tables: what there is and what each takes, and the plan of one."""

from collections.abc import Sequence
from dataclasses import fields

from rich.table import Table

from siftback.lab.data.texts import LENGTH
from siftback.lab.experiments.comparison import Plan
from siftback.lab.length import BACKWARD, FORWARD
from siftback.lab.recipes import SCALES, Recipe, Scale, find_recipe, recipe_names, recipes_used
from siftback.lab.recipes.running import Task, count_parameters
from siftback.lab.records.formatting import listed, readable
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


def cost(plan: Plan) -> float | None:
    """About what a plan costs, in forwards of one example: by the strategies' ideal costs.

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
    runs = plan.runs()
    return examples * sum(_of(settings, run.matched_to or run.strategy, run.keep) for run in runs)


def _of(settings: Settings, name: str, keep: float) -> float:
    """Forwards for each example of the data set; a matched run costs what the other does."""
    if settings.budget is not None:
        return (FORWARD + BACKWARD) * settings.budget
    strategy = find_strategy(name)
    scoring = 0.0
    if strategy.drop is not None:
        early = settings.score_epochs * (FORWARD + BACKWARD) + FORWARD
        scoring = settings.score_models * early
    epochs = settings.epochs or 0.0
    warm = strategy.warmed(settings).warmup_epochs(epochs)
    everything = (FORWARD + BACKWARD) * (1 - strategy.dropped(keep))
    selective = strategy.cost.amount(keep, settings.stale_every)
    return warm * everything + (epochs - warm) * selective + scoring


def listing_rows(scale: Scale) -> list[dict[str, str]]:
    """What there is, a row for each recipe."""
    return [_row(find_recipe(name), scale) for name in recipe_names()]


def listing(scale: Scale) -> Table:
    """What ``siftback recipes`` prints."""
    rows = listing_rows(scale)
    for row in rows:
        del row["of"]
    return terminal(
        rows,
        title=f"recipes at the {scale} scale",
        caption=f"cost: {COST}. siftback run RECIPE --dry-run says more",
    )


def markdown_listing() -> str:
    """The same at both scales, and what the recipes' notes say, in Markdown."""
    every = [find_recipe(name) for name in recipe_names()]
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
        ConfigError: If a data set, a model or a strategy is none.
    """
    rows = []
    for task in tasks:
        runs = task.plan.runs()
        done = "finished; " if task.finished else ""
        what = f"{done}{_settings(task.plan.settings)}; {count_parameters(task.plan):,} parameters"
        names = listed(run.name for run in runs)
        cost = _cost([task.plan])
        rows.append(
            {
                "folder": str(task.folder),
                "what": f"{what}\n{names}",
                "runs": str(len(runs)),
                "cost": cost,
            }
        )
    return terminal(rows, caption=f"cost: {COST}")


def _row(recipe: Recipe, scale: Scale) -> dict[str, str]:
    plans = [plan for used in recipes_used(recipe) for plan in used.plans(scale).values()]
    own = sum(len(plan.runs()) for plan in recipe.plans(scale).values())
    runs = [f"of {name}" for name in recipe.uses] + ([str(own)] if own else [])
    return {
        "recipe": recipe.name,
        "shows": recipe.title,
        "of": recipe.source,
        "data": listed(_data(plan.settings) for plan in plans),
        "model": listed(plan.settings.model_name for plan in plans),
        "runs": ", ".join(runs),
        "cost": _cost(plans),
    }


def _data(settings: Settings) -> str:
    limited = f" ({settings.train_limit:,} images)" if settings.train_limit else ""
    return f"{settings.data}{limited}"


def _cost(plans: Sequence[Plan]) -> str:
    costs = [cost(plan) for plan in plans]
    known = [one for one in costs if one is not None]
    return readable(sum(known)) if len(known) == len(costs) else "not known"


def _settings(settings: Settings) -> str:
    """Model, data, and what is not as it is by default."""
    named = ("data", "model", "width", "norm", "train_limit")
    others = [
        f"{field.name} {value}"
        for field in fields(Settings)
        if field.name not in named and (value := getattr(settings, field.name)) != field.default
    ]
    return f"{settings.model_name} on {_data(settings)}, {', '.join(others)}"
