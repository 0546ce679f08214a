"""Where each decision helps and, where it does not, which of three conditions fails.

A decision helps where (i) the information survives storage and reaches the model, (ii) the question needs the property
that the decision supplies, and (iii) the delivered context does not already carry it. All three are read off the data:
(i) fails where even the full arm is not above guessing, (ii) where the question's `needs` lack the property, (iii) where
the control arm, without it, is above guessing.
Source: "Retrieved but Not Delivered" (arXiv 2609.32590), where each decision helps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from delivermem import controls, stats
from delivermem.delivery import deliver
from delivermem.records import Question

if TYPE_CHECKING:
    import pandas as pd

CONDITIONS = {"i": "does not reach the model", "ii": "is not needed", "iii": "is carried already"}
"""What it means that a condition fails: the information ..."""
UNEXPLAINED = "?"


def needs(questions: Iterable[Question]) -> dict[str, frozenset[str]]:
    """Sort of question (`subtype`) -> the channels that it needs."""
    return {question.subtype: question.needs for question in questions}


def where(
    table: pd.DataFrame,
    pairs: Mapping[str, tuple[str, str]],
    supplies: Mapping[str, str],
    needs: Mapping[str, frozenset[str]],
    *,
    seed: int,
    resamples: int = 2_000,
) -> pd.DataFrame:
    """One row per benchmark, backbone, K, kind, sort of question and name: what the decision is worth there.

    pairs: name -> (treated, control), as of `stats.contrasts`; supplies: name -> the need that the decision meets;
    needs: sort -> its needs. Columns beside the contrast's: full, without (accuracy of the two arms, percent), guess
    (percent), needed (condition ii), helps (the interval lies above zero), and fails: the conditions that fail where it does not help, by
    comma, or UNEXPLAINED. Answerable questions alone. Intervals here are each its own, not adjusted for their number.
    """
    import pandas as pd

    rows = []
    answerable = table[table["kind"] != "answer_refusal"]
    by = [*stats.SETTING, "kind", "subtype"]
    for key, part in answerable.groupby(by, sort=True):
        cell = dict(zip(by, key, strict=True))
        found = stats.contrasts(part, pairs, seed=seed, resamples=resamples).to_dict("records")
        levels = stats.accuracy(part, (*by, "condition"), seed=seed, resamples=resamples)
        level = {row["condition"]: row for row in levels.to_dict("records")}
        guess = 100 * float(part["guess"].mean())
        for row in found:
            full, without = level[row["treated"]], level[row["control"]]
            failing = []
            if not full["low"] > guess:
                failing.append("i")
            needed = supplies[row["name"]] in needs[cell["subtype"]]
            if not needed:
                failing.append("ii")
            if without["low"] > guess:
                failing.append("iii")
            helps = row["low"] > 0
            said = "" if helps else ",".join(failing) or UNEXPLAINED
            levels_here = {"full": full["estimate"], "without": without["estimate"], "guess": guess}
            rows.append(cell | row | levels_here | {"needed": needed, "helps": helps, "fails": said})
    return pd.DataFrame(rows)


def paired_by(replies: pd.DataFrame, questions: Iterable[Question]) -> pd.DataFrame:
    """One row per reply under a `reordered` condition of mini-dmv: whose page it names, the item that bears the
    asked-for picture's tag, or the item whose text stands in that picture's place.

    replies: rows of `runs.load`. Columns: condition, by_tag, by_place (bool; both false where it names neither).
    """
    import pandas as pd

    asked = {question.id: question for question in questions}
    rows = []
    for row in replies.to_dict("records"):
        question = asked[row["question_id"]]
        records = [question.memory[name] for name in row["delivered"]]
        prompt = controls.apply(
            deliver(records, question, layout="images-last"), "reordered", question=question
        )
        if prompt is None:
            raise ValueError(
                f"question {row['question_id']}: a single picture can't be reordered; leave it out"
            )
        place = [slot.record_id for slot in prompt.slots].index(question.gold[0])
        named = {
            how: f"/product/{row['answer']} " in question.memory[item].text
            for how, item in {"by_tag": question.gold[0], "by_place": row["delivered"][place]}.items()
        }
        rows.append({"condition": row["condition"]} | named)
    return pd.DataFrame(rows)
