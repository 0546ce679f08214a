"""Training contexts of the shop: some visits of a chain, delivered in DMV-Bench's layout, with questions for a cue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from delivermem.benchmarks import asking, scenes, shop
from delivermem.benchmarks.world import pick
from delivermem.controls import shown_in
from delivermem.delivery import Decisions, Modality, deliver
from delivermem.records import REFUSAL, Layout, Memory, Prompt, Question
from delivermem.reference.corpus import Context, Labelled, slot_text, tagged

CELLS = shop.FRAME // scenes.CELL
TAG_MODES = {"rank": 0.4, "shuffled": 0.3, "none": 0.12, "constant": 0.1, "text": 0.08}
READABLE = ("rank", "shuffled")


@dataclass
class FrameSpan:
    """Where one visit's parts lie in a context's text (character positions); its tag can be read or not."""

    visit: shop.Visit
    lead: int
    code: int
    slot: tuple[int, int] | None
    readable: bool


def context(
    rng: np.random.Generator,
    visits: Sequence[shop.Visit],
    k: int,
    *,
    questions: int,
    modality: Modality = "pixels",
    times: bool = True,
    tags: str = "rank",
    absent: float = 0.15,
    expect_full: bool = False,
) -> Context:
    """Deliver `k` of the visits, often of the same sessions, in random order; arguments as of `corpus.context`."""
    view, pixels = recalled(rng, visits, k), modality == "pixels"
    prompt = shown(rng, view, visits, modality, times, tags)
    text, spans = texts(prompt, view, tags in READABLE)
    tag_of = {item.record_id: item.tag for item in prompt.items}
    labels = slot_labels(prompt, view, tags in READABLE)
    counts, unique = things(view)
    found: dict[str, tuple[asking.Ask, str]] = {}
    for _ in range(questions * 4):
        subtype = "product" if rng.random() < 0.6 else "which"
        gone = bool(rng.random() < absent)
        i, (colour, name, (column, row)) = pick(rng, unique)
        if gone:
            colour, name = near_miss(rng, counts, colour, name)
        words = (shop.probe if subtype == "product" else asking.which)(colour, name)
        answer = view[i].product.code if subtype == "product" else tag_of[view[i].id]
        lost = gone or not (pixels or expect_full)
        cell = ((i, f"cell {row * CELLS + column}"),)
        asked = asking.Ask(subtype, words, "" if gone else answer, (i,), cell, cell, refusal=gone)
        found.setdefault(words, (asked, REFUSAL if lost else answer))
        if len(found) == questions:
            break
    images = [np.asarray(image) for image in prompt.images]
    return Context(text, images, labels, list(found.values()), spans)


def recalled(rng: np.random.Generator, visits: Sequence[shop.Visit], k: int) -> list[shop.Visit]:
    """`k` of the visits in random order, often of the same sessions."""
    sessions = sorted({visit.session for visit in visits})
    near = {sessions[i] for i in rng.permutation(len(sessions))[: 1 + k // 3]}
    liking = np.array([1.0 if visit.session in near else 0.08 for visit in visits])
    chosen = np.argsort(-np.log(rng.random(len(visits))) / liking)[:k]
    return [visits[i] for i in rng.permutation(chosen)]


def things(view: Sequence[shop.Visit]) -> tuple[Counter[tuple[str, str]], list[tuple[int, shop.Placed]]]:
    """How often each pair of colour and object is seen, and what is seen once: (index of its visit, thing)."""
    seen = [(i, placed) for i, v in enumerate(view) for placed in (v.product.cue, *v.product.others)]
    counts = Counter(placed[:2] for _, placed in seen)
    return counts, [(i, placed) for i, placed in seen if counts[placed[:2]] == 1]


def near_miss(
    rng: np.random.Generator, counts: Counter[tuple[str, str]], colour: str, name: str
) -> tuple[str, str]:
    """A pair that is not seen, of that colour or of that object."""
    return pick(rng, [p for p in scenes.PAIRS if p not in counts and (p[0] == colour) != (p[1] == name)])


def shown(
    rng: np.random.Generator,
    view: Sequence[shop.Visit],
    visits: Sequence[shop.Visit],
    modality: Modality,
    times: bool,
    tags: str,
    layout: Layout = "images-last",
) -> Prompt:
    """The visits delivered; where a tag can be read the pictures' order tells nothing half the time."""
    asked_at = Question("", "", "", "", Memory("", ()), time=max(visit.time for visit in visits))
    decisions = Decisions(modality, "none", "store" if times else "none")
    prompt = deliver([visit.record() for visit in view], asked_at, decisions, layout=layout)
    prompt = tagged(rng, prompt, tags)
    if tags in READABLE and prompt.slots and rng.random() < 0.5:
        return shown_in(prompt, rng.permutation(len(prompt.slots)).tolist())
    return prompt


def slot_labels(prompt: Prompt, view: Sequence[shop.Visit], readable: bool) -> list[list[Labelled]]:
    """What each image token of each slot that belongs to a visit shows, in the order of the slots."""
    product, tag = {v.id: v.product for v in view}, {item.record_id: item.tag for item in prompt.items}
    ids = [slot.record_id for slot in prompt.slots if slot.record_id]
    return [cell_labels(product[name], tag[name] if readable else "") for name in ids]


def cell_labels(product: shop.Product, tag: str) -> list[Labelled]:
    """What each image token of a frame shows, in the order of the tokens."""
    cells = [(-1, -1)] * CELLS**2
    small = (product.cue, *product.others)
    for colour, name, (column, row) in small:
        cells[row * CELLS + column] = (list(scenes.COLOURS).index(colour), list(scenes.OBJECTS).index(name))
    number = int(tag[1:]) - 1 if tag else -1
    return [Labelled(colour, name, number, len(small) - 1) for colour, name in cells]


def texts(prompt: Prompt, view: Sequence[shop.Visit], readable: bool) -> tuple[str, list[FrameSpan]]:
    """The chat as the template renders it: up to where the question's words begin or, where it comes before the
    pictures, whole."""
    text = f"<|im_start|>system\n{prompt.system}<|im_end|>\n<|im_start|>user\n{prompt.preamble}"
    spans = []
    for item, visit in zip(prompt.items, view, strict=True):
        lead = len(text) + item.lead.startswith("(")
        text += item.lead + (f"[{item.time}] " if item.time else "")
        said = "".join(part for part in item.parts if isinstance(part, str))
        code = len(text) + said.index(visit.product.page) + len(visit.product.page) - len(visit.product.code)
        text += said + "\n"
        spans.append(FrameSpan(visit, lead, code, None, readable))
    by_visit = {span.visit.id: span for span in spans}
    one, first = slot_text(CELLS**2), prompt.layout == "text-first"
    text += prompt.question if first else ""
    for slot in prompt.slots:
        if slot.record_id:
            by_visit[slot.record_id].slot = (len(text), len(text) + len(one))
        text += one
    if prompt.slots and not first:
        text += "\n"
    return text + ("" if first else prompt.question.rstrip()), spans
