"""Tables of text: on a terminal, in Markdown and as CSV, all from the same rows.

A row is a mapping from the names of columns to cells. The columns are those of all rows, in the
order in which they first come; a row that lacks one has an empty cell there.
"""

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

Rows = Sequence[Mapping[str, str]]


def columns_of(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """The names of the columns of some rows.

    >>> columns_of([{"a": "1"}, {"b": "2", "a": "3"}])
    ['a', 'b']
    """
    return list(dict.fromkeys(name for row in rows for name in row))


def tabulate(rows: Rows) -> tuple[list[str], list[list[str]], list[bool]]:
    """Arranges rows, of which not every one has every column.

    Returns:
        The columns; the cells of each row; and whether each column stands at the left, as the first
        one does and those of words; numbers stand at the right.

    >>> tabulate([{"a": "1", "b": "2 seeds"}, {"a": "-", "c": "`random`"}])
    (['a', 'b', 'c'], [['1', '2 seeds', ''], ['-', '', '`random`']], [True, False, True])
    """
    columns = columns_of(rows)
    cells = [[row.get(name, "") for name in columns] for row in rows]
    lefts = [
        number == 0 or any(cell.lstrip("`")[:1].isalpha() for cell in column)
        for number, column in enumerate(zip(*cells, strict=True))
    ]
    return columns, cells, lefts


def pivot(cells: Iterable[tuple[Mapping[str, str], str, str]]) -> list[dict[str, str]]:
    """Lays out cells as rows, of which each has all columns, in the order of the cells.

    Args:
        cells: Of each its row, as the first columns and their contents; its column; its text.

    >>> pivot([({"data": "digits"}, "sb", "1"), ({"data": "mnist"}, "rs2", "2")])
    [{'data': 'digits', 'sb': '1', 'rs2': ''}, {'data': 'mnist', 'sb': '', 'rs2': '2'}]
    """
    cells = list(cells)
    blank = {column: "" for _, column, _ in cells}
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for names, column, text in cells:
        rows.setdefault(tuple(names.values()), {**names, **blank})[column] = text
    return list(rows.values())


def terminal(
    rows: Rows, *, title: str = "", caption: str = "", wrapped: Collection[str] | None = None
) -> Table:
    """Rows as a table for a terminal: words at the left, numbers at the right.

    Args:
        rows: The rows.
        title: What is above the table.
        caption: What is below it.
        wrapped: Columns whose cells may take several lines; by default all of words.
    """
    table = Table(
        title=Text(title),
        caption=Text(caption),
        title_justify="left",
        caption_justify="left",
        box=box.HORIZONTALS,
        show_edge=False,
        padding=(0, 1, 0, 0),  # two spaces between columns, with the box's own
        pad_edge=False,
    )
    columns, cells, lefts = tabulate(rows)
    for name, left in zip(columns, lefts, strict=True):
        wraps = left if wrapped is None else name in wrapped
        table.add_column(
            Text(name),
            justify="left" if left else "right",
            overflow="fold" if wraps else "ellipsis",  # a number that is cut off is another one
            no_wrap=not wraps,
        )
    for line in cells:
        table.add_row(*map(Text, line))
    return table


def markdown(rows: Rows) -> str:
    r"""Writes rows as a Markdown table: one column per key, words aligned left and numbers right.

    >>> print(markdown([{"strategy": "sb 0.33", "steps": "12"}, {"strategy": "a|b"}]))
    | strategy | steps |
    |:---|---:|
    | sb 0.33 | 12 |
    | a\|b |  |
    """
    columns, cells, lefts = tabulate(rows)
    # A bar would end its cell, and a line's end the table.
    head, *body = (
        "| " + " | ".join(" ".join(cell.replace("|", r"\|").split()) for cell in line) + " |"
        for line in (columns, *cells)
    )
    rule = "|" + "|".join(":---" if left else "---:" for left in lefts) + "|"
    return "\n".join([head, rule, *body])


def as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    r"""Writes rows as CSV.

    >>> as_csv([{"a": 1}, {"a": 2, "b": None}])
    'a,b\n1,\n2,\n'
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
