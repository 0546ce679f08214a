"""The embedded benchmarks: mini-memlens, MemLens's five types of question over procedural conversations, and
mini-dmv, DMV-Bench's recall of products by a small cue over procedural shopping chains.

Deterministic from a seed and named by a content hash. Their scenes and frames are `reserved`: none occurs in training,
and some show pairs of colour and object that training never shows.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from delivermem.benchmarks import Benchmark, asking, shop, world
from delivermem.benchmarks.storefront import Storefront
from delivermem.pictures import content_hash, load
from delivermem.records import REFUSAL, Memory, Question, Record, format_time

CONVERSATIONS = 64
ANSWERABLE = 7
"""Answerable questions to a conversation; one more asks for something it does not hold."""
LEAST_MESSAGES = 40
PICK_ONE_GUESS = 0.2
"""Chance of naming the right one of K delivered items blindly: an upper bound for any K of 5 or more."""
CHAINS = {5: (40, 15), 10: (40, 15), 15: (40, 15), 50: (12, 49)}
"""Sessions of a chain: how many chains, and how many probes each."""
ERRANDS = (10, 5)
"""Sessions of a chain, and how many of its probes are errands; the chains together have one at every reach."""
_ABSENT = ("colour", "which", "when_photo", "bought", "place", "latest_place", "when_topic", "count")


def memlens(seed: int = 0, *, times: float = 1) -> Benchmark:
    """The benchmark: 64 conversations of 40 and more messages, 448 answerable questions, 64 refusals (seed 0).

    times: how many times as many sessions; as in MemLens, questions and evidence are the same at every length, and
    sessions that answer nothing lie between.
    """
    if times < 1:
        raise ValueError(f"times={times}: a conversation can't be shortened; give 1 or more")
    asked = [list(_conversation(seed, n)) for n in range(CONVERSATIONS)]
    if times > 1:
        asked = [_longer(own, times, np.random.default_rng([seed, n, 1])) for n, own in enumerate(asked)]
    questions = _with_guesses([question for own in asked for question in own])
    name = "mini-memlens" if times == 1 else f"mini-memlens-{times:g}x"
    return Benchmark(name, _revision(questions), tuple(questions))


def _longer(questions: list[Question], times: float, rng: np.random.Generator) -> list[Question]:
    """The questions to one conversation over a memory with more sessions, none of which touches an answer: they speak of
    other topics and things, and show nothing that is named in a question."""
    memory = questions[0].memory
    asked = {word for q in questions for word in re.findall(r"[a-z]+", q.text)}
    taken = asked | {word for record in memory for word in re.findall(r"[a-z]+", record.text)}
    first = {record.session: record.time for record in memory}
    start, end = min(filter(None, first.values())), max(filter(None, first.values()))
    extra = world.filler(
        rng,
        round(len(first) * times) - len(first),
        topics=[topic for topic in world.TOPICS if topic not in taken],
        kept=[thing for thing in world.KEPT if thing not in taken],
        wanted=lambda scene: not asked & {thing.name for thing in scene},
    )
    records = list(memory)
    for number, said in enumerate(extra):
        clock = start + (end - start) * float(rng.random())
        clock = clock.replace(
            hour=int(rng.integers(7, 21)), minute=int(rng.integers(60)), second=0, microsecond=0
        )
        for place, fields in enumerate(said):
            seed = int(rng.integers(2**31))
            turn = world.Turn(
                number, place, clock, fields.pop("role", "user"), fields.pop("said"), seed=seed, **fields
            )
            own = replace(turn.record(), id=f"f{turn.id[1:]}", session=f"f{number:02d}")
            shown = tuple(replace(picture, id=f"f{picture.id[1:]}") for picture in own.pictures)
            records.append(replace(own, pictures=shown))
    order = sorted(
        records, key=lambda record: record.time or start
    )  # stable: a session's turns stay together
    longer = Memory(memory.id, tuple(order))
    return [replace(question, memory=longer) for question in questions]


def _conversation(seed: int, number: int) -> Iterator[Question]:
    rng = np.random.default_rng([seed, number])
    while True:
        turns = world.conversation(rng, for_benchmark=True)
        asks = _asks(rng, turns, number)
        if len(turns) >= LEAST_MESSAGES and len(asks) == ANSWERABLE + 1:
            break
    memory = Memory(f"mini-{number:03d}", tuple(turn.record() for turn in turns))
    asked_at = turns[-1].time + timedelta(days=int(rng.integers(1, 30)), minutes=int(rng.integers(0, 600)))
    for i, asked in enumerate(asks):
        sort = asking.SORTS[asked.subtype]
        yield Question(
            id=f"q{number:03d}-{i}",
            text=asked.text,
            answer=REFUSAL if asked.refusal else asked.answer,
            kind="answer_refusal" if asked.refusal else sort.kind,
            memory=memory,
            subtype=asked.subtype,
            time=asked_at,
            gold=tuple(turns[j].id for j in sorted(asked.gold)),
            needs=sort.needs,
            answer_is_record=asked.subtype == "which" and not asked.refusal,
        )


def catalogue(products: Sequence[shop.Product]) -> dict[str, list[dict[str, Any]]]:
    """A shop as DMV-Bench's `seed_v2.json` lists its own: categories, collections (a category in one tone), variants."""
    places = sorted(
        {(p.category, p.tone) for p in products}, key=lambda at: (shop.CATEGORIES.index(at[0]), at[1])
    )
    number: Counter[tuple[str, int]] = Counter()
    variants = []
    for p in products:
        path = f"/images_v2/{p.category}/tone-{p.tone}/{number[p.category, p.tone]:02d}.png"
        number[p.category, p.tone] += 1
        variants.append(
            dict(
                id=f"var_{p.code}", collectionId=f"col_{p.category}_{p.tone}", urlHash=p.code, primaryImage=path,
                _cue_object=p.cue[1], _cue_color=p.cue[0],
            )
        )  # fmt: skip
    return dict(
        categories=[dict(id=f"cat_{name}", slug=name, sortOrder=i) for i, name in enumerate(shop.CATEGORIES)],
        collections=[
            dict(
                id=f"col_{name}_{tone}", slug=f"{name}-tone-{tone}", categoryId=f"cat_{name}", displayOrder=i
            )
            for i, (name, tone) in enumerate(places)
        ],
        variants=variants,
    )


