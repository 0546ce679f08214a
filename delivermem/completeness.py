"""What of a run that is not whole can be compared: questions that await a verdict leave their pairs, and it is said how many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from delivermem.pairing import JUDGED, state_of

if TYPE_CHECKING:
    import pandas as pd

Say = Callable[[str], None]


def comparable(
    table: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], *, say: Say
) -> dict[str, tuple[str, str]]:
    """The pairs of conditions that share a judged answerable question in every benchmark, backbone and K of the table; of the
    others it is said that they are left out."""
    rows = table[table["kind"] != "answer_refusal"]
    parts = [part for _, part in rows.groupby(["benchmark", "backbone", "k"])]
    kept = {name: pair for name, pair in pairs.items() if all(_shared(part, pair) for part in parts)}
    if lost := [name for name in pairs if name not in kept]:
        say(f"left out, as no question has a verdict in both arms: {', '.join(lost)}")
    return kept


def settled(
    table: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], by: Sequence[str], *, say: Say
) -> pd.DataFrame:
    """The rows of questions whose answers have a verdict, or could not be asked for, in every condition of the pairs, in the
    groups of `by` in which every pair shares a question; how many answerable ones are left out is said."""
    asked = {condition for pair in pairs.values() for condition in pair}
    rows = table[table["condition"].isin(asked) & (table["kind"] != "answer_refusal")]
    if rows.empty:
        return rows
    states = [state_of(s, v) for s, v in zip(rows["status"], rows["verdict"], strict=True)]
    waiting = set(rows["question_id"][[state not in (*JUDGED, "not_applicable") for state in states]])
    asked_all = rows.groupby("question_id")["condition"].transform("nunique") == len(asked)
    kept = rows[asked_all & ~rows["question_id"].isin(waiting)]
    whole = [part for _, part in kept.groupby(list(by)) if all(_shared(part, p) for p in pairs.values())]
    left = {question for part in whole for question in part["question_id"]}
    if lost := rows["question_id"].nunique() - len(left):
        say(
            f"{lost} questions are left out of what is shown by sort, as an arm of theirs or of their sort has no verdict"
        )
    return kept[kept["question_id"].isin(left)]


def _shared(table: pd.DataFrame, pair: tuple[str, str]) -> bool:
    """Whether some question has a verdict in both conditions."""
    rows = table[(table["status"] == "ok") & table["verdict"].isin(JUDGED) & table["condition"].isin(pair)]
    return bool(rows.groupby("question_id")["condition"].nunique().eq(2).any())
