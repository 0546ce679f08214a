"""Benchmarks by name. A benchmark is questions to memories, with a revision that names their exact content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from delivermem.records import Layout, Memory, Question, repeated


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A named set of questions; `revision` is a content hash (embedded sets) or a pinned commit (hub sets).

    `ranker` is what its memories are retrieved with, where retrieval is not itself the question.
    """

    name: str
    revision: str
    questions: tuple[Question, ...]
    layout: Layout = "interleaved"
    ranker: str = "bm25"

    def __post_init__(self) -> None:
        twice = repeated(question.id for question in self.questions)
        if twice is not None:
            raise ValueError(
                f"benchmark {self.name!r}: question id {twice!r} occurs twice; ids must be unique"
            )

    @property
    def memories(self) -> tuple[Memory, ...]:
        """The memories asked about, each once, in the order of their first question."""
        return tuple({question.memory.id: question.memory for question in self.questions}.values())


def _mini_memlens() -> Benchmark:
    from delivermem.benchmarks import mini

    return mini.memlens()


def _mini_dmv(sessions: int) -> Benchmark:
    from delivermem.benchmarks import mini

    return mini.dmv(sessions)


BENCHMARKS: dict[str, Callable[[], Benchmark]] = {
    "mini-memlens": _mini_memlens,
    **{f"mini-dmv-{sessions}": partial(_mini_dmv, sessions) for sessions in (5, 10, 15, 50)},
}


@cache
def load(name: str) -> Benchmark:
    """The benchmark of that name; an unknown name is a ValueError that lists the known ones."""
    if name not in BENCHMARKS:
        raise ValueError(f"benchmark {name!r} is unknown; choose one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]()
