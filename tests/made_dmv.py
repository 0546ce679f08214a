"""A small DMV-Bench in its published form, made by code: the repository's two data files, and the hub's pictures.

Its catalogue has the true one's lists, fields and links; its pictures are 128 pixel frames of the embedded shop, each with
the product's own cue drawn into it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import cache
from pathlib import Path

from delivermem.benchmarks import shop
from delivermem.benchmarks.dmv_tasks import CATEGORIES

STYLES = (
    "modern minimalist vintage industrial scandinavian bohemian mid_century rustic japandi art_deco".split()
)
"""The true catalogue's styles in its order."""
COLOURS = "red orange yellow green blue purple pink black".split()
THINGS = (
    "star heart spade umbrella telephone plane sun anchor scissors envelope cup flag moon bolt flower house pencil crown "
    "gear key cat mouse die wheel snowflake diamond cross tick face swords"
).split()
"""Colours and objects of cues: the style of a category picks the object, a product's number the colour."""


def make(folder: Path, *, categories: int = 3, styles: int = 2, per: int = 3) -> Path:
    """Write it: `data/vismem_diag_v2/{seed_v2,cue_registry}.json` as in the repository, `with_cue/<category>/<style>/NN.png`
    as on the hub. Returns the folder."""
    seed: dict = dict(version="4", categories=[], collections=[], products=[], variants=[])
    rows = []
    for i, cat in enumerate(CATEGORIES[:categories]):
        name = cat.replace("_", " ").title()
        described = f"Browse our {name.lower()}s."
        seed["categories"].append(
            dict(id=f"cat_{cat}", slug=cat, display=f"{name}s", description=described, sortOrder=i)
        )
        for j, style in enumerate(STYLES[:styles]):
            place, thing = f"{cat}_{style}", THINGS[i * styles + j]
            series = f"{STYLES[j].title()} {name}"
            seed["collections"].append(
                dict(
                    id=f"col_{place}", slug=f"{cat}-{style}", categoryId=f"cat_{cat}", tier=1 + j % 3, styleSlug=style,
                    displayName=f"{series}s", displayOrder=j,
                )
            )  # fmt: skip
            seed["products"].append(
                dict(
                    id=f"prod_{place}", categoryId=f"cat_{cat}", baseName=series, baseDesc=f"A {cat} of a series.",
                    longDesc="Sized for everyday use.", material="varied", price=100.0 + 10 * j,
                )
            )  # fmt: skip
            for k in range(per):
                code = hashlib.sha1(f"{place} {k}".encode()).hexdigest()[:8]
                path = f"/images_v2/{cat}/{style}/{k:02d}.png"
                title = f"{series} {k + 1:02d}"
                seed["variants"].append(
                    dict(
                        id=f"var_{place}_{k:02d}", productId=f"prod_{place}", collectionId=f"col_{place}", grainTier=1,
                        internalVariantKey=f"v2_{style}_{k:02d}", styleSlug=style, colorName="", incidentalDetails="[]",
                        displayName=title, price=round(100.99 + 4.2 * k, 2), urlHash=code, primaryImage=path,
                        galleryImages=json.dumps([path]), title=title, altText=title, _cue_object=thing,
                        _cue_color=COLOURS[k],
                    )
                )  # fmt: skip
                rows.append(
                    dict(
                        cat=cat, style=style, prod_idx=k, url_hash=code, cue_object=thing, cue_color=COLOURS[k],
                        cue_id=f"{cat}::{thing}::{COLOURS[k]}",
                    )
                )  # fmt: skip
                image = folder / "with_cue" / cat / style / f"{k:02d}.png"
                image.parent.mkdir(parents=True, exist_ok=True)
                image.write_bytes(_png(cat, COLOURS[k], thing, len(rows)))
    data = folder / "data" / "vismem_diag_v2"
    data.mkdir(parents=True, exist_ok=True)
    (data / "seed_v2.json").write_text(json.dumps(seed, indent=2))
    registry = dict(version="v2.3a", n_cues=len(rows), rows=rows)
    (data / "cue_registry.json").write_text(json.dumps(registry, indent=2))
    return folder


@cache
def _png(cat: str, colour: str, thing: str, number: int) -> bytes:
    import io

    place = shop.RING[number % len(shop.RING)]
    product = shop.Product(str(number), cat, number % len(shop.TONES), (colour, thing, place), (), number)
    file = io.BytesIO()
    product.frame().save(file, format="PNG")
    return file.getvalue()


def laid_out(published: Path, folder: Path, revision: str = "0" * 40) -> Path:
    """The published files as fetching lays them out: what `dmvbench.read` takes. Returns the folder."""
    data = published / "data" / "vismem_diag_v2"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("seed_v2.json", "cue_registry.json"):
        shutil.copy(data / name, folder / name)
    shutil.copytree(published / "with_cue", folder / "images" / "with_cue")
    (folder / "source.json").write_text(json.dumps(dict(revision=revision)))
    return folder
