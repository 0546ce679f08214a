"""Figures of controls: each against the arm that it changes, and what a rung of the ladder shows the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from delivermem import canvas
from delivermem.canvas import INK, MINUS, PALETTE, bracket, signed, styled
from delivermem.nulls import CONDITIONS
from delivermem.panels import DIAMOND, SETTING, cells, check, panels, span, whisker

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image


@styled
def forest(
    contrasts: pd.DataFrame,
    labels: Mapping[str, str],
    *,
    xlabel: str,
    paper: pd.DataFrame | None = None,
    stated: Mapping[str, str] | None = None,
) -> Figure:
    """Paired differences with intervals, a row per name in the order of `labels`, a panel per benchmark and backbone.

    contrasts: from `stats.contrasts` (percentage points). A name that a setting lacks is left out of its panel. Beside
    each row the questions, or in a shop's panel the chains, that go either way; p values are Holm's, over the names of
    the panel; where that by cluster is 0.05 or more the row is grey. paper: from `published.paper()`; the names in
    `stated` have its number of that name below, as a hollow diamond under a heading of its own.
    """
    found = [*panels(contrasts, "name", "points", "p_cluster_holm", labels=2.5)]
    rows = [
        [name for name in labels if name in set(part["name"])]
        for _, part in found
    ]  # fmt: skip
    for (caption, part), names in zip(found, rows, strict=True):
        if unknown := ", ".join(sorted(set(part["name"]) - set(names))):
            raise ValueError(f"{caption}: no label for {unknown}")
    quoted = [name for name in labels if paper is not None and name in (stated or {})]
    rows += [quoted] if quoted else []
    fig = canvas.figure(0.9 + sum(0.2 * len(names) + 0.62 for names in rows))
    heights = [len(names) + 2.4 for names in rows]
    axes = fig.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for ax, names in zip(axes, rows, strict=True):
        ax.set_yticks(range(len(names)), [labels[name].replace(" - ", f" {MINUS} ") for name in names])
        ax.set_ylim(len(names) - 0.4, -1.9)
        ax.axvline(0, color=PALETTE["quiet"], linewidth=0.8, zorder=1.5)
    ends = [0.0]
    for ax, (caption, part), names in zip(axes, found, rows, strict=False):
        ends += _contrast_rows(ax, caption, part, names)
    if paper is not None and quoted:
        ends += _stated_rows(axes[-1], paper, [(stated or {})[name] for name in quoted])
    axes[-1].set_xlabel(xlabel)
    low, high = min(ends), max(ends)
    room = 0.06 * max(high - low, 1.0)
    axes[-1].set_xlim(low - room, high + room)
    return fig


def _contrast_rows(ax: Axes, caption: str, part: pd.DataFrame, names: Sequence[str]) -> list[float]:
    """One panel's rows; returns how far they reach."""
    chains = part["benchmark"].str.contains("dmv").all()
    counts = ("chains\n+ / −", "up", "down") if chains else ("fixed /\nbroken", "fixed", "broken")
    by_name = {row["name"]: row for row in part.to_dict("records")}
    ax.set_title(caption)
    unit = "chain" if chains else "conversation"
    header = ("points [95 % interval]", counts[0], "p, by\nquestion", f"p, by\n{unit}")
    cells(ax, -0.7, header, PALETTE["quiet"], va="bottom")
    ends = []
    for y, name in enumerate(names):
        row = by_name[name]
        colour = PALETTE["pixels"] if row["p_cluster_holm"] < 0.05 else PALETTE["gap"]
        whisker(ax, row, y, colour)
        ax.plot(row["points"], y, "o", color=colour, label=name)
        estimate = f"{signed(row['points'])} {bracket(row['low'], row['high'], signed)}"
        either = f"{row[counts[1]]} / {row[counts[2]]}"
        ps = (canvas.p_value(row["p_holm"]), canvas.p_value(row["p_cluster_holm"]))
        cells(ax, y, (estimate, either, *ps))
        ends += [end for end in (row["low"], row["high"], row["points"]) if end == end]
    return ends


def _stated_rows(ax: Axes, paper: pd.DataFrame, names: Sequence[str]) -> list[float]:
    """The paper's values of one backbone and benchmark, as it prints them."""
    first = paper[paper["name"] == names[0]].iloc[0]
    of = paper[(paper["backbone"] == first["backbone"]) & (paper["benchmark"] == first["benchmark"])]
    row_of = {row["name"]: row for row in of.to_dict("records")}
    heading = f"paper: {first['backbone']} on {first['benchmark']}, n = {first['n']} questions"
    ax.set_title(f"{heading}\n(published values, not measured here)", color=PALETTE["quiet"])
    for y, name in enumerate(names):
        ax.plot(row_of[name]["value"], y, **DIAMOND, label=f"paper {name}")
        cells(ax, y, (signed(row_of[name]["value"], 2),), color=PALETTE["quiet"])
    return [row_of[name]["value"] for name in names]


