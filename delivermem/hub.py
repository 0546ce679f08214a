"""Bringing the published benchmarks here: from the model hub and git at pinned revisions, or from a folder that has them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from delivermem import pins
from delivermem.benchmarks import memlens, memlens_store, released
from delivermem.pins import DMV, DMV_IMAGES, MEMLENS
from delivermem.progress import Clock
from delivermem.runs import data_dir

Say = Callable[[str], None]
ARCHIVE, IMAGES = "release_images.tar.gz", "release_images"
LARGEST = 64 * 2**20
"""Most bytes of one picture in an archive; a larger one is refused before it is written."""
MEMLENS_SIZES = dict(zip(memlens_store.LENGTHS, (52, 101, 195, 387), strict=True))
"""Megabytes of the Parquet files, as MemLens's data card states them; beside them 219 of pictures."""


class FetchError(ValueError):
    """Something that can't be had: one sentence with what, where from and the cure."""


def absent(benchmark: str) -> str:
    """What fetching a published benchmark brings, with the command; "" where it is here, or is embedded."""
    name, _, length = benchmark.removesuffix("-all").partition("-")
    if name == "memlens" and not memlens_store.fetched(length):
        return f"{MEMLENS_SIZES[length]} MB of questions and 219 MB of pictures; delivermem fetch memlens --length {length}"
    if name == "dmv" and not (data_dir() / "benchmarks" / "dmv" / "source.json").exists():
        return "a catalogue of 1 MB and 1,500 MB of pictures; delivermem fetch dmv"
    return ""


def bring(benchmark: str, *, whole: bool = False, say: Say = print) -> None:
    """Fetch what a benchmark lacks here. whole: also the evaluator's words for a question to a whole conversation."""
    name, _, length = benchmark.removesuffix("-all").partition("-")
    if absent(benchmark):
        fetch_memlens(length, say=say) if name == "memlens" else fetch_dmv(say=say)
    if whole and name == "memlens":
        try:
            released.words()
        except released.CheckoutError:
            fetch_judge(say=say)


def fetch_memlens(length: str, *, source: Path | None = None, say: Say = print) -> Path:
    """MemLens at one length: questions, the agents' subset, pictures, each picture decoded once. Returns the folder.

    source: a folder with the published files: `dataset_<length>.json` or its Parquet twin, agent_subset_195.json, and
    `release_images` or its archive. Else they come from the hub at the pinned commit. Goes on where it was stopped.
    """
    if length not in memlens_store.LENGTHS:
        raise FetchError(f"length {length!r} is unknown; choose one of {', '.join(memlens_store.LENGTHS)}")
    place = memlens_store.folder()
    place.mkdir(parents=True, exist_ok=True)
    repo, commit = MEMLENS
    if source is None:
        _tell(
            say,
            f"{repo} at {commit[:12]} -> {place}",
            _sizes(repo, commit, (f"dataset_{length}.parquet", memlens_store.SUBSET, ARCHIVE)),
        )
        rows: Iterable[Mapping[str, Any]] = _streamed(repo, commit, length)
        about: dict[str, Any] = dict(repository=repo, revision=commit)
        count = memlens_store.keep(length, rows, about, say)
    else:
        path = _one_of(source, f"dataset_{length}.json", f"dataset_{length}.parquet", f"{length}.parquet")
        _tell(say, f"{source} -> {place}", {path.name: path.stat().st_size})
        about = dict(folder=source.name, file=path.name)
        rows = memlens.rows(path) if path.suffix == ".json" else _parquet(path)
        count = memlens_store.keep(length, rows, about, say)
    _copy(_given(source, repo, commit, memlens_store.SUBSET), place / memlens_store.SUBSET)
    _memlens_images(source, place / "images", length, say)
    say(f"{count} questions; looking at every picture once")
    troubles = memlens_store.check_images(length, say)
    for trouble in troubles[:10]:
        say(f"  {trouble}")
    say(f"memlens {length} is ready in {place}; {len(troubles)} pictures can't be had")
    return place


def _memlens_images(source: Path | None, to: Path, length: str, say: Say) -> None:
    wanted = memlens_store.named(length)
    if not {name for name in wanted if not (to / name).is_file()}:
        return
    if source is not None and (source / IMAGES).is_dir():
        clock = Clock(say, "pictures")
        files = [path for path in sorted((source / IMAGES).rglob("*")) if path.is_file()]
        for done, path in enumerate(files, 1):
            if path.suffix.lower() in memlens_store.IMAGE_FORMATS:
                _copy(path, to / path.relative_to(source / IMAGES))
            clock.tick(done, len(files))
        return
    unpack(_given(source, *MEMLENS, ARCHIVE), to, say=say)


