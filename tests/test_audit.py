"""The audit of traces, on traces written by hand: every rule by itself, what a text says of a cue, and the tables."""

from __future__ import annotations

import html
import itertools
import math
import re
from datetime import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivermem import audit
from delivermem.benchmarks import mini, shop
from delivermem.mentions import HOW, by_sentence, by_window
from delivermem.records import Memory, Question, Record

CUE = ("red", "key")
RULES = (by_sentence, by_window)
CODES = {"r1": "a1n", "r2": "b2o", "r3": "c3p", "r4": "d4q"}
"""Four visits; the second is the target's."""


def said(rule, text, cue=CUE):
    return [(mention.how, mention.place) for mention in rule(text, cue)]


def step(reply="", *, landed="/", url="/", delivered=("r1", "r2", "r3"), tags=True, outcome=None, **more):
    names = [f"M{i}" if tags else "" for i in range(1, len(delivered) + 1)]
    if outcome is None:
        outcome = "opened" if landed != url else "done"
    return (
        dict(url=url, delivered=list(delivered), tags=names, reply=reply, outcome=outcome, landed=landed)
        | more
    )


def opens(code, thought, **more):
    return step(f"Thought: {thought}\nAction: navigate(/product/{code})", landed=f"/product/{code}", **more)


def trace(*steps, opened="", state="wrong"):
    return audit.Trace("q", CUE, CODES, "r2", opened, state, steps)


# -- what a text says of a cue ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("text", "how", "place"),
    [
        ("Thought: M2 shows the red key.", "asserted", "tag 2"),
        ("Thought: memory image 2 shows the red key.", "asserted", "item 2"),
        ("Thought: this page shows the red key.", "asserted", "page"),
        ("Thought: no memory shows the red key.", "negated", "all"),
        ("No red key is visible in any of them.", "negated", "all"),
        ("M1 does not show it, M2 shows the red key.", "asserted", "tag 2"),
        ("M1 doesn’t show the red key.", "negated", "tag 1"),
        ("M1 shows no red key.", "negated", "tag 1"),
        ("M1 shows a blue star, not the red key.", "negated", "tag 1"),
        ("The red key is not visible in M1.", "negated", "tag 1"),
        ("The red key is missing.", "negated", ""),
        ("No memory except M2 shows the red key.", "asserted", "tag 2"),
        ("No other memory shows the red key.", "negated", ""),
        ("There is no doubt that M2 shows the red key.", "asserted", "tag 2"),
        ("M2 not only shows the red key but a star too.", "asserted", "tag 2"),
        ("I am looking for the red key.", "sought", ""),
        ("The user wants a product that shows a red key.", "sought", ""),
        ("Earlier I saw a product with a red key.", "sought", ""),
        ("Does M2 show the red key?", "sought", "tag 2"),
        ("I found the red key in M3.", "asserted", "tag 3"),
        ("In M3 the key is red.", "asserted", "tag 3"),
        ("M3: a lamp with a small red metal key in the corner", "asserted", "tag 3"),
        ("M2 shows the key (red).", "asserted", "tag 2"),
        ("**M2's** photo shows RED KEYS.", "asserted", "tag 2"),
        ("(2) has the red key", "asserted", "item 2"),
        ("The red key is in the second image.", "asserted", "image 2"),
        ("The first memory image shows the red key.", "asserted", "item 1"),
        ("The product in picture 3 contains the red key that the user asked for.", "asserted", "image 3"),
        ("/product/e5s has the red key.", "asserted", "code e5s"),
        ("I see a red key.", "asserted", ""),
        ("Looking at them, I see a red key.", "asserted", ""),
        ("The product I'm looking for has a red key.", "sought", ""),
        ("M2 has a **red** 'key'", "asserted", "tag 2"),
    ],
)
def test_both_rules_tell_how_a_cue_is_named_and_beside_which_item(rule, text, how, place):
    assert said(rule, text) == [(how, place)]
    mention = rule(text, CUE)[0]
    assert {"red", "key"} <= {*re.findall("red|key", text[mention.start : mention.end].lower())}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "M2 shows the blue key.",
        "M2 shows a red lamp and a blue key.",
        "M2 shows a red lamp and key.",
        "M2 shows a key. M3 is red.",
        "There is a red-orange key in M2.",
        "The red keyboard is in M1, and the redkey.",
        "The key is blue, the lamp is red.",
    ],
)
def test_a_cue_with_its_colour_swapped_or_apart_is_not_named(rule, text):
    assert said(rule, text) == []


