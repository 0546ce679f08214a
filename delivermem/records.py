"""What flows through the package: pictures, records, memories, questions, prompts, answers, verdicts.

Everything here is immutable and knows nothing of files, models or statistics. Ids are opaque strings.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from delivermem.times import format_time as format_time
from delivermem.times import parse_time as parse_time

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_MARK = "<image>"
"""Where a picture stands in a record's text (the MemLens convention)."""

REFUSAL = "Insufficient information"
"""What a model is asked to reply when the delivered memory does not hold the answer."""

Layout = Literal["interleaved", "images-last", "text-first", "chat"]


def repeated(ids: Iterable[str]) -> str | None:
    """The first id that has occurred before, or None where all differ."""
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            return name
        seen.add(name)
    return None


def _refuse_zone(whose: str, time: datetime | None) -> None:
    if time is not None and time.tzinfo is not None:
        raise ValueError(f"{whose}: its time has a zone; give the store's own clock, without one")


@dataclass(frozen=True, eq=False)
class Picture:
    """One stored picture: a file that is read when needed, or pixels already in memory. Never written to."""

    id: str
    source: Path | str | Image
    caption: str = ""


@dataclass(frozen=True, eq=False)
class Record:
    """One stored message. `text` may hold `<image>` marks; the i-th mark is the place of the i-th picture."""

    id: str
    text: str
    time: datetime | None = None
    role: str = "user"
    session: str = ""
    pictures: tuple[Picture, ...] = ()
    time_text: str = ""

    def __post_init__(self) -> None:
        _refuse_zone(f"record {self.id!r}", self.time)
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"record {self.id!r}: half a character at {error.start} of its text; mend the text"
            ) from None

    @property
    def stated_time(self) -> str:
        """What a prompt prints for this record's time; empty where the store has none."""
        return format_time(self.time) if self.time is not None else self.time_text.strip()


@dataclass(frozen=True, eq=False)
class Memory:
    """A store of records in their stored order, addressed by id."""

    id: str
    records: tuple[Record, ...]

    def __post_init__(self) -> None:
        twice = repeated(record.id for record in self.records)
        if twice is not None:
            raise ValueError(f"memory {self.id!r}: record id {twice!r} occurs twice; ids must be unique")

    @cached_property
    def _by_id(self) -> dict[str, Record]:
        return {record.id: record for record in self.records}

    def __contains__(self, record_id: str) -> bool:
        return record_id in self._by_id

    def __getitem__(self, record_id: str) -> Record:
        return self._by_id[record_id]

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)


@dataclass(frozen=True, eq=False)
class Question:
    """A question to one memory, with the ids of the records that hold its evidence.

    `kind` is the benchmark's question type, `subtype` the finer sort. `needs` names the channels without which
    it can't be answered (`pixels`, `text`, `time`, `identity`: which record is which). `guess` is the chance of a right blind guess, in [0, 1].
    Where `answer_is_record`, `answer` is a record id and a reply is right when it names that record's tag.
    `time_text` is the stored form of `time`; `old_answer` what was true before an update; `inferred` names the fields
    that the data do not state; `query` what memory is asked where that is not `text`.
    """

    id: str
    text: str
    answer: str
    kind: str
    memory: Memory
    subtype: str = ""
    time: datetime | None = None
    gold: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()
    guess: float = 0.0
    answer_is_record: bool = False
    time_text: str = ""
    old_answer: str = ""
    inferred: frozenset[str] = frozenset()
    query: str = ""

    def __post_init__(self) -> None:
        unknown = [name for name in self.gold if name not in self.memory]
        if unknown:
            raise ValueError(
                f"question {self.id!r}: gold record {unknown[0]!r} is not in memory {self.memory.id!r}"
            )
        _refuse_zone(f"question {self.id!r}", self.time)

    @property
    def refusal(self) -> bool:
        """Whether the memory does not hold the answer, so that saying so is right."""
        return self.kind == "answer_refusal"


@dataclass(frozen=True, eq=False)
class Slot:
    """One image slot of a prompt: the final pixels of the delivered copy, RGB, and the tag stamped on it. `original` is
    the file whose bytes decode to those very pixels, where there is one."""

    record_id: str
    picture_id: str
    image: Image
    tag: str = ""
    original: Path | None = None

    def showing(self, image: Image) -> Slot:
        """The slot with other pixels, which are no file's any more."""
        return self if image is self.image else replace(self, image=image, original=None)

    @property
    def data_url(self) -> str:
        """The bytes of the original file, or else a lossless PNG of the pixels, as a data URL."""
        from delivermem.pictures import encoded

        kind, content = encoded(self.image, self.original)
        return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


@dataclass(frozen=True, eq=False)
class Item:
    """One delivered record: what it is called in the text, its stated time, its text with slots for its pictures; who
    said it, where every record is a message of its own (the layout `chat`)."""

    record_id: str
    time: str
    parts: tuple[str | Slot, ...]
    tag: str = ""
    lead: str = ""
    role: str = "user"


