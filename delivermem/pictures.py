"""Any image file to honest 8-bit RGB pixels, once; the readable tag on the delivered copy; pixel hashes."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from delivermem.records import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

STAMP_SHARE = 0.06
"""Height of a tag as a share of the picture's shorter side, where that is more than `STAMP_MIN`."""
STAMP_MIN = 16
"""Least height of a tag in pixels: below it the glyphs can't be read."""


class PictureError(ValueError):
    """A stored picture that can't be read, said in one sentence with its id, path and the cure."""


def load(picture: Picture) -> Image:
    """The picture's pixels, upright, opaque, 8-bit RGB. The stored picture itself is left as it is.

    Raises PictureError for a missing, empty, truncated or unreadable file.
    """
    from PIL import Image

    source = picture.source
    if not isinstance(source, str | os.PathLike):
        try:
            return to_rgb(source)
        except Exception as error:  # a lazily read image fails in as many ways as its file
            raise PictureError(
                f"picture {picture.id!r}: its image in memory can't be decoded ({_said(error)}); load it anew"
            ) from None
    if not os.path.isfile(source):
        raise PictureError(
            f"picture {picture.id!r}: no file at {source}; fetch the benchmark's images or correct the path"
        )
    try:
        with Image.open(source) as opened:
            opened.load()
            return to_rgb(opened)
    except Exception as error:  # decoders raise whatever they like on a damaged file
        raise PictureError(
            f"picture {picture.id!r}: {source} ({os.path.getsize(source)} bytes) can't be decoded "
            f"({_said(error)}); replace the file"
        ) from None


def _said(error: Exception) -> str:
    return " ".join(f"{error}".split())[:200] or type(error).__name__


def to_rgb(image: Image) -> Image:
    """Upright (EXIF), transparency composited on white, 16-bit grey scaled, 8-bit RGB; always a new image."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise PictureError(
            "a picture of floating-point pixels has no stated white; convert it to 8 bits first"
        )
    if image.mode.startswith("I"):
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    image = image.convert("LA") if image.mode == "La" else image
    if image.mode in ("RGBA", "LA", "PA", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, rgba)
    rgb = image.convert("RGB")
    rgb.info.clear()
    return rgb


def content_hash(image: Image) -> str:
    """SHA-256 over mode, size and decoded pixels: equal pixels give equal hashes, whatever the file's bytes."""
    digest = hashlib.sha256(f"{image.mode}:{image.width}x{image.height}:".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()


def stamp_box(image_size: tuple[int, int], tag: str) -> tuple[int, int, int, int]:
    """Where `stamp` draws: (left, top, right, bottom) in pixels, cut to the picture."""
    tile = _tile(tag, _stamp_height(image_size))
    return 0, 0, min(tile.width, image_size[0]), min(tile.height, image_size[1])


def stamp(image: Image, tag: str) -> Image:
    """A copy of an RGB picture with `tag` in white on black in its top-left corner (paper, decision D2)."""
    copy = image.copy()
    copy.paste(_tile(tag, _stamp_height(image.size)), (0, 0))
    return copy


def _stamp_height(size: tuple[int, int]) -> int:
    return max(STAMP_MIN, round(STAMP_SHARE * min(size)))


@lru_cache(maxsize=256)
def _tile(tag: str, height: int) -> Image:
    from PIL import Image, ImageDraw

    type_face = font(round(height * 0.75), bold=True)
    left, top, right, bottom = type_face.getbbox(tag)
    tile = Image.new("RGB", (int(right - left) + height // 4, height), (0, 0, 0))
    at = (height // 8 - left, (height - (bottom - top)) / 2 - top)
    ImageDraw.Draw(tile).text(at, tag, font=type_face, fill=(255, 255, 255))
    return tile


@lru_cache(maxsize=64)
def font(size: int, *, bold: bool = False):  # type: ignore[no-untyped-def]
    """DejaVu Sans as it ships with matplotlib, at `size` pixels: the same face on every machine."""
    from PIL import ImageFont

    return ImageFont.truetype(str(font_file(bold=bold)), size, layout_engine=ImageFont.Layout.BASIC)


def font_file(*, bold: bool = False) -> Path:
    """Matplotlib's own file of DejaVu Sans, which is there on every machine that draws."""
    import matplotlib

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name
