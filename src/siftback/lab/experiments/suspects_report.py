"""The training examples that seem mislabelled, by a run's noise guard and by cleanlab.

The probabilities that a run leaves are in-sample: cleanlab asks for those of a model that was not
trained on the example. What the guard held back was hardly trained on; the other examples were.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import torch
from rich.console import Group
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.records.columns import column_of, read_columns, write_columns
from siftback.lab.records.formatting import NOT_REACHED
from siftback.lab.records.run_summary import RECORDS
from siftback.lab.records.tables import terminal
from siftback.lab.run.suspects import SUFFIX

WRITER = "siftback compare --strategies sb-memory-guarded"


@dataclass(frozen=True, eq=False)
class Suspects:
    """What one run left.

    Attributes:
        run: Its name.
        labels: int64[N].
        guesses: int64[N].
        scores: float32[N], the loss that the guard saw last; NaN where it saw none.
        by_guard: bool[N], its label issues.
        by_cleanlab: bool[N].
        wrong: bool[N], whose labels were flipped; None where that is not known.
    """

    run: str
    labels: Tensor
    guesses: Tensor
    scores: Tensor
    by_guard: Tensor
    by_cleanlab: Tensor
    wrong: Tensor | None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads what a run left, and asks cleanlab of its probabilities.

        Raises:
            ConfigError: If the file holds something else, or cleanlab is not installed.
        """
        table, made = read_columns(path, WRITER)
        if not {"label", "guess", "score", "label_issue", "p_0"} <= set(table.column_names):
            raise ConfigError(f"{path} holds no suspects: give one of {WRITER}")
        labels = column_of(table, "label")
        wrong = None
        if "true_label" in table.column_names:
            wrong = column_of(table, "true_label") != labels
        return cls(
            made["run"],
            labels,
            column_of(table, "guess"),
            column_of(table, "score"),
            column_of(table, "label_issue"),
            _by_cleanlab(labels, table),
            wrong,
        )

    def write(self, path: Path) -> None:
        """Writes those that the guard or cleanlab lists, the highest scores first."""
        listed = self.ranked()
        columns = {
            "index": listed,
            "label": self.labels[listed],
            "guess": self.guesses[listed],
            "score": self.scores[listed],
            "guard": self.by_guard[listed],
            "cleanlab": self.by_cleanlab[listed],
        }
        if self.wrong is not None:
            columns["wrong"] = self.wrong[listed]
        write_columns(path, columns, {"run": self.run})

    def ranked(self) -> Tensor:
        """int64[n], those that either lists, by falling score."""
        either = (self.by_guard | self.by_cleanlab).nonzero().squeeze(1)
        scores = self.scores[either].nan_to_num(nan=-torch.inf)  # of what the guard never saw
        return either[scores.argsort(descending=True, stable=True)]


def read_suspects(folder: Path, name: str | None) -> list[Suspects]:
    """What the runs of a comparison left, or one of them.

    Args:
        folder: Of the comparison.
        name: Of the run; all where None.

    Raises:
        ConfigError: If there is none.
    """
    paths = sorted((folder / RECORDS).glob(f"*{SUFFIX}"))
    names = [path.name.removesuffix(SUFFIX) for path in paths]
    if not paths:
        raise ConfigError(
            f"{folder} holds no run with a noise guard: make one with {WRITER}, or with "
            "--noise-guard"
        )
    if name is None:
        return [Suspects.read(path) for path in paths]
    if name not in names:
        raise ConfigError(f"no run {name!r} with a noise guard in {folder}: {', '.join(names)}")
    return [Suspects.read(paths[names.index(name)])]


def precision_recall(found: Tensor, wrong: Tensor) -> tuple[float, float]:
    """Share of the found that are wrong, and of the wrong that are found; NaN of none.

    >>> precision_recall(torch.tensor([True, True, False]), torch.tensor([True, False, False]))
    (0.5, 1.0)
    """
    right = int((found & wrong).sum())
    return tuple(  # type: ignore[return-value]
        right / int(of.sum()) if of.any() else float("nan") for of in (found, wrong)
    )


def suspects_tables(runs: list[Suspects], most: int) -> Group:
    """How the guard and cleanlab did on each run; of the first, the highest scores."""
    first = runs[0]
    caption = "cleanlab by the trained model's probabilities, which are in-sample."
    if first.wrong is not None:
        caption += f" {int(first.wrong.sum())} labels were made wrong."
    summary = [row for run in runs for row in _summary(run)]
    listed = [_listed(first, index) for index in first.ranked()[:most].tolist()]
    return Group(
        terminal(summary, title="Examples thought mislabelled", caption=caption),
        "",
        terminal(listed, title=f"The highest scores of {first.run}"),
    )


def _summary(run: Suspects) -> Iterator[dict[str, str]]:
    both = {"guard": run.by_guard, "cleanlab": run.by_cleanlab}
    both["both"] = run.by_guard & run.by_cleanlab
    for by, found in both.items():
        row = {"run": run.run, "by": by, "label issues": str(int(found.sum()))}
        if run.wrong is not None:
            precision, recall = precision_recall(found, run.wrong)
            row |= {"precision": _share(precision), "recall": _share(recall)}
        yield row


def _listed(run: Suspects, index: int) -> dict[str, str]:
    row = {
        "index": str(index),
        "label": str(int(run.labels[index])),
        "guess": str(int(run.guesses[index])),
        "score": f"{float(run.scores[index]):.2f}",
        "guard": _yes_or_no(run.by_guard[index]),
        "cleanlab": _yes_or_no(run.by_cleanlab[index]),
    }
    return row if run.wrong is None else row | {"wrong": _yes_or_no(run.wrong[index])}


def _by_cleanlab(labels: Tensor, table: pa.Table) -> Tensor:
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        raise ConfigError(
            "cleanlab is not installed, beside which suspects are judged: pip install "
            '"siftback[noise]"'
        ) from None
    names = [name for name in table.column_names if name.startswith("p_")]
    probabilities = torch.stack([column_of(table, name) for name in names], 1)
    found: Any = find_label_issues(labels.numpy(), probabilities.numpy(), n_jobs=1)
    return torch.from_numpy(found)


def _share(share: float) -> str:
    return NOT_REACHED if share != share else f"{share:.3f}"


def _yes_or_no(value: Tensor) -> str:
    return "yes" if value else "no"
