"""Rankers by an encoder's vectors: pictures whole or by tiles (the paper's R1) by MaxSim, texts, and both fused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from delivermem import pictures, tiles
from delivermem.encoders import Sentences, Siglip
from delivermem.records import IMAGE_MARK, Memory, Picture, Question, Record
from delivermem.retrieval import age, asked, refuse_wordless
from delivermem.runs import data_dir

if TYPE_CHECKING:
    from PIL.Image import Image

ENCODER = "tiny-siglip"
"""The embedded encoder. It stays on the CPU, in float32: there the kept ranks were made."""
GRIDS: dict[str, tuple[int, bool, bool]] = {
    "whole": (1, False, False),
    "tiles": (2, True, False),
    "crops": (2, True, True),
}
"""Ranker -> tiles a side, whether the whole picture is among them, whether their places are random. The paper's R1: the
whole picture and 2 x 2."""
ALPHA = 0.75
"""Weight of the visual channel in a fused score; the textual one has the rest. Source: DMV-Bench's DualMem-a75."""
NEUTRAL = 0.5
"""The scaled score of a channel that tells nothing: of all records where they score the same (as DMV-Bench has it), and of a
record that has no picture, or no words (our own rule: DMV-Bench has no such record)."""
MOST = 20_000
"""Pictures and texts whose vectors stay in memory: some 300 MB for five tiles of 768 numbers."""
TEXTS = 1024
"""Texts encoded, and kept in one file, at a time."""

Vectors = dict[tuple[Hashable, str], np.ndarray]


def rank(question: Question, k: int, grid: str, *, seed: int = 0, encoder: str = ENCODER) -> list[Record]:
    """The best k records with pictures for the question's own words, by their best tile; then those without, by age."""
    return _best(question.memory, seen(question, grid, seed=seed, name=encoder), k)


def rank_texts(question: Question, k: int, text_encoder: str) -> list[Record]:
    """The best k records by what they say, for the question's own words; then those that say nothing, by age."""
    return _best(question.memory, said(question, text_encoder), k)


def rank_fused(
    question: Question, k: int, grid: str, *, seed: int = 0, encoder: str = ENCODER, text_encoder: str
) -> list[Record]:
    """The best k records by ALPHA times what their pictures show and the rest what they say, each min-max over the memory."""
    visual = scaled(seen(question, grid, seed=seed, name=encoder))
    verbal = scaled(said(question, text_encoder))
    fused = {
        record.id: ALPHA * visual.get(record.id, NEUTRAL) + (1 - ALPHA) * verbal.get(record.id, NEUTRAL)
        for record in question.memory
    }
    return _best(question.memory, fused, k)


def scaled(scores: Mapping[str, float]) -> dict[str, float]:
    """Min-max: (s - least) / (most - least), in [0, 1]; NEUTRAL for all where they are equal."""
    least, most = min(scores.values(), default=0.0), max(scores.values(), default=0.0)
    if most == least:
        return dict.fromkeys(scores, NEUTRAL)
    return {name: (score - least) / (most - least) for name, score in scores.items()}


def seen(question: Question, grid: str, *, seed: int = 0, name: str = ENCODER) -> dict[str, float]:
    """The cosine of the question and the best tile of each record that has pictures, by record id, rounded."""
    n, whole, random = GRIDS[grid]
    index, owners = _index(question.memory, n, whole, seed if random else None, name)
    if not owners:
        return {}
    found = _rounded(index.scores(_eye(name).texts([asked(question)])))[0]
    best: dict[str, float] = {}
    for record, score in zip(owners, found.tolist(), strict=True):
        best[record.id] = max(score, best.get(record.id, score))
    return best


def said(question: Question, name: str) -> dict[str, float]:
    """The cosine of the question and the text of each record that has words, by record id, rounded."""
    index, owners = _texts(question.memory, name)
    if not owners:
        return {}
    found = _rounded(index.scores(text_encoder(name).texts([asked(question)])))[0]
    return {record.id: score for record, score in zip(owners, found.tolist(), strict=True)}


def _rounded(scores: np.ndarray) -> np.ndarray:
    return np.round(scores.astype(float), tiles.DIGITS)


def _best(memory: Memory, scores: Mapping[str, float], k: int) -> list[Record]:
    """By score, to DIGITS, then age; those without a score last."""

    def order(record: Record) -> tuple[object, ...]:
        score = scores.get(record.id)
        return (score is None, 0.0 if score is None else -round(score, tiles.DIGITS), *age(record))

    return sorted(memory, key=order)[:k]


def stated(rankers: Collection[str], encoder: str, texts: str) -> str:
    """What a manifest says of the encoders behind some rankers: names and revisions. Both stand there where both are named,
    whichever ranker asks, so that one folder holds answers of several. Raises BackboneError for an encoder that can't be
    had, and ValueError for a ranker of texts without one; loads no model."""
    refuse_wordless(rankers, texts)
    return " + ".join([_eye(encoder).identity, *([text_encoder(texts).identity] if texts else [])])


