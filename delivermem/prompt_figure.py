"""One prompt as the model receives it: drawn, and as HTML."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING, Any

from delivermem.canvas import INK, PALETTE, WIDTH, figure, styled, wrap
from delivermem.records import IMAGE_MARK, Answer, Prompt, Slot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

PLACE = "\N{WHITE SQUARE CONTAINING BLACK SMALL SQUARE}"
"""Stands in a drawn text where the model gets the pixels."""
LONGEST = 8
"""Most lines of one text; what is cut is counted in its place."""
MANY = 20
"""More delivered records than this are listed folded."""
LEAST_SIDE = 192
"""CSS pixels of a picture's longer side at least: a smaller one is enlarged by a whole factor."""
CSS = f"""
.delivermem{{max-width:60rem;margin:0 auto;padding:.5rem;font-family:sans-serif;line-height:1.45}}
.delivermem,.delivermem pre,.delivermem td{{overflow-wrap:anywhere}}
.delivermem pre{{white-space:pre-wrap;word-break:normal;font:inherit;margin:0;padding:0;background:none;color:inherit}}
.delivermem ol{{list-style:none;margin:0;padding:0}}
.delivermem li{{border-left:3px solid #8888;padding:.2rem .8rem;margin:.8rem 0}}
.delivermem .quiet,.delivermem dt{{font-size:.85rem;font-weight:normal;opacity:.8}}
.delivermem .slot{{display:inline-block;vertical-align:top;max-width:100%;margin:.2rem .5rem .2rem 0;font-size:.85rem}}
.delivermem img{{display:block;max-width:100%;height:auto;margin:0;image-rendering:pixelated}}
.delivermem dl{{display:grid;grid-template-columns:7rem 1fr;gap:.2rem 1rem;margin:.5rem 0;align-items:baseline}}
.delivermem dl dt,.delivermem dl dd{{margin:0;float:none;width:auto;max-width:none;overflow-wrap:anywhere}}
.delivermem dl dt{{overflow-wrap:normal}}
.delivermem table{{border-collapse:collapse;font-size:.9rem;margin:.5rem 0;width:100%}}
.delivermem th,.delivermem td{{text-align:left;vertical-align:top;padding:.2rem .6rem .2rem 0}}
.delivermem tr>:first-child{{white-space:nowrap;overflow-wrap:normal}}
.delivermem tr{{border-bottom:1px solid #8884}}
.delivermem mark{{border-radius:.2rem;padding:0 .4rem;font-weight:bold;background:{PALETTE["refusal"]};color:#000}}
.delivermem .right{{background:{PALETTE["right"]};color:#fff}}
.delivermem .wrong,.delivermem .trouble{{background:{PALETTE["wrong"]};color:#000}}
.delivermem .gold{{background:#F0E442}}
@media (max-width:36rem){{.delivermem dl{{grid-template-columns:1fr;gap:0}}.delivermem dl dd{{margin:0 0 .4rem}}}}
"""
"""The look of the HTML, for whatever stands in an element of class `delivermem`; light or dark as what is around it."""


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


class Markup(str):
    """HTML in which every value is escaped."""


def text(value: object) -> str:
    """Any value as text of HTML: nothing in it opens a tag, ends an attribute, or is half a character."""
    if isinstance(value, Markup):
        return value
    return html.escape(str(value).encode("utf-8", "backslashreplace").decode())


def tag(name: str, *inside: object, **attributes: object) -> Markup:
    """One element of HTML; whatever is not `Markup` is escaped. `class_` stands for `class`."""
    given = "".join(f' {key.rstrip("_")}="{text(value)}"' for key, value in attributes.items())
    content = "".join(text(part) for part in inside)
    return Markup(f"<{name}{given}>" + ("" if name == "img" else f"{content}</{name}>"))


def messages(prompt: Prompt, gold: Container[str] = ()) -> Markup:
    """A prompt's chat messages as a list in HTML: role, text as it stands, pictures where the model meets them.

    The question block is bold; a picture is captioned with its tag and record, and marked where the record is in `gold`.
    """
    slots = iter(enumerate(prompt.slots, 1))
    chat, rows = prompt.to_transformers(), []
    for message in chat:
        said: list[object] = ["\n"]  # the first newline in <pre> is not shown
        for part in message["content"]:
            if part["type"] == "image":
                said.append(_picture(part["image"], *next(slots), gold))
                continue
            before, question, after = part["text"], "", ""
            if message is chat[-1] and prompt.question and prompt.question in before:
                before, question, after = before.rpartition(prompt.question)
            said += [before, tag("b", question), after] if question else [before]
        rows.append(tag("li", tag("div", message["role"], class_="quiet"), tag("pre", *said)))
    return tag("ol", *rows)


def records(prompt: Prompt, gold: Sequence[str] = ()) -> Markup:
    """The delivered records by rank in HTML, those of `gold` marked, and what of `gold` was not delivered."""
    rows = [tag("tr", *(tag("th", name, scope="col") for name in ("rank", "record", "as delivered")))]
    tags = {slot.record_id: slot.tag for slot in prompt.slots}
    for rank, item in enumerate(prompt.items, 1):
        said = "".join(part if isinstance(part, str) else IMAGE_MARK for part in item.parts)
        name = [item.record_id, " ", tag("mark", "gold", class_="gold") if item.record_id in gold else ""]
        about = ", ".join(filter(None, [tags.get(item.record_id), item.time]))
        cells = [rank, Markup("".join(map(text, [*name, tag("div", about, class_="quiet")]))), said.strip()]
        rows.append(tag("tr", *(tag("td", cell) for cell in cells)))
    missed = [name for name in gold if name not in prompt.delivered]
    summary = f"{len(prompt.items)} records, {len(gold) - len(missed)} of {len(gold)} gold"
    if missed:
        summary += f"; not delivered: {', '.join(missed)}"
    table = tag("table", *rows)
    if len(prompt.items) > MANY:
        return tag("details", tag("summary", summary), table)
    return Markup(f"{tag('p', summary + '.')}\n{table}")


def _picture(image: Image, number: int, slot: Slot, gold: Container[str]) -> Markup:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    source = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    scale = max(1, -(-LEAST_SIDE // max(image.size)))
    whose = f"record {slot.record_id}" if slot.record_id else f"the page {slot.picture_id}"
    named = f"{slot.tag or 'no tag'}, {whose}"
    mark = [" ", tag("mark", "gold", class_="gold")] if slot.record_id in gold else []
    shown = tag(
        "img",
        src=source,
        alt=f"Picture {number}: {named}{', gold' if mark else ''}",
        width=image.width * scale,
        height=image.height * scale,
    )
    return tag("span", shown, named, *mark, class_="slot")


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
