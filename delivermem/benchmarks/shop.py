"""The shop behind the embedded DMV-Bench twin: product pages, each with one photograph, and chains of visits.

A frame shows one product, large, a few small objects that other frames show too, and one small cue object that no other
product has. Only the cue tells which product a probe means, and only the pixels show it: every text names the kind of
product and its page. Frames are split in two for good, as scenes are: benchmarks and training never share one.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

import numpy as np
from PIL import Image, ImageDraw

from delivermem.benchmarks.scenes import CELL, HELD_OUT, PAIRS, WALLS, paint
from delivermem.benchmarks.world import indefinite, pick
from delivermem.records import IMAGE_MARK, Picture, Record

FRAME = 128
"""Width and height of a frame in pixels."""
CELLS = FRAME // CELL
RING = tuple(
    (column, row)
    for row in range(CELLS)
    for column in range(CELLS)
    if (column in (0, CELLS - 1) or row in (0, CELLS - 1)) and (column, row) != (0, 0)
)
"""Cells (column, row) where small objects stand: around the product, the top-left one left free for the tag."""
CATEGORIES = "lamp chair table sofa shelf carpet mirror clock basket desk".split()
TONES = ((112, 88, 64), (150, 122, 92), (96, 96, 100), (142, 142, 146), (86, 100, 92), (120, 104, 118))
"""Dull colours of products: never one of the cues'."""
CODES = ("abcdefghijklm", "0123456789", "nopqrstuvwxyz")
TEXTS = ("Look at this {c}: {p} ", "Here is a {c}: {p} ", "I took this {c}: {p} ", "My latest {c}: {p} ")
VISITS = 4
"""Products visited in a session."""
CUE_SIZES = range(29, 33)
"""Longer side of a small object in pixels."""

Placed = tuple[str, str, tuple[int, int]]
"""A small object: colour, name, cell."""


@dataclass(frozen=True)
class Product:
    """One page of the shop: /product/<code>."""

    code: str
    category: str
    tone: int
    cue: Placed
    others: tuple[Placed, ...]
    seed: int

    @property
    def page(self) -> str:
        return f"/product/{self.code}"

    def frame(self, *, cued: bool = True) -> Image.Image:
        """The page's photograph, RGB, FRAME x FRAME pixels, or its original before the cue was put in."""
        rng = np.random.default_rng(self.seed)
        wall = Image.new("RGB", (FRAME, FRAME), WALLS[int(rng.integers(len(WALLS)))])
        _furnish(ImageDraw.Draw(wall), self.category, TONES[self.tone], rng)
        pixels = np.asarray(wall, np.float32) + rng.normal(0, 4, (FRAME, FRAME, 1)).astype(np.float32)
        for placed in (*self.others, self.cue):  # the cue last, so that the two originals share all else
            if cued or placed is not self.cue:
                colour, name, (column, row) = placed
                paint(pixels, rng, colour, name, column, row, CUE_SIZES)
        return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))

    @cached_property
    def photo(self) -> Image.Image:
        """The cued frame, drawn once."""
        return self.frame()


@dataclass(frozen=True, eq=False)
class Visit:
    """One product seen in one session of a chain."""

    session: int
    place: int
    time: datetime
    text: str
    product: Product

    @property
    def id(self) -> str:
        return f"s{self.session:02d}:{self.place:02d}"

    def record(self) -> Record:
        """The visit as a stored record: its text names the page, its picture is the frame."""
        picture = Picture(f"{self.id}.png", self.product.photo, caption(self.product.category))
        return Record(self.id, self.text, self.time, "user", f"s{self.session:02d}", (picture,))


