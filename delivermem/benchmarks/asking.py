"""Questions about the world: of any sort, from any list of its turns.

`ask` makes one question with the answer that those turns support and the turns that hold the evidence, so the
benchmark (which asks about a whole conversation) and the trainer (which asks about the few turns delivered) run
the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from delivermem.benchmarks.scenes import OBJECTS, PAIRS, PLACES, Scene, Thing
from delivermem.benchmarks.world import KEPT, NUMBERS, TOPICS, Turn, indefinite, pick


@dataclass(frozen=True, eq=False)
class Ask:
    """A question with its answer, the indices of the turns that hold the evidence, and where in them it is.

    `focus` names the evidence more finely for the trainer: (turn, place) a thing in a photograph, (turn, word)
    words of a text, (turn, "") the whole turn. `final` is the one of them that gives the answer.
    """

    subtype: str
    text: str
    answer: str
    gold: tuple[int, ...] = ()
    focus: tuple[tuple[int, str], ...] = ()
    final: tuple[tuple[int, str], ...] = ()
    refusal: bool = False


class _View:
    """Look-ups over a list of turns that several sorts of question share."""

    def __init__(self, turns: Sequence[Turn]):
        self.turns = turns
        self.photos = [i for i, turn in enumerate(turns) if turn.scene is not None]
        self.bought = [i for i, turn in enumerate(turns) if turn.bought is not None]
        self.kept = [i for i, turn in enumerate(turns) if turn.kept is not None]
        topics = Counter(turns[i].topic for i in self.photos)
        self.lone = [i for i in self.photos if topics[turns[i].topic] == 1]
        self.twice = [topic for topic, count in topics.items() if count == 2]
        self.things = [(i, thing) for i in self.photos for thing in turns[i].scene or ()]
        pairs = Counter(thing[:2] for _, thing in self.things)
        self.unique = [(i, thing) for i, thing in self.things if pairs[thing[:2]] == 1]

    def scene(self, i: int) -> Scene:
        return self.turns[i].scene or ()

    def topic(self, i: int) -> str:
        return self.turns[i].topic

    def date(self, i: int) -> str:
        return f"{self.turns[i].time:%Y/%m/%d}"

    def unseen_topic(self, rng: np.random.Generator) -> str:
        return str(pick(rng, sorted(set(TOPICS) - {turn.topic for turn in self.turns})))

    def unseen_pair(self, rng: np.random.Generator) -> tuple[str, str]:
        """A pair of colour and object that no photo shows; half the time a near miss of one that is shown."""
        shown = {thing[:2] for _, thing in self.things}
        pairs: Sequence[tuple[str, str]] = PAIRS
        if self.things and rng.random() < 0.5:
            near = pick(rng, self.things)[1]
            pairs = [pair for pair in PAIRS if pair[1] == near.name or pair[0] == near.colour]
        return pick(rng, [pair for pair in pairs if pair not in shown])


def _in_photo(rng: np.random.Generator, view: _View, absent: bool, subtype: str) -> Ask | None:
    """Questions to one photo known by its topic: colour, place, count."""
    if not view.lone:
        return None
    i = pick(rng, view.lone)
    scene, topic = view.scene(i), view.topic(i)
    gone = absent and (subtype == "count" or rng.random() < 0.4)
    if gone:
        topic = view.unseen_topic(rng)
    thing = pick(rng, scene)
    if absent and not gone:
        names = [name for name in OBJECTS if name not in {t.name for t in scene}]
        places = [place for place in PLACES if place not in {t.place for t in scene}]
        thing = Thing("", pick(rng, names), pick(rng, places))
    if subtype == "count":
        text, answer = f"How many objects are in the photo from the {topic}?", NUMBERS[len(scene)]
        focus = tuple((i, t.place) for t in scene)
    elif subtype == "colour":
        text, answer, focus = (
            f"What colour is the {thing.name} in the photo from the {topic}?",
            thing.colour,
            (),
        )
    else:
        text, answer = (
            f"What is at the {thing.place} of the photo from the {topic}?",
            f"{thing.colour} {thing.name}",
        )
        focus = ()
    return _asked(subtype, text, answer, absent, (i,), focus or ((i, thing.place),))


def _asked(
    subtype: str,
    text: str,
    answer: str,
    absent: bool,
    gold: tuple[int, ...],
    focus: tuple[tuple[int, str], ...],
    final: tuple[tuple[int, str], ...] = (),
) -> Ask:
    if absent:
        return Ask(subtype, text, "", refusal=True)
    return Ask(subtype, text, answer, gold, focus, final or focus)


def which(colour: str, name: str) -> str:
    """The question for the memory whose photo shows something."""
    return f"Which memory shows {indefinite(colour)} {name}?"


def _by_content(rng: np.random.Generator, view: _View, absent: bool, subtype: str) -> Ask | None:
    """Questions to one photo known by what it shows: which memory, and when."""
    if not absent and not view.unique:
        return None
    i, thing = (0, Thing(*view.unseen_pair(rng), "")) if absent else pick(rng, view.unique)
    if subtype == "which":
        text, answer = which(thing.colour, thing.name), view.turns[i].id
    else:
        text, answer = f"When did I send the photo with the {thing.colour} {thing.name}?", view.date(i)
    return _asked(subtype, text, answer, absent, (i,), ((i, thing.place),))


def _when_topic(rng: np.random.Generator, view: _View, absent: bool) -> Ask | None:
    if not view.lone:
        return None
    i = pick(rng, view.lone)
    topic = view.unseen_topic(rng) if absent else view.topic(i)
    return _asked(
        "when_topic", f"When did I send the photo from the {topic}?", view.date(i), absent, (i,), ((i, ""),)
    )


def _bought(rng: np.random.Generator, view: _View, absent: bool) -> Ask | None:
    if not view.bought:
        return None
    i = pick(rng, view.bought)
    topic = view.unseen_topic(rng) if absent else view.topic(i)
    colour, item = view.turns[i].bought or ("", "")
    text = f"What did I buy for the {topic}?"
    return _asked("bought", text, f"{colour} {item}", absent, (i,), ((i, colour), (i, item)))


def _kept(rng: np.random.Generator, view: _View, absent: bool) -> Ask | None:
    if not view.kept:
        return None
    item = (view.turns[pick(rng, view.kept)].kept or ("", ""))[0]
    gold = [i for i in view.kept if (view.turns[i].kept or ("", ""))[0] == item]
    gold.sort(key=lambda i: view.turns[i].time)
    rooms = {i: (view.turns[i].kept or ("", ""))[1] for i in gold}
    if absent:
        there = {(view.turns[i].kept or ("", ""))[0] for i in view.kept}
        item = pick(rng, [name for name in KEPT if name not in there])
    focus = tuple((i, rooms[i]) for i in gold)
    text = f"Where is the {item} now?"
    return _asked("latest_place", text, rooms[gold[-1]], absent, tuple(gold), focus, focus[-1:])


def _latest_photo(rng: np.random.Generator, view: _View, absent: bool) -> Ask | None:
    topics = [topic for topic in view.twice if not absent]
    if not topics:
        return None
    topic = pick(rng, topics)
    gold = sorted((i for i in view.photos if view.topic(i) == topic), key=lambda i: view.turns[i].time)
    old, new = ({thing.name: thing for thing in view.scene(i)} for i in gold)
    names = [name for name in old if name in new and old[name].colour != new[name].colour]
    if not names:
        return None
    name = pick(rng, names)
    focus = ((gold[0], old[name].place), (gold[1], new[name].place))
    text = f"What colour is the {name} in the latest photo from the {topic}?"
    return _asked("latest_photo", text, new[name].colour, False, tuple(gold), focus, focus[1:])


def _two_photos(rng: np.random.Generator, view: _View, absent: bool, subtype: str) -> Ask | None:
    """Two photos known by their topics: which came first, which shows more."""
    if len(view.lone) < 2 or absent:
        return None
    a, b = (view.lone[i] for i in rng.permutation(len(view.lone))[:2])
    if subtype == "first":
        if view.turns[a].session == view.turns[b].session:
            return None
        text = f"Which photo came first, the {view.topic(a)} or the {view.topic(b)}?"
        win = min(a, b, key=lambda i: view.turns[i].time)
        focus: tuple[tuple[int, str], ...] = ((a, ""), (b, ""))
    else:
        if len(view.scene(a)) == len(view.scene(b)):
            return None
        text = f"Which photo has more objects, the {view.topic(a)} or the {view.topic(b)}?"
        win = max(a, b, key=lambda i: len(view.scene(i)))
        focus = tuple((i, thing.place) for i in (a, b) for thing in view.scene(i))
    return _asked(
        subtype, text, view.topic(win), False, (a, b), focus, tuple(f for f in focus if f[0] == win)
    )


def _count_photos(rng: np.random.Generator, view: _View, absent: bool) -> Ask | None:
    if absent or not view.things:
        return None
    counts = Counter(thing.name for _, thing in view.things)
    goal = int(rng.integers(1, 5))
    names = sorted(name for name, count in counts.items() if count == goal) or sorted(counts)
    name = pick(rng, names)
    focus = tuple((i, thing.place) for i, thing in view.things if thing.name == name)
    text = f"How many photos show {indefinite(name)}?"
    return _asked("count_photos", text, NUMBERS[min(len(focus), 6)], False, tuple(i for i, _ in focus), focus)


@dataclass(frozen=True)
class Sort:
    """A sort of question: its type in the benchmark, the channels it needs, and how one is made."""

    kind: str
    needs: frozenset[str]
    make: Callable[[np.random.Generator, _View, bool], Ask | None]


def _sort(kind: str, needs: str, make: Callable[..., Ask | None], *extra: str) -> Sort:
    return Sort(kind, frozenset(needs.split()), lambda rng, view, absent: make(rng, view, absent, *extra))


SORTS = {
    "colour": _sort("information_extraction", "pixels", _in_photo, "colour"),
    "place": _sort("information_extraction", "pixels", _in_photo, "place"),
    "count": _sort("information_extraction", "pixels", _in_photo, "count"),
    "which": _sort("information_extraction", "pixels identity", _by_content, "which"),
    "bought": _sort("information_extraction", "text", _bought),
    "count_photos": _sort("multi_session_reasoning", "pixels", _count_photos),
    "more": _sort("multi_session_reasoning", "pixels", _two_photos, "more"),
    "when_photo": _sort("temporal_reasoning", "pixels time", _by_content, "when_photo"),
    "when_topic": _sort("temporal_reasoning", "text time", _when_topic),
    "first": _sort("temporal_reasoning", "text time", _two_photos, "first"),
    "latest_photo": _sort("knowledge_update", "pixels time", _latest_photo),
    "latest_place": _sort("knowledge_update", "text time", _kept),
}
"""Every sort of question by name; `absent` ones exist for all that ask for a single thing."""


def ask(rng: np.random.Generator, turns: Sequence[Turn], subtype: str, *, absent: bool = False) -> Ask | None:
    """One question of that sort about these turns, or None where they offer none.

    absent: ask for something that the turns do not hold, so that refusing is right.
    """
    return SORTS[subtype].make(rng, _View(turns), absent)
