"""The one runner: what a grid asks of a benchmark, planned, answered where an answer is missing, and kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import Any

from delivermem import agent, benchmarks, controls, judges, retrieval, runs, verdicts
from delivermem.arms import ranked, records_of, words_of
from delivermem.backbones import Backbone
from delivermem.benchmarks import memlens
from delivermem.benchmarks.storefront import Storefront
from delivermem.delivery import deliver
from delivermem.experiments import Condition, by_sight, chosen, default_k, find
from delivermem.pictures import PictureError
from delivermem.progress import Clock
from delivermem.records import Answer, Layout, Prompt, Question, Record, Verdict

CHUNK = 64
"""Errands on their way at a time: what is held in memory."""


@dataclass(frozen=True, eq=False)
class Plan:
    """One answer to be had: the question, the arm, the prompt (or why there is none), and the answer's key; of an errand
    the first step's, and the walk that begins with it. judge: what gives its verdict."""

    question: Question
    condition: Condition
    prompt: Prompt | None
    trouble: str
    line: dict[str, Any]
    walk: agent.Walk | None = None
    judge: Callable[[Question, Answer, Prompt], Verdict] = judges.judge


def plan(
    benchmark: benchmarks.Benchmark,
    conditions: Sequence[Condition],
    identity: Mapping[str, Any],
    *,
    k: int,
    seed: int = 0,
    limit: int | None = None,
    delivered: Mapping[tuple[str, str], Sequence[str]] | None = None,
    folder: Path | None = None,
) -> Iterator[Plan]:
    """Every answer of the grid in turn, conditions interleaved, so that a stop leaves the arms equally far.

    delivered: (condition, question id) -> ids of the records that were delivered there, in order; nothing is ranked for
    those, as an encoder's last digits, and with them a near tie, differ between machines. folder: of kept verdicts.
    """
    known, judge = delivered or {}, verdicts.judging(benchmark, folder)
    words = words_of(benchmark) if any(c.asks == "everything" for c in conditions) else None
    for question in benchmark.questions[:limit]:
        for condition in conditions:
            wanted = condition.k or k
            records = records_of(
                benchmark, question, condition, wanted, seed, known.get((condition.name, question.id))
            )
            prompt, trouble, walk = None, f"{condition.control} can't be had here", None
            try:
                if condition.asks == "errand":
                    walk = errand(benchmark, question, condition, wanted, seed, first=records)
                    prompt = walk.prompt(shop_of(benchmark))
                elif condition.asks == "everything":
                    whole = not question.answer_is_record
                    prompt = memlens.full_context(question, words) if whole else None
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
            yield Plan(question, condition, prompt, trouble, line, walk, judge)


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
            known[url] = ranked(benchmark, question, condition, k, seed, url)
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
    if any(arm.asks == "everything" for arm in arms):
        words_of(data)
    for note in data.notes:
        say(f"note: {note}")
    about = dict(benchmark=data.name, revision=data.revision, backbone=backbone.identity, k=k, seed=seed)
    if by_sight(arms, data.ranker):
        from delivermem import dense

        about["encoder"] = dense.stated(
            {data.ranker, *(a.ranker for a in arms)}, data.encoder, data.text_encoder
        )
    root = (outputs or runs.data_dir() / "outputs").resolve() / benchmark / backbone.name
    total, clock, asked = len(data.questions[:limit]) * len(arms), Clock(say), set[str]()
    planned = partial(plan, data, identity=backbone.identity, k=k, seed=seed, limit=limit, folder=root)
    errands = [arm for arm in arms if arm.asks == "errand"]
    others = [arm for arm in arms if arm.asks != "errand"]
    with runs.Folder(root) as folder:
        folder.check(about)
        for arm in arms:
            runs.mend(root / f"{arm.name}.jsonl")
        held = {} if fresh else kept(root, arms)
        folder.write_manifest(about, asked=False)  # what is killed says what it is
        lines = chain(
            _answered(planned(others), held, backbone, asked),
            _walked(planned(errands), held, backbone, data, asked),
        )
        for done, line in enumerate(lines, 1):
            if line is not None:
                folder.append(line)
            clock.tick(done, total, f"{len(asked)} prompts asked")
        for arm in arms:
            folder.settle(arm.name, [question.id for question in data.questions])
        folder.write_manifest(about, asked=bool(asked))
    say(
        f"{root.name} on {benchmark}: {total} answers, {len(asked)} distinct prompts asked, in {clock.minutes:.1f} min"
    )
    return len(asked)


