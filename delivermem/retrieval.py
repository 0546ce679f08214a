"""Which records are delivered: rankers over a memory, all at the same K, deterministic to the last tie."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from delivermem.records import IMAGE_MARK, Memory, Question, Record

STOP_WORDS = frozenset(
    "a an and are at by do does did for from has have how i in is it me my of on or s the this to was were what "
    "when where which who with you your".split()
)
K1, B = 1.5, 0.75
"""BM25's saturation of repeated words and its correction for length, in Lucene's form of the formula."""
DIGITS = 6
"""Decimals to which scores are rounded before they are compared, so that no platform breaks a tie differently."""


def words(text: str) -> list[str]:
    """Lower-case words and numbers of a text, without image marks and stop words."""
    plain = unicodedata.normalize("NFKC", text.replace(IMAGE_MARK, " ")).lower()
    found = re.findall(r"[^\W_]+", plain)
    return [word for word in found if word not in STOP_WORDS]


class Encoders(NamedTuple):
    """Names of what pictures and texts are retrieved by: a folder of data/models, or a hub's; "" for none."""

    pictures: str = "tiny-siglip"
    texts: str = ""


def rank(
    ranker: str,
    question: Question,
    k: int,
    *,
    seed: int = 0,
    beside_gold: str = "bm25",
    encoder: str = "tiny-siglip",
    text_encoder: str = "",
) -> tuple[Record, ...]:
    """The best min(k, n) records of the question's memory, best first. `ranker`: a name in RANKERS, or `gold`.

    `gold` delivers the gold records and, up to K, the best of the others, all in the order of the ranker `beside_gold`.
    Perfect retrieval changes which records are delivered and nothing else: were gold put first, the answer to "which
    memory" could be read off the position, and were the others left out, K would differ between arms.
    seed concerns `random` and `crops`; encoder those of BY_SIGHT that see pictures, text_encoder those of BY_WORDING. Raises
    ValueError for an unknown ranker, k below 1, and an encoder that can't be had.
    """
    for name in (ranker, beside_gold):
        if name not in RANKERS and (name, ranker) != ("gold", "gold"):
            raise ValueError(f"ranker {name!r} is unknown; choose one of gold, {', '.join(RANKERS)}")
    if k < 1:
        raise ValueError(f"k={k} records can't be delivered; k must be 1 or more")
    refuse_wordless([ranker, beside_gold] if ranker == "gold" else [ranker], text_encoder)
    if not len(question.memory):
        return ()
    by = Encoders(encoder, text_encoder)
    if ranker != "gold":
        return tuple(RANKERS[ranker](question, k, seed, by))
    ranked = RANKERS[beside_gold](question, len(question.memory), seed, by)
    gold = [record for record in ranked if record.id in question.gold][:k]
    others = [record for record in ranked if record.id not in question.gold]
    kept = {record.id for record in gold + others[: k - len(gold)]}
    return tuple(record for record in ranked if record.id in kept)


def refuse_wordless(rankers: Iterable[str], text_encoder: str) -> None:
    """ValueError where one of those rankers reads texts and no text encoder is named."""
    reading = sorted(BY_WORDING.intersection(rankers))
    if reading and not text_encoder:
        raise ValueError(
            f"ranker {reading[0]!r} reads texts with an encoder, and the benchmark names none; "
            "set its text_encoder, such as sentence-transformers/all-MiniLM-L6-v2"
        )


def asked(question: Question) -> str:
    """What memory is asked: the question's `query`, or else its text."""
    return question.query or question.text


def recall(question: Question, delivered: Iterable[str]) -> float:
    """Share of the question's gold records among the delivered ids, in [0, 1]; NaN where it has no gold."""
    if not question.gold:
        return float("nan")
    return len(set(question.gold) & set(delivered)) / len(set(question.gold))


def bm25_scores(memory: Memory, query: str) -> np.ndarray:
    """BM25 of every record's text for a query, in the memory's order, (n,) float64; 0 where no word is shared.

    Image marks, case and STOP_WORDS don't count; rounded to DIGITS. The index is made once per memory and kept.
    Source: Robertson & Zaragoza 2009, as computed by the bm25s library.
    """
    terms = [term for term in words(query) if term in _vocabulary(memory)]
    if not terms:
        return np.zeros(len(memory))
    return np.round(np.asarray(_index(memory).get_scores(terms), dtype=float), DIGITS)


def _bm25(question: Question, k: int, seed: int, by: Encoders) -> list[Record]:
    scores = bm25_scores(question.memory, asked(question))
    order = sorted(zip(-scores, question.memory, strict=True), key=lambda pair: (pair[0], *age(pair[1])))
    return [record for _, record in order[:k]]


def _recent(question: Question, k: int, seed: int, by: Encoders) -> list[Record]:
    """The last K by time, latest first: chosen without the query."""
    return sorted(question.memory, key=age, reverse=True)[:k]


def _random(question: Question, k: int, seed: int, by: Encoders) -> list[Record]:
    """K drawn without replacement from (seed, question id): chosen without the query."""
    digest = hashlib.sha256(f"{seed}\n{question.id}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    records = sorted(question.memory, key=age)
    return [records[i] for i in rng.permutation(len(records))[:k]]


def _seen(question: Question, k: int, seed: int, by: Encoders, *, grid: str) -> Sequence[Record]:
    """By what pictures show, one of `dense.GRIDS`; the encoder is loaded when it is first asked."""
    from delivermem import dense

    return dense.rank(question, k, grid, seed=seed, encoder=by.pictures)


def _text(question: Question, k: int, seed: int, by: Encoders) -> Sequence[Record]:
    from delivermem import dense

    return dense.rank_texts(question, k, by.texts)


def _fused(question: Question, k: int, seed: int, by: Encoders, *, grid: str) -> Sequence[Record]:
    from delivermem import dense

    return dense.rank_fused(question, k, grid, seed=seed, encoder=by.pictures, text_encoder=by.texts)


RANKERS: dict[str, Callable[[Question, int, int, Encoders], Sequence[Record]]] = {
    "bm25": _bm25,
    "recent": _recent,
    "random": _random,
    "whole": partial(_seen, grid="whole"),
    "tiles": partial(_seen, grid="tiles"),
    "crops": partial(_seen, grid="crops"),
    "text": _text,
    "fused": partial(_fused, grid="whole"),
    "fused-tiles": partial(_fused, grid="tiles"),
}
"""By words, by age, by chance; by pictures: whole, by their best tile (the paper's R1), or by their best random crop of a
tile's size, the control of where the tiles lie; by the meaning of texts; and by whole pictures and texts together
(DMV-Bench's DualMem), or tiles and texts."""
BY_WORDING = frozenset({"text", "fused", "fused-tiles"})
"""Those that need a text encoder."""
BY_SIGHT = frozenset({"whole", "tiles", "crops"}) | BY_WORDING
"""Those whose scores come out of an encoder, whose last digits differ between machines: a manifest names it."""


def age(record: Record) -> tuple[datetime, str]:
    """Order of equal records: by time (those without one first), then by id."""
    return record.time or datetime.min, record.id


@lru_cache(maxsize=256)
def _index(memory: Memory):  # type: ignore[no-untyped-def]
    import bm25s

    index = bm25s.BM25(k1=K1, b=B, method="lucene", dtype="float64")
    index.index([words(record.text) or [""] for record in memory], show_progress=False)
    return index


@lru_cache(maxsize=256)
def _vocabulary(memory: Memory) -> frozenset[str]:
    return frozenset(word for record in memory for word in words(record.text))
