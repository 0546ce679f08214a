"""Training material for the reference model: delivered contexts of the world, packed many questions to a context.

A context is a few turns of a training conversation, delivered by `deliver` itself under varying decisions. All
its questions share one pass over it: each question is a branch that sees the context and itself (a 4-D mask).
Beside the answers, a batch carries two kinds of hint that exist in training only: what each image token shows,
and which earlier tokens a token should attend to (`Guide`) so that item, date and picture are bound early.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from delivermem import pictures
from delivermem.benchmarks import scenes, world
from delivermem.delivery import PREAMBLES, Decisions, deliver
from delivermem.records import REFUSAL, Memory, Prompt, Question, Slot

GRID = 3
TOKENS = GRID * GRID
"""Image tokens of one photograph."""
SLOT_TEXT = "<|vision_start|>" + "<|image_pad|>" * TOKENS + "<|vision_end|>"
TAG_MODES = {"rank": 0.45, "shuffled": 0.25, "none": 0.12, "constant": 0.1, "text": 0.08}
"""Share of training contexts by identity arm: tags stamped in rank order or shuffled, absent, one symbol, in text."""
CONSTANT_TAG = "M"
WEIGHTS = dict(
    colour=1.0, place=1.6, count=0.7, which=1.4, bought=1.3, count_photos=0.9, more=0.9, when_photo=1.2,
    when_topic=0.9, first=1.1, latest_photo=1.3, latest_place=1.0,
)  # fmt: skip
"""Relative frequency of the sorts of question in training."""


_ROLES = dict.fromkeys((*world.TOPICS, *world.KEPT), 1)
_ROLES |= dict.fromkeys(scenes.OBJECTS, 2)
_ROLES |= dict.fromkeys((*scenes.COLOURS, *" ".join(scenes.PLACES).split()), 3)


@dataclass(frozen=True)
class Hint:
    """One source token that should attend to any of `targets`, in one head of one layer."""

    layer: int
    head: int
    source: int
    targets: tuple[int, ...]


@dataclass(frozen=True)
class Gathered:
    """A token that by layer GATHERED_BY should hold the word `token`, told apart from the others of its group."""

    source: int
    group: str
    token: int


GATHERED_BY = 3


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
    asks: list[tuple[world.Ask, str]]
    spans: list[ItemSpan] = field(default_factory=list)


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
    pixels: bool = True,
    times: bool = True,
    tags: str = "rank",
    sorts: Sequence[str] | None = None,
    absent: float = 0.2,
    expect_full: bool = False,
) -> Context:
    """Deliver `k` of the turns in random order, and ask about them. `tags`: one of TAG_MODES.

    expect_full: expect the answers that full delivery supports, whatever was withheld (to measure what is lost).
    """
    view = _choose(rng, turns, k)
    decisions = Decisions("pixels" if pixels else "text", "none", "store" if times else "none")
    asked_at = Question("", "", "", "", Memory("", ()), time=max(t.time for t in turns))
    prompt = _tagged(rng, deliver([turn.record() for turn in view], asked_at, decisions), tags)
    text, spans = _text(prompt, view)
    images = [np.asarray(image) for image in prompt.images]
    tag_of = {item.record_id: item.tag for item in prompt.items}
    readable = tags in ("rank", "shuffled")
    labels = [
        cell_labels(turn.scene or (), tag_of[turn.id] if readable else "")
        for turn in view
        if turn.scene is not None
    ]
    found: dict[str, tuple[world.Ask, str]] = {}
    names = list(sorts or WEIGHTS)
    share = np.array([WEIGHTS[name] for name in names])
    for _ in range(questions * 4):
        name = names[int(rng.choice(len(names), p=share / share.sum()))]
        asked = world.ask(rng, view, name, absent=bool(rng.random() < absent))
        if asked is not None and asked.text not in found:
            found[asked.text] = (asked, _expected(asked, tag_of, pixels or expect_full, times or expect_full))
        if len(found) == questions:
            break
    return Context(text, images, labels if pixels else [], list(found.values()), spans)


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


def _tagged(rng: np.random.Generator, prompt: Prompt, mode: str) -> Prompt:
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
    if mode == "text":
        items = [replace(item, parts=(f"{item.tag} ", *item.parts)) if item.tag else item for item in items]
    preamble = PREAMBLES["stamp" if mode in ("rank", "shuffled", "text") else "none"]
    return replace(prompt, items=tuple(items), preamble=preamble)


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


def _expected(asked: world.Ask, tags: dict[str, str], pixels: bool, times: bool) -> str:
    """The answer that the delivered context supports: a refusal where what it needs was withheld."""
    needs = world.SORTS[asked.subtype].needs
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
                slot = (len(text), len(text) + len(SLOT_TEXT))
                text += SLOT_TEXT
            else:
                text += part
        text += "\n"
        spans.append(ItemSpan(turn, start, len(text), date, slot))
    return text + prompt.question.rstrip(), spans


class Packer:
    """Contexts to tensors. Layers and heads of the hints are fixed here: bind early, look up late."""

    def __init__(self, tokenizer: Any):
        self.rust = tokenizer.backend_tokenizer
        self.image, self.end, self.pad = tokenizer.convert_tokens_to_ids(
            ["<|image_pad|>", "<|im_end|>", "<|endoftext|>"]
        )
        self._cache: dict[str, list[int]] = {}
        self._places = [
            (row * GRID + column, self.rust.token_to_id(f"Ġ{word}"))
            for name, (column, row) in scenes.PLACES.items()
            for word in name.split()
        ]

    def ids(self, text: str) -> list[int]:
        if text not in self._cache:
            self._cache[text] = self.rust.encode(text, add_special_tokens=False).ids
        return self._cache[text]

    def pack(self, contexts: Sequence[Context]) -> dict[str, Any]:
        """One batch: ids, positions (3, B, T), attention mask (B, 1, T, T), labels, pixels, hints."""
        rows = [self._row(c) for c in contexts]
        size, length = len(rows), max(len(row["ids"]) for row in rows)
        out = {
            name: np.full((size, length), empty)
            for name, empty in (("ids", self.pad), ("seg", -1), ("label", -100))
        }
        positions = np.zeros((3, size, length), np.int64)
        for b, row in enumerate(rows):
            n = len(row["ids"])
            for name in out:
                out[name][b, :n] = row[name]
            positions[:, b, :n] = row["position"]
        seg = torch.from_numpy(out["seg"])
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        mask = causal & ((seg[:, None, :] == 0) | (seg[:, None, :] == seg[:, :, None]))
        images = [image for c in contexts for image in c.images]
        labels = [vars(cell) for c in contexts for image in c.labels for cell in image]
        return dict(
            ids=torch.from_numpy(out["ids"]),
            position=torch.from_numpy(positions),
            mask=mask[:, None],
            label=torch.from_numpy(out["label"]),
            seg=seg,
            images=torch.from_numpy(np.stack(images)) if images else None,
            cells={name: torch.tensor([cell[name] for cell in labels]) for name in labels[0]}
            if labels
            else {},
            hints=[(b, hint) for b, row in enumerate(rows) for hint in row["hints"]],
            gathered=[(b, word) for b, row in enumerate(rows) for word in row["gathered"]],
        )

    def _row(self, c: Context) -> dict[str, Any]:
        encoding = self.rust.encode(c.text, add_special_tokens=False)
        ids = list(encoding.ids)
        starts = np.array([offset[0] for offset in encoding.offsets])
        position, cursor = self.positions(ids)
        hints, items = self._bind(c, starts)
        gathered = [
            Gathered(s, "key", ids[t]) for i in items if i["at"] for t in i["at"] for s in i["sources"]
        ]
        for item in items:
            gathered += [Gathered(s, g, ids[t]) for s in item["sources"] for g, t in item["date"]]
            gathered += [Gathered(item["cells"][i], "place", t) for i, t in self._places if item["cells"]]
        seg, label, positions = [0] * len(ids), [-100] * len(ids), [position]
        for number, (asked, answer) in enumerate(c.asks, 1):
            question = self.ids(f" {asked.text}<|im_end|>\n<|im_start|>assistant\n")
            reply = [*self.ids(answer), self.end]
            first = len(ids) + len(question) - 1
            keys = self._keys(asked.text, len(ids))
            for source in range(first, first + len(reply) - 1):
                hints += [Hint(2, head, source, at) for head, (_, at) in keys.items()]
                gathered += [
                    Gathered(source, g, (question + reply)[t - len(ids)])
                    for g, at in keys.values()
                    for t in at
                    if g
                ]
                hints += self._look_up(asked, answer, source, source - first, c, items)
            ids += question + reply
            label += [-100] * (len(question) - 1) + reply + [-100]
            seg += [number] * (len(question) + len(reply))
            positions.append(np.tile(np.arange(cursor, cursor + len(question) + len(reply)), (3, 1)))
        return dict(
            ids=ids,
            seg=seg,
            label=label,
            position=np.concatenate(positions, 1),
            hints=hints,
            gathered=gathered,
        )

    def positions(self, ids: Sequence[int]) -> tuple[np.ndarray, int]:
        """Qwen3-VL's 3-D positions of a token row whose images are GRID x GRID, and the next free position."""
        out, cursor, i = np.empty((3, len(ids)), np.int64), 0, 0
        while i < len(ids):
            if ids[i] == self.image:
                out[0, i : i + TOKENS] = cursor
                out[1, i : i + TOKENS] = cursor + np.repeat(np.arange(GRID), GRID)
                out[2, i : i + TOKENS] = cursor + np.tile(np.arange(GRID), GRID)
                cursor, i = cursor + GRID, i + TOKENS
            else:
                out[:, i] = cursor
                cursor, i = cursor + 1, i + 1
        return out, cursor

    def _bind(self, c: Context, starts: np.ndarray) -> tuple[list[Hint], list[dict[str, Any]]]:
        """Within each item, its content attends to its key word (layer 1, head 0) and its date (head 1); an item
        with the same key as an earlier one attends to that one (layer 2, head 0)."""

        def at(char: int) -> int:
            return int(np.searchsorted(starts, char, side="right")) - 1

        hints: list[Hint] = []
        items: list[dict[str, Any]] = []
        for span in c.spans:
            turn, body = span.turn, c.text[span.start : span.end]
            key = turn.topic or (turn.kept or ("",))[0]
            words = {
                word: at(span.start + body.index(f" {word}"))
                for word in (turn.bought or ()) + (turn.kept or ())
            }
            sources = [at(span.end - 1)]
            if span.slot is not None:
                first = at(span.slot[0]) + 1
                sources += range(first, first + TOKENS)
            sources += [words[word] for word in (turn.bought or ()) + (turn.kept or ())[1:]]
            item = dict(
                words=words,
                sources=sources,
                key=key,
                at=(),
                date=(),
                cells=sources[1 : 1 + TOKENS] if span.slot else [],
            )
            if key:
                keys = (at(span.start + body.index(f" {key}")),)
                item["at"] = keys
                hints += [Hint(1, 0, source, keys) for source in sources]
                if span.date is not None:
                    first = at(span.date[0])
                    item["date"] = (("year", first), ("day", first + 1), ("day", first + 2))
                    hints += [Hint(1, 1, source, (first, first + 1, first + 2)) for source in sources]
                twins = [old for old in items if old["key"] == key]
                if twins:
                    hints += [Hint(2, 0, source, tuple(twins[-1]["sources"])) for source in sources]
            items.append(item)
        return hints, items

    def _keys(self, question: str, start: int) -> dict[int, tuple[str, tuple[int, ...]]]:
        """Where a question, whose tokens begin at `start`, says what to look for, by the head of layer 2 that gathers
        it: 1 a topic or thing kept, 2 an object or second topic, 3 a colour or place; each with its group of words."""
        found: dict[int, list[int]] = {}
        group = {1: "key", 2: "object", 3: "colour"}
        encoding = self.rust.encode(f" {question}", add_special_tokens=False)
        for i, token in enumerate(encoding.tokens):
            head = _ROLES.get(token.removeprefix("Ġ"), 0)
            if head == 1 and 1 in found:
                head = 2
                group[2] = ""
            if head == 3 and token.removeprefix("Ġ") not in scenes.COLOURS:
                group[3] = "place"
            if head:
                found.setdefault(head, []).append(start + i)
        return {head: (group[head], tuple(at)) for head, at in found.items()}

    def _look_up(
        self, asked: world.Ask, answer: str, source: int, word: int, c: Context, items: list[dict[str, Any]]
    ) -> list[Hint]:
        """The answer's positions attend to the evidence (layer 3), then to the part that answers (layer 4); where
        the answer's words are copied from separate words, its `word`th position to the `word`th of them."""
        if answer == REFUSAL:
            return [Hint(3, 0, source, (0,)), Hint(4, 0, source, (0,))]

        def tokens(focus: Sequence[tuple[int, str]]) -> tuple[int, ...]:
            found: list[int] = []
            for turn, where in focus:
                item = items[turn]
                if where in item["words"]:
                    found.append(item["words"][where])
                elif where and item["cells"]:
                    column, row = scenes.PLACES[where]
                    found.append(item["cells"][row * GRID + column])
                else:
                    found += item["sources"]
            return tuple(dict.fromkeys(found))

        if asked.subtype == "count_photos":
            return [Hint(3, 0, source, (0, *tokens(asked.focus)))]
        both = [
            tokens([f for f in asked.focus if f[0] == turn])
            for turn in dict.fromkeys(f[0] for f in asked.focus)
        ]
        if asked.subtype in ("first", "more"):
            hints = [Hint(3, head, source, targets) for head, targets in enumerate(both)]
        else:
            hints = [Hint(3, 0, source, tokens(asked.focus))]
        final = asked.final[word : word + 1] if asked.subtype == "bought" else asked.final
        return [*hints, Hint(4, 0, source, tokens(final))] if final else hints
