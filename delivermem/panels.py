"""What the forest plots share: a panel per benchmark, backbone and K, whiskers, and a table beside the axes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delivermem import canvas
from delivermem.canvas import INK, PALETTE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SETTING = ["benchmark", "backbone", "k"]
DIAMOND: dict[str, Any] = {
    "marker": "D", "linestyle": "none", "markerfacecolor": "white", "markeredgecolor": PALETTE["paper"],
    "markeredgewidth": 1.2, "zorder": 4,
}  # fmt: skip


def check(table: pd.DataFrame, *needed: str) -> None:
    """ValueError where the table is empty or lacks a column."""
    lacking = ", ".join(name for name in needed if name not in table)
    if lacking or table.empty:
        raise ValueError(f"the table has {len(table)} rows and lacks the columns: {lacking or 'none'}")


def panels(table: pd.DataFrame, *needed: str, labels: float = 1.9) -> Iterator[tuple[str, pd.DataFrame]]:
    """(caption, rows) per benchmark, backbone and K in the order of their names. labels: inches left of the axes."""
    check(table, *SETTING, *needed, "n", "clusters")
    unique = [name for name in needed if name in ("term", "kind", "condition", "name")]
    for (benchmark, backbone, k), part in sorted(
        table.groupby(SETTING), key=lambda group: _natural(group[0])
    ):
        who = f"{backbone} on {benchmark}"
        if part.duplicated(unique).any():
            raise ValueError(f"{who}, K = {k}: the table must have one row per {' and '.join(unique)}")
        if "kind" in needed:
            n = f"n = {counted(part.groupby('condition')['n'].sum(), 'question')}"
        else:
            clusters = counted(part["clusters"], "chain" if "dmv" in benchmark else "conversation")
            n = f"n = {counted(part['n'], 'question')} in {clusters}"
        if "left_out" in part and part["left_out"].any():
            n += f" ({span(part['left_out'])} left out)"
        yield canvas.wrap(f"{who}, {n}, K = {k}", canvas.WIDTH - labels, 8, bold=True), part


def _natural(names: Sequence[object]) -> list[list[tuple[int, int | str]]]:
    """Names in the order that a reader expects: their numbers by size."""
    parts = [re.split(r"(\d+)", str(name)) for name in names]
    return [[(0, int(part)) if part.isdigit() else (1, part) for part in split if part] for split in parts]


def span(counts: pd.Series[int]) -> str:
    """One number, or the least and the most."""
    low, high = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
    return str(low) if low == high else f"{low} to {high}"


def counted(counts: pd.Series[int], noun: str) -> str:
    """The same with what is counted, in its plural where it is not one."""
    said = span(counts)
    return f"{said} {noun}" if said == "1" else f"{said} {noun}s"


def whisker(ax: Axes, row: Mapping[str, Any], y: float, color: str = INK) -> None:
    """The interval of a row, where it has one."""
    if not math.isnan(row["low"]):
        ax.hlines(y, row["low"], row["high"], color=color, linewidth=1.2, zorder=3)


def cells(ax: Axes, y: float, texts: Sequence[str], color: str = INK, va: str = "center_baseline") -> None:
    """A row of the table to the right of the axes, at fixed offsets in points."""
    look: dict[str, Any] = {"va": va, "color": color, "fontsize": 7.5, "annotation_clip": False}
    for offset, text in zip((10, 122, 164, 206), texts, strict=False):
        at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        ax.annotate(text, (1, y), (offset, 0), **at, **look)
