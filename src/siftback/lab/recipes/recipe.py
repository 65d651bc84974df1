"""Recipes: their files, what each takes, and the drawing of their figures."""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from rich.table import Table

from siftback.errors import ConfigError
from siftback.lab import models
from siftback.lab.data.load import NAMES, PUBLISHED, training_examples
from siftback.lab.data.source import parse_address
from siftback.lab.data.texts import LENGTH
from siftback.lab.experiments.comparison import Plan, check_keep_used, is_finished
from siftback.lab.figures.analyses import ANALYSES, analyse
from siftback.lab.figures.figure import Analysis
from siftback.lab.figures.writing import write_analysis
from siftback.lab.length import BACKWARD, FORWARD
from siftback.lab.records.comparison_record import Comparison
from siftback.lab.records.folder import is_comparison
from siftback.lab.records.formatting import fact, listed, one_of, readable
from siftback.lab.records.tables import markdown, terminal
from siftback.lab.settings import (
    SETTINGS,
    Settings,
    parse_names,
    parse_numbers,
    parse_setting,
    parse_switch,
)
from siftback.lab.strategies.table import find_strategy, library_name

_FOLDER = Path(__file__).parent
# The types of a file's keys, beside settings: of a list those of its entries.
_ABOUT = {"title": str, "source": str, "draw": [str], "uses": [str], "note": str}
_OF_PLAN = {"strategies": [str], "keep": [float, int], "seeds": [int], "matched": bool}
_DEFAULTS: dict[str, Any] = {"keep": (0.33,), "seeds": (0,), "matched": False}

COST = "about what all runs take, in forwards of one example, a backward being two"


class Scale(StrEnum):
    """The size of an experiment: as the papers have it, or for two cores and the data at hand."""

    FULL = "full"
    SMALL = "small"


_TABLES = ("both", "budgets", *Scale)


def find_scale(name: str) -> Scale:
    """Returns the scale of a name.

    Raises:
        ConfigError: If there is none.
    """
    if name not in [*Scale]:
        raise ConfigError(f"--scale {name}: {one_of(name, Scale)}")
    return Scale(name)


@dataclass(frozen=True)
class Recipe:
    """One experiment: what to train at the papers' scale and at a small one, and what to draw.

    Attributes:
        name: That of its file.
        title: What it shows.
        source: The paper, and its figure, table or section.
        draw: Names of ``ANALYSES``.
        uses: Names of the recipes whose comparisons it draws from too.
        note: What the source leaves open, or where the full scale departs from it.
        comparisons: Of each scale the comparisons by name, each with its keys as they are in the
            file: those of `Settings`, and ``strategies``, ``keep``, ``seeds`` and ``matched``. A
            comparison that is the only one may have the empty name.
    """

    name: str
    title: str
    source: str
    draw: tuple[str, ...]
    comparisons: Mapping[Scale, Mapping[str, Mapping[str, Any]]]
    uses: tuple[str, ...] = ()
    note: str = ""

    @property
    def trains(self) -> bool:
        """Whether it has comparisons; other recipes only draw."""
        return any(self.comparisons.values())

    def plans(self, scale: Scale, changes: Mapping[str, Any] | None = None) -> dict[str, Plan]:
        """Returns its comparisons as plans, by name.

        Args:
            scale: Which scale.
            changes: What to take in place of what the file says, for every comparison.

        Raises:
            ConfigError: If a key or a value is none that a comparison can have.
        """
        return {
            name: read_plan(f"recipe {self.name} [{_section(scale, name)}]", keys, changes or {})
            for name, keys in self.comparisons[scale].items()
        }


@cache
def recipe_names() -> list[str]:
    """Returns the recipes of this package: those of figures in their order, then the others."""

    def order(name: str) -> tuple[bool, list[tuple[int, str]]]:  # fig2 before fig10
        numbered = re.findall(r"(\d*)(\D*)", name)
        return not name.startswith("fig"), [(int(n or 0), letters) for n, letters in numbered]

    return sorted((path.stem for path in _FOLDER.glob("*.toml")), key=order)


def find_recipe(name: str) -> Recipe:
    """Returns the recipe of a name, or of a file's path.

    Raises:
        ConfigError: If there is none, or the file does not say what it must.

    >>> find_recipe("fig6").title
    'Test error over training iterations'
    """
    path = Path(name)
    if path.suffix != ".toml":
        if name not in recipe_names():
            raise ConfigError(
                f"no recipe {name!r}: {one_of(name, recipe_names())}, or a file, such as own.toml"
            )
        path = _FOLDER / f"{name}.toml"
    elif not path.is_file():
        raise ConfigError(f"no file {name}: give the path of a recipe, or the name of one")
    return read_recipe(path)