def test_two_cues_are_two_mentions_and_names_may_have_several_words():
    text = "M1 shows the blue key and M2 shows the red key, M3 the light blue coffee mug."
    for rule in RULES:
        assert said(rule, text) == [("asserted", "tag 2")]
        assert [how for how, _ in said(rule, text, ("light blue", "coffee mug"))] == ["asserted"]
        assert said(rule, text, ("blue", "coffee mug"))[0][0] == "asserted"
        assert said(rule, text, ("dark blue", "coffee mug")) == []


def test_a_reply_in_a_larger_models_manner_is_read():
    text = (
        "The user wants the exact product seen earlier, which had a yellow coffee mug. Memory image 1 shows a shelf with a "
        "small yellow mug on it, while memory image 2 has a blue mug. I will open that page."
    )
    for rule in RULES:
        assert said(rule, text, ("yellow", "mug")) == [("sought", ""), ("asserted", "item 1")]


def test_the_rules_are_two_and_differ_where_their_making_does():
    """Within a sentence against within a window: each pair is one that the other reads otherwise."""
    assert said(by_sentence, "None of the memories, M1 to M5, shows the red key.") == [("negated", "all")]
    assert said(by_window, "None of the memories, M1 to M5, shows the red key.") != [("negated", "all")]
    assert said(by_sentence, "M2 is a lamp. It has a red key.") == [("asserted", "tag 2")]
    assert said(by_window, "M2 is a lamp. It has a red key.") == [("asserted", "")]
    assert said(by_sentence, "M3 has an orange-red key.") == []
    assert said(by_window, "M3 has an orange-red key.") == [("asserted", "tag 3")]


WORDS = "red blue key keys star lamp M1 M2 memory image 3 no not none shows is in the , . ? ! ; but \n ( ) find".split(
    " "
)


@settings(deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_any_text_is_read_and_mentions_lie_in_it(words):
    text = " ".join(words)
    for rule in RULES:
        for mention in rule(text, CUE):
            part = text[mention.start : mention.end].lower()
            assert "red" in part and "key" in part and mention.how in HOW
        assert not rule(text.replace("red", "green"), CUE) and not rule(text.replace("key", "cup"), CUE)


# -- a trace's class ----------------------------------------------------------------------------------------------


def test_each_rule_decides_alone():
    """One trace for each class, in the order of the rules."""
    away = ("r1", "r3", "r4")
    made = {
        "not retrieved": trace(opens("a1n", "M1 shows the red key.", delivered=away), opened="a1n"),
        "unreadable": trace(step("I do not know.", outcome="unparsed")),
        "nothing opened": trace(step("Thought: no memory shows the red key.\nAction: done")),
        "out of context": trace(
            step("hm", outcome="unparsed"), opens("a1n", "M1!", delivered=away), opened="a1n"
        ),
        "other product": trace(opens("d4q", "the red key is there."), opened="d4q"),
        "cue not named": trace(opens("a1n", "M1 looks right."), opened="a1n"),
        "cue named": trace(opens("a1n", "M1 shows the red key."), opened="a1n"),
    }
    assert list(made) == list(audit.FAILURES)
    for rule in RULES:
        assert {name: audit.classify(one, rule).failure for name, one in made.items()} == {n: n for n in made}
    found = audit.classify(made["out of context"])
    assert found.retrieved and not found.in_context and (found.step, found.target, found.opened) == (2, 0, 1)
    found = audit.classify(made["not retrieved"])
    assert not found.retrieved and not found.in_context and found.naming == "asserted"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("thought", "naming", "to"),
    [
        ("M1 shows the red key.", "asserted", "opened"),
        ("M2 shows the red key.", "asserted", "target"),
        ("M3 shows the red key.", "asserted", "another"),
        ("M9 shows the red key.", "asserted", "unclear"),
        ("I see the red key.", "asserted", "unclear"),
        ("/product/b2o has the red key.", "asserted", "target"),
        ("The third item has the red key.", "asserted", "another"),
        ("M1 shows the blue key.", "absent", ""),
        ("M1 shows the blue key. M2 shows the red key.", "asserted", "target"),
        ("M2 shows the red key. M1 shows the red key.", "asserted", "opened"),
        ("M2 shows the red key. M1 does not show the red key.", "asserted", "target"),
        ("M2 shows the red key. M2 does not show the red key.", "negated", ""),
        ("M2 shows the red key. No memory shows the red key.", "negated", ""),
        ("No memory shows the red key. M2 shows the red key.", "asserted", "target"),
        ("I look for the red key. M1 fits.", "sought", ""),
        ("M1 fits.", "absent", ""),
    ],
)
def test_what_a_trace_names_and_whose_item_it_gives_it_to(rule, thought, naming, to):
    found = audit.classify(trace(opens("a1n", thought), opened="a1n"), rule)
    assert (found.naming, found.to) == (naming, to)
    assert found.failure == ("cue named" if naming == "asserted" else "cue not named")
    assert (found.target, found.opened, found.delivered) == (2, 1, 3)
    if naming != "absent":
        assert "red key" in found.said[slice(*found.mark)]
    else:
        assert found.mark == (0, 0) and thought in found.said


