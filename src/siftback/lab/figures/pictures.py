"""Images of training examples, as a comparison had them."""

from collections.abc import Callable, Iterable, Sequence

from siftback.errors import ConfigError
from siftback.lab.data.data_set import ImageData
from siftback.lab.data.load import load
from siftback.lab.figures.configurations import argument
from siftback.lab.figures.figure import Gallery, Missing, Picture
from siftback.lab.records.comparison_record import Comparison

Described = tuple[list[Picture], str]


def build_gallery(
    name: str,
    title: str,
    source: str,
    why: str,
    entries: Iterable[tuple[str, Comparison, Callable[[ImageData], Described]]],
) -> Gallery | Missing:
    """Makes a gallery of several comparisons.

    Args:
        name: Of the analysis.
        title: Its heading.
        source: The paper and its figure.
        why: The reason where there are no entries.
        entries: Of each comparison its title, itself, and what makes pictures and a sentence from
            its training examples. Those whose images cannot be read are left out.
    """
    pictures: list[Picture] = []
    sentences = []
    for heading, comparison, describe in entries:
        try:
            shown, sentence = describe(load_training_set(comparison))
        except ConfigError as error:
            why = f"The images of {heading} cannot be had ({error})"
            continue
        pictures += shown
        sentences.append(sentence)
    if not pictures:
        return Missing(name, title, why)
    return Gallery(name, title, sentences, source, pictures)


def load_training_set(comparison: Comparison) -> ImageData:
    """Loads the training examples that a comparison's indices count.

    Raises:
        ConfigError: If they cannot be read here.
    """
    if argument(comparison, "subset"):
        raise ConfigError(
            f"{comparison.folder.name} trained on a subset whose file is not part of its records"
        )
    data = load(
        str(argument(comparison, "data")),
        argument(comparison, "train_limit"),
        argument(comparison, "validation"),
        float(argument(comparison, "flip", 0.0)),
    )
    if not isinstance(data, ImageData):
        raise ConfigError(f"{data.name} holds texts, which have no pictures")
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
        true = label if data.true_labels is None else int(data.true_labels[index])
        wrong = f", truly {data.names[true]}" if true != label else ""
        image = data.train_inputs[index].permute(1, 2, 0).contiguous().numpy()
        pictures.append(Picture(image, data.names[label], f"{caption}{wrong}", row))
    return pictures
