"""What a model is asked to be."""

from typing import NamedTuple


class ModelSpec(NamedTuple):
    """The sizes of a model and of what it takes and gives.

    Attributes:
        width: Its own measure of width, which its class says.
        classes: Number of logits.
        channels: Channels of the images, of a model of images.
        norm: ``"batch"`` or ``"group"``, where the model has such a normalisation.
        size: Height and width of the images; only `Mlp` depends on them.
        vocabulary: Number of tokens, of a model of texts.
        length: The most tokens of a text.
    """

    width: int
    classes: int
    channels: int = 3
    norm: str = "batch"
    size: tuple[int, int] = (32, 32)
    vocabulary: int = 4096
    length: int = 128
