"""Figures of what reading costs: tokens against length, accuracy against length, accuracy against tokens.

What a prompt that exceeds the context would have taken is drawn hollow: it was counted, not run, and has no accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from delivermem import canvas
from delivermem.canvas import INK, PALETTE, styled
from delivermem.cost import DELIVERED, EVERYTHING, GROUPS
from delivermem.panels import SETTING, check, counted, span

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARMS: dict[str, dict[str, Any]] = {
    DELIVERED: {"color": PALETTE["pixels"], "marker": "o", "linestyle": "-", "zorder": 3},
    EVERYTHING: {"color": PALETTE["quiet"], "marker": "s", "linestyle": "--", "zorder": 3},
}
SPENT = (
    "condition",
    "times",
    "messages",
    "tokens",
    "least",
    "most",
    "ratio",
    "n",
    "clusters",
    "beyond",
    "room",
)
LEVELS = ("condition", "times", "group", "estimate", "low", "high", "n", "asked", "beyond", "room")
POINTS = ("condition", "tokens", "estimate", "low", "high", "n", "clusters", "beyond", "best", "room")
"""Columns that the figures need beside SETTING."""
NOT_HERE = "published values, not measured here"


@styled
def curve(spent: pd.DataFrame, *, paper: pd.DataFrame | None = None) -> Figure:
    """Tokens a question against the length of the conversation, both axes logarithmic, a panel per backbone.

    spent: from `cost.tokens`; marks are means, bars the range over questions, and between the two arms stands the share
    that is delivered. paper: from `published.paper()`, whose delivered tokens are a band on the same axis.
    """
    check(spent, *SETTING, *SPENT)
    found = [*_backbones(spent)]
    fig = canvas.figure(0.2 + 2.9 * len(found))
    for ax, (who, k, part) in zip(fig.subplots(len(found), 1, squeeze=False)[:, 0], found, strict=True):
        n, clusters = counted(part["n"], "question"), counted(part["clusters"], "conversation")
        title = f"{who}, K = {k}, n = {n} in {clusters} a length"
        ax.set_title(canvas.wrap(title, canvas.WIDTH - 0.8, 8, bold=True))
        for name, label in ((EVERYTHING, "everything"), (DELIVERED, f"delivered, K = {k}")):
            _arm(ax, part[part["condition"] == name], name, f"{label}: mean, range")
        _shares(ax, part)
        ends = [*part["least"], *part["most"]]
        if paper is not None:
            ends += _band(ax, paper)
        if not math.isnan(room := part["room"].max()):
            label = f"context of the backbone, {room:,.0f} tokens"
            ax.axhline(room, color=PALETTE["wrong"], linewidth=1, linestyle=":", label=label)
            ends.append(room)
        first = part.sort_values("times").drop_duplicates("times")
        ax.set_xscale("log")
        ax.set_xticks([], minor=True)
        labels = [f"{t:g}x\n{m:,.0f}" for t, m in zip(first["times"], first["messages"], strict=True)]
        ax.set_xticks(first["messages"], labels)
        ax.set_xlim(first["messages"].min() / 1.2, first["messages"].max() * 1.35)
        ax.set_xlabel(f"messages in the conversation (mean; 1x: {first['benchmark'].iloc[0]})")
        _logarithmic(ax, "y", min(ends), max(ends))
        ax.set_ylabel("tokens of the prompt, text and image")
        ax.grid(axis="y")
        _legend(ax)
    return fig


def _arm(ax: Axes, rows: pd.DataFrame, name: str, label: str) -> None:
    """Means with their range; hollow where prompts exceed the context, half filled where some do."""
    look = ARMS[name]
    ax.plot(rows["messages"], rows["tokens"], **look | {"marker": ""})
    ax.vlines(rows["messages"], rows["least"], rows["most"], color=look["color"], linewidth=3.2, alpha=0.4)
    beyond = ("none", "some", "all")
    state = [beyond[(b > 0) + (b == n)] for b, n in zip(rows["beyond"], rows["n"], strict=True)]
    said = {"none": label, "some": "some exceed the context", "all": "exceeds the context: counted, not run"}
    hollow = {
        "some": {"fillstyle": "bottom", "markerfacecoloralt": "white"},
        "all": {"markerfacecolor": "white"},
    }
    for kind in beyond:
        here = [kind == each for each in state]
        if any(here):
            style = look | {"linestyle": "none"} | hollow.get(kind, {})
            ax.plot(rows["messages"][here], rows["tokens"][here], **style, label=said[kind])


def _shares(ax: Axes, part: pd.DataFrame) -> None:
    """What share of everything is delivered, between the marks of each length."""
    for messages, rows in part.groupby("messages"):
        ends = rows.set_index("condition")["tokens"]
        ratio = rows.set_index("condition")["ratio"][EVERYTHING]
        ax.vlines(messages, ends.min(), ends.max(), color=PALETTE["gap"], linewidth=0.6, zorder=1.5)
        at = (messages, math.sqrt(ends.min() * ends.max()))
        look: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontweight": "bold"}
        ax.annotate(_share(ratio), at, (4, 0), fontsize=7.5, **look)


def _share(ratio: float) -> str:
    """1/19, with one digit more below ten; what is not smaller is said as a multiple."""
    if ratio < 1:
        return f"{1 / ratio:.2g} times"
    return f"1/{ratio:.1f}" if ratio < 9.95 else f"1/{ratio:.0f}"


def _band(ax: Axes, paper: pd.DataFrame) -> tuple[float, float]:
    """The paper's delivered tokens; returns where the band begins and ends."""
    low, high = (
        paper[paper["name"] == f"delivered_tokens_{end}"].iloc[0].to_dict() for end in ("low", "high")
    )
    stated = f"{low['value']:,.0f} to {high['value']:,.0f} tokens delivered"
    source = f"{NOT_HERE}; another benchmark, backbone and tokenizer"
    label = canvas.wrap(f"paper: {low['backbone']} on {low['benchmark']}, {stated} ({source})", 1.9, 7.5)
    ax.axhspan(low["value"], high["value"], color=PALETTE["paper"], alpha=0.45, zorder=1, label=label)
    return low["value"], high["value"]


