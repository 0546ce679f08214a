"""Reference numbers of the literature with their sources, read from `data/published/*.csv`.

They are quoted, never measured here. One number a row: `value` as printed at the source in `unit`, `low` and `high` its
95 % interval where one is stated; `count` and `n` the whole numbers behind it, so that value = 100 count / n for points
and percent. What does not add up at the source is kept as printed, and its note, which begins with AS_PRINTED, says
what is off. Sources: MemLens is arXiv 2605.14906, DMV-Bench 2606.27499, "Retrieved but Not Delivered" 2609.32590.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delivermem.runs import data_dir

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "name", "system", "backbone", "benchmark", "kind", "value", "low", "high", "unit", "count", "n", "source", "note",
)  # fmt: skip
KEY = ["name", "system", "backbone", "benchmark", "kind"]
"""What a number is known by within its table."""
UNITS = {"points": (-100, 100), "percent": (0, 100), "p": (0, 1), "questions": (0, None), "tokens": (0, None)}
"""Each unit with its least and greatest value."""
AS_PRINTED = "as printed: "
OVERALL = "overall"
NUMBERS = {"value": "Float64", "low": "Float64", "high": "Float64", "count": "Int64", "n": "Int64"}


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


def memlens() -> pd.DataFrame:
    """The tables of MemLens (arXiv 2605.14906) in one, with a column `table`. `length` is in K tokens.

    memlens_agents and memlens_lvlms_195 are on the subset of 195 questions, memlens_lvlms_789 on all; the others are
    memlens_images and memlens_backbones.
    """
    return _together("memlens_")


def dmv() -> pd.DataFrame:
    """The tables of DMV-Bench (arXiv 2606.27499) in one, with a column `table`: dmv_systems is its Table 2 with stated
    intervals and differences; dmv_tables_7_8, dmv_reach and dmv_ablation the others. `length` is J, in sessions."""
    return _together("dmv_")


def implied() -> pd.DataFrame:
    """DeliverMem's accuracy on MemLens's 195 questions, worked out from its paper's margins and the tables of MemLens.

    Columns as of `read`; kind is overall, or at 32K also answerable and answer_refusal. The margins over the best agent
    and over the same backbone reading everything must give the same counts; if not, or if one of them lacks its row,
    PublishedError.
    """
    import pandas as pd

    margins, others = paper(), memlens()
    agents, lvlms = (
        others[(others["table"] == name) & (others["name"] == "accuracy")]
        for name in ("memlens_agents", "memlens_lvlms_195")
    )
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for margin in margins[margins["name"] == "margin_full_context"].to_dict("records"):
        reader = _only(lvlms, system=f"{margin['backbone']}-I", benchmark=margin["benchmark"], kind=OVERALL)
        _add(rows, margin, OVERALL, reader["count"] + margin["count"], reader["n"])
    over = _only(margins, name="margin_agent")
    rest = _only(margins, name="margin_agent_answerable", benchmark=over["benchmark"])
    totals = agents[(agents["kind"] == OVERALL) & (agents["benchmark"] == over["benchmark"])]
    best = totals.sort_values("value").to_dict("records")[-1]
    refusal = _only(agents, system=best["system"], benchmark=best["benchmark"], kind="answer_refusal")
    declined = over["count"] - rest["count"]
    note = f"{best['system']}, {best['note']}" if best["note"] else ""
    _add(rows, over, OVERALL, best["count"] + over["count"], best["n"], note)
    _add(rows, over, "answerable", best["count"] - refusal["count"] + rest["count"], rest["n"], note)
    _add(rows, over, "answer_refusal", refusal["count"] + declined, refusal["n"], note)
    return pd.DataFrame(list(rows.values()))


def read(name: str) -> pd.DataFrame:
    """The table `data/published/<name>.csv`, checked: COLUMNS, and three more.

    printed: the value's digits as printed. length: the number in the benchmark's name, K tokens or J sessions. counted:
    "stated", or "derived" where the count is not in the file and the printed digits and n leave but one. value, low
    and high are floats, NaN where there is none; count, n and length are nullable integers; the rest is text, empty
    where the source is silent. A row is known by KEY. Raises PublishedError.
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
    for column, kind in NUMBERS.items():
        numbers = pd.to_numeric(table[column], errors="coerce")
        bad = numbers.isna() & ((table[column] != "") | (column == "value"))
        if kind == "Int64":
            bad |= numbers.notna() & (numbers % 1 != 0)
        _refuse(path, table[bad], f"{column} must be a {'whole ' if kind == 'Int64' else ''}number")
        table[column] = numbers.astype(float if kind == "Float64" else kind)
    _refuse(path, table[~table["unit"].isin(list(UNITS))], f"unit must be one of {', '.join(UNITS)}")
    _refuse(path, table[(table["source"] == "") | (table["name"] == "")], "name and source must be given")
    _refuse(path, table[table.duplicated(KEY)], "this number occurs twice")
    table["length"] = table["benchmark"].str.extract(r"\b(\d+)K?$")[0].astype("Int64")
    _check_ranges(path, table)
    _count(path, table)
    _check_sums(path, table)
    return table


