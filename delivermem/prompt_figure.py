"""One prompt drawn as the model receives it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delivermem.canvas import INK, PALETTE, WIDTH, figure, styled, wrap
from delivermem.records import Answer, Prompt, Slot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLACE = "\N{WHITE SQUARE CONTAINING BLACK SMALL SQUARE}"
"""Stands in a drawn text where the model gets the pixels."""
LONGEST = 8
"""Most lines of one text; what is cut is counted in its place."""


@styled
def delivered(prompt: Prompt, answer: Answer | str | None = None, *, verdict: str = "") -> Figure:
    """One prompt as the model receives it: tag, date, text and delivered picture of each item, in order.

    answer: what the model replied; verdict: "right" or "wrong", which colours it. Long texts are cut, with a
    note of what was left out.
    """
    fig = figure(1.0)
    fig.set_layout_engine("none")
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    side, top = 0.75, 0.1
    quiet = {"fontsize": 7, "color": PALETTE["quiet"], "style": "italic"}
    top = _paragraph(ax, 0.12, top, f"{prompt.system}\n{prompt.preamble.strip()}", WIDTH - 0.24, **quiet)
    for item in prompt.items:
        slots = [part for part in item.parts if isinstance(part, Slot)]
        text = "".join(part if isinstance(part, str) else PLACE for part in item.parts).strip()
        ax.plot([0.12, WIDTH - 0.12], [top + 0.03] * 2, color="#DDDDDD", linewidth=0.6)
        top += 0.1
        for i, slot in enumerate(slots):
            scale = side / max(slot.image.size)
            width, height = slot.image.width * scale, slot.image.height * scale
            left = 0.12 + i * (side + 0.06)
            ax.imshow(slot.image, extent=(left, left + width, top + height, top), aspect="auto")
        left = 0.12 + max(len(slots), 1) * (side + 0.06) + 0.06 if prompt.slots else 0.12
        head = "  ".join(part for part in (item.tag if slots else "", item.time) if part)
        end = _paragraph(ax, left, top, head, WIDTH - left - 0.12, fontsize=7, color=PALETTE["quiet"])
        end = _paragraph(ax, left, end, text, WIDTH - left - 0.12)
        top = max(end, top + side if slots else 0) + 0.03
    ax.plot([0.12, WIDTH - 0.12], [top + 0.03] * 2, color=PALETTE["quiet"], linewidth=0.9)
    top = _paragraph(ax, 0.12, top + 0.1, prompt.question, WIDTH - 0.24, fontweight="bold")
    if answer is not None:
        reply = answer if isinstance(answer, str) else answer.text
        mark = {"right": "✓ ", "wrong": "✗ "}.get(verdict, "")
        colour = PALETTE.get(verdict, INK)
        top = _paragraph(ax, 0.12, top, f"{mark}{reply}", WIDTH - 0.24, fontweight="bold", color=colour)
    fig.set_figheight(top + 0.08)
    ax.set_xlim(0, WIDTH)
    ax.set_ylim(top + 0.08, 0)
    return fig


def _paragraph(ax: Axes, left: float, top: float, text: str, width: float, **look: Any) -> float:
    """Draw wrapped text in axes whose units are inches, y downwards; returns where the next one may start."""
    if not text:
        return top
    size: float = look.setdefault("fontsize", 8)
    lines = wrap(text, width, size, bold=look.get("fontweight") == "bold").split("\n")
    if len(lines) > LONGEST:
        lines = [*lines[: LONGEST - 1], f"[… {len(lines) - LONGEST + 1} more lines]"]
    step = 1.3 * size / 72
    for i, line in enumerate(lines):
        ax.text(left, top + (i + 0.8) * step, line, va="baseline", **look)
    return top + len(lines) * step
