"""Which records are delivered: rankers over a memory, all at the same K, deterministic to the last tie."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache

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


def rank(
    ranker: str, question: Question, k: int, *, seed: int = 0, beside_gold: str = "bm25"
) -> tuple[Record, ...]:
    """The best min(k, n) records of the question's memory, best first. `ranker`: a name in RANKERS, or `gold`.

    `gold` delivers the gold records and, up to K, the best of the others, all in the order of the ranker `beside_gold`.
    Perfect retrieval changes which records are delivered and nothing else: were gold put first, the answer to "which
    memory" could be read off the position, and were the others left out, K would differ between arms.
    seed concerns `random` and `crops`. Raises ValueError for an unknown ranker and for k below 1.
    """
    for name in (ranker, beside_gold):
        if name not in RANKERS and (name, ranker) != ("gold", "gold"):
            raise ValueError(f"ranker {name!r} is unknown; choose one of gold, {', '.join(RANKERS)}")
    if k < 1:
        raise ValueError(f"k={k} records can't be delivered; k must be 1 or more")
    if not len(question.memory):
        return ()
    if ranker != "gold":
        return tuple(RANKERS[ranker](question, k, seed))
    ranked = RANKERS[beside_gold](question, len(question.memory), seed)
    gold = [record for record in ranked if record.id in question.gold][:k]
    others = [record for record in ranked if record.id not in question.gold]
    kept = {record.id for record in gold + others[: k - len(gold)]}
    return tuple(record for record in ranked if record.id in kept)


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


def _bm25(question: Question, k: int, seed: int) -> list[Record]:
    scores = bm25_scores(question.memory, question.text)
    order = sorted(zip(-scores, question.memory, strict=True), key=lambda pair: (pair[0], *age(pair[1])))
    return [record for _, record in order[:k]]


def _recent(question: Question, k: int, seed: int) -> list[Record]:
    """The last K by time, latest first: chosen without the query."""
    return sorted(question.memory, key=age, reverse=True)[:k]


def _random(question: Question, k: int, seed: int) -> list[Record]:
    """K drawn without replacement from (seed, question id): chosen without the query."""
    digest = hashlib.sha256(f"{seed}\n{question.id}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    records = sorted(question.memory, key=age)
    return [records[i] for i in rng.permutation(len(records))[:k]]


def _seen(grid: str) -> Callable[[Question, int, int], Sequence[Record]]:
    """A ranker by what pictures show, one of `dense.GRIDS`; its encoder is loaded when it is first asked."""

    def ranked(question: Question, k: int, seed: int) -> Sequence[Record]:
        from delivermem import dense

        return dense.rank(question, k, grid, seed=seed)

    return ranked


RANKERS: dict[str, Callable[[Question, int, int], Sequence[Record]]] = {
    "bm25": _bm25,
    "recent": _recent,
    "random": _random,
    "whole": _seen("whole"),
    "tiles": _seen("tiles"),
    "crops": _seen("crops"),
}
"""By words, by age, by chance; and by pictures: whole, by their best tile (the paper's R1), or by their best random crop
of a tile's size, the control of where the tiles lie."""
BY_SIGHT = frozenset({"whole", "tiles", "crops"})
"""Those whose scores come out of an encoder, whose last digits differ between machines."""


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
