"""Figures of results: published systems in panels of their own, what was measured here in others.

Accuracies on different benchmarks share no axis. Published marks are grey, the paper's DeliverMem is a hollow diamond,
and colours belong to what was measured here. Every panel names its backbone, its benchmark and n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from delivermem import canvas
from delivermem.canvas import INK, PALETTE, signed, styled
from delivermem.panels import DIAMOND, check, counted, span, whisker
from delivermem.published import OVERALL

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARMS = {"DeliverMem": ("pixels", "o", "-", "●"), "reads everything": ("quiet", "s", "--", "■")}
"""Arms of the lengths: colour by meaning, mark and line, and the mark as a letter."""
WHOLE = "full-context"
"""The condition that reads everything; any other delivers."""
ERRANDS = {"errand-stamp": "stamped tags", "errand-constant": "constant tag", "errand-none": "no tag"}
OWN = ("benchmark", "backbone", "k", "estimate", "low", "high", "n")
NOT_HERE = "(published values, not measured here)"
FAINT: dict[str, Any] = {"color": PALETTE["gap"], "linewidth": 0.7, "markersize": 2.2, "zorder": 2}


@styled
def lengths(published: pd.DataFrame, implied: pd.DataFrame, own: pd.DataFrame) -> Figure:
    """Accuracy against the length of the conversation: what is published on MemLens, and what was measured here.

    published: from `published.memlens()`, of which the systems on the 195-question subset are drawn. implied: from
    `published.implied()`. own: from `stats.accuracy` by benchmark, backbone and condition (percent), with `k`; `times`,
    how many times as many sessions; and `not_applicable`, the questions whose conversation exceeds the model's context.
    Where that is all of them, estimate is NaN and n 0, and the row is marked as not fitting. One backbone, and beside
    WHOLE one condition and K.
    """
    check(own, *OWN, "clusters", "condition", "times", "not_applicable")
    fig = canvas.figure(4.0)
    left, right = fig.subplots(1, 2, width_ratios=[1.5, 1])
    _published_lengths(left, published, implied)
    _own_lengths(right, own)
    return fig


def _published_lengths(ax: Axes, published: pd.DataFrame, implied: pd.DataFrame) -> None:
    import pandas as pd
    from matplotlib.lines import Line2D

    drawn = published[(published["name"] == "accuracy") & (published["kind"] == OVERALL)]
    agents, readers = (drawn[drawn["table"] == name] for name in ("memlens_agents", "memlens_lvlms_195"))
    mark = implied[implied["kind"] == OVERALL].sort_values("length")
    same = f"{mark['backbone'].iloc[0]}-I"
    best = agents.sort_values(["value", "system"]).groupby("length").tail(1).sort_values("length")
    whole: dict[str, Any] = {"color": PALETTE["quiet"], "linewidth": 1.3, "linestyle": "--"}
    for rows, look in ((agents, {"marker": "o"}), (readers, {"marker": "s", "linestyle": ":"})):
        for system, part in rows.sort_values("length").groupby("system"):
            own_look = FAINT | look | (whole if system == same else {})
            ax.plot(part["length"], part["value"], **own_look, label=system)
    ax.plot(best["length"], best["value"], "o", color=INK, markersize=4, label="best agent", zorder=3)
    ax.plot(mark["length"], mark["value"], **DIAMOND, label="DeliverMem")
    longest = readers["length"].max()
    floor = agents.loc[agents["length"] >= longest, "value"].max() + 2
    _name(ax, agents, 2.9, x=1.0, beside=True)
    _name(ax, readers, 2.9, x=longest * 1.08, floor=floor, dark=[same])
    ax.set_xscale("log", base=2)
    ticks = sorted(set(agents["length"]) | set(readers["length"]))
    ax.set_xticks(ticks, [f"{tick}K" for tick in ticks])
    ax.minorticks_off()
    ax.set_xlim(min(ticks) / 1.12, max(ticks) * 1.04)
    ax.set_ylim(0, 72)
    ax.grid(axis="y")
    ax.set_xlabel("nominal length of the conversation (tokens)")
    ax.set_ylabel("accuracy (% of MemLens's questions)")
    n = span(pd.concat([agents, readers])["n"])
    ax.set_title(f"published on MemLens, n = {n} questions\n{NOT_HERE}", color=PALETTE["quiet"])
    printed = published.set_index("name")["printed"]
    either = " to ".join(printed[name] for name in ("half_width_least", "half_width_greatest"))
    named = (
        (DIAMOND, f"paper: DeliverMem on {mark['backbone'].iloc[0]}, from stated margins"),
        (FAINT | {"marker": "s"} | whole, f"{same} reading all of it"),
        (FAINT | {"marker": "s", "linestyle": ":"}, "other models reading all of it"),
        (FAINT | {"marker": "o"}, f"memory agents (half a 95 % interval: {either}); black: best"),
    )
    handles = [Line2D([], [], **look, label=label) for look, label in named]
    corner: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.02, -0.01)}
    ax.legend(handles=handles, **corner, fontsize=6.5, labelspacing=0.3)


def _own_lengths(ax: Axes, own: pd.DataFrame) -> None:
    own = own.sort_values("times", ignore_index=True)
    own["x"] = own["times"].rank(method="dense") - 1
    reads = own["condition"] == WHOLE
    who, k, _ = _one(own, "backbone"), _one(own[~reads], "k"), _one(own[~reads], "condition")
    if own.duplicated(["benchmark", "condition"]).any():
        raise ValueError("the table must have one row a benchmark and condition")
    for arm, of, side in zip(ARMS, (~reads, reads), (-1, 1), strict=True):
        colour, marker, line, _ = ARMS[arm]
        rows = own[of].assign(x=own["x"] + 0.06 * side * reads.any())
        known, beyond = rows[rows["estimate"].notna()], rows[rows["estimate"].isna()]
        look: dict[str, Any] = {"color": PALETTE[colour], "zorder": 3}
        for row in known.to_dict("records"):
            if not math.isnan(row["low"]):
                ax.vlines(row["x"], row["low"], row["high"], linewidth=1.2, **look)
        if len(known):
            ax.plot(known["x"], known["estimate"], marker=marker, linestyle=line, label=arm, **look)
        if len(beyond):
            cross: dict[str, Any] = {"marker": "x", "linestyle": "none", "clip_on": False} | look
            ax.plot(beyond["x"], [0.5] * len(beyond), **cross, label=f"{arm}: none fits the model")
    times, ticks = own["times"].unique(), []
    for length in times:
        said = [f"{length:g}x"]
        for (*_, letter), of in zip(ARMS.values(), (~reads, reads), strict=True):
            said += [f"{letter} {n}" for n in own.loc[of & (own["times"] == length), "n"]]
        ticks.append("\n".join(said))
    ax.set_xticks(range(len(times)), ticks)
    ax.set_xlim(-0.6, len(times) - 0.4)
    ax.set_ylim(0, 128)
    ax.set_yticks(range(0, 101, 20))
    ax.grid(axis="y")
    base = str(own["benchmark"].iloc[0])
    ax.set_xlabel(f"length (1x: {base}), n by arm")
    ax.set_ylabel(f"accuracy (% of {base}'s questions)")
    size = counted(own.groupby("times")["clusters"].max(), "conversation")
    title = f"measured here: {who} on {base}, {size} each, K = {k}"
    ax.set_title(canvas.wrap(title, 2.2, 8, bold=True))
    ax.legend(loc="upper left", fontsize=6.5)


@styled
def sessions(
    published: pd.DataFrame,
    own: pd.DataFrame,
    *,
    errand: pd.DataFrame | None = None,
    paper: pd.DataFrame | None = None,
) -> Figure:
    """Success against sessions in memory: DMV-Bench's published systems on both back-ends; below, what is had here.

    published: from `published.dmv()`, of which Table 2 is drawn, with intervals where it states them. own: from
    `stats.accuracy` of one condition by benchmark, backbone, k (percent), with `sessions`, J. errand: the same by
    condition of the agent's loop on one benchmark, drawn in a panel of its own. paper: from `published.paper()`, whose
    largest margin is said, as its back-end is not stated. One backbone and K a panel.
    """
    check(own, *OWN, "sessions", "clusters")
    systems = published[(published["table"] == "dmv_systems") & (published["name"] == "success")]
    check(systems, "system", "backbone", "length", "value", "low", "high", "n")
    fig = canvas.figure(5.6)
    parts: Any = fig.subfigures(2, 1, height_ratios=[1.35, 1])
    backbones = sorted(set(systems["backbone"]), reverse=True)
    axes = parts[0].subplots(1, len(backbones), sharey=True, squeeze=False)[0]
    for ax, backbone in zip(axes, backbones, strict=True):
        _back_end(ax, systems[systems["backbone"] == backbone], backbone)
    axes[0].set_ylabel("task success (% of DMV-Bench's probes)")
    stated = ""
    if paper is not None:
        row = paper[paper["name"] == "margin_largest"].to_dict("records")[0]
        stated = (
            f"; paper: DeliverMem's largest margin over the strongest is {signed(row['value'])} points, at J = "
            f"{row['length']}, its back-end not stated"
        )
    heading = f"published on DMV-Bench, bars: 95 % intervals where stated{stated} {NOT_HERE}"
    look: dict[str, Any] = {"fontsize": 8, "fontweight": "bold", "color": PALETTE["quiet"]}
    parts[0].suptitle(canvas.wrap(heading, canvas.WIDTH - 0.3, 8, bold=True), x=0.01, ha="left", **look)
    axes = parts[1].subplots(1, 1 if errand is None else 2, squeeze=False)[0]
    _own_sessions(axes[0], own, wide=errand is None)
    if errand is not None:
        _errands(axes[1], errand)
    return fig


def _back_end(ax: Axes, rows: pd.DataFrame, backbone: str) -> None:
    rows = rows.sort_values("length", ignore_index=True)
    rows["x"] = rows["length"].rank(method="dense") - 1
    bounded = rows[rows["low"].notna()]
    ax.vlines(bounded["x"], bounded["low"], bounded["high"], color=INK, linewidth=1.2)
    known = [*bounded["system"].unique()]
    for system, part in rows.groupby("system"):
        look = {"color": INK, "markersize": 4, "zorder": 3} if system in known else FAINT
        ax.plot(part["x"], part["value"], "o-", **look, label=system)
    _name(ax, rows, 6.4, x=1.0, beside=True, dark=known)
    _sized(ax, rows, "length")
    ax.set_xlim(-0.25, rows["x"].max() + 0.15)
    ax.set_ylim(-3, 100)
    ax.grid(axis="y")
    ax.set_xlabel("sessions in memory, J")
    ax.set_title(f"back-end {backbone}", color=PALETTE["quiet"])


def _own_sessions(ax: Axes, own: pd.DataFrame, *, wide: bool) -> None:
    rows = own.sort_values("sessions").reset_index(drop=True)
    shop = _one(rows.assign(shop=rows["benchmark"].str.replace(r"-\d+$", "", regex=True)), "shop")
    known = rows[rows["low"].notna()]
    ax.vlines(known.index, known["low"], known["high"], color=PALETTE["pixels"], linewidth=1.2, zorder=3)
    ax.plot(rows.index, rows["estimate"], "o-", color=PALETTE["pixels"], label="DeliverMem")
    _sized(ax, rows, "sessions")
    ax.set_xlim(-0.25, len(rows) - 0.75)
    ax.set_ylim(0, 103)
    ax.grid(axis="y")
    ax.set_xlabel("sessions in memory, J")
    ax.set_ylabel(f"right product named\n(% of {shop}'s probes)")
    text = f"measured here: {_one(rows, 'backbone')} on {shop}, {counted(rows['clusters'], 'chain')}, "
    text += f"K = {_one(rows, 'k')}"
    ax.set_title(canvas.wrap(text, 6.2 if wide else 2.8, 8, bold=True))


def _errands(ax: Axes, errand: pd.DataFrame) -> None:
    check(errand, *OWN, "condition", "clusters")
    by_name = {row["condition"]: row for row in errand.to_dict("records")}
    names = [name for name in ERRANDS if name in by_name]
    for y, name in enumerate(names):
        row = by_name[name]
        colour = PALETTE["pixels"] if name == "errand-stamp" else PALETTE["gap"]
        if math.isnan(row["estimate"]):
            ax.text(2, y, "not judged", va="center", color=PALETTE["quiet"])
            continue
        whisker(ax, row, y, colour)
        ax.plot(row["estimate"], y, "o", color=colour, label=name, clip_on=False)
    ax.set_yticks(range(len(names)), [ERRANDS[name] for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, 103)
    ax.set_xlabel("target's page reached (% of errands)")
    text = f"measured here: {_one(errand, 'backbone')}'s walks on {_one(errand, 'benchmark')}, n = "
    text += f"{span(errand['n'])} in {counted(errand['clusters'], 'chain')}, K = {_one(errand, 'k')}"
    ax.set_title(canvas.wrap(text, 2.6, 8, bold=True))


def _name(
    ax: Axes,
    rows: pd.DataFrame,
    gap: float,
    *,
    x: float,
    beside: bool = False,
    floor: float = 0.0,
    dark: Sequence[str] = (),
) -> None:
    """Systems' names beside the ends of their lines, `gap` apart; equal values share a place. x: in data, or with
    `beside` as a fraction of the axes."""
    last = rows.sort_values(["length", "system"]).groupby("system").tail(1)
    groups = {value: [*part["system"]] for value, part in last.groupby("value")}
    where = ax.get_yaxis_transform() if beside else ax.transData
    ys = [max(y, floor + i * gap) for i, y in enumerate(apart([*groups], gap))]
    for names, y in zip(groups.values(), ys, strict=True):
        look: dict[str, Any] = {"fontsize": 6.5, "va": "center", "annotation_clip": False}
        look["color"] = INK if set(dark) & set(names) else PALETTE["quiet"]
        at: dict[str, Any] = {"xycoords": where, "textcoords": "offset points"}
        ax.annotate(",\n".join(names), (x, y), (4, 0), **at, **look)


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Ascending positions at least `gap` apart, as near to ascending `values` as can be (least squares).

    Source: isotonic regression by pooling adjacent violators (Ayer et al. 1955), after taking i * gap from each.
    """
    blocks: list[tuple[float, int]] = []
    for i, value in enumerate(values):
        blocks.append((value - i * gap, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, m), (b, n) = blocks[-2:]
            blocks[-2:] = [((a * m + b * n) / (m + n), m + n)]
    level = [mean for mean, size in blocks for _ in range(size)]
    return [mean + i * gap for i, mean in enumerate(level)]


def _sized(ax: Axes, rows: pd.DataFrame, column: str) -> None:
    """Places on the x axis in the order of a column, each with its n."""
    texts = [f"{label}\nn = {span(part['n'])}" for label, part in rows.groupby(column)]
    ax.set_xticks(range(len(texts)), texts)


def _one(table: pd.DataFrame, column: str) -> object:
    found = sorted(set(table[column]))
    if len(found) != 1:
        raise ValueError(f"the table must have one {column}, not {len(found)}; select one")
    return found[0]
