"""What an arm retrieves for a question, before anything is delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from delivermem import agent, benchmarks, retrieval
from delivermem.benchmarks import released
from delivermem.experiments import Condition
from delivermem.records import Question, Record


def records_of(
    benchmark: benchmarks.Benchmark,
    question: Question,
    condition: Condition,
    k: int,
    seed: int,
    ids: Sequence[str] | None,
) -> tuple[Record, ...]:
    """The records of an arm, best first; `ids` where they are known already. Of an errand, those of its first step."""
    if condition.asks == "everything":
        return tuple(question.memory)
    if ids is not None:
        return tuple(question.memory[name] for name in ids)
    return ranked(benchmark, question, condition, k, seed, agent.HOME if condition.asks == "errand" else "")


def ranked(
    benchmark: benchmarks.Benchmark, question: Question, condition: Condition, k: int, seed: int, url: str
) -> tuple[Record, ...]:
    """The best records for a question's words, and for where an agent is."""
    text = question.query or question.text
    asked = replace(question, text=agent.query(text, url) if url else text)
    return retrieval.rank(
        condition.ranker,
        asked,
        k,
        seed=seed,
        beside_gold=benchmark.ranker,
        encoder=benchmark.encoder,
        text_encoder=benchmark.text_encoder,
    )


def words_of(benchmark: benchmarks.Benchmark) -> released.Words | None:
    """The words in which a model is asked that reads everything: on MemLens the released evaluator's, else our own. Raises
    released.CheckoutError where its checkout is not there."""
    return released.words() if benchmark.judge == "memlens" else None
