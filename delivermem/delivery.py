"""Delivery: what of the retrieved records reaches the model, and in what form. The subject of the paper.

`deliver` takes ranked records and three decisions and returns one prompt. It never changes which records are
delivered, how many, or in what order, and never writes to the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Literal, get_args

from delivermem import pictures
from delivermem.records import (
    IMAGE_MARK,
    REFUSAL,
    Item,
    Layout,
    Picture,
    Prompt,
    Question,
    Record,
    Slot,
    format_time,
    repeated,
)

Modality = Literal["pixels", "caption", "text"]
Identity = Literal["stamp", "none"]
Time = Literal["store", "none"]

SYSTEM = f"Reply with the answer alone, from the recalled memories. If they do not hold it, reply: {REFUSAL}"

PREAMBLES: dict[str, str] = {
    "stamp": (
        "Every recalled item bears a tag of its own: M1, M2, ... Tags follow relevance, M1 first. "
        "Name a memory by its tag; do not count items.\n"
    ),
    "none": "Recalled items follow in order of relevance.\n",
}
IMAGES_LAST = "The pictures follow the items, in their order.\n"
"""Added to the preamble where a benchmark's layout has all texts before all pictures."""
IN_ANY_ORDER = "The pictures follow the items.\n"
"""The same where the tag alone is to pair the two: in an agent's step (`text-first`) whose pictures are stamped."""


@dataclass(frozen=True)
class Decisions:
    """The three delivery decisions: D1 keep the modality, D2 stamp an identity, D3 state the time."""

    modality: Modality = "pixels"
    identity: Identity = "stamp"
    time: Time = "store"

    def __post_init__(self) -> None:
        for name, known in (("modality", Modality), ("identity", Identity), ("time", Time)):
            value = getattr(self, name)
            if value not in get_args(known):
                raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(get_args(known))}")


DELIVERMEM = Decisions()
"""The paper's one fixed configuration."""


def deliver(
    records: Iterable[Record],
    question: Question | str,
    decisions: Decisions = DELIVERMEM,
    *,
    layout: Layout = "interleaved",
) -> Prompt:
    """Turn ranked records into the text and pixels of one prompt.

    records: most relevant first; their order, number and choice are kept. question: a Question, or its text.
    Tags M1, M2, ... count the records that have pictures, by rank, and are stamped on copies. layout: pictures in
    their items' text, all after the last item, or after the question (in these two each item begins with its tag, or
    with its number where none is stamped, so that text and picture can be brought together again).
    Raises ValueError for a record that is given twice, and pictures.PictureError when a picture that is to be delivered
    can't be read. The words before the items follow `identity` alone, so that no other decision changes them.
    Source: "Retrieved but Not Delivered" (arXiv 2609.32590), decisions D1 to D3.
    """
    layouts = [
        name for name in get_args(Layout) if name != "chat"
    ]  # that one delivers nothing: it is all of memory
    if layout not in layouts:
        raise ValueError(f"layout={layout!r} can't be delivered; choose one of {', '.join(layouts)}")
    records = tuple(records)
    twice = repeated(record.id for record in records)
    if twice is not None:
        raise ValueError(
            f"record {twice!r} is delivered twice, and a tag must name one; give each record once"
        )
    tag_of: dict[str, str] = {}
    for record in records:
        if record.pictures:
            tag_of[record.id] = f"M{len(tag_of) + 1}"
    items = tuple(_item(record, tag_of.get(record.id, ""), decisions) for record in records)
    prompt = Prompt(SYSTEM, "", items, question_block(question), asdict(decisions), layout)
    return introduced(prompt, decisions.identity == "stamp")


def untagged(prompt: Prompt) -> Prompt:
    """The prompt in the words of `identity="none"`, its pixels as they are."""
    items = tuple(
        replace(item, parts=tuple(replace(p, tag="") if isinstance(p, Slot) else p for p in item.parts))
        for item in prompt.items
    )
    return introduced(replace(prompt, items=items, decisions={**prompt.decisions, "identity": "none"}), False)


def introduced(prompt: Prompt, stamped: bool) -> Prompt:
    """With the preamble of its identity arm, and in the layout with all pictures last, a name before each item."""
    preamble = PREAMBLES["stamp" if stamped else "none"]
    if prompt.layout == "interleaved":
        return replace(prompt, preamble=preamble)
    items = tuple(
        replace(item, lead=f"{item.tag} " if stamped and item.tag else f"({i}) ")
        for i, item in enumerate(prompt.items, 1)
    )
    by_tag = stamped and prompt.layout == "text-first"
    return replace(prompt, preamble=preamble + (IN_ANY_ORDER if by_tag else IMAGES_LAST), items=items)


def question_block(question: Question | str) -> str:
    """The last block of a prompt: when the question is asked, where that is known, and the question."""
    if isinstance(question, str):
        return _block(question, None)
    return _block(question.text, question.time)


def _block(text: str, time: datetime | None) -> str:
    date = f"Question date: {format_time(time)}\n" if time is not None else ""
    return f"{date}Question: {text}"


def _item(record: Record, tag: str, decisions: Decisions) -> Item:
    """The record's text with each picture in place of its mark; pictures beyond the marks follow the text."""
    pieces = record.text.split(IMAGE_MARK)
    parts: list[str | Slot] = []
    for i, piece in enumerate(pieces):
        if piece:
            parts.append(piece)
        last = i == len(pieces) - 1
        for picture in record.pictures[i:] if last else record.pictures[i : i + 1]:
            parts += _shown(record, picture, tag, decisions)
    time = record.stated_time if decisions.time == "store" else ""
    return Item(record.id, time, tuple(parts), tag)


def _shown(record: Record, picture: Picture, tag: str, decisions: Decisions) -> list[str | Slot]:
    if decisions.modality == "text":
        return []
    if decisions.modality == "caption":
        return [f"[image: {picture.caption}]"] if picture.caption else []
    image = pictures.load(picture)
    if decisions.identity == "stamp":
        return [Slot(record.id, picture.id, pictures.stamp(image, tag), tag)]
    return [Slot(record.id, picture.id, image, original=pictures.as_stored(picture))]
