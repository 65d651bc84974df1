"""Finding, decoding, caching and limiting: on small made-up sets, and on the real ones."""

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pyarrow import parquet as pq

from siftback.errors import ConfigError
from siftback.lab.data import images, tables
from siftback.lab.data.augment import Augment
from siftback.lab.data.data_set import ImageData, TextData
from siftback.lab.data.load import (
    NAMES,
    PUBLISHED,
    flip,
    hold_out,
    limit,
    load,
    make_rare,
)

SHARDS = {"train-00000-of-00002": 7, "train-00001-of-00002": 5, "test-00000-of-00001": 4}
# What the user set, before a test's own folder takes its place.
GIVEN = os.environ.get("SIFTBACK_DATA")
# Columns of images and labels, and the images' shape.
COLUMNS = {
    "mnist": ("image", "label", (28, 28)),
    "cifar10": ("img", "label", (32, 32, 3)),
    "cifar100": ("img", "fine_label", (32, 32, 3)),
    "svhn": ("image", "label", (32, 32, 3)),
    "fashion_mnist": ("image", "label", (28, 28)),
    "gtsrb": ("image", "label", (32, 32, 3)),
}


def write_set(
    folder: Path, name: str, seed: int = 0, shards: dict[str, int] = SHARDS
) -> dict[str, torch.Tensor]:
    """Writes a small set in the hub's layout and gives what it should be read as."""
    random, (column, label, shape) = np.random.default_rng(seed), COLUMNS[name]
    parts: dict[str, list[np.ndarray]] = {"train": [], "test": [], "train_y": [], "test_y": []}
    (folder / name).mkdir(parents=True, exist_ok=True)
    for shard, rows in shards.items():
        pixels = random.integers(256, size=(rows, *shape), dtype=np.uint8)
        labels = random.integers(10, size=rows)
        cells = [{"bytes": png(image), "path": None} for image in pixels]
        kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
        table = pa.table({column: pa.array(cells, kind), label: labels})
        if group := PUBLISHED[name].group:
            table = table.append_column(
                group, pa.array(1000 * labels + random.integers(2, size=rows))
            )
        features = {
            column: {"_type": "Image"},
            label: {"_type": "ClassLabel", "names": names_of(name)},
        }
        told = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": told})
        pq.write_table(table, folder / name / f"{shard}.parquet")
        split = "test" if shard.startswith("test") else "train"
        parts[split].append(pixels)
        parts[f"{split}_y"].append(labels)
    whole = {key: torch.from_numpy(np.concatenate(arrays)) for key, arrays in parts.items()}
    for split in ("train", "test"):
        grid = whole[split]
        whole[split] = grid.permute(0, 3, 1, 2) if grid.ndim == 4 else grid[:, None]
    return whole


