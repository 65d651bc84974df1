"""Addresses of a user's data, by kind and place: ``imagefolder:PATH,size=32``."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from siftback.errors import ConfigError
from siftback.lab.data.augment import Augment
from siftback.lab.records.formatting import one_of

IMAGE_OPTIONS = ("size", "crop", "mirror")
# The options that may follow the place, by kind.
OPTIONS = {
    "imagefolder": ("train", "test", *IMAGE_OPTIONS),
    "hf": ("image", "text", "label", "train", "test", "config", "vocabulary", *IMAGE_OPTIONS),
    "npz": ("crop", "mirror"),
    "text": ("tokens", "vocabulary"),
}
ADDRESSES = ("imagefolder:PATH", "hf:NAME", "npz:PATH", "text:PATH")

Size = tuple[int, int]


@dataclass(frozen=True)
class Address:
    """The place of a user's data, and how to read them.

    Attributes:
        kind: One of ``OPTIONS``.
        target: A path, or a name on the Hugging Face hub.
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
        crop, mirror = self.options.get("crop", "0"), self.options.get("mirror", "no")
        if not re.fullmatch(r"\d{1,5}", crop):
            raise ConfigError(f"crop={crop}: give how many pixels to shift images by at most")
        if mirror not in ("yes", "no"):
            raise ConfigError(f"mirror={mirror}: give yes or no")
        return Augment(padding=int(crop), flip=mirror == "yes")

    @property
    def _is_path(self) -> bool:
        return self.kind != "hf" or self.path.is_absolute() or self.path.exists()

    @property
    def _written_options(self) -> list[str]:
        return [f"{name}={value}" for name, value in sorted(self.options.items())]

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}"


def parse_address(text: str) -> Address | None:
    """Parses ``KIND:TARGET``, then ``,OPTION=VALUE`` any number of times.

    Returns:
        None where the text begins with no kind of address.

    Raises:
        ConfigError: For an option that the kind does not have, or one given twice.

    >>> parse_address("hf:uoft-cs/cifar100,label=coarse_label,mirror=yes").options
    {'label': 'coarse_label', 'mirror': 'yes'}
    >>> parse_address("digits")
    """
    kind, colon, path = text.partition(":")
    if not colon or kind not in OPTIONS:
        return None
    target, *written = re.split(r",(?=[a-z]+=)", path)
    if not target:
        raise ConfigError(f"{text}: give {next(a for a in ADDRESSES if a.startswith(kind))}")
    options: dict[str, str] = {}
    for option in written:
        name, _, value = option.partition("=")
        if name not in OPTIONS[kind]:
            raise ConfigError(
                f"{text}: {kind} has no option {name!r}: {one_of(name, OPTIONS[kind])}"
            )
        if name in options:
            raise ConfigError(f"{text}: {name} is given twice: give it once")
        if not value:
            raise ConfigError(f"{text}: {name}= has no value: give {name}=VALUE or leave it out")
        options[name] = value
    return Address(kind, target, options)


def recorded_name(text: str) -> str:
    """Returns the name of a data set in records: its name, or the title of its address.

    >>> recorded_name("npz:/home/me/digits.npz"), recorded_name("mnist")
    ('npz:digits.npz', 'mnist')
    """
    address = parse_address(text)
    return address.title if address else text
