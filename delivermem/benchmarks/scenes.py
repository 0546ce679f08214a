"""Procedural photographs: coloured pictograms on a plain wall, recognisable at a glance, from no asset file.

The pictograms are symbols of the DejaVu Sans Bold font that ships with matplotlib. A scene has one to four
things in the cells of a 3 x 3 grid; the top-left cell stays free, as a photographer would leave room for a tag.
Scenes are split in two for good: `reserved` ones are for benchmarks alone, the others for training.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from delivermem.pictures import font

SIDE = 96
"""Width and height of a photograph in pixels."""
CELL = SIDE // 3

COLOURS = {
    "red": (214, 30, 36),
    "orange": (240, 126, 12),
    "yellow": (232, 200, 20),
    "green": (28, 142, 54),
    "blue": (36, 82, 214),
    "purple": (126, 44, 160),
    "pink": (238, 118, 180),
    "black": (22, 22, 24),
}
OBJECTS = dict(
    star="★", heart="♥", spade="♠", club="♣", umbrella="☂", telephone="☎", plane="✈", note="♫", sun="☀",
    snowman="☃", anchor="⚓", scissors="✂", envelope="✉", cup="☕", flag="⚑", horse="♞", moon="☾", bolt="⚡",
    flower="✿", house="⌂", pencil="✎", crown="♛", rook="♜", gear="⚙", scales="⚖", skull="☠", hand="☞", cross="✚",
    tick="✔", snowflake="❄", diamond="♦", bishop="♝", swords="⚔", face="☻", wheel="☸", key="⚷", die="⚅", cat="🐱",
    mouse="🐭", vase="⚱",
)  # fmt: skip
PLACES = {
    "top": (1, 0),
    "top right": (2, 0),
    "left": (0, 1),
    "center": (1, 1),
    "right": (2, 1),
    "bottom left": (0, 2),
    "bottom": (1, 2),
    "bottom right": (2, 2),
}
WALLS = ((236, 236, 232), (206, 222, 236), (232, 220, 200), (204, 224, 204), (222, 208, 226), (190, 194, 198))
PAIRS = tuple((colour, name) for colour in COLOURS for name in OBJECTS)
HELD_OUT = frozenset(pair for i, pair in enumerate(PAIRS) if i % 13 == 5)
"""Pairs of colour and object that no training scene shows."""
_SIZES = range(26, 31)


class Thing(NamedTuple):
    colour: str
    name: str
    place: str


Scene = tuple[Thing, ...]


def reserved(scene: Scene) -> bool:
    """Whether a scene is for benchmarks alone: it shows a held-out pair, or its hash falls in the tenth kept back."""
    if any(thing[:2] in HELD_OUT for thing in scene):
        return True
    text = ";".join(sorted("/".join(thing) for thing in scene))
    return hashlib.sha256(text.encode()).digest()[0] % 10 == 0


def draw_scene(
    rng: np.random.Generator, *, for_benchmark: bool, must: tuple[str, str] | None = None
) -> Scene:
    """A random scene of one to four things, no kind of object twice. `must` names a pair that it shows."""
    while True:
        count = int(rng.choice(4, p=(0.22, 0.33, 0.28, 0.17))) + 1
        places = [list(PLACES)[i] for i in rng.permutation(len(PLACES))[:count]]
        names = [list(OBJECTS)[i] for i in rng.permutation(len(OBJECTS))[:count]]
        colours = [list(COLOURS)[i] for i in rng.integers(len(COLOURS), size=count)]
        if must is not None:
            if must[1] in names[1:]:
                continue
            colours[0], names[0] = must
        scene = tuple(Thing(*thing) for thing in zip(colours, names, places, strict=True))
        if reserved(scene) == for_benchmark:
            return scene


def render(scene: Scene, seed: int) -> Image.Image:
    """The photograph of a scene, RGB, SIDE x SIDE pixels; `seed` moves light, grain, size and place a little."""
    rng = np.random.default_rng(seed)
    pixels = np.empty((SIDE, SIDE, 3), np.float32)
    pixels[:] = WALLS[int(rng.integers(len(WALLS)))]
    pixels += _grain()[int(rng.integers(64))]
    for colour, name, place in scene:
        paint(pixels, rng, colour, name, *PLACES[place], _SIZES)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def paint(
    pixels: np.ndarray, rng: np.random.Generator, colour: str, name: str, column: int, row: int, sizes: range
) -> None:
    """Draw one pictogram into its cell of float pixels (h, w, 3), a little off its colour, size and place."""
    mask = _mask(name, int(rng.integers(sizes.start, sizes.stop)))
    height, width = mask.shape[:2]
    x = column * CELL + int(rng.integers(0, CELL - width + 1))
    y = row * CELL + int(rng.integers(0, CELL - height + 1))
    shade = np.asarray(COLOURS[colour], np.float32) + rng.normal(0, 6, 3).astype(np.float32)
    spot = pixels[y : y + height, x : x + width]
    spot += mask * (shade - spot)


def describe(scene: Scene) -> str:
    """A scene in words, in reading order of its places: the training target of a caption."""
    order = list(PLACES)
    things = sorted(scene, key=lambda thing: order.index(thing.place))
    return ", ".join(f"{thing.colour} {thing.name} {thing.place}" for thing in things)


@cache
def _grain() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 4, (64, SIDE, SIDE, 1)).astype(np.float32)


@cache
def _mask(name: str, size: int) -> np.ndarray:
    """Coverage of a pictogram in [0, 1], (h, w, 1), its longer side `size` pixels."""
    face = font(200, bold=True)
    left, top, right, bottom = (int(v) for v in face.getbbox(OBJECTS[name]))
    large = Image.new("L", (right - left, bottom - top), 0)
    ImageDraw.Draw(large).text((-left, -top), OBJECTS[name], font=face, fill=255)
    scale = size / max(large.size)
    shape = (max(1, round(large.width * scale)), max(1, round(large.height * scale)))
    small = large.resize(shape, Image.Resampling.LANCZOS)
    return (np.asarray(small, np.float32) / 255)[..., None]