@styled
def where(found: pd.DataFrame, labels: Mapping[str, str]) -> Figure:
    """What each decision is worth to each sort of question, as a map: points, and where none are shown, why.

    found: from `nulls.where`, of one backbone. Rows are sorts of questions by benchmark, columns the names in the order
    of `labels`. A cell without an effect bears the conditions that fail; an empty one has no such arm.
    """
    check(found, *SETTING, "subtype", "name", "points", "n", "helps", "fails")
    names = [name for name in labels if name in set(found["name"])]
    rows = list(dict.fromkeys(zip(found["benchmark"], found["subtype"], strict=True)))
    table = found.set_index(["benchmark", "subtype", "name"])
    if table.index.has_duplicates or found["backbone"].nunique() > 1:
        raise ValueError("the table must have one row per benchmark, subtype and name; select one backbone")
    points, said = table["points"].unstack("name"), table["fails"].unstack("name")
    points, said = points.loc[rows, names], said.loc[rows, names]
    fig = canvas.figure(1.75 + 0.27 * len(rows))
    ax = fig.subplots()
    mesh = ax.pcolormesh(points, cmap="RdBu", vmin=-100, vmax=100, edgecolors="white", linewidth=0.6)
    fig.colorbar(mesh, ax=ax, pad=0.02, ticks=[-100, -50, 0, 50, 100], label="points against the control")
    ax.invert_yaxis()
    ax.grid(visible=False)
    for y, row in enumerate(rows):
        for x, name in enumerate(names):
            value, why = points.loc[row, name], said.loc[row, name]
            if value != value:
                continue
            text = f"{signed(value, 0)}" + (f"  {why.replace(',', ' ')}" if why else "")
            dark = abs(value) > 60
            ax.text(
                x + 0.5, y + 0.5, text, ha="center", va="center", fontsize=7, color="white" if dark else INK
            )
    ax.set_facecolor("#EDEDED")
    column = 4.8 / len(names)
    ax.set_xticks(
        [i + 0.5 for i in range(len(names))], [canvas.wrap(labels[n], column, 7) for n in names], rotation=0
    )
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.tick_params(axis="x", labelsize=7)
    count = found.groupby(["benchmark", "subtype"])["n"]
    first = {row[0]: row for row in reversed(rows)}
    ticks = [
        (f"{b} · " if first[b] == (b, sort) else "") + f"{sort}, n = {span(count.get_group((b, sort)))}"
        for b, sort in rows
    ]
    ax.set_yticks([i + 0.5 for i in range(len(rows))], ticks)
    settings = found[[*SETTING]].drop_duplicates()
    who = ", ".join(f"{b} (K = {k})" for b, k in zip(settings["benchmark"], settings["k"], strict=True))
    fig.suptitle(
        canvas.wrap(f"{found['backbone'].iloc[0]} on {who}", 6.8, 8, bold=True), fontsize=8, fontweight="bold"
    )
    fails = "; ".join(f"{key}: the information {said}" for key, said in CONDITIONS.items())
    fig.supxlabel(canvas.wrap(f"a condition that fails: {fails}; ?: none found", 6.8, 7), fontsize=7)
    return fig


@styled
def adapter(
    frame: Image,
    cue: tuple[int, int, int, int],
    tile: tuple[int, int, int, int],
    *,
    asked: str,
    whole: int,
    best: int,
    among: int,
    encoder: str,
) -> Figure:
    """One picture whose rank the tiles change: with its cue boxed, with the winning tile drawn, and that tile alone.

    cue, tile: (left, top, right, bottom) in pixels. whole, best: its rank among that many, by the whole picture and by
    its best tile; encoder: what ranked it.
    """
    from matplotlib.patches import Rectangle

    fig = canvas.figure(2.75)
    axes = fig.subplots(1, 3)
    titles = (
        f"whole picture: rank {whole} of {among}",
        f"with 2 x 2 tiles: rank {best} of {among}",
        "the winning tile",
    )
    for ax, title, image in zip(axes, titles, (frame, frame, frame.crop(tile)), strict=True):
        ax.imshow(image, interpolation="nearest")
        ax.set_title(title, fontweight="normal")
        ax.set_axis_off()
    for ax, (left, top, right, bottom), colour in (
        (axes[0], cue, PALETTE["wrong"]), (axes[1], cue, PALETTE["wrong"]), (axes[1], tile, PALETTE["pixels"]),
    ):  # fmt: skip
        corner = (left - 0.5, top - 0.5)
        ax.add_patch(
            Rectangle(corner, right - left, bottom - top, fill=False, edgecolor=colour, linewidth=1.6)
        )
    fig.suptitle(canvas.wrap(f"{encoder}: {asked}", canvas.WIDTH - 0.4, 8), fontsize=8)
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
def granularity(found: pd.DataFrame, *, encoder: str) -> Figure:
    """Recall@1 against tiles a side, a line a way of cutting, with intervals.

    found: from `stats.recall_at_1` (cut, n tiles a side, estimate, low, high in percent, frames). encoder: its name.
    """
    if found.empty:
        raise ValueError("no ranks to show")
    fig = canvas.figure(2.6)
    ax = fig.subplots()
    colours = [PALETTE[name] for name in ("pixels", "retrieval", "gap", "text")]
    for (cut, part), colour in zip(found.groupby("cut", sort=False), colours, strict=False):
        rows = part.sort_values("n")
        ax.vlines(rows["n"], rows["low"], rows["high"], color=colour, linewidth=1.2, clip_on=False)
        ax.plot(rows["n"], rows["estimate"], "o-", color=colour, label=str(cut), clip_on=False)
    ax.set_xticks(sorted(set(found["n"])), [f"{n} x {n}" for n in sorted(set(found["n"]))])
    ax.set_xlabel("tiles")
    ax.set_ylabel("Recall@1 (% of frames)")
    ax.set_ylim(0, 100)
    ax.set_title(
        canvas.wrap(f"{encoder}, n = {found['frames'].iloc[0]} frames, one cue each", 5.0, 8, bold=True)
    )
    ax.legend(loc="upper left", bbox_to_anchor=(1.02, 1))
    return fig
