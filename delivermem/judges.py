"""Scoring of closed answers by exact match. Three states: right, wrong, and unjudged, which is never wrong."""

from __future__ import annotations

import re
import unicodedata

from delivermem.records import REFUSAL, Answer, Prompt, Question, Verdict

NUMBERS = {
    word: str(i) for i, word in enumerate("zero one two three four five six seven eight nine ten".split())
}
MONTHS = "january february march april may june july august september october november december".split()
REFUSALS = (
    "not enough information",
    "there is not enough information",
    "not mentioned",
    "i don't have that information",
    "i do not have that information",
    "i don't know",
    "cannot be determined",
    "nicht genügend Informationen",
    "diese Information habe ich nicht",
    "dazu habe ich keine Information",
    "dazu habe ich keine Informationen",
    "das weiß ich nicht",
)
"""How other models decline where the prompt asks for REFUSAL: whole answers, or a whole first clause."""
AWAITS, UNREAD, FAILED = "awaits the judge", "verdict unread", "judge call failed"
OPEN = (AWAITS, UNREAD, FAILED)
"""The rules of answers that a benchmark's own judge has given no verdict on yet; `delivermem judge` asks for it."""

_EDGE = " \"'“”"
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" for name in MONTHS)
_WEEKDAY = r"(?:\s*\((?:mon|tue|wed|thu|fri|sat|sun)[a-z]*\))?"
_ISO = re.compile(rf"(?<![\d/.-])(\d{{4}})([/.-])(\d{{1,2}})\2(\d{{1,2}})(?![/.-]?\d){_WEEKDAY}")
_DAY_MONTH = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?(?: of)? ({_MONTH})\b(?:,? (\d{{4}})\b)?")
_MONTH_DAY = re.compile(rf"\b({_MONTH}) (\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (\d{{4}})\b)?")
_HALF_DAY = re.compile(r"(?<![\d:])(1[0-2]|0?[1-9])(?::([0-5]\d))? ?([ap])\.?m\b\.?")
_SPAN = re.compile(r"(?<![\d.,])(\d{1,9}) (day|week)s?\b")
_TAG = re.compile(r"(?:memory )?\[?(m\d+)\]?")


def normalise(text: str) -> str:
    """The form in which closed answers are compared.

    Unicode NFKC, case folded, spaces collapsed; outer quotes, a leading article and a final full stop dropped; number
    words to ten as digits; thousands without commas, an empty fraction and the dollar sign before a number dropped;
    dates as YYYY-MM-DD (a weekday after one doesn't count, the date does), a day without a year as --MM-DD, clock
    times as HH:MM, weeks as days. 05/11 stays as it is: which is the month can't be known. Nothing else inside an
    answer is dropped, and normalising twice is normalising once.
    """
    text, before = unicodedata.normalize("NFKC", text).replace("’", "'"), ""
    while text != before:
        text, before = _once(text), text
    return text


def _once(text: str) -> str:
    text = " ".join(unicodedata.normalize("NFKC", text.casefold()).split())
    text = re.sub(r"^(?:an?|the) ", "", text.lstrip(_EDGE).rstrip(_EDGE + "."))
    text = re.sub(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", lambda m: m[0].replace(",", ""), text)
    text = re.sub(r"(?<![\d.,])(\d+)\.0+(?![\d.])", r"\1", text)
    text = re.sub(r"\$ ?(?=\d)", "", text)
    text = _ISO.sub(lambda m: f"{m[1]}-{int(m[3]):02d}-{int(m[4]):02d}", text)
    text = _DAY_MONTH.sub(lambda m: _day(m[1], m[2], m[3]), text)
    text = _MONTH_DAY.sub(lambda m: _day(m[2], m[1], m[3]), text)
    text = _HALF_DAY.sub(lambda m: f"{int(m[1]) % 12 + 12 * (m[3] == 'p'):02d}:{m[2] or '00'}", text)
    text = re.sub(r"(?<![\d:])(\d):(?=[0-5]\d(?![\d:]))", r"0\1:", text)
    text = " ".join(NUMBERS.get(word, word) for word in text.split())
    return _SPAN.sub(lambda m: f"{int(m[1]) * (7 if m[2] == 'week' else 1)} days", text)


def _day(day: str, month: str, year: str | None) -> str:
    number = next(i for i, name in enumerate(MONTHS, 1) if name.startswith(month))
    return f"{year or '-'}-{number:02d}-{int(day):02d}"


def is_refusal(text: str) -> bool:
    """Whether an answer declines: it begins with REFUSAL, or is one of REFUSALS, or has one as its first clause."""
    said = normalise(text)
    if re.match(rf"{re.escape(normalise(REFUSAL))}\b", said):
        return True
    return any(re.match(rf"{re.escape(normalise(phrase))}(?:$|[.,;:!])", said) for phrase in REFUSALS)


def judge(question: Question, answer: Answer, prompt: Prompt) -> Verdict:
    """Right, wrong or unjudged, with the rule that decided.

    A failed or cut-off answer is unjudged, and so is a question that could not be put. Where memory does not hold the answer, refusing alone is right; where it
    does, refusing is wrong. A question for a memory is answered by the tag under which its record was delivered.
    """
    if answer.status == "failed":
        return Verdict("unjudged", "failed")
    if answer.status == "not_applicable":
        return Verdict("unjudged", "not applicable")
    if answer.finish == "length":
        return Verdict("unjudged", "truncated")
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
    said, gold = normalise(answer.text), normalise(question.answer)
    if re.fullmatch(r"\d{4}-\d\d-\d\d", gold):  # a day that is asked for may come with its clock time
        said = re.sub(r"(?<=-\d\d) \d\d:\d\d$", "", said)
    return Verdict("right" if said == gold else "wrong", "exact match")
