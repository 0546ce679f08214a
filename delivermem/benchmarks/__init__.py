"""Benchmarks by name. A benchmark is questions to memories, with a revision that names their exact content."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from delivermem.records import Layout, Memory, Question, repeated

if TYPE_CHECKING:
    from delivermem.benchmarks.storefront import Storefront


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A named set of questions; `revision` is a content hash (embedded sets) or a pinned commit (hub sets).

    `ranker` is what its memories are retrieved with, where retrieval is not itself the question. `shop` is where an agent
    can go, in a benchmark of errands. `judge`: `exact` match, or `memlens`, whose verdicts a model gives. `encoder`,
    `text_encoder`: what pictures and texts are retrieved by. `notes`: what a report on its answers must say, such as
    pictures that can't be read.
    """

    name: str
    revision: str
    questions: tuple[Question, ...]
    layout: Layout = "interleaved"
    ranker: str = "bm25"
    shop: Storefront | None = None
    judge: Literal["exact", "memlens"] = "exact"
    encoder: str = "tiny-siglip"
    text_encoder: str = ""
    notes: tuple[str, ...] = ()

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


def _memlens(name: str) -> Benchmark:
    from delivermem.benchmarks import memlens_store

    return memlens_store.load(name)


def _dmvbench(name: str) -> Benchmark:
    from delivermem.benchmarks import dmvbench

    return dmvbench.load(name)


BENCHMARKS: dict[str, Callable[[], Benchmark]] = {
    "mini-memlens": partial(_mini_memlens, 1),
    **{f"mini-memlens-{times}x": partial(_mini_memlens, times) for times in (2, 4, 7.4)},
    **{f"mini-dmv-{sessions}": partial(_mini_dmv, sessions) for sessions in (5, 10, 15, 50)},
    "mini-errand-10": _mini_errands,
}
"""Those that are embedded."""
FETCHED: dict[str, Callable[[], Benchmark]] = {
    name: partial(_memlens, name)
    for which in ("", "-all")
    for name in (f"memlens-{length}k{which}" for length in (32, 64, 128, 256))
}
FETCHED |= {f"dmv-{sessions}": partial(_dmvbench, f"dmv-{sessions}") for sessions in (5, 10, 15, 50)}
"""Those whose data `delivermem fetch` brings: the published ones. MemLens's are the 195 questions that agents and the
paper are measured on, and with `-all` all 789."""


def known() -> tuple[str, ...]:
    """The names of all benchmarks."""
    return (*BENCHMARKS, *FETCHED)


@cache
def load(name: str) -> Benchmark:
    """The benchmark of that name; an unknown name is a ValueError that lists the known ones, and so is one whose data is
    not at hand, which names the command that fetches it."""
    if name not in known():
        raise ValueError(f"benchmark {name!r} is unknown; choose one of {', '.join(known())}")
    return (BENCHMARKS | FETCHED)[name]()