def products(seed: int = 0) -> tuple[shop.Product, ...]:
    """The embedded shop's catalogue, which chains of every length share."""
    return shop.catalogue(np.random.default_rng([seed, 0]), for_benchmark=True)


def errands(seed: int = 0) -> Benchmark:
    """An agent's errands: of each chain of `dmv` some probes, which begin at another reach in every chain."""
    sessions, wanted = ERRANDS
    whole = dmv(sessions, seed)
    questions: list[Question] = []
    for number, memory in enumerate(whole.memories):
        own = [question for question in whole.questions if question.memory is memory]
        questions += [own[(number * wanted + i) % len(own)] for i in range(wanted)]
    name = f"mini-errand-{sessions}"
    return replace(whole, name=name, revision=_revision(questions), questions=tuple(questions))


def dmv(sessions: int, seed: int = 0) -> Benchmark:
    """Chains of `sessions` sessions in one shop, and probes for products seen at every reach, in DMV-Bench's layout.

    A chain is one memory, probed after its last session; reach is how many sessions lie between. Every probed product
    is visited once; where products are few, a reach has several. Source: DMV-Bench (arXiv 2606.27499), its task spine.
    """
    stock = products(seed)
    chains, probes = CHAINS[sessions]
    questions: list[Question] = []
    for number in range(chains):
        rng = np.random.default_rng([seed, sessions, number])
        questions += _probes(rng, shop.chain(rng, stock, sessions), f"c{number:02d}", probes)
    listed = catalogue(stock)
    photo = {row["primaryImage"]: product for row, product in zip(listed["variants"], stock, strict=True)}
    return Benchmark(
        f"mini-dmv-{sessions}",
        _revision(questions),
        tuple(questions),
        layout="images-last",
        ranker="tiles",
        shop=Storefront(listed, lambda path: photo[path].photo),
    )


