"""The seconds of a pass over JPEG files, plain and by rules, where reading is the bottleneck.

50,000 JPEGs of 224x224 are written once, CIFAR-10's training images enlarged: as files, as a data
set of Hugging Face ``datasets`` with an ``Image`` feature, and as shards of a WebDataset. Two
workers decode them and cut a random 160x160 out of each, and a linear model of every eighth pixel
is trained on batches of 128, so that nearly all of the time is reading.

An epoch of a `SelectiveLoader` has by default as many batches as a plain one, and takes as long.
So that passes over the data are compared, loaders here have ``shorter_epochs=True``: an epoch is a
pass, shorter by what the rule leaves out. Its seconds over those of a plain pass are ideally the
share of the images that is trained on. So are its processor seconds, of the workers and of this
process together, which say the same where a machine is busy with other work. All passes of a reader
have their turn in each round, and ratios are medians over rounds. Losses are remembered beforehand,
so that every pass is drawn by them. How many images are decoded is counted in the workers: a
WebDataset cannot skip and decodes them all, so that a rule saves the training alone. The files are
in the memory of the system after the first round, as they would not be of a data set larger than
it.
"""

import io
import json
import multiprocessing
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
import webdataset
from PIL import Image
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from goals import Goal, begin, options, report
from siftback import EpochRule, Epochs, Indexed, InfoBatch, Memory, Pool, SelectiveLoader
from siftback.lab.data.data_set import DataSet
from siftback.lab.data.load import load

TITLE = "What reading costs: {count:,} JPEGs of 224x224, two workers, a linear model"
SIZE, CROP, STRIDE, QUALITY = 224, 160, 8, 95
BATCH, WORKERS = 128, 2
WRITTEN = "written"  # a file beside the images, once all are there
IN_SHARD = 1000  # images
EPOCHS = 1000  # of a training whose tail is not reached
RULES: dict[str, Callable[[], EpochRule]] = {
    "Memory(keep=0.5)": lambda: Memory(keep=0.5, warmup=Epochs(0)),
    "Memory(keep=0.33)": lambda: Memory(keep=0.33, warmup=Epochs(0)),
    "Memory(keep=0.2)": lambda: Memory(keep=0.2, warmup=Epochs(0)),
    "InfoBatch(0.5)": lambda: InfoBatch(0.5),
}
MOST = 1.1  # over the ideal share
DECODED = multiprocessing.Value("q", 0)  # images, in all workers


def write_images(folder: Path, data: DataSet, count: int) -> None:
    """Writes the first images of a data set for all three readers."""
    folder.mkdir(parents=True, exist_ok=True)
    encoded = (
        (number, encode(data.train_inputs[number]), int(data.train_labels[number]))
        for number in range(count)
    )
    rows: dict[str, list[Any]] = {"image": [], "label": []}
    for number, jpeg, label in track(encoded, "writing images", total=count):
        path = path_of(folder, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg)
        rows["image"].append({"bytes": jpeg, "path": None})
        rows["label"].append(label)
    (folder / "labels.json").write_text(json.dumps(rows["label"]))
    columns = {"image": datasets.Image(), "label": datasets.Value("int64")}
    table = datasets.Dataset.from_dict(rows, datasets.Features(columns))
    table.save_to_disk(folder / "datasets")
    for start in range(0, count, shard_size(count)):
        numbers = range(start, min(start + shard_size(count), count))
        with tarfile.open(folder / f"shard-{start:06}.tar", "w") as shard:
            for number in numbers:
                add(shard, f"{number:06}.jpg", rows["image"][number]["bytes"])
                add(shard, f"{number:06}.cls", str(rows["label"][number]).encode())
    (folder / WRITTEN).touch()


