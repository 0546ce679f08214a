"""Answers on disk: keyed by everything that can change them, appended one line at a time, never asked for twice.

One folder per benchmark and backbone, one `<condition>.jsonl` per condition (a line an answer), one
`manifest.json`. A killed run loses at most the answers in flight.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delivermem import pictures
from delivermem.records import Prompt

if TYPE_CHECKING:
    import datasets
    import pandas as pd

FIELDS = (
    "key", "question_id", "kind", "subtype", "cluster", "condition", "replicate", "k", "delivered", "gold", "answer",
    "expected", "status", "finish", "verdict", "rule", "refused", "needs_pixels", "guess", "recall", "text_tokens",
    "image_tokens", "images", "seconds", "prompt", "pixels",
)  # fmt: skip
"""What every line holds. `prompt` and `pixels` are hashes of what was delivered; `seconds` alone varies by run."""
STEPS = "steps"
"""What a line of an errand holds beside FIELDS: its trace, an `agent.Step` each."""
FSYNC_EVERY = 2.0
"""Seconds between forced writes to the disk."""


class RunError(ValueError):
    """A folder of answers that can't be used as asked, said in one sentence with the path and the cure."""


def data_dir() -> Path:
    """The folder of models, outputs and published tables: DELIVERMEM_DATA, or `data` of this clone."""
    named = os.environ.get("DELIVERMEM_DATA")
    return Path(named).resolve() if named else Path(__file__).resolve().parents[1] / "data"


def canonical(value: Any) -> str:
    """JSON with sorted keys, integral floats as integers, NaN refused: equal values give equal text."""

    def plain(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {str(name): plain(inner) for name, inner in item.items()}
        if isinstance(item, list | tuple):
            return [plain(inner) for inner in item]
        if isinstance(item, float) and item.is_integer():
            return int(item)
        return item

    return json.dumps(
        plain(value), sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":")
    )


def prompt_hashes(prompt: Prompt) -> tuple[str, str]:
    """SHA-256 of a prompt's text with its image marks, and of its final pixels in order."""
    pixels = canonical([pictures.content_hash(image) for image in prompt.images])
    return hashlib.sha256(prompt.text.encode()).hexdigest(), hashlib.sha256(pixels.encode()).hexdigest()


def key(
    *,
    benchmark: str,
    revision: str,
    question_id: str,
    prompt: str,
    pixels: str,
    backbone: Mapping[str, Any],
    replicate: int,
) -> str:
    """The name of an answer: SHA-256 over all that can change it. prompt, pixels: from `prompt_hashes`."""
    return hashlib.sha256(canonical(locals()).encode()).hexdigest()


