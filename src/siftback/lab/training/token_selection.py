"""Tokens as examples in a run: the head of a language model computes only those selected."""

import time
from typing import Any, Literal

import torch
from torch import Tensor, nn

from siftback import InBatch, Selector, TopK, Uniform
from siftback.lab.data.data_set import IGNORED, DataSet
from siftback.lab.models.text_models import Gpt
from siftback.lab.training.length import BACKWARD, FORWARD
from siftback.language import (
    TokenMemory,
    chunked_cross_entropy,
    chunked_token_losses,
    token_entropies,
)

TokenScore = Literal["loss", "reference", "memory", "entropy", "random"]
"""What tokens are selected by, the highest first."""

PRODUCTS = 3
"""Of the head, for a token that is trained on: logits, gradients of the inputs and of the weight.

All three cost the same, and so does that of a token that is scored.
"""

ROWS = 4096  # whose logits there are at once, to take the entropies of
COUNTED = ("tokens", "kept", "saved", "seconds")


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
        self._in_batch = InBatch(selector=selector_of(score, keep), seed=seed, **when)
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

    @property
    def kept_share(self) -> float:
        """Share of the tokens so far that was kept; 1 if there were none yet."""
        return self.kept / self.tokens if self.tokens else 1.0

    def state_dict(self) -> dict[str, Any]:
        """All that decides what is kept next, and what was counted."""
        return {
            "in_batch": self._in_batch.state_dict(),
            "memory": None if self._memory is None else self._memory.state_dict(),
            "counted": [getattr(self, name) for name in COUNTED],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of the same run."""
        self._in_batch.load_state_dict(state["in_batch"])
        if self._memory is not None:
            self._memory.load_state_dict(state["memory"])
        for name, value in zip(COUNTED, state["counted"], strict=True):
            setattr(self, name, value)

    @torch.no_grad()
    def _scores(self, hidden: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """float32[B, T], the higher the sooner kept."""
        if self._score == "entropy":
            # Logits of all would be as large as training's.
            rows = torch.split(hidden.flatten(0, 1), ROWS)
            return torch.cat([token_entropies(self._head(each)) for each in rows]).view_as(labels)
        losses, mask = chunked_token_losses(hidden, self._head, labels)
        if self._memory is not None:
            return self._memory.excess(indices, losses, mask)
        if self._reference is not None:
            return losses - self._reference[indices].to(losses.device)
        return losses


def selector_of(score: TokenScore, keep: float) -> Selector:
    """What selects by scores: the highest of a batch, that is those above a quantile; or any."""
    return Uniform(keep=keep) if score == "random" else TopK(keep=keep)


def head_share(model: Gpt) -> float:
    """The head's share of the products that a token costs, by the number of weights.

    What attention multiplies besides its weights, and embeddings, are left out.

    >>> from siftback.lab.models.layers import ModelSpec
    >>> spec = ModelSpec(width=32, classes=1000, vocabulary=1000, length=16)
    >>> round(head_share(Gpt(spec)), 3)  # V D / (V D + 12 L D^2), of four layers
    0.394
    """
    whole = sum(part.weight.numel() for part in model.modules() if isinstance(part, nn.Linear))
    return model.head.weight.numel() / whole
