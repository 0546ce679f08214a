"""Rankers: the same K, no tie left to chance, and a gold ranker that changes membership alone."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivermem.benchmarks import load
from delivermem.records import Memory, Question, Record
from delivermem.retrieval import BY_WORDING, RANKERS, bm25_scores, rank, recall, words

TEXTS = st.lists(
    st.sampled_from(
        ["red lamp", "the harbor at night", "harbor", "a garden <image>", "", "lamp lamp lamp", "é 中"]
    ),
    min_size=0,
    max_size=12,
)


def _question(texts, gold=(), text="Where is the harbor lamp?"):
    start = datetime(2024, 1, 1)
    records = tuple(Record(f"r{i:02d}", t, start + timedelta(days=i // 3)) for i, t in enumerate(texts))
    return Question("q", text, "", "information_extraction", Memory("m", records), gold=tuple(gold))


@settings(max_examples=60, deadline=None)
@given(
    TEXTS,
    st.integers(1, 15),
    st.sampled_from([*sorted(RANKERS.keys() - BY_WORDING), "gold"]),
    st.randoms(use_true_random=False),
)
def test_every_ranker_gives_the_same_k_distinct_records_whatever_the_stored_order(texts, k, ranker, random):
    question = _question(texts, gold=["r00"] if texts else [])
    found = [record.id for record in rank(ranker, question, k)]
    assert len(found) == len(set(found)) == min(k, len(texts))
    shuffled = list(question.memory.records)
    random.shuffle(shuffled)
    again = Question("q", question.text, "", "x", Memory("m", tuple(shuffled)), gold=question.gold)
    assert [record.id for record in rank(ranker, again, k)] == found


@settings(max_examples=60, deadline=None)
@given(TEXTS.filter(len), st.integers(1, 12), st.data())
def test_gold_differs_from_bm25_in_membership_alone(texts, k, data):
    gold = data.draw(st.sets(st.sampled_from([f"r{i:02d}" for i in range(len(texts))]), max_size=3))
    question = _question(texts, gold)
    everything = [record.id for record in rank("bm25", question, len(texts))]
    found = [record.id for record in rank("gold", question, k)]
    assert found == [i for i in everything if i in found]
    assert len(gold & set(found)) == min(len(gold), k)
    rest = [i for i in found if i not in gold]
    assert rest == [i for i in everything if i not in gold][: len(rest)]


def test_gold_is_not_always_first_so_position_tells_nothing():
    questions = [q for q in load("mini-memlens").questions if q.subtype == "which" and not q.refusal]
    places = [[r.id for r in rank("gold", q, 10)].index(q.gold[0]) for q in questions]
    assert len(set(places)) >= 4 and places.count(0) < len(places) / 2


def test_bm25_finds_what_shares_words_and_ranks_ties_by_time():
    question = _question(["nothing", "harbor lamp", "lamp", "nothing"])
    assert [r.id for r in rank("bm25", question, 4)] == ["r01", "r02", "r00", "r03"]
    assert bm25_scores(question.memory, "zebra").tolist() == [0, 0, 0, 0]
    assert words("What is the <image> Harbor's 2nd-lamp?") == ["harbor", "2nd", "lamp"]


def test_query_blind_rankers_do_not_see_the_query():
    for ranker in ("recent", "random"):
        a = rank(ranker, _question(["x", "harbor", "z", "lamp"], text="harbor"), 2)
        b = rank(ranker, _question(["x", "harbor", "z", "lamp"], text="lamp"), 2)
        assert [r.id for r in a] == [r.id for r in b]
    assert [r.id for r in rank("recent", _question(["x"] * 5), 2)] == ["r04", "r03"]
    seeds = {tuple(r.id for r in rank("random", _question(["x"] * 9), 4, seed=s)) for s in range(5)}
    assert len(seeds) > 1


def test_records_without_a_time_come_first():
    records = (Record("b", "x", datetime(2024, 1, 1)), Record("a", "x", None))
    question = Question("q", "x", "", "x", Memory("m", records))
    assert [r.id for r in rank("bm25", question, 2)] == ["a", "b"]
    assert [r.id for r in rank("recent", question, 1)] == ["b"]


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="bm25"):
        rank("bm52", _question(["x"]), 1)
    with pytest.raises(ValueError, match="k=0"):
        rank("bm25", _question(["x"]), 0)


def test_recall_is_a_share_of_gold():
    question = _question(["a", "b", "c"], gold=["r00", "r02"])
    assert recall(question, ["r00", "r01"]) == 0.5
    assert math.isnan(recall(_question(["a"]), ["r00"]))


def test_the_retriever_is_honest_on_the_embedded_benchmark():
    """BM25 finds much of the gold and misses some: a real choice, neither trivial nor hopeless."""
    questions = [q for q in load("mini-memlens").questions if q.gold]
    mean = sum(recall(q, [r.id for r in rank("bm25", q, 10)]) for q in questions) / len(questions)
    blind = sum(recall(q, [r.id for r in rank("recent", q, 10)]) for q in questions) / len(questions)
    assert 0.5 < mean < 0.95 and blind < 0.5 * mean