def unpack(archive: Path, to: Path, *, say: Say = print) -> int:
    """Take the pictures of a tar archive into a folder; returns how many.

    Every member is looked at first: a path that leads out of the folder, a link, a device or an outsized file refuses the
    whole archive before anything is written. A leading `release_images` is left out of the paths. What is there with its
    full size is not written again.
    """
    try:
        with tarfile.open(archive) as tar:
            members = [(m, _inside(archive, m)) for m in tar if not m.isdir()]
            clock = Clock(say, "pictures")
            for done, (member, name) in enumerate(members, 1):
                path = to / name
                if not (path.is_file() and path.stat().st_size == member.size):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    part = path.with_name(f"{path.name}.part")
                    opened = tar.extractfile(member)
                    if opened is None:
                        raise FetchError(f"{archive}: {member.name!r} can't be read; fetch the archive again")
                    with opened, part.open("wb") as file:
                        shutil.copyfileobj(opened, file)
                    part.replace(path)
                clock.tick(done, len(members))
    except (tarfile.TarError, EOFError, OSError) as error:
        raise FetchError(f"{archive}: can't be read as an archive ({error}); fetch it again") from None
    return len(members)


def _inside(archive: Path, member: tarfile.TarInfo) -> PurePosixPath:
    path = PurePosixPath(member.name)
    parts = [part for part in path.parts if part != "."]
    parts = parts[1:] if parts and parts[0] == IMAGES else parts
    if not member.isfile():
        raise FetchError(
            f"{archive}: {member.name!r} is a link or a device, not a picture; take the published archive"
        )
    if path.is_absolute() or ".." in parts or not parts or any("\\" in part or ":" in part for part in parts):
        raise FetchError(f"{archive}: {member.name!r} leads out of the folder; take the published archive")
    if member.size > LARGEST:
        raise FetchError(
            f"{archive}: {member.name!r} has {member.size} bytes, more than {LARGEST}; take the published archive"
        )
    return PurePosixPath(*parts)


def fetch_dmv(*, source: Path | None = None, say: Say = print) -> Path:
    """DMV-Bench: catalogue and cues from its repository at the pinned commit, pictures from the hub. Returns the folder.

    source: a folder laid out as its repository is, with the pictures in `with_cue` somewhere below it.
    """
    place = data_dir() / "benchmarks" / "dmv"
    place.mkdir(parents=True, exist_ok=True)
    names = ("seed_v2.json", "cue_registry.json")
    about: dict[str, Any]
    if source is None:
        _tell(say, f"{DMV[0]} at {DMV[1][:12]} and {DMV_IMAGES[0]} -> {place}", {"with_cue": 1500 * 10**6})
        clone = _cloned(*DMV, place / "repository", ("data/vismem_diag_v2",), say)
        for name in names:
            _copy(clone / "data" / "vismem_diag_v2" / name, place / name)
        images, commit = _snapshot(DMV_IMAGES[0], DMV_IMAGES[1] or None, "with_cue/*")
        about = dict(repository=DMV[0], images=DMV_IMAGES[0], images_commit=commit, revision=DMV[1])
    else:
        for name in names:
            _copy(_one_of(source, name), place / name)
        images = source
        digest = hashlib.sha256("".join(_sha256(place / name) for name in names).encode()).hexdigest()
        about = dict(folder=source.name, revision=f"sha256:{digest[:16]}")
    cued = next((path for path in sorted(images.rglob("with_cue")) if path.is_dir()), None)
    if cued is None:
        raise FetchError(f"{images}: no folder `with_cue` below it; give one that holds DMV-Bench's pictures")
    clock, files = Clock(say, "pictures"), sorted(cued.rglob("*.png"))
    for done, path in enumerate(files, 1):
        _copy(path, place / "images" / "with_cue" / path.relative_to(cued))
        clock.tick(done, len(files))
    if source is not None:
        for path in sorted(source.rglob("_caption_cache.json"))[:1]:
            _copy(path, place / path.name)
        for folder in ("trees", "trajectories"):
            for path in sorted(source.rglob(f"{folder}/*.json")):
                _copy(path, place / folder / path.name)
    (place / "source.json").write_text(json.dumps({**about, "pictures": len(files)}, indent=1) + "\n")
    say(f"dmv is ready in {place}: {len(files)} pictures")
    return place


