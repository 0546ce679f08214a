"""Controls: the delivered prompt with one variable changed and everything else held.

Each is a pure function of a prompt, its question and a seed. None changes which records are delivered, their order or
number, or (but for the arm that says so) their text; the picture controls keep every slot and its size, so that a
vision-language model spends the same image tokens on every rung of the ladder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from PIL import Image as Pillow
from PIL.Image import Image, Resampling

from delivermem import pictures
from delivermem.delivery import IMAGES_LAST, IN_ANY_ORDER, untagged
from delivermem.records import Item, Prompt, Question, Slot

DOWN = 8
"""`downsampled` keeps one pixel in DOWN x DOWN."""
BLOCKS = 6
"""`scrambled` shuffles BLOCKS x BLOCKS blocks of a picture."""
SYMBOL = "M"
"""What `constant` stamps on every picture."""

Change = Callable[["Scene"], Prompt | None]


class Scene:
    """What a control may look at: the prompt, its question, pictures of other memories, and a stream of its own."""

    def __init__(
        self, prompt: Prompt, question: Question, others: Sequence[Question], control: str, seed: int
    ):
        self.prompt, self.question, self.others = prompt, question, others
        digest = hashlib.sha256(f"{seed}\n{control}\n{question.id}".encode()).digest()
        self.rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))

    @cached_property
    def stored(self) -> list[Image]:
        """The stored picture of each of the prompt's slots, as it is without a tag."""
        memory, slots = self.question.memory, self.prompt.slots
        unknown = [slot.record_id for slot in slots if slot.record_id not in memory]
        if unknown:
            raise ValueError(f"record {unknown[0]!r} is delivered but not in memory {memory.id!r}")
        left = {slot.record_id: iter(memory[slot.record_id].pictures) for slot in slots}
        return [pictures.load(next(left[slot.record_id])) for slot in slots]

    def with_pictures(self, change: Callable[[int], Image]) -> Prompt | None:
        """New pixels `change(i)` under the old tags, brought to the slot's size; None where there is no slot."""
        if not self.prompt.slots:
            return None

        def put(i: int, slot: Slot) -> Image:
            image = change(i)
            image = image if image.size == slot.image.size else image.resize(slot.image.size)
            return pictures.stamp(image, slot.tag) if slot.tag else image

        return self.prompt.with_images(put)

    def from_pool(self, pool: Sequence[Image]) -> Prompt | None:
        """Each slot a picture of the pool, none twice while there are enough."""
        if not pool:
            return None
        rounds = -(-len(self.prompt.slots) // len(pool))
        order = [i for _ in range(rounds) for i in self.rng.permutation(len(pool))]
        return self.with_pictures(lambda i: pool[order[i]])


def apply(
    prompt: Prompt, control: str, *, question: Question, others: Sequence[Question] = (), seed: int = 0
) -> Prompt | None:
    """The prompt under a control of `CONTROLS`; None where the control can't be had for this prompt.

    others: questions whose memories may lend pictures (`stranger`). The same arguments give the same bytes.
    Raises ValueError for an unknown control.
    """
    if control not in CONTROLS:
        raise ValueError(f"control {control!r} is unknown; choose one of {', '.join(CONTROLS)}")
    if prompt.layout == "chat" and control != "correct":
        return None  # a conversation's own messages: nothing in them is delivery's to change
    return CONTROLS[control](Scene(prompt, question, others, control, seed))


def cycle(rng: np.random.Generator, n: int) -> list[int]:
    """A random permutation of n >= 2 places that is one cycle, so that nothing stays (Sattolo 1986)."""
    order = list(range(n))
    for i in range(n - 1, 0, -1):
        j = int(rng.integers(i))
        order[i], order[j] = order[j], order[i]
    return order


# -- pictures: the ladder -------------------------------------------------------------------------------------


def _permuted(scene: Scene) -> Prompt | None:
    """Another delivered picture in every slot."""
    if len({pictures.content_hash(image) for image in scene.stored}) < 2:
        return None
    order = cycle(scene.rng, len(scene.stored))
    return scene.with_pictures(lambda i: scene.stored[order[i]])


def _sibling(scene: Scene) -> Prompt | None:
    """A picture of the same memory that is not delivered."""
    here = {(slot.record_id, slot.picture_id) for slot in scene.prompt.slots}
    shown = {pictures.content_hash(image) for image in scene.stored}
    free = [p for r in scene.question.memory for p in r.pictures if (r.id, p.id) not in here]
    pool = [pictures.load(p) for p in free]
    return scene.from_pool([image for image in pool if pictures.content_hash(image) not in shown])


def _stranger(scene: Scene) -> Prompt | None:
    """A picture of another memory that this one does not hold, one memory for all slots."""
    memories = {q.memory.id: q.memory for q in scene.others if q.memory.id != scene.question.memory.id}
    lent = [m for m in memories.values() if any(record.pictures for record in m)]
    if not lent:
        return None
    memory = lent[int(scene.rng.integers(len(lent)))]
    own = {pictures.content_hash(pictures.load(p)) for r in scene.question.memory for p in r.pictures}
    pool = [pictures.load(p) for record in memory for p in record.pictures]
    return scene.from_pool([image for image in pool if pictures.content_hash(image) not in own])


def _downsampled(scene: Scene) -> Prompt | None:
    def change(i: int) -> Image:
        image = scene.stored[i]
        small = image.resize([max(1, side // DOWN) for side in image.size], Resampling.BOX)
        return small.resize(image.size, Resampling.BILINEAR)

    return scene.with_pictures(change)


def _scrambled(scene: Scene) -> Prompt | None:
    def change(i: int) -> Image:
        pixels = np.asarray(scene.stored[i]).copy()
        height, width = (side // BLOCKS for side in pixels.shape[:2])
        inner = pixels[: height * BLOCKS, : width * BLOCKS]
        blocks = inner.reshape(BLOCKS, height, BLOCKS, width, 3).swapaxes(1, 2).reshape(-1, height, width, 3)
        blocks = blocks[scene.rng.permutation(len(blocks))].reshape(BLOCKS, BLOCKS, height, width, 3)
        inner[:] = blocks.swapaxes(1, 2).reshape(inner.shape)
        return Pillow.fromarray(pixels)

    small = any(min(image.size) < BLOCKS for image in scene.stored)
    return None if small else scene.with_pictures(change)


def _noise(scene: Scene) -> Prompt | None:
    """Pixels drawn independently, each channel from the picture's own values: its mean and variance, nothing else."""

    def change(i: int) -> Image:
        pixels = np.asarray(scene.stored[i])
        values = pixels.reshape(-1, 3)
        drawn = [values[scene.rng.integers(len(values), size=len(values)), c] for c in range(3)]
        return Pillow.fromarray(np.stack(drawn, 1).reshape(pixels.shape))

    return scene.with_pictures(change)


def _blank(scene: Scene) -> Prompt | None:
    """The picture's mean colour."""

    def change(i: int) -> Image:
        image = scene.stored[i]
        mean = np.rint(np.asarray(image, float).mean((0, 1))).astype(int)
        return Pillow.new("RGB", image.size, tuple(int(v) for v in mean))

    return scene.with_pictures(change)


# -- identity and time ----------------------------------------------------------------------------------------


def _constant(scene: Scene) -> Prompt | None:
    """The same symbol in the same corner of every picture; the words are those of the arm without tags."""
    bare = untagged(scene.prompt)
    return bare.with_images(lambda i, slot: pictures.stamp(scene.stored[i], SYMBOL)) if bare.slots else None


def _text_tag(scene: Scene) -> Prompt | None:
    """The tag in the item's text alone; the pictures bear none."""
    if not scene.prompt.slots:
        return None
    bare = scene.prompt.with_images(lambda i, slot: scene.stored[i])
    if scene.prompt.layout != "interleaved":  # there the text bears the tag already
        return bare
    items = [replace(item, parts=(f"{item.tag} ", *item.parts)) if item.tag else item for item in bare.items]
    return replace(bare, items=tuple(items))


def _reordered(scene: Scene) -> Prompt | None:
    """The same pictures in an order that is not the items', none in its place, and no word of an order: what pairs
    pictures with items is then the tag, or nothing. For the layouts that show all pictures last."""
    prompt = scene.prompt
    if prompt.layout == "interleaved" or len(prompt.slots) < 2:
        return None
    return shown_in(prompt, cycle(scene.rng, len(prompt.slots)))


def shown_in(prompt: Prompt, order: Sequence[int]) -> Prompt:
    """The pictures of a prompt that shows them all last, in another order, with no word said of one."""
    return replace(prompt, order=tuple(order), preamble=prompt.preamble.replace(IMAGES_LAST, IN_ANY_ORDER))


def _shuffled_times(scene: Scene) -> Prompt | None:
    """The same dates, permuted among the items so that as many as can be are wrong."""
    times = [item.time for item in scene.prompt.items]
    if len(set(times)) < 2:
        return None
    by_time = sorted(range(len(times)), key=lambda i: (times[i], scene.rng.random()))
    most = max(times.count(time) for time in times)
    moved = dict(zip(by_time, by_time[most:] + by_time[:most], strict=True))
    return _with_times(scene.prompt, [times[moved[i]] for i in range(len(times))])


def _ordinal_times(scene: Scene) -> Prompt | None:
    """1st, 2nd, ... in the place of each date, earliest first; equal dates share a number."""
    times = [item.time for item in scene.prompt.items]
    rank = {time: i for i, time in enumerate(sorted(set(filter(None, times))), 1)}
    return _with_times(scene.prompt, [_ordinal(rank[t]) if t else "" for t in times]) if rank else None


def _ordinal(n: int) -> str:
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def _with_times(prompt: Prompt, times: Sequence[str]) -> Prompt:
    items: list[Item] = [replace(item, time=time) for item, time in zip(prompt.items, times, strict=True)]
    return replace(prompt, items=tuple(items))


LADDER: dict[str, Change] = {
    "correct": lambda scene: scene.prompt,
    "permuted": _permuted,
    "sibling": _sibling,
    "stranger": _stranger,
    "downsampled": _downsampled,
    "scrambled": _scrambled,
    "noise": _noise,
    "blank": _blank,
}
"""The counterfactual image ladder, most like the delivered picture first. Below it `withheld` and `caption` are
deliveries of their own (Decisions(modality="text"), "caption")."""
CONTROLS: dict[str, Change] = {
    **LADDER,
    "constant-tag": _constant,
    "text-tag": _text_tag,
    "reordered": _reordered,
    "shuffled-times": _shuffled_times,
    "ordinal-times": _ordinal_times,
}
"""Every control by name. The arms without tag or date are `Decisions(identity="none")` and `Decisions(time="none")`."""
