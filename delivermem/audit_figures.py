"""Figures of the audit: how each arm fails, which neighbour is opened, and one trace with what it was shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delivermem import canvas
from delivermem.audit import ARM, FAILURES, SHARES
from delivermem.canvas import INK, PALETTE, WIDTH, bracket, styled, wrap
from delivermem.panels import DIAMOND, SETTING, check, whisker

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from delivermem.records import Slot

COLOURS = {
    "not retrieved": PALETTE["retrieval"],
    "unreadable": PALETTE["gap"],
    "nothing opened": PALETTE["refusal"],
    "out of context": "#B3DDF5",
    "other product": PALETTE["query-blind"],
    "cue not named": "#EEBF99",
    "cue named": PALETTE["wrong"],
}
"""Colour of each class: those without the target in context are kin, and so are those that open a neighbour."""
STATED = {"neighbour": "neighbour_failures", "named": "named_then_missed"}
"""Shares that the paper states, by their names in `published.paper()`."""


@styled
def by_class(
    counts: pd.DataFrame,
    shares: pd.DataFrame,
    labels: Mapping[str, str],
    *,
    paper: pd.DataFrame | None = None,
) -> Figure:
    """Failures of each arm by class, and below the shares that the paper speaks of, with intervals.

    counts: from `audit.table`, shares: from `audit.shares`, of one benchmark and backbone. labels: condition -> what it
    is called; arms follow their order. paper: from `published.paper()`, its shares as hollow diamonds in rows of their
    own.
    """
    check(counts, *ARM, "probes", "failures", *FAILURES)
    check(shares, *ARM, "share", "estimate", "low", "high", "held", "n")
    arms = [name for name in labels if name in set(counts["condition"])]
    if counts[SETTING].drop_duplicates().shape[0] > 1 or len(arms) < len(counts):
        raise ValueError("the table must be of one benchmark and backbone, one row a labelled arm")
    stated = {} if paper is None else {row["name"]: row for row in paper.to_dict("records")}
    rows = sum(len(arms) + (STATED.get(share) in stated) + 1.2 for share in SHARES)
    fig = canvas.figure(1.95 + 0.3 * len(arms) + 0.185 * rows)
    top, below = fig.subplots(2, 1, sharex=True, height_ratios=(0.3 * len(arms) + 0.25, 0.185 * rows))
    of, first = counts.set_index("condition"), counts.iloc[0]
    lines = _stacks(top, of, arms, labels)
    title = f"{first['backbone']} on {first['benchmark']}, K = {first['k']}: failures by class"
    top.set_title(wrap(title, 5.2, 8, bold=True), pad=6 + 12 * lines)
    _shares(below, shares, arms, labels, stated)
    below.set_xlim(0, 100)
    quoted = [stated[name] for name in STATED.values() if name in stated]
    who = [f"{row['backbone']} on {row['benchmark']}" for row in quoted]
    note = f"\npaper: {', '.join(dict.fromkeys(who))}; published values, not measured here" if who else ""
    below.set_xlabel(f"share (%){note}")
    return fig


def _stacks(ax: Axes, of: pd.DataFrame, arms: Sequence[str], labels: Mapping[str, str]) -> int:
    """A stack of classes an arm, as shares of its failures; returns how many lines the legend has."""
    from matplotlib.patches import Patch

    for y, arm in enumerate(arms):
        row, left = of.loc[arm], 0.0
        for name, colour in COLOURS.items():
            width = 100 * row[name] / row["failures"] if row["failures"] else 0.0
            ax.barh(y, width, 0.66, left=left, color=colour, label=f"{arm}: {name}")
            if width > 2 + 2 * len(str(row[name])):
                ink = "white" if name in ("cue named", "other product") else INK
                ax.text(left + width / 2, y, str(row[name]), color=ink, ha="center", va="center_baseline")
            left += width
        unjudged = f", {row['unjudged']} not judged" if row["unjudged"] else ""
        _beside(ax, y, f"{row['failures']} of {row['probes']} fail{unjudged}")
    ax.set_yticks(range(len(arms)), [labels[arm] for arm in arms])
    ax.set_ylim(len(arms) - 0.5, -0.5)
    shown = [name for name in COLOURS if of[name].sum()]
    handles = [Patch(color=colour, label=name) for name, colour in COLOURS.items() if name in shown]
    if not handles:
        ax.text(50, (len(arms) - 1) / 2, "no arm has a failure", ha="center", va="center")
        return 0
    ax.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 0.99), ncols=4, borderpad=0)
    return -(-len(handles) // 4)


def _shares(
    ax: Axes,
    shares: pd.DataFrame,
    arms: Sequence[str],
    labels: Mapping[str, str],
    stated: Mapping[str, Mapping[str, Any]],
) -> None:
    """A heading a share, a row an arm, the paper's below."""
    table = shares.set_index(["share", "condition"])
    ticks: list[tuple[float, str]] = []
    y = 0.0
    for share, said in SHARES.items():
        ax.annotate(
            said,
            (0, y),
            xycoords=("axes fraction", "data"),
            va="center_baseline",
            fontsize=7.5,
            fontweight="bold",
        )
        for arm in arms:
            y += 1
            row = table.loc[(share, arm)].to_dict()
            ticks.append((y, labels[arm]))
            if row["n"]:
                whisker(ax, row, y)
                ax.plot(
                    row["estimate"], y, "o", color=PALETTE["wrong"], label=f"{arm}: {share}", clip_on=False
                )
                interval = bracket(row["low"], row["high"])
                _beside(ax, y, f"{row['estimate']:.1f} {interval}, {row['held']} of {row['n']}")
            else:
                _beside(ax, y, "no such failure", PALETTE["quiet"])
        quoted = stated.get(STATED.get(share, ""))
        if quoted is not None:
            y += 1
            ticks.append((y, "paper"))
            ax.plot(quoted["value"], y, **DIAMOND, label=f"paper {quoted['name']}", clip_on=False)
            _beside(ax, y, f"{quoted['printed']} (published)", PALETTE["quiet"])
        y += 1.2
    ax.set_yticks([at for at, _ in ticks], [text for _, text in ticks], fontsize=7.5)
    ax.set_ylim(y - 0.6, -0.7)