def catalogue(
    rng: np.random.Generator, *, for_benchmark: bool, per_category: int = 24
) -> tuple[Product, ...]:
    """Products of every category, each with a code and a cue of its own. Other small objects come from pairs that are
    nobody's cue, so that frames look alike and one cue still names one product."""
    pairs = [pair for pair in PAIRS if for_benchmark or pair not in HELD_OUT]
    order = [pairs[i] for i in rng.permutation(len(pairs))]
    count = min(per_category, (len(pairs) - 40) // len(CATEGORIES)) * len(CATEGORIES)
    cues, common = order[:count], order[count:]
    letters = [a + b + c for a in CODES[0] for b in CODES[1] for c in CODES[2]]
    codes = [letters[i] for i in rng.permutation(len(letters))[:count]]
    products = []
    for i, (code, cue) in enumerate(zip(codes, cues, strict=True)):
        while True:
            cells = [RING[j] for j in rng.permutation(len(RING))]
            number = int(rng.integers(1, 4))
            others = tuple(
                (*common[j], cell)
                for j, cell in zip(rng.permutation(len(common))[:number], cells[1:], strict=False)
            )
            product = Product(
                code,
                CATEGORIES[i % len(CATEGORIES)],
                int(rng.integers(len(TONES))),
                (*cue, cells[0]),
                others,
                int(rng.integers(2**31)),
            )
            if _reserved(product) == for_benchmark:
                break
        products.append(product)
    return tuple(products)


def _reserved(product: Product) -> bool:
    """Whether a frame is for benchmarks alone: its hash falls in the tenth kept back."""
    text = f"{product.category} {product.cue} {sorted(product.others)}"
    return hashlib.sha256(text.encode()).digest()[0] % 10 == 0


def chain(rng: np.random.Generator, products: Sequence[Product], sessions: int) -> list[Visit]:
    """A chain of dated sessions, each to one category, VISITS products a session, none visited twice."""
    left: dict[str, list[Product]] = defaultdict(list)
    for i in rng.permutation(len(products)):
        left[products[i].category].append(products[i])
    visits, day = [], datetime(2023, 1, 1) + timedelta(days=int(rng.integers(0, 400)))
    for session in range(sessions):
        day += timedelta(days=int(rng.integers(1, 15)))
        clock = day + timedelta(minutes=int(rng.integers(7 * 60, 21 * 60)))
        category = pick(rng, sorted(name for name, rest in left.items() if len(rest) >= VISITS))
        for place in range(VISITS):
            product = left[category].pop()
            clock += timedelta(minutes=int(rng.integers(1, 9)))
            text = pick(rng, TEXTS).format(c=category, p=product.page) + IMAGE_MARK
            visits.append(Visit(session, place, clock, text, product))
    return visits


def caption(category: str) -> str:
    """What a stored text says of a frame: never the cue."""
    return f"a photo of a {category} and some small things"


def probe(colour: str, name: str) -> str:
    """The question for the product that carries a cue."""
    return f"Which product shows {indefinite(colour)} {name}?"


def _furnish(
    draw: ImageDraw.ImageDraw, category: str, tone: tuple[int, int, int], rng: np.random.Generator
) -> None:
    """Draw the floor and the product, some 80 pixels wide, in the middle of a frame. Coordinates are of a frame of 192."""
    scale, (x, y) = FRAME / 192, (int(v) for v in rng.integers(-6, 7, 2))
    dark, light = (tuple(int(v * f) for v in tone) for f in (0.7, 1.25))
    draw.rectangle((0, 168 * scale, FRAME, FRAME), fill=(168, 156, 140))

    def box(
        left: int, top: int, right: int, bottom: int, fill: tuple[int, ...], shape: str = "rectangle"
    ) -> None:
        corners = (left + x, top + y, right + x, bottom + y)
        getattr(draw, shape)(tuple(round(v * scale) for v in corners), fill=fill)

    def polygon(*points: tuple[int, int], fill: tuple[int, ...]) -> None:
        draw.polygon([(round((px + x) * scale), round((py + y) * scale)) for px, py in points], fill=fill)

    legs = [(48, 60), (132, 144)]
    match category:
        case "lamp":
            polygon((72, 44), (120, 44), (140, 92), (52, 92), fill=light)
            box(92, 92, 100, 146, dark)
            box(70, 146, 122, 154, tone)
        case "chair":
            box(58, 40, 70, 152, dark)
            box(58, 40, 82, 100, tone)
            box(58, 96, 134, 110, light)
            box(122, 110, 134, 152, dark)
        case "table":
            box(40, 76, 152, 90, light)
            for left, right in legs:
                box(left, 90, right, 152, dark)
        case "sofa":
            box(40, 66, 152, 112, tone)
            box(36, 96, 156, 138, light)
            box(36, 80, 54, 142, dark)
            box(138, 80, 156, 142, dark)
        case "shelf":
            box(48, 40, 144, 152, dark)
            for top in (48, 84, 120):
                box(56, top, 136, top + 26, light)
        case "carpet":
            polygon((62, 70), (130, 70), (156, 148), (36, 148), fill=tone)
            polygon((74, 84), (118, 84), (136, 134), (56, 134), fill=light)
        case "mirror":
            box(60, 38, 132, 152, dark, "ellipse")
            box(70, 50, 122, 140, (206, 214, 218), "ellipse")
        case "clock":
            box(46, 46, 146, 146, dark, "ellipse")
            box(56, 56, 136, 136, light, "ellipse")
            box(94, 66, 98, 98, dark)
            box(96, 94, 122, 98, dark)
        case "basket":
            box(62, 44, 130, 120, dark, "ellipse")
            box(70, 54, 122, 120, (222, 220, 214), "ellipse")
            polygon((44, 92), (148, 92), (132, 152), (60, 152), fill=tone)
        case "desk":
            box(38, 72, 154, 84, light)
            box(46, 84, 92, 150, tone)
            box(132, 84, 144, 150, dark)
            for top in (92, 112, 132):
                box(52, top, 86, top + 12, dark)
