"""One door for every image: upright, opaque, RGB; tags that can be read; hashes of pixels, not of files."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from delivermem.pictures import PictureError, content_hash, load, stamp, stamp_box, to_rgb
from delivermem.records import Picture, format_time, parse_time


def _saved(tmp_path, image, name="x.png", **how):
    path = tmp_path / name
    image.save(path, **how)
    return load(Picture("p", path))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_turned_upright_before_anything_else(tmp_path, orientation):
    upright = np.zeros((2, 4, 3), np.uint8)
    upright[0, 0], upright[0, 3] = (255, 0, 0), (0, 0, 255)
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's transpose that stores it so
    stored = Image.fromarray(upright)
    if orientation in undo:
        stored = stored.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    loaded = _saved(tmp_path, stored, exif=exif)
    assert loaded.size == (4, 2) and (np.asarray(loaded) == upright).all()
    assert not loaded.getexif()


def test_transparency_is_white_in_every_mode(tmp_path):
    clear = Image.new("RGBA", (3, 3), (0, 0, 0, 0))
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 255, 0, 0])
    palette.putpixel((1, 0), 1)
    palette.info["transparency"] = bytes([0, 255])
    assert to_rgb(clear).getpixel((0, 0)) == (255, 255, 255)
    assert to_rgb(Image.new("LA", (1, 1), (0, 0))).getpixel((0, 0)) == (255, 255, 255)
    loaded = _saved(tmp_path, palette, transparency=bytes([0, 255]))
    assert [loaded.getpixel((i, 0)) for i in (0, 1)] == [(255, 255, 255), (255, 0, 0)]


def test_sixteen_bit_grey_keeps_its_levels(tmp_path):
    ramp = np.linspace(0, 65535, 256, dtype=np.uint16).reshape(16, 16)
    loaded = np.asarray(_saved(tmp_path, Image.fromarray(ramp)))
    assert len(np.unique(loaded)) > 250 and abs(int(loaded[8, 8, 0]) - ramp[8, 8] / 256) < 2


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "RGB"])
def test_every_mode_becomes_rgb_and_the_original_stays(mode):
    image = Image.new("RGB", (5, 4), "white").convert(mode)
    before = image.tobytes()
    out = to_rgb(image)
    assert (out.mode, out.size) == ("RGB", (5, 4)) and out.getpixel((1, 1)) == (255, 255, 255)
    assert image.tobytes() == before and out is not image


@pytest.mark.parametrize(
    "content", [b"", b"<html>403</html>", b"version https://git-lfs.github.com/spec/v1\n"]
)
def test_what_is_no_image_is_refused_in_one_sentence(tmp_path, content):
    path = tmp_path / "photo.jpg"
    path.write_bytes(content)
    with pytest.raises(PictureError, match=r"photo\.jpg") as error:
        load(Picture("message-7", path))
    assert "message-7" in str(error.value) and f"{len(content)} bytes" in str(error.value)


def test_a_truncated_file_is_refused_not_half_seen(tmp_path):
    path = tmp_path / "cut.jpg"
    Image.effect_noise((200, 200), 80).convert("RGB").save(path)
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(PictureError, match=r"cut\.jpg"):
        load(Picture("p", path))


def test_the_hash_is_of_pixels_and_shape(tmp_path):
    red = Image.new("RGB", (64, 64), "red")
    files = [_saved(tmp_path, red, f"{level}.png", compress_level=level) for level in (1, 9)]
    assert content_hash(files[0]) == content_hash(files[1]) == content_hash(red)
    assert content_hash(Image.new("RGB", (32, 128), "red")) != content_hash(red)
    other = red.copy()
    other.putpixel((63, 63), (254, 0, 0))
    assert content_hash(other) != content_hash(red)


@settings(max_examples=40, deadline=None)
@given(st.integers(40, 1200), st.integers(40, 1200), st.integers(1, 10))
def test_a_stamp_is_in_the_corner_small_and_leaves_the_rest(width, height, number):
    image = Image.new("RGB", (width, height), (90, 140, 60))
    out = stamp(image, f"M{number}")
    left, top, right, bottom = stamp_box(image.size, f"M{number}")
    pixels = np.asarray(out)
    assert (left, top) == (0, 0) and bottom <= max(16, 0.07 * min(width, height))
    rest = np.ones(pixels.shape[:2], bool)
    rest[top:bottom, left:right] = False
    assert (pixels[rest] == (90, 140, 60)).all() and (np.asarray(image) == (90, 140, 60)).all()


@pytest.mark.parametrize("background", ["white", "black", "gray", "red"])
def test_tags_can_be_told_apart_on_any_background(background):
    """Each tag's own glyphs, read back by template, are the best match among all ten."""
    tiles = {}
    for i in range(1, 11):
        box = stamp_box((96, 96), f"M{i}")
        tiles[f"M{i}"] = np.asarray(stamp(Image.new("RGB", (96, 96), background), f"M{i}").crop(box), float)
        assert tiles[f"M{i}"].max() == 255 and tiles[f"M{i}"].min() == 0
    for tag, tile in tiles.items():
        scores = {
            other: np.abs(tile - ref).mean() if tile.shape == ref.shape else np.inf
            for other, ref in tiles.items()
        }
        assert min(scores, key=scores.get) == tag and sorted(scores.values())[1] > 4


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("2024/05/11 (Sat) 19:33", "2024/05/11 (Sat) 19:33"),
        ("2024/05/11 (土) 19:33", "2024/05/11 (Sat) 19:33"),
        ("2024-05-11T19:33:59", "2024/05/11 (Sat) 19:33"),
        ("2024/5/11", "2024/05/11 (Sat) 00:00"),
    ],
)
def test_times_are_read_by_our_own_rule(text, stated):
    assert format_time(parse_time(text)) == stated


def test_a_wrong_weekday_is_a_warning_and_an_impossible_day_an_error():
    with pytest.warns(UserWarning, match="is a Sat"):
        assert parse_time("2024/05/11 (Mon) 19:33").day == 11
    for text in ("2024/02/30", "yesterday", "2024/05/11 25:00", ""):
        with pytest.raises(ValueError, match="time"):
            parse_time(text)
