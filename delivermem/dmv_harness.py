"""DeliverMem behind the surface of DMV-Bench's released harness, so that its own runner can drive it.

`System` has what that runner and its ceilings call: `reset`, `encode`, `retrieve`, `inject`, and a bank, a retriever and an
injector beside them. Nothing of the harness is imported: what it hands over is read by its fields' names. Pictures are
retrieved by their best tile (R1) and delivered as stamped copies (D1, D2) with the session in which each was seen (D3);
stored files are left as they are. Register it there as any other system:

    SYSTEM_REGISTRY["DeliverMem"] = lambda **kw: System(encoder, caption_fn=kw.get("vlm_caption_fn"))

Source: DMV-Bench (arXiv 2606.27499), its released interfaces.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from delivermem import pictures, tiles
from delivermem.delivery import DELIVERMEM, Decisions, deliver
from delivermem.records import IMAGE_MARK, Item, Picture, Record, Slot

if TYPE_CHECKING:
    from PIL.Image import Image

GRID = 2
"""Tiles a side, beside the whole picture."""


class Encoder(Protocol):
    """What makes vectors: n pictures or texts -> (n, d), of unit length."""

    def images(self, images: Sequence[Image], /) -> np.ndarray: ...

    def texts(self, texts: Sequence[str], /) -> np.ndarray: ...


@dataclass
class Entry:
    """One memory: the harness's own fields, the record that is delivered, its tiles' vectors (tiles, d); and as retrieved,
    the words and the pictures that are injected for it."""

    slug: str
    image_path: str
    encode_text: str
    caption: str | None
    record: Record
    vectors: np.ndarray | None = None
    text: str = ""
    images: list[str] = field(default_factory=list)


@dataclass
class Payload:
    """What is injected of one entry: its words, and the paths of its pictures."""

    text: str = ""
    images: list[str] = field(default_factory=list)


class Bank:
    """The store: entries in the order in which they were encoded, each product once."""

    name = "delivermem"

    def __init__(self, encoder: Encoder):
        self.encoder = encoder
        self.reset()

    def reset(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._session: int | None = None

    def set_session(self, session: int) -> None:
        """Which session is being encoded: what is stated as the time."""
        self._session = session

    def encode(
        self, image_path: str, slug: str, *, encode_text: str = "", caption: str | None = None
    ) -> Entry:
        """Keep a page as it was seen; a product that is known stays as it is. PictureError where its picture can't be
        read."""
        if slug not in self._entries:
            self._entries[slug] = self.entry(image_path, slug, encode_text, caption)
        return self._entries[slug]

    def entry(self, image_path: str, slug: str, encode_text: str = "", caption: str | None = None) -> Entry:
        """The entry of a page, not kept."""
        page = slug_page(slug)
        said = f"Saw {encode_text or 'a product'}{f': {page}' if page else ''} "
        shown = (Picture(slug, Path(image_path)),) if image_path else ()
        text = said + (IMAGE_MARK if shown else "")
        if caption:
            text += f' Caption: "{" ".join(caption.replace(IMAGE_MARK, "").split())}"'
        when = "" if self._session is None else f"session {self._session:02d}"
        record = Record(slug, text.strip(), session=when, pictures=shown, time_text=when)
        entry = Entry(slug, image_path, encode_text, caption, record)
        if shown:
            entry.vectors = self.encoder.images(tiles.cut(pictures.load(shown[0]), GRID, whole=True))
        return entry

    def entries(self) -> list[Entry]:
        return list(self._entries.values())

    def find_by_slug(self, slug: str) -> Entry | None:
        return self._entries.get(slug)


def slug_page(slug: str) -> str:
    """The page that a slug of the harness means; "" where it means none."""
    for head, page in (("col_", "/collection/"), ("cat_", "/category/")):
        if slug.startswith(head):
            return page + slug.removeprefix(head)
    return "" if not slug or slug == "blank" or slug.startswith("page_") else f"/product/{slug}"


class Retriever:
    """By the best tile for the query's words; those without a picture after all others, in their order."""

    name = "delivermem:tiles"

    def __init__(self, encoder: Encoder, dress: Callable[[Sequence[Entry]], list[Entry]]):
        self.encoder, self._dress = encoder, dress

    def retrieve(self, query: Any, entries: Iterable[Entry], k: int = 1) -> list[Entry]:
        """The best k of the entries for `query.recall_text`, best first, made ready to be injected."""
        held = list(entries)
        seen = [entry for entry in held if entry.vectors is not None]
        ranked = [entry for entry in held if entry.vectors is None]
        if seen:
            parts = [entry.vectors for entry in seen if entry.vectors is not None]
            offsets = np.cumsum([0, *map(len, parts)])
            index = tiles.Index(np.concatenate(parts).astype(np.float32), offsets)
            found = index.rank(
                self.encoder.texts([query.recall_text])[0], len(seen), [(i,) for i in range(len(seen))]
            )
            ranked = [seen[i] for i in found] + ranked
        return self._dress(ranked[: max(0, k)])


