"""Figures: a table in, a matplotlib Figure out. No statistics, no files, no global state.

Every figure names on its face the backbone, the benchmark and n. The paper's published values, where drawn,
are hollow diamonds under a heading of their own and are never mixed with what was measured here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from delivermem import canvas
from delivermem.canvas import INK, PALETTE, bracket, record_numbers, save_figure, signed, style, styled
from delivermem.prompt_figure import delivered

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CONDITIONS", "KINDS", "PALETTE", "TERMS", "by_kind", "conditions", "decomposition", "delivered",
    "failures", "record_numbers", "save_figure", "style",
]  # fmt: skip

CONDITIONS = {
    "gold-pixels": "gold messages, pixels",
    "gold-text": "gold messages, text only",
    "bm25-pixels": "BM25 messages, pixels",
    "bm25-text": "BM25 messages, text only",
    "recent-pixels": "most recent, pixels",
    "random-pixels": "random, pixels",
}
KINDS = {
    "information_extraction": "information\nextraction",
    "multi_session_reasoning": "multi-session\nreasoning",
    "temporal_reasoning": "temporal\nreasoning",
    "knowledge_update": "knowledge\nupdate",
    "answer_refusal": "answer\nrefusal",
}
TERMS = {
    "delivery": ("delivery (pixels - text only)", "pixels", "delivery_term", ("fixed", "broken")),
    "retrieval": ("retrieval (gold - retrieved)", "retrieval", "retrieval_term", ()),
    "gap": ("gap (delivery - retrieval)", "gap", "gap", ("gap_fixed", "gap_broken")),
}


@styled
def decomposition(terms: pd.DataFrame, *, paper: pd.DataFrame | None = None) -> Figure:
    """Delivery and retrieval terms and the gap between them, per backbone, as a forest plot with its table.

    terms: from `stats.decomposition` (benchmark, backbone, k, term, points, low, high in percentage points,
    n, clusters, fixed, broken, p, p_cluster); query-blind terms are left to `conditions`. paper: from
    `published.paper()`, drawn below under its own heading.
    """
    panels = [*_panels(terms[terms["term"].isin(list(TERMS))], "term", "points", "p_cluster")]
    rows = len(panels) + (paper is not None)
    fig = canvas.figure(0.7 + 0.98 * rows)
    heights = [4.4, *[3.0] * (rows - 1)]
    axes = fig.subplots(rows, 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for i, ax in enumerate(axes):
        ax.set_yticks(
            range(len(TERMS)), [label.replace(" - ", f" {canvas.MINUS} ") for label, *_ in TERMS.values()]
        )
        ax.set_ylim(len(TERMS) - 0.5, -1.9 if i == 0 else -0.5)
        ax.axvline(0, color=PALETTE["quiet"], linewidth=0.8, zorder=1.5)
    header = ("points [95 % interval]", "fixed /\nbroken", "p, by\nquestion", "p, by\nconversation")
    _cells(axes[0], -0.65, header, PALETTE["quiet"], va="bottom")
    for ax, (caption, part) in zip(axes, panels, strict=False):
        ax.set_title(caption)
        by_term = {row["term"]: row for row in part.to_dict("records")}
        if len(by_term) < len(TERMS):
            raise ValueError(f"{caption}: the table must have the terms {', '.join(TERMS)}")
        for y, (term, (_, colour, _, _)) in enumerate(TERMS.items()):
            row = by_term[term]
            ax.barh(y, row["points"], 0.56, color=PALETTE[colour], label=term)
            _whisker(ax, row, y)
            estimate = f"{signed(row['points'])} {bracket(row['low'], row['high'], signed)}"
            discordant = f"{row['fixed']} / {row['broken']}"
            _cells(ax, y, (estimate, discordant, canvas.p_value(row["p"]), canvas.p_value(row["p_cluster"])))
    if paper is not None:
        _paper_terms(axes[-1], paper)
    axes[-1].set_xlabel("difference in accuracy (percentage points)")
    ends = [0.0, *(line.get_xdata()[0] for line in axes[-1].lines if line.get_marker() == "D")]
    for _, part in panels:
        ends += [end for column in ("points", "low", "high") for end in part[column] if not math.isnan(end)]
    low, high = (min(ends), max(ends)) if max(ends) - min(ends) > 1 else (-5, 5)
    axes[-1].set_xlim(low - 0.06 * (high - low) * (low < 0), high + 0.06 * (high - low))
    return fig


def _paper_terms(ax: Axes, paper: pd.DataFrame) -> None:
    """The paper's values for its 8B backbone as hollow diamonds, with the digits that it prints."""
    first = paper[paper["name"] == "delivery_term"].iloc[0]
    where = (paper["backbone"] == first["backbone"]) & (paper["benchmark"] == first["benchmark"])
    row_of = {row["name"]: row for row in paper[where].to_dict("records")}
    n = f"n = {row_of['delivery_term']['n']} questions"
    heading = f"paper: {first['backbone']} on {first['benchmark']}, {n}"
    ax.set_title(f"{heading}\n(published values, not measured here)", color=PALETTE["quiet"])
    for y, (_, _, name, pair) in enumerate(TERMS.values()):
        ax.plot(row_of[name]["value"], y, **DIAMOND, label=f"paper {name}")
        discordant = " / ".join(str(row_of[count]["count"]) for count in pair)
        p = row_of["gap_p"]["printed"] if name == "gap" else ""
        _cells(ax, y, (signed(row_of[name]["value"], 2), discordant, p), color=PALETTE["quiet"])