def kept(root: Path, arms: Sequence[Condition]) -> dict[tuple[str, str], dict[str, Any]]:
    """(condition, key) -> line of every answer at hand that need not be asked for again."""
    lines = (line for arm in arms for line in runs.read(root / f"{arm.name}.jsonl"))
    return {(line["condition"], line["key"]): line for line in lines if line["status"] != "failed"}


def _settled(p: Plan, held: Mapping[tuple[str, str], dict[str, Any]]) -> tuple[bool, dict[str, Any] | None]:
    """Whether a plan needs no call, and the line to keep of it: none where the one at hand stands."""
    old = held.get((p.condition.name, p.line["key"]))
    if old is not None:
        again = rejudged(p, old)
        return True, again if again != old else None
    if p.prompt is None:
        failed = p.trouble.startswith("error: ")
        return True, finished(p, Answer("", "failed" if failed else "not_applicable", p.trouble))
    return False, None


def _answered(
    plans: Iterable[Plan], held: Mapping[tuple[str, str], dict[str, Any]], backbone: Backbone, asked: set[str]
) -> Iterator[dict[str, Any] | None]:
    """The line to keep of each plan as it comes. Prompts are made as the backbone takes them, so that few are in memory;
    arms whose prompt to a question is the same share one call. asked: the keys of what was asked, added to."""
    ready: deque[dict[str, Any] | None] = deque()
    waiting: dict[int, list[Plan]] = {}
    number = count()

    def prompts() -> Iterator[Prompt]:
        for _, group in groupby(plans, key=lambda p: p.question.id):
            alike: dict[str, list[Plan]] = {}
            for p in group:
                settled, line = _settled(p, held)
                if settled:
                    ready.append(line)
                else:
                    alike.setdefault(p.line["key"], []).append(p)
            for name, same in alike.items():
                waiting[next(number)] = same
                asked.add(name)
                if same[0].prompt is not None:
                    yield same[0].prompt

    stream = prompts()
    first = next(stream, None)  # a backbone that has nothing to answer is not loaded
    for i, answer in backbone.answer(chain([first], stream)) if first is not None else ():
        while ready:
            yield ready.popleft()
        yield from (finished(p, answer) for p in waiting.pop(i))
    yield from ready


def _walked(
    plans: Iterable[Plan],
    held: Mapping[tuple[str, str], dict[str, Any]],
    backbone: Backbone,
    data: benchmarks.Benchmark,
    asked: set[str],
) -> Iterator[dict[str, Any] | None]:
    """The same for errands, CHUNK on their way at a time; a walk's line comes as soon as it is over."""
    for chunk in _chunks(plans, CHUNK):
        of: dict[int, Plan] = {}
        for p in chunk:
            settled, line = _settled(p, held)
            if settled:
                yield line
            else:
                of[id(p.walk)] = p
        walks = [p.walk for p in of.values() if p.walk is not None]
        for done in agent.walk(walks, backbone, shop_of(data)) if walks else ():
            asked.update(step.prompt + step.pixels for step in done.steps if step.prompt)
            yield finished(of[id(done)], done.answer)


def rejudged(p: Plan, line: Mapping[str, Any]) -> dict[str, Any]:
    """A kept line under the rules of today: the answer is the old one, the verdict may not be."""
    answer = Answer(
        text=line["answer"],
        status=line["status"],
        finish=line["finish"],
        **{name: line[name] for name in ("text_tokens", "image_tokens", "images", "seconds")},
    )
    return finished(p, answer) | {n: line[n] for n in ("steps", "delivered", "recall") if n in line}


def finished(p: Plan, answer: Answer) -> dict[str, Any]:
    """The line that is kept of an answer: the plan's facts, the answer, the verdict."""
    verdict = p.judge(p.question, answer, p.prompt or Prompt("", "", (), ""))
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


def _chunks(plans: Iterable[Plan], size: int) -> Iterator[list[Plan]]:
    left = iter(plans)
    while chunk := list(islice(left, size)):
        yield chunk
