"""The other way to training batches: examples are chosen among those of each batch that was read.

DataLoader ─► batch ─► scorer ─► selector ─► pool ─► your forward ─► backward
"""

import time
from collections.abc import Iterator
from dataclasses import replace

import torch

from siftback.batches import tree
from siftback.batches.batch import Batch
from siftback.batches.pool import Pool
from siftback.loader.pipeline import Epoch, Pipeline
from siftback.loader.trial import try_scores
from siftback.loader.wrapped import drops_last
from siftback.selectors.selection import Selection


def after_reading(pipeline: Pipeline, epoch: Epoch) -> Iterator[Batch]:
    """Yields full batches of the examples that are kept of each batch that the loader reads.

    Args:
        pipeline: The objects of the loader.
        epoch: The epoch, which was drawn where a rule draws it.

    Raises:
        BatchError: If a batch is empty or cannot be split, indices that are needed are missing or
            wrong, or there is no batch.
        LossError: If scores cannot be selected by.
    """
    source, pool, stats = pipeline.source, pipeline.pool, pipeline.stats
    draw, selection = pipeline.draw, pipeline.selection
    filters = draw is not None and not pipeline.reads_drawn
    leaves_out = filters or (selection is not None and selection.leaves_out)
    batches, is_single = source.batches(), False
    if pool is not None:  # examples that were pooled when a state was saved
        yield from pool.release_full(pipeline.to_come)
    for batch in batches:
        started = time.perf_counter()
        admitted = pipeline.admit(batch)
        rows = select_rows(pipeline, admitted)
        device = tree.device(admitted.data)
        is_copy = rows is not None and len(rows.positions) < batch.size
        if rows is None:
            weights = torch.ones(batch.size, device=device, dtype=torch.float32)
            selected = replace(admitted, weights=weights)
        else:
            selected = admitted.take(rows.positions) if is_copy else admitted
            selected = replace(selected, weights=rows.weights.to(device))  # a rule's are on the CPU
            stats.considered += batch.size
            stats.kept += selected.size
            stats.seconds_selection += time.perf_counter() - started
        epoch.offered += batch.size
        epoch.kept += selected.size
        if pool is None:
            pool = pipeline.pool = Pool(batch.size, drops_last(source.loader))
        # A last batch of one row is the user's own where nothing was left out of the epoch.
        is_whole = not (len(pool) or (draw is not None and draw.leaves_out))
        is_single = batch.size == selected.size == 1 and pipeline.is_own_size and is_whole
        if pipeline.to_come is None and source.position == 0:
            pipeline.count_batches(epoch.number)  # what a sampler gives is known with its first
        if pipeline.to_come is not None:
            pipeline.to_come = max(pipeline.to_come - selected.size, 0)
        fits = batch.lists is not None and batch.requested in (None, batch.size)
        if fits or pipeline.splits:
            if leaves_out and not pipeline.trial.is_over:
                pipeline.trial.join(batch, pool.pad, source.place)
            pool.add_batch(selected, is_copy=is_copy)
            source.position += 1
        else:  # it cannot be pooled with others
            source.position += 1
            yield selected
        for full in pool.release_full(pipeline.to_come):
            pipeline.trial.is_over |= is_copy  # rows of several batches were joined in earnest
            yield full
    is_single = is_single or pipeline.batches == 1
    pipeline.end_source(epoch)
    if pool is not None:
        yield from pool.release_last(single=is_single)


def select_rows(pipeline: Pipeline, batch: Batch) -> Selection | None:
    """Returns the rows of a batch that are kept, with their weights; None where all are.

    Raises:
        LossError: If scores cannot be selected by.
    """
    source, draw, selection = pipeline.source, pipeline.draw, pipeline.selection
    schedule, epochs = pipeline.schedule, pipeline.epochs
    if draw is not None and draw.draws and batch.indices is not None:
        weights = draw.weights_of(batch.indices)
        positions = weights.nonzero().squeeze(1)
        return Selection(positions, weights[positions])
    if selection is None:
        return None
    done = source.epochs_done
    is_pass = draw is None or draw.is_pass(source.epoch)
    is_on = is_pass and schedule.is_on(done, epochs, source.position)
    if not is_on and not pipeline.tried_scores:
        try_scores(selection, batch, source.place)
    pipeline.tried_scores = True
    if not is_on:
        return None
    if schedule.anneal is not None:
        keep = schedule.keep(done, epochs, own=selection.keep)
        selection.selector.set_keep(keep)  # type: ignore[attr-defined]
    scores = selection.score(batch)
    if selection.losses is not None:
        pipeline.stats.scored += batch.size
        if draw is not None and batch.indices is not None:
            draw.rescore(batch.indices, scores.float().cpu(), source.epoch)
    return selection.select(scores, source.place, pipeline.stats)
