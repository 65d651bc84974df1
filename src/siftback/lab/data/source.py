"""Sources of examples: addresses of a user's data, published sets, and the cache of both.

An address gives kind, place and options: ``imagefolder:PATH,size=32``.
"""

import hashlib
import json
import os
import re
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from siftback.errors import ConfigError
from siftback.lab.data.augment import Augment
from siftback.lab.records.formatting import one_of

IMAGE_OPTIONS = ("size", "crop", "mirror")
# The forms of addresses, and the options that may follow each.
OPTIONS = {
    "imagefolder:PATH": ("train", "test", *IMAGE_OPTIONS),
    "hf:NAME": ("image", "text", "label", "train", "test", "config", "vocabulary", *IMAGE_OPTIONS),
    "npz:PATH": ("crop", "mirror"),
    "text:PATH": ("tokens", "vocabulary"),
    "fonts:N": ("hard", "copies", "seed", "crop"),
    "table:PATH": ("label", "test", "drop"),
    "picture:PATH": ("size",),
}

LABEL = "label"  # the usual name of the column of labels
CACHE_FORMAT = 4  # of what is kept, and of the way to it: another one has all computed again

Size = tuple[int, int]

Splits = dict[str, tuple[Any, Tensor]]
"""Inputs and labels of ``train`` and, where there is one, of ``test``.

Inputs are a tensor, texts, or encoded images: paths of files, or cells of ``struct{bytes, path}``.
"""


class EncodedSet(NamedTuple):
    """Examples of a class each, which are still to be decoded or tokenised.

    Attributes:
        name: Name of the source in errors.
        title: Name of the set in progress bars.
        read: Reads the splits.
        names: Names of the classes, in their order.
        files: The files that are read; empty where all is in memory.
        options: Further words that decide what is read.
        is_text: Whether inputs are texts, and not images.
        groups: As those of a `DataSet`; None where each example stands alone.
    """

    name: str
    title: str
    read: Callable[[], Splits]
    names: tuple[str, ...]
    files: Sequence[Path]
    options: Sequence[str] = ()
    is_text: bool = False
    groups: Tensor | None = None


class Published(NamedTuple):
    """A data set that is read by its name.

    Attributes:
        repository: Its repository on the hub; empty where the hub has no copy with these columns.
        examples: Number of examples to train on.
        columns: Names that the column of images or texts may have.
        augmentation: Augmentation that is known to help it.
        channels: Channels of its images.
        classes: Number of classes.
        label: Name of the labels' column.
        names: Names of the classes; the files' own, or numbers, where empty.
        config: Its configuration; empty where the repository has but one.
        train: Splits to train on.
        folder: Name of its folder; the set's where empty.
        length: The most tokens of a text.
        group: Name of the column of groups; empty where each example stands alone.
    """

    repository: str
    examples: int
    columns: tuple[str, ...]
    augmentation: Augment = Augment()
    channels: int = 3
    classes: int = 10
    label: str = LABEL
    names: tuple[str, ...] = ()
    config: str = ""
    train: tuple[str, ...] = ("train",)
    folder: str = ""
    length: int = 0
    group: str = ""


@dataclass(frozen=True)
class Address:
    """The place of a user's data, and how to read them.

    Attributes:
        kind: One of ``OPTIONS``.
        target: A path, a name on the Hugging Face hub, or a number of examples to make.
        options: By name, as they were written.
    """

    kind: str
    target: str
    options: dict[str, str]

    @property
    def path(self) -> Path:
        """The target as a path."""
        return Path(self.target).expanduser()

    @property
    def title(self) -> str:
        """Its name in records and pages: a path is given by its last name alone."""
        target = self.path.resolve().name if self._is_path else self.target
        return ",".join((f"{self.kind}:{target}", *self._written_options))

    @property
    def cache(self) -> str:
        """A file name, another one for each place and each way to read it."""
        target = str(self.path.resolve()) if self._is_path else self.target
        text = json.dumps([self.kind, target, self._written_options])
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return f"{self.kind}-{re.sub(r'[^A-Za-z0-9._-]', '_', self.path.name)}-{digest}"

    @property
    def size(self) -> Size | None:
        """Height and width to bring all images to; None leaves them as they are."""
        if "size" not in self.options:
            return None
        text = self.options["size"]
        match = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text)
        if not match:
            raise ConfigError(f"size={text}: give pixels, as size=32 or size=HEIGHTxWIDTH")
        return int(match[1]), int(match[2] or match[1])

    @property
    def augmentation(self) -> Augment:
        """The augmentation that the options name; none other is known to harm no label."""
        crop, mirror = self.integer("crop", 0, 0, 99_999), self.options.get("mirror", "no")
        if mirror not in ("yes", "no"):
            raise ConfigError(f"mirror={mirror}: give yes or no")
        return Augment(padding=crop, flip=mirror == "yes")

    def integer(self, option: str, default: int, least: int, most: int) -> int:
        """Returns an option that is an integer.

        Raises:
            ConfigError: If it is none from ``least`` to ``most``.
        """
        return parse_integer(option, self.options.get(option, str(default)), least, most)

    @property
    def _is_path(self) -> bool:
        if self.kind == "hf":
            return self.path.is_absolute() or self.path.exists()
        return self.kind != "fonts"

    @property
    def _written_options(self) -> list[str]:
        return [f"{name}={value}" for name, value in sorted(self.options.items())]

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}"


