"""Data of a user's own: folders of images, files of arrays, and sets of the Hugging Face hub."""

import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from siftback.errors import ConfigError
from siftback.lab.data.augment import Augment
from siftback.lab.data.load import load
from siftback.lab.data.source import parse_address
from siftback.lab.settings import Settings


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder and caches of this test's own."""
    monkeypatch.setenv("SIFTBACK_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SIFTBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    return tmp_path


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


def channels_first(images: np.ndarray) -> torch.Tensor:
    tensor = torch.from_numpy(images)
    return tensor[:, None] if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)


# Addresses


def test_an_address_may_have_commas_in_its_path():
    found = parse_address("imagefolder:/a,b/c=d,x,size=8x6,crop=2,mirror=yes")
    assert found.target == "/a,b/c=d,x"
    assert found.size == (8, 6)
    assert found.augmentation == Augment(padding=2, flip=True)
    assert parse_address("npz:x.npz").augmentation == Augment()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf:x,lable=y", r"hf has no option 'lable': did you mean label\?"),
        ("npz:x,size=3", "npz has no option 'size'"),
        ("imagefolder:x,train=a,test=a", "test= is what is trained on"),
        ("imagefolder:x,test=train", "test= is what is trained on"),
        ("table:x/a.csv,test=a.csv", "test= is what is trained on"),
        ("hf:x,label=a,label=b", "label is given twice"),
        ("imagefolder:", "give imagefolder:PATH"),
        ("imagefolder:x,size=big", "give pixels, as size=32"),
        ("imagefolder:x,crop=-1", "crop=-1: give an integer from 0"),
        ("imagefolder:x,mirror=1", "mirror=1: give yes or no"),
    ],
)
def test_bad_addresses_are_refused(text, message, places, monkeypatch):
    write_folders(places / "x", {"a": draw(0, 2, 4, 4), "b": draw(1, 2, 4, 4)})
    monkeypatch.chdir(places)
    with pytest.raises(ConfigError, match=message):
        load(text)


def test_records_tell_the_set_and_not_where_it_lay(places):
    save_arrays(places / "birds.npz")
    asked = f"npz:{places / 'birds.npz'},mirror=yes"
    assert load(asked).name == "npz:birds.npz,mirror=yes"
    assert Settings(data=asked, epochs=1).recorded()["data"] == "npz:birds.npz,mirror=yes"
    assert Settings(data="hf:some/birds", epochs=1).recorded()["data"] == "hf:some/birds"


# Arrays


def save_arrays(path: Path, **changed: np.ndarray | None) -> dict[str, np.ndarray]:
    parts = {
        "x_train": draw(0, 20, 6, 5, 3),
        "y_train": np.arange(20) % 4,
        "x_test": draw(1, 8, 6, 5, 3),
        "y_test": np.arange(8) % 4,
    } | changed
    held = {name: array for name, array in parts.items() if array is not None}
    np.savez(path, **held)
    return held


@pytest.mark.parametrize(
    ("of", "channels"),
    [
        (lambda images: images, 3),
        (lambda images: images[..., 0], 1),
        (lambda images: images[..., :1], 1),
        (lambda images: images.transpose(0, 3, 1, 2), 3),
    ],
    ids=["NHWC", "NHW", "NHW1", "NCHW"],
)
def test_arrays_are_read_as_they_are(of, channels, places):
    save_arrays(
        places / "a.npz",
        x_train=of(draw(0, 20, 6, 5, 3)),
        x_test=of(draw(1, 9, 6, 5, 3)),
        y_train=np.arange(20, dtype=np.uint8) % 4,
        y_test=np.arange(9)[:, None] % 3,
    )
    data = load(f"npz:{places / 'a.npz'}")
    assert torch.equal(data.train_inputs, channels_first(draw(0, 20, 6, 5, 3))[:, :channels])
    assert torch.equal(data.test_inputs, channels_first(draw(1, 9, 6, 5, 3))[:, :channels])
    assert data.test_labels.tolist() == [0, 1, 2] * 3
    assert (data.names, data.size) == (("0", "1", "2", "3"), (6, 5))