def _beside(ax: Axes, y: float, text: str, color: str = INK) -> None:
    """A note to the right of the axes."""
    at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
    ax.annotate(
        text, (1, y), (10, 0), va="center_baseline", color=color, fontsize=7.5, annotation_clip=False, **at
    )


@styled
def distance(found: pd.DataFrame, labels: Mapping[str, str]) -> Figure:
    """Which neighbour is opened, by its distance from the target in the order of delivery, a panel an arm.

    found: from `audit.distances`, of one benchmark and backbone. Dashes: what opening any neighbour alike would give.
    """
    check(found, *ARM, "distance", "share", "alike", "count", "n")
    arms = [name for name in labels if name in set(found["condition"])]
    fig = canvas.figure(2.35)
    axes = fig.subplots(1, len(arms), sharey=True, sharex=True, squeeze=False)[0]
    for ax, arm in zip(axes, arms, strict=True):
        part = found[found["condition"] == arm].sort_values("distance")
        n = int(part["n"].iloc[0])
        ax.set_title(f"{labels[arm]}\nn = {n} opened neighbour{'s' * (n != 1)}", fontsize=7.5)
        ax.axvline(0, color=PALETTE["quiet"], linewidth=0.8, linestyle=(0, (2, 2)))
        ax.grid(visible=False, axis="x")
        ax.grid(visible=True, axis="y")
        shown = part if n else part.iloc[:0]
        ax.bar(shown["distance"], shown["share"], 0.7, color=PALETTE["wrong"], label=arm)
        ax.plot(shown["distance"], shown["alike"], "_", color=INK, markersize=13, label="any neighbour alike")
        ax.set_xticks(sorted({*part["distance"], 0}))
        ax.set_xlim(min(part["distance"]) - 0.6, max(part["distance"]) + 0.6)
        if not n:
            look: dict[str, Any] = {"color": PALETTE["quiet"], "backgroundcolor": "white", "ha": "center"}
            ax.text(0.5, 0.5, "none opened", transform=ax.transAxes, **look)
    highest = max([*found["share"].dropna(), *found["alike"].dropna()], default=0.0)
    axes[0].set_ylim(0, min(100.0, max(40.0, 1.1 * highest)))
    axes[0].set_ylabel("share (%)")
    first = found.iloc[0]
    fig.suptitle(
        wrap(f"{first['backbone']} on {first['benchmark']}, K = {first['k']}", 6.8, 8, bold=True),
        fontsize=8,
        fontweight="bold",
    )
    said = "places from the target to the opened neighbour, as delivered (0: the target; −: before it)"
    fig.supxlabel(f"{said}; dashes: any neighbour alike", fontsize=7.5)
    return fig


