"""MemLens on this machine, as `delivermem fetch memlens` leaves it: a JSON file a question, pictures, and what is known of them.

data/benchmarks/memlens/
  32k/<question id>.json      each as published
  32k.json                    where they come from, their order, what they hash to; written last
  agent_subset_195.json       as published
  images/needle_images/…      as published
  images.json                 of every picture its size, or why it can't be had
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from delivermem import pictures
from delivermem.benchmarks import Benchmark, memlens
from delivermem.progress import Clock
from delivermem.records import Picture
from delivermem.runs import data_dir

SUBSET = "agent_subset_195.json"
LENGTHS = ("32k", "64k", "128k", "256k")
IMAGE_FORMATS = (".jpg", ".jpeg", ".png", ".webp")
THREADS = 4


def folder() -> Path:
    """Where MemLens is kept."""
    return data_dir() / "benchmarks" / "memlens"


def keep(
    length: str, rows: Iterable[Mapping[str, Any]], source: Mapping[str, Any], say: Callable[[str], None]
) -> int:
    """Write each question to a file of its own as it comes, and last the list of them; returns how many there are.

    What is there already with the same content is left, so that a stopped fetch goes on cheaply. Raises memlens.FormatError
    for a row that is not a MemLens question, before anything is listed.
    """
    place, clock, names = folder() / length, Clock(say, "questions"), list[str]()
    place.mkdir(parents=True, exist_ok=True)
    digest, images = hashlib.sha256(), set[str]()
    for row in rows:
        name = row.get("question_id") if isinstance(row, Mapping) else None
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]{1,100}", name) or name in names:
            raise memlens.FormatError(
                f"memlens {length}: question_id {name!r} of row {len(names)} is missing, given twice or no name "
                "for a file; fetch the file again"
            )
        text = json.dumps(row, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        path = place / f"{name}.json"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            _replace(path, text)
        digest.update(text.encode())
        names.append(name)
        images |= memlens.picture_names(str(path), row)
        clock.tick(len(names), max(len(names), 789))
    content = dict(sha256=digest.hexdigest(), questions=names, images=sorted(images))
    listed = {"revision": f"sha256:{digest.hexdigest()[:16]}", **source, **content}
    _replace(folder() / f"{length}.json", json.dumps(listed, indent=1) + "\n")
    return len(names)


def _replace(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def named(length: str) -> set[str]:
    """The pictures that the questions of a length name, by their paths below the folder of images."""
    return set(_listed(length)["images"])


def fetched(length: str) -> bool:
    """Whether fetching a length went to its end: it is listed, and every picture that it names was looked at."""
    looked = folder() / "images.json"
    if not (folder() / f"{length}.json").exists() or not looked.exists():
        return False
    known: dict[str, Any] = json.loads(looked.read_text(encoding="utf-8"))
    return named(length) <= known.keys()


def check_images(length: str, say: Callable[[str], None]) -> list[str]:
    """Decode every picture that the questions of a length name, once; returns one sentence for each that can't be had.

    What was found is kept in images.json, by path and size of the file, so that a second look costs nothing.
    """
    path, root = folder() / "images.json", folder() / "images"
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    names = sorted(named(length))
    clock = Clock(say, "pictures")

    def look(name: str) -> tuple[str, dict[str, Any]]:
        file = Path(os.path.normpath(root / name))
        if not file.is_relative_to(root):
            return name, dict(bytes=-1, trouble="its path leads out of the folder of images")
        size = file.stat().st_size if file.is_file() else -1
        if known.get(name, {}).get("bytes") == size and size >= 0:
            return name, known[name]
        try:
            image = pictures.load(Picture(name, file))
        except pictures.PictureError as error:
            return name, dict(bytes=size, trouble=str(error).replace(str(root), "images"))
        return name, dict(bytes=size, size=list(image.size))

    with ThreadPoolExecutor(THREADS) as pool:
        for done, (name, found) in enumerate(pool.map(look, names), 1):
            known[name] = found
            clock.tick(done, len(names))
    _replace(path, json.dumps(known, indent=0, sort_keys=True) + "\n")
    return [known[name]["trouble"] for name in names if "trouble" in known[name]]


def load(name: str) -> Benchmark:
    """The benchmark `memlens-<length>`, or with `-all` its 789 questions and not the 195 of the agents' subset.

    Its revision is the hub's commit, or of files from a folder a hash of the questions; where pictures can't be had a hash of
    which is added, as they change what is delivered. Raises ValueError where nothing is fetched, with the command.
    """
    length, _, every = name.removeprefix("memlens-").partition("-")
    about, wanted = _listed(length), None
    if not every:
        path = folder() / SUBSET
        wanted = set(_json(path, "question_ids"))
        if lost := sorted(wanted - set(about["questions"])):
            raise memlens.FormatError(
                f"{path}: question {lost[0]!r} is not among those of {length}; fetch it again"
            )
    root, seen = folder() / "images", folder() / "images.json"
    known = json.loads(seen.read_text(encoding="utf-8")) if seen.exists() else {}
    missing = {n for n in named(length) if "trouble" in known.get(n, {}) or not (root / n).is_file()}
    revision = str(about["revision"])
    if missing:
        revision += "-" + hashlib.sha256("\n".join(sorted(missing)).encode()).hexdigest()[:8]
    found = memlens.benchmark(
        _stored(length, wanted),
        root,
        name=name,
        revision=revision,
        missing=missing,
        judge="memlens",
        encoder="google/siglip2-base-patch16-384",
        text_encoder="sentence-transformers/all-MiniLM-L6-v2",
    )
    return _with_notes(found, sorted(missing))


def _with_notes(found: Benchmark, missing: list[str]) -> Benchmark:
    from dataclasses import replace

    notes = []
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        notes.append(
            f"{len(missing)} pictures can't be had, and a placeholder stands for each: {', '.join(missing[:3])}{more}"
        )
    inferred = Counter(field for question in found.questions for field in question.inferred)
    for field, count in sorted(inferred.items()):
        notes.append(
            f"{field} of {count} of {len(found.questions)} questions is inferred, not stated in the data"
        )
    unread = {
        record.time_text
        for memory in found.memories
        for record in memory
        if record.time is None and record.time_text.strip()
    }
    if unread:
        notes.append(
            f"{len(unread)} dates can't be read and stand as they are: {', '.join(sorted(unread)[:3])}"
        )
    return replace(found, notes=tuple(notes))


def _listed(length: str) -> dict[str, Any]:
    path = folder() / f"{length}.json"
    if not path.exists():
        raise ValueError(
            f"{path}: MemLens of length {length} is not here; fetch it with: delivermem fetch memlens --length {length}"
        )
    for field in ("questions", "images"):
        _json(path, field)
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _stored(length: str, wanted: set[str] | None) -> Iterator[tuple[str, Any]]:
    for name in _listed(length)["questions"]:
        if wanted is None or name in wanted:
            path = folder() / length / f"{name}.json"
            try:
                yield str(path), json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise memlens.FormatError(
                    f"{path}: can't be read ({error}); fetch it again with: delivermem fetch memlens --length {length}"
                ) from None


def _json(path: Path, field: str) -> list[Any]:
    """A list in a JSON file; a FormatError that names file and field where it is not there."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise memlens.FormatError(
            f"{path}: can't be read ({error}); fetch it again with: delivermem fetch memlens"
        ) from None
    value = found.get(field) if isinstance(found, dict) else None
    if not isinstance(value, list):
        raise memlens.FormatError(
            f"{path}: it has no list {field!r}; fetch it again with: delivermem fetch memlens"
        )
    return value
