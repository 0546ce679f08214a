"""The one runner: what a grid asks of a benchmark, planned, answered where an answer is missing, and kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from delivermem import agent, benchmarks, controls, judges, retrieval, runs
from delivermem.backbones import Backbone
from delivermem.benchmarks import memlens
from delivermem.benchmarks.storefront import Storefront
from delivermem.delivery import deliver
from delivermem.experiments import Condition, chosen, default_k, find
from delivermem.pictures import PictureError
from delivermem.records import Answer, Layout, Prompt, Question, Record

CHUNK = 64
"""Prompts drawn at a time: what is held in memory."""


@dataclass(frozen=True, eq=False)
class Plan:
    """One answer to be had: the question, the arm, the prompt (or why there is none), and the answer's key; of an errand
    the first step's, and the walk that begins with it."""

    question: Question
    condition: Condition
    prompt: Prompt | None
    trouble: str
    line: dict[str, Any]
    walk: agent.Walk | None = None


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
            wanted = condition.k or k
            records = _records(
                benchmark, question, condition, wanted, seed, known.get((condition.name, question.id))
            )
            prompt, trouble, walk = None, f"{condition.control} can't be had here", None
            try:
                if condition.asks == "errand":
                    walk = errand(benchmark, question, condition, wanted, seed, first=records)
                    prompt = walk.prompt(shop_of(benchmark))
                elif condition.asks == "everything":
                    prompt = memlens.full_context(question) if not question.answer_is_record else None
                    trouble = "no tag names a memory where everything is read"
                else:
                    prompt = delivered_by(benchmark, question, condition, records, seed, benchmark.layout)
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
                k=wanted if condition.asks != "everything" else len(records),
                delivered=[record.id for record in records] if condition.asks != "everything" else [],
                gold=list(question.gold),
                expected=question.answer,
                needs_pixels="pixels" in question.needs,
                guess=round(question.guess, 6),
                recall=None if share != share else round(share, 6),
                prompt=text,
                pixels=pixels,
            )
            yield Plan(question, condition, prompt, trouble, line, walk)


def _records(
    benchmark: benchmarks.Benchmark,
    question: Question,
    condition: Condition,
    k: int,
    seed: int,
    ids: Sequence[str] | None,
) -> tuple[Record, ...]:
    if condition.asks == "everything":
        return tuple(question.memory)
    if ids is not None:
        return tuple(question.memory[name] for name in ids)
    if condition.asks == "errand":
        question = replace(question, text=agent.query(question.text, agent.HOME))
    return retrieval.rank(condition.ranker, question, k, seed=seed, beside_gold=benchmark.ranker)


def delivered_by(
    benchmark: benchmarks.Benchmark,
    question: Question,
    condition: Condition,
    records: Sequence[Record],
    seed: int,
    layout: Layout,
) -> Prompt | None:
    """What an arm makes of ranked records; None where its control can't be had."""
    whole = deliver(records, question, condition.decisions, layout=layout)
    return controls.apply(whole, condition.control, question=question, others=benchmark.questions, seed=seed)


def errand(
    benchmark: benchmarks.Benchmark,
    question: Question,
    condition: Condition,
    k: int,
    seed: int = 0,
    *,
    first: Sequence[Record] | None = None,
    steps: Sequence[Mapping[str, Any]] = (),
) -> agent.Walk:
    """A probe's walk at its beginning. first: the records delivered at the first step, `steps`: kept steps, whose records
    are delivered again; both in the place of ranking anew."""
    known = {agent.HOME: first} if first is not None else {}
    known |= {step["url"]: [question.memory[name] for name in step["delivered"]] for step in steps}

    def at(url: str) -> Prompt | None:
        if url not in known:
            asked = replace(question, text=agent.query(question.text, url))
            known[url] = retrieval.rank(condition.ranker, asked, k, seed=seed, beside_gold=benchmark.ranker)
        return delivered_by(benchmark, question, condition, known[url] or (), seed, "text-first")

    return agent.Walk(shop_of(benchmark).cue(question.answer), at)


def shop_of(benchmark: benchmarks.Benchmark) -> Storefront:
    """The benchmark's shop; a benchmark without one is a ValueError."""
    if benchmark.shop is None:
        raise ValueError(f"benchmark {benchmark.name!r} has no shop to run errands in; take one of mini-dmv")
    return benchmark.shop


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
    if any(arm.asks == "errand" for arm in arms):
        shop_of(data)
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
            for p, answer in chain(_answered(todo, backbone), _walked(todo, backbone, data)):
                folder.append(finished(p, answer))
            for p in chunk:
                old = held.get((p.condition.name, p.line["key"]))
                if old is not None and (again := rejudged(p, old)) != old:
                    folder.append(again)
            asked += len({name for p in todo if p.prompt is not None for name in _prompts(p)})
            done += len(chunk)
            clock.tick(done, total, asked)
        for arm in arms:
            folder.settle(arm.name, [question.id for question in data.questions])
        folder.write_manifest(about, asked=bool(asked))
    say(
        f"{root.name} on {benchmark}: {total} answers, {asked} distinct prompts asked, in {clock.minutes:.1f} min"
    )
    return asked


def kept(root: Path, arms: Sequence[Condition]) -> dict[tuple[str, str], dict[str, Any]]:
    """(condition, key) -> line of every answer at hand that need not be asked for again."""
    lines = (line for arm in arms for line in runs.read(root / f"{arm.name}.jsonl"))
    return {(line["condition"], line["key"]): line for line in lines if line["status"] != "failed"}


def _answered(todo: Sequence[Plan], backbone: Backbone) -> Iterator[tuple[Plan, Answer]]:
    """Each plan with its answer; plans of one key share one call."""
    groups: dict[str, list[Plan]] = {}
    for p in todo:
        if p.walk is None or p.prompt is None:
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


def _walked(
    todo: Sequence[Plan], backbone: Backbone, data: benchmarks.Benchmark
) -> Iterator[tuple[Plan, Answer]]:
    """Each errand with its answer, as soon as it is over; its steps are in the plan's walk."""
    of = {id(p.walk): p for p in todo if p.walk is not None and p.prompt is not None}
    walks = [p.walk for p in of.values() if p.walk is not None]
    for done in agent.walk(walks, backbone, shop_of(data)) if walks else ():
        yield of[id(done)], done.answer


def _prompts(p: Plan) -> list[str]:
    """What names each prompt that the backbone was given for a plan."""
    if p.walk is None:
        return [p.line["key"]]
    return [step.prompt + step.pixels for step in p.walk.steps if step.prompt]


def rejudged(p: Plan, line: Mapping[str, Any]) -> dict[str, Any]:
    """A kept line under the rules of today: the answer is the old one, the verdict may not be."""
    answer = Answer(
        text=line["answer"],
        status=line["status"],
        finish=line["finish"],
        **{name: line[name] for name in ("text_tokens", "image_tokens", "images", "seconds")},
    )
    return finished(p, answer) | {
        name: line[name] for name in ("steps", "delivered", "recall") if name in line
    }


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
    if p.walk is not None and p.walk.steps:
        line["steps"] = p.walk.trace
        line["delivered"] = p.walk.steps[-1].delivered
        share = retrieval.recall(p.question, line["delivered"])
        line["recall"] = None if share != share else round(share, 6)
    return {name: line[name] for name in (*runs.FIELDS, runs.STEPS) if name in line}


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
