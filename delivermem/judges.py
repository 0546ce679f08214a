"""Scoring of closed answers by exact match. Three states: right, wrong, and unjudged, which is never wrong."""

from __future__ import annotations

import re
import unicodedata

from delivermem.records import REFUSAL, Answer, Prompt, Question, Verdict

NUMBERS = {
    word: str(i) for i, word in enumerate("zero one two three four five six seven eight nine ten".split())
}
REFUSALS = (
    REFUSAL.lower(),
    "not enough information",
    "not mentioned",
    "i don't have that information",
    "i do not have that information",
    "i don't know",
    "diese information habe ich nicht",
)
"""Whole answers, or their beginnings, that decline; after `normalise`."""
_DATE = re.compile(r"(\d{4})[/.-](\d{1,2})[/.-](\d{1,2})(?:\s*\([^)]*\))?")
_TAG = re.compile(r"(?:memory )?(m\d+)")


def normalise(text: str) -> str:
    """The form in which closed answers are compared.

    Unicode NFKC, case folded, spaces collapsed, an outer article and a final full stop dropped, number words to ten
    as digits, thousands without commas, dates as YYYY-MM-DD. Nothing inside an answer is dropped.
    """
    text = " ".join(unicodedata.normalize("NFKC", text).casefold().replace("’", "'").split())
    text = text.strip().strip("\"'").removesuffix(".").strip()
    text = re.sub(r"^(?:(?:a|an|the) )+", "", text)
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    text = _DATE.sub(lambda m: f"{m[1]}-{int(m[2]):02d}-{int(m[3]):02d}", text)
    return " ".join(NUMBERS.get(word, word) for word in text.split())


def is_refusal(text: str) -> bool:
    """Whether an answer declines: it is one of REFUSALS, or begins with one as a clause of its own."""
    said = normalise(text)
    return any(re.match(rf"{re.escape(normalise(phrase))}(?:$|[.,;:!])", said) for phrase in REFUSALS)


def judge(question: Question, answer: Answer, prompt: Prompt) -> Verdict:
    """Right, wrong or unjudged, with the rule that decided.

    A failed or cut-off answer is unjudged. Where memory does not hold the answer, refusing alone is right; where it
    does, refusing is wrong. A question for a memory is answered by the tag under which its record was delivered.
    """
    if answer.status == "failed":
        return Verdict("unjudged", "failed")
    if answer.finish == "length":
        return Verdict("unjudged", "cut off")
    refused = is_refusal(answer.text)
    if question.refusal:
        return Verdict("right" if refused else "wrong", "refused" if refused else "answered the unanswerable")
    if refused:
        return Verdict("wrong", "refused")
    if question.answer_is_record:
        named = _TAG.fullmatch(normalise(answer.text))
        record = prompt.tags.get(named[1].upper()) if named else None
        if record is None:
            return Verdict("wrong", "no such tag")
        return Verdict("right" if record == question.answer else "wrong", "tag")
    same = normalise(answer.text) == normalise(question.answer)
    return Verdict("right" if same else "wrong", "exact match")
