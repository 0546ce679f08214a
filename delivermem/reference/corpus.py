"""Training material for the reference model: delivered contexts of the world, with many questions to each.

A context is a few turns of a training conversation, delivered by `deliver` itself under varying decisions. It
carries what each image token shows, and where each item's parts lie in its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from delivermem import pictures
from delivermem.benchmarks import asking, memlens, scenes, world
from delivermem.delivery import Decisions, Modality, deliver, introduced
from delivermem.records import REFUSAL, Memory, Prompt, Question, Slot

GRID = 3
TOKENS = GRID * GRID
"""Image tokens of one photograph."""
TAG_MODES = {"rank": 0.45, "shuffled": 0.25, "none": 0.12, "constant": 0.1, "text": 0.08}
"""Share of training contexts by identity arm: tags stamped in rank order or shuffled, absent, one symbol, in text."""
CONSTANT_TAG = "M"
WEIGHTS = dict(
    colour=1.0, place=1.6, count=0.7, which=1.4, bought=1.3, count_photos=0.9, more=0.9, when_photo=1.2,
    when_topic=0.9, first=1.1, latest_photo=1.3, latest_place=1.0,
)  # fmt: skip
"""Relative frequency of the sorts of question in training."""


def slot_text(tokens: int) -> str:
    """One picture's place in the text that the tokenizer sees."""
    return "<|vision_start|>" + "<|image_pad|>" * tokens + "<|vision_end|>"


@dataclass(frozen=True)
class Labelled:
    """What one image token shows, for the vision hints: indices into scenes' names, -1 for nothing."""

    colour: int
    object: int
    tag: int
    count: int


@dataclass
class Context:
    """One delivered context: its text up to the questions, its pictures, and its questions with answers."""

    text: str
    images: list[np.ndarray]
    labels: list[list[Labelled]]
    asks: list[tuple[asking.Ask, str]]
    spans: list[Any] = field(default_factory=list)


@dataclass
class ItemSpan:
    """Where one item's parts lie in a context's text (character ranges)."""

    turn: world.Turn
    start: int
    end: int
    date: tuple[int, int] | None
    slot: tuple[int, int] | None


def context(
    rng: np.random.Generator,
    turns: Sequence[world.Turn],
    k: int,
    *,
    questions: int,
    modality: Modality = "pixels",
    times: bool = True,
    tags: str = "rank",
    sorts: Sequence[str] | None = None,
    absent: float = 0.2,
    expect_full: bool = False,
) -> Context:
    """Deliver `k` of the turns in random order, and ask about them. `tags`: one of TAG_MODES.

    expect_full: expect the answers that full delivery supports, whatever was withheld (to measure what is lost).
    """
    view, pixels = _choose(rng, turns, k), modality == "pixels"
    decisions = Decisions(modality, "none", "store" if times else "none")
    asked_at = Question("", "", "", "", Memory("", ()), time=max(t.time for t in turns))
    prompt = tagged(rng, deliver([turn.record() for turn in view], asked_at, decisions), tags)
    text, spans = _text(prompt, view)
    images = [np.asarray(image) for image in prompt.images]
    tag_of = {item.record_id: item.tag for item in prompt.items}
    readable = tags in ("rank", "shuffled")
    labels = [
        cell_labels(turn.scene or (), tag_of[turn.id] if readable else "")
        for turn in view
        if turn.scene is not None
    ]
    asks = _asks(rng, view, questions, list(sorts or WEIGHTS), absent)
    answers = [_expected(a, tag_of, pixels or expect_full, times or expect_full) for a in asks]
    return Context(text, images, labels if pixels else [], list(zip(asks, answers, strict=True)), spans)


def whole(
    rng: np.random.Generator, turns: Sequence[world.Turn], *, questions: int, absent: float = 0.2
) -> Context:
    """All of the turns as `memlens.full_context` gives them, and questions about them, but those for a tag."""
    asked_at = max(turn.time for turn in turns)
    memory = Memory("", tuple(turn.record() for turn in turns))
    prompt = memlens.full_context(Question("", "", "", "", memory, time=asked_at))
    text, spans = f"<|im_start|>system\n{prompt.system}<|im_end|>\n", []
    date: dict[int, tuple[int, int]] = {}
    for item, turn in zip(prompt.items, turns, strict=True):
        text += f"<|im_start|>{item.role}\n"
        start = len(text)
        text += item.lead
        if item.lead:
            at = start + item.lead.index("Date: ") + len("Date: ")
            date[turn.session] = (at, at + len("2024/05/11"))
        slot = None
        for part in item.parts:
            if isinstance(part, Slot):
                slot = (len(text), len(text) + len(slot_text(TOKENS)))
            text += part if isinstance(part, str) else slot_text(TOKENS)
        text += "<|im_end|>"
        spans.append(ItemSpan(turn, start, len(text), date[turn.session], slot))
        text += "\n"
    text += f"<|im_start|>user\n{prompt.preamble}{prompt.question.rstrip()}"
    asks = _asks(rng, turns, questions, [name for name in WEIGHTS if name != "which"], absent)
    return Context(
        text,
        [np.asarray(image) for image in prompt.images],
        [cell_labels(turn.scene, "") for turn in turns if turn.scene is not None],
        [(asked, _expected(asked, {}, True, True)) for asked in asks],
        spans,
    )


