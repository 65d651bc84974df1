"""Images of training examples, as a comparison had them."""

from collections.abc import Iterable, Sequence

from siftback.errors import ConfigError
from siftback.lab.analyses.configurations import argument
from siftback.lab.analyses.figure import Picture
from siftback.lab.data.data_set import ImageData
from siftback.lab.data.load import load
from siftback.lab.records.comparison_record import Comparison


def training_set(comparison: Comparison) -> ImageData:
    """The training examples that a comparison's indices count.

    Raises:
        ConfigError: If they cannot be had here.
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


def pictures(
    data: ImageData, indices: Sequence[int], captions: Iterable[str], row: str
) -> list[Picture]:
    """Pictures of some training examples; of a wrong label the caption gives the true one.

    Args:
        data: Whose.
        indices: Their indices.
        captions: What is said of each.
        row: The heading they stand under.
    """
    made = []
    for index, caption in zip(indices, captions, strict=True):
        label = int(data.train_labels[index])
        true = label if data.true_labels is None else int(data.true_labels[index])
        wrong = f", truly {data.names[true]}" if true != label else ""
        image = data.train_inputs[index].permute(1, 2, 0).contiguous().numpy()
        made.append(Picture(image, data.names[label], f"{caption}{wrong}", row))
    return made