@styled
def conditions(acc: pd.DataFrame) -> Figure:
    """Accuracy per condition with intervals, gold, BM25 and query-blind messages apart, per backbone.

    acc: from `stats.accuracy` by benchmark, backbone, k, condition (percent).
    """
    panels = [*_panels(acc, "condition", "estimate", "recall")]
    fig = canvas.figure(0.6 + 2.0 * len(panels))
    axes = fig.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (caption, part) in zip(axes, panels, strict=True):
        ax.set_title(caption)
        rows = _by_condition(part)
        ys = _positions([row["condition"] for row in rows])
        ax.set_yticks(ys, [_label(row["condition"]) for row in rows])
        ax.set_ylim(ys[-1] + 0.6, -1.95)
        header = ("accuracy [95 % interval]", "gold messages\ndelivered")
        _cells(ax, -0.75, header, PALETTE["quiet"], va="bottom")
        for y, row in zip(ys, rows, strict=True):
            if math.isnan(row["estimate"]):
                _cells(ax, y, (f"not judged{_open(row)}",))
                continue
            ax.barh(y, row["estimate"], 0.72, color=_colour(row["condition"]), label=row["condition"])
            _whisker(ax, row, y)
            recall = "" if math.isnan(row["recall"]) else f"{row['recall']:.0f} %"
            estimate = f"{row['estimate']:.1f} {bracket(row['low'], row['high'])}"
            _cells(ax, y, (estimate, recall + _open(row)))
    axes[-1].set_xlim(0, 100)
    axes[-1].set_xlabel("accuracy (% of questions)")
    return fig


@styled
def by_kind(acc: pd.DataFrame) -> Figure:
    """Accuracy per kind of question and condition as dots with intervals: a column a kind, a row a backbone.

    acc: from `stats.accuracy` by benchmark, backbone, k, kind, condition (percent).
    """
    panels = [*_panels(acc, "kind", "condition", "estimate")]
    found = set(acc["kind"])
    kinds = [kind for kind in KINDS if kind in found] + sorted(found - set(KINDS))
    fig = canvas.figure(0.1 + 2.45 * len(panels))
    parts = fig.subfigures(len(panels), 1, squeeze=False)[:, 0]
    for subfigure, (caption, part) in zip(parts, panels, strict=True):
        subfigure.suptitle(caption, x=0.01, ha="left", fontsize=8, fontweight="bold")
        subfigure.supxlabel("accuracy (% of questions)", fontsize=8)
        axes = subfigure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        names = [row["condition"] for row in _by_condition(part.drop_duplicates("condition"))]
        ys = dict(zip(names, _positions(names), strict=True))
        for ax, kind in zip(axes, kinds, strict=True):
            rows = part[part["kind"] == kind]
            ax.set_yticks([*ys.values()], [_label(name) for name in names])
            ax.set_ylim(max(ys.values()) + 0.6, -0.6)
            ax.set_xlim(-6, 106)
            ax.set_xticks([0, 50, 100])
            title = f"{KINDS.get(kind) or canvas.wrap(kind, 0.8, 7.5)}\nn = {_span(rows['n'])}"
            ax.set_title(title, fontweight="normal", fontsize=7.5)
            for row in rows.to_dict("records"):
                y, colour = ys[row["condition"]], _colour(row["condition"])
                _whisker(ax, row, y, colour)
                ax.plot(row["estimate"], y, "o", color=colour, label=row["condition"], clip_on=False)
    return fig


