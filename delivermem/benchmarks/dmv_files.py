"""The files of DMV-Bench as `delivermem fetch dmv` lays them out, checked, and the shop and the products in them.

`seed_v2.json`, `cue_registry.json`, `images/with_cue/<category>/<style>/NN.png`, `source.json`; and where somebody recorded
them, `trees/`, `trajectories/` and `_caption_cache.json` as the released runner writes them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from delivermem import pictures
from delivermem.benchmarks import dmv_tasks as tasks
from delivermem.benchmarks.storefront import IMAGES, CatalogueError, Storefront
from delivermem.records import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

FETCH = "fetch it with: delivermem fetch dmv"
ROWS = dict(cat=str, style=str, prod_idx=int, url_hash=str, cue_object=str, cue_color=str, cue_id=str)
"""Fields of a row of the cue registry."""
_IMAGE = re.compile(r"/images_v2/(([a-z0-9_-]+)/([a-z0-9_-]+)/(\d+)\.png)", re.IGNORECASE)


class Product(NamedTuple):
    """One product: its hash, its category, its picture and where that lies (`<category>/<style>/NN.png`), and its cue."""

    code: str
    category: str
    place: str
    picture: Picture
    cue: str

    @property
    def kind(self) -> str:
        return self.category.replace("_", " ")


class Shop(Storefront):
    """The storefront with the links that `click_index` counts on the released one's pages: collections and products alone;
    on a product's page its collection, then the others there."""

    def links(self, url: str) -> tuple[str, ...]:
        found = [link for link in super().links(url) if not link.startswith("/category/")]
        if self.product(url):
            beside = super().links(found[0])
            found += [link for link in beside if link != self.path(url)]
        return tuple(found)


