"""Reference numbers of the literature with their sources, read from `data/published/*.csv`.

They are quoted, never measured here. One number a row: `value` as printed at the source in `unit`; `count`
and `n` the whole numbers behind it, where known, so that value = 100 count / n for points and percent.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from delivermem.runs import data_dir

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("name", "value", "unit", "count", "n", "backbone", "benchmark", "source", "note")
UNITS = ("points", "percent", "p", "questions", "tokens")


class PublishedError(ValueError):
    """A table of published numbers that is missing or malformed, said in one sentence with file and cure."""


def tables() -> list[str]:
    """Names of the tables at hand, for `read`."""
    return sorted(path.stem for path in _folder().glob("*.csv"))


def paper() -> pd.DataFrame:
    """The values that "Retrieved but Not Delivered" (arXiv 2609.32590) and its project page state.

    A value or count that is worked out from stated ones has a source that begins with "derived".
    """
    return read("delivermem_paper")


def read(name: str) -> pd.DataFrame:
    """The table `data/published/<name>.csv`, checked: COLUMNS, and `printed`, the value's digits as printed.

    value is a float; count and n are nullable integers; the rest is text, empty where the source is silent. A
    row is known by name, backbone and benchmark together. Raises PublishedError.
    """
    import pandas as pd

    path = _folder() / f"{name}.csv"
    if not path.is_file():
        known = ", ".join(tables()) or "none"
        raise PublishedError(f"published table {name!r} has no file {path}; known tables: {known}")
    table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    if tuple(table.columns) != COLUMNS:
        raise PublishedError(
            f"{path}: the columns must be {', '.join(COLUMNS)}, not {', '.join(table.columns)}"
        )
    table["printed"] = table["value"]
    for column, kind in (("value", "Float64"), ("count", "Int64"), ("n", "Int64")):
        numbers = pd.to_numeric(table[column], errors="coerce")
        bad = numbers.isna() & ((table[column] != "") | (column == "value"))
        if kind == "Int64":
            bad |= numbers.notna() & (numbers % 1 != 0)
        _refuse(path, table[bad], f"{column} must be a {'whole ' if kind == 'Int64' else ''}number")
        table[column] = numbers.astype(float if column == "value" else kind)
    _refuse(path, table[~table["unit"].isin(UNITS)], f"unit must be one of {', '.join(UNITS)}")
    _refuse(path, table[(table["source"] == "") | (table["name"] == "")], "name and source must be given")
    _refuse(path, table[table.duplicated(["name", "backbone", "benchmark"])], "this number occurs twice")
    return table


def _refuse(path: Path, rows: pd.DataFrame, rule: str) -> None:
    if len(rows):
        row = rows.iloc[0]
        raise PublishedError(f"{path}, line {rows.index[0] + 2} ({row['name']!r}): {rule}; correct that line")


def _folder() -> Path:
    folder = data_dir() / "published"
    if not folder.is_dir():
        raise PublishedError(f"no folder {folder}; set DELIVERMEM_DATA to the repository's data folder")
    return folder