class Injector:
    """What `deliver` made of an entry among those it was retrieved with."""

    name = "delivermem"

    def __init__(self, dress: Callable[[Sequence[Entry]], list[Entry]]):
        self._dress = dress

    def render(self, entry: Entry) -> Payload:
        """Words and pictures of one entry; one that was not retrieved is delivered alone."""
        ready = entry if entry.text else self._dress([entry])[0]
        return Payload(ready.text, list(ready.images))


class System:
    """The memory system. encoder: of pictures and queries. caption_fn: picture's path -> caption, where items are to have
    one. folder: where stamped copies go (default: one of its own, which goes with it)."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        name: str = "DeliverMem",
        decisions: Decisions = DELIVERMEM,
        caption_fn: Callable[[str], str] | None = None,
        folder: Path | None = None,
    ):
        self.name, self.decisions, self.caption_fn = name, decisions, caption_fn
        self._own = tempfile.TemporaryDirectory(prefix="delivermem-") if folder is None else None
        self._folder = folder or Path(self._own.name if self._own else "")
        self.bank = Bank(encoder)
        self.retriever = Retriever(encoder, self._dressed)
        self.injector = self.oracle_injector = Injector(self._dressed)

    def reset(self) -> None:
        self.bank.reset()

    def encode(self, trial: Any) -> Entry:
        """Keep a trial's anchor (`anchor_path`, `anchor_slug`, `encode_text`)."""
        return self.encode_external(trial.anchor_path, trial.anchor_slug, trial.encode_text)

    def encode_external(
        self, image_path: str, slug: str, encode_text: str = "", caption: str | None = None
    ) -> Entry:
        """Keep a page by its parts."""
        if caption is None and self.caption_fn is not None and image_path:
            caption = self.caption_fn(image_path)
        return self.bank.encode(image_path, slug, encode_text=encode_text, caption=caption)

    def retrieve(self, query: Any) -> Entry | None:
        """The best entry for a query, or None where nothing is kept."""
        return next(iter(self.retriever.retrieve(query, self.bank.entries(), k=1)), None)

    def inject(self, entry: Entry) -> Payload:
        return self.injector.render(entry)

    def oracle_inject(self, trial: Any) -> Payload:
        """A trial's anchor itself, whether it is kept or not."""
        kept = self.bank.find_by_slug(trial.anchor_slug)
        return self.inject(kept or self.bank.entry(trial.anchor_path, trial.anchor_slug, trial.encode_text))

    def _dressed(self, ranked: Sequence[Entry]) -> list[Entry]:
        """The entries with what `deliver` makes of them together: tags by rank, stamped copies, stated sessions. What it says
        before the items stands before the first."""
        prompt = deliver([entry.record for entry in ranked], "", self.decisions, layout="text-first")
        ready: list[Entry] = []
        for entry, item in zip(ranked, prompt.items, strict=True):
            words, shown = self._parts(item)
            head = prompt.preamble if not ready else ""
            ready.append(replace(entry, text=head + words, images=shown))
        return ready

    def _parts(self, item: Item) -> tuple[str, list[str]]:
        text = item.lead + (f"[{item.time}] " if item.time else "")
        text += "".join(part for part in item.parts if isinstance(part, str))
        return text.strip(), [self._kept(part) for part in item.parts if isinstance(part, Slot)]

    def _kept(self, slot: Slot) -> str:
        """The path of a delivered copy, which is named by its pixels."""
        path = self._folder / f"{pictures.content_hash(slot.image)[:32]}.png"
        if not path.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            slot.image.save(path, format="PNG", compress_level=1)
        return str(path)
