"""Data of a user's own, by kind and place: ``imagefolder:PATH,size=32``."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from siftback.errors import ConfigError
from siftback.lab.data.augment import Augment
from siftback.lab.records.formatting import one_of

# What may follow the place, for every kind and for some.
COMMON = ("size", "crop", "mirror")
OPTIONS = {
    "imagefolder": ("train", "test", *COMMON),
    "hf": ("image", "text", "label", "train", "test", "config", "vocabulary", *COMMON),
    "npz": ("crop", "mirror"),
    "text": ("tokens", "vocabulary"),
}
PLACES = {"imagefolder": "PATH", "hf": "NAME", "npz": "PATH", "text": "PATH"}
NAMES = tuple(f"{kind}:{place}" for kind, place in PLACES.items())

Size = tuple[int, int]


@dataclass(frozen=True)
class Address:
    """Where data are, and how to read them.

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
        """What records and pages call it: of a path the last part alone, not where it lay."""
        target = self.path.resolve().name if self._is_path else self.target
        return ",".join((f"{self.kind}:{target}", *self._options))

    @property
    def cache(self) -> str:
        """A file name, another one for each place and each way to read it."""
        place = str(self.path.resolve()) if self._is_path else self.target
        text = json.dumps([self.kind, place, self._options])
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return f"{self.kind}-{re.sub(r'[^A-Za-z0-9._-]', '_', self.path.name)}-{digest}"

    @property
    def size(self) -> Size | None:
        """Height and width to bring all images to; None leaves them as they are."""
        text = self.options.get("size")
        if text is None:
            return None
        found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d{0,4}))?", text)
        if found is None:
            raise ConfigError(f"size={text}: give pixels, as size=32 or size=HEIGHTxWIDTH")
        return int(found[1]), int(found[2] or found[1])

    @property
    def augmentation(self) -> Augment:
        """What is asked for; nothing else is known to harm no label."""
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
    def _options(self) -> list[str]:
        return [f"{name}={value}" for name, value in sorted(self.options.items())]

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}"


def parse(text: str) -> Address | None:
    """The address that a text is: ``KIND:TARGET``, then ``,OPTION=VALUE`` any number of times.

    Returns:
        None where it begins with no kind of address.

    Raises:
        ConfigError: For an option that the kind does not have, or one given twice.

    >>> parse("hf:uoft-cs/cifar100,label=coarse_label,mirror=yes").options
    {'label': 'coarse_label', 'mirror': 'yes'}
    >>> parse("digits")
    """
    kind, colon, rest = text.partition(":")
    if not colon or kind not in OPTIONS:
        return None
    target, *parts = re.split(r",(?=[a-z]+=)", rest)
    if not target:
        raise ConfigError(f"{text}: give {kind}:{PLACES[kind]}")
    options: dict[str, str] = {}
    for part in parts:
        name, _, value = part.partition("=")
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


def title(text: str) -> str:
    """What records call a data set: its name, or of an address its title.

    >>> title("npz:/home/me/digits.npz"), title("mnist")
    ('npz:digits.npz', 'mnist')
    """
    address = parse(text)
    return text if address is None else address.title