def names_of(name: str) -> list[str]:
    return [f"kind {number}" for number in range(PUBLISHED[name].classes)]


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder and a cache of this test's own."""
    monkeypatch.setenv("SIFTBACK_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SIFTBACK_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_classes_have_their_names_or_numbers(places):
    write_set(places / "data", "mnist")
    assert load("mnist").names == tuple(names_of("mnist"))
    assert load("mnist").classes == 10
    for file in (places / "data" / "mnist").iterdir():
        pq.write_table(pq.read_table(file).replace_schema_metadata(None), file)
    assert load("mnist").names == tuple("0123456789")


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(images, "decode", refuse)


@pytest.fixture
def real_data(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real sets, where this machine has them; they are decoded into the test's own cache."""
    monkeypatch.delenv("SIFTBACK_DATA")
    if GIVEN:
        monkeypatch.setenv("SIFTBACK_DATA", GIVEN)
    reason = "needs the real sets in SIFTBACK_DATA or ../shared/data"
    monkeypatch.setattr(tables, "load_from_hub", lambda *_: pytest.skip(reason))


def assert_is(data: ImageData, expected: dict[str, torch.Tensor]) -> None:
    assert torch.equal(data.train_inputs, expected["train"])
    assert torch.equal(data.train_labels, expected["train_y"])
    assert torch.equal(data.test_inputs, expected["test"])
    assert torch.equal(data.test_labels, expected["test_y"])


@pytest.mark.parametrize("name", COLUMNS)
def test_files_are_read_pixel_for_pixel(name, places, capsys):
    expected = write_set(places / "data", name)
    assert_is(load(name), expected)
    assert capsys.readouterr().err.splitlines() == [
        f"Decoding {name} (train): 12 images",
        f"Decoding {name} (test): 4 images",
    ]


def test_on_a_terminal_there_is_a_bar(places, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    expected = write_set(places / "data", "mnist")
    assert_is(load("mnist"), expected)
    shown = capsys.readouterr()
    assert "Decoding mnist (train)" in shown.err
    assert "100%" in shown.err
    assert not shown.out


def test_what_was_decoded_is_read_from_the_cache(places, request):
    expected = write_set(places / "data", "mnist")
    load("mnist")
    request.getfixturevalue("no_decoding")
    assert_is(load("mnist"), expected)
    assert [file.name for file in (places / "cache").iterdir()] == ["mnist.pt"]


@pytest.mark.parametrize("name", COLUMNS)
def test_a_changed_source_is_decoded_again(name, places):
    write_set(places / "data", name)
    load(name)
    expected = write_set(places / "data", name, seed=1)
    file = places / "data" / name / "test-00000-of-00001.parquet"
    os.utime(file, ns=(0, 0))  # so that no two writes of one clock tick are confused
    assert_is(load(name), expected)


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def empty(content: bytes) -> bytes:
    return b""


def flip_one_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [truncate, empty, flip_one_bit])
def test_a_damaged_cache_is_rebuilt(damage, places, request):
    expected = write_set(places / "data", "cifar10")
    load("cifar10")
    cache = places / "cache" / "cifar10.pt"
    whole = cache.read_bytes()
    cache.write_bytes(damage(whole))
    assert_is(load("cifar10"), expected)
    request.getfixturevalue("no_decoding")
    assert_is(load("cifar10"), expected)


def test_a_cache_that_cannot_be_written_says_what_to_set(places, monkeypatch):
    write_set(places / "data", "mnist")
    (places / "file").touch()
    monkeypatch.setenv("SIFTBACK_CACHE", str(places / "file"))
    with pytest.raises(ConfigError, match="set SIFTBACK_CACHE"):
        load("mnist")


def test_a_data_folder_without_the_set_is_refused(places):
    write_set(places / "data", "mnist")
    with pytest.raises(ConfigError, match=r"holds no cifar10: expected cifar10/train-\*"):
        load("cifar10")


def test_data_beside_the_working_directory_are_found(places, monkeypatch):
    monkeypatch.delenv("SIFTBACK_DATA")
    expected = write_set(places / "shared" / "data", "mnist")
    (places / "here").mkdir()
    monkeypatch.chdir(places / "here")
    assert_is(load("mnist"), expected)


@pytest.fixture
def nothing_local(monkeypatch: pytest.MonkeyPatch, places: Path) -> None:
    monkeypatch.delenv("SIFTBACK_DATA")
    monkeypatch.setattr(tables, "PROJECT", places)
    monkeypatch.chdir(places)


@pytest.mark.usefixtures("nothing_local")
def test_without_a_network_the_error_says_what_to_put_where(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def unreachable(repository: str) -> None:
        raise ConnectionError(f"Couldn't reach {repository!r}")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ConfigError, match=r"put its files at mnist/train-\*\.parquet"):
        load("mnist")


@pytest.mark.usefixtures("nothing_local")
@pytest.mark.parametrize("name", [name for name in COLUMNS if PUBLISHED[name].repository])
def test_the_hubs_copy_is_read_the_same(name, places, monkeypatch):
    datasets = pytest.importorskip("datasets")
    expected = write_set(places / "elsewhere", name)
    files = {
        split: sorted(map(str, (places / "elsewhere" / name).glob(f"{split}-*")))
        for split in ("train", "test")
    }
    from_files = datasets.load_dataset

    asked = []

    def from_hub(*repository: str) -> object:
        asked.append(repository)
        return from_files("parquet", data_files=files, cache_dir=str(places / "hub"))

    monkeypatch.setattr(datasets, "load_dataset", from_hub)
    data = load(name)
    assert_is(data, expected)
    assert data.names == tuple(names_of(name))
    config = ("cropped_digits",) if name == "svhn" else ()
    assert asked == [(PUBLISHED[name].repository, *config)]


@pytest.mark.usefixtures("nothing_local")
def test_a_set_that_the_hub_lacks_says_which_files_to_put_where():
    with pytest.raises(ConfigError, match=r"gtsrb/train-\*.*image, label, track.*SIFTBACK_DATA"):
        load("gtsrb")


def test_examples_of_a_group_are_held_out_together(places):
    write_set(places / "data", "gtsrb", shards={"train-0": 90, "train-1": 30, "test-0": 4})
    whole = load("gtsrb")
    groups = {image.numpy().tobytes(): int(g) for image, g in groups_of(whole)}
    assert len({*groups.values()}) > 15
    for n in (1, 20, 60):
        data = load("gtsrb", validation=n)
        trained = {int(group) for group in data.groups}
        tested = {groups[image.numpy().tobytes()] for image in data.test_inputs}
        assert trained | tested == {*groups.values()}
        assert not trained & tested
        assert len(data.train_labels) + len(data.test_labels) == 120
        largest = int(whole.group_numbers.bincount().max())
        assert n <= len(data.test_labels) < n + largest
    with pytest.raises(
        ConfigError, match=r"validation=119: whole groups of gtsrb .* all of its 120"
    ):
        load("gtsrb", validation=119)
    assert all(groups[image.numpy().tobytes()] == g for image, g in groups_of(load("gtsrb", 50)))


def groups_of(data: ImageData) -> list[tuple[torch.Tensor, torch.Tensor]]:
    assert data.groups is not None
    return [*zip(data.train_inputs, data.groups, strict=True)]


def test_svhn_has_an_extra_part(places):
    shards = {"train-0": 5, "extra-0": 6, "extra-1": 3, "test-0": 4}
    expected = write_set(places / "data", "svhn", shards=shards)
    assert_is(load("svhn+extra"), expected)
    plain = load("svhn")
    assert torch.equal(plain.train_labels, expected["train_y"][:5])
    (places / "data" / "svhn" / "extra-0.parquet").unlink()
    (places / "data" / "svhn" / "extra-1.parquet").unlink()
    with pytest.raises(ConfigError, match=r"holds no svhn: .*svhn/extra-\*.*cropped_digits"):
        load("svhn+extra")


def test_every_set_has_a_column_a_count_and_a_place():
    assert {*COLUMNS, "svhn+extra", "imdb", "sst2"} == {*PUBLISHED}
    assert {name for name in NAMES if ":" not in name} == {"digits", *PUBLISHED, "tinyshakespeare"}
    assert {name: PUBLISHED[name].classes for name in COLUMNS} == dict.fromkeys(COLUMNS, 10) | {
        "cifar100": 100,
        "gtsrb": 43,
    }
    assert PUBLISHED["svhn"].augmentation == Augment()


def test_unknown_names_list_the_known():
    with pytest.raises(ConfigError, match=r"digits, mnist, cifar10, .*imagefolder:PATH, hf:NAME"):
        load("imagenet")


def test_digits_are_split_evenly_and_always_alike():
    data, again = load("digits"), load("digits")
    assert torch.equal(data.train_inputs, again.train_inputs)
    assert (len(data.train_labels), len(data.test_labels)) == (1437, 360)
    share = data.test_labels.bincount() / (
        data.train_labels.bincount() + data.test_labels.bincount()
    )
    torch.testing.assert_close(share, torch.full((10,), 0.2), rtol=0, atol=0.005)
    assert data.train_inputs.dtype == torch.uint8
    assert data.train_inputs.max() == 255
    assert data.augmentation == Augment()


def test_mean_and_std_are_those_of_the_scaled_images():
    data = load("digits")
    std, mean = torch.std_mean(data.train_inputs / 255, (0, 2, 3), correction=0)
    torch.testing.assert_close(data.moments, (mean, std))


@settings(deadline=None)
@given(n=st.integers(1, 1437), fewer=st.integers(1, 1437))
def test_a_limit_is_balanced_nested_and_the_same_always(n, fewer):
    data = load("digits")
    limited = limit(data, n)
    assert len(limited.train_inputs) == len(limited.train_labels) == n
    counts, most = limited.train_labels.bincount(minlength=10), data.train_labels.bincount()
    # Level: a class that is behind has no more to give.
    assert ((counts >= counts.max() - 1) | (counts == most)).all()
    assert torch.equal(limit(data, n).train_inputs, limited.train_inputs)
    small, large = (rows(limit(data, size)) for size in sorted((n, fewer)))
    assert small <= large <= rows(data)
    assert limited.test_inputs is data.test_inputs


def rows(data: ImageData) -> set[bytes]:
    return {image.numpy().tobytes() for image in data.train_inputs}


@pytest.mark.parametrize("n", [-1, 0, 1438])
def test_limits_out_of_range_are_refused(n):
    with pytest.raises(ConfigError, match="from 1 to 1437"):
        load("digits", train_limit=n)


@pytest.mark.usefixtures("real_data")
def test_no_track_of_signs_is_in_two_splits():
    if not tables.local_folder("gtsrb"):  # which the hub has no copy of
        pytest.skip("needs GTSRB in SIFTBACK_DATA or ../shared/data")
    whole = load("gtsrb")
    data = hold_out(whole, 5000)
    assert whole.train_inputs.shape == (39_209, 3, 32, 32)
    assert whole.test_inputs.shape == (12_630, 3, 32, 32)
    tracks = int(whole.group_numbers.max()) + 1
    assert tracks == 1307
    assert (whole.groups // 1000 == whole.train_labels).all()
    trained = len(data.groups.unique())
    # A track has 30 frames, or 29: what is held out is whole tracks.
    assert len(data.test_labels) == 30 * (tracks - trained)
    assert 5000 <= len(data.test_labels) < 5030
    assert (data.train_labels.bincount() >= 30).all()


@pytest.mark.usefixtures("real_data")
@pytest.mark.parametrize(
    ("name", "shape", "mean", "std"),
    [
        ("mnist", (60_000, 1, 28, 28), [0.1307], [0.3081]),
        ("cifar10", (50_000, 3, 32, 32), [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ],
)
@pytest.mark.sampled(2)
def test_real_sets(name, shape, mean, std):
    data = load(name)
    assert data.train_inputs.shape == shape
    assert data.test_inputs.shape == (10_000, *shape[1:])
    assert data.train_labels.unique().tolist() == list(range(10))
    expected = torch.tensor(mean), torch.tensor(std)
    torch.testing.assert_close(data.moments, expected, rtol=0, atol=1e-4)
    limited = limit(data, 1000)
    assert limited.train_labels.bincount().tolist() == [100] * 10


def test_no_class_is_held_out_whole() -> None:
    labels = torch.arange(5).repeat_interleave(torch.tensor([500, 300, 140, 40, 1]))
    rows = torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8)
    data = ImageData("uneven", rows, labels, rows, labels, tuple("abcde"))
    for n, expected in (
        (5, [2, 1, 1, 1, 0]),
        (50, [13, 13, 12, 12, 0]),
        (200, [57, 57, 56, 30, 0]),
    ):
        held_out = hold_out(data, n)
        assert held_out.test_labels.bincount(minlength=5).tolist() == expected
        assert held_out.train_labels.bincount().tolist() == [
            of_class - taken
            for of_class, taken in zip([500, 300, 140, 40, 1], expected, strict=True)
        ]


def test_flipped_labels_are_wrong_and_the_others_right() -> None:
    clean, few, many = load("digits"), flip(load("digits"), 0.1), flip(load("digits"), 0.4)
    wrong = [noisy.train_labels != clean.train_labels for noisy in (few, many)]
    assert [int(each.sum()) for each in wrong] == [144, 575]
    assert not (wrong[0] & ~wrong[1]).any()
    assert few.train_labels[wrong[0]].equal(many.train_labels[wrong[0]])
    assert many.true_labels.equal(clean.train_labels)
    assert many.flipped.equal(wrong[1])
    assert not clean.flipped.any()
    rows = torch.tensor([7, 1, 20, 300])
    assert many.subset(rows).flipped.equal(wrong[1][rows])
    assert hold_out(many, 100).flipped.sum() <= 575
    assert load("digits", flipped=0.4).flipped.equal(wrong[1])
    assert many.test_labels.equal(clean.test_labels)
    assert int(many.train_labels.min()) == 0
    assert int(many.train_labels.max()) == 9
    # Every other class alike: 575 / 90 of each pair in the mean.
    pairs = torch.bincount(10 * many.true_labels[wrong[1]] + many.train_labels[wrong[1]])
    assert pairs[pairs > 0].max() < 20
    with pytest.raises(ConfigError, match=r"flip=1.5: give a share"):
        flip(clean, 1.5)


@pytest.mark.parametrize("times", [1, 2, 30, 1000])
def test_rare_classes_keep_one_in_so_many_and_the_others_all(times: int) -> None:
    whole, data = load("digits"), load("digits", rare=times)
    counts = whole.train_labels.bincount()
    expected = [max(1, round(int(count) / times)) for count in counts[:3]] + counts[3:].tolist()
    assert data.train_labels.bincount().tolist() == expected
    assert torch.equal(data.test_inputs, whole.test_inputs)
    again = load("digits", rare=times)
    assert torch.equal(data.train_inputs, again.train_inputs)


def test_windows_of_a_text_have_no_rare_classes() -> None:
    inputs = torch.ones(4, 3, dtype=torch.int64)
    words = TextData(
        "words", *[inputs] * 4, (), kind="language", tokenizer="", vocabulary=9
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"rare=30 of words, .* no class"):
        make_rare(words, 30)