def encode(pixels: Tensor) -> bytes:
    """Returns a JPEG of an image, uint8[3, H, W], enlarged."""
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    buffer = io.BytesIO()
    image.resize((SIZE, SIZE), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def path_of(folder: Path, number: int) -> Path:
    return folder / "files" / f"{number // IN_SHARD:03}" / f"{number:06}.jpg"


def shard_size(count: int) -> int:
    """Returns the images of a shard, such that each worker has two or more."""
    return min(IN_SHARD, -(-count // (2 * WORKERS)))


def add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    shard.addfile(entry, io.BytesIO(content))


def crop(image: Image.Image) -> Tensor:
    """Decodes an image and cuts a random square out of it: uint8[3, CROP, CROP]."""
    left, top = torch.randint(SIZE - CROP + 1, (2,)).tolist()
    pixels = np.array(image.crop((left, top, left + CROP, top + CROP)))
    with DECODED.get_lock():
        DECODED.value += 1
    return torch.from_numpy(pixels).permute(2, 0, 1)


class Files(Dataset[tuple[Tensor, int]]):
    """JPEG files, read one by one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.labels = json.loads((folder / "labels.json").read_text())

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        with Image.open(path_of(self.folder, number)) as image:
            return crop(image), self.labels[number]


def cropped(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Returns rows of ``datasets`` with their images cropped."""
    return {"image": [crop(image) for image in rows["image"]], "label": rows["label"]}


def unpacked(sample: tuple[str, bytes, bytes]) -> tuple[int, Tensor, int]:
    """Returns the number, the image and the label of a sample of a shard."""
    number, jpeg, label = sample
    with Image.open(io.BytesIO(jpeg)) as image:
        return int(number), crop(image), int(label)


def files_loader(folder: Path) -> DataLoader[Any]:
    return DataLoader(Files(folder), BATCH, shuffle=True, num_workers=WORKERS)


def datasets_loader(folder: Path) -> DataLoader[Any]:
    table = datasets.load_from_disk(folder / "datasets").with_transform(cropped)
    return DataLoader(table, BATCH, shuffle=True, num_workers=WORKERS)


def shards_loader(folder: Path) -> Any:
    shards = sorted(str(path) for path in folder.glob("shard-*.tar"))
    stream = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(IN_SHARD)
    batches = stream.to_tuple("__key__", "jpg", "cls").map(unpacked).batched(BATCH)
    return webdataset.WebLoader(batches, batch_size=None, num_workers=WORKERS)


READERS: dict[str, Callable[[Path], Any]] = {
    "files": files_loader,
    "datasets": datasets_loader,
    "WebDataset": shards_loader,
}


class Pass(NamedTuple):
    """A pass over the data: its seconds, those of training among them, and images of each kind."""

    seconds: float
    processor: float
    training: float
    decoded: int
    trained: int


def processor_seconds() -> float:
    """Returns the processor time of this process and of its workers that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def run(loader: Iterable[Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> Pass:
    """Trains through one epoch of a loader."""
    decoded, trained, training = DECODED.value, 0, 0.0
    started, before = time.perf_counter(), processor_seconds()
    for batch in loader:
        begun = time.perf_counter()
        images, labels = list(batch.values() if isinstance(batch, dict) else batch)[-2:]
        labels = torch.as_tensor(labels)
        pixels = images[..., ::STRIDE, ::STRIDE].float() / 255
        losses = F.cross_entropy(model(pixels), labels, reduction="none")
        loss = loader.loss(losses) if isinstance(loader, SelectiveLoader) else losses.mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        trained += len(labels)
        training += time.perf_counter() - begun
    seconds = time.perf_counter() - started
    return Pass(seconds, processor_seconds() - before, training, DECODED.value - decoded, trained)


def selective(loader: Any, rule: EpochRule, count: int) -> SelectiveLoader:
    """Returns a loader by a rule that remembers a loss of every image."""
    losses = torch.rand(count, generator=torch.Generator().manual_seed(0))
    if isinstance(loader, webdataset.WebLoader):  # a stream, whose epochs are passes in any case
        indexed = Indexed(loader, index_of=lambda batch: torch.as_tensor(batch[0]))
        stream = SelectiveLoader(indexed, memory=rule, pool=Pool(BATCH), epochs=EPOCHS)
        for _ in stream:  # which alone knows what it remembers of which image
            stream.record(losses[stream.indices])
        return stream
    rule.grow(count)
    rule.update(torch.arange(count), losses, epoch=0)
    return SelectiveLoader(loader, memory=rule, epochs=EPOCHS, shorter_epochs=True)


def measure(reader: str, folder: Path, count: int, rounds: int) -> list[Goal]:
    """Times the passes of one reader in turns."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * (CROP // STRIDE) ** 2, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loaders = {"plain": READERS[reader](folder)}
    for name, make in RULES.items():
        loaders[name] = selective(READERS[reader](folder), make(), count)
    passes: dict[str, list[Pass]] = {name: [] for name in loaders}
    for turn in range(rounds):
        for name in track(loaders, f"{reader}, round {turn + 1} of {rounds}"):
            passes[name].append(run(loaders[name], model, optimizer))
    plain = passes.pop("plain")
    goals = []
    for name, selected in passes.items():
        pairs = list(zip(selected, plain, strict=True))
        shares = [item.trained / count for item in selected]
        by_clock = [one.seconds / other.seconds for one, other in pairs]
        by_processor = [one.processor / other.processor for one, other in pairs]
        over_clock, over_processor = (
            statistics.median(ratio / share for ratio, share in zip(ratios, shares, strict=True))
            for ratios in (by_clock, by_processor)
        )
        bound = f"at most {MOST}", over_processor <= MOST
        numbers = {
            "seconds of a plain pass": statistics.median(one.seconds for one in plain),
            "training's share of it": statistics.median(o.training / o.seconds for o in plain),
            "share trained on": statistics.median(shares),
            "share decoded": statistics.median(one.decoded / count for one in selected),
            "seconds over a plain pass's": statistics.median(by_clock),
            "these over the share": over_clock,
            "processor seconds over a plain pass's": statistics.median(by_processor),
        }
        setting = f"{reader}, {name}"
        goals += [Goal(setting, what, measured) for what, measured in numbers.items()]
        skips = reader != "WebDataset"
        goals.append(
            Goal(setting, "those over the share", over_processor, *(bound if skips else ()))
        )
    return goals


def main() -> None:
    parser = options(__doc__.partition("\n")[0], quick="768 images, one round")
    parser.add_argument("--images", type=int, help="number of them, 50,000 by default")
    parser.add_argument("--rounds", type=int, help="of each pass, 3 by default")
    parser.add_argument("--reader", nargs="*", choices=READERS, default=list(READERS))
    parser.add_argument("--folder", type=Path, help="where the images are, or are written")
    asked = begin(parser)
    torch.set_num_threads(asked.threads or 1)
    count = asked.images or (768 if asked.quick else 50_000)
    folder = (asked.folder or Path(tempfile.gettempdir(), "siftback-reading")) / str(count)
    if not (folder / WRITTEN).exists():
        write_images(folder, load("cifar10"), count)
    goals: list[Goal] = []
    for reader in asked.reader:
        goals += measure(reader, folder, count, asked.rounds or (1 if asked.quick else 3))
    report(TITLE.format(count=count), goals, asked)


if __name__ == "__main__":
    main()
