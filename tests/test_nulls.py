"""The map of where a decision helps: each of the three conditions, made to fail by itself, is the one that is named."""

from __future__ import annotations

import pandas as pd

from delivermem import controls, nulls, retrieval
from delivermem.benchmarks import load
from delivermem.delivery import Decisions, deliver

PAIRS = {"D1": ("full", "blind"), "D3": ("full", "undated")}
SUPPLIES = {"D1": "pixels", "D3": "time"}
NEEDS = {"sees": frozenset({"pixels"}), "lost": frozenset({"pixels"}), "told": frozenset({"pixels", "time"})}
RIGHT = {
    "sees": dict(full=1.0, blind=0.0, undated=1.0),
    "lost": dict(full=0.2, blind=0.2, undated=0.2),
    "told": dict(full=1.0, blind=1.0, undated=0.1),
}


def _answers():
    rows = []
    for subtype, arms in RIGHT.items():
        for condition, share in arms.items():
            for i in range(40):
                rows.append(
                    dict(
                        benchmark="b", backbone="m", k=5, kind="x", subtype=subtype, condition=condition,
                        question_id=f"{subtype}{i}", cluster=f"c{i % 20}", status="ok", refused=False, recall=1.0,
                        verdict="right" if (i % 10) / 10 < share else "wrong", guess=0.2,
                    )
                )  # fmt: skip
    refusal = dict(rows[0], kind="answer_refusal", question_id="r", subtype="sees")
    return pd.DataFrame([*rows, refusal])


def test_each_failing_condition_is_named_where_it_alone_fails():
    found = nulls.where(_answers(), PAIRS, SUPPLIES, NEEDS, seed=0).set_index(["subtype", "name"])
    assert found.helps.to_dict() == {
        ("lost", "D1"): False, ("lost", "D3"): False, ("sees", "D1"): True, ("sees", "D3"): False,
        ("told", "D1"): False, ("told", "D3"): True,
    }  # fmt: skip
    assert found.loc[("sees", "D1"), "fails"] == "" and found.loc[("told", "D3"), "fails"] == ""
    assert found.loc[("lost", "D1"), "fails"] == "i"
    assert found.loc[("told", "D1"), "fails"] == "iii"
    assert found.loc[("sees", "D3"), "fails"] == "ii,iii"
    assert found.loc[("sees", "D1"), ["full", "without", "points"]].tolist() == [100, 0, 100]
    assert found.needed.to_dict() == {(sort, d): SUPPLIES[d] in NEEDS[sort] for sort in NEEDS for d in PAIRS}
    assert found.guess.round(9).eq(20).all()


def test_a_null_that_no_condition_explains_is_said_to_be_so():
    answers = _answers()
    answers = answers[(answers.subtype == "sees") & (answers.kind == "x")].copy()
    number = answers.question_id.str[4:].astype(int)
    right = {"full": range(8), "blind": (10, 11, 12), "undated": ()}
    answers["verdict"] = [
        "right" if n in right[c] else "wrong" for n, c in zip(number, answers.condition, strict=True)
    ]
    answers["guess"] = 0.05
    found = nulls.where(answers, {"D1": PAIRS["D1"]}, SUPPLIES, NEEDS, seed=0).iloc[0]
    assert found.points == 12.5 and found.low <= 0 and not found.helps and found.fails == nulls.UNEXPLAINED


def test_needs_are_read_off_the_questions():
    from delivermem.benchmarks import load

    found = nulls.needs(load("mini-memlens").questions)
    assert found["which"] == {"pixels", "identity"} and found["when_topic"] == {"text", "time"}
    assert set(nulls.needs(load("mini-dmv-5").questions).values()) == {frozenset({"pixels", "identity"})}


def test_a_reply_is_held_against_the_tags_item_and_the_places_item():
    """Replies that follow the tag, the place and neither, written from the prompts that a model is given."""
    questions = load("mini-dmv-10").questions[:12]
    rows = []
    for condition, tags in (("reordered", "stamp"), ("reordered-none", "none")):
        for i, question in enumerate(questions):
            records = retrieval.rank("gold", question, 5, beside_gold="bm25")
            prompt = deliver(records, question, Decisions(identity=tags), layout="images-last")
            shown = [s.record_id for s in controls.apply(prompt, "reordered", question=question).slots]
            said = records[shown.index(question.gold[0])].text
            place = said.partition("/product/")[2].partition(" ")[0]
            answer = (question.answer, place, "none of them")[i % 3]
            rows.append(
                dict(
                    condition=condition,
                    question_id=question.id,
                    answer=answer,
                    delivered=[r.id for r in records],
                )
            )
    found = nulls.paired_by(pd.DataFrame(rows), questions)
    assert found.condition.tolist() == [row["condition"] for row in rows]
    tag, place, neither = found[0::3], found[1::3], found[2::3]
    assert tag.by_tag.all() and place.by_place.all() and not neither[["by_tag", "by_place"]].any(axis=None)
    assert not (tag.by_place & ~tag.by_tag).any() and not place.by_tag.any()
