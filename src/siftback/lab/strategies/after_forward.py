"""Selection after the forward: of rows, of tokens, or by weights of the losses."""

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from siftback import InBatch, Selector, TopK, Uniform
from siftback.lab.data.data_set import IGNORED, DataSet
from siftback.lab.data.stream import Batch
from siftback.lab.length import BACKWARD, FORWARD
from siftback.lab.models.attention import Gpt
from siftback.lab.strategies.strategy import Job, TokenScore, TrainingBatches
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


class WeightedBatches(TrainingBatches):
    """Batches of every example, whose losses are weighted."""

    def plain_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the weighted loss."""
        assert self.job.strategy.weighted is not None
        self.count_lengths(inputs, FORWARD + BACKWARD)
        return self.job.strategy.weighted(self.call(inputs), labels)


class TokenBatches(TrainingBatches):
    """Batches of every example, of which some tokens are trained on."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        assert job.strategy.tokens is not None
        self.tokens = TokenSelection(
            job.strategy.tokens,
            job.run.keep,
            job.model,
            job.data,
            job.run.seed,
            reference=job.scores,
            compiled=job.settings.compile,
            **job.progress_in_steps(),
        )

    def plain_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean loss of the tokens that are kept."""
        self.count_lengths(inputs, FORWARD + BACKWARD)
        return self.tokens.loss(inputs, labels, self.positions)

    @property
    def kept_share(self) -> float:
        """Share kept of the tokens so far; 1 if there were none yet."""
        return self.tokens.kept / self.tokens.tokens if self.tokens.tokens else 1.0

    @property
    def cost(self) -> float:
        """Cost so far in forwards of the mean example."""
        return super().cost - self.tokens.saved

    @property
    def selecting(self) -> float:
        """Seconds that scoring and selecting took so far."""
        return super().selecting + self.tokens.seconds

    def state_dict(self) -> dict[str, Any]:
        """See `TrainingBatches.state_dict`."""
        return super().state_dict() | {"tokens": self.tokens.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `TrainingBatches.load_state_dict`."""
        super().load_state_dict(state)
        self.tokens.load_state_dict(state["tokens"])


class TokenSelection:
    """The mean loss of the tokens that are kept of each batch of windows.

    Every token goes through the layers, forward and backward, as those kept attend to the others.
    Then the head computes all tokens once without gradient, to score them, and the kept ones alone
    in the loss and its backward. While the schedule is off all are kept, and scored only if the
    scores are remembered.

    Args:
        score: What to select by. ``"reference"`` is the excess of the loss over that of a model
            that was trained on other text (Rho-1), ``"memory"`` that over the token's own loss
            when it was last seen, ``"random"`` needs no scores.
        keep: Share of the tokens of a batch to keep.
        model: The model.
        data: Its windows, all of one length.
        seed: Of what is drawn.
        reference: float32[N * T], the reference model's losses, where the score needs them.
        compiled: Whether the layers below the head are called through ``torch.compile``.
        when: ``schedule`` and ``steps_per_epoch`` of `InBatch`.

    Attributes:
        tokens: Number of tokens to choose among so far, the warm-up's apart.
        kept: Number of them that were kept.
        saved: What the head did not cost so far, in forwards of one window; negative where
            scoring cost more than the tokens left out saved.
        seconds: What scoring and selecting took so far.
    """

    def __init__(
        self,
        score: TokenScore,
        keep: float,
        model: nn.Module,
        data: DataSet,
        seed: int,
        reference: Tensor | None = None,
        compiled: bool = False,
        **when: Any,
    ) -> None:
        assert isinstance(model, Gpt)
        self._score, self._head = score, model.head
        self._hidden = torch.compile(model.hidden) if compiled else model.hidden
        self._in_batch = InBatch(selector=token_selector(score, keep), seed=seed, **when)
        windows, length = data.train_labels.shape
        self._reference = None if reference is None else reference.view(windows, length)
        self._memory = TokenMemory(windows, length) if score == "memory" else None
        # Of what all products of a window cost, those of the head, that of one of its three.
        self._head_product = (FORWARD + BACKWARD) * head_share(model) / PRODUCTS
        self.tokens = self.kept = 0
        self.saved = self.seconds = 0.0

    def loss(self, inputs: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """The mean loss of the kept tokens.

        Args:
            inputs: int64[B, T].
            labels: int64[B, T], each of which is a token.
            indices: int64[B], the windows' places in the training set.
        """
        hidden = self._hidden(inputs)
        started = time.perf_counter()
        selects = self._in_batch.is_on
        scored = self._score != "random" and (selects or self._memory is not None)
        scores = torch.zeros(labels.shape, device=labels.device)
        if scored:
            scores = self._scores(hidden.detach(), labels, indices)
        selection = self._in_batch.select(scores, labels != IGNORED)
        self.seconds += time.perf_counter() - started
        kept = len(selection.positions)
        if selects:
            self.tokens += labels.numel()
            self.kept += kept
        products = PRODUCTS * kept / labels.numel() + scored
        self.saved += self._head_product * (PRODUCTS - products) * len(labels)
        return chunked_cross_entropy(hidden, self._head, selection.labels(labels))

    def state_dict(self) -> dict[str, Any]:
        """Returns all that decides what is kept next, and the counts."""
        return {
            "in_batch": self._in_batch.state_dict(),
            "memory": None if self._memory is None else self._memory.state_dict(),
            "counts": [getattr(self, name) for name in COUNTS],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same run."""
        self._in_batch.load_state_dict(state["in_batch"])
        if self._memory is not None:
            self._memory.load_state_dict(state["memory"])
        for name, value in zip(COUNTS, state["counts"], strict=True):
            setattr(self, name, value)

    @torch.no_grad()
    def _scores(self, hidden: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """float32[B, T], the higher the sooner kept."""
        if self._score == "entropy":
            # Logits of all would be as large as training's.
            rows = torch.split(hidden.flatten(0, 1), ROWS)
            return torch.cat([token_entropies(self._head(hidden)) for hidden in rows]).view_as(
                labels
            )
        losses, mask = chunked_token_losses(hidden, self._head, labels)
        if self._memory is not None:
            return self._memory.excess(indices, losses, mask)
        if self._reference is not None:
            return losses - self._reference[indices].to(losses.device)
        return losses


def token_selector(score: TokenScore, keep: float) -> Selector:
    """Returns the selector of the highest scores of a batch, or of random tokens."""
    return Uniform(keep=keep) if score == "random" else TopK(keep=keep)


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
