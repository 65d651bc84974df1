"""The cost of data work: gathering, augmenting and normalising a batch, over a training step.

The step is that of the smallest model for CIFAR shapes, on images of random bytes; pipeline and
step are timed in turns, and the ratio is of medians.
"""

import torch
from torch.nn import functional as F

from goals import Goal, begin, median_seconds, options, report
from siftback.lab import models
from siftback.lab.data.augment import Augment
from siftback.lab.data.data_set import ImageData
from siftback.lab.data.stream import BatchStream

TITLE = "What data work costs: cnn of its own width, batch 128, 3x32x32"
AUGMENTS = {
    "none": Augment(),
    "crop and flip": Augment(padding=4, flip=True),
    "crop, flip and cutout": Augment(padding=4, flip=True, cutout=16),
}
PRECISIONS = {"fp32": None, "bf16": torch.bfloat16}
MOST = 0.05


def images(count: int) -> ImageData:
    """A data set of CIFAR's shapes."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(10, (count,), generator=generator)
    return ImageData("random", pixels, labels, pixels[:1], labels[:1], names=tuple("0123456789"))


def measure(data: ImageData, precision: str, augment: str, repeats: int) -> Goal:
    torch.manual_seed(0)
    model = models.build("cnn", classes=10, channels=3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    stream = BatchStream(data, 128, seed=0, augment=AUGMENTS[augment])
    batches = iter(stream)
    inputs, targets = next(batches)
    dtype = PRECISIONS[precision]

    def step() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    median_seconds(step, 5)  # warming up
    share = median_seconds(lambda: next(batches), repeats) / median_seconds(step, repeats)
    return Goal(
        f"{precision}, {augment}", "data work over step", share, f"at most {MOST}", share <= MOST
    )


def main() -> None:
    asked = begin(options(__doc__.partition("\n")[0], quick="fewer repeats"))
    repeats = 10 if asked.quick else 50
    data = images(128 * (repeats + 2))
    goals = [measure(data, p, a, repeats) for p in PRECISIONS for a in AUGMENTS]
    report(TITLE, goals, asked)


if __name__ == "__main__":
    main()