def _probes(rng: np.random.Generator, visits: list[shop.Visit], name: str, number: int) -> Iterator[Question]:
    memory = Memory(f"mini-dmv-{name}", tuple(visit.record() for visit in visits))
    last = visits[-1].session
    asked_at = visits[-1].time + timedelta(minutes=int(rng.integers(10, 60)))
    left = {
        session: [v for v in visits if v.session == session]
        for session in range(last)  # the session that has just ended is no recall
    }
    for i in range(number):
        reach = 1 + i % last
        there = left[last - reach]
        if not there:
            break
        visit = there.pop(int(rng.integers(len(there))))
        yield Question(
            id=f"{name}-s{last}_r{reach}_p{i // last:02d}",
            text=shop.probe(*visit.product.cue[:2]),
            answer=visit.product.code,
            kind="recall",
            memory=memory,
            subtype=f"reach {reach}",
            time=asked_at,
            gold=(visit.id,),
            needs=frozenset({"pixels", "identity"}),
            guess=PICK_ONE_GUESS,
        )


def _asks(rng: np.random.Generator, turns: list[world.Turn], number: int) -> list[asking.Ask]:
    """The conversation's share of every sort of question in turn, and one refusal; short when a sort is not to be had."""
    names = list(asking.SORTS)
    wanted = [(names[(number * ANSWERABLE + i) % len(names)], False) for i in range(ANSWERABLE)]
    wanted.append((_ABSENT[number % len(_ABSENT)], True))
    made: dict[str, asking.Ask] = {}
    for subtype, absent in wanted:
        for _ in range(20):
            asked = asking.ask(rng, turns, subtype, absent=absent)
            if asked is not None and asked.text not in made:
                made[asked.text] = asked
                break
    return list(made.values())


def _with_guesses(questions: list[Question]) -> list[Question]:
    """Each question with the chance of a right blind guess: the most common answer of its sort, or one in five items,
    or one of the two things it names."""
    answers: dict[str, Counter[str]] = defaultdict(Counter)
    for question in questions:
        answers[question.subtype][question.answer] += not question.refusal

    def guess(question: Question) -> float:
        if question.refusal:
            return 0.0
        if question.subtype in ("first", "more"):
            return 0.5
        if question.subtype in ("which", "when_photo", "when_topic"):
            return PICK_ONE_GUESS
        counts = answers[question.subtype]
        return max(counts.values()) / counts.total()

    return [replace(question, guess=guess(question)) for question in questions]


def _revision(questions: list[Question]) -> str:
    """SHA-256 over the MemLens layout of all questions and the pixels of all pictures, first 16 hex digits."""
    digest = hashlib.sha256(json.dumps([_layout(q) for q in questions], sort_keys=True).encode())
    memories = {q.memory.id: q.memory for q in questions}
    for memory in memories.values():
        for record in memory:
            for picture in record.pictures:
                digest.update(content_hash(load(picture)).encode())
    return digest.hexdigest()[:16]


def write_memlens(benchmark: Benchmark, folder: Path) -> Path:
    """Write a benchmark as MemLens publishes its own: `dataset.json`, and `release_images/` beside it."""
    images = folder / "release_images" / "needle_images"
    images.mkdir(parents=True, exist_ok=True)
    for memory in benchmark.memories:
        for record in memory:
            for picture in record.pictures:
                load(picture).save(images / _file(memory, picture.id), format="PNG")
    path = folder / "dataset.json"
    path.write_text(json.dumps([_layout(q) for q in benchmark.questions], indent=1) + "\n")
    return path


def _file(memory: Memory, picture_id: str) -> str:
    return f"{memory.id}-{picture_id.replace(':', '-')}"


def _layout(question: Question) -> dict[str, Any]:
    """One question as a MemLens record: its sessions, their dates, and the turns that hold evidence marked."""
    sessions: dict[str, list[Record]] = defaultdict(list)
    for record in question.memory:
        sessions[record.session].append(record)
    gold = set(question.gold)

    def turn(record: Record) -> dict[str, Any]:
        images = [
            dict(file=f"needle_images/{_file(question.memory, p.id)}", image_url="", blip_caption=p.caption)
            for p in record.pictures
        ]
        return dict(role=record.role, content=record.text, images=images, has_answer=record.id in gold)

    first = [records[0] for records in sessions.values()]
    return dict(
        question_id=question.id,
        question_type=question.kind,
        question_subtype=question.subtype,
        question=question.text,
        answer="NOT_MENTIONED" if question.refusal else question.answer,
        question_date=format_time(question.time) if question.time else "",
        haystack_dates=[format_time(record.time) if record.time else "" for record in first],
        haystack_session_ids=list(sessions),
        haystack_sessions=[[turn(record) for record in records] for records in sessions.values()],
        answer_session_ids=sorted({question.memory[i].session for i in gold}),
    )
