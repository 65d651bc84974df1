"""Data and options of the laboratory: read right, or refused by name, in bounded time and memory.

Every case is refused with a `ConfigError` that names what is wrong, or is read. None may end in
another error, which the command line would show as a traceback. `SMALL` bounds what a case may
allocate: a file that declares 2^46 bytes must not be given them.
"""

import io
import json
import os
import random
import resource
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from command_line import Call
from siftback.errors import ConfigError
from siftback.lab.data.load import load

SMALL = 1 << 30  # bytes of memory that reading a case may add
N = 40

Write = Callable[[Path], object]
"""Writes the data of a case into a folder; what it returns is added to the address."""


@pytest.fixture(autouse=True)
def bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A data folder and caches of this test, and little memory to read in."""
    monkeypatch.setenv("SIFTBACK_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SIFTBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + SMALL
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)


# Files of arrays


def npy(shape: str, kind: str = "'|u1'", body: bytes = bytes(64 * N), version: int = 1) -> bytes:
    """An array's file whose header says what it is told."""
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H", len(text)) + text + body


def array_file(path: Path, **changed: Any) -> None:
    """Writes a file of arrays; those of None are left out, bytes are written as they are."""
    arrays = {
        "x_train": drawn(N, 8, 8),
        "y_train": np.arange(N) % 4,
        "x_test": drawn(8, 8, 8),
        "y_test": np.arange(8) % 4,
    } | changed
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, array in arrays.items():
            if isinstance(array, np.ndarray):
                stream = io.BytesIO()
                np.lib.format.write_array(stream, array, allow_pickle=True)
                file.writestr(f"{name}.npy", stream.getvalue())
            elif array is not None:
                file.writestr(f"{name}.npy", array)


def with_label(label: int, kind: str = "int64") -> np.ndarray:
    return np.where(np.arange(N) == 3, label, np.arange(N) % 4).astype(kind)


