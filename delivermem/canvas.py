"""The canvas of the figures: one style, one palette, text that fits, and files that repeat byte by byte."""

from __future__ import annotations

import functools
import io
import json
import math
import os
from bisect import bisect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

from delivermem.pictures import font_file

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PALETTE = {
    "pixels": "#0072B2",
    "text": "#E69F00",
    "retrieval": "#56B4E9",
    "query-blind": "#9C4F8B",
    "right": "#006B3C",
    "wrong": "#D55E00",
    "refusal": "#B9BEC4",
    "paper": "#3B3B3B",
    "gap": "#8A929A",
    "quiet": "#6B6B6B",
}
"""Colour by meaning, the same in every figure; told apart under the common colour-vision deficiencies."""

INK = "#222222"
WIDTH = 7.2
"""Width of every figure in inches: the text width of a two-column page."""
FAMILY = "DejaVu Sans of matplotlib"
MINUS = "\N{MINUS SIGN}"
FIELDS = ("value", "low", "high", "n", "unit", "run")
P = ParamSpec("P")


def style() -> AbstractContextManager[None]:
    """The look of every figure, from `delivermem.mplstyle`, for as long as the context lasts."""
    import matplotlib

    _register()
    return matplotlib.rc_context({"font.family": FAMILY}, Path(__file__).with_name("delivermem.mplstyle"))


@functools.cache
def _register() -> None:
    """Matplotlib's own files of DejaVu Sans under a name of their own: a copy that the machine has installed may be of
    another version, and the files of the figures would differ."""
    from matplotlib import font_manager

    for bold, weight in ((False, 400), (True, 700)):
        entry = font_manager.FontEntry(fname=str(font_file(bold=bold)), name=FAMILY, weight=weight)
        font_manager.fontManager.ttflist.append(entry)


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """A figure function that draws in `style`, whatever the caller has set; its layout is then fixed."""

    @functools.wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with style():
            fig = draw(*args, **kwargs)
            for _ in range(2):
                fig.draw_without_rendering()
            fig.set_layout_engine("none")
            fig.set_dpi(100)
            return fig

    return in_style


def figure(height: float) -> Figure:
    """An empty Figure, WIDTH by `height` inches, known to no pyplot, that a notebook shows by itself."""
    from matplotlib.figure import Figure
    from PIL import Image

    class Shown(Figure):
        def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
            buffer = io.BytesIO()
            with style():
                self.savefig(buffer, format="png", metadata={"Software": None})
            page, small = Image.open(buffer).convert("RGB"), io.BytesIO()
            page.quantize(256, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
            width, high = self.get_size_inches()
            return small.getvalue(), {"width": round(100 * width), "height": round(100 * high)}

    return Shown(figsize=(WIDTH, height))


def wrap(text: str, inches: float, size: float, *, bold: bool = False) -> str:
    """`text` broken into lines no wider than `inches` at `size` points; a longer word is broken too."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    _register()
    face = FontProperties(family=FAMILY, weight="bold" if bold else "normal", size=size)

    def fits(line: str) -> bool:
        return bool(TextToPath().get_text_width_height_descent(line, face, False)[0] <= 72 * inches)

    lines = []
    for paragraph_ in text.split("\n"):
        line = ""
        for word in paragraph_.split(" "):
            if line and fits(f"{line} {word}"):
                line = f"{line} {word}"
                continue
            if line:
                lines.append(line)
            line = word
            while not fits(line):
                whole = max(1, bisect(range(1, len(line)), False, key=lambda i: not fits(line[:i])))
                cut = max((i for i in range(2, whole + 1) if line[i - 1] in "-/_."), default=whole)
                lines.append(line[:cut])
                line = line[cut:]
        lines.append(line)
    return "\n".join(lines)


def signed(value: float, digits: int = 1) -> str:
    """With its sign, a true minus, and none on what rounds to zero."""
    return f"{value:+.{digits}f}".replace("-", MINUS) if round(value, digits) else f"{0:.{digits}f}"


def bracket(low: float, high: float, write: Callable[[float], str] = "{:.1f}".format) -> str:
    """An interval, or that there is none."""
    return "[no interval]" if math.isnan(low) else f"[{write(low)}, {write(high)}]"


def p_value(p: float) -> str:
    """Two digits, or a bound."""
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def save_figure(
    fig: Figure, name: str, table: pd.DataFrame | None = None, folder: Path | str | None = None
) -> list[Path]:
    """Write <name>.png (200 dpi), <name>.pdf and, with a table, <name>.csv; twice gives equal bytes.

    folder: by default the repository's `figures`, or ./figures outside a clone. Returns the paths.
    """
    where = _folder(folder)
    kinds = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Creator": None, "Producer": None}}
    paths = [where / f"{name}.{kind}" for kind in kinds]
    with style():
        for path, metadata in zip(paths, kinds.values(), strict=True):
            fig.savefig(path, metadata=metadata)
    if table is not None:
        paths.append(where / f"{name}.csv")
        table.to_csv(paths[-1], index=False, lineterminator="\n", float_format="%.10g", encoding="utf-8")
    return paths


def record_numbers(values: Mapping[str, Mapping[str, Any]], path: Path | str | None = None) -> Path:
    """Merge name -> {value, low, high, n, unit, run} into `figures/numbers.json`, sorted; new values win.

    value is required, the rest is null where it isn't given; a NaN or an unknown field is a ValueError.
    """
    path = Path(path) if path is not None else _folder(None) / "numbers.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for name, entry in values.items():
        if "value" not in entry or set(entry) - set(FIELDS):
            raise ValueError(f"number {name!r} must have a value and none but the fields {', '.join(FIELDS)}")
        plain = {key: _plain(entry.get(key)) for key in FIELDS}
        if any(isinstance(v, float) and not math.isfinite(v) for v in plain.values()):
            raise ValueError(f"number {name!r} is not finite: {plain}; leave out what isn't known")
        known[name] = plain
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(
        json.dumps(known, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    partial.replace(path)
    return path


def _plain(value: Any) -> Any:
    """A NumPy number as Python's own."""
    return value.item() if hasattr(value, "item") else value


def _folder(folder: Path | str | None) -> Path:
    """Where figures go: as given, else DELIVERMEM_FIGURES, else `figures` of this clone or of where one stands."""
    root = Path(__file__).resolve().parents[1]
    clone = (root / "pyproject.toml").is_file()
    default = os.environ.get("DELIVERMEM_FIGURES") or (root if clone else Path.cwd()) / "figures"
    where = Path(default if folder is None else folder)
    where.mkdir(parents=True, exist_ok=True)
    return where