def fetch_judge(*, source: Path | None = None, say: Say = print) -> Path:
    """MemLens's released evaluation code, by git at the pinned commit, verified. source: a clone to take it from."""
    place = released.folder()
    url, commit = pins.MEMLENS_CODE
    _cloned(str(source) if source else url, commit, place, (), say)
    released.verified(place, commit)
    say(f"memlens-judge is ready in {place}, at {commit[:12]}")
    return place


def _cloned(url: str, commit: str, to: Path, only: Iterable[str], say: Say) -> Path:
    """A repository at one commit, without history and, where `only` names some, without other folders."""
    if not (to / ".git").exists():
        say(f"git: {url} at {commit[:12]}")
        to.mkdir(parents=True, exist_ok=True)
        released.git(None, "init", "--quiet", str(to))
    if paths := list(only):
        released.git(to, "sparse-checkout", "set", *paths)
    released.git(to, "fetch", "--quiet", "--depth", "1", "--no-tags", url, commit)
    released.git(to, "checkout", "--quiet", "--force", commit)
    if (head := released.git(to, "rev-parse", "HEAD")) != commit:
        raise FetchError(f"{to}: git checked out {head}, not {commit}; remove that folder and try again")
    return to


def _streamed(repo: str, commit: str, length: str) -> Iterator[Mapping[str, Any]]:
    """The rows of the hub's Parquet twin, streamed through `datasets`."""
    import datasets

    try:
        yield from datasets.load_dataset(repo, length, revision=commit, split="train", streaming=True)
    except Exception as error:  # the hub's client raises what its transport does
        raise _unreachable(f"{repo} at {commit[:12]}", error) from None


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    import datasets

    yield from datasets.load_dataset("parquet", data_files=str(path), split="train", streaming=True)


def _given(source: Path | None, repo: str, commit: str, name: str) -> Path:
    """One published file: in the folder given, or from the hub, which keeps what it has brought."""
    if source is not None:
        return _one_of(source, name)
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(repo, name, repo_type="dataset", revision=commit))
    except Exception as error:  # the hub's client raises what its transport does
        raise _unreachable(f"{name} of {repo} at {commit[:12]}", error) from None


def _snapshot(repo: str, commit: str | None, pattern: str) -> tuple[Path, str]:
    """A hub data set's files of a pattern, and the commit they are of."""
    import huggingface_hub

    try:
        revision = commit or str(huggingface_hub.HfApi().dataset_info(repo).sha)
        found = huggingface_hub.snapshot_download(
            repo, repo_type="dataset", revision=revision, allow_patterns=pattern
        )
    except Exception as error:  # the hub's client raises what its transport does
        raise _unreachable(repo, error) from None
    return Path(found), revision


def _sizes(repo: str, commit: str, names: Iterable[str]) -> dict[str, int]:
    import huggingface_hub

    try:
        info = huggingface_hub.HfApi().dataset_info(repo, revision=commit, files_metadata=True)
    except Exception as error:  # the hub's client raises what its transport does
        raise _unreachable(f"{repo} at {commit[:12]}", error) from None
    return {s.rfilename: s.size or 0 for s in info.siblings or () if s.rfilename in set(names)}


def _unreachable(what: str, error: Exception) -> FetchError:
    said = " ".join(str(error).split())[:160]
    return FetchError(
        f"{what} can't be had ({type(error).__name__}: {said}); mend the connection and run the command again, "
        "or give a folder that has the files with --from"
    )


def _one_of(source: Path, *names: str) -> Path:
    """The first of those names in a folder or below it."""
    if not source.is_dir():
        raise FetchError(f"{source} is no folder; give one with the published files to --from")
    for name in names:
        if found := sorted(source.rglob(name)):
            return found[0]
    raise FetchError(
        f"{source}: no {' or '.join(names)} in it; give a folder with the published files to --from"
    )


def _tell(say: Say, what: str, sizes: Mapping[str, int]) -> None:
    total = sum(sizes.values()) / 1e6
    parts = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in sizes.items())
    say(f"{what}; {total:.0f} MB ({parts})" if sizes else what)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy(path: Path, to: Path) -> None:
    """Copy a file whole or not at all; one that is there with the same size and is not older stays."""
    if to.exists() and (to.stat().st_size, to.stat().st_mtime) == (path.stat().st_size, path.stat().st_mtime):
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    part = to.with_name(f"{to.name}.part")
    shutil.copy2(path, part)
    os.replace(part, to)
