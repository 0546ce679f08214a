"""Where a cue lies: found by differencing, the same after a second encoding, none where nothing was put in."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from delivermem import cues
from delivermem.benchmarks import scenes, shop

PRODUCTS = shop.catalogue(np.random.default_rng([0, 0]), for_benchmark=True)


def _encoded(image, quality=80):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return Image.open(io.BytesIO(buffer.getvalue())).convert("RGB")


@pytest.mark.parametrize("encode", [lambda image: image, _encoded], ids=["as drawn", "JPEG"])
def test_the_cue_is_found_in_its_cell(encode):
    for product in PRODUCTS[::12]:
        found = cues.locate(encode(product.frame()), encode(product.frame(cued=False)))
        column, row = product.cue[2]
        left, top, right, bottom = found.box
        cell = scenes.CELL
        assert column * cell - 4 <= left < right <= (column + 1) * cell + 4
        assert row * cell - 4 <= top < bottom <= (row + 1) * cell + 4
        assert 0.002 < found.share < 0.06


def test_a_second_encoding_alone_is_no_cue_and_sizes_must_agree():
    frame = PRODUCTS[0].frame()
    assert cues.locate(frame, frame) is None
    assert cues.locate(_encoded(frame), frame) is None
    with pytest.raises(ValueError, match="original"):
        cues.locate(frame, frame.resize((64, 64)))


def test_the_largest_of_two_regions_is_told_to_the_pixel():
    original = Image.new("RGB", (100, 80), "white")
    picture = original.copy()
    picture.paste("red", (10, 20, 30, 35))
    picture.paste("red", (60, 60, 64, 64))
    found = cues.locate(picture, original)
    assert found.box == (10, 20, 30, 35) and found.share == 20 * 15 / 8000


def test_a_cue_lies_in_a_box_that_holds_all_of_it():
    cue = cues.Cue((10, 20, 30, 40), 0.01)
    assert cue.within((10, 20, 30, 40)) and cue.within((0, 0, 128, 128))
    for side in ((11, 20, 30, 40), (10, 21, 30, 40), (10, 20, 29, 40), (10, 20, 30, 39)):
        assert not cue.within(side)