def _logarithmic(ax: Axes, name: str, low: float, high: float) -> None:
    """Make the axis `name` ("x" or "y") logarithmic, with plain numbers at 1, 2 and 5 times the powers of ten."""
    low, high = low / 1.2, high * 1.2
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [lead * 10.0**power for power in powers for lead in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    ax.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    axis = ax.xaxis if name == "x" else ax.yaxis
    axis.set_ticks(ticks, labels=[f"{tick:,.0f}" for tick in ticks])
    axis.set_ticks([], minor=True)


def _legend(ax: Axes) -> None:
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.03), labelspacing=0.9, fontsize=7)


@styled
def accuracy(levels: pd.DataFrame) -> Figure:
    """Accuracy per length of both arms with intervals, a row per backbone, a column per group of questions.

    levels: from `cost.accuracy`. Where no conversation fits the context there is no mark, but the reason. Where some
    do, the mark rests on those, is half filled and not joined to the others, and says how many they are.
    """
    check(levels, *SETTING, *LEVELS)
    found = [*_backbones(levels)]
    fig = canvas.figure(2.75 * len(found))
    parts = fig.subfigures(len(found), 1, squeeze=False)[:, 0]
    for subfigure, (who, k, part) in zip(parts, found, strict=True):
        title = canvas.wrap(f"{who}, K = {k}", 4.1, 8, bold=True)
        subfigure.suptitle(title, x=0.01, ha="left", fontsize=8, fontweight="bold")
        groups = [group for group in GROUPS if group in set(part["group"])]
        axes = subfigure.subplots(1, len(groups), sharey=True, squeeze=False)[0]
        for ax, group in zip(axes, groups, strict=True):
            _levels(ax, part[part["group"] == group], f"{group} questions")
        axes[0].set_ylabel("accuracy (% of questions)")
        base = part["benchmark"].iloc[0]
        subfigure.supxlabel(f"length of the conversation (1x: {base})", fontsize=8)
        names = {DELIVERED: f"delivered, K = {k}", EVERYTHING: "reads everything"}
        drawn = {line.get_label(): line for ax in axes for line in ax.lines}
        shown = {names[arm]: drawn[arm] for arm in ARMS if arm in drawn}
        subfigure.legend(shown.values(), shown.keys(), loc="outside upper right", ncols=2)
    return fig


def _levels(ax: Axes, rows: pd.DataFrame, title: str) -> None:
    """One group of questions: marks with intervals, the arms side by side at each length."""
    times = sorted(set(rows["times"]))
    for shift, (name, look) in zip((-0.13, 0.13), ARMS.items(), strict=True):
        arm = rows[rows["condition"] == name].sort_values("times")
        arm = arm.assign(x=arm["times"].map(times.index) + shift)
        for row in arm.to_dict("records"):
            if not math.isnan(row["low"]):
                ax.vlines(row["x"], row["low"], row["high"], color=look["color"], linewidth=1.2, zorder=3)
            if row["beyond"]:
                _reason(ax, row, look["color"])
        known, some = arm[arm["beyond"] == 0], arm[(arm["beyond"] > 0) & (arm["n"] > 0)]
        ax.plot(known["x"], known["estimate"], **look, label=name)
        half = look | {"linestyle": "none", "fillstyle": "bottom", "markerfacecoloralt": "white"}
        ax.plot(some["x"], some["estimate"], **half, label=f"{name}, some")
    ax.set_title(f"{title}, n = {span(rows['asked'])} a length", fontweight="normal")
    ax.set_xticks(range(len(times)), [f"{length:g}x" for length in times])
    ax.set_xlim(-0.5, len(times) - 0.4)
    ax.set_ylim(-2, 102)
    ax.grid(axis="y")