class Folder:
    """The answers of one benchmark and backbone, open for writing by one process (a lock file sees to that)."""

    def __init__(self, path: Path):
        self.path = path
        self._files: dict[str, Any] = {}
        self._synced = time.monotonic()
        self._lock = path / ".lock"

    def __enter__(self) -> Folder:
        self.path.mkdir(parents=True, exist_ok=True)
        me = f"{os.getpid()}@{socket.gethostname()}"
        for _ in range(2):
            try:
                handle = os.open(self._lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                owner = self._lock.read_text().strip() if self._lock.exists() else ""
                if _alive(owner):
                    raise RunError(
                        f"{self.path}: process {owner} is writing here; wait for it, or remove {self._lock} if it is gone"
                    ) from None
                self._lock.unlink(missing_ok=True)
                continue
            with os.fdopen(handle, "w") as file:
                file.write(me)
            return self
        raise RunError(f"{self._lock}: could not be taken; another run started at the same moment, try again")

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        self._files.clear()
        self._lock.unlink(missing_ok=True)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one answer to its condition's file: one write, forced to the disk every FSYNC_EVERY seconds."""
        condition = str(line["condition"])
        if condition not in self._files:
            path = self.path / f"{condition}.jsonl"
            mend(path)
            self._files[condition] = path.open("ab", buffering=0)
        self._files[condition].write((json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode())
        if time.monotonic() - self._synced > FSYNC_EVERY:
            for file in self._files.values():
                os.fsync(file.fileno())
            self._synced = time.monotonic()

    def settle(self, condition: str, order: Sequence[str]) -> None:
        """Rewrite a condition's file in the order of its questions, the newest answer of each alone."""
        if condition in self._files:
            file = self._files.pop(condition)
            os.fsync(file.fileno())
            file.close()
        path = self.path / f"{condition}.jsonl"
        newest: dict[tuple[str, int], dict[str, Any]] = {}
        for line in read(path):
            name = (line["question_id"], line["replicate"])
            old = newest.get(name)
            if old and old["key"] == line["key"] and old["status"] != "failed" == line["status"]:
                continue  # a failure never takes the place of an answer
            newest[name] = line
        place = {question: i for i, question in enumerate(order)}
        lines = sorted(
            newest.values(), key=lambda x: (place.get(x["question_id"], len(place)), x["question_id"])
        )
        text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
        _replace(path, text)

    def check(self, about: Mapping[str, Any]) -> None:
        """RunError where the folder holds answers of another model, benchmark, K or seed: they must not be mixed."""
        path = self.path / "manifest.json"
        if not path.exists():
            return
        try:
            known = dict(json.loads(path.read_text()))
        except (ValueError, TypeError):
            raise RunError(f"{path}: unreadable; restore it, or move that folder away") from None
        new = {"encoder"} - known.keys()  # nothing here was retrieved by sight so far
        other = [n for n in about.keys() - new if canonical(known.get(n)) != canonical(about[n])]
        if other:
            raise RunError(
                f"{self.path}: it holds answers with another {other[0]}; give another --outputs, or move that folder away"
            )

    def write_manifest(self, about: Mapping[str, Any], *, asked: bool) -> None:
        """State what the folder holds: versions, commit, identity, and per condition its counts and SHA-256. Where no
        answer was asked for, what computed the ones at hand stays as it is stated."""
        path, source = self.path / "manifest.json", provenance()
        if path.exists():
            known = json.loads(path.read_text())
            kept = {"encoder"} if asked else known.keys()
            source |= {name: known[name] for name in known.keys() & kept - {*about, "conditions"}}
        conditions = {}
        for file in sorted(self.path.glob("*.jsonl")):
            lines = list(read(file))
            failed = sum(line["status"] == "failed" for line in lines)
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            conditions[file.stem] = dict(answers=len(lines), failed=failed, sha256=digest)
        manifest = {**about, **source, "conditions": conditions}
        _replace(path, json.dumps(manifest, indent=1, sort_keys=True) + "\n")


def mend(path: Path) -> int:
    """Cut a torn last line, which a kill leaves, back to the last newline; returns the bytes cut."""
    if not path.exists():
        return 0
    with path.open("rb+") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        file.truncate(whole)
    return len(content) - whole


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The answers of one file in order; a torn last line is passed over, any other damage is a RunError."""
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RunError(f"{path}, line {number}: not JSON; restore the file, or remove it and run again")
        yield found


def _replace(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def _alive(owner: str) -> bool:
    """Whether the process that a lock names may still run; on another host that can't be known."""
    pid, _, host = owner.partition("@")
    if not pid.isdigit() or host != socket.gethostname():
        return bool(pid.isdigit())
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def provenance() -> dict[str, Any]:
    """Versions of what computes, and the commit of this clone with a flag for uncommitted changes of the code."""
    root = Path(__file__).resolve().parents[1]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    from delivermem import __version__

    names = ("torch", "transformers", "numpy", "pillow", "bm25s")
    return dict(
        delivermem=__version__,
        python=platform.python_version(),
        versions={name: version(name).split("+")[0] for name in names},
        commit=git("rev-parse", "HEAD"),
        dirty=bool(git("status", "--porcelain", "--", "delivermem")),
    )


def folders(outputs: Path | None = None) -> list[Path]:
    """The folders of answers at hand: outputs/<benchmark>/<backbone>."""
    root = outputs or data_dir() / "outputs"
    return sorted(path.parent for path in root.glob("*/*/manifest.json"))


def about(outputs: Path | None = None, *, benchmark: str | None = None, experiment: str = "") -> str:
    """Where the cached answers come from, a line a folder: backbone, benchmark, K, and what computed them. experiment: of
    folders with answers to that one alone."""
    from delivermem.experiments import find
    from delivermem.verdicts import told

    arms, lines = find(experiment).conditions if experiment else (), []
    for folder in folders(outputs):
        held = not arms or any((folder / f"{arm.name}.jsonl").exists() for arm in arms)
        if benchmark not in (None, folder.parent.name) or not held:
            continue
        m = json.loads((folder / "manifest.json").read_text())
        versions = ", ".join(f"{name} {m['versions'][name]}" for name in ("torch", "transformers"))
        lines.append(
            f"{m['backbone']['model']} ({m['backbone']['revision']}, {m['backbone']['dtype']}) on {m['benchmark']} "
            f"{m['revision']}, K = {m['k']}{', retrieved by ' + m['encoder'] if 'encoder' in m else ''}; {versions}; "
            f"code {m['commit'][:10]}{' + changes' if m['dirty'] else ''}{told(folder)}"
        )
    return "\n".join(lines) or "no cached answers"


def load(
    experiment: str, *, benchmark: str | None = None, backbone: str | None = None, outputs: Path | None = None
) -> pd.DataFrame:
    """The cached answers of an experiment as a table, one row an answer, FIELDS and benchmark and backbone.

    All folders at hand unless one is named; a backbone says so where its judge is not canonical. No answers is a RunError that names the command that makes them.
    """
    import pandas as pd

    from delivermem.experiments import find
    from delivermem.verdicts import label

    rows = []
    for folder in folders(outputs):
        if (benchmark or folder.parent.name, backbone or folder.name) != (folder.parent.name, folder.name):
            continue
        for condition in find(experiment).conditions:
            names = dict(benchmark=folder.parent.name, backbone=label(folder))
            rows += [names | line for line in read(folder / f"{condition.name}.jsonl")]
    if not rows:
        root = outputs or data_dir() / "outputs"
        raise RunError(
            f"{root} holds no answers of {experiment!r}; make them with: delivermem run {experiment}"
        )
    traced = [STEPS] if any(STEPS in row for row in rows) else []
    table = pd.DataFrame(rows, columns=["benchmark", "backbone", *FIELDS, *traced])
    return table.astype({"recall": float, "refused": bool, "needs_pixels": bool})


def as_dataset(experiment: str, **where: Any) -> datasets.Dataset:
    """The same answers as a `datasets.Dataset`, to share or push to a hub. Arguments as of `load`."""
    import datasets

    return datasets.Dataset.from_pandas(load(experiment, **where), preserve_index=False)


def status(outputs: Path | None = None) -> list[dict[str, Any]]:
    """One entry per condition at hand: answers, and of them right, wrong, unjudged, failed, not applicable."""
    from delivermem.verdicts import label

    found = []
    for folder in folders(outputs):
        for path in sorted(folder.glob("*.jsonl")):
            lines = list(read(path))
            count = {
                state: sum(line["verdict"] == state and line["status"] != "not_applicable" for line in lines)
                for state in ("right", "wrong", "unjudged")
            }
            count |= {
                name: sum(line["status"] == name for line in lines) for name in ("failed", "not_applicable")
            }
            mean = sum(line["seconds"] for line in lines) / max(1, len(lines))
            found.append(
                dict(
                    benchmark=folder.parent.name,
                    backbone=label(folder),
                    condition=path.stem,
                    answers=len(lines),
                    **count,
                    seconds=round(mean, 4),
                )
            )
    return found
