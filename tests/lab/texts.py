"""Small texts that a model can learn from, by formula."""

from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

WORDS = ("good", "fine", "great", "lovely"), ("bad", "poor", "awful", "dull")


def reviews(count: int) -> tuple[list[str], list[int]]:
    """Texts of one to twelve words each, and whether they are of the second kind."""
    texts, labels = [], []
    for number in range(count):
        label = number % 2
        words = [WORDS[label][(number * 7 + place) % 4] for place in range(1 + number * 5 % 12)]
        texts.append(" the ".join(words))
        labels.append(1 - label)
    return texts, labels


def write_sst2(folder: Path, train: int = 200, test: int = 40) -> Path:
    """Writes such texts where ``--data sst2`` is looked for under ``folder``."""
    (folder / "sst2").mkdir(parents=True)
    for split, count in (("train", train), ("test", test)):
        texts, labels = reviews(count)
        table = pa.table({"sentence": texts, "label": labels})
        parquet.write_table(table, folder / "sst2" / f"{split}-00000-of-00001.parquet")
    return folder


def write_verses(path: Path, lines: int = 120) -> Path:
    """Writes a plain text."""
    words = ("a rose", "is a rose", "and no other", "flower says so")
    path.write_text("\n".join(f"{words[n % 4]} {words[n * 3 % 4]}," for n in range(lines)))
    return path
