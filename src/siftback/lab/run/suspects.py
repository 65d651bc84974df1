"""What a run with a noise guard leaves of the training examples that seem mislabelled.

It is ``records/NAME.suspects.parquet``: one row per example, with its ``index`` in the training
set, its ``label``, the model's ``guess``, as ``score`` the loss that the guard saw last, whether it
is a ``suspect``, which may be held back, and a ``label_issue``, which is worth a look, the model's
probabilities ``p_0`` and on, and ``true_label`` where labels were flipped. The probabilities are
those of the trained model on images that are not augmented.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from siftback import NoiseGuard
from siftback.lab.data.data_set import DataSet
from siftback.lab.data.stream import BatchStream
from siftback.lab.forward import autocast_context, training_device
from siftback.lab.records.columns import write_columns
from siftback.lab.records.run_summary import RECORDS
from siftback.lab.settings import Settings

SUFFIX = ".suspects.parquet"


def write(
    path: Path,
    guard: NoiseGuard,
    model: nn.Module,
    stream: BatchStream,
    data: DataSet,
    settings: Settings,
) -> None:
    """Writes what a run leaves of its suspects.

    Args:
        path: Where to.
        guard: The run's.
        model: As trained.
        stream: What it was trained on.
        data: The same, with the labels that are known to be true.
        settings: The run's.
    """
    probabilities = _probabilities(model, stream, settings)
    guard.grow(len(data.train_labels))
    nobody = torch.zeros(len(data.train_labels), dtype=torch.bool)
    columns = {
        "index": torch.arange(len(data.train_labels)),
        "label": data.train_labels,
        "guess": probabilities.argmax(1),
        "score": guard.losses,
        "suspect": nobody.index_fill(0, guard.suspects, True),
        "label_issue": nobody.index_fill(0, guard.label_issues, True),
    }
    if data.true_labels is not None:
        columns["true_label"] = data.true_labels
    columns |= {f"p_{number}": column for number, column in enumerate(probabilities.unbind(1))}
    write_columns(path, columns, {"run": path.name.removesuffix(SUFFIX)})


@torch.no_grad()
def _probabilities(model: nn.Module, stream: BatchStream, settings: Settings) -> Tensor:
    device = training_device(settings)
    found = []
    model.eval()
    for images, _ in stream.plain(stream.examples):
        with autocast_context(settings, device):
            found.append(model(images).float().softmax(1).cpu())
    model.train()
    return torch.cat(found)


def forget(folder: Path) -> None:
    """Removes what the runs of a comparison left."""
    for old in (folder / RECORDS).glob(f"*{SUFFIX}"):
        old.unlink()