@pytest.mark.parametrize("rule", RULES)
def test_a_cue_named_in_an_action_alone_is_not_named_and_the_last_action_line_counts(rule):
    """The page that was opened is the run's: of two action lines the last. Neither line is reasoning."""
    reply = "Thought: M1 fits.\nAction: navigate(/product/b2o) the red key\n**Action**: navigate(/product/a1n) # red key"
    one = trace(step(reply, landed="/product/a1n"), opened="a1n")
    found = audit.classify(one, rule)
    assert (found.failure, found.naming, found.opened) == ("cue not named", "absent", 1)
    assert audit.reasoning(reply) == "Thought: M1 fits."
    assert audit.reasoning("Action: done\nBecause M1 fits.") == "Because M1 fits."


@pytest.mark.parametrize("rule", RULES)
def test_of_several_steps_the_one_that_came_to_the_last_product_decides(rule):
    """Claims follow the item, not its tag; what is said after the opening does not count."""
    first = step("Thought: M2 shows the red key.\nAction: click_index(0)", landed="/category/lamp")
    second = opens("a1n", "M1 then.", url="/category/lamp", delivered=("r2", "r1"))
    after = step(
        "Thought: this page shows the red key.\nAction: add_to_wishlist",
        landed="/product/a1n",
        url="/product/a1n",
    )
    found = audit.classify(trace(first, second, after, opened="a1n"), rule)
    assert (found.step, found.to, found.naming) == (2, "target", "asserted")
    assert (found.target, found.opened, found.delivered) == (1, 2, 2)
    assert audit.classify(trace(second, after, opened="a1n"), rule).naming == "absent"
    there = opens("b2o", "M1 shows the red key.", delivered=("r2", "r1"))
    back = opens("a1n", "this page does not show the red key.", url="/product/b2o")
    found = audit.classify(trace(there, back, opened="a1n"), rule)
    assert (found.step, found.naming) == (2, "negated")


def test_a_number_means_the_item_and_on_a_products_page_a_bare_one_means_nothing():
    for rule in RULES:
        bare = dict(tags=False)
        one = trace(opens("a1n", "memory image 2 shows the red key.", **bare), opened="a1n")
        assert audit.classify(one, rule).to == "target"
        assert (
            audit.classify(trace(opens("a1n", "image 2 shows the red key.", **bare), opened="a1n"), rule).to
            == "target"
        )
        assert (
            audit.classify(trace(opens("a1n", "M2 shows the red key.", **bare), opened="a1n"), rule).to
            == "unclear"
        )
        page = dict(url="/product/d4q", **bare)
        for thought, to in (
            ("image 2 shows the red key.", "unclear"),
            ("memory image 2 shows the red key.", "target"),
            ("this page shows the red key.", "another"),
        ):
            assert audit.classify(trace(opens("a1n", thought, **page), opened="a1n"), rule).to == to, thought


