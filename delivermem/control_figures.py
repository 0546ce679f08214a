"""Figures of controls: each against the arm that it changes, and what a rung of the ladder shows the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from delivermem import canvas
from delivermem.canvas import MINUS, PALETTE, bracket, signed, styled
from delivermem.panels import cells, panels, whisker

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from PIL.Image import Image


@styled
def forest(contrasts: pd.DataFrame, labels: Mapping[str, str], *, xlabel: str) -> Figure:
    """Paired differences with intervals, a row per name in the order of `labels`, a panel per benchmark and backbone.

    contrasts: from `stats.contrasts` (percentage points). A name that a setting lacks is left out of its panel; where
    nothing differs the row says so. p values are Holm's, over the names of the panel; where that by cluster is 0.05 or
    more the row is grey.
    """
    found = [*panels(contrasts, "name", "points", "p_cluster_holm", labels=2.5)]
    counts = [len(part) for _, part in found]
    fig = canvas.figure(0.9 + sum(0.2 * count + 0.62 for count in counts))
    axes = fig.subplots(
        len(found), 1, sharex=True, squeeze=False, height_ratios=[count + 2.4 for count in counts]
    )[:, 0]
    ends = [0.0]
    for ax, (caption, part) in zip(axes, found, strict=True):
        by_name = {row["name"]: row for row in part.to_dict("records")}
        unknown = ", ".join(sorted(set(by_name) - set(labels)))
        if unknown:
            raise ValueError(f"{caption}: no label for {unknown}")
        names = [name for name in labels if name in by_name]
        ax.set_title(caption)
        ax.set_yticks(range(len(names)), [labels[name].replace(" - ", f" {MINUS} ") for name in names])
        ax.set_ylim(len(names) - 0.4, -1.9)
        ax.axvline(0, color=PALETTE["quiet"], linewidth=0.8, zorder=1.5)
        header = ("points [95 % interval]", "fixed /\nbroken", "p, by\nquestion", "p, by\ncluster")
        cells(ax, -0.7, header, PALETTE["quiet"], va="bottom")
        for y, name in enumerate(names):
            row = by_name[name]
            colour = PALETTE["pixels"] if row["p_cluster_holm"] < 0.05 else PALETTE["gap"]
            whisker(ax, row, y, colour)
            ax.plot(row["points"], y, "o", color=colour, label=name)
            estimate = f"{signed(row['points'])} {bracket(row['low'], row['high'], signed)}"
            ps = (canvas.p_value(row["p_holm"]), canvas.p_value(row["p_cluster_holm"]))
            cells(ax, y, (estimate, f"{row['fixed']} / {row['broken']}", *ps))
            ends += [end for end in (row["low"], row["high"], row["points"]) if end == end]
    axes[-1].set_xlabel(xlabel)
    low, high = min(ends), max(ends)
    room = 0.06 * max(high - low, 1.0)
    axes[-1].set_xlim(low - room, high + room)
    return fig


@styled
def tiles(images: Mapping[str, Image], *, per_row: int = 4) -> Figure:
    """Pictures side by side, each under its name, pixels as they are. images: name -> RGB picture."""
    if not images:
        raise ValueError("no picture to show")
    rows = -(-len(images) // per_row)
    fig = canvas.figure(1.85 * rows)
    axes = fig.subplots(rows, per_row, squeeze=False).ravel()
    for ax in axes:
        ax.set_axis_off()
    for ax, (name, image) in zip(axes, images.items(), strict=False):
        ax.imshow(image, interpolation="nearest")
        ax.set_title(name, fontweight="normal")
    return fig


@styled
def granularity(found: pd.DataFrame) -> Figure:
    """Recall@1 against tiles a side, a line a way of cutting, with intervals.

    found: cut, n (tiles a side), estimate, low, high (percent), frames.
    """
    if found.empty:
        raise ValueError("no ranks to show")
    fig = canvas.figure(2.6)
    ax = fig.subplots()
    colours = [PALETTE[name] for name in ("pixels", "retrieval", "gap", "text")]
    for (cut, part), colour in zip(found.groupby("cut", sort=False), colours, strict=False):
        rows = part.sort_values("n")
        ax.vlines(rows["n"], rows["low"], rows["high"], color=colour, linewidth=1.2)
        ax.plot(rows["n"], rows["estimate"], "o-", color=colour, label=str(cut))
    ax.set_xticks(sorted(set(found["n"])), [f"{n} x {n}" for n in sorted(set(found["n"]))])
    ax.set_xlabel("tiles")
    ax.set_ylabel("Recall@1 (% of frames)")
    ax.set_ylim(0, 100)
    ax.set_title(f"{found['frames'].iloc[0]} frames, one cue each")
    ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1))
    return fig
