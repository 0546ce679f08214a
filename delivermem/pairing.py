"""Pairing: rows of a table of answers to outcomes per question, and which questions every arm shares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from delivermem.judges import OPEN

if TYPE_CHECKING:
    import pandas as pd

Missing = Literal["refuse", "intersection"]

JUDGED = ("right", "wrong")
COLUMNS = ("question_id", "kind", "cluster", "condition", "status", "verdict", "refused", "recall")


class Scored(NamedTuple):
    """What an answer amounts to: right, wrong, unjudged, failed or not_applicable; whose it is; whether it declines; the
    command that has it judged, where it awaits the benchmark's judge."""

    state: str
    cluster: tuple[str, str]
    refused: bool
    cure: str = ""


def _judged(scored: Scored) -> bool:
    return scored.state in JUDGED


def state_of(status: str, verdict: str) -> str:
    """The verdict of an answer that was had, else its status; ValueError for one that no run writes."""
    if status not in ("ok", "failed", "not_applicable") or verdict not in ("right", "wrong", "unjudged"):
        raise ValueError(f"an answer has status {status!r} and verdict {verdict!r}; see delivermem.records")
    return verdict if status == "ok" else status


def cluster_of(cluster: object, question: str) -> tuple[str, str]:
    """The conversation of a question; the question itself where none is known."""
    unknown = cluster is None or cluster == "" or (isinstance(cluster, float) and math.isnan(cluster))
    return ("question", str(question)) if unknown else ("cluster", str(cluster))


def arm_of(table: pd.DataFrame, condition: str) -> dict[str, Scored]:
    """Question id to outcome under one condition; ValueError where there is none, or a question has several."""
    rows = table[table["condition"] == condition]
    if rows.empty:
        known = ", ".join(sorted(set(table["condition"])))
        raise ValueError(f"no answers under condition {condition!r}; the table has: {known}")
    arm: dict[str, Scored] = {}
    columns = (rows[name] for name in ("question_id", "status", "verdict", "cluster", "refused"))
    cures = awaiting(rows)
    for i, question, status, verdict, cluster, refused in zip(rows.index, *columns, strict=True):
        if question in arm:
            raise ValueError(
                f"question {question!r} has several answers under {condition!r}; "
                "select one benchmark, backbone and replicate"
            )
        state, cure = state_of(status, verdict), cures.get(i, "")
        arm[question] = Scored(state, cluster_of(cluster, question), bool(refused), cure)
    return arm


def awaiting(table: pd.DataFrame) -> dict[Any, str]:
    """Index of every answer that awaits its benchmark's own judge, to the command that has it judged."""
    if "rule" not in table:
        return {}
    rows = table[(table["verdict"] == "unjudged") & table["rule"].isin(OPEN)]
    names = ("benchmark", "backbone")
    who = [rows[name] if name in rows else [name.upper()] * len(rows) for name in names]
    words = (f"delivermem judge {b} --backbone {str(m).partition(' ')[0]}" for b, m in zip(*who, strict=True))
    return dict(zip(rows.index, words, strict=True))


def common(arms: Mapping[str, Mapping[str, Scored]], missing: Missing) -> tuple[list[str], int]:
    """Questions with a judged answer in every arm, sorted, and how many others were asked in some arm. A question that
    a control could not be put for leaves every arm."""
    if missing not in get_args(Missing):
        raise ValueError(f"missing={missing!r} is unknown; choose one of {', '.join(get_args(Missing))}")
    asked = set().union(*arms.values())
    every = asked - {q for arm in arms.values() for q in arm if arm[q].state == "not_applicable"}
    arms = {name: {q: arm[q] for q in every & arm.keys()} for name, arm in arms.items()}
    cure = "finish the run or its judging, or pass missing='intersection'"
    for condition, arm in arms.items() if missing == "refuse" else ():
        open_ones = sorted(q for q in arm if not _judged(arm[q]))
        if open_ones:
            states = " or ".join(sorted({arm[q].state for q in open_ones}))
            what = f"{len(open_ones)} {states} answers (first: {open_ones[0]!r})"
            judging = " and ".join(sorted({arm[q].cure for q in open_ones} - {""}))
            raise ValueError(f"condition {condition!r} has {what}; {f'run: {judging}' if judging else cure}")
        if len(arm) < len(every):
            first = min(every - arm.keys())
            count = len(every) - len(arm)
            raise ValueError(f"condition {condition!r} lacks {count} questions ({first!r}); {cure}")
    common = sorted(q for q in every if all(q in arm and _judged(arm[q]) for arm in arms.values()))
    if not common:
        raise ValueError(f"no question has a judged answer in all of {', '.join(arms)}")
    return common, len(asked) - len(common)


def groups(
    table: pd.DataFrame, by: Sequence[str], *, answerable: bool = False
) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """({column: value}, rows) per group, in the order of keys; no rows is a ValueError."""
    lacking = [name for name in (*by, *COLUMNS) if name not in table]
    if lacking:
        raise ValueError(f"the table of answers lacks the columns {', '.join(lacking)}")
    rows = table[table["kind"] != "answer_refusal"] if answerable else table
    if rows.empty:
        raise ValueError(f"the table holds no {'answerable question' if answerable else 'answer'}")
    for key, part in rows.groupby(list(by), sort=True, dropna=False):
        yield dict(zip(by, key, strict=True)), part