def test_without_a_test_set_a_fifth_of_each_class_is_held_out(places):
    labels = np.array([0] * 10 + [1] * 25 + [2] * 5)
    parts = save_arrays(
        places / "a.npz", x_train=draw(0, 40, 4, 4), y_train=labels, x_test=None, y_test=None
    )
    data, again = load(f"npz:{places / 'a.npz'}"), load(f"npz:{places / 'a.npz'}")
    assert data.test_labels.bincount().tolist() == [2, 5, 1]
    assert data.train_labels.bincount().tolist() == [8, 20, 4]
    assert torch.equal(data.test_inputs, again.test_inputs)
    whole = {
        (image.tobytes(), label) for image, label in zip(parts["x_train"], labels, strict=True)
    }
    split = {
        (image.numpy().tobytes(), int(label))
        for images, each in (
            (data.train_inputs, data.train_labels),
            (data.test_inputs, data.test_labels),
        )
        for image, label in zip(images, each, strict=True)
    }
    assert split == whole


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y_test": None}, "holds x_train, y_train, x_test and no y_test: save it by numpy.savez"),
        ({"x_train": np.zeros((20, 6, 5, 3))}, r"x_train .* of type float64: give bytes, as \(255"),
        ({"x_train": draw(0, 20, 6, 5, 2)}, r"of shape \[20, 6, 5, 2\]: give images"),
        ({"x_train": draw(0, 20, 30)}, r"of shape \[20, 30\]"),
        ({"x_test": draw(0, 8, 5, 6, 3)}, "images of different shapes"),
        ({"y_train": np.arange(19)}, "20 images and 19 labels to train on"),
        ({"y_train": np.arange(20) - 1}, "or below 0: give the number of a class"),
        ({"y_train": np.arange(20) / 2}, "of type float64"),
        ({"y_train": np.array([{}] * 20)}, "cannot be read as a file of arrays"),
        ({"x_test": None, "y_test": None, "y_train": np.arange(20)}, "a fifth of no class"),
    ],
)
def test_arrays_of_something_else_are_refused(changed, message, places):
    save_arrays(places / "a.npz", **changed)
    with pytest.raises(ConfigError, match=message):
        load(f"npz:{places / 'a.npz'}")


