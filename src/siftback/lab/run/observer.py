"""Looks at a model whenever it is tested."""

import copy
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from siftback.lab import forward
from siftback.lab.data.data_set import DataSet
from siftback.lab.data.stream import Batch
from siftback.lab.records.columns import write_columns
from siftback.lab.records.observations import SHARES, SUBSETS, kinds_of
from siftback.lab.settings import Settings

BATCHES = 8


class Observer:
    """Looks at a model in training, and leaves it and the random state as they were.

    Args:
        folder: Where the files go; see `folder_of`.
        data: What the model is trained and tested on.
        settings: The run's, which say what to look at, the batch size, for gradients, and the
            device, precision and memory format of forward passes.
        indices: int64[N], the places of the training examples in the data set, where some were
            pruned before; by default 0 to N - 1.

    Attributes:
        seconds: What looking took so far, by kind; of losses and confidence one forward pass over
            the training set serves both, and counts as the first one's.
    """

    def __init__(
        self, folder: Path, data: DataSet, settings: Settings, indices: Tensor | None = None
    ) -> None:
        self.kinds = kinds_of(settings.observe)
        self.seconds = dict.fromkeys(self.kinds, 0.0)
        self._folder = folder
        self._data = data
        self._device = forward.training_device(settings)
        self._settings = settings
        count = len(data.train_labels)
        self._indices = torch.arange(count) if indices is None else indices
        self._step = 0  # of the last look
        size = min(settings.batch_size, count)
        self._stream = forward.batch_stream(settings, data, size)
        # Some data sets are sorted by class, so that the first examples are of one.
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        self._sample = torch.split(order[: BATCHES * size], size)

    def evaluation(self, model: nn.Module, epoch: float, step: int, uses: Tensor | None) -> None:
        """Looks at the model as it is.

        Args:
            model: It.
            epoch: Epochs of source examples done.
            step: Optimizer steps done, of which the files are named.
            uses: float[N], how often each training example was trained on so far; for losses.
        """
        size = forward.evaluation_batch_size(self._settings, self._data)
        rows = torch.split(torch.arange(len(self._indices)), size)
        looks = cache(lambda: self._forward(model, map(self._stream.batch_of, rows)))
        for kind in self.kinds:
            started = time.perf_counter()
            if kind == "gradients":
                columns = self._gradients(model)
            elif kind == "losses":
                assert uses is not None
                columns = {"index": self._indices, "loss": looks()[0], "uses": uses.int()}
            else:
                columns = self._confidence(model, looks())
            epochs = np.full(len(next(iter(columns.values()))), epoch)
            path = self._folder / f"{kind}-{step:09d}.parquet"
            write_columns(path, {"epoch": epochs, **columns}, {})
            self.seconds[kind] += time.perf_counter() - started
        self._step = step

    def forget(self, after: int = -1) -> None:
        """Removes the files of this run, by an earlier attempt, after a number of steps."""
        for path in self._folder.glob("*.parquet"):
            if int(path.stem.rpartition("-")[2]) > after:
                path.unlink()

    def state_dict(self) -> dict[str, Any]:
        """Returns its last step and seconds; fit for ``torch.save``."""
        return {"step": self._step, "seconds": dict(self.seconds)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from another's state, and forgets what was seen after it."""
        self._step = state["step"]
        self.seconds |= state["seconds"]
        self.forget(self._step)

    def _forward(self, model: nn.Module, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """Returns losses, float32[N], and whether guesses are right, all of a window's, bool[N]."""
        losses, correct = [], []
        for logits, labels in forward.predictions(copy.deepcopy(model), batches, self._settings):
            losses.append(forward.losses_of_outputs(logits, labels).cpu())
            correct.append(forward.are_right(logits, labels).reshape(len(labels), -1).all(1).cpu())
        return torch.cat(losses), torch.cat(correct)

    def _confidence(self, model: nn.Module, trained: tuple[Tensor, Tensor]) -> dict[str, Any]:
        tested = self._forward(model, forward.batches_to_test_on(self._settings, self._data))
        losses, correct = (torch.cat(splits) for splits in zip(trained, tested, strict=True))
        counts = [len(trained[0]), len(tested[0])]
        return {
            "split": np.repeat(["train", "test"], counts),
            "index": torch.cat((self._indices, torch.arange(counts[1]))),
            "confidence": torch.exp(-losses),  # the cross-entropy is -log of it
            "correct": correct,
        }

    def _gradients(self, model: nn.Module) -> dict[str, Any]:
        """Returns how alike the gradients are of each batch of the sample and of its subsets."""
        rows = []
        generator = torch.Generator().manual_seed(0)
        model = copy.deepcopy(model).train()
        for number, positions in enumerate(self._sample):
            inputs, labels = self._stream.batch_of(positions)
            whole, losses = self._gradient(model, inputs, labels)
            order = losses.argsort(stable=True)
            random = torch.randperm(len(labels), generator=generator).to(order.device)
            for share in SHARES:
                k = max(2, round(share * len(labels)))  # batch normalisation needs two
                for name, subset in zip(SUBSETS, (order[-k:], order[:k], random[:k]), strict=True):
                    gradient, _ = self._gradient(model, inputs[subset], labels[subset])
                    rows.append((number, name, share, *similarity(gradient, whole)))
        columns = map(list, zip(*rows, strict=True))
        return dict(zip(("batch", "subset", "share", "cosine", "same_sign"), columns, strict=True))

    def _gradient(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean loss's gradient as a vector, and the losses, as a training step has."""
        parameters = [weight for weight in model.parameters() if weight.requires_grad]
        random_devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(random_devices), torch.enable_grad():
            with forward.autocast_context(self._settings, self._device):
                losses = forward.losses_of_outputs(model(inputs), labels)
            gradients = torch.autograd.grad(losses.mean(), parameters, materialize_grads=True)
        return torch.cat([gradient.flatten() for gradient in gradients]), losses.detach()


def similarity(gradient: Tensor, whole: Tensor) -> tuple[float, float]:
    """Measures how alike two gradients are, as in figure 5 of Jiang et al. 2019.

    Args:
        gradient: float[D].
        whole: float[D].

    Returns:
        The cosine of the angle between them, 0 where one is zero; and the share of components of
        equal sign, where 0 has a sign of its own.

    >>> similarity(torch.tensor([3.0, 4.0, 0.0]), torch.tensor([4.0, 3.0, 0.0]))
    (0.96, 1.0)
    >>> similarity(torch.tensor([3.0, 4.0]), torch.tensor([4.0, -3.0]))
    (0.0, 0.5)
    """
    gradient, whole = gradient.double(), whole.double()
    cosine = F.cosine_similarity(gradient, whole, dim=0, eps=1e-30)
    return float(cosine), float((gradient.sign() == whole.sign()).double().mean())