class Files:
    """The files of the benchmark in one folder, each checked when it is first needed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.images = folder / "images" / "with_cue"
        for path in (
            folder / "seed_v2.json",
            folder / "cue_registry.json",
            folder / "source.json",
            self.images,
        ):
            if not path.exists():
                raise CatalogueError(f"DMV-Bench is not complete, as {path} is not there; {FETCH}")

    def check(self) -> None:
        """Read every file that is not a chain's; what does not fit is a CatalogueError."""
        _ = self.revision, self.products, self.captions

    @cached_property
    def revision(self) -> str:
        """Which version of the data was fetched."""
        path = self.folder / "source.json"
        found = str(tasks.value(str(path), tasks.read_json(path), "revision", str)).strip()
        if not found:
            raise CatalogueError(f"{path}: revision is empty; {FETCH}")
        return found

    @cached_property
    def catalogue(self) -> dict[str, Any]:
        """`seed_v2.json`, the products of a collection by price, as its page lists them."""
        path = self.folder / "seed_v2.json"
        found = tasks.read_json(path)
        variants = tasks.value(str(path), found, "variants", list)
        for i, row in enumerate(variants):
            where = f"{path}: variants[{i}]"
            if isinstance(row, dict) and isinstance(row.get("price"), float):
                continue
            tasks.value(where, row, "price", int)
        return {**found, "variants": sorted(variants, key=lambda row: float(row["price"]))}

    @cached_property
    def shop(self) -> Shop:
        """Its pages, as the released storefront links them."""

        def picture(path: str) -> Image:
            return pictures.load(Picture(path, self.images / path.removeprefix(IMAGES)))

        return Shop(self.catalogue, picture, name=str(self.folder / "seed_v2.json"))

    @cached_property
    def products(self) -> dict[str, Product]:
        """Every product by its hash, checked against the cue registry and the pictures on disk."""
        path = self.folder / "seed_v2.json"
        _ = self.shop  # which refuses an entry without its fields
        found: dict[str, Product] = {}
        for row in self.catalogue["variants"]:
            where = f"{path}: variant {row['id']!r}"
            match = _IMAGE.fullmatch(row["primaryImage"])
            if match is None:
                raise CatalogueError(
                    f"{where}: primaryImage is {row['primaryImage']!r}, expected /images_v2/<category>/<style>/NN.png; "
                    "fetch the file again"
                )
            self._gallery(where, row)
            place, code = match[1], row["urlHash"]
            cue = f"{row['_cue_color']} {row['_cue_object']}"
            found[code] = Product(code, match[2], place, Picture(place, self.images / place), cue)
        absent = [product.place for product in found.values() if not (self.images / product.place).is_file()]
        if absent:
            raise CatalogueError(
                f"{self.images}: {len(absent)} of {len(found)} pictures are not there, {absent[0]} first; {FETCH}"
            )
        self._cues(found)
        return found

    def _gallery(self, where: str, row: Mapping[str, Any]) -> None:
        """A gallery is a list in a string of JSON; the page shows it in the place of the primary picture."""
        stated = tasks.value(where, row, "galleryImages", str)
        try:
            listed = json.loads(stated or "[]")
        except ValueError:
            listed = None
        if listed not in ([], [row["primaryImage"]]):
            raise CatalogueError(
                f"{where}: galleryImages is {stated!r:.60}, expected a JSON list of its primaryImage; fetch the file again"
            )

    def _cues(self, products: Mapping[str, Product]) -> None:
        """The registry says of every product what the catalogue says, and no cue is two products'."""
        path = self.folder / "cue_registry.json"
        registry = tasks.read_json(path)
        rows, number = (
            tasks.value(str(path), registry, *field) for field in (("rows", list), ("n_cues", int))
        )
        if len(rows) != number:
            raise CatalogueError(f"{path}: n_cues is {number} and rows are {len(rows)}; fetch the file again")
        left, cues = dict(products), Counter[str]()
        for i, row in enumerate(rows):
            where = f"{path}: rows[{i}]"
            cat, style, place, code, thing, colour, cue = (
                tasks.value(where, row, field, kind) for field, kind in ROWS.items()
            )
            product = left.pop(code, None)
            if product is None:
                why = "occurs twice" if code in products else "is not in the catalogue"
                raise CatalogueError(f"{where}: url_hash {code!r} {why}; fetch both files again")
            said = (f"{cat}/{style}/{place:02d}.png", f"{colour} {thing}", f"{cat}::{thing}::{colour}")
            if said != (product.place, product.cue, cue):
                raise CatalogueError(
                    f"{where}: {', '.join(said)} is not the catalogue's {product.place}, {product.cue}; fetch both again"
                )
            cues[product.cue] += 1
            if cues[product.cue] > 1:
                raise CatalogueError(
                    f"{where}: the cue {product.cue!r} is another product's too; fetch the file again"
                )
        if left:
            raise CatalogueError(f"{path}: no row for product {next(iter(left))!r}; fetch both files again")

    @cached_property
    def captions(self) -> dict[str, str]:
        """A caption by the place of its picture; none where the cache of captions is not at hand."""
        path = self.folder / "_caption_cache.json"
        if not path.exists():
            return {}
        found = tasks.read_json(path)
        if not isinstance(found, dict):
            raise CatalogueError(f"{path}: expected an object of captions by picture; fetch the file again")
        head = "with_cue/"
        return {
            name.removeprefix(head): " ".join(tasks.value(str(path), found, name, str).split())
            for name in found
            if name.startswith(head)
        }

    def chain(self, seed: int, sessions: int) -> tasks.Task:
        """The recorded chain of that seed, or the one that its seed strings give."""
        order = [
            row["slug"] for row in sorted(self.catalogue["categories"], key=lambda row: row["sortOrder"])
        ]
        path = self.folder / "trees" / f"{tasks.name(seed, sessions)}.json"
        if not path.exists():
            return tasks.spine(seed, sessions, order)
        return tasks.read_tree(path, seed, sessions, order, self.products)

    def recorded(self, seed: int) -> dict[int, Path]:
        """Session -> file of what was recorded of a chain."""
        named = re.compile(rf"f2traj_s{seed:04d}_sess(\d+)\.json")
        files = sorted((self.folder / "trajectories").glob(f"f2traj_s{seed:04d}_sess*.json"))
        return {int(match[1]): path for path in files if (match := named.fullmatch(path.name))}
