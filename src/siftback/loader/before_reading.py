"""One way to training batches: a rule chooses the examples of an epoch before any is read.

rule.draw ─► order ─► DataLoader ─► batch ─► your forward ─► loader.loss ─► rule.update
"""

from collections.abc import Iterator
from dataclasses import replace

from siftback.batches import tree
from siftback.batches.batch import Batch
from siftback.loader.pipeline import Epoch, Pipeline


def before_reading(pipeline: Pipeline, epoch: Epoch) -> Iterator[Batch]:
    """Yields the batches of an epoch whose examples a rule drew, as the wrapped loader reads them.

    Args:
        pipeline: The objects of the loader.
        epoch: The epoch, which was drawn.

    Raises:
        BatchError: If a batch is empty, or its indices are not known, or there is none.
    """
    source, draw = pipeline.source, pipeline.draw
    assert draw is not None
    for batch in source.batches():
        batch = pipeline.admit(batch)
        if draw.draws:
            pipeline.stats.considered += batch.size
            pipeline.stats.kept += batch.size
            if draw.reweights and batch.indices is not None:
                weights = draw.weights_of(batch.indices).to(tree.device(batch.data))
                batch = replace(batch, weights=weights)
        if pipeline.batches is None and source.position == 0:
            pipeline.count_batches(epoch.number)  # what a sampler gives is known with its first
        source.position += 1
        yield batch
    pipeline.end_source(epoch)
