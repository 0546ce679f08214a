"""The world behind the embedded benchmark and the training of the reference model.

A conversation is dated sessions of user and assistant turns: photographs of places, things bought, things put
somewhere, small talk. `ask` makes one question of a given sort from any list of its turns, with the answer that
those turns support and the turns that hold the evidence, so the benchmark (which asks about a whole
conversation) and the trainer (which asks about the few turns delivered) run the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import numpy as np

from delivermem.benchmarks.scenes import (
    COLOURS,
    HELD_OUT,
    OBJECTS,
    PAIRS,
    PLACES,
    Scene,
    Thing,
    draw_scene,
    render,
)
from delivermem.records import IMAGE_MARK, Picture, Record

T = TypeVar("T")

TOPICS = (
    "kitchen garden office beach museum school hotel library market bakery station airport bridge farm forest "
    "island lake river mountain desert park zoo theater cinema gym pool cafe bar church harbor village wedding "
    "birthday concert picnic hike camp party dinner lunch parade festival workshop meeting class trip cruise ferry "
    "train subway balcony terrace fair rink studio stadium chapel canyon meadow dune"
).split()
ROOMS = "attic cellar garage porch hallway bedroom bathroom closet shed lobby pantry loft".split()
BOUGHT = "kettle lamp chair table sofa clock mirror carpet shelf bucket ladder blanket pillow basket stove desk".split()
KEPT = "passport camera guitar wallet helmet hammer violin ticket scarf tent drill globe racket notebook torch".split()
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")

PHOTO_TEXTS = (
    "Here is a photo from the {t}. ", "My latest picture from the {t}. ", "I took this at the {t} today. ",
    "Look at this from the {t}! ", "Sharing a shot of the {t}. ", "This was the {t} an hour ago. ",
)  # fmt: skip
BOUGHT_TEXTS = (
    "For the {t} I bought {c} {i}.", "At the {t} we now have {c} {i}.", "The {t} finally got {c} {i}.",
)  # fmt: skip
KEPT_TEXTS = (
    "The {i} is in the {r}.", "I put the {i} in the {r}.", "You will find the {i} in the {r}.",
)  # fmt: skip
CHAT_TEXTS = (
    "Tomorrow I go to the {t} again.", "I am tired after the {t}.", "Do you know a good book about the {t}?",
    "The weather was nice today.", "What shall I cook tonight?", "I slept badly last night.",
    "My sister will visit me next week.", "Please remind me to call the dentist.",
)  # fmt: skip
REPLY_TEXTS = (
    "The {t} sounds lovely.", "Thank you for sharing this.", "I hope you enjoyed the {t}.", "I made a note of it.",
    "That is good to know.", "I will remember the {t}.", "Happy to help.",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Turn:
    """One message of a conversation, with what it says or shows kept apart for asking about it."""

    session: int
    place: int
    time: datetime
    role: str
    text: str
    topic: str = ""
    scene: Scene | None = None
    seed: int = 0
    bought: tuple[str, str] | None = None
    kept: tuple[str, str] | None = None

    @property
    def id(self) -> str:
        return f"s{self.session:02d}:{self.place:02d}"

    def record(self) -> Record:
        """The turn as a stored record, its photograph drawn."""
        pictures: tuple[Picture, ...] = ()
        if self.scene is not None:
            caption = "a photo of several objects in front of a plain wall"
            pictures = (Picture(f"{self.id}.png", render(self.scene, self.seed), caption),)
        return Record(self.id, self.text, self.time, self.role, f"s{self.session:02d}", pictures)


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


def conversation(rng: np.random.Generator, *, for_benchmark: bool, sessions: int = 10) -> list[Turn]:
    """A conversation of `sessions` dated sessions in order, about five turns each; some 12 to 16 photographs.

    As in MemLens, a session has one date and clock time, which all its turns carry.
    """
    topics = [TOPICS[i] for i in rng.permutation(len(TOPICS))]
    per_kind = dict(photo=1.25 * sessions, bought=0.6 * sessions, kept=0.3 * sessions)
    photos, bought = topics[: round(per_kind["photo"])], topics[20 : 20 + round(per_kind["bought"])]
    plan: list[list[dict[str, Any]]] = [[] for _ in range(sessions)]

    def place(*turns: dict[str, Any]) -> None:
        """Each turn into a session of its own, the emptier ones first."""
        load = np.array([len(s) for s in plan]) + rng.random(sessions) * 2
        for turn, where in zip(turns, np.argsort(load), strict=False):
            plan[where].append(turn)

    for i, topic in enumerate(photos):
        if i < 2:
            first, second = _changed_pair(rng, for_benchmark)
            place(dict(topic=topic, scene=first), dict(topic=topic, scene=second))
        else:
            place(dict(topic=topic, scene=draw_scene(rng, for_benchmark=for_benchmark)))
    for topic in bought:
        place(dict(topic=topic, bought=(_pick(rng, list(COLOURS)), _pick(rng, BOUGHT))))
    for i in rng.permutation(len(KEPT))[: round(per_kind["kept"])]:
        rooms = [ROOMS[j] for j in rng.permutation(len(ROOMS))[:2]]
        place(*(dict(kept=(KEPT[i], room)) for room in rooms))
    turns: list[Turn] = []
    day = datetime(2023, 1, 1) + timedelta(days=int(rng.integers(0, 500)))
    for number, session in enumerate(plan):
        day += timedelta(days=int(rng.integers(2, 70)))
        clock = day + timedelta(minutes=int(rng.integers(7 * 60, 21 * 60)))
        for fields in [session[i] for i in rng.permutation(len(session))]:
            for turn in (fields, *_small_talk(rng, fields.get("topic") or _pick(rng, photos + bought))):
                here = sum(t.session == number for t in turns)
                seed = int(rng.integers(2**31))
                turns.append(
                    Turn(number, here, clock, turn.pop("role", "user"), _said(rng, turn), seed=seed, **turn)
                )
    return turns


def _said(rng: np.random.Generator, turn: dict[str, Any]) -> str:
    if "said" in turn:
        return str(turn.pop("said"))
    if "scene" in turn:
        return _pick(rng, PHOTO_TEXTS).format(t=turn["topic"]) + IMAGE_MARK
    if "bought" in turn:
        colour, item = turn["bought"]
        return _pick(rng, BOUGHT_TEXTS).format(t=turn["topic"], c=_a(colour), i=item)
    item, room = turn["kept"]
    return _pick(rng, KEPT_TEXTS).format(i=item, r=room)


def _small_talk(rng: np.random.Generator, topic: str) -> list[dict[str, Any]]:
    talk = []
    if rng.random() < 0.65:
        talk.append(dict(role="assistant", said=_pick(rng, REPLY_TEXTS).format(t=topic)))
    if rng.random() < 0.3:
        talk.append(dict(role="user", said=_pick(rng, CHAT_TEXTS).format(t=topic)))
    return talk


def _changed_pair(rng: np.random.Generator, for_benchmark: bool) -> tuple[Scene, Scene]:
    """Two scenes with the same kind of object in different colours."""
    first = draw_scene(rng, for_benchmark=for_benchmark)
    old = _pick(rng, first)
    colours = [c for c in COLOURS if c != old.colour and (for_benchmark or (c, old.name) not in HELD_OUT)]
    return first, draw_scene(rng, for_benchmark=for_benchmark, must=(_pick(rng, colours), old.name))


def _a(word: str) -> str:
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def _pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    return options[int(rng.integers(len(options)))]


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
        return str(_pick(rng, sorted(set(TOPICS) - {turn.topic for turn in self.turns})))

    def unseen_pair(self, rng: np.random.Generator) -> tuple[str, str]:
        """A pair of colour and object that no photo shows; half the time a near miss of one that is shown."""
        shown = {thing[:2] for _, thing in self.things}
        pairs: Sequence[tuple[str, str]] = PAIRS
        if self.things and rng.random() < 0.5:
            near = _pick(rng, self.things)[1]
            pairs = [pair for pair in PAIRS if pair[1] == near.name or pair[0] == near.colour]
        return _pick(rng, [pair for pair in pairs if pair not in shown])


def _in_photo(rng: np.random.Generator, view: _View, absent: bool, subtype: str) -> Ask | None:
    """Questions to one photo known by its topic: colour, place, count."""
    if not view.lone:
        return None
    i = _pick(rng, view.lone)
    scene, topic = view.scene(i), view.topic(i)
    gone = absent and (subtype == "count" or rng.random() < 0.4)
    if gone:
        topic = view.unseen_topic(rng)
    thing = _pick(rng, scene)
    if absent and not gone:
        names = [name for name in OBJECTS if name not in {t.name for t in scene}]
        places = [place for place in PLACES if place not in {t.place for t in scene}]
        thing = Thing("", _pick(rng, names), _pick(rng, places))
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


def _by_content(rng: np.random.Generator, view: _View, absent: bool, subtype: str) -> Ask | None:
    """Questions to one photo known by what it shows: which memory, and when."""
    if not absent and not view.unique:
        return None
    i, thing = (0, Thing(*view.unseen_pair(rng), "")) if absent else _pick(rng, view.unique)
    if subtype == "which":
        text, answer = f"Which memory shows {_a(thing.colour)} {thing.name}?", view.turns[i].id
    else:
        text, answer = f"When did I send the photo with the {thing.colour} {thing.name}?", view.date(i)
    return _asked(subtype, text, answer, absent, (i,), ((i, thing.place),))


def _when_topic(rng: np.random.Generator, view: _View, absent: bool) -> Ask | None:
    if not view.lone:
        return None
    i = _pick(rng, view.lone)
    topic = view.unseen_topic(rng) if absent else view.topic(i)
    return _asked(
        "when_topic", f"When did I send the photo from the {topic}?", view.date(i), absent, (i,), ((i, ""),)
    )


def _bought(rng: np.random.Generator, view: _View, absent: bool) -> Ask | None:
    if not view.bought:
        return None
    i = _pick(rng, view.bought)
    topic = view.unseen_topic(rng) if absent else view.topic(i)
    colour, item = view.turns[i].bought or ("", "")
    text = f"What did I buy for the {topic}?"
    return _asked("bought", text, f"{colour} {item}", absent, (i,), ((i, colour), (i, item)))


def _kept(rng: np.random.Generator, view: _View, absent: bool) -> Ask | None:
    if not view.kept:
        return None
    item = (view.turns[_pick(rng, view.kept)].kept or ("", ""))[0]
    gold = [i for i in view.kept if (view.turns[i].kept or ("", ""))[0] == item]
    gold.sort(key=lambda i: view.turns[i].time)
    rooms = {i: (view.turns[i].kept or ("", ""))[1] for i in gold}
    if absent:
        there = {(view.turns[i].kept or ("", ""))[0] for i in view.kept}
        item = _pick(rng, [name for name in KEPT if name not in there])
    focus = tuple((i, rooms[i]) for i in gold)
    text = f"Where is the {item} now?"
    return _asked("latest_place", text, rooms[gold[-1]], absent, tuple(gold), focus, focus[-1:])


def _latest_photo(rng: np.random.Generator, view: _View, absent: bool) -> Ask | None:
    topics = [topic for topic in view.twice if not absent]
    if not topics:
        return None
    topic = _pick(rng, topics)
    gold = sorted((i for i in view.photos if view.topic(i) == topic), key=lambda i: view.turns[i].time)
    old, new = ({thing.name: thing for thing in view.scene(i)} for i in gold)
    names = [name for name in old if name in new and old[name].colour != new[name].colour]
    if not names:
        return None
    name = _pick(rng, names)
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
    name = _pick(rng, names)
    focus = tuple((i, thing.place) for i, thing in view.things if thing.name == name)
    text = f"How many photos show {_a(name)}?"
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
    "which": _sort("information_extraction", "pixels", _by_content, "which"),
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
