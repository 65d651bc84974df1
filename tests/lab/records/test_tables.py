"""Tables on a terminal show what they are given, whatever is in it."""

from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from rich.console import Console

from command_line import Call
from siftback.errors import ConfigError
from siftback.lab.records.columns import read_columns, write_columns
from siftback.lab.records.tables import terminal
from siftback.lab.run.progress import ConsoleReporter
from siftback.lab.settings import Run


def shown(*parts: object, width: int = 100) -> str:
    text = StringIO()
    Console(file=text, width=width).print(*parts)
    return text.getvalue()


def test_what_looks_like_markup_is_shown_as_it_is() -> None:
    rows = [{"[b]name": "[red]a[/red].parquet", "[/x]": "[1]"}]
    text = shown(terminal(rows, title="[bold]t[/]", caption="[link=x]c[/link]"))
    titles = "[bold]t[/]", "[link=x]c[/link]"
    for part in ("[b]name", "[/x]", "[red]a[/red].parquet", "[1]", *titles):
        assert part in text


def test_a_number_that_is_cut_off_says_so() -> None:
    rows = [{"s": "a", "error %": "16.39 ± 2.65", "cost": "5.18 k"}]
    assert "5.18 k" in shown(terminal(rows), width=40)
    for width in range(14, 30):
        text = shown(terminal(rows, wrapped=["s"]), width=width).rstrip()
        assert text.endswith(("5.18 k", "…")), (width, text)


@pytest.mark.parametrize("on_a_terminal", [False, True])
def test_so_is_what_is_said_of_runs(on_a_terminal: bool) -> None:
    text = StringIO()
    console = Console(file=text, width=100, force_terminal=on_a_terminal, color_system=None)
    with ConsoleReporter(console) as reporter:
        reporter.start(Run("[red]sb", 0.5, 0), 1, 1)
        reporter.update(0.5)
        reporter.note("[bold]c[/bold]/1.pt:x: is damaged")
    assert "[bold]c[/bold]/1.pt:x: is damaged" in text.getvalue()
    if on_a_terminal:
        assert "[1/1] [red]sb 0.5, seed 0" in text.getvalue()


def test_file_names_do_not_vanish_from_tables(call: Call, tmp_path: Path) -> None:
    for name in ("[red]a.parquet", "[b]b.parquet"):
        columns = {"index": [0, 1, 2, 3], "label": [0, 1, 0, 1], "model_0": [0.1, 0.2, 0.3, 0.4]}
        table = pa.table(columns).replace_schema_metadata({"siftback": "{}"})
        parquet.write_table(table, tmp_path / name)
    paths = (tmp_path / "[red]a.parquet", tmp_path / "[b]b.parquet")
    status, printed, _ = call("overlap", *paths, "--drop", "0.5")
    assert status == 0
    assert "[red]a.parquet and [b]b.parquet" in printed


def test_a_flipped_byte_of_a_table_of_scores_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "scores.parquet"
    values = torch.rand(4000, generator=torch.Generator().manual_seed(0))
    write_columns(path, {"score": values}, {"score": "el2n"})
    read_columns(path, "siftback score")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"scores.parquet cannot be read as a Parquet file"):
        read_columns(path, "siftback score")
