"""The titles of comparisons, and which of them belong together."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from siftback.errors import ConfigError
from siftback.lab import models
from siftback.lab.data.data_set import NOUNS
from siftback.lab.records.comparison_record import Comparison, named
from siftback.lab.records.formatting import counted, listed
from siftback.lab.records.frame import machine_of, read_runs
from siftback.lab.settings import DEFAULTS

# What says which runs a comparison has, and which examples, of which older records say nothing.
PLAN = ("strategies", "keeps", "seeds", "matched", "examples")


def group_by_settings(comparisons: Iterable[Comparison], *varied: str) -> list[list[Comparison]]:
    """Returns the comparisons of equal settings together, in their order.

    A setting that a record lacks, as it was written before there was such a one, is the default.
    Data sets are told by their examples too, as names such as train.csv are those of many files;
    a record that does not describe them is of the first set.

    Args:
        comparisons: The comparisons.
        varied: Names of the settings that may differ, beside those of which runs there are, and
            "examples", which some settings make others.
    """
    groups: dict[tuple[str, int], list[Comparison]] = {}
    sets: dict[str, dict[str, int]] = {}
    for comparison in comparisons:
        whole = DEFAULTS | comparison.arguments
        shared = {
            key: float(value) if isinstance(value, int) else value  # 10 epochs are 10.0
            for key, value in whole.items()
            if key not in {*PLAN, *varied}
        }
        # Records by hand may differ in what their settings do not say.
        key = json.dumps([task(comparison), shared], sort_keys=True, default=str)
        number = 0 if "examples" in varied else number_set(sets, key, comparison)
        groups.setdefault((key, number), []).append(comparison)
    return list(groups.values())


def number_set(sets: dict[str, dict[str, int]], name: str, comparison: Comparison) -> int:
    """Returns the number, from 0, of a comparison's examples among those of one name.

    Args:
        sets: The numbers so far, by name and description; gets a new one.
        name: Which comparisons could be of one data set.
        comparison: The comparison; of a record that does not describe its examples it is 0.
    """
    examples, numbers = comparison.arguments.get("examples"), sets.setdefault(name, {})
    return numbers.setdefault(examples, len(numbers)) if examples else 0


def titled(comparisons: Iterable[Comparison]) -> list[tuple[str, Comparison]]:
    """Returns the comparisons that hold a run, each with a title of its own.

    It names model, data and the share of wrong labels; where that is not enough, of how many
    examples, the learning rates, the batches, and last the folder.
    """
    recorded = [comparison for comparison in comparisons if comparison.runs]
    folders = {comparison.folder: name for name, comparison in named(recorded)}
    titles = [setup_with_noise(comparison) for comparison in recorded]
    details: list[Callable[[Comparison], str]] = [
        images,
        lambda comparison: f", {comparison.arguments.get('rate', 'unknown')} rates",
        lambda comparison: f", batches of {comparison.arguments.get('batch_size', 'unknown size')}",
        lambda comparison: f" ({comparison.folder.name})",
        lambda comparison: f" in {folders[comparison.folder].rpartition('/')[0]}",
    ]
    for detail in details:
        pairs = list(zip(titles, map(detail, recorded), strict=True))
        many = Counter(title for title, _ in set(pairs))
        titles = [title + text if many[title] > 1 else title for title, text in pairs]
    return list(zip(titles, recorded, strict=True))


def setup_with_noise(comparison: Comparison) -> str:
    """Returns model and data in words, and the share of wrong labels if there are any."""
    wrong = comparison.arguments.get("flip", 0.0)
    return f"{comparison.setup}{f', {wrong:.0%} of the labels wrong' if wrong else ''}"


def task(comparison: Comparison) -> str:
    """Returns model and data in words, and the number of examples where not all."""
    return f"{comparison.setup}{images(comparison)}"


def images(comparison: Comparison) -> str:
    """Returns the number of training examples for the end of a name; empty for all."""
    limit, architecture = comparison.arguments.get("train_limit"), _architecture_of(comparison)
    noun = NOUNS[architecture.takes] if architecture else "examples"
    return f" ({limit:,} {noun})" if limit else ""


def weight_decay(comparison: Comparison) -> str:
    """Returns the weight decay for the end of a name; empty where it is the model's own."""
    architecture, decay = _architecture_of(comparison), comparison.arguments.get("weight_decay")
    usual = architecture.weight_decay if architecture else decay
    return "" if decay in (None, usual) else f", weight decay {decay:g}"


def _architecture_of(comparison: Comparison) -> models.Architecture | None:
    try:
        return models.find_architecture(str(comparison.arguments.get("model", "cnn")))
    except ConfigError:  # a model of another release
        return None


def describe_extent(comparisons: Sequence[Comparison]) -> str:
    """Says how much was trained, when, and on which machines."""
    count = sum(len(comparison.runs) for comparison in comparisons)
    setups = listed(comparison.setup for comparison in comparisons if comparison.runs)
    text = f"{counted(len(comparisons), 'comparison')} of {counted(count, 'run')}: {setups}."
    days = sorted({str(item.environment.get("date", ""))[:10] for item in comparisons} - {""})
    if not days:
        return text
    machines = listed(
        machine_of(runs, label)
        for runs in map(read_runs, comparisons)
        for label in dict.fromkeys(runs.label)
    )
    return f"{text} Recorded {' to '.join(dict.fromkeys((days[0], days[-1])))} on {machines}."