def test_an_empty_reply_is_unreadable_and_a_failed_call_is_no_failure():
    found = audit.classify(trace(step("", outcome="unparsed")))
    assert (found.failure, found.naming, found.said) == ("unreadable", "absent", "")
    failed = audit.classify(trace(step("", outcome="failed", status="failed"), state="failed"))
    assert failed.failure == "" and failed.state == "failed"
    nothing = audit.classify(trace(state="not_applicable"))
    assert (nothing.failure, nothing.step, nothing.delivered) == ("", 0, 0)
    right = audit.classify(trace(opens("b2o", "M2 shows the red key."), opened="b2o", state="right"))
    assert (right.failure, right.to, right.opened) == ("", "target", 2)


def test_a_run_that_contradicts_itself_is_refused_in_a_sentence():
    with pytest.raises(ValueError, match=r"'q': no step came to /product/a1n; run the errand again"):
        audit.classify(trace(step("Action: done"), opened="a1n"))
    for steps in (None, [], math.nan):
        with pytest.raises(ValueError, match="no steps; run the errand again"):
            audit.trace_of(dict(status="ok", verdict="wrong", answer="", steps=steps), QUESTIONS[0], CUE)
    assert audit.trace_of(dict(status="failed", verdict="unjudged", answer=""), QUESTIONS[0], CUE).steps == ()


# -- tables -------------------------------------------------------------------------------------------------------


def question(name, cluster):
    records = [
        Record(i, f"Look at this lamp: /product/{code} <image>", datetime(2024, 5, 1))
        for i, code in CODES.items()
    ]
    memory = Memory(cluster, (*records, Record("r9", "Good night.", datetime(2024, 5, 2))))
    return Question(name, "Which product shows a red key?", "b2o", "recall", memory, gold=("r2",))


QUESTIONS = [question(f"q{i}", f"c{i % 4}") for i in range(12)]
CUES = {q.id: CUE for q in QUESTIONS}


def line(q, condition, *steps, opened="", verdict="wrong", status="ok"):
    return dict(
        benchmark="b", backbone="m", k=3, condition=condition, question_id=q.id, cluster=q.memory.id, answer=opened,
        expected="b2o", status=status, verdict=verdict, steps=list(steps),
    )  # fmt: skip


def answers():
    """Arm `bad`: six neighbours opened (four name the cue, of which one gives it to the target), one thing unreadable, one
    failed call, the rest right. Arm `good`: all right."""
    rows = []
    for i, q in enumerate(QUESTIONS):
        right = line(q, "good", opens("b2o", "M2 shows the red key."), opened="b2o", verdict="right")
        rows.append(right)
        thoughts = ["M1 shows the red key."] * 3 + ["M2 shows the red key."] + ["M1 fits."] * 2
        if i < 6:
            code = "c3p" if i == 0 else "a1n"
            rows.append(line(q, "bad", opens(code, thoughts[i]), opened=code))
        elif i == 6:
            lost = step("Action: navigate(/product/zzz)", outcome="no such page")
            rows.append(line(q, "bad", lost, step("<b>|&", outcome="unparsed")))
        elif i == 7:
            rows.append(line(q, "bad", step("", outcome="failed"), verdict="unjudged", status="failed"))
        else:
            rows.append(right | {"condition": "bad"})
    return pd.DataFrame(rows)


def test_the_table_counts_every_probe_once_and_no_failed_call_as_a_failure():
    found = audit.findings(answers(), QUESTIONS, CUES)
    table = audit.table(found).set_index("condition")
    assert table.loc["bad", ["probes", "right", "unjudged", "failures"]].tolist() == [12, 4, 1, 7]
    assert table.loc["good", ["probes", "right", "unjudged", "failures"]].tolist() == [12, 12, 0, 0]
    bad = table.loc["bad", list(audit.FAILURES)]
    assert table.astray.to_dict() == {"bad": 1, "good": 0}
    assert bad[bad > 0].to_dict() == {"unreadable": 1, "cue not named": 2, "cue named": 4}
    gone = answers().assign(status="not_applicable", verdict="unjudged", steps=None)
    both = pd.concat([answers().query("condition == 'good'"), gone[gone.condition == "bad"]])
    assert audit.table(audit.findings(both, QUESTIONS, CUES))["condition"].tolist() == ["good"]