@styled
def worked(
    slots: Sequence[Slot],
    names: Sequence[str],
    *,
    target: int,
    opened: int,
    box: tuple[int, int, int, int] | None,
    said: str,
    mark: tuple[int, int] = (0, 0),
    asked: str,
    heading: str,
) -> Figure:
    """One trace with what it was shown: the delivered pictures in order, the cue boxed, the trace's words below.

    slots: the pictures of the delivered memory as the model got them; names: what stands under each. target, opened:
    places from 1 of the target and of the product opened, 0 where it is none of them. box: the cue in the target's
    picture (left, top, right, bottom in pixels). said, mark: the reasoning, and the characters that name the cue.
    """
    from matplotlib.patches import Rectangle

    if not slots or len(names) != len(slots):
        raise ValueError(f"{len(slots)} pictures and {len(names)} names; give one name to each picture")
    head = wrap(heading, WIDTH - 0.2, 8, bold=True)
    quote = wrap(f"“{said}”", WIDTH - 0.3, 8).split("\n")
    side = min(1.34, (WIDTH - 0.2) / len(slots) - 0.1)
    top = 0.34 + 0.15 * (head.count("\n") + 1)
    height = top + side + 0.42 + 0.15 * (len(quote) + 1)
    fig = canvas.figure(height)
    fig.set_layout_engine("none")
    page = fig.add_axes((0, 0, 1, 1), xlim=(0, WIDTH), ylim=(height, 0))
    page.set_axis_off()
    page.text(0.1, 0.08, head, va="top", fontweight="bold")
    for i, (slot, name) in enumerate(zip(slots, names, strict=True), 1):
        left = (WIDTH - len(slots) * (side + 0.1) + 0.1) / 2 + (i - 1) * (side + 0.1)
        ax = fig.add_axes((left / WIDTH, 1 - (top + side) / height, side / WIDTH, side / height))
        ax.imshow(slot.image, interpolation="nearest")
        ax.grid(visible=False)
        ax.set(xticks=[], yticks=[])
        roles = [role for role, place in (("target", target), ("opened", opened)) if place == i]
        colour = PALETTE["right" if i == target else "wrong"] if roles else "#CCCCCC"
        for spine in ax.spines.values():
            spine.set(visible=True, edgecolor=colour, linewidth=2.2 if roles else 0.7)
        ax.set_title(", ".join(roles), color=colour, loc="center", pad=4)
        ax.set_xlabel(name, fontsize=7.5, labelpad=3)
        if i == target and box is not None:
            corner, size = (box[0] - 2.5, box[1] - 2.5), (box[2] - box[0] + 4, box[3] - box[1] + 4)
            for edge, width in (("white", 3.0), (PALETTE["right"], 1.6)):
                ax.add_patch(Rectangle(corner, *size, fill=False, edgecolor=edge, linewidth=width))
    at = top + side + 0.42
    page.text(0.15, at, f"asked for: {asked}", fontsize=7.5, color=PALETTE["quiet"])
    start = (
        1 if len("".join(quote)) + len(quote) - 1 == len(said) + 2 else len(said) + 2
    )  # no word was broken
    for number, line in enumerate(quote, 1):
        cuts = [min(max(cut + start, 0), len(line)) for cut in mark] if any(mark) else [0, 0]
        _line(page, at + 0.15 * number, line, cuts)
        start -= len(line) + 1
    return fig


def _line(page: Axes, y: float, line: str, cuts: Sequence[int]) -> None:
    """One line of a quotation, its characters between the cuts in the colour of the target."""
    before: Any = None
    space = 0.0
    for part, colour in (
        (line[: cuts[0]], INK),
        (line[cuts[0] : cuts[1]], PALETTE["right"]),
        (line[cuts[1] :], INK),
    ):
        if part.strip():
            space += 2.5 * (len(part) - len(part.lstrip()))
            look: dict[str, Any] = {"va": "baseline", "color": colour, "annotation_clip": False}
            if before is None:
                before = page.annotate(part.strip(), (0.15, y), **look)
            else:
                near: dict[str, Any] = {"xycoords": (before, "data"), "textcoords": "offset points"}
                before = page.annotate(part.strip(), (1, y), (space, 0), **near, **look)
            space = 2.5 * (len(part) - len(part.rstrip()))
