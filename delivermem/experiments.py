"""The named grids of conditions, as plain data, and the one runner that answers them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delivermem import benchmarks, controls, judges, retrieval, runs
from delivermem.backbones import Backbone
from delivermem.delivery import DELIVERMEM, Decisions, deliver
from delivermem.pictures import PictureError
from delivermem.records import Answer, Prompt, Question

TEXT_ONLY = Decisions(modality="text")
DEFAULT_K = {"mini-memlens": 10, **{f"mini-dmv-{sessions}": 5 for sessions in (5, 10, 15, 50)}}
"""Records delivered per question where nothing else is said: the paper's 10 on MemLens and 5 on DMV-Bench."""
CHUNK = 64
"""Prompts drawn at a time: what is held in memory."""


@dataclass(frozen=True)
class Condition:
    """One arm: which records are retrieved, how they are delivered, and what a control then changes."""

    name: str
    ranker: str
    decisions: Decisions = DELIVERMEM
    control: str = "correct"
    replicate: int = 0


@dataclass(frozen=True)
class Experiment:
    name: str
    conditions: tuple[Condition, ...]


EXPERIMENTS = {
    "decomposition": Experiment(
        "decomposition",
        (
            Condition("gold-pixels", "gold"),
            Condition("gold-text", "gold", TEXT_ONLY),
            Condition("bm25-pixels", "bm25"),
            Condition("bm25-text", "bm25", TEXT_ONLY),
            Condition("recent-pixels", "recent"),
            Condition("random-pixels", "random"),
        ),
    ),
    "ladder": Experiment(
        "ladder",
        (
            *(Condition(f"ladder-{rung}", "gold", control=rung) for rung in controls.LADDER),
            Condition("ladder-caption", "gold", Decisions(modality="caption")),
            Condition("ladder-withheld", "gold", TEXT_ONLY),
        ),
    ),
    "controls": Experiment(
        "controls",
        (
            Condition("full", "gold"),
            Condition("full-again", "gold", replicate=1),
            Condition("identity-none", "gold", Decisions(identity="none")),
            Condition("identity-constant", "gold", control="constant-tag"),
            Condition("identity-text", "gold", control="text-tag"),
            Condition("reordered", "gold", control="reordered"),
            Condition("reordered-none", "gold", Decisions(identity="none"), control="reordered"),
            Condition("time-none", "gold", Decisions(time="none")),
            Condition("time-shuffled", "gold", control="shuffled-times"),
            Condition("time-ordinal", "gold", control="ordinal-times"),
        ),
    ),
    "adapter": Experiment(
        "adapter", tuple(Condition(f"{grid}-full", grid) for grid in ("tiles", "whole", "crops"))
    ),
}
"""The grids. `full-again` repeats `full` and shares nothing with it: what differs between the two is noise."""


