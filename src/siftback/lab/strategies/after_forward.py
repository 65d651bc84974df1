"""Selection after the forward: of rows, or of tokens."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from siftback import InBatch, TopK, Uniform
from siftback.lab.data.data_set import IGNORED
from siftback.lab.data.stream import Batch
from siftback.lab.length import BACKWARD, FORWARD
from siftback.lab.models.attention import Gpt
from siftback.lab.strategies.strategy import Job, TrainingBatches
from siftback.language import (
    TokenMemory,
    chunked_cross_entropy,
    chunked_token_losses,
    token_entropies,
)

PRODUCTS = 3
"""Of the head, for a token that is trained on: logits, gradients of the inputs and of the weight.

All three cost the same, and so does that of a token that is scored.
"""

ROWS = 4096  # whose logits are in memory at once, to take the entropies of
COUNTS = ("tokens", "kept", "saved", "seconds")


class SinglePassBatches(TrainingBatches):
    """Larger batches, of which a selector keeps the rows of one, by the forward's own losses."""

    fills_batches = True

    def __init__(self, job: Job) -> None:
        from siftback import SinglePass  # brings in the compiler, which takes its time

        super().__init__(job)
        self.sift = SinglePass(
            job.model,
            losses=self.losses,
            selector=job.strategy.choice(job.run.keep, job.settings),
            **job.progress_in_steps(),
            backend="inductor" if job.settings.compile else "graph",
            check=False,  # its models are this laboratory's own, and tested
            seed=job.run.seed,
        )
        self.stats = self.sift.stats

    def batches_of_epoch(self) -> Iterator[Batch]:
        """Yields the rest of the current epoch, in larger batches once it selects."""
        job = self.job
        warm = self.epoch < job.settings.whole_warmup
        selection_batch = job.strategy.selection_batch(job.run.keep, job.settings)
        self.stream.resize(job.settings.batch_size if warm else selection_batch)
        for indices, batch in self.stream:
            self.positions = indices
            yield batch

    def plain_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean loss of the rows that are kept."""
        loss: Tensor = self.sift(inputs, labels)
        self.count_lengths(inputs, FORWARD)
        self.count_lengths(inputs[self.sift.selection.positions], BACKWARD)
        return loss

    def used_indices(self) -> Tensor:
        """int64[n], the examples of the last loss."""
        return self.positions[self.sift.selection.positions.cpu()]

    def state_dict(self) -> dict[str, Any]:
        """See `TrainingBatches.state_dict`."""
        return super().state_dict() | {"single_pass": self.sift.get_extra_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `TrainingBatches.load_state_dict`."""
        super().load_state_dict(state)
        self.sift.set_extra_state(state["single_pass"])
        self.stats = self.sift.stats


class TokenBatches(TrainingBatches):
    """Batches of every example, and the mean loss of the tokens that are kept of each batch.

    Every token goes through the layers, forward and backward, as those kept attend to the others.
    Then the head computes all tokens once without gradient, to score them, and the kept ones alone
    in the loss and its backward. While the schedule is off all are kept, and scored only if the
    scores are remembered. The scores are those that the strategy names: ``"reference"`` is the
    excess of the loss over that of a model that was trained on other text (Rho-1), ``"memory"``
    that over the token's own loss when it was last seen, ``"random"`` needs no scores.

    Attributes:
        tokens: Number of tokens to choose among so far, the warm-up's apart.
        kept: Number of them that were kept.
        saved: What the head did not cost so far, in forwards of one window; negative where
            scoring cost more than the tokens left out saved.
        seconds: What scoring and selecting took so far.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        model, keep, self._score = job.model, job.run.keep, job.strategy.tokens
        assert isinstance(model, Gpt)
        self._head = model.head
        self._hidden = torch.compile(model.hidden) if job.settings.compile else model.hidden
        selector = Uniform(keep=keep) if self._score == "random" else TopK(keep=keep)
        self._in_batch = InBatch(selector=selector, seed=job.run.seed, **job.progress_in_steps())
        windows, length = job.data.train_labels.shape
        self._reference = None if job.scores is None else job.scores.view(windows, length)
        self._memory = TokenMemory(windows, length) if self._score == "memory" else None
        # Of what all products of a window cost, those of the head, that of one of its three.
        self._head_product = (FORWARD + BACKWARD) * head_share(model) / PRODUCTS
        self.tokens = self.kept = 0
        self.saved = self.seconds = 0.0

    def plain_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean loss of the tokens that are kept."""
        self.count_lengths(inputs, FORWARD + BACKWARD)
        hidden = self._hidden(inputs)
        started = time.perf_counter()
        selects = self._in_batch.is_on
        scored = self._score != "random" and (selects or self._memory is not None)
        scores = torch.zeros(labels.shape, device=labels.device)
        if scored:
            # Of a training that diverges all count, which goes on to its end as a plain one does.
            scores = self._scores(hidden.detach(), labels).nan_to_num()
        selection = self._in_batch.select(scores, labels != IGNORED)
        self.seconds += time.perf_counter() - started
        kept = len(selection.positions)
        if selects:
            self.tokens += labels.numel()
            self.kept += kept
        products = PRODUCTS * kept / labels.numel() + scored
        self.saved += self._head_product * (PRODUCTS - products) * len(labels)
        return chunked_cross_entropy(hidden, self._head, selection.labels(labels))

    @torch.no_grad()
    def _scores(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """float32[B, T], the higher the sooner kept."""
        if self._score == "entropy":
            # Logits of all would be as large as training's.
            rows = torch.split(hidden.flatten(0, 1), ROWS)
            return torch.cat([token_entropies(self._head(row)) for row in rows]).view_as(labels)
        losses, mask = chunked_token_losses(hidden, self._head, labels)
        if self._memory is not None:
            return self._memory.excess(self.positions, losses, mask)
        if self._reference is not None:
            return losses - self._reference[self.positions].to(losses.device)
        return losses

    @property
    def kept_share(self) -> float:
        """Share kept of the tokens so far; 1 if there were none yet."""
        return self.kept / self.tokens if self.tokens else 1.0

    @property
    def cost(self) -> float:
        """Cost so far in forwards of the mean example."""
        return super().cost - self.saved

    @property
    def selecting(self) -> float:
        """Seconds that scoring and selecting took so far."""
        return super().selecting + self.seconds

    def state_dict(self) -> dict[str, Any]:
        """See `TrainingBatches.state_dict`."""
        return super().state_dict() | {
            "in_batch": self._in_batch.state_dict(),
            "memory": self._memory and self._memory.state_dict(),
            "counts": [getattr(self, name) for name in COUNTS],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `TrainingBatches.load_state_dict`."""
        super().load_state_dict(state)
        self._in_batch.load_state_dict(state["in_batch"])
        if self._memory:
            self._memory.load_state_dict(state["memory"])
        vars(self).update(zip(COUNTS, state["counts"], strict=True))


def head_share(model: Gpt) -> float:
    """The head's share of the products that a token costs, by the number of weights.

    What attention multiplies besides its weights, and embeddings, are left out.

    >>> from siftback.lab.models.layers import ModelSpec
    >>> spec = ModelSpec(width=32, classes=1000, vocabulary=1000, length=16)
    >>> round(head_share(Gpt(spec)), 3)  # V D / (V D + 12 L D^2), of four layers
    0.394
    """
    whole = sum(layer.weight.numel() for layer in model.modules() if isinstance(layer, nn.Linear))
    return model.head.weight.numel() / whole
