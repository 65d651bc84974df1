"""The training examples that seem mislabelled, by a run's noise guard and by cleanlab.

The probabilities that a run leaves are in-sample: cleanlab asks for those of a model that was not
trained on the example. What the guard held back was hardly trained on; the other examples were.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import torch
from rich.console import Group
from torch import Tensor

from siftback.errors import ConfigError
from siftback.installation import install_command
from siftback.lab.records.columns import read_columns, write_columns
from siftback.lab.records.formatting import NOT_REACHED, fact
from siftback.lab.records.run_summary import RECORDS
from siftback.lab.records.tables import terminal
from siftback.lab.run.train import SUSPECTS_SUFFIX

WRITER = "siftback compare --strategies sb-memory-guarded"


def read_suspects(folder: Path, name: str | None = None) -> dict[str, pd.DataFrame]:
    """Reads what the runs of a comparison left of their examples, by run.

    A frame has a row for each example: its ``index``, its ``label``, the model's ``guess``, the
    ``score``, which is the loss that the guard saw last and NaN where it saw none, whether it is a
    label issue of the ``guard`` and of ``cleanlab``, and, where that is known, whether its label
    is ``wrong``.

    Args:
        folder: That of the comparison.
        name: The name of a run; by default all runs are read.

    Raises:
        ConfigError: If there is none, a file holds something else, or cleanlab is not installed.
    """
    paths = {
        path.name.removesuffix(SUSPECTS_SUFFIX): path
        for path in sorted((folder / RECORDS).glob(f"*{SUSPECTS_SUFFIX}"))
    }
    if not paths:
        raise ConfigError(
            f"{folder} holds no run with a noise guard: make one with {WRITER} or --noise-guard"
        )
    if name and name not in paths:
        raise ConfigError(f"no run {name!r} with a noise guard in {folder}: {', '.join(paths)}")
    return {run: read_run(paths[run]) for run in ([name] if name else paths)}


def read_run(path: Path) -> pd.DataFrame:
    """Reads what one run left, as `read_suspects` does, and asks cleanlab of its probabilities."""
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        raise ConfigError(
            "cleanlab is not installed, beside which suspects are judged: "
            + install_command("noise")
        ) from None
    table, _ = read_columns(path, WRITER)
    frame = table.to_pandas()
    if not {"label", "guess", "score", "label_issue", "p_0"} <= set(frame):
        raise ConfigError(f"{path} holds no suspects: give one of {WRITER}")
    labels, probabilities = frame["label"].to_numpy(), frame.filter(regex="^p_").to_numpy()
    suspects = frame[["index", "label", "guess", "score"]].assign(
        guard=frame["label_issue"], cleanlab=find_label_issues(labels, probabilities, n_jobs=1)
    )
    if "true_label" in frame:
        suspects["wrong"] = frame["true_label"] != frame["label"]
    return suspects


def rank_suspects(suspects: pd.DataFrame) -> pd.DataFrame:
    """Returns the examples that the guard or cleanlab lists, by falling score."""
    listed = suspects[suspects["guard"] | suspects["cleanlab"]]
    return listed.sort_values("score", ascending=False, kind="stable", na_position="last")


def write_ranked(path: Path, run: str, suspects: pd.DataFrame) -> None:
    """Writes the examples that the guard or cleanlab lists, by falling score."""
    write_columns(path, dict(rank_suspects(suspects)), {"run": run})


def precision_recall(listed: Tensor, wrong: Tensor) -> tuple[float, float]:
    """Returns the share of the listed that are wrong, and of the wrong that are listed.

    A share of none is NaN.

    >>> precision_recall(torch.tensor([True, True, False]), torch.tensor([True, False, False]))
    (0.5, 1.0)
    """
    return float(wrong[listed].double().mean()), float(listed[wrong].double().mean())


def suspects_tables(runs: Mapping[str, pd.DataFrame], most: int) -> Group:
    """Returns a table of the guard and cleanlab on each run, and one of the first's examples.

    Args:
        runs: The suspects by run.
        most: How many examples of the first run to list.
    """
    if most < 0:
        raise ConfigError(f"most={most}: give an integer, at least 0")
    name, first = next(iter(runs.items()))
    caption = "cleanlab by the trained model's probabilities, which are in-sample."
    if "wrong" in first:
        caption += f" {int(first['wrong'].sum())} labels were made wrong."
    summary = []
    for run, suspects in runs.items():
        marks = {by: torch.tensor(suspects[by].to_numpy()) for by in ("guard", "cleanlab")}
        for by, listed in (marks | {"both": marks["guard"] & marks["cleanlab"]}).items():
            row = {"run": run, "by": by, "label issues": str(int(listed.sum()))}
            if "wrong" in suspects:
                shares = precision_recall(listed, torch.tensor(suspects["wrong"].to_numpy()))
                for share_name, share in zip(("precision", "recall"), shares, strict=True):
                    row[share_name] = NOT_REACHED if math.isnan(share) else f"{share:.3f}"
            summary.append(row)
    examples = rank_suspects(first)[:most].assign(score=lambda x: x.score.map("{:.2f}".format))
    return Group(
        terminal(summary, title="Examples thought mislabelled", caption=caption),
        "",
        terminal(examples.map(fact).to_dict("records"), title=f"The highest scores of {name}"),
    )
