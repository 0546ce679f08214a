"""Statistics: published counts come out, dependence is respected, and the order of rows never matters."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivermem import stats

CONDITIONS = ("gold-pixels", "gold-text", "bm25-pixels", "bm25-text", "recent-pixels", "random-pixels")


def answers(outcomes, clusters=None, kinds=None, **constants):
    """A table of answers. outcomes: condition to an outcome a question: True, False, "refused" or a state."""
    rows = []
    for condition, states in outcomes.items():
        for i, state in enumerate(states):
            verdict = {True: "right", False: "wrong", "refused": "wrong"}.get(state, "unjudged")
            rows.append(
                {
                    "question_id": f"q{i:03d}",
                    "kind": kinds[i] if kinds else "information_extraction",
                    "cluster": clusters[i] if clusters else f"c{i:03d}",
                    "condition": condition,
                    "replicate": 0,
                    "status": "failed" if state == "failed" else "ok",
                    "verdict": verdict,
                    "refused": state == "refused",
                    "recall": 1.0,
                    "benchmark": "toy",
                    "backbone": "stub",
                    "k": 5,
                    **constants,
                }
            )
    return pd.DataFrame(rows)


def random_answers(seed=0, n=60, per_cluster=4, conditions=CONDITIONS):
    rng = np.random.default_rng(seed)
    outcomes = {c: [bool(x) for x in rng.random(n) < 0.3 + 0.1 * i] for i, c in enumerate(conditions)}
    return answers(outcomes, clusters=[f"c{i // per_cluster}" for i in range(n)])


def paper_arms(fixed, broken, n=173):
    same = n - fixed - broken
    treated = [True] * fixed + [False] * broken + [True] * (same // 2) + [False] * (same - same // 2)
    control = [False] * fixed + [True] * broken + treated[fixed + broken :]
    return {"treated": treated, "control": control}


def term(table, a="treated", b="control", **options):
    return stats.paired_term(table, a, b, rng=np.random.default_rng(7), resamples=500, **options)


# --- exact tests


def test_mcnemar_gives_the_papers_p():
    assert round(stats.mcnemar(36, 16), 5) == 0.00779
    assert round(stats.mcnemar(31, 7), 6) == round(2 * sum(math.comb(38, i) for i in range(8)) / 2**38, 6)


def test_no_other_split_with_net_20_rounds_to_the_papers_p():
    splits = [c for c in range(77) if round(stats.mcnemar(c + 20, c), 4) == 0.0078]
    assert splits == [16]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_is_twice_the_smaller_tail_in_whole_numbers(b, c):
    tail = sum(math.comb(b + c, i) for i in range(min(b, c) + 1))
    assert stats.mcnemar(b, c) == pytest.approx(min(1.0, 2 * tail / 2 ** (b + c)), rel=1e-9)
    assert stats.mcnemar(b, c) == stats.mcnemar(c, b)


def test_no_discordant_pairs_is_no_evidence():
    assert stats.mcnemar(0, 0) == 1.0
    assert stats.sign_test([]) == stats.sign_test([0, 0]) == 1.0


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="negative"):
        stats.mcnemar(-1, 3)


def test_discordant_counts_an_arm_that_is_all_right():
    right = {f"q{i}": True for i in range(5)}
    assert stats.discordant(right, right | {"q3": False}) == (1, 0)
    assert stats.discordant(right | {"q3": False}, right) == (0, 1)
    with pytest.raises(ValueError, match="'q9'"):
        stats.discordant(right, right | {"q9": True})


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_steps_down_from_the_smallest_and_never_turns_back(ps):
    found, ranked = stats.holm(ps), sorted(ps)
    by_rank = [max(min(1.0, (len(ps) - j) * ranked[j]) for j in range(i + 1)) for i in range(len(ps))]
    assert sorted(found) == pytest.approx(by_rank)
    assert [found[i] for i in sorted(range(len(ps)), key=lambda i: ps[i])] == sorted(found)
    assert len(ps) > 1 or found == ps


def test_holm_takes_an_empty_family_and_refuses_what_is_no_p():
    assert stats.holm([]) == []
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        stats.holm([0.2, 1.5])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        stats.holm([math.nan])


# --- paired terms


def test_the_papers_delivery_term_comes_out_of_its_counts():
    found = term(answers(paper_arms(31, 7)))
    assert f"{found.points:.2f}" == "13.87"
    assert (found.n, found.clusters, found.fixed, found.broken) == (173, 173, 31, 7)
    assert found.low < found.points < found.high
    assert found.p == found.p_cluster == stats.mcnemar(31, 7)


def test_dependent_questions_fool_the_item_level_test_but_not_the_cluster_level():
    """40 chains of 5 questions that agree within a chain, no true effect."""
    rng = np.random.default_rng(3)
    clusters = [f"chain{i // 5}" for i in range(200)]
    by_item = by_cluster = covered = 0
    for _ in range(150):
        signs = np.repeat(rng.integers(0, 2, 40).astype(bool), 5)
        outcomes = {"treated": [bool(s) for s in signs], "control": [not s for s in signs]}
        found = stats.paired_term(answers(outcomes, clusters), "treated", "control", rng=rng, resamples=200)
        by_item += found.p < 0.05
        by_cluster += found.p_cluster < 0.05
        covered += found.low <= 0 <= found.high
    assert by_item > 45
    assert by_cluster < 12
    assert covered > 130


def test_a_cluster_drawn_twice_counts_twice():
    """Against the interval that resampling by hand gives."""
    outcomes = {"treated": [True] * 10 + [False] * 2, "control": [False] * 12}
    clusters = ["big"] * 10 + ["small"] * 2
    found = term(answers(outcomes, clusters))
    possible = {100 * (10 * i) / (10 * i + 2 * (2 - i)) for i in range(3)}
    assert {found.low, found.high} <= possible
    assert (found.low, found.high) == (0.0, 100.0)


def test_unknown_clusters_make_each_question_its_own():
    for unknown in ("", None, math.nan):
        table = answers(paper_arms(31, 7))
        table["cluster"] = unknown
        assert term(table).clusters == 173


def test_numbered_clusters_are_clusters():
    table = answers(paper_arms(31, 7), clusters=[i // 10 for i in range(173)])
    assert term(table).clusters == 18


def test_one_conversation_gives_no_interval():
    found = term(answers(paper_arms(31, 7), clusters=["only"] * 173))
    assert math.isnan(found.low) and math.isnan(found.high)
    assert found.clusters == 1 and found.p_cluster == 1.0


@pytest.mark.parametrize("state", ["failed", "unjudged"])
@pytest.mark.parametrize("arm", ["treated", "control"])
def test_open_answers_are_refused_and_never_counted_wrong(state, arm):
    outcomes = paper_arms(31, 7)
    outcomes[arm][0] = state
    with pytest.raises(ValueError, match=f"'{arm}' has 1 {state} answers .*'q000'"):
        term(answers(outcomes))
    found = term(answers(outcomes), missing="intersection")
    assert (found.n, found.left_out, found.fixed, found.broken) == (172, 1, 30, 7)


def test_a_failed_answer_with_a_verdict_is_still_a_failure():
    table = answers(paper_arms(31, 7))
    table.loc[0, "status"] = "failed"
    with pytest.raises(ValueError, match="failed"):
        term(table)


def test_arms_with_different_questions_are_refused():
    table = answers(paper_arms(31, 7)).drop(index=[2])
    with pytest.raises(ValueError, match="'treated' lacks 1 questions"):
        term(table)
    assert term(table, missing="intersection").n == 172


def test_bad_requests_are_one_clear_sentence():
    table = answers(paper_arms(31, 7))
    with pytest.raises(ValueError, match="the table has: control, treated"):
        term(table, "treated", "gold")
    with pytest.raises(ValueError, match="select one benchmark, backbone and replicate"):
        term(pd.concat([table, table]))
    with pytest.raises(ValueError, match="missing='drop' is unknown"):
        term(table, missing="drop")
    with pytest.raises(ValueError, match="verdict 'maybe'"):
        term(table.assign(verdict="maybe"))
    with pytest.raises(ValueError, match="no question has a judged answer"):
        term(table.assign(verdict="unjudged"), missing="intersection")
    with pytest.raises(ValueError, match="resamples"):
        stats.paired_term(table, "treated", "control", rng=np.random.default_rng(0), resamples=0)
    with pytest.raises(ValueError, match="lacks the columns kind"):
        stats.decomposition(table.drop(columns="kind"), seed=0)


def test_swapping_the_arms_changes_the_sign_alone():
    table = random_answers()
    forth, back = term(table, "gold-text", "bm25-text"), term(table, "bm25-text", "gold-text")
    assert (forth.points, forth.fixed, forth.broken) == (-back.points, back.broken, back.fixed)
    assert (forth.p, forth.p_cluster) == (back.p, back.p_cluster)
    assert (forth.low, forth.high) == pytest.approx((-back.high, -back.low))


# --- decomposition


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_the_corner_cancels(seed):
    terms = stats.decomposition(random_answers(seed), seed=1, resamples=20).set_index("term")
    points = terms["points"]
    assert points["gap"] == pytest.approx(points["delivery"] - points["retrieval"])
    assert (terms["n"] == 60).all() and (terms["clusters"] == 15).all()


def test_refusal_questions_are_left_out():
    table = random_answers()
    table.loc[table["question_id"] < "q010", "kind"] = "answer_refusal"
    assert set(stats.decomposition(table, seed=0, resamples=20)["n"]) == {50}
    with pytest.raises(ValueError, match="no answerable question"):
        stats.decomposition(table.assign(kind="answer_refusal"), seed=0)


def test_rows_per_benchmark_backbone_and_term():
    table = pd.concat([random_answers(0), random_answers(1).assign(backbone="other")])
    terms = stats.decomposition(table, seed=0, resamples=20)
    assert list(terms["term"]) == list(stats.TERMS) * 2
    assert list(terms["backbone"]) == ["other"] * 5 + ["stub"] * 5
    assert {"points", "low", "high", "n", "clusters", "fixed", "broken", "p", "p_cluster"} <= set(terms)


def test_query_blind_terms_appear_where_they_were_run():
    terms = stats.decomposition(random_answers(conditions=CONDITIONS[:4]), seed=0, resamples=20)
    assert list(terms["term"]) == ["delivery", "retrieval", "gap"]
    with pytest.raises(ValueError, match="no answers under condition 'bm25-pixels'"):
        stats.decomposition(random_answers(conditions=CONDITIONS[:2]), seed=0)


def test_the_corner_cancels_over_the_questions_that_every_arm_answered():
    table = random_answers()
    table.loc[[0, 61, 122], "status"] = "failed"
    with pytest.raises(ValueError, match="failed"):
        stats.decomposition(table, seed=0)
    terms = stats.decomposition(table, seed=0, resamples=20, missing="intersection").set_index("term")
    assert set(terms["n"]) == {57} and set(terms["left_out"]) == {3}
    assert terms["points"]["gap"] == pytest.approx(terms["points"]["delivery"] - terms["points"]["retrieval"])


def test_same_seed_same_numbers_whatever_the_order_of_rows():
    table = random_answers()
    shuffled = table.sample(frac=1, random_state=5)
    pairs = [
        (
            stats.decomposition(t, seed=3, resamples=100),
            stats.accuracy(t, seed=3, resamples=100),
            stats.failures(t),
        )
        for t in (table, shuffled, table)
    ]
    for first, other in itertools.product(pairs[:1], pairs[1:]):
        for a, b in zip(first, other, strict=True):
            pd.testing.assert_frame_equal(a, b, check_exact=True)
    assert not pairs[0][0].equals(stats.decomposition(table, seed=4, resamples=100))


def test_an_interval_does_not_depend_on_what_else_is_computed():
    both = pd.concat([random_answers(0), random_answers(1).assign(backbone="other")])
    alone = stats.decomposition(random_answers(0), seed=3, resamples=100)
    together = stats.decomposition(both, seed=3, resamples=100)
    together = together[together["backbone"] == "stub"].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, together, check_exact=True)


# --- accuracy, failures, numbers


def test_accuracy_counts_what_it_says():
    states = [True, True, False, "refused", "failed", "unjudged"]
    row = stats.accuracy(answers({"a": states}), seed=0, resamples=200).iloc[0]
    counts = {
        name: row[name] for name in ("n", "right", "wrong", "refused", "unjudged", "failed", "clusters")
    }
    assert counts == {"n": 4, "right": 2, "wrong": 2, "refused": 1, "unjudged": 1, "failed": 1, "clusters": 4}
    assert row["estimate"] == 50.0
    assert row["at_least"] == pytest.approx(100 * 2 / 6) and row["at_most"] == pytest.approx(100 * 4 / 6)
    assert 0 <= row["low"] <= 50 <= row["high"] <= 100


def test_accuracy_of_nothing_judged_is_unknown():
    row = stats.accuracy(answers({"a": ["failed", "unjudged"]}), seed=0).iloc[0]
    assert math.isnan(row["estimate"]) and math.isnan(row["low"]) and row["n"] == 0


def test_an_arm_that_is_all_right_keeps_an_interval():
    right = stats.accuracy(answers({"a": [True] * 60}), seed=0).iloc[0]
    wrong = stats.accuracy(answers({"a": [False] * 60}), seed=0).iloc[0]
    assert right["high"] == 100 and right["low"] == pytest.approx(100 * 0.025 ** (1 / 60))
    assert wrong["low"] == 0 and wrong["high"] == pytest.approx(100 - right["low"])


def test_accuracy_groups_by_any_columns():
    kinds = ["answer_refusal" if i % 2 else "knowledge_update" for i in range(60)]
    rng = np.random.default_rng(0)
    table = answers({c: [bool(x) for x in rng.random(60) < 0.5] for c in ("a", "b")}, kinds=kinds)
    found = stats.accuracy(table, ["condition", "kind"], seed=0, resamples=50)
    assert list(zip(found["condition"], found["kind"], strict=True)) == list(
        itertools.product(("a", "b"), ("answer_refusal", "knowledge_update"))
    )
    assert (found["n"] == 30).all()
    for row in found.itertuples():
        part = table[(table["condition"] == row.condition) & (table["kind"] == row.kind)]
        assert row.estimate == pytest.approx(100 * (part["verdict"] == "right").mean())


def test_bootstrap_width_is_that_of_the_binomial():
    outcomes = {"a": [bool(x) for x in np.random.default_rng(0).random(400) < 0.5]}
    row = stats.accuracy(answers(outcomes), seed=0, resamples=4000).iloc[0]
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * 100 * 0.5 / 20, rel=0.06)
    grouped = answers(outcomes, clusters=[f"c{int(x)}{i % 20}" for i, x in enumerate(outcomes["a"])])
    wide = stats.accuracy(grouped, seed=0, resamples=4000).iloc[0]
    assert wide["high"] - wide["low"] > 2 * (row["high"] - row["low"])


def test_failures_among_the_questions_that_the_pixels_fix():
    outcomes = {
        "gold-pixels": [True] * 31 + [False] * 7 + [True] * 2,
        "gold-text": [False] * 10 + ["refused"] * 21 + [True] * 7 + [True] * 2,
    }
    row = stats.failures(answers(outcomes)).iloc[0]
    assert (row["n"], row["fixed"], row["confident_wrong"], row["refusal"]) == (40, 31, 10, 21)


def test_failures_leave_out_refusal_questions_and_open_answers():
    outcomes = {"gold-pixels": [True, True, True], "gold-text": [False, "refused", "failed"]}
    kinds = ["answer_refusal", "temporal_reasoning", "temporal_reasoning"]
    with pytest.raises(ValueError, match="failed"):
        stats.failures(answers(outcomes, kinds=kinds))
    row = stats.failures(answers(outcomes, kinds=kinds), missing="intersection").iloc[0]
    assert (row["n"], row["fixed"], row["confident_wrong"], row["refusal"]) == (1, 1, 0, 1)


def test_the_named_numbers_are_those_of_the_tables():
    table = random_answers()
    terms = stats.decomposition(table, seed=0, resamples=50)
    counts = stats.failures(table)
    named = stats.numbers(terms, counts, run="abc")
    by_term = terms.set_index("term")
    for name, row in (("delivery_term", "delivery"), ("retrieval_term", "retrieval"), ("gap", "gap")):
        entry = named[f"decomposition.{name}"]
        assert (entry["value"], entry["low"], entry["high"]) == tuple(
            by_term.loc[row, ["points", "low", "high"]]
        )
        assert entry["n"] == 60 and entry["unit"] == "points" and entry["run"] == "abc"
    assert named["decomposition.gap_p"]["value"] == by_term.loc["gap", "p"]
    assert named["decomposition.fixed"]["value"] == by_term.loc["delivery", "fixed"]
    assert named["decomposition.broken"]["value"] == by_term.loc["delivery", "broken"]
    confident = named["decomposition.confident_wrong"]
    assert (confident["value"], confident["n"]) == tuple(counts.loc[0, ["confident_wrong", "fixed"]])
    with pytest.raises(ValueError, match="one benchmark, backbone and K"):
        stats.numbers(pd.concat([terms, terms]), counts)


def test_contrasts_pair_each_name_and_adjust_over_the_family():
    """Holm over the names of a setting; a question that a control can't be put for leaves its own pair alone."""
    rng = np.random.default_rng(3)
    outcomes = {
        "full": [True] * 40,
        "a": [bool(x) for x in rng.random(40) < 0.5],
        "b": [True] * 38 + [False] * 2,
    }
    table = answers(outcomes)
    lacks = (table["condition"] == "b") & (table["question_id"] == table["question_id"].iloc[0])
    table.loc[lacks, ["status", "verdict"]] = ["not_applicable", "unjudged"]
    found = stats.contrasts(table, {"one": ("full", "a"), "two": ("full", "b")}, seed=0, resamples=200)
    by_name = found.set_index("name")
    assert by_name.loc["one", "n"] == 40 and by_name.loc["one", "left_out"] == 0
    assert by_name.loc["two", "n"] == 39 and by_name.loc["two", "left_out"] == 1
    assert by_name.loc["one", "points"] == 100 * (40 - sum(outcomes["a"])) / 40
    for p in ("p", "p_cluster"):
        assert list(by_name[f"{p}_holm"]) == stats.holm(list(by_name[p]))
    accuracy = stats.accuracy(table, seed=0).set_index("condition")
    assert accuracy.loc["b", "n"] == 39 and accuracy.loc["b", "unjudged"] == 0


def test_the_sign_test_over_chains_keeps_its_level_where_the_item_level_test_does_not():
    """40 chains of 5 probes that stand or fall together, no effect: 5 % for chains, far more for items."""
    rng = np.random.default_rng(11)
    chains = items = 0
    for _ in range(400):
        effect = rng.integers(-1, 2, 40)  # each chain's probes all fixed, all broken, or all as they were
        fixed, broken = 5 * int((effect > 0).sum()), 5 * int((effect < 0).sum())
        items += stats.mcnemar(fixed, broken) < 0.05
        chains += stats.sign_test(effect) < 0.05
    assert chains <= 0.05 * 400 < 0.3 * 400 < items