@styled
def failures(counts: pd.DataFrame, *, paper: pd.DataFrame | None = None) -> Figure:
    """How the text-only arm fails on the questions that the pixels fix: confidently wrong, or by refusing.

    counts: from `stats.failures` (benchmark, backbone, k, n, fixed, confident_wrong, refusal). paper: from
    `published.paper()`, its share of confident wrong answers as a hollow diamond in a row of its own.
    """
    from matplotlib.patches import Patch

    _check(counts, *SETTING, "n", "fixed", "confident_wrong", "refusal")
    rows = counts.sort_values(SETTING).to_dict("records")
    fig = canvas.figure(0.95 + 0.55 * (len(rows) + (paper is not None)))
    ax = fig.subplots()
    labels = []
    for y, row in enumerate(rows):
        labels.append(f"{canvas.wrap(row['backbone'], 2.2, 8)}\non {row['benchmark']}, K = {row['k']}")
        _cells(ax, y, (f"{row['fixed']} of {row['n']}\nquestions fixed",), va="center")
        left = 0.0
        for part, colour, ink in (("confident_wrong", "wrong", "white"), ("refusal", "refusal", INK)):
            width = 100 * row[part] / row["fixed"] if row["fixed"] else 0.0
            ax.barh(y, width, 0.6, left=left, color=PALETTE[colour], label=part)
            if width > 2 + 2 * len(str(row[part])):
                ax.text(left + width / 2, y, str(row[part]), color=ink, ha="center", va="center")
            left += width
    if paper is not None:
        row = paper[paper["name"] == "confident_wrong"].to_dict("records")[0]
        share, y, quiet = 100 * row["count"] / row["n"], len(rows), PALETTE["quiet"]
        ax.plot(share, y, **DIAMOND, label="paper confident_wrong")
        note = f"{row['count']} of {row['n']} confident wrong answers"
        ax.text(share + 2.5, y, note, color=quiet, va="center_baseline")
        labels.append(f"paper: {row['backbone']}\non {row['benchmark']}\n(published, not measured here)")
        fixed = paper[paper["name"] == "fixed"].to_dict("records")[0]
        _cells(ax, y, (f"{fixed['count']} of {fixed['n']}\nquestions fixed",), quiet, "center")
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the questions that the pixels fix (%)")
    named = (("wrong", "confident wrong answer"), ("refusal", "refusal"))
    handles = [Patch(color=PALETTE[colour], label=name) for colour, name in named]
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0)
    return fig


SETTING = ["benchmark", "backbone", "k"]
DIAMOND: dict[str, Any] = {
    "marker": "D", "linestyle": "none", "markerfacecolor": "white", "markeredgecolor": PALETTE["paper"],
    "markeredgewidth": 1.2, "zorder": 4,
}  # fmt: skip


def _check(table: pd.DataFrame, *needed: str) -> None:
    lacking = ", ".join(name for name in needed if name not in table)
    if lacking or table.empty:
        raise ValueError(f"the table has {len(table)} rows and lacks the columns: {lacking or 'none'}")


def _panels(table: pd.DataFrame, *needed: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """(caption, rows) per benchmark, backbone and K in the order of their names."""
    _check(table, *SETTING, *needed, "n", "clusters")
    unique = [name for name in needed if name in ("term", "kind", "condition")]
    for (benchmark, backbone, k), part in table.groupby(SETTING, sort=True):
        who = f"{backbone} on {benchmark}"
        if part.duplicated(unique).any():
            raise ValueError(f"{who}, K = {k}: the table must have one row per {' and '.join(unique)}")
        if "kind" in needed:
            n = f"n = {_span(part.groupby('condition')['n'].sum())} questions"
        else:
            n = f"n = {_span(part['n'])} questions in {_span(part['clusters'])} conversations"
        left_out = part["left_out"].max() if "left_out" in part else 0
        n += f" ({left_out} left out)" if left_out else ""
        yield canvas.wrap(f"{who}, {n}, K = {k}", canvas.WIDTH - 1.9, 8, bold=True), part


def _span(counts: pd.Series[int]) -> str:
    low, high = (int(counts.min()), int(counts.max())) if len(counts) else (0, 0)
    return str(low) if low == high else f"{low} to {high}"


def _label(condition: str) -> str:
    return CONDITIONS.get(condition) or canvas.wrap(condition, 1.6, 8)


def _by_condition(part: pd.DataFrame) -> list[dict[str, Any]]:
    known = list(CONDITIONS)
    rows = {row["condition"]: row for row in part.to_dict("records")}
    return [rows[name] for name in [*known, *sorted(set(rows) - set(known))] if name in rows]


def _group(condition: str) -> str:
    ranker = condition.rsplit("-", 1)[0]
    return "query-blind" if ranker in ("recent", "random") else ranker


def _positions(conditions: Sequence[str]) -> list[float]:
    """A row each, with half a row between groups of rankers."""
    ys = [0.0]
    for before, after in pairwise(conditions):
        ys.append(ys[-1] + (1.0 if _group(before) == _group(after) else 1.5))
    return ys


def _colour(condition: str) -> str:
    if _group(condition) == "query-blind":
        return PALETTE["query-blind"]
    return PALETTE.get(condition.rsplit("-", 1)[-1], PALETTE["quiet"])


def _whisker(ax: Axes, row: Mapping[str, Any], y: float, color: str = INK) -> None:
    if not math.isnan(row["low"]):
        ax.hlines(y, row["low"], row["high"], color=color, linewidth=1.2, zorder=3)


def _cells(ax: Axes, y: float, texts: Sequence[str], color: str = INK, va: str = "center_baseline") -> None:
    """A row of the table to the right of the axes, at fixed offsets in points."""
    look: dict[str, Any] = {"va": va, "color": color, "fontsize": 7.5, "annotation_clip": False}
    for offset, text in zip((10, 122, 164, 206), texts, strict=False):
        at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        ax.annotate(text, (1, y), (offset, 0), **at, **look)


def _open(row: Mapping[str, Any]) -> str:
    """Answers that the estimate does not rest on, said beside it."""
    parts = [f"{row[name]} {name}" for name in ("failed", "unjudged") if row.get(name)]
    return f"  ({', '.join(parts)})" if parts else ""
