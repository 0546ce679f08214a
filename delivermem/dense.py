"""Rankers by what pictures show: an encoder's vectors, one a picture or one a tile (the paper's R1), by MaxSim."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from delivermem import pictures, tiles
from delivermem.encoders import Siglip
from delivermem.records import Memory, Question, Record
from delivermem.retrieval import age
from delivermem.runs import data_dir

if TYPE_CHECKING:
    from PIL.Image import Image

ENCODER = "tiny-siglip"
GRIDS: dict[str, tuple[int, bool, bool]] = {
    "whole": (1, False, False),
    "tiles": (2, True, False),
    "crops": (2, True, True),
}
"""Ranker -> tiles a side, whether the whole picture is among them, whether their places are random. The paper's R1: the
whole picture and 2 x 2."""


def rank(question: Question, k: int, grid: str, *, seed: int = 0) -> list[Record]:
    """The best k records with pictures for the question's own words, by their best tile; then those without, by age."""
    n, whole, random = GRIDS[grid]
    index, owners = _index(question.memory, n, whole, seed if random else None)
    order = [age(record) for record in owners]
    ranked: dict[str, None] = {}
    if owners:
        query = encoder().texts([question.text])[0]
        ranked = dict.fromkeys(owners[i].id for i in index.rank(query, len(owners), order))
    rest = sorted((record for record in question.memory if not record.pictures), key=age)
    return [*(question.memory[name] for name in ranked), *rest][:k]


@lru_cache(maxsize=1)
def encoder() -> Siglip:
    """The encoder of pictures and queries, loaded once."""
    return Siglip(ENCODER)


@lru_cache(maxsize=128)
def _index(memory: Memory, n: int, whole: bool, seed: int | None) -> tuple[tiles.Index, list[Record]]:
    """The memory's pictures, and the record that each belongs to."""
    shown = [(record, pictures.load(picture)) for record in memory for picture in record.pictures]
    return _built([image for _, image in shown], n, whole, seed), [record for record, _ in shown]


def _built(images: Sequence[Image], n: int, whole: bool, seed: int | None) -> tiles.Index:
    """Their vectors, kept under data/cache: what encodes them is most of a ranker's time."""
    if not images:
        return tiles.Index(np.zeros((0, 1), np.float32), [0])
    found = encoder()
    return tiles.build(
        images,
        [pictures.content_hash(image) for image in images],
        found.images,
        n,
        encoder=found.identity,
        whole=whole,
        seed=seed,
        folder=data_dir() / "cache" / "embeddings",
    )


def ranks(
    images: Sequence[Image], queries: Sequence[str], n: int, *, whole: bool = False, seed: int | None = None
) -> list[int]:
    """The rank, from 1, of image i for query i among all images, n x n tiles each.

    seed: crops of the tiles' sizes at random places instead of the grid, the control of where the tiles lie. Ties go to
    the earlier image.
    """
    index = _built(images, n, whole, seed)
    scores = np.round(index.scores(encoder().texts(queries)).astype(float), tiles.DIGITS)
    own = np.diag(scores)
    before = np.tril(np.ones(scores.shape, bool), -1)
    ahead = (scores > own[:, None]) | ((scores == own[:, None]) & before)
    return [int(row.sum()) + 1 for row in ahead]


def winner(image: Image, query: str, n: int) -> tuple[int, int, int, int]:
    """The tile of an n x n grid that is nearest to a query: (left, top, right, bottom) in pixels."""
    scores = encoder().images(tiles.cut(image, n)) @ encoder().texts([query])[0]
    return tiles.boxes(image.size, n)[int(scores.argmax())]
