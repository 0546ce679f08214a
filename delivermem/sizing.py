"""The one resize of a delivered picture: to the model's own grid, so that its processor changes no pixel more.

Qwen-VL models read pictures in squares of `factor` x `factor` pixels, a token each: 32 for Qwen3-VL, 28 for Qwen2.5-VL.
Source: the models' published image processors (`smart_resize`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_ASPECT = 200
"""Longer side over shorter beyond which the models' processors refuse a picture."""


@dataclass(frozen=True)
class Grid:
    """How a model reads pictures: squares of `factor` pixels, from `least` to `most` of them, a token each."""

    factor: int
    least: int
    most: int

    def tokens(self, width: int, height: int) -> int:
        """Image tokens of a picture of this size, after the resize."""
        new_width, new_height = self.size(width, height)
        return new_width * new_height // self.factor**2

    def size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) in pixels to which a picture is resized: multiples of the factor, the shape kept as far as that
        goes. ValueError for a shape beyond MAX_ASPECT."""
        if max(width, height) > MAX_ASPECT * min(width, height):
            raise ValueError(
                f"a picture of {width} x {height} pixels is longer than {MAX_ASPECT} times its width; pad it first"
            )
        f = self.factor
        w, h = (max(f, round(side / f) * f) for side in (width, height))
        if w * h > self.most * f * f:
            by = math.sqrt(width * height / (self.most * f * f))
            w, h = (max(f, math.floor(side / by / f) * f) for side in (width, height))
        elif w * h < self.least * f * f:
            by = math.sqrt(self.least * f * f / (width * height))
            w, h = (math.ceil(side * by / f) * f for side in (width, height))
        return w, h

    def fit(self, image: Image) -> Image:
        """The picture at that size, by Pillow's bicubic filter; the very same picture where it has that size."""
        from PIL import Image as pil

        size = self.size(*image.size)
        return image if size == image.size else image.resize(size, pil.Resampling.BICUBIC)


def grid_of(image_processor: Any, cap: int | None = None) -> Grid | None:
    """The grid of a Qwen-VL image processor, its most tokens no more than `cap`; None for processors of another kind."""
    patch, merge = (getattr(image_processor, name, None) for name in ("patch_size", "merge_size"))
    size = getattr(image_processor, "size", None)
    areas = [getattr(size, name, None) for name in ("shortest_edge", "longest_edge")]
    if not all(isinstance(found, int) for found in (patch, merge, *areas)):
        return None
    factor = int(patch or 0) * int(merge or 0)
    least, most = math.ceil(int(areas[0] or 0) / factor**2), int(areas[1] or 0) // factor**2
    return Grid(factor, least, max(least, min(most, cap or most)))