UNREADABLE = "cannot be read as a file of arrays"
ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "2^46 images": ({"x_train": npy(f"({2**46},8,8)")}, UNREADABLE),
    "2^46 numbers": ({"x_train": npy(f"({2**46},)")}, UNREADABLE),
    "2^33 bytes": ({"x_train": npy(f"({2**27},8,8)")}, UNREADABLE),
    "shape over 2^64": ({"x_train": npy(f"({2**62},{2**62},8)")}, UNREADABLE),
    "negative shape": ({"x_train": npy("(-40,8,8)")}, UNREADABLE),
    "two negative lengths": ({"x_train": npy("(-40,-8,8)")}, UNREADABLE),
    "shape of floats": ({"x_train": npy("(40.0,8,8)")}, "shape is not valid"),
    "shape of a power": ({"x_train": npy("(9**9**9,8,8)")}, "malformed node"),
    "strings of 2 GB": ({"x_train": npy("(40,)", "'|S2000000000'")}, UNREADABLE),
    "unknown type": ({"x_train": npy("(40,8,8)", "'zz'")}, "not a valid dtype descriptor"),
    "deep header": ({"x_train": npy("(" * 3000)}, UNREADABLE),
    "long header": ({"x_train": npy(" " * 30_000)}, UNREADABLE),
    "version 3": ({"x_train": npy("(40,8,8)", version=3)}, UNREADABLE),
    "too few bytes": ({"x_train": npy("(40,8,8)", body=bytes(99))}, "expected 2560 bytes got 99"),
    "too many bytes": ({"x_train": npy("(4,8,8)")}, "4 images and 40 labels"),
    "an empty array file": ({"x_train": b""}, "give bytes"),
    "text for an array": ({"x_train": b"no array"}, "give bytes"),
    "objects": ({"x_train": np.array([None] * N)}, "Object arrays cannot be loaded"),
    "labels of objects": ({"y_train": np.array([{}] * N)}, "Object arrays cannot be loaded"),
    "records": ({"x_train": np.zeros(N, [("a", "u1"), ("b", "f4")])}, "give bytes"),
    "a number": ({"x_train": np.array(3, np.uint8)}, r"of shape \[\]"),
    "a vector": ({"x_train": np.zeros(N, np.uint8)}, r"of shape \[40\]"),
    "five dimensions": ({"x_train": drawn(N, 1, 1, 8, 8)}, r"of shape \[40, 1, 1, 8, 8\]"),
    "no pixels": ({"x_train": drawn(N, 0, 8)}, r"of shape \[40, 0, 8\]"),
    "no images": ({"x_train": drawn(0, 8, 8)}, r"of shape \[0, 8, 8\]"),
    "no images to test on": ({"x_test": drawn(0, 8, 8)}, r"x_test .* of shape \[0, 8, 8\]"),
    "images of NaN": ({"x_train": np.full((N, 8, 8), np.nan)}, "of type float64: give bytes"),
    "images of truths": ({"x_train": np.zeros((N, 8, 8), bool)}, "of type bool: give bytes"),
    "images of times": ({"x_train": np.zeros((N, 8, 8), "M8[s]")}, "give bytes"),
    "label 1e9": ({"y_train": with_label(10**9)}, "classes up to 1000000000 for 40 images"),
    "label 2^40": ({"y_train": with_label(2**40)}, "classes up to 1099511627776 for 40 images"),
    "label 2^63 - 1": ({"y_train": with_label(2**63 - 1)}, "for 40 images: number the classes"),
    "label 2^64 - 1": ({"y_train": with_label(2**64 - 1, "uint64")}, "of type uint64 .* or below"),
    "label N": ({"y_train": with_label(N)}, "classes up to 40 for 40 images"),
    "label 1e9 to test on": (
        {"y_test": np.full(8, 10**9)},
        "from 1000000000 to 1000000000",
    ),
    "class without training": ({"y_test": np.arange(8)}, "go from 0 to 7, and there are 4 classes"),
    "label -1": ({"y_train": with_label(-1)}, "or below 0"),
    "label -2^63": ({"y_train": with_label(-(2**63))}, "or below 0"),
    "labels of floats": ({"y_train": np.arange(N) / 10}, "of type float64"),
    "labels of NaN": ({"y_train": np.full(N, np.nan)}, "of type float64"),
    "labels of truths": ({"y_train": np.arange(N) > 3}, "of type bool"),
    "labels of words": ({"y_train": np.array(["a", "b"] * 20)}, "of type <U1"),
    "labels of times": ({"y_train": np.zeros(N, "m8[s]")}, "of type timedelta64"),
    "labels one-hot": ({"y_train": np.eye(4, dtype=int)[np.arange(N) % 4]}, r"shape \[40, 4\]"),
    "labels of 2^46": ({"y_train": npy(f"({2**46},)", "'<i8'")}, UNREADABLE),
    "one class": ({"y_train": np.zeros(N, int), "y_test": np.zeros(8, int)}, "has 1 class"),
    "a label too few": ({"y_train": np.arange(N - 1) % 4}, "40 images and 39 labels to train"),
    "no labels": ({"y_train": np.zeros(0, int)}, "40 images and 0 labels to train on"),
    "no x_train": ({"x_train": None}, "and no x_train"),
    "no y_train": ({"y_train": None}, "and no y_train"),
    "no x_test": ({"x_test": None}, "and no x_test"),
    "no y_test": ({"y_test": None}, "and no y_test"),
}


@pytest.mark.parametrize(("changed", "message"), ARRAYS.values(), ids=ARRAYS)
def test_files_of_other_arrays_are_refused(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    array_file(tmp_path / "a.npz", **changed)
    with pytest.raises(ConfigError, match=message):
        load(f"npz:{tmp_path / 'a.npz'}")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def twice(path: Path) -> None:
    array_file(path)
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(N)[::-1] % 4)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as file:
        file.writestr("y_train.npy", stream.getvalue())


def cut(share: float) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        array_file(path)
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])

    return write


FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda path: path.write_bytes(b""), "File is not a zip file"),
    "text": (lambda path: path.write_text("arrays"), "File is not a zip file"),
    "half": (cut(0.5), "File is not a zip file"),
    "all but the end": (cut(0.99), "File is not a zip file"),
    "no arrays": (lambda path: zipfile.ZipFile(path, "w").close(), "holds nothing and no x_train"),
    "an array twice": (twice, "it holds an array twice"),
    "a folder": (lambda path: path.mkdir(), "there is no file"),
    "a pipe": (pipe, "there is no file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "there is no file"),
    "a broken link": (lambda path: path.symlink_to("nowhere"), "there is no file"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "there is no file"),
}  # fmt: skip