def parse_integer(name: str, text: str, least: int, most: int) -> int:
    """Returns an integer from ``least`` to ``most``, as an address has it."""
    if not re.fullmatch(r"\d{1,10}", text) or not least <= int(text) <= most:
        raise ConfigError(f"{name}={text}: give an integer from {least} to {most}")
    return int(text)


def parse_address(text: str) -> Address | None:
    """Parses ``KIND:TARGET``, then ``,OPTION=VALUE`` any number of times.

    Returns:
        None where the text begins with no kind of address.

    Raises:
        ConfigError: For an option that the kind does not have, one given twice, or a test split
            that is the training split.

    >>> parse_address("hf:uoft-cs/cifar100,label=coarse_label,mirror=yes").options
    {'label': 'coarse_label', 'mirror': 'yes'}
    >>> parse_address("digits")
    """
    kind, colon, path = text.partition(":")
    form = next((form for form in OPTIONS if form.partition(":")[0] == kind), None)
    if not colon or form is None:
        return None
    target, *written = re.split(r",(?=[a-z]+=)", path)
    if not target:
        raise ConfigError(f"{text}: give {form}")
    options: dict[str, str] = {}
    for option in written:
        name, _, value = option.partition("=")
        if name not in (known := OPTIONS[form]):
            raise ConfigError(f"{text}: {kind} has no option {name!r}: {one_of(name, known)}")
        if name in options:
            raise ConfigError(f"{text}: {name} is given twice: give it once")
        if not value and name != "drop":  # of a column without a name, as pandas writes an index
            raise ConfigError(f"{text}: {name}= has no value: give {name}=VALUE or leave it out")
        options[name] = value
    trained_on = Path(target).name if kind == "table" else options.get("train", "train")
    if options.get("test") == trained_on:
        raise ConfigError(f"{text}: test= is what is trained on: give another, or leave it out")
    return Address(kind, target, options)


def recorded_name(text: str) -> str:
    """Returns the name of a data set in records: its name, or the title of its address.

    >>> recorded_name("npz:/home/me/digits.npz"), recorded_name("mnist")
    ('npz:digits.npz', 'mnist')
    """
    address = parse_address(text)
    return address.title if address else text


def cached(
    name: str,
    sources: Sequence[Path],
    compute: Callable[[], dict[str, Tensor]],
    options: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Reads tensors from the cache, or computes and keeps them.

    The file ``<name>.pt`` lies in ``SIFTBACK_CACHE``, else in ``~/.cache/siftback``. It is written
    again where a source's name, size or modification time differs, and where it is damaged.

    Args:
        name: Name of the file, without its ending.
        sources: The files that the tensors are computed from; nothing is kept where there are none.
        compute: Computes the tensors.
        options: Further words that decide the tensors.

    Raises:
        ConfigError: If the cache's folder cannot be written.
    """
    if not sources:
        return compute()
    folder = Path(os.environ.get("SIFTBACK_CACHE") or Path.home() / ".cache" / "siftback")
    file = folder / f"{name}.pt"
    states = [(source.name, source.stat().st_size, source.stat().st_mtime_ns) for source in sources]
    key = hashlib.sha256(json.dumps([CACHE_FORMAT, states, list(options)]).encode()).hexdigest()
    with suppress(Exception):  # a damaged file can fail in any way, and is written again
        # Mapped, so that runs side by side share one copy in memory.
        entry = torch.load(file, weights_only=True, mmap=True)
        tensors: dict[str, Tensor] = entry["tensors"]
        if entry["key"] == key and entry["checksums"] == checksums(tensors):
            return tensors
    tensors = compute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # In a folder of its own, as two runs may write at once; then a reader sees the old file or
        # the new one, never half of one.
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}.") as temporary:
            entry = {"key": key, "tensors": tensors, "checksums": checksums(tensors)}
            torch.save(entry, Path(temporary) / file.name)
            (Path(temporary) / file.name).replace(file)
    except OSError as error:
        raise ConfigError(
            f"the cache {folder} cannot be written ({error.strerror}): set SIFTBACK_CACHE anew"
        ) from error
    return tensors


def checksums(tensors: dict[str, Tensor]) -> dict[str, int]:
    """Computes a CRC-32 of each tensor's storage and shape; torch checks neither when loading."""
    return {
        name: zlib.crc32(
            torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().data,
            zlib.crc32(repr((tensor.dtype, tensor.shape, tensor.stride())).encode()),
        )
        for name, tensor in tensors.items()
    }
