"""Where a small thing was put into a picture: the picture against its original, differenced."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

THRESHOLD, LEAST = 60, 0.002
"""Levels of 255 by which a channel must differ, and the least share of the picture that a region must have: above what
a second encoding (JPEG, quality 80) does at sharp edges, below any cue."""


class Cue(NamedTuple):
    """A region that differs: (left, top, right, bottom) in pixels, and its share of the picture in [0, 1]."""

    box: tuple[int, int, int, int]
    share: float


def locate(picture: Image, original: Image, *, threshold: int = THRESHOLD) -> Cue | None:
    """The largest connected region (8 neighbours) where the two differ by more than `threshold`, small gaps closed;
    None where no region has the share LEAST. Raises ValueError for pictures of different sizes.

    Source: how the paper's page locates the cue of a DMV-Bench frame, by differencing it against its uncued original.
    """
    from scipy import ndimage

    if picture.size != original.size:
        raise ValueError(
            f"a picture of {picture.size} can't be differenced against one of {original.size}; give its original"
        )
    a, b = (np.asarray(image.convert("RGB"), np.int16) for image in (picture, original))
    square = np.ones((3, 3), bool)
    changed = np.pad(np.abs(a - b).max(2) > threshold, 2)
    changed = ndimage.binary_closing(changed, square)[2:-2, 2:-2]
    regions, count = ndimage.label(changed, square)
    sizes = np.bincount(regions.ravel())[1:]
    if not count or sizes.max() < LEAST * changed.size:
        return None
    rows, columns = ndimage.find_objects(regions)[int(sizes.argmax())]
    box = (int(columns.start), int(rows.start), int(columns.stop), int(rows.stop))
    return Cue(box, float(sizes.max() / changed.size))
