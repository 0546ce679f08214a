"""MemLens folders in the published form, made from the embedded benchmark: small, and in every shape that occurs."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from delivermem.benchmarks import Benchmark, load, mini


def rows(count: int = 6) -> list[dict[str, Any]]:
    """The first questions of three conversations in MemLens's published layout, as its data card has it."""
    questions = load("mini-memlens").questions
    some = [
        q
        for memory in sorted({q.memory.id for q in questions})[:3]
        for q in questions
        if q.memory.id == memory
    ]
    kept = [q for q in some if not q.answer_is_record][:: max(1, len(some) // count)][:count]
    return [mini._layout(q) for q in kept]


def make(
    folder: Path, length: str = "32k", *, count: int = 6, form: str = "json", images: str = "folder"
) -> Path:
    """Write a folder as the hub has it. form: json, wrapped (in {"data": …}) or parquet. images: folder or archive."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = rows(count)
    for row in stored:  # the published rows have no subtype
        row.pop("question_subtype")
    if form == "parquet":
        import datasets

        datasets.Dataset.from_list(stored).to_parquet(str(folder / f"dataset_{length}.parquet"))
    else:
        whole = {"data": stored} if form == "wrapped" else stored
        (folder / f"dataset_{length}.json").write_text(json.dumps(whole), encoding="utf-8")
    ids = [row["question_id"] for row in stored][: max(1, count - 1)]
    about = {"n_questions": len(ids), "question_ids": ids, "per_type": {}}
    (folder / "agent_subset_195.json").write_text(json.dumps(about), encoding="utf-8")
    questions = tuple(
        q for q in load("mini-memlens").questions if q.id in {row["question_id"] for row in stored}
    )
    mini.write_memlens(Benchmark("part", "0", questions), folder)
    (folder / "dataset.json").unlink()
    if images == "archive":
        with tarfile.open(folder / "release_images.tar.gz", "w:gz") as tar:
            tar.add(folder / "release_images", arcname="release_images")
        for path in sorted((folder / "release_images").rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        (folder / "release_images").rmdir()
    return folder