def _check_ranges(path: Path, table: pd.DataFrame) -> None:
    for unit, (least, most) in UNITS.items():
        values = table.loc[table["unit"] == unit, "value"]
        out = values < least if most is None else ~values.between(least, most)
        allowed = f"{least} or more" if most is None else f"{least} to {most}"
        _refuse(path, table.loc[values[out].index], f"value in {unit} must be {allowed}")
    stated = table[["low", "high"]].notna()
    one = stated["low"] != stated["high"]
    _refuse(path, table[one], "low and high must be given together or not at all")
    outside = stated["low"] & ~((table["low"] <= table["value"]) & (table["value"] <= table["high"]))
    _refuse(path, table[outside], "low, value and high must ascend")
    beyond = table["n"].notna() & (
        (table["n"] < 1) | (table["count"].abs() > table["n"]) | (table["unit"].eq("percent") & (table["count"] < 0))
    )  # fmt: skip
    _refuse(path, table[beyond.fillna(False)], "count must be 0 to n")


def _count(path: Path, table: pd.DataFrame) -> None:
    """Hold stated counts against the printed digits, and fill in those that the digits leave no choice of."""
    share = table["unit"].isin(["points", "percent"]) & table["n"].notna()
    stated = table["count"].notna()
    n = table["n"].where(share).astype(float)
    step = 10.0 ** -table["printed"].str.extract(r"\.(\d+)$")[0].str.len().fillna(0).astype(int)
    nearest = (table["value"] * n / 100).round()
    held = table["count"].astype(float).fillna(nearest)
    off = (100 * held / n - table["value"]).abs() > step / 2 + 1e-9
    admitted = table["note"].str.startswith(AS_PRINTED)
    said = f"and its note does not say what is off after {AS_PRINTED.strip()!r}"
    _refuse(path, table[off & stated & ~admitted], f"count and n do not give the printed value, {said}")
    _refuse(path, table[off & ~admitted], f"no count of n gives the printed value, {said}")
    told = share & ~stated & ~off & (100 / n > step)
    table["count"] = table["count"].fillna(nearest.where(told).astype("Int64"))
    table["counted"] = told.map({True: "derived", False: ""}).mask(stated, "stated")


def _check_sums(path: Path, table: pd.DataFrame) -> None:
    """Types of question add up to the overall number, in n and, where all are known, in counts."""
    for _, part in table[table["kind"] != ""].groupby(KEY[:-1], sort=False):
        whole, types = part[part["kind"] == OVERALL], part[part["kind"] != OVERALL]
        if len(whole) != 1 or types.empty or part["note"].str.startswith(AS_PRINTED).any():
            continue
        for column in ("n", "count"):
            if part[column].notna().all() and types[column].sum() != whole[column].iloc[0]:
                rule = f"the types have {column} {types[column].sum()}, not {whole[column].iloc[0]}"
                _refuse(path, whole, f"{rule}, and no note says what is off after {AS_PRINTED.strip()!r}")


def _only(table: pd.DataFrame, **where: str) -> dict[str, Any]:
    """The one row with these values."""
    for column, value in where.items():
        table = table[table[column] == value]
    if len(table) != 1:
        told = ", ".join(f"{column} {value!r}" for column, value in where.items())
        raise PublishedError(f"{_folder()}: {len(table)} rows with {told}, not one; restore the tables there")
    return dict(table.to_dict("records")[0])


def _add(
    rows: dict[tuple[str, str], dict[str, Any]],
    margin: dict[str, Any],
    kind: str,
    count: int,
    n: int,
    note: str = "",
) -> None:
    """A row of `implied`, which must agree with one already there."""
    at = (margin["benchmark"], kind)
    first = rows.get(at)
    if first is not None and (first["count"], first["n"]) != (count, n):
        raise PublishedError(
            f"{_folder()}: the margins on {at[0]} imply {first['count']} of {first['n']} and {count} of {n}; "
            "correct delivermem_paper.csv or the tables of MemLens"
        )
    source = f"{first['source']} and {margin['name']}" if first else f"derived from {margin['name']}"
    names = {"name": "implied_accuracy", "system": "DeliverMem", "backbone": margin["backbone"]}
    names |= {"benchmark": at[0], "kind": kind, "unit": "percent", "source": source, "note": note}
    numbers = {"value": 100 * count / n, "low": math.nan, "high": math.nan, "count": int(count), "n": int(n)}
    told = {"printed": f"{100 * count / n:.2f}", "length": margin["length"], "counted": "derived"}
    rows[at] = {name: (names | numbers)[name] for name in COLUMNS} | told


def _together(prefix: str) -> pd.DataFrame:
    import pandas as pd

    found = [read(name).assign(table=name) for name in tables() if name.startswith(prefix)]
    if not found:
        raise PublishedError(f"{_folder()} holds no table {prefix}*; restore data/published")
    return pd.concat(found, ignore_index=True)


def _refuse(path: Path, rows: pd.DataFrame, rule: str) -> None:
    if len(rows):
        row = rows.iloc[0]
        raise PublishedError(f"{path}, line {rows.index[0] + 2} ({row['name']!r}): {rule}; correct that line")


def _folder() -> Path:
    folder = data_dir() / "published"
    if not folder.is_dir():
        raise PublishedError(f"no folder {folder}; set DELIVERMEM_DATA to the repository's data folder")
    return folder
