"""Savings of selecting tokens in a language model's head: time and memory, by vocabulary.

The ways are the plain cross-entropy of all logits, the chunked one of all tokens, and the chunked
one of some. Where a selection is by the tokens' own losses, these are computed first, without
gradient. Ratios are to the plain way. Those of seconds are medians over rounds, in each of which
all ways take their turn, as other work may share the machine. Those of memory are of the peaks of
processes that take one way each, without what is there before: inputs, weight and gradients.
"""

import itertools
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from goals import Goal, begin, options, report
from siftback import InBatch, TopK
from siftback.language import chunked_cross_entropy, chunked_token_losses

TITLE = "The head of a language model: selected tokens against all logits"
VOCABULARIES = 1_000, 32_000, 128_000
SHARES = 0.6, 1 / 3
ROUNDS = 5


def plain(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(hidden), labels)


def selected_before(keep: float) -> Callable[..., Tensor]:
    def loss(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
        chosen = torch.arange(len(labels)) % 30 < 30 * keep
        return chunked_cross_entropy(hidden, head, labels.where(chosen, -100))

    return loss


def selected_by_loss(keep: float) -> Callable[..., Tensor]:
    in_batch = InBatch(selector=TopK(keep=keep))

    def loss(hidden: Tensor, head: nn.Linear, labels: Tensor) -> Tensor:
        losses, mask = chunked_token_losses(hidden, head, labels)
        selection = in_batch.select(losses, mask)
        return chunked_cross_entropy(hidden, head, selection.labels(labels))

    return loss


WAYS: dict[str, Callable[..., Tensor]] = {
    "plain": plain,
    "chunked, all tokens": chunked_cross_entropy,
    **{f"{keep:.2f} of the tokens, known before": selected_before(keep) for keep in SHARES},
    **{f"{keep:.2f} of the tokens, by their losses": selected_by_loss(keep) for keep in SHARES},
}


def problem(classes: int, tokens: int, width: int) -> tuple[Tensor, nn.Linear, Tensor]:
    """Inputs, head and labels; gradients are there already, to be added to."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, width, requires_grad=True)
    head, labels = nn.Linear(width, classes, bias=False), torch.randint(0, classes, (tokens,))
    head.weight.grad, hidden.grad = torch.zeros_like(head.weight), torch.zeros_like(hidden)
    return hidden, head, labels


def peak(way: str, classes: int, tokens: int, width: int, threads: int) -> float:
    """Bytes at the peak of a forward and backward beyond what was there."""
    torch.set_num_threads(threads)
    given = problem(classes, tokens, width)
    before = _memory("VmRSS")
    WAYS[way](*given).backward()
    return _memory("VmHWM") - before


def _memory(line: str) -> int:
    """Bytes, now or at the peak; `resource` would give a new process the peak of its parent."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(rf"^{line}:\s*(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def seconds(classes: int, tokens: int, width: int) -> dict[str, list[float]]:
    """Those of a forward and backward, by way and round."""
    given = problem(classes, tokens, width)
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    for _, way in itertools.product(range(ROUNDS), WAYS):
        started = time.perf_counter()
        WAYS[way](*given).backward()
        taken[way].append(time.perf_counter() - started)
    return taken


def main() -> None:
    parser = options(__doc__.partition("\n")[0], quick="a quarter of the tokens")
    parser.add_argument("--tokens", type=int, default=1024, help="in a batch")
    parser.add_argument("--width", type=int, default=256, help="inputs of the head")
    asked = begin(parser)
    tokens = asked.tokens // 4 if asked.quick else asked.tokens
    goals = []
    for classes in VOCABULARIES:
        sizes = classes, tokens, asked.width
        taken, peaks = seconds(*sizes), {}
        for way in WAYS:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                peaks[way] = pool.apply(peak, (way, *sizes, torch.get_num_threads()))
        setting = f"{classes:,} classes, {tokens} tokens of width {asked.width}"
        goals.append(Goal(setting, "plain: seconds", statistics.median(taken["plain"])))
        goals.append(Goal(setting, "plain: megabytes", peaks["plain"] / 1e6))
        for way in [way for way in WAYS if way != "plain"]:
            ratios = [a / b for a, b in zip(taken[way], taken["plain"], strict=True)]
            goals.append(Goal(setting, f"{way}: time", statistics.median(ratios)))
            goals.append(Goal(setting, f"{way}: memory", peaks[way] / peaks["plain"]))
    report(TITLE, goals, asked)


if __name__ == "__main__":
    main()