def _asks(
    rng: np.random.Generator, view: Sequence[world.Turn], questions: int, sorts: Sequence[str], absent: float
) -> list[asking.Ask]:
    """Up to that many different questions of those sorts."""
    found: dict[str, asking.Ask] = {}
    share = np.array([WEIGHTS[name] for name in sorts])
    for _ in range(questions * 4):
        name = sorts[int(rng.choice(len(sorts), p=share / share.sum()))]
        asked = asking.ask(rng, view, name, absent=bool(rng.random() < absent))
        if asked is not None:
            found.setdefault(asked.text, asked)
        if len(found) == questions:
            break
    return list(found.values())


def _choose(rng: np.random.Generator, turns: Sequence[world.Turn], k: int) -> list[world.Turn]:
    """`k` turns, photographs preferred, turns that only make sense together often kept together."""
    liking = [1.0 if t.scene else 0.6 if t.bought else 0.5 if t.kept else 0.3 for t in turns]
    order = np.argsort(-np.log(rng.random(len(turns))) / np.array(liking))
    chosen: list[int] = []
    for i in order:
        chosen.append(int(i))
        partner = [j for j, t in enumerate(turns) if j != i and _together(t, turns[i])]
        if partner and rng.random() < 0.6:
            chosen.append(partner[0])
    chosen = list(dict.fromkeys(chosen))[:k]
    return [turns[chosen[i]] for i in rng.permutation(len(chosen))]


def _together(a: world.Turn, b: world.Turn) -> bool:
    if a.kept and b.kept:
        return a.kept[0] == b.kept[0]
    return bool(a.scene and b.scene and a.topic == b.topic)


def tagged(rng: np.random.Generator, prompt: Prompt, mode: str) -> Prompt:
    """The prompt under an identity arm; in `shuffled` the tags don't follow the order, so they must be read."""
    tagged = [item.record_id for item in prompt.items if item.tag]
    numbers = rng.permutation(10)[: len(tagged)] + 1 if mode == "shuffled" else np.arange(len(tagged)) + 1
    tag = {record: f"M{number}" for record, number in zip(tagged, numbers, strict=True)}
    items = [replace(item, tag=tag.get(item.record_id, "")) for item in prompt.items]
    if mode in ("rank", "shuffled", "constant"):
        stamped = {
            i: CONSTANT_TAG if mode == "constant" else tag[s.record_id] for i, s in enumerate(prompt.slots)
        }
        prompt = prompt.with_images(lambda i, slot: pictures.stamp(slot.image, stamped[i]))
        items = [replace(item, tag=tag.get(item.record_id, "")) for item in prompt.items]
    if mode == "text" and prompt.layout == "interleaved":
        items = [replace(item, parts=(f"{item.tag} ", *item.parts)) if item.tag else item for item in items]
    return introduced(replace(prompt, items=tuple(items)), mode in ("rank", "shuffled", "text"))


def cell_labels(scene: scenes.Scene, tag: str) -> list[Labelled]:
    """What each image token of a scene's photograph shows, in the order of the tokens."""
    cells = [(-1, -1)] * TOKENS
    for thing in scene:
        column, row = scenes.PLACES[thing.place]
        cells[row * GRID + column] = (
            list(scenes.COLOURS).index(thing.colour),
            list(scenes.OBJECTS).index(thing.name),
        )
    number = int(tag[1:]) - 1 if tag else -1
    return [Labelled(colour, name, number, len(scene) - 1) for colour, name in cells]


def _expected(asked: asking.Ask, tags: dict[str, str], pixels: bool, times: bool) -> str:
    """The answer that the delivered context supports: a refusal where what it needs was withheld."""
    needs = asking.SORTS[asked.subtype].needs
    blind = ("pixels" in needs and not pixels) or ("time" in needs and not times)
    if asked.refusal or (
        blind and not (asked.subtype.startswith("latest") and len(asked.gold) == 1 and pixels)
    ):
        return REFUSAL
    return tags[asked.answer] if asked.subtype == "which" else asked.answer


def _text(prompt: Prompt, view: Sequence[world.Turn]) -> tuple[str, list[ItemSpan]]:
    """The chat as the template renders it, image tokens expanded, up to where the question's words begin."""
    text = f"<|im_start|>system\n{prompt.system}<|im_end|>\n<|im_start|>user\n{prompt.preamble}"
    spans = []
    for item, turn in zip(prompt.items, view, strict=True):
        start, date, slot = len(text), None, None
        if item.time:
            date = (len(text) + 1, len(text) + 11)
            text += f"[{item.time}] "
        for part in item.parts:
            if isinstance(part, Slot):
                slot = (len(text), len(text) + len(slot_text(TOKENS)))
                text += slot_text(TOKENS)
            else:
                text += part
        text += "\n"
        spans.append(ItemSpan(turn, start, len(text), date, slot))
    return text + prompt.question.rstrip(), spans
