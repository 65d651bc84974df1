"""Parts of the README and of other pages that are from the records, and the README's picture."""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean

import pandas as pd
from matplotlib.figure import Figure

from siftback.errors import ConfigError
from siftback.lab.figures import pays, styles
from siftback.lab.figures.drawing import FORMATS, encode_canvas, format_tick
from siftback.lab.papers import by_recipe
from siftback.lab.records.run_summary import TRADITIONAL
from siftback.lab.records.tables import markdown
from siftback.lab.report.pages import BUDGET
from siftback.lab.strategies.table import library_name

# What is shown: the title of an experiment, a method of it, and a budget in epochs.
EXPERIMENT, DATA = "cnn-8 on mnist", "MNIST"
NAME = library_name(pays.DEFAULT_LABEL)

# Outputs of benchmarks, in the folder of the records.
DEMO, STEPS, GPU = (Path(f"benchmarks/{name}.json") for name in ("demo", "step", "gpu"))

# So wide is the picture on a telephone, in inches of 96 pixels.
SIZE = (390 / 96, 3.2)


def write_parts(ratios: Sequence[pays.MethodRatio], results: Path, page: Path) -> list[str]:
    """Writes the parts from the records that a page has marks for.

    The part ``headline`` stands between the lines ``<!-- headline -->`` and
    ``<!-- end of headline -->``, once each.

    Args:
        ratios: The budget ratios of the records.
        results: Their folder, which holds the benchmarks and the recipes' runs too.
        page: A Markdown file.

    Returns:
        The names of the parts that it has.

    Raises:
        ConfigError: If the records lack what a part says.
    """
    texts: dict[str, Callable[[], str]] = {
        "headline": lambda: describe_saving(ratios),
        "demo": lambda: describe_demo(results / DEMO),
        "step cost": lambda: describe_step(results / STEPS, results / GPU),
        "budget ratios": lambda: ratio_table(ratios),
        "the papers' numbers": lambda: markdown(list(by_recipe(results))),
    }
    text, written = page.read_text(encoding="utf-8") if page.is_file() else "", []
    for name, describe in texts.items():
        marks = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        if all(text.count(mark) == 1 for mark in marks):
            text = put_between(text, marks, f"\n{describe()}\n\n")
            written.append(name)
    if written:
        page.write_text(text, encoding="utf-8")
    return written


def put_between(text: str, marks: tuple[str, str], inner: str) -> str:
    """A text, with what stands between two marks replaced.

    >>> put_between("a [old] z", ("[", "]"), "new")
    'a [new] z'
    """
    before, after = text.split(marks[0])
    return before + marks[0] + inner + marks[1] + after.split(marks[1])[1]


