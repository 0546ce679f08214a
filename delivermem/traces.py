"""One errand's trace to what it amounts to, by stated rules. No model judges anything here.

A trace is what the recall loop keeps of a probe. Whether it *names the target's cue* is told by one of the two rules of
`mentions`, from its reasoning: every reply up to the step that opened the product, without its Action lines.

- Of several mentions for one item the last counts, and what is said of no memory at all withdraws all before.
- Cues other than the target's are not looked at: a trace that names two names the target's, one that swaps the colour
  does not. What is sought, or denied, is not named.

Source: "Retrieved but Not Delivered" (arXiv 2609.32590), failure analysis. The page gives two shares and no rules:
these rules are this package's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from delivermem.mentions import Cue, Mention, by_sentence
from delivermem.pairing import state_of

if TYPE_CHECKING:
    from delivermem.benchmarks.shop import Product
    from delivermem.records import Memory, Question

FAILURES = {
    "not retrieved": "the target was delivered in no step",
    "unreadable": "no product was opened, and the last reply has no action that can be read",
    "nothing opened": "no product was opened, by actions that can be read",
    "out of context": "a product was opened in a step to which the target was not delivered",
    "other product": "a product was opened that was not delivered to that step, while the target was",
    "cue not named": "a neighbour was opened, the target beside it, and the trace does not name the target's cue",
    "cue named": "a neighbour was opened, the target beside it, and the trace names the target's cue",
}
"""Classes of failing probes in the order of their rules: the first that holds is the probe's."""
NEIGHBOUR = ("cue not named", "cue named")
"""The classes in which a neighbour was opened while the target was in context."""
NAMINGS = ("asserted", "negated", "sought", "absent")
"""How the target's cue is named: the first of these that is left when all is read."""
Rule = Callable[[str, Cue], list[Mention]]


class Trace(NamedTuple):
    """One probe's way. codes: record id -> product code; target: the record of the target's visit; opened: the code of
    the product on which it ended, or ""; state: of `pairing.state_of`; steps: as the run keeps them."""

    question_id: str
    cue: Cue
    codes: Mapping[str, str]
    target: str
    opened: str
    state: str
    steps: Sequence[Mapping[str, Any]]


class Finding(NamedTuple):
    """What a trace amounts to.

    failure: of FAILURES, "" where the probe did not fail. naming: of NAMINGS. to: whose item bears the cue by the
    trace's last word (target, opened, another, unclear), "" where it is not asserted. retrieved: whether the target was
    delivered in any step. step: the deciding one, from 1: which came to the last product, or else the last; 0 without
    steps. Of that step: in_context, whether the target was delivered; target, opened: their places among the delivered,
    from 1 (0: not there); delivered: how many. astray: steps of the whole trace that asked for a page or a link that
    does not exist. said, mark: the reasoning that decided `naming`, and the characters of the mention in it.
    """

    state: str
    failure: str
    naming: str
    to: str
    step: int
    retrieved: bool
    in_context: bool
    target: int
    opened: int
    delivered: int
    astray: int
    said: str
    mark: tuple[int, int]


def cues_of(questions: Iterable[Question], products: Iterable[Product]) -> dict[str, Cue]:
    """Question id -> colour and object of the product it asks for.

    ValueError for an answer that is no product's code.
    """
    known = {product.code: product.cue[:2] for product in products}
    found = {}
    for question in questions:
        if question.answer not in known:
            raise ValueError(
                f"question {question.id!r}: no product has the code {question.answer!r}; give its own shop's"
            )
        found[question.id] = known[question.answer]
    return found


def trace_of(row: Mapping[str, Any], question: Question, cue: Cue) -> Trace:
    """One row of `runs.load` as a trace. A judged answer without steps is a ValueError."""
    state, steps = state_of(row["status"], row["verdict"]), row.get("steps")
    steps = steps if isinstance(steps, list | tuple) else ()
    if not steps and state in ("right", "wrong"):
        raise ValueError(f"question {question.id!r}: its answer has no steps; run the errand again")
    return Trace(question.id, cue, codes_of(question.memory), question.gold[0], row["answer"], state, steps)


