"""R1, the tile adapter: a picture is several vectors, one a tile, and a query meets its best tile (MaxSim).

Vectors of all pictures lie in one flat array with offsets, so there is no padding that could win; one matrix product
scores every picture for every query. Stored records are not altered.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

OVERLAP = 0.25
"""Share of a tile's side that it has in common with its neighbour."""
LEAST_SIDE = 16
"""A tile narrower than this many pixels shows nothing: such a picture is taken whole."""
DIGITS = 6
"""Decimals to which scores are rounded before they are compared, so that no platform breaks a tie differently."""
BATCH = 32
"""Pictures cut and encoded at a time."""

Encoder = Callable[[Sequence["Image"]], np.ndarray]
"""Pictures -> one vector each, (n, d), of unit length."""


class TileError(ValueError):
    """Vectors that can't be scored, said in one sentence with the picture and the cure."""


def boxes(size: tuple[int, int], n: int, *, overlap: float = OVERLAP) -> list[tuple[int, int, int, int]]:
    """n x n overlapping tiles of a picture of that (width, height): (left, top, right, bottom) in pixels, by rows.

    A tile's side is side / (n - (n - 1) overlap); together they cover the picture. n = 1, or tiles that would be
    narrower than LEAST_SIDE: the whole picture.
    """
    if n < 1 or not 0 <= overlap < 1:
        raise ValueError(f"n={n} tiles a side with overlap={overlap}: n must be 1 or more, overlap in [0, 1)")
    spans = []
    for side in size:
        tile = side / (n - (n - 1) * overlap)
        step = (side - tile) / (n - 1) if n > 1 else 0.0
        if tile < LEAST_SIDE:
            return [(0, 0, *size)]
        spans.append([(round(i * step), round(i * step + tile)) for i in range(n)])
    return [(left, top, right, bottom) for top, bottom in spans[1] for left, right in spans[0]]


def cut(
    image: Image, n: int, *, overlap: float = OVERLAP, whole: bool = False, seed: int | None = None
) -> list[Image]:
    """The tiles of a picture, and before them the whole picture where that is asked for.

    seed: as many crops of the tiles' sizes at random places instead, the control of where the grid puts them.
    """
    found = boxes(image.size, n, overlap=overlap)
    if seed is not None:
        rng = np.random.default_rng(seed)
        found = [_moved(rng, image.size, box) for box in found]
    tiles = [image.crop(box) for box in found]
    return [image, *tiles] if whole and len(tiles) > 1 else tiles


def _moved(
    rng: np.random.Generator, size: tuple[int, int], box: tuple[int, int, int, int]
) -> tuple[int, int, int, int]:
    """A box of the same size at a random place of the picture."""
    width, height = box[2] - box[0], box[3] - box[1]
    x, y = (int(rng.integers(0, room + 1)) for room in (size[0] - width, size[1] - height))
    return x, y, x + width, y + height


class Index:
    """Tile vectors of several pictures: `vectors` (tiles, d), float16 or float32; picture i owns the rows
    offsets[i]:offsets[i + 1] of them. Every picture has at least one tile, every number is finite."""

    def __init__(self, vectors: np.ndarray, offsets: Sequence[int] | np.ndarray):
        self.vectors, self.offsets = vectors, np.asarray(offsets, np.int64)
        if vectors.ndim != 2 or vectors.dtype not in (np.float16, np.float32):
            raise TileError(
                f"vectors of shape {vectors.shape} and {vectors.dtype}: give (tiles, d) in float16 or float32"
            )
        ends = self.offsets
        if len(ends) < 1 or ends[0] != 0 or ends[-1] != len(vectors) or (np.diff(ends) < 1).any():
            raise TileError(
                f"offsets must rise from 0 to {len(vectors)}, with a tile or more for every picture"
            )
        bad = np.flatnonzero(~np.isfinite(vectors).all(1))
        if len(bad):
            picture = int(np.searchsorted(ends, bad[0], side="right")) - 1
            raise TileError(f"picture {picture}: a tile's vector is not finite; encode it again")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def scores(self, queries: np.ndarray) -> np.ndarray:
        """The best tile of every picture for every query: (q, d) -> (q, pictures), cosine where all have unit length.

        Source: MaxSim of Khattab & Zaharia 2020 (ColBERT), with tiles for tokens and one vector a query.
        """
        if not len(self):
            return np.zeros((len(queries), 0), np.float32)
        product = queries.astype(np.float32, copy=False) @ self.vectors.T.astype(np.float32, copy=False)
        return np.maximum.reduceat(product, self.offsets[:-1], axis=1)

    def rank(self, query: np.ndarray, k: int, order: Sequence[tuple[object, ...]]) -> list[int]:
        """The best min(k, n) pictures for one query (d,), best first; ties by `order`, a key a picture."""
        found = np.round(self.scores(query[None])[0].astype(float), DIGITS)
        return sorted(range(len(self)), key=lambda i: (-found[i], order[i]))[:k]


def build(
    images: Sequence[Image],
    names: Sequence[str],
    encode: Encoder,
    n: int,
    *,
    encoder: str,
    overlap: float = OVERLAP,
    whole: bool = False,
    seed: int | None = None,
    folder: Path | None = None,
) -> Index:
    """The index of some pictures. names: a content hash each. encoder: the name and revision of `encode`.

    seed: as of `cut`; a picture's crops follow from it and the picture's name. folder: where vectors are kept, as of `kept`.
    """
    grid = dict(n=n, overlap=overlap, whole=whole, seed=seed, least=LEAST_SIDE)
    tiles = [len(boxes(image.size, n, overlap=overlap)) for image in images]
    pieces = [count + (whole and count > 1) for count in tiles]

    def pieces_of(i: int) -> list[Image]:
        own = None if seed is None else int(hashlib.sha256(f"{seed} {names[i]}".encode()).hexdigest()[:8], 16)
        return cut(images[i], n, overlap=overlap, whole=whole, seed=own)

    def made() -> np.ndarray:
        parts = [
            encode([tile for i in range(start, min(start + BATCH, len(images))) for tile in pieces_of(i)])
            for start in range(0, len(images), BATCH)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)

    offsets = np.concatenate([[0], np.cumsum(pieces)]).astype(np.int64)
    return kept(dict(encoder=encoder, **grid, pictures=list(names)), offsets, made, folder)


def kept(
    about: Mapping[str, Any],
    offsets: Sequence[int] | np.ndarray,
    make: Callable[[], np.ndarray],
    folder: Path | None,
) -> Index:
    """An index whose vectors are kept in a folder as `.npy`, named by `about`: all that can change them.

    Found there, they are memory-mapped and nothing is made. A file that can't be read or is of another shape is made anew.
    """
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    path = folder / f"{key}.npy" if folder is not None else None
    if path is not None and path.exists():
        try:
            return Index(np.load(path, mmap_mode="r", allow_pickle=False), offsets)
        except (OSError, ValueError, EOFError) as error:
            warnings.warn(f"{path}: made anew, as what is there can't be used ({error})", stacklevel=2)
    vectors = make().astype(np.float32)
    index = Index(vectors, offsets)  # refuses what must not be written
    if path is not None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}")
            with part.open("wb") as file:
                np.save(file, vectors, allow_pickle=False)
            part.replace(path)
        except OSError as error:
            warnings.warn(f"{path}: the vectors could not be kept ({error})", stacklevel=2)
    return index