def recipes_used(recipe: Recipe) -> list[Recipe]:
    """Returns the recipes whose runs a recipe draws from, itself at the end if it trains.

    Raises:
        ConfigError: If it uses one that there is not, or that trains nothing itself.
    """
    used = [find_recipe(name) for name in recipe.uses]
    for other in used:
        if not all(other.comparisons.values()):
            raise ConfigError(
                f"recipe {recipe.name} uses {other.name}, which trains nothing: name those that "
                f"{other.name} uses ({', '.join(other.uses)})"
            )
    return [*used, *([recipe] if recipe.trains else [])]


def read_recipe(path: Path) -> Recipe:
    """Reads a recipe from its file.

    The file has ``title``, ``source``, ``draw``, and where there is something to say ``uses`` and
    ``note``. Comparisons are in the tables ``[full]`` and ``[small]``: their keys, and tables of
    their own where there are several, whose keys are added to them. What both scales share is in
    ``[both]``. A comparison's table ``budgets``, from budgets to strategies, makes one of each
    budget, with the budget in its name; several comparisons share ``[budgets.NAME]`` by its name.

    Raises:
        ConfigError: Names the file and the key, and says what is wrong.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    check_keys(str(path), content, [*_ABOUT, *_TABLES], ("title", "source", "draw"))
    about = read_values(str(path), content, _ABOUT)
    if unknown := [name for name in about["draw"] if name not in ANALYSES]:
        raise ConfigError(
            f"{path}: draw: no analysis {', '.join(unknown)}; {one_of(unknown[0], ANALYSES)}"
        )
    for table in _TABLES:
        if not isinstance(content.get(table, {}), dict):
            raise ConfigError(f"{path}: {table} is a table, write it as [{table}]")
    comparisons = {scale: dict(_comparisons(content, scale)) for scale in Scale}
    recipe = Recipe(path.stem, comparisons=comparisons, **about)
    for scale in Scale:
        if not comparisons[scale] and not recipe.uses:
            raise ConfigError(f"{path} trains nothing: add [{scale}], or uses = [...]")
        for name, keys in comparisons[scale].items():
            if not re.fullmatch(r"[\w-]*|[\w.-]*\w", name):
                raise ConfigError(f"{path}: {name!r} is not a name of a folder: take letters and -")
            read_plan(f"{path} [{_section(scale, name)}]", keys, {})
    return recipe


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Returns changes, each written as ``KEY=VALUE``, lists with commas between.

    Settings stay as they are written, as in a file, and are read with it.

    Raises:
        ConfigError: For a key that no comparison has or that comes twice.

    >>> parse_changes(["time_budget=12h", "strategies=traditional,sb"])
    {'time_budget': '12h', 'strategies': ['traditional', 'sb']}
    """
    readers: dict[str, Callable[[str, str], Any]] = {
        "strategies": lambda name, text: parse_names(text),
        "keep": parse_numbers,
        "matched": parse_switch,
    }
    changes: dict[str, Any] = {}
    for assignment in texts:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment}: give a key and a value, such as epochs=2")
        if name in changes:
            raise ConfigError(f"--set {name}: given more than once; give each key once")
        check_keys("--set", [name], [*SETTINGS, *readers])  # seeds are an option
        changes[name] = readers[name](name, text) if name in readers else text
    return changes