@lru_cache(maxsize=2)
def encoder(name: str = ENCODER) -> Siglip:
    """The encoder of pictures and queries of that name, loaded once."""
    return Siglip(name, device="cpu" if name == ENCODER else None)


@lru_cache(maxsize=2)
def text_encoder(name: str) -> Sentences:
    """The encoder of texts of that name, loaded once."""
    return Sentences(name)


def _eye(name: str) -> Siglip:
    return encoder() if name == ENCODER else encoder(name)


_held: Vectors = {}
_hashes: WeakKeyDictionary[Picture, str] = WeakKeyDictionary()


def _gathered(
    about: Hashable, names: Sequence[str], make: Callable[[list[str]], tiles.Index], at_once: int
) -> tiles.Index:
    """The index of things named by their content; vectors not at hand are made, and a memory that grew costs what it grew."""
    if len(_held) > MOST:
        _held.clear()
    missing = [name for name in dict.fromkeys(names) if (about, name) not in _held]
    for start in range(0, len(missing), at_once):
        part = missing[start : start + at_once]
        made = make(part)
        for i, name in enumerate(part):
            _held[about, name] = np.array(made.vectors[made.offsets[i] : made.offsets[i + 1]])
    parts = [_held[about, name] for name in names]
    vectors = np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)
    return tiles.Index(vectors, np.cumsum([0, *(len(part) for part in parts)]))


@lru_cache(maxsize=32)
def _index(
    memory: Memory, n: int, whole: bool, seed: int | None, name: str
) -> tuple[tiles.Index, list[Record]]:
    """The memory's pictures, and the record that each belongs to."""
    shown = [(record, picture) for record in memory for picture in record.pictures]
    of = {_hash(picture): picture for _, picture in shown}

    def make(names: list[str]) -> tiles.Index:
        return _built([pictures.load(of[name]) for name in names], n, whole, seed, name)

    about = _eye(name).identity, n, whole, seed
    index = _gathered(about, [_hash(picture) for _, picture in shown], make, tiles.BATCH)
    return index, [record for record, _ in shown]


def _hash(picture: Picture) -> str:
    if picture not in _hashes:
        _hashes[picture] = pictures.content_hash(pictures.load(picture))
    return _hashes[picture]


@lru_cache(maxsize=32)
def _texts(memory: Memory, name: str) -> tuple[tiles.Index, list[Record]]:
    """What the memory's records say without image marks, one vector each; those that say nothing are left out."""
    words = {record: " ".join(record.text.replace(IMAGE_MARK, " ").split()) for record in memory}
    owners = [record for record in memory if words[record]]

    def make(texts: list[str]) -> tiles.Index:
        hashes = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
        about = dict(encoder=found.identity, texts=hashes)
        return tiles.kept(about, range(len(texts) + 1), lambda: found.texts(texts), _folder())

    found = text_encoder(name)
    return _gathered(found.identity, [words[record] for record in owners], make, TEXTS), owners


def _built(
    images: Sequence[Image], n: int, whole: bool, seed: int | None, name: str = ENCODER
) -> tiles.Index:
    """Their vectors, kept on disk: what encodes them is most of a ranker's time."""
    if not images:
        return tiles.Index(np.zeros((0, 1), np.float32), [0])
    found = _eye(name)
    return tiles.build(
        images,
        [pictures.content_hash(image) for image in images],
        found.images,
        n,
        encoder=found.identity,
        whole=whole,
        seed=seed,
        folder=_folder(),
    )


def _folder() -> Path:
    return data_dir() / "cache" / "embeddings"


def ranks(
    images: Sequence[Image], queries: Sequence[str], n: int, *, whole: bool = False, seed: int | None = None
) -> list[int]:
    """The rank, from 1, of image i for query i among all images, n x n tiles each, by the embedded encoder.

    seed: crops of the tiles' sizes at random places instead of the grid, the control of where the tiles lie. Ties go to
    the earlier image.
    """
    index = _built(images, n, whole, seed)
    scores = _rounded(index.scores(encoder().texts(queries)))
    own = np.diag(scores)
    before = np.tril(np.ones(scores.shape, bool), -1)
    ahead = (scores > own[:, None]) | ((scores == own[:, None]) & before)
    return [int(row.sum()) + 1 for row in ahead]


def winner(image: Image, query: str, n: int) -> tuple[int, int, int, int]:
    """The tile of an n x n grid that is nearest to a query: (left, top, right, bottom) in pixels."""
    scores = encoder().images(tiles.cut(image, n)) @ encoder().texts([query])[0]
    return tiles.boxes(image.size, n)[int(scores.argmax())]