def test_the_shares_and_their_intervals_are_by_chain():
    found = audit.findings(answers(), QUESTIONS, CUES)
    shares = audit.shares(found, seed=0).set_index(["condition", "share"])
    counts = {share: shares.loc[("bad", share), ["held", "n"]].tolist() for share in audit.SHARES}
    assert counts == {"in context": [7, 7], "neighbour": [6, 7], "named": [4, 6], "elsewhere": [3, 4]}
    row = shares.loc[("bad", "named")]
    assert row.estimate == pytest.approx(400 / 6) and row.low < row.estimate < row.high and row.clusters == 4
    assert shares.loc[("bad", "in context"), "high"] == 100 > shares.loc[("bad", "in context"), "low"]
    good = shares.loc["good"]
    assert (good.n == 0).all() and good[["estimate", "low", "high"]].isna().all(axis=None)


def test_the_distance_is_signed_and_alike_is_what_any_neighbour_would_give():
    found = audit.distances(audit.findings(answers(), QUESTIONS, CUES))
    bad = found[found.condition == "bad"].set_index("distance")
    assert bad["count"].to_dict() == {-2: 0, -1: 5, 1: 1, 2: 0}
    assert bad.share.tolist() == pytest.approx([0, 500 / 6, 100 / 6, 0])
    assert bad.alike.tolist() == pytest.approx([0, 50, 50, 0]) and (bad.n == 6).all()
    good = found[found.condition == "good"]
    assert (good.n == 0).all() and good[["share", "alike"]].isna().all(axis=None)


def test_the_order_of_rows_changes_nothing():
    rows = answers()
    first = audit.findings(rows, QUESTIONS, CUES)
    pd.testing.assert_frame_equal(first, audit.findings(rows[::-1], QUESTIONS[::-1], CUES))
    mixed = first.sample(frac=1, random_state=1)
    for make in (audit.table, audit.distances, audit.sample, lambda found: audit.shares(found, seed=0)):
        pd.testing.assert_frame_equal(make(first), make(mixed))
    assert audit.example(first, ["bad"]) == audit.example(mixed, ["bad"])


def test_an_unknown_question_is_refused():
    with pytest.raises(ValueError, match="question 'q0' is unknown"):
        audit.findings(answers(), QUESTIONS[1:], CUES)


def test_agreement_is_told_by_class():
    """Ten traces of two classes, two of which the second rule puts otherwise: kappa by hand, (0.8 - 0.5) / (1 - 0.5)."""
    first = audit.findings(answers(), QUESTIONS, CUES)
    first = (
        first[first.condition == "good"].iloc[:10].assign(failure=["cue named"] * 5 + ["cue not named"] * 5)
    )
    second = first.assign(failure=["cue named"] * 4 + ["cue not named"] * 5 + ["cue named"])
    found = audit.agreement(first, second).set_index("class")
    assert found.loc["all"].to_dict() == pytest.approx({"n": 10, "share": 80, "kappa": 0.6})
    assert found.loc["cue named"].to_dict() == pytest.approx({"n": 6, "share": 400 / 6, "kappa": 0.6})
    same = audit.agreement(first, first)
    assert (same.share == 100).all() and (same.kappa == 1).all()
    one = first.assign(failure="cue named")
    assert audit.agreement(one, one).kappa.isna().all() and (audit.agreement(one, one).share == 100).all()
    with pytest.raises(ValueError, match="same probes"):
        audit.agreement(first, second.iloc[1:])