def _reason(ax: Axes, row: Mapping[str, Any], color: str) -> None:
    """Why prompts of a row were not run: upright in the place of the mark, or beside it where some were."""
    look: dict[str, Any] = {"fontsize": 6.5, "color": color, "linespacing": 1.05, "ha": "left"}
    if row["beyond"] == row["asked"]:
        said = f"exceeds the context\nof {row['room']:,.0f} tokens,\nnot run"
        ax.text(row["x"] - 0.12, 3, said, rotation=90, va="bottom", **look)
    else:
        said = f"n = {row['n']}:\n{row['beyond']} exceed\nthe context"
        y = 50.0 if math.isnan(row["estimate"]) else min(max(row["estimate"], 8.0), 92.0)
        ax.text(row["x"] + 0.09, y, said, va="center", **look)


@styled
def frontier(points: pd.DataFrame) -> Figure:
    """Accuracy against tokens at each K and where everything is read, a panel per benchmark and backbone.

    points: from `cost.frontier`. What no other beats is filled and joined; a hollow mark is beaten by another. Where
    conversations exceed the context, their mean tokens are a dashed line without an accuracy.
    """
    check(points, *SETTING, *POINTS)
    found = [*points.groupby(["benchmark", "backbone"], sort=True)]
    fig = canvas.figure(0.2 + 2.7 * len(found))
    axes = fig.subplots(len(found), 1, squeeze=False)[:, 0]
    for ax, ((benchmark, backbone), part) in zip(axes, found, strict=True):
        ran = part[part["n"] > 0].sort_values("tokens")
        n, clusters = counted(ran["n"], "answerable question"), counted(ran["clusters"], "conversation")
        title = f"{backbone} on {benchmark}, n = {n} in {clusters}"
        ax.set_title(canvas.wrap(title, canvas.WIDTH - 0.8, 8, bold=True))
        best = ran[ran["best"]]
        label = canvas.wrap("on the frontier: no other is right as often for as few tokens", 1.7, 7)
        ax.plot(best["tokens"], best["estimate"], "-", color=INK, linewidth=0.8, label=label)
        for row in ran.to_dict("records"):
            _point(ax, row)
        if not ran["best"].all():
            beaten = canvas.wrap("another is right as often or more for no more tokens", 1.7, 7)
            hollow: dict[str, Any] = {"markerfacecolor": "white", "color": INK, "marker": "o"}
            ax.plot([], [], linestyle="none", **hollow, label=beaten)
        for row in part[part["n"] == 0].to_dict("records"):
            label = f"everything, {row['tokens']:,.0f} tokens: {row['beyond']} of {row['asked']} exceed the context "
            label = canvas.wrap(f"{label}of {row['room']:,.0f} tokens, not run", 1.7, 7)
            ax.axvline(row["tokens"], color=PALETTE["quiet"], linestyle="--", label=label)
        _logarithmic(ax, "x", part["tokens"].min() / 1.1, part["tokens"].max() * 1.1)
        ax.set_xlabel("tokens of the prompt, text and image (mean)")
        ax.set_ylim(0, 102)
        ax.grid(axis="y")
        ax.set_ylabel("accuracy (% of questions)")
        _legend(ax)
    return fig


def _point(ax: Axes, row: Mapping[str, Any]) -> None:
    whole = row["condition"] == EVERYTHING
    look = ARMS[EVERYTHING if whole else DELIVERED]
    if not math.isnan(row["low"]):
        ax.vlines(row["tokens"], row["low"], row["high"], color=look["color"], linewidth=1.2, zorder=3)
    inside = {} if row["best"] else {"markerfacecolor": "white"}
    ax.plot(row["tokens"], row["estimate"], **look | {"linestyle": "none", "zorder": 4} | inside)
    ends = [end for end in (row["low"], row["estimate"], row["high"]) if not math.isnan(end)]
    under = min(ends) > 14
    at = (row["tokens"], min(ends) if under else max(ends))
    place: dict[str, Any] = {"textcoords": "offset points", "va": "top" if under else "bottom"}
    place |= {"ha": "center" if whole else "left", "fontsize": 7.5, "color": look["color"]}
    said = "everything" if whole else f"K = {row['k']:.0f}"
    ax.annotate(said, at, (0 if whole else 2, -2 if under else 2), **place)


def _backbones(table: pd.DataFrame) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """(backbone on the shortest benchmark, K, rows by length) of each backbone."""
    for (backbone, k), part in table.groupby(["backbone", "k"], sort=True):
        if part.duplicated([name for name in ("times", "group", "condition") if name in part]).any():
            raise ValueError(
                f"{backbone}, K = {k}: the table must have one row per length, group and condition"
            )
        ordered = part.sort_values("times")
        lengths = ordered["times"].nunique()
        several = f" at {lengths} lengths" if lengths > 1 else ""
        yield f"{backbone} on {ordered['benchmark'].iloc[0]}{several}", k, ordered
