"""A folder of answers kept twice: what is finished of it is copied as closed shards, checked by hash, and can be given back.

Files of answers grow at their end. What was added since the last copy, up to its last whole line, becomes a shard: a file
that is written once under another name, read back, renamed, and never changed. A file that was rewritten begins a new
generation, whose first shard holds all of it. So a copy that is cut off anywhere leaves the one before it whole.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

EVERY = 120.0
"""Seconds between two copies of a Keeper."""
SUFFIX = ".shards"
"""A copied `<condition>.jsonl` is a folder of this ending."""
_NAME = re.compile(r"(\d{4})-(\d{12})-([0-9a-f]{64})")


Skip = Callable[[Path], bool]
Say = Callable[[str], None]


def _nothing(place: Path) -> bool:
    return False


class Shard(NamedTuple):
    """A part of a file: its generation, the byte at which it begins, its SHA-256, and where it lies."""

    generation: int
    start: int
    digest: str
    path: Path


class ShardError(OSError):
    """A copy that does not read back as it was written."""


def mirror(folder: Path, to: Path, *, skip: Skip = _nothing) -> int:
    """Copy what is new in `folder`, its *.jsonl as shards and its manifests whole; returns the files written.

    skip: places relative to `folder` that are left out. Files that are being written, locks and parts are passed over.
    OSError where `to` can't be written or does not keep what it is given.
    """
    written = 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        place = path.relative_to(folder)
        if len(place.parts) < 3 or not path.is_file() or skip(place):
            continue
        if path.suffix == ".jsonl":
            written += _append(path, to / place.parent / (place.name + SUFFIX))
        elif path.name == "manifest.json":
            content, copy = path.read_bytes(), to / place
            if not copy.is_file() or copy.read_bytes() != content:
                _write(copy, content)
                written += 1
    return written


def _append(path: Path, to: Path) -> int:
    content = path.read_bytes()
    content = content[: content.rfind(b"\n") + 1]
    if not content:
        return 0
    kept = _shards(to)
    generation = max((shard.generation for shard in kept), default=0)
    start = 0
    for shard in kept:  # by name and size alone: reading them back from Drive each time would take long
        if shard.generation == generation and shard.start == start:
            size = shard.path.stat().st_size
            same = hashlib.sha256(content[start : start + size]).hexdigest() == shard.digest
            start = start + size if same else -1
    if start == len(content):
        return 0
    if start < 0 or (start == 0 and kept):
        generation, start = generation + 1, 0
    part = content[start:]
    digest = hashlib.sha256(part).hexdigest()
    _write(to / f"{generation:04d}-{start:012d}-{digest}", part)
    for shard in _shards(to):
        if shard.generation < generation:
            shard.path.unlink()
    return 1


def _write(path: Path, content: bytes) -> None:
    """Write under another name, read back, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name[:40]}.part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if part.read_bytes() != content:
        raise ShardError(f"{path}: it reads back otherwise than it was written; is the disk full?")
    part.replace(path)


def _shards(folder: Path) -> list[Shard]:
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            found.append(Shard(int(match[1]), int(match[2]), match[3], path))
    return found


def newest(folder: Path) -> list[Shard]:
    """The shards of the newest generation that is whole from its beginning, in order, as far as each holds what its name
    says and begins where the one before ends."""
    known = _shards(folder)
    for generation in sorted({shard.generation for shard in known}, reverse=True):
        kept: list[Shard] = []
        end = 0
        for shard in (shard for shard in known if shard.generation == generation):
            content = shard.path.read_bytes()
            if shard.start == end and hashlib.sha256(content).hexdigest() == shard.digest:
                kept.append(shard)
                end += len(content)
        if kept:
            return kept
    return []


def restore(kept: Path, folder: Path) -> int:
    """Give back to `folder` what `kept` holds of it, where it has no such file or only the beginning of one; returns the
    files given back. A file that holds something else stays as it is."""
    given = 0
    for path in sorted(kept.rglob("*")) if kept.is_dir() else ():
        place = path.relative_to(kept)
        if path.is_dir() and path.name.endswith(SUFFIX):
            to = folder / place.parent / place.name.removesuffix(SUFFIX)
            content = b"".join(shard.path.read_bytes() for shard in newest(path))
        elif path.name == "manifest.json" and path.is_file():
            to, content = folder / place, path.read_bytes()
            if to.exists():
                continue
        else:
            continue
        here = to.read_bytes() if to.exists() else b""
        if content != here and content.startswith(here):
            _write(to, content)
            given += 1
    return given


class Keeper:
    """Copies a folder's closed shards to another every so many seconds. A copy that fails, as while Drive is away, is said
    once, and tried again."""

    def __init__(
        self, folder: Path, to: Path, *, every: float = EVERY, skip: Skip = _nothing, say: Say = print
    ):
        self.folder, self.to, self.every, self.skip, self.say = folder, to, every, skip, say
        self._stop, self._turn, self._said = threading.Event(), threading.Lock(), ""
        self._thread = threading.Thread(target=self._go, name="delivermem-keeper", daemon=True)
        self._thread.start()

    def _go(self) -> None:
        while not self._stop.wait(self.every):
            self.copy()

    def copy(self) -> bool:
        """Copy now; whether all that is closed is kept."""
        with self._turn:
            try:
                mirror(self.folder, self.to, skip=self.skip)
            except OSError as error:
                if self._said != str(error):
                    self.say(f"{self.to}: could not be written ({error}); the copy is tried again")
                self._said = str(error)
                return False
            self._said = ""
            return True

    def close(self) -> bool:
        """Stop, after a last copy; whether it succeeded."""
        self._stop.set()
        self._thread.join(timeout=self.every)
        return self.copy()
