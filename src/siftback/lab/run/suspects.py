"""What a run with a noise guard leaves of the training examples that seem mislabelled.

It is ``records/NAME.suspects.parquet``: one row per example, with its ``index`` in the training
set, its ``label``, the model's ``guess``, as ``score`` the loss that the guard saw last, whether it
is a ``suspect``, which may be held back, and a ``label_issue``, which is worth a look, the model's
probabilities ``p_0`` and on, and ``true_label`` where labels were flipped. The probabilities are
those of the trained model on images that are not augmented.
"""

from pathlib import Path

import torch
from torch import nn

from siftback import NoiseGuard
from siftback.lab.data.data_set import DataSet
from siftback.lab.data.stream import BatchStream
from siftback.lab.forward import autocast_context, training_device
from siftback.lab.records.columns import write_columns
from siftback.lab.records.run_summary import RECORDS
from siftback.lab.settings import Settings

SUSPECTS_SUFFIX = ".suspects.parquet"


def write_suspect_table(
    path: Path,
    guard: NoiseGuard,
    model: nn.Module,
    stream: BatchStream,
    data: DataSet,
    settings: Settings,
) -> None:
    """Writes the table of suspects of a run.

    Args:
        path: Where to.
        guard: The run's.
        model: As trained.
        stream: What it was trained on.
        data: The same, with the labels that are known to be true.
        settings: The run's.
    """
    outputs = []
    model.eval()
    for images, _ in stream.plain(stream.examples):
        with torch.no_grad(), autocast_context(settings, training_device(settings)):
            outputs.append(model(images).float().softmax(1).cpu())
    model.train()
    probabilities = torch.cat(outputs)
    guard.grow(len(data.train_labels))
    none = torch.zeros(len(data.train_labels), dtype=torch.bool)
    columns = {
        "index": torch.arange(len(data.train_labels)),
        "label": data.train_labels,
        "guess": probabilities.argmax(1),
        "score": guard.losses,
        "suspect": none.index_fill(0, guard.suspects, True),
        "label_issue": none.index_fill(0, guard.label_issues, True),
    }
    if data.true_labels is not None:
        columns["true_label"] = data.true_labels
    columns |= {f"p_{number}": column for number, column in enumerate(probabilities.unbind(1))}
    write_columns(path, columns, {"run": path.name.removesuffix(SUSPECTS_SUFFIX)})


def forget_suspects(folder: Path) -> None:
    """Removes what the runs of a comparison left."""
    for old in (folder / RECORDS).glob(f"*{SUSPECTS_SUFFIX}"):
        old.unlink()
