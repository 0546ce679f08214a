"""Which tiles find a small cue: every frame of the embedded shop is asked for by its cue, under several ways of cutting.

The ranks are kept in `data/ranks/<encoder>.csv`, so that figures follow from what was computed once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from delivermem.runs import RunError, data_dir

if TYPE_CHECKING:
    import pandas as pd

CUTS: dict[str, dict[str, Any]] = {
    "tiles": {},
    "tiles and whole": {"whole": True},
    "random crops": {"seed": 0},
}
"""Ways of cutting, as arguments of `dense.ranks`."""
GRIDS = (1, 2, 3, 4)
"""Tiles a side."""
COLUMNS = ("encoder", "revision", "frame", "asked", "cut", "n", "rank")


def measure() -> pd.DataFrame:
    """The rank, from 1, of every frame among all frames of the shop, one row a frame, cut and n (COLUMNS)."""
    import pandas as pd

    from delivermem import dense
    from delivermem.benchmarks import mini, shop

    products = mini.products()
    frames, asked = [p.photo for p in products], [shop.probe(*p.cue[:2]) for p in products]
    encoder = dense.encoder()
    rows = [
        (encoder.name, encoder.revision, product.code, question, cut, n, rank)
        for cut, how in CUTS.items()
        for n in GRIDS
        for product, question, rank in zip(products, asked, dense.ranks(frames, asked, n, **how), strict=True)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def path(encoder: str = "tiny-siglip") -> Path:
    return data_dir() / "ranks" / f"{encoder}.csv"


def write() -> Path:
    """Measure, and keep the ranks."""
    table = measure()
    file = path(str(table["encoder"].iloc[0]))
    file.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(file, index=False, lineterminator="\n")
    return file


def read(encoder: str = "tiny-siglip") -> pd.DataFrame:
    """The kept ranks; RunError where there are none, or where they are of another table."""
    import pandas as pd

    file = path(encoder)
    if not file.is_file():
        raise RunError(f"{file}: no ranks are kept; make them with: delivermem ranks")
    table = pd.read_csv(file)
    if tuple(table.columns) != COLUMNS:
        raise RunError(
            f"{file}: the columns must be {', '.join(COLUMNS)}; make them anew with: delivermem ranks"
        )
    return table
