"""Where a text names a cue, how, and beside which item: two rules of different making, so that each checks the other.

- A cue is *named* where its colour and its object stand together: the colour before the object with at most two words
  between, none of them another colour or a joining word, or after it (`the key is red`). Neither `blue key` nor
  `red lamp and key` names the red key.
- A mention is *negated* (`no memory shows the red key`, `the red key is missing`); *sought* (`find the red key` or
  `earlier I saw a red key` with no item named beside it, or a question); or else *asserted*.
- It belongs to the item named beside it: its tag, its number, its product page, or the page at hand.

Words are matched as they stand, in any case, with a plural's ending; no synonym counts.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from delivermem.benchmarks.scenes import COLOURS

Cue = tuple[str, str]
"""Colour and object."""
HOW = ("asserted", "negated", "sought")


class Mention(NamedTuple):
    """Characters of the mention, how the cue is named there (of HOW), and the item beside it: `tag 2`; `item 2` by its
    number; `image 2` by a number that counts the page's own picture too; `code e5s`; `page`; `all` where it is said of
    none; "" where no item is named."""

    start: int
    end: int
    how: str
    place: str


HUES = frozenset(COLOURS) | set(
    "white gray grey brown silver gold golden beige cyan teal turquoise violet magenta navy maroon".split()
)
JOINING = frozenset(
    "a an and are as at beside but by for from has have in is it its near next no nor not of on or shows than that the "
    "this to was which with without".split()
)
"""Words that part a colour from an object that is not its own."""
NTH = {
    word: i
    for i, word in enumerate(
        "first second third fourth fifth sixth seventh eighth ninth tenth".split(), start=1
    )
}
SEEKING = frozenset(
    "search searching find finding need needs want wants wanted seek seeking locate locating task subtask "
    "goal asked user should must whether if earlier previously saw go".split()
)

# -- sentences and patterns ---------------------------------------------------------------------------------------

_GAP = r"[\s*\"'“”‘’`-]+"
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?](?=\S)[^.!?\n]*)*[.!?]*")
_PLACE = re.compile(
    r"\bM(?P<tag>\d+)\b|/product/(?P<code>[\w-]+)"
    r"|\b(?:memory|recalled|delivered)\s+(?:(?:image|picture|photo|item|product)\s+)?(?:number\s+|#)?(?P<memory>\d+)\b"
    r"|\b(?:item|result|entry)\s+(?:number\s+|#)?(?P<item>\d+)\b|(?<!\w)\((?P<lead>\d+)\)"
    r"|\b(?:image|picture|photo|product)\s+(?:number\s+|#)?(?P<image>\d+)\b"
    rf"|\b(?P<nth>{'|'.join(NTH)})\s+(?P<kept>(?:memory|recalled|delivered|retrieved)\s+)?"
    r"(?P<thing>image|picture|photo|memory|item|product|result|one)\b"
    r"|\b(?P<page>(?:this|the|current)\s+(?:current\s+)?(?:product\s+)?page"
    r"|this\s+(?:product|item|image|picture|photo))\b",
    re.IGNORECASE,
)
_STRONG = r";|\b(?:but|except|however|while|whereas|although|though|other than|apart from)\b"
_BREAK = re.compile(
    rf"[,:]|—|–|{_STRONG}|\b(?:because|since|so|and(?=\s+(?:the\s+|in\s+)?(?:M\d|memory|item|image|this)))\b",
    re.IGNORECASE,
)
_NOT = re.compile(
    r"\b(?:not|never|cannot|without|lacks?|lacking|no|nor|neither|none|nothing|\w+n['’]t|rather than|instead of)\b"
    r"(?!\s+(?:only|just|doubt))",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"\s+(?:\w+\s+){0,2}?(?:not|never|missing|absent|nowhere|\w+n['’]t)\b(?!\s+only)", re.IGNORECASE
)
_NONE = re.compile(
    r"\b(?:none|nothing|neither|nowhere"
    r"|no\s+(?:\w+\s+)?(?:memory|memories|images?|pictures?|photos?|items?|products?))\b",
    re.IGNORECASE,
)
_COMPOUND = re.compile(rf"\b(?:{'|'.join(sorted(HUES))})-$", re.IGNORECASE)
_SEEK = re.compile(rf"\b(?:look(?:ing|s)?\s+for|{'|'.join(sorted(SEEKING))})\b", re.IGNORECASE)


def by_sentence(text: str, cue: Cue) -> list[Mention]:
    """Mentions by patterns within sentences.

    What is denied is denied within its clause, and the item is the nearest that is named in the clause, before rather
    than after, or else in the sentence. A sentence that begins with It keeps the last item named before it.
    """
    found, last = [], ""
    for sentence in _SENTENCE.finditer(text):
        said = sentence[0]
        places = [
            m for m in _PLACE.finditer(said) if not re.search(r"\bnot\s+(?:in\s+)?$", said[: m.start()])
        ]
        for match in _pattern(cue).finditer(said):
            if _COMPOUND.search(said, 0, match.start()):
                continue
            ends = [m.end() for m in _BREAK.finditer(said, 0, match.start())]
            after = _BREAK.search(said, match.end())
            left, right = max(ends, default=0), after.start() if after else len(said)
            inner = [m for m in places if left <= m.start() < right]
            near = [m for m in inner if m.start() < match.start()][-1:] or inner[:1]
            near = near or [m for m in places if m.start() < match.start()][-1:] or places[:1]
            carried = last if re.match(r"\W*(?:it|its|there)\b", said, re.IGNORECASE) else ""
            place = _written(near[0]) if near else carried
            strong = [m.end() for m in re.finditer(_STRONG, said[: match.start()], re.IGNORECASE)]
            none = _NONE.search(said, max(strong, default=0), match.start())
            denied = none or _NOT.search(said, left, match.start()) or _AFTER.match(said, match.end(), right)
            how = "asserted"
            if denied:
                whole = none or (denied[0].lower() == "no" and not place and denied)
                others = whole and re.search(r"\bother", said[whole.start() : match.start()], re.IGNORECASE)
                how, place = "negated", "all" if whole and not others else place
            elif said.rstrip().endswith("?") or (not place and _SEEK.search(said, 0, match.start())):
                how = "sought"
            start = sentence.start() + match.start()
            found.append(Mention(start, start + len(match[0]), how, place))
        last = _written(places[-1]) if places else last
    return found


@cache
def _pattern(cue: Cue) -> re.Pattern[str]:
    colour, thing = (_GAP.join(re.escape(word) for word in name.split()) for name in cue)
    others = sorted(HUES - set(cue[0].lower().split()))
    thing = rf"{thing}(?:e?s)?\b"
    between = rf"(?:{_GAP}(?!(?:{'|'.join((*others, *sorted(JOINING)))})\b)\w+){{0,2}}{_GAP}"
    before = rf"\b{colour}(?:[\s-]?colou?red)?{between}{thing}"
    after = rf"\b{thing}(?:,?\s+(?:that|which))?\s+(?:is|are|was|looks)\s+(?:(?:bright|dark|light|in)\s+)?{colour}\b"
    return re.compile(
        rf"{before}|{after}(?!-)|\b{thing}\s+(?:in\s+{colour}\b(?!\s+\w)|\({colour}\))", re.IGNORECASE
    )


def _written(match: re.Match[str]) -> str:
    part = match.groupdict()
    if part["nth"]:
        pictured = part["thing"].lower() in ("image", "picture", "photo", "product", "one")
        return f"{'image' if pictured and not part['kept'] else 'item'} {NTH[part['nth'].lower()]}"
    for kind in ("tag", "code", "image"):
        if part[kind]:
            return f"{kind} {part[kind]}"
    number = part["memory"] or part["item"] or part["lead"]
    return f"item {number}" if number else "page"


# -- tokens and windows -------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"/product/[\w-]+|\w+(?:['’](?!s\b)\w+)?|[.!?](?=\s|$)|[;,:()\n]")
_STOPS = frozenset(".!?\n")
_TURNS = frozenset("but except however while whereas although though ;".split())
_NEGATORS = frozenset("no not none nothing neither nor never cannot without lack lacks lacking".split())
_GONE = frozenset("not missing absent nowhere never".split())
_KEPT = frozenset("memory recalled delivered retrieved item result entry".split())
_SHOWN = frozenset("image picture photo product one".split())
REACH, WINDOW = 3, 7
"""Tokens between colour and object, and tokens before a mention in which a negation counts."""


def by_window(text: str, cue: Cue) -> list[Mention]:
    """Mentions by windows of tokens.

    The nearest colour is the object's own; a negation counts within WINDOW tokens before, back to a stop, a turn
    (`but`) or an item; the item is the nearest before in the sentence, or else the nearest after.
    """
    tokens = [*_TOKEN.finditer(text)]
    words = [token[0].lower().replace("’", "'") for token in tokens]
    places, found = _numbered(words), []
    colour, thing = (name.lower().split() for name in cue)
    for i in range(len(words)):
        at = _coloured(words, i, thing, colour) if _stands(words, i, thing) else None
        if at is None:
            continue
        first, last = min(at, i), max(at + len(colour), i + len(thing)) - 1
        begin = max((j for j in range(first) if words[j] in _STOPS), default=-1) + 1
        end = next((j for j in range(last, len(words)) if words[j] in _STOPS), len(words))
        near = sorted((j > first, abs(j - first), j) for j in places if begin <= j < end)
        place = places[near[0][2]] if near else ""
        reach = max(begin, first - WINDOW, *(j for j in range(first) if words[j] in _TURNS or j in places), 0)
        denying = [j for j in range(reach, first) if _denies(words, j)]
        gone = any(word in _GONE or word.endswith("n't") for word in _until_turn(words[last + 1 : last + 4]))
        how = "asserted"
        if denying or gone:
            how, whole = "negated", any(words[j] in ("no", "none", "nothing", "neither") for j in denying)
            place = "all" if whole and not place and words[denying[-1] + 1] != "other" else place
        elif (end < len(words) and words[end] == "?") or (not place and _seeks(words[begin:first])):
            how = "sought"
        found.append(Mention(tokens[first].start(), tokens[last].end(), how, place))
    return found


def _stands(words: list[str], i: int, name: list[str]) -> bool:
    """Whether a name stands at i, its last word perhaps with a plural's ending."""
    here = words[i : i + len(name)]
    plurals = {name[-1], f"{name[-1]}s", f"{name[-1]}es"}
    return len(here) == len(name) and here[:-1] == name[:-1] and here[-1] in plurals


