"""One training of the common work by one method: prints what came out, as a line of JSON.

Whatever the method, the budget is spent to the same end, and the learning rate follows what is
spent. What a scoring pass or a score of the whole set costs is charged.
"""

import argparse
import copy
import json
import math
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset
from torch.utils.flop_counter import FlopCounterMode
from work import BATCH, PEAK, WIDTH, Work, read

# What an epoch of the authors' InfoBatch costs on average, to choose how many.
INFOBATCH_SHARE = 0.7


def plain(work: Work) -> str:
    """Every example, in a plain loop."""
    work.fit(work.loader, lambda x, y: _train(work, x, y))
    return "PyTorch " + torch.__version__


def plain_faster(work: Work) -> str:
    """As plain, at the highest learning rate that KAKURENBO takes: 1 / (1 - 0.3) times as high."""
    work.fit(work.loader, lambda x, y: _train(work, x, y, scale=1 / 0.7))
    return "PyTorch " + torch.__version__


def composer(work: Work) -> str:
    """Composer's SelectiveBackprop at its defaults: half of every other batch, in the middle."""
    return _composer(work, {})


def composer_always(work: Work) -> str:
    """Composer's SelectiveBackprop on every batch after the first epoch."""
    return _composer(work, {"start": 1 / work.budget, "end": 1.0, "interrupt": 0})


def _composer(work: Work, when: dict[str, float]) -> str:
    import composer
    from composer.algorithms.selective_backprop import (
        select_using_loss,
        should_selective_backprop,
    )

    def train_on(x: Tensor, y: Tensor) -> float:
        scored = 0
        if should_selective_backprop(work.progress, work.steps, **when):
            scored = len(y)
            x, y = select_using_loss(x, y, work.model, F.cross_entropy, keep=0.5)
        return scored + _train(work, x, y)

    work.fit(work.loader, train_on)
    return f"Composer {composer.__version__}, PyTorch {torch.__version__}"


def infobatch(work: Work) -> str:
    """InfoBatch as its authors published it."""
    from infobatch import InfoBatch

    data = InfoBatch(work.train, math.ceil(work.budget / INFOBATCH_SHARE))
    loader = DataLoader(data, work.batch, sampler=data.sampler)
    work.fit(lambda: loader, lambda x, y: _train(work, x, y, data.update))
    return f"InfoBatch 8bbb012, PyTorch {torch.__version__}"


def datacull_rcap(work: Work) -> str:
    """RCAP of one half as its authors published it, at the temperature of their example."""
    import numpy as np
    from datacull import DCDataset, DCLogger, RCAPDataLoader, RCAPImportance

    np.random.seed(work.seed)  # its draws are from NumPy's global generator
    data = DCDataset(work.train)
    # What it calls the pruning rate is the share that it keeps.
    loader = RCAPDataLoader(data, pruning_rate=0.5, batch_size=work.batch)
    rows = torch.empty(0)
    with tempfile.TemporaryDirectory() as folder:
        logger = DCLogger(f"{folder}/")
        importance = RCAPImportance(data, logger, beta=0.25)

        def epoch() -> Iterator[tuple[Tensor, Tensor]]:
            nonlocal rows
            loader.resample(importance.compute_importance())
            for x, y, indices in loader:
                rows = indices
                yield x, y

        def train_on(x: Tensor, y: Tensor) -> float:
            losses = work.losses(x, y)[0]
            logger.log_metric(importance.epoch, rows, losses.detach())
            work.step(losses.mean())
            return 3 * len(y)

        work.fit(epoch, train_on)
    return f"DataCull {version('datacull')}, PyTorch {torch.__version__}"


def adaptive_sparse(work: Work) -> str:
    """The trainer of adaptive-sparse-training at its defaults, given a batch for an epoch.

    It forwards every row twice and goes backward through every row, those left out times 0.
    """
    from adaptive_sparse_training import AdaptiveSparseTrainer, ASTConfig

    config = ASTConfig(use_amp=False, device="cpu")
    trainer = AdaptiveSparseTrainer(work.model, None, None, config, work.optimizer)

    def train_on(x: Tensor, y: Tensor) -> float:
        work.set_rate()
        trainer.train_loader = [(x, y)]
        trainer.train_epoch(work.steps)
        work.steps += 1
        return 4 * len(y)

    work.fit(work.loader, train_on)
    name = "adaptive-sparse-training"
    return f"{name} {version(name)}, PyTorch {torch.__version__}"