@dataclass(frozen=True, eq=False)
class Prompt:
    """Everything that reaches the model, in order: system, preamble, items, question.

    `layout` says where the slots stand: in their items' text, all after the last item, or after the question too
    (`text-first`, DMV-Bench's own). In the last two they follow the items' order, or `order`: the places of the slots,
    first shown first. `before` are pictures of no record, shown before the first slot: the page that an agent sees.
    In `chat` every item is a message of its own, and the question the last.
    """

    system: str
    preamble: str
    items: tuple[Item, ...]
    question: str
    decisions: Mapping[str, str] = field(default_factory=dict)
    layout: Layout = "interleaved"
    order: tuple[int, ...] = ()
    before: tuple[Slot, ...] = ()

    @property
    def delivered(self) -> tuple[str, ...]:
        """Ids of the delivered records, in order."""
        return tuple(item.record_id for item in self.items)

    @property
    def tags(self) -> dict[str, str]:
        """Tag by which each delivered record with a picture can be named, to the record's id."""
        return {item.tag: item.record_id for item in self.items if item.tag}

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The slots as the model meets them."""
        slots = tuple(part for item in self.items for part in item.parts if isinstance(part, Slot))
        return self.before + (tuple(slots[i] for i in self.order) if self.order else slots)

    @property
    def images(self) -> list[Image]:
        return [slot.image for slot in self.slots]

    @property
    def messages(self) -> list[tuple[str, list[str | Slot]]]:
        """Role and parts of every message after the system's; neighbouring strings are joined."""
        if self.layout != "chat":
            return [("user", self._whole())]
        said = [(item.role, _joined([item.lead, *item.parts])) for item in self.items]
        return [*said, ("user", _joined([self.preamble, self.question]))]

    @property
    def parts(self) -> list[str | Slot]:
        """Strings and slots of all messages in order."""
        return [part for _, parts in self.messages for part in parts]

    def _whole(self) -> list[str | Slot]:
        flat: list[str | Slot] = [self.preamble]
        last = self.layout != "interleaved"
        for item in self.items:
            flat += [item.lead, f"[{item.time}] " if item.time else ""]
            flat += [part for part in item.parts if not (last and isinstance(part, Slot))]
            flat.append("\n")
        slots: list[str | Slot] = list(self.slots) if last else []
        if self.layout == "text-first":
            flat += [self.question, *slots]
        else:
            flat += [*slots, "\n" if slots else "", self.question]
        return _joined(flat)

    @property
    def text(self) -> str:
        """The prompt as a reader sees it, with `<image>` where a slot stands, and where there are several messages the
        role before each."""
        bodies = [
            (f"{role}: " if self.layout == "chat" else "")
            + "".join(part if isinstance(part, str) else IMAGE_MARK for part in parts)
            for role, parts in self.messages
        ]
        return "\n\n".join([self.system, *bodies])

    def with_images(self, change: Callable[[int, Slot], Image]) -> Prompt:
        """The same prompt with the pixels of each slot replaced by `change(index, slot)`."""
        new = {id(slot): slot.showing(change(i, slot)) for i, slot in enumerate(self.slots)}
        swap = [
            replace(item, parts=tuple(p if isinstance(p, str) else new[id(p)] for p in item.parts))
            for item in self.items
        ]
        return replace(self, items=tuple(swap))

    def to_transformers(self) -> list[dict[str, Any]]:
        """Chat messages for `processor.apply_chat_template`, images as PIL.

        Text stands as it was stored; `special_tokens.neutralised` breaks a model's control tokens in it, as the backbone
        of this package does.
        """
        system = {"role": "system", "content": [{"type": "text", "text": self.system}]}
        return [system, *self._chat(lambda slot: {"type": "image", "image": slot.image})]

    def to_openai(self) -> list[dict[str, Any]]:
        """Chat messages for an OpenAI-compatible server, images as data URLs in their places: a stored file's own bytes
        where they are what is shown, else PNG. Text stands as it was stored: where users write it, see to it that your
        server takes no control tokens from it."""

        def image(slot: Slot) -> dict[str, Any]:
            return {"type": "image_url", "image_url": {"url": slot.data_url}}

        return [{"role": "system", "content": self.system}, *self._chat(image)]

    def _chat(self, image: Callable[[Slot], dict[str, Any]]) -> list[dict[str, Any]]:
        def block(part: str | Slot) -> dict[str, Any]:
            return {"type": "text", "text": part} if isinstance(part, str) else image(part)

        return [{"role": role, "content": [block(p) for p in parts]} for role, parts in self.messages]

    @property
    def accounting(self) -> dict[str, Any]:
        """What was delivered, before any tokenizer: characters, images, and their (width, height) in order."""
        return {
            "records": len(self.items),
            "characters": sum(len(part) for part in self.parts if isinstance(part, str)),
            "images": len(self.slots),
            "sizes": [slot.image.size for slot in self.slots],
        }


def _joined(flat: Iterable[str | Slot]) -> list[str | Slot]:
    joined: list[str | Slot] = []
    for part in flat:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part:
            joined.append(part)
    return joined


@dataclass(frozen=True)
class Answer:
    """What a backbone gave for one prompt. A failure is a status with its reason, never an empty answer; where a
    control can't be had for a prompt (one picture can't be permuted), nothing was asked: `not_applicable`."""

    text: str
    status: Literal["ok", "failed", "not_applicable"] = "ok"
    finish: str = "stop"
    text_tokens: int = 0
    image_tokens: int = 0
    images: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """A judge's finding, and the rule that decided it."""

    state: Literal["right", "wrong", "unjudged"]
    rule: str = ""