@pytest.mark.parametrize(("write", "message"), FILES.values(), ids=FILES)
def test_files_that_hold_no_arrays_are_refused(
    write: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    write(tmp_path / "a.npz")
    with pytest.raises(ConfigError, match=message):
        load(f"npz:{tmp_path / 'a.npz'}")


@pytest.mark.parametrize("seed", range(12))
def test_a_file_of_arrays_damaged_anywhere_is_refused_or_read_the_same(
    seed: int, tmp_path: Path
) -> None:
    path, draw = tmp_path / "a.npz", random.Random(seed)
    array_file(path)
    whole = load(f"npz:{path}")
    damaged = bytearray(path.read_bytes())
    for _ in range(3):
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    path.write_bytes(damaged)
    try:
        data = load(f"npz:{path}")
    except ConfigError:
        return
    assert torch.equal(data.train_inputs, whole.train_inputs)  # the zip's dates, and the like
    assert torch.equal(data.train_labels, whole.train_labels)


def test_other_arrays_of_a_file_are_not_read(tmp_path: Path) -> None:
    array_file(tmp_path / "a.npz", notes=np.array([{}]), more=npy(f"({2**46},)"))
    assert load(f"npz:{tmp_path / 'a.npz'}").classes == 4


def test_a_channel_of_one_value_gives_numbers(tmp_path: Path) -> None:
    images = drawn(N, 8, 8, 3)
    images[..., 1] = 7
    array_file(tmp_path / "a.npz", x_train=images, x_test=images[:8])
    data = load(f"npz:{tmp_path / 'a.npz'}")
    scaled = images.astype(np.float64) / 255
    mean, std = data.moments
    assert std[1] == 1
    assert np.allclose(std[[0, 2]], scaled.std((0, 1, 2))[[0, 2]])
    assert np.allclose(mean, scaled.mean((0, 1, 2)))


# Folders of images


def images_in(root: Path, classes: str = "ab", count: int = 6) -> None:
    for name in classes:
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.fromarray(drawn(8, 8, 3)).save(root / name / f"{number}.png")


def png(width: int, height: int, bits: int = 8) -> bytes:
    """A picture in colour whose header says its size, and that has no pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def saved_as(name: str, pixels: np.ndarray) -> Write:
    return lambda root: Image.fromarray(pixels).save(root / "a" / name)


def put(name: str, content: bytes) -> Write:
    return lambda root: (root / "a" / name).write_bytes(content)


def damaged_avif(root: Path) -> None:
    path = root / "a" / "z.avif"
    Image.fromarray(drawn(8, 8, 3)).save(path)
    content = path.read_bytes()
    assert content.count(b"iloc") == 1  # says where its pixels are
    path.write_bytes(content.replace(b"iloc", b"kloc"))


def emptied(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


NINES = "9" * 5000
FOLDERS: dict[str, tuple[Write, str, str]] = {
    "no class": (emptied, "", "holds 0 folders of images"),
    "one class": (lambda root: shutil.rmtree(root / "b"), "", "holds 1 folders of images"),
    "an empty class": (lambda root: (root / "c").mkdir(), "", "c holds no images"),
    "an empty file": (put("z.png", b""), "", r"z\.png cannot be read as an image"),
    "a picture of nothing": (put("z.png", png(0, 0)), "", r"z\.png cannot be read as an image"),
    "a picture without pixels": (put("z.png", png(8, 8)), "", r"z\.png cannot be read as an im"),
    "a bomb": (put("z.png", png(60_000, 60_000)), ",size=8", r"z\.png cannot .* bomb"),
    "2^31 pixels wide": (put("z.png", png(2**31 - 1, 9)), ",size=8", r"z\.png cannot .* bomb"),
    "a damaged GIF": (put("z.gif", b"GIF89a" + bytes(5)), "", r"z\.gif cannot be read"),
    "a damaged BMP": (put("z.bmp", b"BM" + b"\xff" * 60), "", r"z\.bmp cannot be read"),
    "a damaged TIFF": (put("z.tif", b"II*\0\x08\0\0\0\xff\xff"), "", r"z\.tif cannot be read"),
    "a false PPM": (put("z.ppm", b"P6 99999999999 9 255 "), "", r"z\.ppm cannot be read"),
    "16 bits": (saved_as("z.png", drawn(8, 8).astype(np.uint16) * 257), "", "more than 8 bits"),
    "32 bits": (saved_as("z.tif", drawn(8, 8).astype(np.int32)), "", "more than 8 bits"),
    "floats": (saved_as("z.tif", drawn(8, 8).astype(np.float32)), "", "more than 8 bits"),
    "colours of 16 bits": (put("z.png", png(8, 8, bits=16)), "", "RGB has more than 8 bits"),
    "a damaged AVIF": (damaged_avif, "", r"z\.avif cannot be read"),
    "a folder as an image": (lambda root: (root / "a/z.png").mkdir(), "", "it is not a file"),
    "an image deeper": (
        lambda root: shutil.copytree(root / "b", root / "a/more/still"),
        "",
        r"a/more/still/\d\.png lies in a folder within",
    ),
    "a pipe as an image": (lambda root: os.mkfifo(root / "a/z.png"), "", "it is not a file"),
    "size of nothing": (lambda root: None, ",size=", "size= has no value"),
    "size 0": (lambda root: None, ",size=0", "give pixels, as size=32"),
    "size of NaN": (lambda root: None, ",size=nan", "give pixels, as size=32"),
    "size of 99999": (lambda root: None, ",size=99999", "needs 335 GiB"),
    "size of 10^400": (lambda root: None, f",size={10**400}", "give pixels, as size=32"),
    "size of 5000 digits": (lambda root: None, f",size={NINES}", "give pixels, as size=32"),
    "crop of nothing": (lambda root: None, ",crop=", "crop= has no value"),
    "crop of 8": (lambda root: None, ",crop=8", "give fewer than 8 pixels"),
    "crop of ²": (lambda root: None, ",crop=²", "give an integer from 0"),
    "crop of 1.5": (lambda root: None, ",crop=1.5", "give an integer from 0"),
    "crop of 10^400": (lambda root: None, f",crop={10**400}", "give an integer from 0"),
    "crop of 5000 digits": (lambda root: None, f",crop={NINES}", "give an integer from 0"),
    "mirror of nothing": (lambda root: None, ",mirror=", "mirror= has no value"),
    "mirror of YES": (lambda root: None, ",mirror=YES", "give yes or no"),
    "train of nothing": (lambda root: None, ",train=", "train= has no value"),
    "no such train": (lambda root: None, ",train=é", "has no such folder"),
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # of a damaged TIFF
@pytest.mark.parametrize(("change", "options", "message"), FOLDERS.values(), ids=FOLDERS)
def test_folders_of_other_images_are_refused(
    change: Write, options: str, message: str, tmp_path: Path
) -> None:
    images_in(tmp_path / "pets")
    change(tmp_path / "pets")
    with pytest.raises(ConfigError, match=message):
        load(f"imagefolder:{tmp_path / 'pets'}{options}")


@pytest.mark.parametrize("name", ["é", "[red]", "a b", "\u202e", os.fsdecode(b"\xff")])
def test_names_of_files_and_classes_may_be_any(name: str, tmp_path: Path) -> None:
    images_in(tmp_path / "pets")
    (tmp_path / "pets/b").rename(tmp_path / "pets" / name)
    (tmp_path / "pets/a/0.png").rename(tmp_path / f"pets/a/{name}.png")
    assert {*load(f"imagefolder:{tmp_path / 'pets'}").names} == {"a", name}


# Text files

LINE = b"the quick brown fox jumps over the lazy dog\n"
TEXTS: dict[str, tuple[bytes, str, str]] = {
    "nothing": (b"", "", "has 0 tokens to train on"),
    "a word": (b"abc", "", "has 2 tokens to train on"),
    "nothing, by pairs": (b"", ",tokens=bpe", "has 0 tokens to train on"),
    "UTF-16": (LINE.decode().encode("utf-16") * 99, "", "cannot be read as text in UTF-8"),
    "Latin-1": ("é".encode("latin-1") * 5000, "", "cannot be read as text in UTF-8"),
    "a cut character": (LINE * 99 + b"\xe2\x82", "", "cannot be read as text in UTF-8"),
    "surrogates": (b"\xed\xa0\x80" * 5000, "", "cannot be read as text in UTF-8"),
    "tokens of nothing": (LINE * 99, ",tokens=", "tokens= has no value"),
    "tokens of words": (LINE * 99, ",tokens=words", "give characters or bpe"),
    "vocabulary of characters": (LINE * 99, ",vocabulary=300", "is that of tokens=bpe"),
    "vocabulary of 0": (LINE * 99, ",tokens=bpe,vocabulary=0", "give an integer from 257"),
    "vocabulary of NaN": (LINE * 99, ",tokens=bpe,vocabulary=nan", "give an integer from 257"),
    "vocabulary of ²": (LINE * 99, ",tokens=bpe,vocabulary=²", "give an integer from 257"),
    "vocabulary of 10^400": (LINE * 99, f",tokens=bpe,vocabulary={10**400}", "give an integer"),
    "vocabulary of 5000 digits": (LINE * 99, f",tokens=bpe,vocabulary={NINES}", "give an integer"),
}


@pytest.mark.parametrize(("content", "options", "message"), TEXTS.values(), ids=TEXTS)
def test_files_of_other_text_are_refused(
    content: bytes, options: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load(f"text:{tmp_path / 'a.txt'}{options}")


@pytest.mark.parametrize("content", [bytes(5000), b"\n" * 5000, b"\xef\xbb\xbf" + LINE * 99])
def test_any_text_in_utf_8_is_read_whole(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    data = load(f"text:{tmp_path / 'a.txt'}", max_tokens=8)
    text = content.decode("utf-8-sig")  # whose mark is no part of it
    assert data.classes == 1 + len({*text})
    train = int(0.9 * len(text))
    assert data.train_labels.numel() == (train - 1) // 8 * 8


# Tables of the sets by name, which are Parquet files


def encoded(pixels: np.ndarray) -> dict[str, Any]:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


IMAGES = [encoded(drawn(8, 8))] * 10


def pictures(**changed: Any) -> pa.Table:
    columns = {"image": IMAGES, "label": list(range(10))} | changed
    return pa.table({name: column for name, column in columns.items() if column is not None})


def reviews(**changed: Any) -> pa.Table:
    columns = {"sentence": ["good film"] * 10, "label": [0, 1] * 5} | changed
    return pa.table({name: column for name, column in columns.items() if column is not None})


def with_metadata(text: str | bytes) -> pa.Table:
    return pictures().replace_schema_metadata({"huggingface": text})


NAMES_5 = json.dumps({"info": {"features": {"label": {"names": 5}}}})
ONE_NAME = json.dumps({"info": {"features": {"label": {"names": ["only"]}}}})
TABLES: dict[str, tuple[str, Any, str]] = {
    "junk": ("mnist", b"junk", r"train-0\.parquet is damaged"),
    "nothing": ("mnist", b"", r"train-0\.parquet is damaged"),
    "magic alone": ("mnist", b"PAR1" + bytes(50) + b"PAR1", r"train-0\.parquet is damaged"),
    "junk for texts": ("sst2", b"junk", r"train-0\.parquet is damaged"),
    "no images": ("mnist", pictures(image=None), "has the columns label: expected image"),
    "no labels": ("mnist", pictures(label=None), "has the columns image: expected label"),
    "no rows": ("mnist", pictures().slice(0, 0), "has no rows"),
    "label 1e9": ("mnist", pictures(label=[10**9] * 10), "from 1000000000 to 1000000000"),
    "label 10": ("mnist", pictures(label=[10] * 10), "from 10 to 10, and there are 10 classes"),
    "label -1": ("mnist", pictures(label=[-1] * 10), "from -1 to -1, and there are 10 classes"),
    "labels of floats": ("mnist", pictures(label=[0.5] * 10), "has to hold an integer in each"),
    "labels of NaN": ("mnist", pictures(label=[float("nan")] * 10), "has to hold an integer"),
    "labels of nothing": ("mnist", pictures(label=[None] * 10), "has to hold an integer"),
    "a label missing": ("mnist", pictures(label=[1] * 9 + [None]), "has to hold an integer"),
    "labels of words": ("mnist", pictures(label=["a"] * 10), "has to hold an integer"),
    "images of nothing": ("mnist", pictures(image=[None] * 10), "has to hold images"),
    "an image missing": (
        "mnist", pictures(image=[*IMAGES[:9], None]), r"image 9 of .*the row has none",
    ),
    "images of words": ("mnist", pictures(image=["a"] * 10), "has to hold images"),
    "images by path": ("mnist", pictures(image=[{"path": "a"}] * 10), "has to hold images"),
    "images of junk": (
        "mnist", pictures(image=[{"bytes": b"junk", "path": None}] * 10), "cannot be read as an im",
    ),
    "metadata that is no JSON": ("mnist", with_metadata("{"), "is damaged"),
    "metadata of a list": ("mnist", with_metadata("[]"), "is damaged"),
    "metadata that is no text": ("mnist", with_metadata(b"\xff"), "is damaged"),
    "names that are a number": ("mnist", with_metadata(NAMES_5), "is damaged"),
    "one name for ten labels": ("mnist", with_metadata(ONE_NAME), "has 1 class"),
    "texts of nothing": ("sst2", reviews(sentence=[None] * 10), "has to hold a text"),
    "a text missing": ("sst2", reviews(sentence=["a"] * 9 + [None]), "has to hold a text in each"),
    "texts of numbers": ("sst2", reviews(sentence=list(range(10))), "has to hold a text"),
    "texts of bytes": ("sst2", reviews(sentence=[b"a"] * 10), "has to hold a text"),
    "empty texts": ("sst2", reviews(sentence=[""] * 10), "text 0 is empty"),
    "no texts": ("sst2", reviews(sentence=None), "expected sentence or text"),
    "no rows of text": ("sst2", reviews().slice(0, 0), "has no rows"),
    "label 2 of two": ("sst2", reviews(label=[2] * 10), "there are 2 classes"),
    "text labels of floats": ("sst2", reviews(label=[0.5] * 10), "has to hold an integer"),
    "text labels of nothing": ("sst2", reviews(label=[None] * 10), "has to hold an integer"),
}  # fmt: skip


def write_set(root: Path, name: str, table: pa.Table | bytes) -> None:
    (root / name).mkdir(parents=True)
    for split in ("train", "test"):
        path = root / name / f"{split}-0.parquet"
        if isinstance(table, bytes):
            path.write_bytes(table)
        else:
            parquet.write_table(table, path)


@pytest.mark.parametrize(("name", "table", "message"), TABLES.values(), ids=TABLES)
def test_tables_of_something_else_are_refused(
    name: str, table: pa.Table | bytes, message: str, tmp_path: Path
) -> None:
    write_set(tmp_path / "data", name, table)
    with pytest.raises(ConfigError, match=message):
        load(name)


@pytest.mark.parametrize("seed", range(8))
def test_a_table_damaged_anywhere_is_refused_or_read(seed: int, tmp_path: Path) -> None:
    stream, draw = io.BytesIO(), random.Random(seed)
    parquet.write_table(pictures(), stream)
    damaged = bytearray(stream.getvalue())
    for _ in range(4):
        damaged[draw.randrange(len(damaged))] = draw.randrange(256)
    write_set(tmp_path / "data", "mnist", bytes(damaged))
    try:
        data = load("mnist")
    except ConfigError:
        return
    assert len(data.train_inputs) == len(data.train_labels)
    assert 0 <= int(data.train_labels.min()) <= int(data.train_labels.max()) < data.classes


# Sets of the Hugging Face client, on disk and by names that there are none of


def test_an_image_missing_in_a_saved_set_is_named(tmp_path: Path) -> None:
    import datasets  # which takes long

    cells = [Image.fromarray(drawn(8, 8))] * 19 + [None]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    columns = {"image": cells, "label": [0, 1] * 10}
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    made.save_to_disk(tmp_path / "set")
    with pytest.raises(ConfigError, match=r"image 19 of .*the row has none"):
        load(f"hf:{tmp_path / 'set'}")


@pytest.mark.parametrize(
    "name",
    [" ", "a b", "a/b/c/d", "../..", "é/ü", "user/name.git", "-x", "--help", "a\0b", "\udcff"],
)
def test_names_that_the_hub_cannot_have_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "some" / "where"  # from which "../.." is an empty folder
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=r"could not be read from|cannot be read as a data set"):
        load(f"hf:{name}")


@pytest.mark.parametrize("file", ["state.json", "dataset_dict.json"])
@pytest.mark.parametrize("content", ["", "{", "[]", '{"splits": ["train"]}', '{"splits": []}'])
def test_saved_sets_that_are_damaged_are_refused(file: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / file).write_text(content)
    with pytest.raises(ConfigError, match=r"cannot be read as a data set|has no split"):
        load(f"hf:{tmp_path / 'set'}")


# Options of the command line

HUGE = str(10**400)
LINES = {
    "lr of 10^400": (("compare", "--lr", HUGE), "lr"),
    "lr of 5000 digits": (("compare", "--lr", NINES), "lr"),
    "lr of 1/10^400": (("compare", "--lr", f"1/{HUGE}"), "lr=0.0"),
    "lr of ²": (("compare", "--lr", "²"), "lr '²'"),
    "lr of a lone byte": (("compare", "--lr", "\udcff"), "lr '\\udcff'"),
    "epochs of 10^400": (("compare", "--epochs", HUGE), "epochs"),
    "width of 10^400": (("compare", "--width", HUGE), "width"),
    "width of 5000 digits": (("compare", "--width", NINES), "width"),
    "seed of 10^400": (("compare", "--seed", HUGE), "seed"),
    "seed of 5000 digits": (("compare", "--seed", NINES), "--seed"),
    "keep of 10^400": (("compare", "--keep", HUGE), "--keep"),
    "beta of 10^400": (("compare", "--beta", HUGE), "--beta"),
    "share of 10^400": (("compare", "--strategies", f"sb@{HUGE}"), "sb@"),
    "share of 5000 digits": (("compare", "--strategies", f"sb@{NINES}"), "sb@"),
    "strategy of a lone byte": (("compare", "--strategies", "\udcff"), "no strategy '\\udcff'"),
    "stale of 5000 digits": (("compare", "--strategies", f"stale-sb-{NINES}"), "stale-sb-"),
    "rate of 5000 digits": (("compare", "--rate", f"steps:{NINES}e:x0.1"), "steps:"),
    "rate by 10^400": (("compare", "--rate", f"steps:50%:x{HUGE}"), "steps:"),
    "wrn of 5000 digits": (("compare", "--model", f"wrn-{NINES}-1"), "wrn-"),
    "wrn of 10^400": (("compare", "--model", f"wrn-10-{HUGE}"), "wrn-"),
    "dropout of 10^400": (("compare", "--model", f"wrn-10-1-drop{HUGE}"), "wrn-"),
    "warm-up of 10^400": (("compare", "--warmup", f"{HUGE}e"), "Epochs(inf)"),
    "tail of 10^400": (("compare", "--tail", f"{HUGE}%"), "tail"),
    "time of 400 digits": (("compare", "--time-budget", f"{'9' * 400}d"), "time_budget"),
    "stop at 400 digits": (("compare", "--stop-at", f"error={HUGE}%"), "stop_at"),
    "models of 10^400 classes": (("models", "--classes", HUGE), "classes"),
    "models of 10^400 channels": (("models", "--channels", HUGE), "channels"),
    "models of 10^400 wide": (("models", "--width", HUGE), "width"),
    "probe of 10^400 seconds": (("probe", "--seconds", HUGE), "seconds"),
    "probe of NaN epochs": (("probe", "--epochs", "nan"), "epochs"),
    "score of 5000 digits": (("score", "--models", NINES), "--models"),
    "grid of 5000 digits": (("sweep", "--grid", f"width={NINES}"), "width"),
    "grid of a lone byte": (("sweep", "--grid", "\udcff=1"), "no setting '\\udcff'"),
    "recipe of nothing": (("run", ""), "no recipe ''"),
    "recipe of a lone byte": (("run", "\udcff"), "no recipe '\\udcff'"),
    "data of nothing": (("compare", "--data", ""), "data set '' is not known"),
    "data of a colon": (("compare", "--data", ":"), "data set ':' is not known"),
    "data in capitals": (("compare", "--data", "NPZ:x"), "data set 'NPZ:x' is not known"),
    "checkpoints every 1e-320": (("compare", "--checkpoint-every", "1e-320"), "--checkpoint-every"),
    "lr of 1e308": (("compare", "--lr", "1e308"), "lr=1e+308"),
    "decay of 1e308": (("compare", "--weight-decay", "1e308"), "weight_decay=1e+308"),
    "warm-up of 10^400 %": (("compare", "--warmup", f"{HUGE}%"), "warmup"),
    "window of 10^400": (("prune", "--scores", "x", "--window", f"0,{HUGE}"), "--window"),
}


@pytest.mark.parametrize(("line", "said"), LINES.values(), ids=LINES)
def test_options_out_of_all_bounds_are_a_sentence(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = call(*line)
    assert status == 2, err
    assert said in err
    assert "Traceback" not in err
    assert not out
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing was begun"
