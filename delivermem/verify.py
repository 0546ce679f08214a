"""Whether cached answers are what they say: bytes, keys, prompts and manifests hold together."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from delivermem import agent, benchmarks, experiments, retrieval, runner, runs, verdicts

Kept = defaultdict[tuple[str, str], list[tuple[str, dict[str, Any]]]]
"""(condition, question id) -> where its lines stand, and the lines."""


def verify(
    outputs: Path | None = None, *, rebuild: bool = True, say: Callable[[str], None] = print
) -> list[str]:
    """Every problem of the cached answers, one sentence each; an empty list when there is none.

    Finds a changed byte, a duplicated key, an answer whose prompt no longer hashes to its key, a manifest that
    disagrees. rebuild: also build every prompt again from its benchmark and compare its hashes; what can't be, as its
    benchmark is not at hand, is said.
    """
    return [problem for folder in runs.folders(outputs) for problem in _folder(folder, rebuild, say)]


def _folder(folder: Path, rebuild: bool, say: Callable[[str], None]) -> Iterator[str]:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        stated = manifest["conditions"]
        identity, k, seed = manifest["backbone"], manifest["k"], manifest["seed"]
        revision = manifest["revision"]
    except (ValueError, KeyError, TypeError) as error:
        yield f"{folder / 'manifest.json'}: unreadable or incomplete ({error}); restore it, or move that folder away"
        return
    yield from verdicts.troubles(folder)
    here = {path.stem: path for path in folder.glob("*.jsonl")}
    for name in sorted(stated.keys() - here.keys()):
        yield f"{folder / name}.jsonl: in the manifest but missing; restore it or run the experiment again"
    kept: Kept = defaultdict(list)
    for name, path in sorted(here.items()):
        if name not in stated:
            yield f"{path}: not in the manifest; remove it or run the experiment again"
        elif hashlib.sha256(path.read_bytes()).hexdigest() != stated[name]["sha256"]:
            yield f"{path}: its bytes are not those of the manifest; restore it or run the experiment again"
        try:
            lines = list(runs.read(path))
        except runs.RunError as error:
            yield str(error)
            continue
        yield from _lines(path, lines, manifest, kept)
        if name in stated and stated[name]["answers"] != len(lines):
            yield f"{path}: {len(lines)} answers, but the manifest says {stated[name]['answers']}"
    if rebuild and folder.parent.name in benchmarks.known():
        try:
            data = benchmarks.load(folder.parent.name)
        except ValueError as error:
            say(f"{folder}: its prompts were not built again ({error})")
            return
        if data.revision != revision:
            now = f"made on {data.name} {revision}, which is now {data.revision}"
            yield f"{folder}: {now}; move that folder away and run again"
            return
        arms = {c.name: c for e in experiments.EXPERIMENTS.values() for c in e.conditions if c.name in here}
        memory_of = {question.id: question.memory for question in data.questions}
        delivered = {}
        for (arm, question), found in kept.items():
            where, ids = found[-1][0], found[-1][1]["delivered"]
            if question not in memory_of or any(name not in memory_of[question] for name in ids):
                yield f"{where}: {data.name} has no such question or delivered record; run again"
                ids = []
            steps = found[-1][1].get("steps")
            if isinstance(steps, list) and steps and isinstance(steps[0].get("delivered"), list):
                ids = [name for name in steps[0]["delivered"] if name in memory_of.get(question, ())]
            if arm in arms and retrieval.BY_SIGHT & {arms[arm].ranker, data.ranker}:
                delivered[arm, question] = ids
        everything = runner.plan(
            data, list(arms.values()), identity, k=k, seed=seed, delivered=delivered, folder=folder
        )
        for plan in everything:
            yield from _stale(data, plan, kept[plan.condition.name, plan.question.id], k, seed)


def _lines(path: Path, lines: list[dict[str, Any]], manifest: dict[str, Any], kept: Kept) -> Iterator[str]:
    """What is wrong with the lines by themselves; those that can be read are added to `kept`."""
    counts = Counter((line.get("key"), line.get("replicate")) for line in lines)
    for (key, _), count in counts.items():
        if count > 1:
            yield f"{path}: key {key} occurs {count} times; run the experiment again to keep the newest"
    for number, line in enumerate(lines, 1):
        missing = [field for field in runs.FIELDS if field not in line]
        if missing:
            yield f"{path}, line {number}: no field {missing[0]!r}; it was written by another version, run again"
            continue
        where = f"{path}, line {number} ({line['question_id']})"
        key = runs.key(
            benchmark=manifest["benchmark"],
            revision=manifest["revision"],
            question_id=line["question_id"],
            prompt=line["prompt"],
            pixels=line["pixels"],
            backbone=manifest["backbone"],
            replicate=line["replicate"],
        )
        if key != line["key"]:
            yield f"{where}: what it states no longer hashes to its key"
        kept[line["condition"], line["question_id"]].append((where, line))


def _stale(
    data: benchmarks.Benchmark, plan: runner.Plan, kept: list[tuple[str, dict[str, Any]]], k: int, seed: int
) -> Iterator[str]:
    """What of a kept answer is not as it would be planned or judged now."""
    for where, line in kept:
        if plan.line["key"] != line["key"]:
            yield f"{where}: its prompt is built differently now; run again"
        elif runner.rejudged(plan, line)["verdict"] != line["verdict"]:
            yield f"{where}: it is judged differently now; run again, or delivermem judge"
        elif (plan.walk is not None and line["status"] != "not_applicable") or line.get("steps"):
            trouble = _readable(plan, line.get("steps"))
            if trouble:
                yield f"{where}: {trouble}; run again"
                continue
            walk = runner.errand(data, plan.question, plan.condition, k, seed, steps=line["steps"])
            trouble = agent.replayed(walk, line["steps"], runner.shop_of(data))
            if trouble or walk.product != line["answer"]:
                yield f"{where}: {trouble or 'its product is not where its steps end'}; run again"


def _readable(plan: runner.Plan, steps: Any) -> str:
    """What keeps a trace from being taken again; "" where nothing does."""
    if not isinstance(steps, list) or not steps:
        return "" if plan.prompt is None else "it has no trace"
    for number, step in enumerate(steps, 1):
        missing = [name.name for name in fields(agent.Step) if name.name not in step]
        if missing:
            return f"step {number} has no {missing[0]}"
        unknown = [name for name in step["delivered"] if name not in plan.question.memory]
        if unknown:
            return f"step {number} was given a record {unknown[0]!r}, which is not in memory"
    return ""
