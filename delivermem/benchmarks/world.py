"""The world behind the embedded benchmark and the training of the reference model.

A conversation is dated sessions of user and assistant turns: photographs of places, things bought, things put
somewhere, small talk. What can be asked about it is in `asking`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import numpy as np

from delivermem.benchmarks.scenes import (
    COLOURS,
    HELD_OUT,
    Scene,
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

CAPTION = "a photo of several objects in front of a plain wall"
"""What a stored text says of a photograph: nothing that is asked for."""
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
            pictures = (Picture(f"{self.id}.png", render(self.scene, self.seed), CAPTION),)
        return Record(self.id, self.text, self.time, self.role, f"s{self.session:02d}", pictures)


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
        place(dict(topic=topic, bought=(pick(rng, list(COLOURS)), pick(rng, BOUGHT))))
    for i in rng.permutation(len(KEPT))[: round(per_kind["kept"])]:
        rooms = [ROOMS[j] for j in rng.permutation(len(ROOMS))[:2]]
        place(*(dict(kept=(KEPT[i], room)) for room in rooms))
    turns: list[Turn] = []
    day = datetime(2023, 1, 1) + timedelta(days=int(rng.integers(0, 500)))
    for number, session in enumerate(plan):
        day += timedelta(days=int(rng.integers(2, 70)))
        clock = day + timedelta(minutes=int(rng.integers(7 * 60, 21 * 60)))
        for fields in [session[i] for i in rng.permutation(len(session))]:
            for turn in (fields, *_small_talk(rng, fields.get("topic") or pick(rng, photos + bought))):
                here = sum(t.session == number for t in turns)
                seed = int(rng.integers(2**31))
                turns.append(
                    Turn(number, here, clock, turn.pop("role", "user"), _said(rng, turn), seed=seed, **turn)
                )
    return turns


def filler(
    rng: np.random.Generator,
    sessions: int,
    *,
    topics: Sequence[str],
    kept: Sequence[str],
    wanted: Callable[[Scene], bool],
) -> list[list[dict[str, Any]]]:
    """What is said in sessions like a conversation's, on those topics and things alone, in photographs that are `wanted`:
    the fields of each turn, without a time. Topics come again and again, so nothing of it can be asked about."""

    def photo() -> dict[str, Any]:
        while not wanted(scene := draw_scene(rng, for_benchmark=True)):
            pass
        return dict(topic=pick(rng, topics), scene=scene)

    made = []
    for _ in range(sessions):
        turns = [photo() for _ in range(1 + int(rng.random() < 0.25))]
        turns += [dict(topic=pick(rng, topics), bought=(pick(rng, list(COLOURS)), pick(rng, BOUGHT)))] * int(
            rng.random() < 0.6
        )
        turns += [dict(kept=(pick(rng, kept), pick(rng, ROOMS)))] * int(rng.random() < 0.6)
        said = []
        for i in rng.permutation(len(turns)):
            fields = dict(turns[i])
            talk = _small_talk(rng, fields.get("topic") or pick(rng, topics))
            said += [fields | dict(said=_said(rng, fields)), *talk]
        made.append(said)
    return made


def _said(rng: np.random.Generator, turn: dict[str, Any]) -> str:
    if "said" in turn:
        return str(turn.pop("said"))
    if "scene" in turn:
        return pick(rng, PHOTO_TEXTS).format(t=turn["topic"]) + IMAGE_MARK
    if "bought" in turn:
        colour, item = turn["bought"]
        return pick(rng, BOUGHT_TEXTS).format(t=turn["topic"], c=indefinite(colour), i=item)
    item, room = turn["kept"]
    return pick(rng, KEPT_TEXTS).format(i=item, r=room)


def _small_talk(rng: np.random.Generator, topic: str) -> list[dict[str, Any]]:
    talk = []
    if rng.random() < 0.65:
        talk.append(dict(role="assistant", said=pick(rng, REPLY_TEXTS).format(t=topic)))
    if rng.random() < 0.3:
        talk.append(dict(role="user", said=pick(rng, CHAT_TEXTS).format(t=topic)))
    return talk


def _changed_pair(rng: np.random.Generator, for_benchmark: bool) -> tuple[Scene, Scene]:
    """Two scenes with the same kind of object in different colours."""
    first = draw_scene(rng, for_benchmark=for_benchmark)
    old = pick(rng, first)
    colours = [c for c in COLOURS if c != old.colour and (for_benchmark or (c, old.name) not in HELD_OUT)]
    return first, draw_scene(rng, for_benchmark=for_benchmark, must=(pick(rng, colours), old.name))


def indefinite(word: str) -> str:
    """The word with its article."""
    return f"an {word}" if word[0] in "aeiou" else f"a {word}"


def pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    """One of the options, each as likely."""
    return options[int(rng.integers(len(options)))]
