"""DMV-Bench's storefront in the process: a page graph made from a catalogue in the layout of its `seed_v2.json`.

Pages are `/`, `/category/<slug>`, `/collection/<slug>` and `/product/<url hash>`; each links to those below it, a product
to its collection. Source: DMV-Bench (arXiv 2606.27499) and its released catalogue's layout.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from delivermem import pictures
from delivermem.records import Picture

if TYPE_CHECKING:
    from PIL.Image import Image

FIELDS = {
    "categories": ("id", "slug", "sortOrder"),
    "collections": ("id", "slug", "categoryId", "displayOrder"),
    "variants": ("id", "collectionId", "urlHash", "primaryImage", "_cue_object", "_cue_color"),
}
"""What is read of each list of the catalogue."""
ORDERS, NAMES = ("sortOrder", "displayOrder"), ("slug", "urlHash")
"""The fields that are numbers, and those that become part of a URL; all others are text."""
IMAGES = "/images_v2/"
"""Where a catalogue's image paths begin; below it a folder has <category>/<style>/NN.png."""


class CatalogueError(ValueError):
    """A catalogue that can't be read: one sentence with the file, the entry, the field and the cure."""


class Storefront:
    """The pages of one shop.

    catalogue: the lists of FIELDS. picture: a variant's `primaryImage` -> its picture. Raises CatalogueError for a field
    that is missing, and for a link between entries that leads nowhere or is not unique.
    """

    def __init__(
        self,
        catalogue: Mapping[str, Any],
        picture: Callable[[str], Image],
        *,
        name: str = "the catalogue",
    ):
        for part, fields in FIELDS.items():
            _check(name, catalogue, part, fields)
        self._picture = picture
        self._links: dict[str, list[str]] = {"/": []}
        self._of: dict[str, Mapping[str, Any]] = {}
        categories: dict[str, str] = {}
        collections: dict[str, str] = {}
        for row in sorted(catalogue["categories"], key=lambda row: row["sortOrder"]):
            categories[row["id"]] = self._page(name, f"/category/{row['slug']}", "/")
        for row in sorted(catalogue["collections"], key=lambda row: row["displayOrder"]):
            above = _known(name, categories, row, "categoryId")
            collections[row["id"]] = self._page(name, f"/collection/{row['slug']}", above)
        for row in catalogue["variants"]:
            above = _known(name, collections, row, "collectionId")
            page = self._page(name, f"/product/{row['urlHash']}", above)
            self._links[page].append(above)
            self._of[page] = row

    def _page(self, name: str, page: str, above: str) -> str:
        if page in self._links:
            raise CatalogueError(
                f"{name}: two entries make the page {page}; give each a slug or hash of its own"
            )
        self._links[page] = []
        self._links[above].append(page)
        return page

    def __contains__(self, url: str) -> bool:
        return self.path(url) in self._links

    def path(self, url: str) -> str:
        """The page that a URL means: its path, whatever the host, without a slash at its end."""
        try:
            parts = urlsplit(url.strip().strip("\"'"))
        except ValueError:  # not a URL at all, such as an unfinished bracket
            return ""
        return re.sub(r"[\s\"'/]+$", "", parts.path) or (
            "/" if parts.path or (parts.scheme and parts.netloc) else ""
        )

    def links(self, url: str) -> tuple[str, ...]:
        """The hrefs that a page shows, in order."""
        return tuple(self._links[self.path(url)])

    def product(self, url: str) -> str:
        """The product's hash on a product page, "" elsewhere."""
        row = self._of.get(self.path(url))
        return "" if row is None else str(row["urlHash"])

    def image(self, url: str) -> Image | None:
        """The picture that a product page shows; None on other pages."""
        row = self._of.get(self.path(url))
        return None if row is None else self._picture(str(row["primaryImage"]))

    def cue(self, product: str) -> str:
        """What tells a product from all others: colour and object."""
        row = self._of.get(f"/product/{product}")
        if row is None:
            raise CatalogueError(
                f"product {product!r} has no page in this shop; give the hash of one that has"
            )
        return f"{row['_cue_color']} {row['_cue_object']}"


def read(path: Path, images: Path) -> Storefront:
    """The storefront of a catalogue file; `images` is the folder with the cued pictures."""
    try:
        catalogue = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CatalogueError(f"{path}: can't be read as JSON ({error}); fetch the file again") from None
    if not isinstance(catalogue, dict):
        raise CatalogueError(f"{path}: expected an object with categories, collections and variants")
    folder = Path(os.path.abspath(images))

    def picture(primary: str) -> Image:
        file = Path(os.path.normpath(folder / primary.removeprefix(IMAGES)))
        if not file.is_relative_to(folder):
            raise CatalogueError(
                f"{path}: image {primary!r} lies outside {folder}; only files below it are read"
            )
        return pictures.load(Picture(primary, file))

    return Storefront(catalogue, picture, name=str(path))


def _check(name: str, catalogue: Mapping[str, Any], part: str, fields: tuple[str, ...]) -> None:
    rows = catalogue.get(part)
    if not isinstance(rows, list):
        raise CatalogueError(f"{name}: no list {part!r}; is this a DMV-Bench catalogue?")
    seen: set[str] = set()
    for number, row in enumerate(rows):
        where = f"{name}: {part}[{number}]"
        for field in fields:
            value = row.get(field) if isinstance(row, Mapping) else None
            if value in (None, ""):
                raise CatalogueError(f"{where} has no {field!r}; fetch the file again")
            if not isinstance(value, (int, float) if field in ORDERS else str):
                raise CatalogueError(f"{where}: {field} is {value!r}; fetch the file again")
            if field in NAMES and not re.fullmatch(r"[\w.~-]+", str(value)):
                raise CatalogueError(
                    f"{where}: {field} {value!r} can't stand in a URL; give it letters, digits, - and _"
                )
        if row["id"] in seen:
            raise CatalogueError(f"{where}: id {row['id']!r} occurs twice; give each entry one of its own")
        seen.add(row["id"])


def _known(name: str, places: Mapping[str, str], row: Mapping[str, Any], field: str) -> str:
    if row[field] not in places:
        raise CatalogueError(
            f"{name}: {row['id']!r} names {field} {row[field]!r}, which is not in the file; fetch it again"
        )
    return places[row[field]]
