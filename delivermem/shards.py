"""A folder of answers kept twice: what is finished of it is copied as closed shards, checked by hash, and can be given back.

Files of answers grow at their end. What was added since the last copy, up to its last whole line, becomes a shard: a file
that is written once under another name, read back, renamed, and never changed. A file that was rewritten begins a new
generation, whose first shard holds all of it. So a copy that is cut off anywhere leaves the one before it whole.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".shards"
"""A copied `<condition>.jsonl` is a folder of this ending."""
_NAME = re.compile(r"(\d{4})-(\d{12})-([0-9a-f]{64})")


class Shard(NamedTuple):
    """A part of a file: its generation, the byte at which it begins, its SHA-256, and where it lies."""

    generation: int
    start: int
    digest: str
    path: Path


class ShardError(OSError):
    """A copy that does not read back as it was written."""


def mirror(folder: Path, to: Path, *, skip: Callable[[Path], bool] = lambda place: False) -> int:
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
    kept = newest(to)
    held = b"".join(shard.path.read_bytes() for shard in kept)
    if held == content:
        return 0
    generation = kept[-1].generation if kept else 0
    start = len(held)
    if not content.startswith(held):
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