def find(name: str) -> Experiment:
    """The experiment of that name; an unknown one is a ValueError that lists the known."""
    if name not in EXPERIMENTS:
        raise ValueError(f"experiment {name!r} is unknown; choose one of {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]


def chosen(experiment: Experiment, names: Sequence[str] | None) -> tuple[Condition, ...]:
    """The experiment's conditions, or those named; an unknown one is a ValueError that lists the known."""
    known = {condition.name: condition for condition in experiment.conditions}
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise ValueError(
            f"condition {unknown[0]!r} is unknown in {experiment.name}; choose from {', '.join(known)}"
        )
    return tuple(known[name] for name in names) if names else experiment.conditions


@dataclass(frozen=True, eq=False)
class Plan:
    """One answer to be had: the question, the arm, the prompt (or why there is none), and the answer's key."""

    question: Question
    condition: Condition
    prompt: Prompt | None
    trouble: str
    line: dict[str, Any]


def plan(
    benchmark: benchmarks.Benchmark,
    conditions: Sequence[Condition],
    identity: Mapping[str, Any],
    *,
    k: int,
    seed: int = 0,
    limit: int | None = None,
    delivered: Mapping[tuple[str, str], Sequence[str]] | None = None,
) -> Iterator[Plan]:
    """Every answer of the grid in turn, conditions interleaved, so that a stop leaves the arms equally far.

    delivered: (condition, question id) -> ids of the records that were delivered there, in order; nothing is ranked for
    those, as an encoder's last digits, and with them a near tie, differ between machines.
    """
    known = delivered or {}
    for question in benchmark.questions[:limit]:
        for condition in conditions:
            ids = known.get((condition.name, question.id))
            if ids is None:
                records = retrieval.rank(
                    condition.ranker, question, k, seed=seed, beside_gold=benchmark.ranker
                )
            else:
                records = tuple(question.memory[name] for name in ids)
            prompt, trouble = None, f"{condition.control} can't be had here"
            try:
                whole = deliver(records, question, condition.decisions, layout=benchmark.layout)
                prompt = controls.apply(
                    whole, condition.control, question=question, others=benchmark.questions, seed=seed
                )
            except PictureError as error:
                trouble = f"error: {error}"
            text, pixels = runs.prompt_hashes(prompt) if prompt else (trouble, "")
            name = runs.key(
                benchmark=benchmark.name,
                revision=benchmark.revision,
                question_id=question.id,
                prompt=text,
                pixels=pixels,
                backbone=identity,
                replicate=condition.replicate,
            )
            share = retrieval.recall(question, (record.id for record in records))
            line = dict(
                key=name,
                question_id=question.id,
                kind=question.kind,
                subtype=question.subtype,
                cluster=question.memory.id,
                condition=condition.name,
                replicate=condition.replicate,
                k=k,
                delivered=[record.id for record in records],
                gold=list(question.gold),
                expected=question.answer,
                needs_pixels="pixels" in question.needs,
                guess=round(question.guess, 6),
                recall=None if share != share else round(share, 6),
                prompt=text,
                pixels=pixels,
            )
            yield Plan(question, condition, prompt, trouble, line)


def run(
    experiment: str,
    *,
    benchmark: str,
    backbone: Backbone,
    conditions: Sequence[str] | None = None,
    limit: int | None = None,
    k: int | None = None,
    seed: int = 0,
    outputs: Path | None = None,
    fresh: bool = False,
    say: Callable[[str], None] = print,
) -> int:
    """Answer what is missing of an experiment and keep it; returns how many prompts the backbone was given.

    outputs: the folder that holds <benchmark>/<backbone>/ (default: data/outputs). fresh: ask again for all. Answers
    already there are not asked for again; failed ones are. A prompt that is the same in two arms is asked once.
    """
    arms = chosen(find(experiment), conditions)
    data = benchmarks.load(benchmark)
    k = default_k(benchmark) if k is None else k
    if k < 1 or (limit is not None and limit < 1):
        raise ValueError(f"k={k}, limit={limit}: give 1 or more")
    about = dict(benchmark=data.name, revision=data.revision, backbone=backbone.identity, k=k, seed=seed)
    if retrieval.BY_SIGHT & {data.ranker, *(arm.ranker for arm in arms)}:
        from delivermem import dense

        about["encoder"] = dense.encoder().identity
    root = (outputs or runs.data_dir() / "outputs").resolve() / benchmark / backbone.name
    total, done, asked, clock = len(data.questions[:limit]) * len(arms), 0, 0, _Clock(say)
    with runs.Folder(root) as folder:
        folder.check(about)
        for arm in arms:
            runs.mend(root / f"{arm.name}.jsonl")
        held = {} if fresh else kept(root, arms)
        folder.write_manifest(about, asked=False)  # what is killed says what it is
        everything = plan(data, arms, backbone.identity, k=k, seed=seed, limit=limit)
        for chunk in _chunks(everything, CHUNK):
            todo = [p for p in chunk if (p.condition.name, p.line["key"]) not in held]
            for p, answer in _answered(todo, backbone):
                folder.append(finished(p, answer))
            for p in chunk:
                old = held.get((p.condition.name, p.line["key"]))
                if old is not None and (again := rejudged(p, old)) != old:
                    folder.append(again)
            asked += len({p.line["key"] for p in todo if p.prompt is not None})
            done += len(chunk)
            clock.tick(done, total, asked)
        for arm in arms:
            folder.settle(arm.name, [question.id for question in data.questions])
        folder.write_manifest(about, asked=bool(asked))
    say(
        f"{root.name} on {benchmark}: {total} answers, {asked} distinct prompts asked, in {clock.minutes:.1f} min"
    )
    return asked


def default_k(benchmark: str) -> int:
    """Records delivered per question of a benchmark, where nothing else is said."""
    return DEFAULT_K.get(benchmark, 10)


def kept(root: Path, arms: Sequence[Condition]) -> dict[tuple[str, str], dict[str, Any]]:
    """(condition, key) -> line of every answer at hand that need not be asked for again."""
    lines = (line for arm in arms for line in runs.read(root / f"{arm.name}.jsonl"))
    return {(line["condition"], line["key"]): line for line in lines if line["status"] != "failed"}


def _answered(todo: Sequence[Plan], backbone: Backbone) -> Iterator[tuple[Plan, Answer]]:
    """Each plan with its answer; plans of one key share one call."""
    groups: dict[str, list[Plan]] = {}
    for p in todo:
        groups.setdefault(p.line["key"], []).append(p)
    first = [group[0] for group in groups.values() if group[0].prompt is not None]
    for group in groups.values():
        if group[0].prompt is None:
            failed = group[0].trouble.startswith("error: ")
            answer = Answer("", "failed" if failed else "not_applicable", group[0].trouble)
            yield from ((p, answer) for p in group)
    if first:
        for i, answer in backbone.answer([p.prompt for p in first if p.prompt is not None]):
            yield from ((p, answer) for p in groups[first[i].line["key"]])


def rejudged(p: Plan, line: Mapping[str, Any]) -> dict[str, Any]:
    """A kept line under the rules of today: the answer is the old one, the verdict may not be."""
    answer = Answer(
        text=line["answer"],
        status=line["status"],
        finish=line["finish"],
        **{name: line[name] for name in ("text_tokens", "image_tokens", "images", "seconds")},
    )
    return finished(p, answer)


def finished(p: Plan, answer: Answer) -> dict[str, Any]:
    """The line that is kept of an answer: the plan's facts, the answer, the verdict."""
    verdict = judges.judge(p.question, answer, p.prompt or Prompt("", "", (), ""))
    line = p.line | dict(
        answer=answer.text,
        status=answer.status,
        finish=answer.finish,
        verdict=verdict.state,
        rule=verdict.rule,
        refused=answer.status == "ok" and judges.is_refusal(answer.text),
        text_tokens=answer.text_tokens,
        image_tokens=answer.image_tokens,
        images=answer.images,
        seconds=answer.seconds,
    )
    return {name: line[name] for name in runs.FIELDS}


def _chunks(plans: Iterator[Plan], size: int) -> Iterator[list[Plan]]:
    chunk: list[Plan] = []
    for p in plans:
        chunk.append(p)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class _Clock:
    """Plain-text progress: a line every ten seconds, with an estimate of the time left."""

    def __init__(self, say: Callable[[str], None], every: float = 10.0):
        self.say, self.every, self.started = say, every, time.monotonic()
        self.last = self.started

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.started) / 60

    def tick(self, done: int, total: int, asked: int) -> None:
        now = time.monotonic()
        if now - self.last >= self.every and done:
            self.last = now
            left = (now - self.started) / done * (total - done) / 60
            self.say(f"{done} of {total} answers ({asked} prompts asked), about {left:.1f} min left")
