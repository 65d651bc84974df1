"""Rows of tables: encoded as a loop over cells has it, by training rows alone, or refused."""

import csv
import datetime
import math
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from siftback.errors import ConfigError
from siftback.lab.data.load import load
from siftback.lab.data.stream import BatchStream, evaluation_batches
from siftback.lab.experiments.comparison import Plan, compare, prepare_data
from siftback.lab.experiments.example_scores import score_examples
from siftback.lab.experiments.probe_run import probe_settings
from siftback.lab.run.progress import Reporter
from siftback.lab.settings import Settings
from siftback.lab.strategies.table import STRATEGIES
from stopped_runs import check_a_run_goes_on

N = 60


def columns_of(count: int = N) -> dict[str, list[Any]]:
    """Numbers, whole numbers with gaps, texts, truth values and labels; some cells are missing."""
    draw = torch.Generator().manual_seed(count)
    labels = [row % 3 for row in range(count)]
    noise = torch.randn(count, generator=draw).tolist()
    return {
        "weight": [1.7e9 + label + 0.3 * x for label, x in zip(labels, noise, strict=True)],
        "rooms": [None if row % 7 == 0 else (row * row) % 11 for row in range(count)],
        "colour": [None if row % 9 == 4 else "rgb"[row % 3] for row in range(count)],
        "new": [row % 5 == 0 for row in range(count)],
        "label": ["cat", "dog", "eel"] * (count // 3),
    }


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Writes a table as its ending says; of CSV, None is an empty cell."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
        return path
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def encoded(
    train: dict[str, list[Any]], rows: dict[str, list[Any]], names: list[str]
) -> list[list[float]]:
    """Encodes rows one by one: numbers, then columns of what is missing and of categories."""
    numbers, others = [], []
    for name in names:
        cells = train[name]
        known = [cell for cell in cells if cell is not None]
        if isinstance(known[0], str):
            categories = [*sorted({*known}), *([None] if len(known) < len(cells) else [])]
            for category in categories:
                others.append([float(cell == category) for cell in rows[name]])
            continue
        mean = math.fsum(known) / len(known)
        std = math.sqrt(math.fsum((cell - mean) ** 2 for cell in known) / len(known))
        numbers.append([0.0 if cell is None else (cell - mean) / std for cell in rows[name]])
        if len(known) < len(cells):
            others.append([float(cell is None) for cell in rows[name]])
    return [list(row) for row in zip(*numbers, *others, strict=True)]


def rows_at(columns: dict[str, list[Any]], indices: list[int]) -> dict[str, list[Any]]:
    return {name: [cells[index] for index in indices] for name, cells in columns.items()}


def inputs_of(data: Any, split: str) -> torch.Tensor:
    """The inputs as a model gets them."""
    if split == "test":
        return torch.cat([inputs for inputs, _ in evaluation_batches(data, 7)])
    return BatchStream(data, 1, 0).batch_of(torch.arange(len(data.train_labels)))[0]


INPUTS = ["weight", "rooms", "colour", "new"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_inputs_are_those_of_a_loop_over_cells(ending: str, tmp_path: Path) -> None:
    columns, tests = columns_of(), columns_of(30)
    tests["colour"][3:5] = ["violet", None]
    write(tmp_path / f"a.{ending}", columns)
    write(tmp_path / f"b.{ending}", tests)
    data = load(f"table:{tmp_path / 'a'}.{ending},test=b.{ending}")
    assert data.name == f"table:a.{ending},test=b.{ending}"
    assert (data.kind, data.names, data.numbers) == ("rows", ("cat", "dog", "eel"), 3)
    assert data.train_labels.tolist() == [0, 1, 2] * 20
    for split, rows in (("train", columns), ("test", tests)):
        expected = torch.tensor(encoded(columns, rows, INPUTS))
        torch.testing.assert_close(inputs_of(data, split), expected, rtol=1e-5, atol=1e-5)


def test_statistics_are_those_of_the_rows_that_are_trained_on(tmp_path: Path) -> None:
    columns = columns_of()
    write(tmp_path / "a.csv", columns)
    whole = load(f"table:{tmp_path / 'a.csv'}")
    assert whole.test_labels.bincount().tolist() == [4, 4, 4]
    data = load(f"table:{tmp_path / 'a.csv'}", train_limit=30, validation=9)
    assert (len(data.train_labels), len(data.test_labels)) == (21, 9)
    # Rows are known by their weights, all of which differ.
    weights = torch.tensor(columns["weight"], dtype=torch.float64)
    scaled = {}
    for part in (whole.train_inputs, whole.test_inputs):
        for value in part[:, 0].tolist():
            scaled[value] = None
    order = weights.argsort().tolist()
    index_of = dict(zip(sorted(scaled), order, strict=True))
    train = [index_of[value] for value in data.train_inputs[:, 0].tolist()]
    tested = [index_of[value] for value in data.test_inputs[:, 0].tolist()]
    assert not {*train} & {*tested}
    for split, indices in (("train", train), ("test", tested)):
        # Categories and missing cells are those of the whole file: the last inputs agree with it.
        loop = encoded(rows_at(columns, train), rows_at(columns, indices), ["weight", "rooms"])
        actual = inputs_of(data, split)
        expected = torch.tensor(loop)[:, :2]
        torch.testing.assert_close(actual[:, :2], expected, rtol=1e-4, atol=1e-4)
    assert inputs_of(data, "train")[:, :3].double().mean(0).abs().max() < 1e-6


def test_a_number_missing_to_test_on_alone_is_the_mean(tmp_path: Path) -> None:
    columns, tests = columns_of(), columns_of(30)
    tests["weight"][0] = tests["new"][1] = None
    write(tmp_path / "a.parquet", columns)
    write(tmp_path / "b.parquet", tests)
    data = load(f"table:{tmp_path / 'a.parquet'},test=b.parquet")
    inputs = inputs_of(data, "test")
    assert inputs.isfinite().all()
    assert (float(inputs[0, 0]), float(inputs[1, 2])) == (0.0, 0.0)


def test_columns_of_one_value_are_left_out_and_others_on_request(tmp_path: Path) -> None:
    columns = columns_of() | {"year": [2024] * N, "land": ["CH"] * N, "none": [None] * N}
    plain = load(f"table:{write(tmp_path / 'a.csv', columns_of())}")
    data = load(f"table:{write(tmp_path / 'b.csv', columns)}")
    assert torch.equal(data.train_inputs.nan_to_num(9), plain.train_inputs.nan_to_num(9))
    fewer = load(f"table:{tmp_path / 'b.csv'},drop=colour,new")
    assert fewer.train_inputs.shape == (48, 3)  # weight, rooms, and where rooms are missing


def test_an_index_that_pandas_wrote_is_left_out_by_its_empty_name(tmp_path: Path) -> None:
    plain = load(f"table:{write(tmp_path / 'a.csv', columns_of())}")
    path = write(tmp_path / "b.csv", {"": [*range(N)]} | columns_of())
    with pytest.raises(ConfigError, match=r"column '' numbers the rows .* leave it out by drop="):
        load(f"table:{path}")
    data = load(f"table:{path},drop=")
    assert torch.equal(data.train_inputs.nan_to_num(9), plain.train_inputs.nan_to_num(9))
    assert load(f"table:{path},drop=,colour,new").train_inputs.shape == (48, 3)


def test_integers_texts_and_truth_values_are_labels(tmp_path: Path) -> None:
    columns = columns_of()
    for kind, cells in (("int", [5, 7, 9]), ("bool", [True, False]), ("text", ["b", "a"])):
        columns["kind"] = [cells[row % len(cells)] for row in range(N)]
        write(tmp_path / "a.csv", columns)
        write(tmp_path / "b.csv", columns)
        data = load(f"table:{tmp_path / 'a.csv'},label=kind,test=b.csv,drop=label")
        assert data.names == tuple(map(str, sorted(cells))), kind
        assert torch.equal(data.train_labels, data.test_labels)
    categories = pa.array(["x", "y"] * (N // 2)).dictionary_encode()
    parquet.write_table(pa.table(columns | {"mark": categories}), tmp_path / "c.parquet")
    wide = load(f"table:{tmp_path / 'c.parquet'},label=mark")
    assert wide.names == ("x", "y")
    assert load(f"table:{tmp_path / 'c.parquet'}").train_inputs.shape[1] == 12


def test_whole_numbers_are_labels_however_they_are_written(tmp_path: Path) -> None:
    cells = {"a.csv": [0, 1, 2], "b.csv": ["0.0", "1.0", "2.0"], "c.parquet": [0.0, 1.0, 2.0]}
    for name, labels in cells.items():
        write(tmp_path / name, columns_of() | {"label": labels * (N // 3)})
    for train in cells:
        for test in {*cells} - {train}:
            data = load(f"table:{tmp_path / train},test={test}")
            assert data.names == ("0", "1", "2")
            assert data.train_labels.tolist() == data.test_labels.tolist() == [0, 1, 2] * (N // 3)
    large = [2**62, 2**62 + 1, 2**62 + 2] * (N // 3)  # which a double does not tell apart
    write(tmp_path / "a.csv", columns_of() | {"label": large})
    data = load(f"table:{write(tmp_path / 'd.csv', columns_of() | {'label': large})},test=a.csv")
    assert data.test_labels.tolist() == [0, 1, 2] * (N // 3)


@pytest.mark.parametrize("ending", ["PARQUET", "pq", "Pq", "CSV"])
def test_endings_are_read_in_any_case(ending: str, tmp_path: Path) -> None:
    expected = load(f"table:{write(tmp_path / 'a.parquet', columns_of())}")
    path = write(tmp_path / f"b.{'csv' if ending == 'CSV' else 'parquet'}", columns_of())
    data = load(f"table:{path.rename(path.with_suffix('.' + ending))}")
    assert torch.equal(data.train_inputs.nan_to_num(9), expected.train_inputs.nan_to_num(9))


def test_a_column_is_a_number_by_all_of_its_rows(tmp_path: Path) -> None:
    # The reader of CSV tells types from the first block of a file, of a megabyte.
    count = 60_000
    columns = {
        "amount": [float(row % 100) for row in range(count - 1)] + ["12.5"],
        "code": [row % 7 for row in range(count - 1)] + ["A7"],
        "filler": ["a long text that fills a block", "another"] * (count // 2),
        "label": [0, 1] * (count // 2),
    }
    data = load(f"table:{write(tmp_path / 'a.csv', columns)}")
    assert (data.numbers, data.train_inputs.shape[1]) == (1, 1 + 8 + 2)


@pytest.mark.parametrize("name", ["", "index", "Unnamed: 0", "__index_level_0__"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_index_with_gaps_is_refused_by_the_names_that_pandas_gives_it(
    name: str, ending: str, tmp_path: Path
) -> None:
    # In a table that is sorted by class it would tell the label.
    gaps = [3 * row + row % 2 for row in range(N)]
    path = write(tmp_path / f"a.{ending}", {name: gaps[::-1]} | columns_of())
    with pytest.raises(ConfigError, match=rf"column '{name}' numbers the rows from 0 to 178, "):
        load(f"table:{path}")
    plain = load(f"table:{write(tmp_path / f'b.{ending}', columns_of())}")
    for column in ({"code": gaps}, {name: [number / 8 for number in gaps]}):  # which are numbers
        data = load(f"table:{write(tmp_path / f'c.{ending}', column | columns_of())}")
        assert data.numbers == plain.numbers + 1


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "no labels": ({"label": None}, "", "no column 'label': give label= the column of labels"),
    "another label": ({}, ",label=kind", "no column 'kind'.* of weight, rooms, colour, new, label"),
    "no column to drop": ({}, ",drop=kind", "no column 'kind'"),
    "a label missing": ({"label": [None, *(["a", "b"] * 30)][:N]}, "", "'label' .*in each row"),
    "labels of numbers": ({"label": [row / 7 for row in range(N)]}, "", "an integer or a name"),
    "labels of rows": ({"label": [*map(str, range(N))]}, "", "60 labels in 60 rows"),
    "one class": ({"label": ["a"] * N}, "", "has 1 class"),
    "row numbers": ({"rooms": [*range(100, 100 + N)]}, "", "'rooms' numbers the rows from 100"),
    "a name for each row": ({"colour": [f"n{row}" for row in range(N)]}, "", "another text in"),
    "infinity": ({"weight": [1.0, math.inf] * 30}, "", "'weight' holds inf"),
    "a huge number": ({"weight": [1.0, 1e200] * 30}, "", r"'weight' holds 1e\+200"),
    "a time": ({"new": [datetime.datetime(2024, 1, row % 9 + 1) for row in range(N)]}, "",
               "'new' of type timestamp.* neither numbers nor texts"),
    "constants alone": ({"weight": [1] * N}, ",drop=rooms,colour,new", "no column that differs"),
    "labels alone": ({}, ",drop=weight,rooms,colour,new", "no column that differs"),
}  # fmt: skip


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(("changed", "options", "message"), BAD.values(), ids=BAD)
def test_columns_that_cannot_be_learnt_are_refused_by_name(
    changed: dict[str, Any], options: str, message: str, ending: str, tmp_path: Path
) -> None:
    columns = columns_of() | changed
    path = write(tmp_path / f"a.{ending}", {n: c for n, c in columns.items() if c is not None})
    with pytest.raises(ConfigError, match=message):
        load(f"table:{path}{options}")


WRITTEN = "{:.1f}|{:.2f} €|$ {:.2f}|1 234.{:.0f}|{:.1f}%|{:.0f} %|-1.{:.0f}|1'23{:.0f}"


# Of typography: spaces that do not break a line, and a minus sign.
TYPESET = ["1\u00a0234.{:.0f}", "1\u202f23{:.0f}", "{:.2f}\u00a0€", "\u22121.{:.0f}"]


@pytest.mark.parametrize("written", [*WRITTEN.split("|"), "1.234.{:.0f}", *TYPESET])
def test_numbers_that_are_read_as_texts_are_refused(tmp_path: Path, written: str) -> None:
    # As categories they would be trained on, and say nothing of how near they are to each other.
    cells = [written.format(n % 7).replace(".", ",") for n in range(N)]
    write(tmp_path / "a.csv", columns_of() | {"price": [*cells[:-2], "unknown", "unknown"]})
    with pytest.raises(ConfigError, match=r"'price' holds the text .*: write numbers as 1500\.5"):
        load(f"table:{tmp_path / 'a.csv'}")


def test_numbers_with_a_comma_are_refused_as_such_where_each_differs(tmp_path: Path) -> None:
    """Not as texts that name the rows: that advice would drop a column of numbers."""
    write(tmp_path / "a.csv", columns_of() | {"price": [f"{n},5" for n in range(N)]})
    with pytest.raises(ConfigError, match=r"'price' holds the text 0,5: write numbers as 1500\.5"):
        load(f"table:{tmp_path / 'a.csv'}")


@pytest.mark.parametrize("price", ["1,5", None])
def test_a_column_of_one_text_is_left_out(tmp_path: Path, price: str | None) -> None:
    columns = columns_of() | {"price": pa.array([price] * N, pa.string())}
    data = load(f"table:{write(tmp_path / 'a.parquet', columns)}")
    former = load(f"table:{write(tmp_path / 'b.parquet', columns_of())}")
    assert data.train_inputs.shape == former.train_inputs.shape


@pytest.mark.parametrize(
    ("cells", "odd"), [("2.5 1.5 -", "-"), ("3.5 2.5 None", "None"), ("$4 $0", r"\$4")]
)
def test_the_text_that_is_no_number_is_named(tmp_path: Path, cells: str, odd: str) -> None:
    write(tmp_path / "a.csv", columns_of() | {"price": [*cells.split() * N][:N]})
    with pytest.raises(ConfigError, match=f"'price' holds the text {odd}: write numbers as 15"):
        load(f"table:{tmp_path / 'a.csv'}")


def test_codes_dates_and_releases_are_categories(tmp_path: Path) -> None:
    texts = {"code": ["01", "12", "1A"], "day": ["1.2.26", "3.2.26"], "release": ["1.2.0", "2.0.1"]}
    texts |= {"age": ["10-19", "20-29"], "time": ["12:30", "8:15"], "half": ["1,5", "b"]}
    columns = {name: [*cells * N][:N] for name, cells in texts.items()}
    write(tmp_path / "a.csv", columns_of() | columns)
    data = load(f"table:{tmp_path / 'a.csv'}")
    categories = sum(map(len, texts.values()))
    write(tmp_path / "b.csv", columns_of())
    assert (
        data.train_inputs.shape[1]
        == load(f"table:{tmp_path / 'b.csv'}").train_inputs.shape[1] + categories
    )


def test_too_many_categories_are_refused(tmp_path: Path) -> None:
    columns = columns_of(3 * 2002)
    columns["colour"] = [f"n{row % 1001}" for row in range(3 * 2002)]
    path = write(tmp_path / "a.csv", columns)
    with pytest.raises(ConfigError, match="'colour' has 1,001 categories"):
        load(f"table:{path}")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"label": ["cat", "dog", "fox"] * 20},
            "'fox' among .* or name others to test on by test=",
        ),
        ({"label": [1.5, 2.5, 3.5] * 20}, "'label' of type double has to hold an integer"),
        ({"colour": None}, "'colour' is not in the table to test on"),
        ({"colour": [1.5, 2.5, 3.5] * 20}, "'colour' holds texts to train on and numbers"),
        ({"colour": [" red", "Blue"] * 30}, "'colour' has other categories in all rows to test"),
        ({"weight": ["a", "b", "c"] * 20}, "'weight' holds numbers to train on and texts"),
        ({"weight": [math.inf] * N}, "'weight' holds inf"),
    ],
)
def test_tables_to_test_on_that_differ_are_refused(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.parquet", columns_of())
    columns = columns_of() | changed
    write(tmp_path / "b.parquet", {n: c for n, c in columns.items() if c is not None})
    with pytest.raises(ConfigError, match=message):
        load(f"table:{path},test=b.parquet")


def test_cells_of_the_uci_repository_are_read_with_their_spaces(tmp_path: Path) -> None:
    lines = ["\ufeffage, job,label", *["39, 1.5, no", "41, ?, yes", "?, 2.5, no"] * 4]
    (tmp_path / "a.csv").write_text("\n".join(lines), encoding="utf-8")
    data = load(f"table:{tmp_path / 'a.csv'}")
    assert (data.numbers, data.train_inputs.shape[1]) == (2, 4)
    assert data.names == (" no", " yes")


def test_texts_of_csv_are_read_in_utf_8_and_utf_16_and_else_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", columns_of())
    text = (tmp_path / "a.csv").read_text().replace(",r", ",rosé")
    for name, encoding in (("b", "utf-8"), ("c", "utf-16"), ("d", "latin-1")):
        (tmp_path / f"{name}.csv").write_text(text, encoding=encoding)
    expected, data = (load(f"table:{tmp_path / name}.csv") for name in "bc")
    assert torch.equal(data.train_inputs.nan_to_num(9), expected.train_inputs.nan_to_num(9))
    assert (data.names, data.numbers) == (expected.names, expected.numbers)
    with pytest.raises(ConfigError, match=r"d.csv: column 'colour' has texts that are not UTF-8"):
        load(f"table:{tmp_path / 'd.csv'}")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_columns_of_csv_are_separated_by_what_its_header_has_most_of(
    separator: str, tmp_path: Path
) -> None:
    columns = columns_of() | {"a, b": [0.5, 2.0] * (N // 2)}
    columns["colour"] = ["r, or red" if cell == "r" else cell for cell in columns["colour"]]
    write(tmp_path / "a.csv", columns)
    with (tmp_path / "a.csv").open(newline="") as file, (tmp_path / "b.csv").open("w") as other:
        csv.writer(other, delimiter=separator).writerows(csv.reader(file))
    expected, data = (load(f"table:{tmp_path / name}.csv") for name in "ab")
    assert torch.equal(data.train_inputs.nan_to_num(9), expected.train_inputs.nan_to_num(9))
    assert data.names == expected.names


def test_categories_of_a_file_of_csv_are_read_as_training_has_them(tmp_path: Path) -> None:
    # Alone, the codes to test on would be read as numbers: 01 as 1.
    columns, tests = columns_of(), columns_of(30)
    columns["code"], tests["code"] = ["01", "1", "A"] * 20, ["01", "1", "1"] * 10
    write(tmp_path / "a.csv", columns)
    write(tmp_path / "b.csv", tests)
    data = load(f"table:{tmp_path / 'a.csv'},test=b.csv,drop=weight,rooms,colour,new")
    assert data.test_inputs[:3].tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0]]


def test_files_of_csv_differ_in_what_is_not_read(tmp_path: Path) -> None:
    columns, tests = columns_of() | {"id": [*range(N)]}, columns_of(30) | {"id": ["T7"] * 30}
    write(tmp_path / "a.csv", columns)
    write(tmp_path / "b.csv", tests)
    data = load(f"table:{tmp_path / 'a.csv'},test=b.csv,drop=id")
    assert (len(data.train_labels), len(data.test_labels)) == (N, 30)
    write(tmp_path / "b.csv", tests | {"weight": ["heavy", *tests["weight"][1:]]})
    with pytest.raises(ConfigError, match="'weight' holds numbers to train on and texts to test"):
        load(f"table:{tmp_path / 'a.csv'},test=b.csv,drop=id")


@pytest.mark.skipif(int(pa.__version__.split(".")[0]) < 20, reason="writes no views of texts")
def test_views_of_texts_are_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load(f"table:{write(tmp_path / 'a.parquet', columns_of())}")
    columns: dict[str, Any] = columns_of()
    for name in ("colour", "label"):
        columns[name] = pa.array(columns[name], pa.string_view())
    parquet.write_table(pa.table(columns), tmp_path / "b.parquet")
    data = load(f"table:{tmp_path / 'b.parquet'}")
    assert torch.equal(data.train_inputs.nan_to_num(9), expected.train_inputs.nan_to_num(9))
    assert data.names == expected.names
    monkeypatch.setenv("SIFTBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    texts = load(f"hf:{tmp_path / 'b.parquet'},text=label,label=new")
    assert (texts.kind, texts.names) == ("texts", ("False", "True"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.csv is damaged .*Empty CSV"),
        (b"x,label\n", "has no rows"),
        (b"x,label\n1\n", "a.csv is damaged .*Expected 2 columns"),
        (b"x,x,label\n1,2,a\n", "several columns 'x'"),
        (b"x:label\n1:2\n", "no column 'label'.*of x:label"),
        (b"\xff\xfe\n1\n", "a.csv is damaged"),
    ],
)
def test_files_that_are_no_tables_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load(f"table:{tmp_path / 'a.csv'}")


def test_places_that_hold_no_table_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    path = write(tmp_path / "b.csv", columns_of())
    for address, message in (
        (f"table:{tmp_path / 'c.csv'}", "there is no file"),
        (f"table:{tmp_path}", "there is no file"),
        (f"table:{tmp_path / 'a.parquet'}", "a.parquet is damaged"),
        (f"table:{path},test=c.csv", "there is no file .*c.csv"),
        (f"table:{path},test=../b.csv", "the name of a file beside b.csv"),
        (f"table:{path},size=8", "table has no option 'size'"),
        ("table:", "give table:PATH"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(address)
    with pytest.raises(ConfigError, match=r"max_tokens=9 of .* rows of a table"):
        load(f"table:{path}", max_tokens=9)


@pytest.fixture
def quick(tmp_path: Path) -> Settings:
    """Settings of a few steps on a table."""
    path = write(tmp_path / "a.csv", columns_of(300))
    sizes = {"width": 8, "epochs": 3.0, "batch_size": 16, "score_models": 1}
    return Settings(f"table:{path}", "tabular-mlp", lr=0.01, device="cpu", **sizes)


@pytest.mark.parametrize(
    "name", [name for name, row in STRATEGIES.items() if "rows" in row.kinds and name != "matched"]
)
@pytest.mark.sampled(5)
def test_every_strategy_of_rows_trains_on_them(quick: Settings, tmp_path: Path, name: str) -> None:
    plan = Plan(quick, [name], [0.5], [0], matched=False)
    (run,) = compare(plan, tmp_path / "out", Reporter()).runs
    assert run.metric == "error"
    # Of this few rows, pruning drops the easiest classes whole.
    assert run.test_error_final < 20 or STRATEGIES[name].prunes


def test_a_run_goes_on_as_if_it_had_not_stopped(quick: Settings, tmp_path: Path) -> None:
    check_a_run_goes_on(quick, tmp_path)


def test_rows_are_probed_and_scored(quick: Settings) -> None:
    assert probe_settings(quick, [0.5], 1.0).answer
    scores = score_examples("el2n", quick, 0)
    assert scores.columns.shape == (240, quick.score_models)


@pytest.mark.parametrize(
    ("changes", "strategy", "message"),
    [
        ({"model": "cnn"}, "traditional", "takes images, and .* rows of a table: .*tabular-mlp"),
        ({"cutout": 4}, "traditional", "cutout=4 is of images, and .* holds rows of a table"),
        ({}, "sb-small", r"keep=0.5, scorer=contrib.Downsampled\(\)\) is a strategy for images"),
        ({}, "token-loss", "token-loss 0.5 is a strategy for text"),
    ],
)
def test_what_rows_do_not_have_is_refused(
    quick: Settings, changes: dict[str, Any], strategy: str, message: str
) -> None:
    settings = Settings(**vars(quick) | changes)
    with pytest.raises(ConfigError, match=message):
        prepare_data(Plan(settings, [strategy], [0.5], [0], matched=False))
