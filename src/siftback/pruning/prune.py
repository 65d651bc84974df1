"""Pruning a data set once, before training: which examples to keep, by their scores."""

from typing import Literal

import torch
from torch import Tensor

from siftback.arguments import (
    check_choice,
    check_either,
    check_seed,
    check_share,
    format_value,
    is_number,
)
from siftback.errors import ConfigError
from siftback.tensor_arguments import is_dense


def prune(
    scores: Tensor,
    drop: float | None = None,
    *,
    keep: Literal["hardest", "easiest"] = "hardest",
    window: tuple[float, float] | None = None,
    per_class: Tensor | None = None,
    seed: int = 0,
) -> Tensor:
    """Chooses the examples to keep by their scores.

    With the n examples ranked from the easiest to the hardest and ``d = round(drop * n)``, the
    hardest are ranks d to n, the easiest 0 to n - d, and a window (a, b) is ranks
    ``round(a * n)`` to ``round(b * n)``, like the windows of Paul et al. 2021, which leave out
    the hardest examples. Halves are rounded up.

    Args:
        scores: float[N], higher for harder examples; infinite scores are ranked too.
        drop: Share of the examples to leave out, in [0, 1).
        keep: Whether to keep the hardest or the easiest.
        window: In place of ``drop``: shares (a, b), 0 <= a < b <= 1.
        per_class: int64[N], the class of each example, to rank and drop within each class; None
            ranks all together.
        seed: Seed of the random order of examples with equal scores.

    Returns:
        int64[k], the indices of the examples to keep, ascending, for
        ``torch.utils.data.Subset(dataset, kept)``.

    Raises:
        ConfigError: If scores are NaN, a share is outside its range, both or neither of
            ``drop`` and ``window`` are given, classes do not fit, or nothing would be kept.

    >>> scores = torch.tensor([0.9, 0.1, 0.5, 0.3])
    >>> prune(scores, drop=0.25), prune(scores, drop=0.25, keep="easiest")
    (tensor([0, 2, 3]), tensor([1, 2, 3]))
    >>> prune(scores, window=(0.25, 0.75))
    tensor([2, 3])
    >>> prune(scores, drop=0.5, per_class=torch.tensor([0, 0, 1, 1]))
    tensor([0, 2])
    """
    scores = check_rankable(scores)
    check_shares(drop, keep, window)
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(check_seed(seed)))
    order = order[scores[order].argsort(stable=True)]
    together = torch.zeros_like(order)
    classes = together if per_class is None else check_classes(per_class, len(scores))[order]
    ranked = [order[classes == label] for label in torch.unique(classes)]
    indices = torch.cat([keep_ranks(group, drop, keep, window) for group in ranked])
    if not len(indices):
        option = f"drop={drop}" if window is None else f"window={window}"
        raise ConfigError(f"{option} keeps none of {len(scores)} examples: keep more of them")
    return indices.sort().values


def check_rankable(scores: Tensor) -> Tensor:
    """Checks that scores can be ranked, and returns them on the CPU."""
    fits = is_dense(scores) and scores.ndim == 1 and len(scores)
    if not fits or scores.is_complex() or scores.dtype == torch.bool:
        raise ConfigError(f"scores={format_value(scores)}: give one score per example, float[N]")
    missing = scores.isnan().nonzero().flatten()
    if len(missing):
        raise ConfigError(
            f"{len(missing)} of {len(scores)} scores are NaN, the first is that of example "
            f"{int(missing[0])}: score every example, or remove those without a score"
        )
    scores = scores.detach().cpu()
    return scores.float() if scores.dtype.itemsize == 1 else scores  # of 8 bits, not sorted


def check_shares(drop: float | None, keep: str, window: tuple[float, float] | None) -> None:
    """Checks the shares of the examples that are dropped or kept."""
    advice = "a share to leave out or the shares that bound what is kept"
    check_either(advice, drop=drop, window=window)
    if drop is not None:
        check_share("drop", drop)
    check_choice("keep", keep, "hardest", "easiest")
    listed = isinstance(window, tuple | list) and len(window) == 2 and all(map(is_number, window))
    if window is not None and not (listed and 0 <= window[0] < window[1] <= 1):
        raise ConfigError(f"window={format_value(window)}: give shares (a, b) with 0 <= a < b <= 1")


def check_classes(per_class: Tensor, count: int) -> Tensor:
    """Checks the class of each example, and returns them on the CPU."""
    fits = is_dense(per_class) and per_class.shape == (count,)
    if not fits or per_class.is_floating_point() or per_class.is_complex():
        raise ConfigError(
            f"per_class={format_value(per_class)}: give the class of each example, int64[{count}]"
        )
    return per_class.cpu()


def keep_ranks(
    ranked: Tensor, drop: float | None, keep: str, window: tuple[float, float] | None
) -> Tensor:
    """Returns the examples to keep of those ranked from the easiest to the hardest."""
    n, shares = len(ranked), (*(window or (0.0, 1.0)), drop or 0.0)
    # As decimals: 0.29 * 50 is a little below 14.5 in binary.
    first, last, dropped = (int(round(share * n, 9) + 0.5) for share in shares)
    if window is not None:
        return ranked[first:last]
    return ranked[dropped:] if keep == "hardest" else ranked[: n - dropped]