def _coloured(words: list[str], i: int, thing: list[str], colour: list[str]) -> int | None:
    """Where that colour stands, if it is the object's at i: the nearest before it, or one that is told of it."""
    for j in range(i - 1, max(-1, i - 2 - REACH), -1):
        if words[j] in HUES | {colour[-1]}:
            at = j + 1 - len(colour)
            return at if at >= 0 and words[at : j + 1] == colour else None
        if words[j] in JOINING or not words[j][0].isalnum():
            break
    after = words[i + len(thing) : i + len(thing) + 1 + REACH]
    told = False
    for j, word in enumerate(after, i + len(thing)):
        if word in HUES | {colour[0]}:
            return j if told and words[j : j + len(colour)] == colour else None
        told = told or word in ("is", "are", "was", "looks", "in", "(")
        if word not in ("is", "are", "was", "looks", "in", "(", "that", "which", "bright", "dark", "light"):
            break
    return None


def _denies(words: list[str], j: int) -> bool:
    follows = words[j + 1] if j + 1 < len(words) else ""
    return (words[j] in _NEGATORS or words[j].endswith("n't")) and follows not in ("only", "just", "doubt")


def _seeks(words: list[str]) -> bool:
    looks = any(a.startswith("look") and b == "for" for a, b in pairwise(words))
    return looks or not SEEKING.isdisjoint(words)


def _until_turn(words: list[str]) -> list[str]:
    cut = next((i for i, word in enumerate(words) if word in _TURNS | _STOPS or word == ","), len(words))
    return words[:cut]


def _numbered(words: list[str]) -> dict[int, str]:
    """Items named in a text, by the index of the token that tells which."""
    found = {}
    for i, word in enumerate(words):
        before, following = words[max(0, i - 2) : i], words[i + 1 : i + 3]
        if word[0] == "m" and word[1:].isdigit():
            found[i] = f"tag {word[1:]}"
        elif word.startswith("/product/"):
            found[i] = f"code {word.removeprefix('/product/')}"
        elif word.isdigit() and (_KEPT & {*before} or (before[-1:] == ["("] and following[:1] == [")"])):
            found[i] = f"item {word}"
        elif word.isdigit() and _SHOWN & {*before}:
            found[i] = f"image {word}"
        elif word in NTH and (_KEPT | _SHOWN) & {*following}:
            found[i] = f"{'item' if _KEPT & {*following} else 'image'} {NTH[word]}"
        elif word == "page" and {"this", "the", "current"} & {*before}:
            found[i] = "page"
    return found
