"""The named grids of conditions, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from delivermem import controls, retrieval
from delivermem.backbones import MAX_NEW_TOKENS
from delivermem.delivery import DELIVERMEM, Decisions

TEXT_ONLY = Decisions(modality="text")
SESSIONS = (5, 10, 15, 50)
"""Lengths of DMV-Bench's chains, in sessions."""
DEFAULT_K = {f"{shop}-{sessions}": 5 for shop in ("mini-dmv", "dmv") for sessions in SESSIONS} | {
    "mini-errand-10": 5
}
"""Records delivered per question where nothing else is said: the paper's 5 on DMV-Bench, and its 10 elsewhere."""
LENGTHS = {"mini-memlens": 1.0, "mini-memlens-2x": 2.0, "mini-memlens-4x": 4.0, "mini-memlens-7.4x": 7.4} | {
    f"memlens-{32 * times}k{which}": float(times) for which in ("", "-all") for times in (1, 2, 4, 8)
}
"""Benchmarks that differ in the length of their conversations alone: how many times as long, in sessions (embedded) or in
MemLens's nominal tokens."""

LONGEST = {"memlens-": 128, "dmv-": 512}
"""Longest reply in tokens on the published benchmarks: the value of MemLens's README for direct answers (its paper says
2,048, which a direct answer never needs; a reply that is cut off is unjudged, not wrong), and DMV-Bench's."""

IMAGE_TOKENS = {"memlens-": 625, "dmv-": 1280}
"""Most tokens of one picture on the published benchmarks: of 800 x 800 pixels in squares of 32, to which MemLens's evaluator
shrinks the longer side; and DMV-Bench's own limit, in squares of 28."""


@dataclass(frozen=True)
class Condition:
    """One arm: which records are retrieved, how they are delivered, and what a control then changes.

    k: how many, where it is not the run's own number. asks: a question to what is delivered; a question to all of memory
    as the benchmark asks a model without one; an agent's errand, which retrieves at every step.
    """

    name: str
    ranker: str
    decisions: Decisions = DELIVERMEM
    control: str = "correct"
    replicate: int = 0
    k: int | None = None
    asks: Literal["delivered", "everything", "errand"] = "delivered"


@dataclass(frozen=True)
class Experiment:
    """A grid, the embedded model that was trained for what it asks, and how long a reply may be, in tokens."""

    name: str
    conditions: tuple[Condition, ...]
    backbone: str = "tiny-qwen3-vl"
    max_new_tokens: int = MAX_NEW_TOKENS


SECOND = "tiny-qwen3-vl-2"
"""The embedded model that also learnt an agent's steps and whole conversations."""
TOP = {k: Condition(f"top-k{k}", "bm25", k=k) for k in (1, 2, 5, 10, 20)}
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
    "errand": Experiment(
        "errand",
        (
            Condition("errand-stamp", "tiles", asks="errand"),
            Condition("errand-constant", "tiles", control="constant-tag", asks="errand"),
            Condition("errand-none", "tiles", Decisions(identity="none"), asks="errand"),
        ),
        backbone=SECOND,
        max_new_tokens=40,
    ),
    "cost": Experiment(
        "cost", (TOP[10], Condition("full-context", "everything", asks="everything")), backbone=SECOND
    ),
    "frontier": Experiment("frontier", tuple(TOP.values()), backbone=SECOND),
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


def default_k(benchmark: str) -> int:
    """Records delivered per question of a benchmark, where nothing else is said."""
    return DEFAULT_K.get(benchmark, 10)


def longest(experiment: str, benchmark: str) -> int:
    """Most tokens of a reply: the benchmark's own setting where it is a published one, else the experiment's."""
    return next(
        (n for prefix, n in LONGEST.items() if benchmark.startswith(prefix)), find(experiment).max_new_tokens
    )


def image_tokens(benchmark: str) -> int | None:
    """Most tokens of one picture; None where a benchmark sets no limit."""
    return next((n for prefix, n in IMAGE_TOKENS.items() if benchmark.startswith(prefix)), None)


def by_sight(arms: Sequence[Condition], ranker: str) -> bool:
    """Whether any of those conditions, or the benchmark's own ranker, retrieves by an encoder's vectors."""
    return bool(retrieval.BY_SIGHT & {ranker, *(arm.ranker for arm in arms)})
