"""Contexts to tensors: many questions to a context, and what training alone is told of them.

Each question is a branch that sees its context and itself (a 4-D mask). Two sorts of hint come along: which earlier
tokens a token should attend to (`Hint`), so that item, date and picture are bound early and looked up late, and which
words a token should hold half-way up (`Gathered`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from delivermem.benchmarks import asking, scenes, world
from delivermem.records import REFUSAL
from delivermem.reference.corpus import GRID, TOKENS, Context
from delivermem.reference.errands import Errand
from delivermem.reference.shopping import FrameSpan

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
        shopping = bool(c.spans) and isinstance(c.spans[0], FrameSpan)
        hints, items = (self._bind_frames if shopping else self._bind)(c, starts)
        gathered = [
            Gathered(s, "key", ids[t]) for i in items if i["at"] for t in i["at"] for s in i["sources"]
        ]
        for item in items:
            gathered += [Gathered(s, g, ids[t]) for s in item["sources"] for g, t in item["date"]]
            if not shopping and item["cells"]:
                gathered += [Gathered(item["cells"][i], "place", t) for i, t in self._places]
            gathered += [Gathered(s, g, ids[t]) for s, g, t in item.get("held", ())]
        seg, label, positions = [0] * len(ids), [-100] * len(ids), [position]
        for number, (asked, answer) in enumerate(c.asks, 1):
            errand = isinstance(c, Errand)  # its question stands in its context
            question = self.ids(("" if errand else f" {asked.text}") + "<|im_end|>\n<|im_start|>assistant\n")
            reply = [*self.ids(answer), self.end]
            first = len(ids) + len(question) - 1
            words: Sequence[int] = range(len(reply) - 1)
            if isinstance(c, Errand):
                keys = self._keys(f" {c.text[slice(*c.cue)]}", _at(starts, c.cue[0]))
                words = self._marked(answer, c.marks)
            else:
                keys = self._keys(f" {asked.text}", len(ids))
            for word in words:
                source = first + word
                hints += [Hint(2, head, source, at) for head, (_, at) in keys.items()]
                gathered += [
                    Gathered(source, g, (ids + question + reply)[t])
                    for g, at in keys.values()
                    for t in at
                    if g
                ]
                hints += self._look_up(asked, answer, source, word, c, items)
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

    def _marked(self, reply: str, marks: Sequence[tuple[int, int]]) -> list[int]:
        """Which tokens of a reply lie in the marked characters, and begin there or with the space before."""
        offsets = self.rust.encode(reply, add_special_tokens=False).offsets
        begins = [start + (reply[start] == " ") for start, _ in offsets]
        return [i for i, at in enumerate(begins) if any(first <= at < last for first, last in marks)]

    def positions(self, ids: Sequence[int]) -> tuple[np.ndarray, int]:
        """Qwen3-VL's 3-D positions of a token row whose images are square, and the next free position."""
        out, cursor, i = np.empty((3, len(ids)), np.int64), 0, 0
        while i < len(ids):
            if ids[i] == self.image:
                end = next((j for j in range(i, len(ids)) if ids[j] != self.image), len(ids))
                side = math.isqrt(end - i)
                out[0, i:end] = cursor
                out[1, i:end] = cursor + np.repeat(np.arange(side), side)
                out[2, i:end] = cursor + np.tile(np.arange(side), side)
                cursor, i = cursor + side, end
            else:
                out[:, i] = cursor
                cursor, i = cursor + 1, i + 1
        return out, cursor

    def _bind_frames(self, c: Context, starts: np.ndarray) -> tuple[list[Hint], list[dict[str, Any]]]:
        """A page's code attends to its item's tag (layer 1, head 0), and a picture, which shows the same tag, to that
        code (layer 2, head 0): both should then hold what they saw. Where no tag can be read nothing is told."""
        hints: list[Hint] = []
        items: list[dict[str, Any]] = []
        for span in c.spans:
            lead, code = _at(starts, span.lead), _at(starts, span.code)
            parts, held, cells = (code, code + 1, code + 2), [], []
            if span.slot is not None:
                first = _at(starts, span.slot[0]) + 1
                cells = list(range(first, _at(starts, span.slot[1] - 1)))
            if span.readable:
                hints += [Hint(1, 0, part, (lead,)) for part in parts]
                held += [(part, "tag", lead) for part in parts]
                hints += [Hint(2, 0, cell, (part,)) for cell in cells for part in parts]  # to each alike
                held += [(cell, f"code {j}", part) for cell in cells for j, part in enumerate(parts)]
            items.append(
                dict(words={}, sources=[*parts, *cells], key="", at=(), date=(), cells=cells, held=held)
            )
        if isinstance(c, Errand) and c.page is not None:
            cells = list(range(_at(starts, c.page[0]) + 1, _at(starts, c.page[1] - 1)))
            items.append(dict(words={}, sources=cells, key="", at=(), date=(), cells=cells, held=()))
        return hints, items

    def _bind(self, c: Context, starts: np.ndarray) -> tuple[list[Hint], list[dict[str, Any]]]:
        """Within each item, its content attends to its key word (layer 1, head 0) and its date (head 1); an item
        with the same key as an earlier one attends to that one (layer 2, head 0)."""

        def at(char: int) -> int:
            return _at(starts, char)

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
        encoding = self.rust.encode(question, add_special_tokens=False)
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
        self, asked: asking.Ask, answer: str, source: int, word: int, c: Context, items: list[dict[str, Any]]
    ) -> list[Hint]:
        """The answer's positions attend to the evidence (layer 3), then to the part that answers (layer 4); where
        the answer's words are copied from separate words, its `word`th position to the `word`th of them."""
        if answer == REFUSAL or (isinstance(c, Errand) and asked.refusal):
            return [Hint(3, 0, source, (0,)), Hint(4, 0, source, (0,))]

        def tokens(focus: Sequence[tuple[int, str]]) -> tuple[int, ...]:
            found: list[int] = []
            for turn, where in focus:
                item = items[turn]
                if where in item["words"]:
                    found.append(item["words"][where])
                elif where.startswith("cell ") and item["cells"]:
                    found.append(item["cells"][int(where[5:])])
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


def _at(starts: np.ndarray, char: int) -> int:
    """The token that holds a character."""
    return int(np.searchsorted(starts, char, side="right")) - 1