def codes_of(memory: Memory) -> dict[str, str]:
    """Record id -> code of the product page that its text names; records that name none are left out."""
    pages = {record.id: re.search(r"/product/([\w-]+)", record.text) for record in memory}
    return {name: page[1] for name, page in pages.items() if page}


def classify(trace: Trace, rule: Rule = by_sentence) -> Finding:
    """The finding of one trace. rule: `mentions.by_sentence` or `mentions.by_window`."""
    at, own = _deciding(trace), trace.codes[trace.target]
    shown = [[trace.codes.get(name) for name in step["delivered"]] for step in trace.steps]
    codes = shown[at] if shown else []
    target, opened = (codes.index(code) + 1 if code in codes else 0 for code in (own, trace.opened))
    naming, place, said, mark = _named(trace, at, rule)
    whose = {trace.opened: "opened", own: "target", "": "unclear"}.get(place, "another")
    retrieved, failure = any(own in delivered for delivered in shown), ""
    if trace.state == "wrong":
        holds = {
            "not retrieved": not retrieved,
            "unreadable": not trace.opened and trace.steps[-1]["outcome"] == "unparsed",
            "nothing opened": not trace.opened,
            "out of context": not target,
            "other product": not opened,
            "cue not named": naming != "asserted",
            "cue named": True,
        }
        failure = next(name for name in FAILURES if holds[name])
    to = whose if naming == "asserted" else ""
    astray = sum(step["outcome"] in ("no such page", "no such link") for step in trace.steps)
    there = (retrieved, bool(target), target, opened, len(codes), astray)
    return Finding(trace.state, failure, naming, to, at + 1 if shown else 0, *there, said, mark)


def _deciding(trace: Trace) -> int:
    """Index of the step that came to the last product, or of the last step."""
    page = f"/product/{trace.opened}"
    came = [i for i, step in enumerate(trace.steps) if step["landed"] == page != step["url"]]
    if trace.opened and not came and trace.state in ("right", "wrong"):
        raise ValueError(f"question {trace.question_id!r}: no step came to {page}; run the errand again")
    return came[-1] if trace.opened and came else max(0, len(trace.steps) - 1)


def reasoning(reply: str) -> str:
    """A reply without its Action lines, and without spaces at its ends."""
    return re.sub(r"^\W*action\W*:.*$", "", reply, flags=re.MULTILINE | re.IGNORECASE).strip()


def _named(trace: Trace, at: int, rule: Rule) -> tuple[str, str, str, tuple[int, int]]:
    """How the cue is named up to that step; the code of the item that has it by the last word; where that is said."""
    said: dict[str, tuple[str, str, tuple[int, int]]] = {}
    sought: tuple[str, str, tuple[int, int]] | None = None
    for step in trace.steps[: at + 1]:
        text = reasoning(step["reply"])
        for start, end, how, place in rule(text, trace.cue):
            entry = (how, text, (start, end))
            if how == "sought":
                sought = sought or entry
                continue
            if place == "all":
                said.clear()
            key = _code(place, step, trace.codes) or f"?{place}"
            said.pop(key, None)  # the last word comes last
            said[key] = entry
    for wanted in NAMINGS[:2]:
        for place, (how, text, mark) in reversed(said.items()):
            if how == wanted:
                return how, "" if place.startswith("?") else place, text, mark
    if sought:
        return "sought", "", *sought[1:]
    return "absent", "", reasoning(trace.steps[at]["reply"]) if trace.steps else "", (0, 0)


def _code(place: str, step: Mapping[str, Any], codes: Mapping[str, str]) -> str:
    """The product that a place of `mentions` means in a step; "" where it means none."""
    kind, _, name = place.partition(" ")
    on_page = re.fullmatch(r"/product/([\w-]+)", step["url"])
    if kind == "code":
        return name
    if kind == "page":
        return on_page[1] if on_page else ""
    if kind == "tag":
        i = step["tags"].index(f"M{name}") if f"M{name}" in step["tags"] else -1
    else:  # a picture's number is the item's where no page's picture comes first
        i = int(name) - 1 if kind == "item" or (kind == "image" and not on_page) else -1
    return codes.get(step["delivered"][i], "") if 0 <= i < len(step["delivered"]) else ""