def read_plan(where: str, keys: Mapping[str, Any], changes: Mapping[str, Any]) -> Plan:
    """Returns the plan of a comparison's keys.

    Args:
        where: What an error begins with.
        keys: The keys of its file.
        changes: What to take in place of some; a length takes the place of any other.

    Raises:
        ConfigError: If a key or a value is none that a comparison can have.
    """
    lengths = {"epochs", "budget"}
    if lengths & changes.keys():
        keys = {name: value for name, value in keys.items() if name not in lengths}
    keys = {**keys, **changes}
    check_keys(where, keys, [*SETTINGS, *_OF_PLAN], ("data", "model", "strategies"))
    lists = _DEFAULTS | read_values(where, keys, _OF_PLAN)
    try:
        settings = {name: read_setting(name, keys[name]) for name in keys if name in SETTINGS}
        return Plan(Settings(**settings), *(lists[name] for name in _OF_PLAN))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _comparisons(content: Mapping[str, Any], scale: Scale) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the comparisons of a file's scale by name, each with the keys that all share."""
    if scale not in content:
        return
    table, curves = content.get("both", {}) | content[scale], content.get("budgets", {})
    shared = {name: value for name, value in table.items() if not isinstance(value, dict)}
    # Copies, as both scales have the comparisons of [both].
    named = {name: dict(value) for name, value in table.items() if isinstance(value, dict)}
    for name, keys in named.items():
        if "budgets" not in keys:
            yield name, shared | keys
            continue
        budgets = keys.pop("budgets")
        if isinstance(budgets, str):
            if budgets not in curves:
                raise ConfigError(f"{name}: no budgets {budgets!r}: {one_of(budgets, curves)}")
            budgets = curves[budgets]
        for budget, strategies in budgets.items():
            number = float(budget) if re.fullmatch(r"[\d.]+", budget) else -1.0  # which is refused
            yield f"{name}-{budget}", shared | keys | {"budget": number, "strategies": strategies}
    if not named:
        yield "", shared


def check_keys(
    where: str, keys: Collection[str], known: Sequence[str], needed: Sequence[str] = ()
) -> None:
    """Checks that a table's keys are known, and that it has those that are needed.

    Raises:
        ConfigError: If one is not.
    """
    for name in keys:
        if name not in known:
            raise ConfigError(f"{where}: no key {name!r}; {one_of(name, known)}")
    for name in needed:
        if name not in keys:
            raise ConfigError(f"{where} says no {name}: add it")


