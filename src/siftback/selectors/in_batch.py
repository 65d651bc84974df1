"""Selection after the forward pass, in a training step of your own."""

import inspect
from typing import Any

import torch
from torch import Tensor

from siftback.arguments import check_seed
from siftback.errors import BatchError, ConfigError, LossError
from siftback.losses.per_example import check_losses
from siftback.schedule import Schedule, StepSchedule
from siftback.selectors.percentile import resolve_selector
from siftback.selectors.ranking import Threshold
from siftback.selectors.sampling import count_of
from siftback.selectors.selection import Selection, Selector, check_untrained, unweighted
from siftback.state import Check, Stateful, generator_state, integer
from siftback.tensor_arguments import check_tensor

_MASK = ", True for those to choose among"


class InBatch(Stateful):
    """Chooses exactly ``round(keep * n)`` of a batch's n losses, which a step then trains on.

    It is at least two of several, as a batch of one row stops ``BatchNorm``.

    For a training step of your own: compute the losses of the batch, let `select` choose among
    them, and backpropagate the chosen ones. This saves time if the step then runs a smaller
    forward and backward on the chosen rows only, or runs backward through parts that treat
    examples independently. (`SinglePass` shortens the whole backward of a model by itself.)

    Give one of ``keep``, ``beta`` and ``selector``. A random selector keeps an example with its
    probability for a fixed count; see `Percentile`.

    Args:
        keep: Share of the rows to keep, in (0, 1]; ``keep = 1 / (beta + 1)``.
        beta: In place of ``keep``: the exponent of Selective-Backprop, at least 0.
        selector: In place of both: any selector that can keep exactly k.
        schedule: When to select, and how much to keep; while it is off, all rows are kept, and
            the selector is not called. By default after one epoch if it is by losses; without
            ``steps_per_epoch``, where the length of an epoch is not known, at once, with a warning.
        epochs: Epochs of the whole training, if the schedule needs them.
        steps_per_epoch: Calls per epoch, which the schedule counts; required with one, unless it
            is always on.
        seed: Seed of the generator; the global one is not used.

    Attributes:
        selector: The selector.
        steps: Number of calls so far.

    Raises:
        ConfigError: If an argument is out of range, or two exclude each other.

    >>> in_batch = InBatch(keep=1 / 2, seed=2)
    >>> losses = torch.tensor([0.3, 2.5, 0.1, 1.2], requires_grad=True)
    >>> positions, weights = in_batch.select(losses)
    >>> positions, weights
    (tensor([1, 3]), tensor([1., 1.]))
    >>> (losses[positions] * weights).mean().backward()
    >>> losses.grad
    tensor([0.0000, 0.5000, 0.0000, 0.5000])
    """

    def __init__(
        self,
        keep: float | None = None,
        beta: float | None = None,
        selector: Selector | None = None,
        *,
        schedule: Schedule | None = None,
        epochs: float | None = None,
        steps_per_epoch: int | None = None,
        seed: int = 0,
    ) -> None:
        self.selector = exact_selector(selector, keep, beta)
        self.steps = 0
        self._schedule = StepSchedule(self.selector, schedule, epochs, steps_per_epoch)
        self._seed = check_seed(seed)
        self._generator = torch.Generator().manual_seed(self._seed)

    def skips(self) -> bool:
        """Returns whether the schedule is off; the step is then counted, and needs no losses."""
        skipped = not self.is_on
        self.steps += skipped
        return skipped

    @property
    def is_on(self) -> bool:
        """Whether the next call selects; while the schedule is off, it keeps all."""
        return self._schedule.keep(self.steps) is not None

    def select(self, losses: Tensor, mask: Tensor | None = None) -> Selection:
        """Chooses among the rows of a batch, or among the tokens of its sequences.

        Args:
            losses: float[N], one loss per row, or float[B, T], one per token, on any device. They
                are not changed; no gradient flows through the selection. Any score serves in
                their place, such as a token's loss less that of a reference model (Lin et al.
                2024, Rho-1, equation 3).
            mask: bool of the same shape, True for the rows or tokens to choose among; None is
                all, and required for tokens, as padding has losses too. One with False is not
                kept, and its loss is ignored, whatever its value.

        Returns:
            The positions of the kept rows among all N, ascending, or of the kept tokens in
            ``losses.flatten()``, and their weights: ``(losses.flatten()[positions] *
            weights).mean()`` is the loss to train on. `Selection.mask` and `Selection.labels`
            have the shape of the losses. With n to choose among, ``round(keep * n)`` are kept,
            and at least two where n > 1; or all while the schedule is off.

        Raises:
            LossError: If there is not one floating-point loss per row or token, or one to choose
                among is not finite.
            BatchError: If the mask does not fit, is missing for tokens, or leaves nothing.
            ConfigError: If it is the first step, and the selector has learned in another training.

        >>> from siftback import TopK
        >>> losses = torch.tensor([[0.1, 2.0, 0.7], [1.5, 0.0, 0.0]])
        >>> mask = torch.tensor([[True, True, True], [True, False, False]])
        >>> InBatch(selector=TopK(keep=1 / 2)).select(losses, mask).mask(losses.shape)
        tensor([[False,  True, False],
                [ True, False, False]])
        """
        if isinstance(losses, Tensor) and losses.ndim == 2:
            if mask is None:
                raise BatchError(
                    f"losses of shape {list(losses.shape)} and no mask: give mask=labels != -100, "
                    "so that no padding is chosen, or a mask of True where every token counts"
                )
            mask = check_tensor("mask", mask, "bool", *losses.shape, advice=_MASK).flatten()
            losses = losses.flatten()
        count = losses.shape[0] if isinstance(losses, Tensor) and losses.ndim else 1
        losses = check_losses(losses, count)
        if mask is None:  # without waiting for the device, as for the rows of a mask
            rows = torch.arange(len(losses), device=losses.device)
        else:
            check_tensor("mask", mask, "bool", len(losses), advice=_MASK)
            rows = mask.to(losses.device).nonzero().squeeze(1)
        if not len(rows):
            reason = f"{count} losses, all of them masked out" if count else "0 losses"
            raise BatchError(f"there is no row to choose among: {reason}; skip this batch")
        candidates = losses[rows]
        if not candidates.isfinite().all():
            first = int((~candidates.isfinite()).nonzero()[0])
            raise LossError(
                f"the loss of row {int(rows[first])} is {float(candidates[first])}: lower the "
                "learning rate or fix the example, or mask it out"
            )
        if self.steps == 0:
            check_untrained(self.selector)
        keep = self._schedule.keep(self.steps)
        if keep is None:
            selection = select_all(candidates)
        else:
            if keep != self.selector.keep:
                self.selector.set_keep(keep)  # type: ignore[attr-defined]  # checked when made
            count = count_in_batch(keep, len(candidates))
            selection = self.selector.select(candidates, self._generator, count)
        self.steps += 1
        return selection._replace(positions=rows[selection.positions])

    def settings(self) -> dict[str, Any]:
        """See `Stateful.settings`."""
        return {"seed": self._seed, **self._schedule.settings()}

    def members(self) -> dict[str, Any]:
        """See `Stateful.members`."""
        return {"selector": self.selector}

    def state_fields(self) -> dict[str, Check]:
        """See `Stateful.state_fields`."""
        return {"steps": integer(), "_generator": generator_state}


