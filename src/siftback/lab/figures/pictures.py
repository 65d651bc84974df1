"""Images of training examples, as a comparison had them."""

from collections.abc import Callable, Iterable, Sequence

from siftback.errors import ConfigError
from siftback.lab.data.data_set import KINDS, ImageData
from siftback.lab.data.load import load
from siftback.lab.experiments.comparison import describe_examples
from siftback.lab.figures.analyses import Finding
from siftback.lab.figures.figure import Picture
from siftback.lab.records.comparison_record import Comparison


def with_images(
    title: str, comparison: Comparison, picture: Callable[[ImageData], Finding]
) -> Finding:
    """Returns a finding in pictures, or why there is none where the images cannot be read.

    Args:
        title: The comparison's.
        comparison: The comparison.
        picture: Makes the finding from its training examples.
    """
    try:
        return picture(load_training_set(comparison))
    except ConfigError as error:
        return Finding(missing=f"The images of {title} could not be read ({error})")


def load_training_set(comparison: Comparison) -> ImageData:
    """Loads the training examples that a comparison's indices count.

    Raises:
        ConfigError: If they cannot be read here, or are others than the comparison trained on.
    """
    settings = comparison.arguments
    limits = settings.get("train_limit"), settings.get("validation"), settings.get("flip", 0.0)
    data = load(str(settings.get("data")), *limits, rare=settings.get("rare", 1))
    if not isinstance(data, ImageData):
        raise ConfigError(f"{data.name} holds {KINDS[data.kind]}, which have no pictures")
    examples = describe_examples(data)
    if settings.get("subset") or settings.get("examples", examples) != examples:
        raise ConfigError(
            f"{comparison.folder.name} trained on a subset, or on other examples than {data.name}"
        )
    return data


def take_pictures(
    data: ImageData, indices: Sequence[int], captions: Iterable[str], row: str
) -> list[Picture]:
    """Takes pictures of some training examples; a caption gives the true one of a wrong label.

    Args:
        data: The examples.
        indices: Their indices.
        captions: A line about each.
        row: The heading they stand under.
    """
    pictures = []
    for index, caption in zip(indices, captions, strict=True):
        label = int(data.train_labels[index])
        true = int(data.former_labels[index])
        wrong = f", truly {data.names[true]}" if true != label else ""
        image = data.train_inputs[index].permute(1, 2, 0).contiguous().numpy()
        pictures.append(Picture(image, data.names[label], f"{caption}{wrong}", row))
    return pictures