def shown_ratios(ratios: Sequence[pays.MethodRatio]) -> list[pays.MethodRatio]:
    """Returns a budget ratio of `Memory()` for each experiment.

    It is that at `BUDGET`, or else at the one in the middle of those that it was measured at.
    """
    of_default = (case for case in ratios if case.label == pays.DEFAULT_LABEL)
    groups = groupby(of_default, lambda case: case.experiment.title)
    return [
        next((case for case in cases if case.budget == BUDGET), cases[len(cases) // 2])
        for cases in (list(group) for _, group in groups)
    ]


def ratio_table(ratios: Sequence[pays.MethodRatio]) -> str:
    """Lays out the budget ratios of `Memory()`, in Markdown.

    A row for each experiment, of `shown_ratios`. A ratio is bold where it is above 1 for sure, see
    `MethodRatio.exceeds`.

    Args:
        ratios: Those of all methods.

    Raises:
        ConfigError: If there are none of `Memory()`.
    """
    rows = [
        {
            "data and model": method.experiment.title,
            "epochs": f"{method.budget:g}",
            "budget ratio": f"**{method.ratio}**" if method.exceeds(1) else str(method.ratio),
            "95 % interval": method.ratio.interval,
            "seeds": str(method.ratio.seeds),
            "in seconds": method.in_seconds,
        }
        for method in shown_ratios(ratios)
    ]
    if not rows:
        raise ConfigError(
            f"there are no budget ratios of {pays.DEFAULT_LABEL}. Record some: siftback run pays"
        )
    return markdown(rows)


def find_saving(ratios: Sequence[pays.MethodRatio]) -> pays.MethodRatio:
    """Returns the budget ratio that is shown.

    Raises:
        ConfigError: If it was not measured.
    """
    wanted = EXPERIMENT, pays.DEFAULT_LABEL, BUDGET
    for case in ratios:
        if (case.experiment.title, case.label, case.budget) == wanted:
            return case
    raise ConfigError(
        f"there is no budget ratio of {pays.DEFAULT_LABEL} on {EXPERIMENT} at {BUDGET:g} epochs. "
        "Record it: siftback run pays"
    )


def describe_saving(ratios: Sequence[pays.MethodRatio]) -> str:
    """Describes the budget ratio that is shown, and the range of the method's others."""
    shown = find_saving(ratios)
    ratio, metric = shown.ratio, shown.experiment.metric
    others = [case for case in shown_ratios(ratios) if case is not shown]
    values = sorted(case.ratio.ratio.value for case in others if not case.ratio.flat)
    sure = sum(case.exceeds(1) for case in others)
    flat = "; elsewhere longer training gains nothing" if len(values) < len(others) else ""
    return (
        f"**Train on {DATA} for {BUDGET:g} epochs with `{NAME}`, and the test error is "
        f"{metric.written(shown.end)}, for which plain training needs "
        f"{ratio.ratio.value * BUDGET:.1f} epochs**: {ratio} times the budget (95 % interval "
        f"{ratio.interval}, {ratio.seeds} seeds). On {len(values)} of {len(others)} other tasks "
        f"the ratio is {values[0]:.2f} to {values[-1]:.2f}, and above 1 for sure on {sure}{flat}."
    )


def describe_demo(path: Path) -> str:
    """Describes what ``make demo`` shows, from the output of ``benchmarks/demo.py``.

    Raises:
        ConfigError: If the file lacks it.
    """
    rows = pd.DataFrame(json.loads(path.read_text(encoding="utf-8"))["rows"])
    means, counts = rows.groupby("what").measured.mean(), rows.what.value_counts()
    try:
        plain, memory = means[f"{TRADITIONAL}, %"], means[f"{pays.DEFAULT}, %"]
        clear, groups = means["intervals below 0"], counts["interval, to"]
        ratio = means["processor seconds over plain training's"]
    except KeyError:
        raise ConfigError(
            f"{path} lacks what the demo shows. Measure it: python benchmarks/demo.py --json {path}"
        ) from None
    return (
        "`make demo` trains on digits in many fonts, three of the ten classes rare. Over "
        f"{groups} groups of other seeds, plain training ends at {plain:.1f} % test error and "
        f"`{NAME}` at {memory:.1f} % after as many steps, in {ratio:.2f} times the processor time; "
        f"the 95 % interval of the difference is below 0 in {clear:.0f} of {groups}."
    )


def describe_step(host: Path, gpu: Path) -> str:
    """Describes what `Memory()` adds to a step.

    Args:
        host: The output of ``benchmarks/step.py``.
        gpu: The output of ``benchmarks/gpu.py``.

    Raises:
        ConfigError: If one of them lacks it.
    """
    steps, trainings = (json.loads(path.read_text(encoding="utf-8")) for path in (host, gpu))
    columns = ["setting", "what", "measured"]
    on_host, on_gpu = (pd.DataFrame(r["rows"], columns=columns) for r in (steps, trainings))
    added = on_host[on_host.what == f"{NAME}, with its draws"].set_index("setting").measured
    loops = added[added.index.isin(on_host.setting[on_host.what == "its own step"])]
    of_memory = on_gpu.setting.str.endswith(f": {NAME}")
    ratios = on_gpu.measured[of_memory & (on_gpu.what == "over plain's")]
    try:
        alone, beside = added["batch 128, 0 workers"], added["batch 128, 2 workers"]
        least, most, fastest, slowest = min(loops), max(loops), min(ratios), max(ratios)
    except (KeyError, ValueError):
        raise ConfigError(
            f"{host} or {gpu} lacks what a step of {NAME} costs. Measure it: python "
            f"benchmarks/step.py --json {host}, and on a GPU benchmarks/gpu.py --json {gpu}"
        ) from None
    return (
        f"With `{NAME}` a step takes {fastest:.2f} to {slowest:.2f} times as long as a plain one "
        f"on an {trainings['environment']['device']} ({len(ratios)} trainings). On the host it "
        f"adds {alone:.2f} ms to a step of 128 examples, {beside:.2f} ms with two workers, and "
        f"{least:.2f} to {most:.2f} ms in training, depending on the framework."
    )


def draw_saving(ratios: Sequence[pays.MethodRatio], path: Path) -> None:
    """Draws the errors of plain training and `Memory()` by budget, and an arrow for what is saved.

    Args:
        ratios: Those of all methods.
        path: An SVG or PNG file.

    Raises:
        ConfigError: If it is another kind of file, or there is nothing to draw.
    """
    ending = path.suffix[1:]
    if ending not in FORMATS:
        raise ConfigError(f"{path}: give a file that ends in .{' or .'.join(FORMATS)}")
    shown = find_saving(ratios)
    needed, metric = shown.ratio.ratio.value * BUDGET, shown.experiment.metric
    canvas = Figure(figsize=SIZE, layout="constrained")
    axes = canvas.subplots()
    colours = {library_name(TRADITIONAL): "#000000", NAME: styles.COLOURS[1]}
    lines = shown.experiment.curve, shown.experiment.ends[pays.DEFAULT_LABEL]
    for (name, colour), ends in zip(colours.items(), lines, strict=True):
        budgets = sorted(ends)
        seeds = [list(ends[budget].values()) for budget in budgets]
        low, high, means = (list(map(function, seeds)) for function in (min, max, fmean))
        axes.fill_between(budgets, low, high, color=colour, alpha=0.12, linewidth=0)
        axes.plot(budgets, means, color=colour, marker="o", linewidth=2, label=name)
    strong = styles.COLOURS[3]
    arrow = {"arrowstyle": "-|>,head_width=0.3,head_length=0.6", "color": strong, "linewidth": 2.5}
    axes.annotate("", (BUDGET, shown.end), (needed, shown.end), arrowprops=arrow, zorder=3)
    axes.annotate(
        f"{BUDGET:g} epochs in place of {needed:.1f}",
        (needed, shown.end),
        (0, 20),
        textcoords="offset points",
        horizontalalignment="center",
        color=strong,
        fontweight="bold",
    )
    budgets = sorted(shown.experiment.curve)
    axes.set_xscale("log")
    axes.set_xticks(budgets, [format_tick(budget) for budget in budgets])
    axes.minorticks_off()
    axes.set(xlabel="epochs", ylabel=metric.axis, title=f"{DATA}, a small network")
    axes.legend(frameon=False)
    axes.grid(color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_canvas(canvas, ending))
