"""Any image file to honest 8-bit RGB pixels, once; the readable tag on the delivered copy; pixel hashes."""

from __future__ import annotations

import hashlib
import io
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
MIME = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp"}
"""The formats whose files every server reads."""
ORIENTATION = 0x0112
"""The EXIF tag that says how a picture is turned."""


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


def as_stored(picture: Picture) -> Path | None:
    """The picture's file where `load` gives just the pixels that any decoder does: a JPEG, PNG or WebP of 8-bit RGB or
    grey, upright, opaque, of one frame, without a colour profile. Else None."""
    from PIL import Image

    if not isinstance(picture.source, str | os.PathLike) or not os.path.isfile(picture.source):
        return None
    with Image.open(picture.source) as opened:
        plain = opened.format in MIME and opened.mode in ("RGB", "L") and getattr(opened, "n_frames", 1) == 1
        edited = {"transparency", "icc_profile", "gamma"} & opened.info.keys()
        upright = opened.getexif().get(ORIENTATION, 1) == 1
    return Path(picture.source) if plain and upright and not edited else None


def encoded(image: Image, original: Path | None = None) -> tuple[str, bytes]:
    """(MIME type, bytes) of a picture as it is sent: those of the original file, or a PNG of the pixels, which are the
    same, where there is none (any more, or on this machine)."""
    from PIL import Image as pil

    if original is not None and original.is_file():
        with pil.open(original) as opened:
            kind = MIME[str(opened.format)]
        return kind, original.read_bytes()
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)
    return MIME["PNG"], buffer.getvalue()


def content_hash(image: Image) -> str:
    """SHA-256 over mode, size and decoded pixels: equal pixels give equal hashes, whatever the file's bytes."""
    digest = hashlib.sha256(f"{image.mode}:{image.width}x{image.height}:".encode())
    digest.update(image.tobytes())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def unreadable() -> Image:
    """What stands where a stored picture can't be had: grey, 256 x 192 pixels, and says so."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (256, 192), (200, 200, 200))
    ImageDraw.Draw(image).text(
        (128, 96), "picture unavailable", font=font(20), fill=(60, 60, 60), anchor="mm"
    )
    return image


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