def test_files_that_are_no_arrays_are_refused(places):
    (places / "text.npz").write_text("no arrays")
    np.save(places / "single.npy", np.zeros(3))
    for name, message in (
        ("text.npz", "cannot be read"),
        ("single.npy", "cannot be read"),
        ("none.npz", "there is no file"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(f"npz:{places / name}")


# Folders


def write_folders(root: Path, classes: dict[str, np.ndarray]) -> None:
    for name, images in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(root / name / f"{number}.png")


def write_splits(root: Path, tests: str = "test") -> dict[str, dict[str, np.ndarray]]:
    sets = {
        "train": {"cat": draw(0, 3, 7, 6, 3), "ant": draw(1, 2, 7, 6, 3)},
        tests: {"ant": draw(2, 2, 7, 6, 3), "cat": draw(3, 1, 7, 6, 3)},
    }
    for split, classes in sets.items():
        write_folders(root / split, classes)
    return sets


@pytest.mark.parametrize("tests", ["test", "validation", "valid", "val", "dev", "Val", "holdout"])
def test_folders_are_read_pixel_for_pixel(tests, places, capsys):
    sets = write_splits(places / "pets", tests)
    (places / "pets/train/cat/notes.txt").write_text("not an image")
    (places / "pets/train/.hidden").mkdir()
    write_folders(places / "pets/train/cat", {".checkpoints": draw(4, 1, 7, 6, 3), "notes": []})
    option = ",test=holdout" if tests == "holdout" else ""
    data = load(f"imagefolder:{places / 'pets'}{option}")
    for split, images, labels in (
        ("train", data.train_inputs, data.train_labels),
        (tests, data.test_inputs, data.test_labels),
    ):
        expected = np.concatenate([sets[split]["ant"], sets[split]["cat"]])
        assert torch.equal(images, channels_first(expected))
        assert labels.tolist() == [0] * len(sets[split]["ant"]) + [1] * len(sets[split]["cat"])
    assert (data.names, data.augmentation) == (("ant", "cat"), Augment())
    assert capsys.readouterr().err.splitlines() == [
        "Decoding pets (train): 5 images",
        "Decoding pets (test): 3 images",
    ]


def test_capitals_in_the_names_of_splits_make_no_difference(places):
    write_splits(places / "pets", "TEST")
    (places / "pets/train").rename(places / "pets/Train")
    data = load(f"imagefolder:{places / 'pets'}")
    assert (len(data.train_labels), len(data.test_labels)) == (5, 3)
    assert torch.equal(
        load(f"imagefolder:{places / 'pets'},test=TEST").test_inputs, data.test_inputs
    )


@pytest.mark.parametrize(
    ("name", "tests"),
    [("eval", None), ("testing", None), ("eval", "test"), ("Test", "test"), ("Train", None)],
)
def test_a_folder_of_images_beside_train_is_not_passed_over(name, tests, places):
    write_splits(places / "pets", name)
    if tests:
        write_folders(places / "pets/test", {"ant": draw(4, 5, 7, 6, 3)})
    address = f"imagefolder:{places / 'pets'}"
    for train in ("", ",train=train"):
        with pytest.raises(
            ConfigError, match=rf"pets/{name} .*beside train/.* as ,test={name}, or"
        ):
            load(f"{address}{train}")
    assert len(load(f"{address},test={name}").test_labels) == 3
    if tests:
        assert len(load(f"{address},test=test").test_labels) == 5


def test_what_sets_have_beside_train_may_stay(places):
    write_splits(places / "pets", "val")
    write_splits(places / "pets", "test")
    write_folders(places / "pets", {"unlabelled": draw(4, 2, 9, 9, 3), ".git": draw(4, 2, 9, 9)})
    write_folders(places / "pets/.cache", {"a": draw(4, 2, 9, 9)})
    (places / "pets/annotations/boxes").mkdir(parents=True)
    (places / "pets/annotations/boxes/0.xml").write_text("no image")
    assert len(load(f"imagefolder:{places / 'pets'}").test_labels) == 3


def test_a_class_may_be_of_trains(places):
    images = {"Bus": draw(0, 5, 4, 4), "Train": draw(1, 5, 4, 4)}
    write_folders(places / "vehicles", images)
    assert load(f"imagefolder:{places / 'vehicles'}").names == ("Bus", "Train")
    write_folders(places / "unsorted", {"Train": draw(0, 5, 4, 4), "Test": draw(1, 5, 4, 4)})
    with pytest.raises(ConfigError, match="Train holds 0 folders of images"):
        load(f"imagefolder:{places / 'unsorted'}")


def test_a_folder_without_train_is_split(places):
    write_folders(places / "pets", {"ant": draw(0, 10, 4, 4), "cat": draw(1, 15, 4, 4)})
    data = load(f"imagefolder:{places / 'pets'},crop=1,mirror=yes")
    assert data.train_inputs.shape == (20, 1, 4, 4)
    assert data.test_labels.tolist() == [0, 0, 1, 1, 1]
    assert data.augmentation == Augment(padding=1, flip=True)


def test_an_image_that_moved_to_another_class_is_read_again(places):
    write_splits(places / "pets")
    data = load(f"imagefolder:{places / 'pets'}")
    moved = places / "pets/train/ant/1.png"
    moved.rename(places / "pets/train/cat/1b.png")
    (places / "pets/train/cat/1b.png").rename(places / "pets/train/cat/3.png")
    again = load(f"imagefolder:{places / 'pets'}")
    assert data.train_labels.tolist() == [0, 0, 1, 1, 1]
    assert again.train_labels.tolist() == [0, 1, 1, 1, 1]


def test_images_of_unlike_sizes_are_brought_to_one(places):
    wide, square = draw(0, 2, 8, 20, 3), draw(1, 2, 10, 10, 3)
    write_folders(places / "train", {"a": wide, "b": square})
    write_folders(places / "test", {"a": draw(2, 1, 12, 12)})  # grey among colours
    with pytest.raises(ConfigError, match=r"of 3 sizes, such as 8x20 and 10x10: add ,size=32"):
        load(f"imagefolder:{places},test=test")
    data = load(f"imagefolder:{places},size=6")
    assert data.train_inputs.shape == (4, 3, 6, 6)
    middle = Image.fromarray(wide[1]).resize((6, 6), Image.Resampling.BICUBIC, (6, 0, 14, 8))
    assert torch.equal(data.train_inputs[1], channels_first(np.array(middle)[None])[0])
    assert data.test_inputs[0].unique(dim=0).shape[0] == 1  # three equal channels
    assert load(f"imagefolder:{places},size=5x9").size == (5, 9)


@pytest.mark.parametrize(("orientation", "turns"), [(1, 0), (3, 2), (6, 3), (8, 1)])
@pytest.mark.parametrize("ending", ["png", "webp", "tif"])
def test_images_stand_upright(orientation, turns, ending, places):
    exif, images = Image.Exif(), draw(0, 12, 6, 10, 3)
    exif[0x112] = orientation
    for number, image in enumerate(images):
        path = places / f"pets/{'ab'[number % 2]}/{number}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, exif=exif, lossless=True)
    data = load(f"imagefolder:{places / 'pets'}")
    upright = {np.rot90(image, turns).tobytes() for image in images}
    inputs = torch.cat([data.train_inputs, data.test_inputs]).permute(0, 2, 3, 1)
    assert {image.numpy().tobytes() for image in inputs} == upright
    picture = load(f"picture:{path}").train_labels.view(*inputs.shape[1:])
    torch.testing.assert_close(picture, torch.tensor(np.rot90(image, turns) / 127.5 - 1).float())


def test_the_transparency_of_a_palette_is_left_out(places):
    for number, image in enumerate(draw(0, 10, 6, 10, 3)):
        path = places / f"pets/{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).quantize(16).save(path, transparency=bytes(range(0, 160, 10)))
    data = load(f"imagefolder:{places / 'pets'}")
    opaque = np.array(Image.open(path).convert("RGBA"))[..., :3]
    assert any(np.array_equal(image.permute(1, 2, 0), opaque) for image in data.train_inputs)


def test_damaged_exif_data_are_passed_over(places):
    images = draw(0, 12, 6, 10, 3)
    for number, image in enumerate(images):
        path = places / f"pets/{'ab'[number % 2]}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, exif=b"Exif\0\0damaged")
    assert load(f"imagefolder:{places / 'pets'}").size == (6, 10)


@pytest.mark.parametrize("ending", ["jfif", "jpe", "JP2", "tga"])
def test_no_image_is_left_out_by_its_ending(ending, places):
    write_folders(places / "pets", {"a": draw(0, 5, 8, 8, 3), "b": draw(1, 5, 8, 8, 3)})
    Image.fromarray(draw(2, 8, 8, 3)).save(places / f"pets/a/5.{ending}")
    assert len(load(f"imagefolder:{places / 'pets'}").train_labels) == 9


@pytest.mark.parametrize("name", ["notes.pdf", "features.h5", "labels.csv"])
def test_what_is_no_image_is_passed_over(name, places):
    write_folders(places / "pets", {"a": draw(0, 5, 8, 8, 3), "b": draw(1, 5, 8, 8, 3)})
    (places / "pets/a" / name).write_bytes(b"of something else")
    assert len(load(f"imagefolder:{places / 'pets'}").train_labels) == 8


def test_an_image_that_cannot_be_read_here_is_named(places):
    write_folders(places / "pets", {"a": draw(0, 5, 8, 8, 3), "b": draw(1, 5, 8, 8, 3)})
    (places / "pets/a/5.HEIC").write_bytes(b"\0\0\0\x18ftypheic")
    with pytest.raises(ConfigError, match=r"a/5\.HEIC cannot be read as an image"):
        load(f"imagefolder:{places / 'pets'}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "train/dog").mkdir(), r"train/dog holds no images: give each"),
        (lambda root: write_folders(root / "test", {"dog": draw(0, 1, 7, 6, 3)}), "is no class to"),
        (lambda root: (root / "train/ant/0.png").write_bytes(b"no"), r"ant/0\.png cannot be read"),
        (lambda root: cut(root / "test/ant/0.png"), r"test/ant/0\.png cannot be read"),
        (lambda root: (root / "train").rename(root / "training"), "holds no images"),
        (lambda root: (root / "train/ant").rename(root / "ant"), "holds 1 folders of images"),
        (lambda root: root.rename(root.with_name("away")), "there is no folder"),
    ],
)
def test_folders_of_something_else_are_refused(change, message, places):
    write_splits(places / "pets")
    change(places / "pets")
    with pytest.raises(ConfigError, match=message):
        load(f"imagefolder:{places / 'pets'}")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-60])