def read_values(where: str, table: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a table's keys of these kinds, a list as a tuple.

    Raises:
        ConfigError: If one is of another type.
    """
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name not in table:
            continue
        value, is_list = table[name], isinstance(kind, list)
        if is_list and not isinstance(value, list | tuple):
            raise ConfigError(f"{where}: {name} = {value!r} is not a list; write it as [...]")
        types = kind if is_list else [kind]
        for entry in value if is_list else [value]:
            if type(entry) not in types:
                names = " or ".join(option.__name__ for option in types)
                raise ConfigError(f"{where}: {name} = {entry!r} is not {names}")
        values[name] = tuple(value) if is_list else value
    return values


def read_setting(name: str, value: Any) -> Any:
    """Returns a setting of a file, where numbers, switches and lists may be TOML's own."""
    return parse_setting(name, ",".join(map(str, value)) if isinstance(value, list) else str(value))


def _section(scale: str, name: str) -> str:
    return f"{scale}.{name}" if name else scale


def recipe_plans(
    recipe: Recipe, scale: Scale, out: Path, changes: Mapping[str, Any] | None = None
) -> dict[Path, Plan]:
    """Returns the comparisons that a recipe draws from by folder, with those that it uses.

    Each experiment has a folder, named after it and the scale, and a comparison of several one
    within that: recipes that share runs find them under the same ``out``.

    Args:
        recipe: The recipe.
        scale: Which scale.
        out: The folder of all runs.
        changes: What to take in place of what the files say.

    Raises:
        ConfigError: If a share to keep is asked for by which no comparison would go.
    """
    trained = recipes_used(recipe)
    plans = {
        out / f"{used.name}-{scale}" / name: plan
        for used in trained
        for name, plan in used.plans(scale, changes).items()
    }
    tables = [table for used in trained for table in used.comparisons[scale].values()]
    if any("keep" in table for table in (*tables, changes or ())):
        names = [name for table in tables for name in {**table, **(changes or {})}["strategies"]]
        check_keep_used(f"keep of recipe {recipe.name}", names)
    return plans


def draw_recipe(
    recipe: Recipe, scale: Scale, out: Path, folders: Iterable[Path]
) -> Iterator[tuple[Analysis, list[Path]]]:
    """Yields each of a recipe's figures and tables, from what was recorded, with its files.

    They go into the folder of its experiment, or of the first that it uses where it trains
    nothing itself: a folder of figures holds records too.

    Args:
        recipe: The recipe.
        scale: Which scale.
        out: The folder of all runs.
        folders: The folders of its comparisons, run before.
    """
    home = recipe if recipe.trains else recipes_used(recipe)[0]
    recorded = [Comparison.read(folder) for folder in filter(is_comparison, folders)]
    for analysis in analyse(recorded, recipe.draw).values():
        yield analysis, write_analysis(analysis, out / f"{home.name}-{scale}")


def comparisons_for(analysis: str, comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns what an analysis is made of, where many comparisons are shown together.

    Where they are of several recipes, which their folders are named after, those of a recipe are
    left to the analyses that it or a recipe that uses it draws. All others are in every analysis,
    and so is everything in one that no recipe draws.
    """
    wanted = _recipes_drawn().get(analysis)
    recipes = {_recipe_of(comparison.folder) for comparison in comparisons} - {""}
    if wanted is None or len(recipes) < 2:
        return list(comparisons)
    return [item for item in comparisons if _recipe_of(item.folder) in {"", *wanted}]


@cache
def _recipes_drawn() -> dict[str, set[str]]:
    """Returns by analysis the recipes whose runs are drawn in it."""
    drawn: dict[str, set[str]] = {}
    for recipe in map(find_recipe, recipe_names()):
        for analysis in recipe.draw:
            drawn.setdefault(analysis, set()).update(used.name for used in recipes_used(recipe))
    return drawn


@cache
def _recipe_of(folder: Path) -> str:
    """Returns the recipe that a folder, or the one around it, is named after; "" if none is."""
    for path in (folder, folder.parent):
        recipe, _, scale = path.name.rpartition("-")
        if scale in [*Scale] and recipe in recipe_names():
            return recipe
    return ""


def plan_cost(plan: Plan) -> float | None:
    """Returns about what a plan costs, in forwards of one example: by the ideal costs.

    A run of a given budget costs that; scores for pruning are charged to each run that prunes.

    Returns:
        None where the data set's size is not known, or training ends by the clock.
    """
    settings = plan.settings
    examples = settings.train_limit or training_examples(settings.data)
    if examples and settings.data == "tinyshakespeare" and settings.max_tokens:
        examples = examples * LENGTH // settings.max_tokens
    if not examples or not (settings.epochs or settings.budget):
        return None
    if settings.budget:
        return examples * len(plan.runs()) * (FORWARD + BACKWARD) * settings.budget
    total = 0.0  # for each example
    for run in plan.runs():
        # A matched run costs what the other does.
        strategy = find_strategy(run.matched_to or run.strategy)
        if strategy.prunes:
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
        ConfigError: If there is no such data set, or the model cannot be built.
    """
    data, settings = plan.settings.data, plan.settings
    classes, channels = 10, 1 if data == "digits" else 3  # a guess for a user's own data
    if published := PUBLISHED.get(data):
        classes, channels = published.classes, published.channels
    elif data not in NAMES and parse_address(data) is None:
        raise ConfigError(f"data set {data!r} is not known: {one_of(data, NAMES)}")
    model, width, norm = settings.model, settings.width, settings.norm
    return models.count(model, width, classes, channels=channels, norm=norm)


def listing_rows(scale: Scale) -> Iterator[dict[str, str]]:
    """Yields a row for each recipe."""
    for recipe in map(find_recipe, recipe_names()):
        plans = [plan for used in recipes_used(recipe) for plan in used.plans(scale).values()]
        count = sum(len(plan.runs()) for plan in recipe.plans(scale).values())
        yield {
            "recipe": recipe.name,
            "shows": recipe.title,
            "of": recipe.source,
            "data": listed(_data(plan.settings) for plan in plans),
            "model": listed(plan.settings.model_name for plan in plans),
            "runs": ", ".join([*(f"of {use}" for use in recipe.uses), *[str(count)] * bool(count)]),
            "cost": _cost(plans),
        }


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
        settings, runs, recorded = plan.settings, plan.runs(), plan.settings.recorded()
        changed = [
            f"{field.name} {fact(recorded[field.name])}"
            for field in fields(Settings)
            if field.name not in ("data", "model", "width", "norm", "train_limit")
            and getattr(settings, field.name) != field.default
        ]
        what = (
            f"{done}{settings.model_name} on {_data(settings)}, {', '.join(changed)}; "
            f"{count_parameters(plan):,} parameters\n"
            f"{listed(library_name(run.label) for run in runs)}; seeds {listed(plan.seeds)}"
        )
        count, cost = str(len(runs)), _cost([plan])
        rows.append({"folder": str(folder), "what": what, "runs": count, "cost": cost})
    return terminal(rows, caption=f"cost: {COST}")


def _data(settings: Settings) -> str:
    limited = f" ({settings.train_limit:,} examples)" if settings.train_limit else ""
    return f"{settings.data}{limited}"


def _cost(plans: Sequence[Plan]) -> str:
    costs = [cost for plan in plans if (cost := plan_cost(plan)) is not None]
    return readable(sum(costs)) if len(costs) == len(plans) else "not known"