def test_without_any_failure_there_is_nothing_to_agree_on_but_how_cues_are_named():
    good = answers().query("condition == 'good'")
    found = [audit.findings(good, QUESTIONS, CUES, rule) for rule in RULES]
    assert audit.agreement(*found).to_dict("records") == [
        {
            "class": "all",
            "n": 0,
            "share": pytest.approx(math.nan, nan_ok=True),
            "kappa": pytest.approx(math.nan, nan_ok=True),
        }
    ]
    assert audit.agreement(*found, "naming").n.tolist() == [12, 12]
    assert len(audit.sample(found[0])) == 0 and audit.as_html(audit.sample(found[0])).count("<tr>") == 1


def test_the_sample_is_of_failures_and_its_table_is_escaped_with_the_evidence_marked():
    found = audit.findings(answers(), QUESTIONS, CUES)
    few = audit.sample(found, 3, seed=1)
    assert len(few) == 3 and (few.state == "wrong").all() and few.question_id.is_monotonic_increasing
    assert {tuple(audit.sample(found, 3, seed=s).question_id) for s in range(9)} != {tuple(few.question_id)}
    every = audit.sample(found)
    assert len(every) == 7
    text = audit.as_html(every)
    assert text.count("<tr>") == 8 and "&lt;b&gt;|&amp;" in text and "<b>|" not in text
    assert text.count("<mark>") == (every.naming != "absent").sum() == 4
    assert text.count("<mark><b>red key</b></mark>") == 4
    assert {html.unescape(tag) for tag in re.findall(r"</?(\w+)>", text)} == {
        "table",
        "tr",
        "th",
        "td",
        "mark",
        "b",
    }


def test_the_example_is_chosen_by_its_rule_and_falls_back():
    found = audit.findings(answers(), QUESTIONS, CUES)
    row, why = audit.example(found, ["good", "bad"])
    assert (row["condition"], row["question_id"], row["naming"]) == ("bad", "q0", "asserted")
    assert "names the cue" in why and why.endswith("of bad")
    quiet = found[found.naming != "asserted"]
    row, why = audit.example(quiet, ["bad"])
    assert row["question_id"] == "q4" and "no failing probe names the cue" in why
    row, why = audit.example(found, ["good"])
    assert row["question_id"] == "q0" and row["state"] == "right" and "no probe fails" in why
    with pytest.raises(ValueError, match="run the errand first"):
        audit.example(found, ["other"])


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3), st.booleans(), st.booleans()), min_size=1, max_size=12, unique_by=lambda x: x[0]))  # fmt: skip
def test_every_wrong_probe_has_one_class_and_no_other_probe_has_any(rows):
    made = []
    for i, code, named, there in rows:
        delivered = ("r1", "r2", "r3") if there else ("r1", "r3")
        opened = [*CODES.values()][code]
        thought = "M1 shows the red key." if named else "M1 fits."
        verdict = "right" if opened == "b2o" else "wrong"
        made.append(
            line(
                QUESTIONS[i],
                "arm",
                opens(opened, thought, delivered=delivered),
                opened=opened,
                verdict=verdict,
            )
        )
    found = audit.findings(pd.DataFrame(made), QUESTIONS, CUES)
    assert ((found.failure != "") == (found.state == "wrong")).all()
    table = audit.table(found).iloc[0]
    assert table[list(audit.FAILURES)].sum() == table.failures == len(rows) - table.right
    assert found.distance.notna().equals(found.failure.isin(audit.NEIGHBOUR))


def test_the_cue_of_a_probe_is_its_products_and_never_guessed():
    products = mini.products()
    some = shop.chain(np.random.default_rng(0), products, 2)
    visit = some[0]
    memory = Memory("m", tuple(v.record() for v in some))
    asked = Question(
        "q", shop.probe(*visit.product.cue[:2]), visit.product.code, "recall", memory, gold=(visit.id,)
    )
    assert audit.cues_of([asked], products) == {"q": visit.product.cue[:2]}
    assert audit.codes_of(memory) == {v.id: v.product.code for v in some}
    for rule, (colour, name) in itertools.product(RULES, [p.cue[:2] for p in products[::12]]):
        assert said(rule, f"M1 shows the {colour} {name}.", (colour, name)) == [("asserted", "tag 1")]
    with pytest.raises(ValueError, match="no product has the code"):
        audit.cues_of([asked], [p for p in products if p.code != asked.answer])
