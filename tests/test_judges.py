"""Verdicts of closed answers: what counts as the same, what counts as a refusal, and what is not judged at all."""

from __future__ import annotations

import pytest

from delivermem.delivery import deliver
from delivermem.judges import is_refusal, judge, normalise
from delivermem.records import REFUSAL, Answer, Prompt, Question, Verdict

EMPTY = Prompt("", "", (), "")


def _judge(gold: str, said: str, memory, **more) -> Verdict:
    kind = "answer_refusal" if gold == REFUSAL else "information_extraction"
    return judge(Question("q", "?", gold, kind, memory), Answer(said, **more), EMPTY)


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        ("red", "Red."), ("red", " red "), ("three", "3"), ("3", "three"), ("blue lamp", "a blue  lamp"),
        ("2024/05/11", "2024-5-11"), ("2024/05/11", "2024/05/11 (Sat)"), ("1,000", "1000"), ("$1.50", "$1.50."),
        ("kitchen", "the kitchen"), ("A", "a"), ("don't", "don’t"),
    ],
)  # fmt: skip
def test_the_same_answer_said_otherwise_is_right(gold, said, memory):
    assert _judge(gold, said, memory) == Verdict("right", "exact match")


@pytest.mark.parametrize(
    ("gold", "said"),
    [
        ("correct", "incorrect"), ("5", "Out of 5, I give 2"), ("yes", "yesterday was not"), ("1", "10"),
        ("red", "red or blue"), ("red", "not red"), ("2024/05/11", "2024/11/05"), ("$1.50", "150"), ("red", ""),
    ],
)  # fmt: skip
def test_another_answer_that_contains_it_is_wrong(gold, said, memory):
    assert _judge(gold, said, memory).state == "wrong"


@pytest.mark.parametrize(
    "said",
    [REFUSAL, "insufficient information.", "Insufficient information: no photo of it", "I don't have that information",
     "Not enough information: you mentioned X, not Y", "Diese Information habe ich nicht."],
)  # fmt: skip
def test_refusing_is_right_only_where_memory_does_not_hold_the_answer(said, memory):
    assert is_refusal(said)
    assert _judge(REFUSAL, said, memory).state == "right"
    assert _judge("red", said, memory) == Verdict("wrong", "refused")


@pytest.mark.parametrize(
    "said", ["red", "", "sufficient information", "insufficient informations", "I know: red"]
)
def test_an_answer_to_the_unanswerable_is_wrong(said, memory):
    assert not is_refusal(said)
    assert _judge(REFUSAL, said, memory) == Verdict("wrong", "answered the unanswerable")


def test_failures_and_cut_off_answers_are_not_judged(memory):
    assert _judge("red", "", memory, status="failed") == Verdict("unjudged", "failed")
    assert _judge("red", "red", memory, finish="length") == Verdict("unjudged", "truncated")


@pytest.mark.parametrize(
    ("said", "state", "rule"),
    [
        ("M2", "right", "tag"), ("m2.", "right", "tag"), ("Memory M2", "right", "tag"), ("M1", "wrong", "tag"),
        ("M9", "wrong", "no such tag"), ("2", "wrong", "no such tag"), ("M2 or M1", "wrong", "no such tag"),
        (REFUSAL, "wrong", "refused"),
    ],
)  # fmt: skip
def test_a_memory_is_named_by_the_tag_it_was_delivered_under(said, state, rule, memory):
    question = Question("q", "Which?", "r3", "information_extraction", memory, answer_is_record=True)
    prompt = deliver([memory["r1"], memory["r2"], memory["r3"]], question)
    assert judge(question, Answer(said), prompt) == Verdict(state, rule)


def test_normalising_twice_is_normalising_once():
    for text in ("The Three Cups.", "2024/5/1", "1,234,567", "“x”", "a an the"):
        assert normalise(normalise(text)) == normalise(text)
