"""Where a small thing was put into a picture: the picture against its original, differenced."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

STRONG, MEAN = 40, 25
"""Levels of 255 by which a channel of a pixel must differ, and the mean of its 3 x 3 neighbourhood in the core of a
region: a second encoding (JPEG, quality 80) differs as much at sharp edges, but there its errors cancel."""
LEAST = 0.002
"""The least share of the picture that the core of a region must have."""


class Cue(NamedTuple):
    """A region that differs: (left, top, right, bottom) in pixels, and its share of the picture in [0, 1]."""

    box: tuple[int, int, int, int]
    share: float

    def within(self, box: tuple[int, int, int, int]) -> bool:
        """Whether all of it lies in that box."""
        left, top, right, bottom = self.box
        return left >= box[0] and top >= box[1] and right <= box[2] and bottom <= box[3]


def locate(picture: Image, original: Image) -> Cue | None:
    """The largest connected region (8 neighbours) where the two differ, small gaps closed; None where there is none.

    Raises ValueError for pictures of different sizes. Source: how the paper's page locates the cue of a DMV-Bench frame,
    by differencing it against its uncued original.
    """
    from scipy import ndimage

    if picture.size != original.size:
        raise ValueError(
            f"a picture of {picture.size} can't be differenced against one of {original.size}; give its original"
        )
    a, b = (np.asarray(image.convert("RGB"), np.float32) for image in (picture, original))
    strong = np.abs(a - b).max(2) > STRONG
    sure = np.abs(ndimage.uniform_filter(a - b, (3, 3, 1))).max(2) > MEAN
    square = np.ones((3, 3), bool)
    cores, _ = ndimage.label(sure, square)
    large = np.bincount(cores.ravel()) >= LEAST * sure.size
    large[0] = False
    changed = ndimage.binary_propagation(strong & large[cores], square, mask=strong)
    changed = ndimage.binary_closing(np.pad(changed, 2), square)[2:-2, 2:-2]
    regions, count = ndimage.label(changed, square)
    sizes = np.bincount(regions.ravel())[1:]
    if not count:
        return None
    rows, columns = ndimage.find_objects(regions)[int(sizes.argmax())]
    box = (int(columns.start), int(rows.start), int(columns.stop), int(rows.stop))
    return Cue(box, float(sizes.max() / changed.size))
