"""Figures: a table in, a matplotlib Figure out. No statistics, no files, no global state.

Every figure names on its face the backbone, the benchmark and n. The paper's published values, where drawn,
are hollow diamonds under a heading of their own and are never mixed with what was measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from delivermem import canvas
from delivermem.canvas import INK, PALETTE, bracket, record_numbers, save_figure, signed, style, styled
from delivermem.control_figures import adapter, forest, granularity, tiles, where
from delivermem.panels import DIAMOND, SETTING, cells, check, panels, span, whisker
from delivermem.prompt_figure import delivered

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "CONDITIONS", "KINDS", "PALETTE", "TERMS", "adapter", "by_kind", "conditions", "decomposition", "delivered",
    "failures", "forest", "granularity", "record_numbers", "save_figure", "style", "tiles", "where",
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
    found = [*panels(terms[terms["term"].isin(list(TERMS))], "term", "points", "p_cluster")]
    rows = len(found) + (paper is not None)
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
    cells(axes[0], -0.65, header, PALETTE["quiet"], va="bottom")
    for ax, (caption, part) in zip(axes, found, strict=False):
        ax.set_title(caption)
        by_term = {row["term"]: row for row in part.to_dict("records")}
        if len(by_term) < len(TERMS):
            raise ValueError(f"{caption}: the table must have the terms {', '.join(TERMS)}")
        for y, (term, (_, colour, _, _)) in enumerate(TERMS.items()):
            row = by_term[term]
            ax.barh(y, row["points"], 0.56, color=PALETTE[colour], label=term)
            whisker(ax, row, y)
            estimate = f"{signed(row['points'])} {bracket(row['low'], row['high'], signed)}"
            discordant = f"{row['fixed']} / {row['broken']}"
            cells(ax, y, (estimate, discordant, canvas.p_value(row["p"]), canvas.p_value(row["p_cluster"])))
    if paper is not None:
        _paper_terms(axes[-1], paper)
    axes[-1].set_xlabel("difference in accuracy (percentage points)")
    ends = [0.0, *(line.get_xdata()[0] for line in axes[-1].lines if line.get_marker() == "D")]
    for _, part in found:
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
        cells(ax, y, (signed(row_of[name]["value"], 2), discordant, p), color=PALETTE["quiet"])


@styled
def conditions(acc: pd.DataFrame) -> Figure:
    """Accuracy per condition with intervals, gold, BM25 and query-blind messages apart, per backbone.

    acc: from `stats.accuracy` by benchmark, backbone, k, condition (percent).
    """
    found = [*panels(acc, "condition", "estimate", "recall")]
    fig = canvas.figure(0.6 + 2.0 * len(found))
    axes = fig.subplots(len(found), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (caption, part) in zip(axes, found, strict=True):
        ax.set_title(caption)
        rows = _by_condition(part)
        ys = _positions([row["condition"] for row in rows])
        ax.set_yticks(ys, [_label(row["condition"]) for row in rows])
        ax.set_ylim(ys[-1] + 0.6, -1.95)
        header = ("accuracy [95 % interval]", "gold messages\ndelivered")
        cells(ax, -0.75, header, PALETTE["quiet"], va="bottom")
        for y, row in zip(ys, rows, strict=True):
            if math.isnan(row["estimate"]):
                cells(ax, y, (f"not judged{_open(row)}",))
                continue
            ax.barh(y, row["estimate"], 0.72, color=_colour(row["condition"]), label=row["condition"])
            whisker(ax, row, y)
            recall = "" if math.isnan(row["recall"]) else f"{row['recall']:.0f} %"
            estimate = f"{row['estimate']:.1f} {bracket(row['low'], row['high'])}"
            cells(ax, y, (estimate, recall + _open(row)))
    axes[-1].set_xlim(0, 100)
    axes[-1].set_xlabel("accuracy (% of questions)")
    return fig


@styled
def by_kind(acc: pd.DataFrame) -> Figure:
    """Accuracy per kind of question and condition as dots with intervals: a column a kind, a row a backbone.

    acc: from `stats.accuracy` by benchmark, backbone, k, kind, condition (percent).
    """
    found = [*panels(acc, "kind", "condition", "estimate")]
    asked = set(acc["kind"])
    kinds = [kind for kind in KINDS if kind in asked] + sorted(asked - set(KINDS))
    fig = canvas.figure(0.1 + 2.45 * len(found))
    parts = fig.subfigures(len(found), 1, squeeze=False)[:, 0]
    for subfigure, (caption, part) in zip(parts, found, strict=True):
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
            title = f"{KINDS.get(kind) or canvas.wrap(kind, 0.8, 7.5)}\nn = {span(rows['n'])}"
            ax.set_title(title, fontweight="normal", fontsize=7.5)
            for row in rows.to_dict("records"):
                y, colour = ys[row["condition"]], _colour(row["condition"])
                whisker(ax, row, y, colour)
                ax.plot(row["estimate"], y, "o", color=colour, label=row["condition"], clip_on=False)
    return fig


@styled
def failures(counts: pd.DataFrame, *, paper: pd.DataFrame | None = None) -> Figure:
    """How the text-only arm fails on the questions that the pixels fix: confidently wrong, or by refusing.

    counts: from `stats.failures` (benchmark, backbone, k, n, fixed, confident_wrong, refusal). paper: from
    `published.paper()`, its share of confident wrong answers as a hollow diamond in a row of its own.
    """
    from matplotlib.patches import Patch

    check(counts, *SETTING, "n", "fixed", "confident_wrong", "refusal")
    rows = counts.sort_values(SETTING).to_dict("records")
    fig = canvas.figure(0.95 + 0.55 * (len(rows) + (paper is not None)))
    ax = fig.subplots()
    labels = []
    for y, row in enumerate(rows):
        labels.append(f"{canvas.wrap(row['backbone'], 2.2, 8)}\non {row['benchmark']}, K = {row['k']}")
        cells(ax, y, (f"{row['fixed']} of {row['n']}\nquestions fixed",), va="center")
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
        cells(ax, y, (f"{fixed['count']} of {fixed['n']}\nquestions fixed",), quiet, "center")
    ax.set_yticks(range(len(labels)), labels)
    ax.set_ylim(len(labels) - 0.5, -0.5)
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the questions that the pixels fix (%)")
    named = (("wrong", "confident wrong answer"), ("refusal", "refusal"))
    handles = [Patch(color=PALETTE[colour], label=name) for colour, name in named]
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0)
    return fig


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


def _open(row: Mapping[str, Any]) -> str:
    """Answers that the estimate does not rest on, said beside it."""
    parts = [f"{row[name]} {name}" for name in ("failed", "unjudged") if row.get(name)]
    return f"  ({', '.join(parts)})" if parts else ""