def airbench_filter(work: Work) -> str:
    """The filter of airbench96, as its script has it, with a network a quarter as wide.

    The small network forwards each batch, keeps the half of the highest losses, and goes backward
    through that half of every fourth batch. Its author trains it before the other on the same
    batches, and keeps the choices; here both train in turns, which gives the same choices.
    """
    small = Work(
        work.train,
        work.seed + 1000,
        work.budget,
        batch=work.batch,
        peak=work.peak,
        width=WIDTH // 4,
    )
    relative_cost = _operations(small) / _operations(work)

    def train_on(x: Tensor, y: Tensor) -> float:
        small.cost = work.cost
        goes_backward = work.steps % 4 == 0
        with torch.set_grad_enabled(goes_backward):
            losses = small.losses(x, y)[0]
        kept = losses.argsort()[-max(len(y) // 2, 1) :]
        if goes_backward:
            small.step(losses[kept].mean())
        filter_cost = relative_cost * (3 if goes_backward else 1) * len(y)
        return filter_cost + _train(work, x[kept], y[kept])

    work.fit(work.loader, train_on)
    return "PyTorch " + torch.__version__


def _operations(work: Work) -> int:
    """Floating-point operations of a forward of two images."""
    model = copy.deepcopy(work.model)  # a forward changes the statistics of its norms
    with FlopCounterMode(display=False) as counter:
        model(work.train.pixels[:2])
    return counter.get_total_flops()


def siftback_memory(work: Work) -> str:
    """Siftback's Memory of a fixed share."""
    from siftback import Memory

    return by_rule(work, Memory(keep=0.55))


def siftback_memory_default(work: Work) -> str:
    """Siftback's Memory of as many examples as the losses say."""
    from siftback import Memory

    return by_rule(work, Memory())


def siftback_rcap(work: Work) -> str:
    """RCAP of one half, by Siftback."""
    from siftback import RCAP

    return by_rule(work, RCAP(work.train.labels, keep=0.5))


def siftback_infobatch(work: Work) -> str:
    """InfoBatch, by Siftback."""
    from siftback import InfoBatch

    return by_rule(work, InfoBatch())


def siftback_rs2(work: Work) -> str:
    """Repeated random subsets of one half, by Siftback."""
    from siftback import RS2

    return by_rule(work, RS2(keep=0.5))


def siftback_kakurenbo(work: Work) -> str:
    """KAKURENBO, which hides at most 0.3, without forwards on what is hidden; by Siftback."""
    import siftback

    rule = siftback.Kakurenbo()
    loader = siftback.SelectiveLoader(work.loader(), memory=rule, seed=work.seed)

    def train_on(x: Tensor, y: Tensor) -> float:
        losses, logits = work.losses(x, y)
        confidence, guess = logits.detach().softmax(1).max(1)
        loss = loader.loss(losses, correct=guess == y, confidence=confidence)
        work.step(loss, loader.lr_scale)
        return 3 * len(y)

    work.fit(lambda: loader, train_on)
    return f"Siftback {siftback.__version__}"


def siftback_sb(work: Work) -> str:
    """Selective-Backprop at keep 1/2 after the first epoch, by Siftback."""
    import siftback

    loader = siftback.SelectiveLoader(
        work.loader(), work.model, F.cross_entropy, keep=0.5, seed=work.seed
    )
    scored = 0

    def train_on(x: Tensor, y: Tensor) -> float:
        nonlocal scored
        before, scored = scored, loader.stats.scored
        return scored - before + _train(work, x, y)

    work.fit(lambda: loader, train_on)
    return f"Siftback {siftback.__version__}"


def siftback_el2n(work: Work) -> str:
    """Data-diet pruning by Siftback: the harder half, by EL2N of one model after one epoch."""
    import siftback
    from siftback.pruning import el2n, prune

    early = Work(work.train, work.seed + 1000, 1)
    early.fit(early.loader, lambda x, y: _train(early, x, y))
    kept = prune(el2n(early.model, work.train), drop=0.5, seed=work.seed)
    work.cost = early.cost + len(work.train)
    work.seconds = early.seconds
    half = Subset(work.train, kept.tolist())
    work.fit(lambda: work.loader(half), lambda x, y: _train(work, x, y))
    return f"Siftback {siftback.__version__}"


def by_rule(work: Work, rule: Any) -> str:
    """A rule of Siftback's, whose epochs cost what those of plain training do."""
    import siftback

    loader = siftback.SelectiveLoader(
        work.loader(), memory=rule, epochs=math.ceil(work.budget), seed=work.seed
    )
    work.fit(lambda: loader, lambda x, y: _train(work, x, y, loader.loss))
    return f"Siftback {siftback.__version__}"


def _train(
    work: Work,
    x: Tensor,
    y: Tensor,
    reduce: Callable[[Tensor], Tensor] = torch.Tensor.mean,
    scale: float = 1.0,
) -> float:
    work.step(reduce(work.losses(x, y)[0]), scale)
    return 3 * len(y)


METHODS: dict[str, Callable[[Work], str]] = {
    "plain": plain,
    "plain-faster": plain_faster,
    "composer": composer,
    "composer-always": composer_always,
    "infobatch": infobatch,
    "datacull-rcap": datacull_rcap,
    "adaptive-sparse": adaptive_sparse,
    "airbench-filter": airbench_filter,
    "siftback-memory": siftback_memory,
    "siftback-memory-default": siftback_memory_default,
    "siftback-infobatch": siftback_infobatch,
    "siftback-rcap": siftback_rcap,
    "siftback-rs2": siftback_rs2,
    "siftback-kakurenbo": siftback_kakurenbo,
    "siftback-sb": siftback_sb,
    "siftback-el2n": siftback_el2n,
}


def main(arguments: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("data", type=Path, help="file that compare.py wrote")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=4.0, help="in epochs of plain training")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--peak", type=float, default=PEAK, help="the highest learning rate")
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args(None if arguments is None else list(arguments))
    torch.set_num_threads(asked.threads)
    train, test = read(asked.data)
    work = Work(train, asked.seed, asked.budget, batch=asked.batch, peak=asked.peak)
    code = METHODS[asked.method](work)
    error, loss = work.test(test)
    record = {
        "data": asked.data.stem,
        "examples": len(train),
        "method": asked.method,
        "code": code,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "threads": asked.threads,
        "seed": asked.seed,
        "budget": asked.budget,
        "batch": asked.batch,
        "peak": asked.peak,
        "spent": round(work.progress * asked.budget, 4),
        "steps": work.steps,
        "seconds": round(work.seconds, 3),
        "test_error": error,
        "test_loss": loss,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