def count_in_batch(keep: float, size: int) -> int:
    """Returns the number of rows of a batch to keep: ``round(keep * N)``, at least two of several.

    A batch of one row stops ``BatchNorm``, such as the last one of an epoch, which is smaller.

    >>> count_in_batch(1 / 3, 128), count_in_batch(1 / 3, 3), count_in_batch(1 / 3, 1)
    (43, 2, 1)
    """
    return max(count_of(keep, size), min(size, 2))


def select_all(losses: Tensor) -> Selection:
    """Returns the selection of all rows, each of weight 1.

    >>> select_all(torch.tensor([0.5, 2.0]))
    Selection(positions=tensor([0, 1]), weights=tensor([1., 1.]))
    """
    return unweighted(torch.arange(len(losses), device=losses.device))


def exact_selector(
    selector: Selector | None, keep: float | None, beta: float | None = None
) -> Selector:
    """Returns the selector of `resolve_selector`, for callers that need exactly k examples.

    Raises:
        ConfigError: If the selector cannot choose an exact number.

    >>> exact_selector(None, keep=0.5).keep
    0.5
    """
    selector = resolve_selector(selector, keep, beta)
    check_takes_count(selector)
    return selector


def takes_count(selector: Selector) -> bool:
    """Returns whether a selector can keep exactly the share that it says.

    >>> takes_count(Threshold(keep=0.5)), takes_count(Threshold(above=1.0))
    (True, False)
    """
    try:
        check_takes_count(selector)
    except ConfigError:
        return False
    return True


def check_takes_count(selector: Selector) -> None:
    """Checks that a selector can be asked for an exact number.

    Raises:
        ConfigError: If it cannot.
    """
    if "count" not in inspect.signature(selector.select).parameters:
        raise ConfigError(
            f"{type(selector).__name__}.select does not take the number of rows to keep: "
            "give it a third parameter, count, described in Selector.select"
        )
    if isinstance(selector, Threshold) and selector.above is not None:
        raise ConfigError(
            f"Threshold(above={selector.above}) does not say how many rows it keeps, and a fixed "
            "number is needed: give Threshold(keep=...) or TopK(keep=...)"
        )