def test_folders_that_are_named_must_be_there(places):
    write_splits(places / "pets")
    with pytest.raises(ConfigError, match=r"test=exam, but .* has no such folder"):
        load(f"imagefolder:{places / 'pets'},test=exam")


# The hub's sets

FEATURES = {"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["ant", "bee", "cat"])}


def dataset(seed: int, count: int = 6, **columns: list) -> datasets.Dataset:
    """Images, a class of three for each, and further columns."""
    cells = [Image.fromarray(image) for image in draw(seed, count, 5, 4, 3)]
    given = {"picture": cells, "kind": [n % 3 for n in range(count)]}
    plain = datasets.Dataset.from_dict(
        given | columns,
        features=datasets.Features(
            FEATURES | {name: feature_of(values) for name, values in columns.items()}
        ),
    )
    kept = [name for name in plain.column_names if (given | columns)[name] is not None]
    return plain.select_columns(kept)


def feature_of(values: list) -> object:
    return datasets.Value("string" if isinstance(values[0], str) else "int64")


def saved(path: Path, **splits: datasets.Dataset) -> str:
    datasets.DatasetDict(splits).save_to_disk(path)
    return f"hf:{path}"


def test_a_saved_set_is_read_pixel_for_pixel(places):
    name = saved(places / "insects", train=dataset(0), validation=dataset(1, 3))
    for _ in range(2):  # decoded, and from the cache
        data = load(name)
        assert torch.equal(data.train_inputs, channels_first(draw(0, 6, 5, 4, 3)))
        assert torch.equal(data.test_inputs, channels_first(draw(1, 3, 5, 4, 3)))
        assert data.train_labels.tolist() == [0, 1, 2, 0, 1, 2]
        assert data.test_labels.tolist() == [0, 1, 2]
        assert (data.name, data.names) == ("hf:insects", ("ant", "bee", "cat"))


@pytest.mark.parametrize("in_order", [True, False])
def test_splits_that_number_their_classes_each_for_itself_are_refused(places, in_order):
    tested = ["ant", "bee"] if in_order else ["bee", "cat"]  # whose numbers are 0 and 1
    splits = {
        "train": dataset(0).remove_columns("kind").add_column("kind", ["ant", "bee", "cat"] * 2),
        "test": dataset(1, 2).remove_columns("kind").add_column("kind", tested),
    }
    encoded = datasets.DatasetDict(splits).class_encode_column("kind")
    encoded.save_to_disk(places / "insects")
    if in_order:
        data = load(f"hf:{places / 'insects'}")
        assert [data.names[label] for label in data.test_labels] == tested
    else:
        with pytest.raises(ConfigError, match="has the number of 'ant' for 'bee' to test on"):
            load(f"hf:{places / 'insects'}")


def test_rows_that_were_chosen_are_those_read(places):
    name = saved(places / "insects", train=dataset(0).select([4, 1, 2]), test=dataset(1))
    data = load(name)
    assert torch.equal(data.train_inputs, channels_first(draw(0, 6, 5, 4, 3)[[4, 1, 2]]))
    assert data.train_labels.tolist() == [1, 1, 2]


def test_a_set_without_splits_has_a_fifth_held_out(places):
    dataset(0, 15).save_to_disk(places / "insects")
    assert load(f"hf:{places / 'insects'}").test_labels.tolist() == [0, 1, 2]


def test_sets_in_the_data_folder_have_their_name(places):
    saved(places / "data" / "me" / "insects", train=dataset(0), test=dataset(1))
    data = load("hf:me/insects")
    assert (data.name, len(data.train_labels)) == ("hf:me/insects", 6)


def test_parquet_files_and_folders_of_images_are_read(places):
    (places / "tables").mkdir()
    for split in ("train", "test"):
        dataset(0, 15).to_parquet(places / "tables" / f"{split}-00000.parquet")
    expected = channels_first(draw(0, 15, 5, 4, 3))
    assert torch.equal(load(f"hf:{places / 'tables'}").test_inputs, expected)
    held = load(f"hf:{places / 'tables' / 'train-00000.parquet'},size=8")
    assert held.size == (8, 8)
    sets = write_splits(places / "pets")
    pets = load(f"hf:{places / 'pets'}")
    assert torch.equal(pets.test_inputs[pets.test_labels == 1], channels_first(sets["test"]["cat"]))


def test_columns_and_splits_are_named(places):
    names = ["b", "a", "b", "a", "c", "c"]
    more = {"coarse": names, "second": [3, 3, 7, 7, 3, 7]}
    name = saved(places / "insects", part=dataset(0, **more), exam=dataset(1, **more))
    splits = ",train=part,test=exam"
    data = load(f"{name}{splits},label=coarse")
    assert data.train_labels.tolist() == [1, 0, 1, 0, 2, 2]
    assert load(f"{name}{splits},label=second,image=picture").train_labels.tolist() == [
        0, 0, 1, 1, 0, 1,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"no split 'train': .*train=, one of part, exam"):
        load(name)
    with pytest.raises(ConfigError, match="no column 'coat': give label= one of picture, kind"):
        load(f"{name}{splits},label=coat")
    with pytest.raises(ConfigError, match="hold an integer or a name in each row"):
        load(f"{name}{splits},label=picture")


def test_columns_that_are_not_told_apart_are_asked_for(places):
    two = dataset(0).add_column("other", [0] * 6).cast_column("other", FEATURES["kind"])
    with pytest.raises(ConfigError, match=r"2 columns of labels: .*label=.*kind.*other"):
        load(saved(places / "two", train=two))
    plain = dataset(0).remove_columns("kind")
    with pytest.raises(ConfigError, match="no column known to be of labels: name it by label="):
        load(saved(places / "plain", train=plain))
    named = plain.add_column("label", [5, 6, 5, 6, 5, 6])
    assert load(saved(places / "named", train=named, test=named)).classes == 2
    with pytest.raises(ConfigError, match="no column known to be of images"):
        load(saved(places / "none", train=dataset(0).remove_columns("picture")))


def test_hidden_and_unknown_labels_are_refused(places):
    hidden = dataset(1).remove_columns("kind").add_column("kind", [-1] * 6)
    name = saved(
        places / "hidden", train=dataset(0), test=hidden.cast_column("kind", FEATURES["kind"])
    )
    with pytest.raises(ConfigError, match="labels to test on go from -1 to -1"):
        load(name)
    parts = dataset(0, name=["a"] * 6), dataset(1, name=["b"] * 6)
    name = saved(places / "unknown", train=parts[0], test=parts[1])
    with pytest.raises(ConfigError, match="'b' among the labels to test on"):
        load(f"{name},label=name")


def test_a_place_that_holds_no_set_is_refused(places):
    (places / "empty").mkdir()
    with pytest.raises(ConfigError, match="cannot be read as a data set"):
        load(f"hf:{places / 'empty'}")
    (places / "latin").mkdir()
    (places / "latin" / "train.csv").write_text("text,label\ncafé,0\n", encoding="latin-1")
    with pytest.raises(
        ConfigError,
        match=r"latin cannot be read .*\(DatasetGenerationError: .*: 'utf-8' codec can't decode",
    ):
        load(f"hf:{places / 'latin'}")


def test_without_a_network_the_error_says_what_to_put_where(places):
    away = {"HF_ENDPOINT": "https://hub.invalid", "HF_HOME": str(places / "home")}
    environment = {name: of for name, of in os.environ.items() if name != "HF_HUB_OFFLINE"} | away
    done = subprocess.run(
        [sys.executable, "-m", "siftback", "train", "--data", "hf:some/birds"],
        env=environment, cwd=places, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    told = " ".join(done.stderr.split())
    assert "Retrying" not in told
    assert "some/birds is not on this machine, and could not be read from the Hugging" in told
    assert 'datasets.load_dataset("some/birds").save_to_disk("FOLDER")' in told
    assert not (places / "runs").exists()
