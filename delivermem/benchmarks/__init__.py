"""Benchmarks by name. A benchmark is questions to memories, with a revision that names their exact content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

from delivermem.records import Layout, Memory, Question, repeated

if TYPE_CHECKING:
    from delivermem.benchmarks.storefront import Storefront


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A named set of questions; `revision` is a content hash (embedded sets) or a pinned commit (hub sets).

    `ranker` is what its memories are retrieved with, where retrieval is not itself the question. `shop` is where an agent
    can go, in a benchmark of errands.
    """

    name: str
    revision: str
    questions: tuple[Question, ...]
    layout: Layout = "interleaved"
    ranker: str = "bm25"
    shop: Storefront | None = None

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


def _mini_memlens(times: float) -> Benchmark:
    from delivermem.benchmarks import mini

    return mini.memlens(times=times)


def _mini_errands() -> Benchmark:
    from delivermem.benchmarks import mini

    return mini.errands()


def _mini_dmv(sessions: int) -> Benchmark:
    from delivermem.benchmarks import mini

    return mini.dmv(sessions)


BENCHMARKS: dict[str, Callable[[], Benchmark]] = {
    "mini-memlens": partial(_mini_memlens, 1),
    **{f"mini-memlens-{times}x": partial(_mini_memlens, times) for times in (2, 4, 7.4)},
    **{f"mini-dmv-{sessions}": partial(_mini_dmv, sessions) for sessions in (5, 10, 15, 50)},
    "mini-errand-10": _mini_errands,
}


@cache
def load(name: str) -> Benchmark:
    """The benchmark of that name; an unknown name is a ValueError that lists the known ones."""
    if name not in BENCHMARKS:
        raise ValueError(f"benchmark {name!r} is unknown; choose one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]()
