"""Controls: each changes its own variable, and a comparison of the whole prompt shows that it changes nothing else."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from delivermem import controls, pictures
from delivermem.benchmarks import load, memlens
from delivermem.controls import CONTROLS, LADDER
from delivermem.delivery import DELIVERMEM, IMAGES_LAST, IN_ANY_ORDER, Decisions, deliver
from delivermem.records import Memory, Picture, Question, Record, Slot
from delivermem.retrieval import rank

PICTURES = [name for name in LADDER if name != "correct"]
NAMES = ("mini-memlens", "mini-dmv-5")


def _prompt(name, number, k=6, decisions=DELIVERMEM):
    data = load(name)
    question = data.questions[number % len(data.questions)]
    return question, deliver(rank("random", question, k), question, decisions, layout=data.layout)


def _put(prompt, question, control, seed=0, name="mini-memlens"):
    return controls.apply(prompt, control, question=question, others=load(name).questions[::40], seed=seed)


def _texts(prompt):
    return [part for part in prompt.parts if isinstance(part, str)]


def _outside(image, slot):
    """The pixels of an image outside its tag's box."""
    pixels = np.asarray(image).copy()
    if slot.tag:
        left, top, right, bottom = pictures.stamp_box(image.size, slot.tag)
        pixels[top:bottom, left:right] = 0
    return pixels.tobytes()


@pytest.mark.parametrize("control", PICTURES)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=8, deadline=None)
@given(number=st.integers(0, 500), seed=st.integers(0, 3))
def test_a_rung_changes_pixels_outside_the_tags_and_nothing_else(control, name, number, seed):
    question, prompt = _prompt(name, number)
    stored = [pictures.content_hash(pictures.load(p)) for r in question.memory for p in r.pictures]
    changed = _put(prompt, question, control, seed, name)
    if changed is None:
        assert len(prompt.slots) < (2 if control == "permuted" else 1)
        return
    assert _texts(changed) == _texts(prompt) and changed.delivered == prompt.delivered
    assert [type(p) for p in changed.parts] == [type(p) for p in prompt.parts]
    for before, after in zip(prompt.slots, changed.slots, strict=True):
        assert after.image.size == before.image.size and after.image.mode == "RGB"
        assert (after.record_id, after.picture_id, after.tag) == (
            before.record_id,
            before.picture_id,
            before.tag,
        )
        assert _outside(after.image, after) != _outside(before.image, before)
        box = pictures.stamp_box(before.image.size, before.tag)
        assert after.image.crop(box).tobytes() == before.image.crop(box).tobytes()
    again = _put(prompt, question, control, seed, name)
    assert [s.image.tobytes() for s in again.slots] == [s.image.tobytes() for s in changed.slots]
    assert stored == [pictures.content_hash(pictures.load(p)) for r in question.memory for p in r.pictures]


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 12), seed=st.integers(0, 10_000))
def test_a_cycle_moves_everything_and_loses_nothing(n, seed):
    order = controls.cycle(np.random.default_rng(seed), n)
    assert sorted(order) == list(range(n)) and all(i != j for i, j in enumerate(order))


def test_permuted_keeps_the_pictures_and_moves_every_one():
    question, prompt = _prompt("mini-dmv-5", 7)
    bare = controls.apply(prompt, "correct", question=question)
    changed = _put(prompt, question, "permuted")
    scene = controls.Scene(prompt, question, (), "x", 0)
    originals = [scene.stored[i].tobytes() for i in range(len(prompt.slots))]
    inside = [_outside(slot.image, slot) for slot in changed.slots]
    assert bare is prompt
    for i, slot in enumerate(changed.slots):
        twins = [
            j
            for j in range(len(prompt.slots))
            if _outside(pictures.stamp(scene.stored[j], slot.tag), slot) == inside[i]
        ]
        assert twins and i not in twins
    assert len(set(originals)) == len(originals)


def test_siblings_come_from_the_memory_and_strangers_from_another():
    question, prompt = _prompt("mini-memlens", 3)
    others = load("mini-memlens").questions[::40]
    own = {pictures.content_hash(pictures.load(p)) for r in question.memory for p in r.pictures}
    untagged = deliver(
        [question.memory[i] for i in prompt.delivered], question, Decisions(identity="none")
    )  # so that pixels can be compared
    delivered = {pictures.content_hash(image) for image in untagged.images}
    for control, inside in (("sibling", True), ("stranger", False)):
        changed = controls.apply(untagged, control, question=question, others=others)
        found = {pictures.content_hash(image) for image in changed.images}
        assert (found <= own - delivered) is inside and (inside or not found & own)


def test_noise_matches_and_blank_is_the_mean():
    question, prompt = _prompt("mini-dmv-5", 2, decisions=Decisions(identity="none"))
    for before, noisy, flat in zip(
        prompt.images,
        _put(prompt, question, "noise").images,
        _put(prompt, question, "blank").images,
        strict=True,
    ):
        a, b, c = (np.asarray(image, float) for image in (before, noisy, flat))
        assert np.allclose(a.mean((0, 1)), b.mean((0, 1)), atol=3)
        assert np.allclose(a.std((0, 1)), b.std((0, 1)), atol=3)
        assert np.abs(c - a.mean((0, 1))).max() <= 0.5


def test_scrambled_keeps_every_pixel():
    question, prompt = _prompt("mini-memlens", 5, decisions=Decisions(identity="none"))
    for before, after in zip(prompt.images, _put(prompt, question, "scrambled").images, strict=True):
        a, b = (np.sort(np.asarray(image).reshape(-1, 3), axis=0) for image in (before, after))
        assert np.array_equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_the_constant_tag_differs_from_no_tag_in_the_corner_alone(name):
    question, prompt = _prompt(name, 4)
    data = load(name)
    records = [question.memory[i] for i in prompt.delivered]
    none = deliver(records, question, Decisions(identity="none"), layout=data.layout)
    constant = _put(prompt, question, "constant-tag", name=name)
    assert constant.text == none.text and constant.decisions == none.decisions
    corner = pictures.stamp_box(none.images[0].size, controls.SYMBOL)
    corners = set()
    for bare, stamped in zip(none.images, constant.images, strict=True):
        difference = np.abs(np.asarray(bare, int) - np.asarray(stamped, int)).max(2)
        assert not np.delete(difference, np.s_[: corner[3]], 0).any()
        assert not np.delete(difference, np.s_[: corner[2]], 1).any()
        corners.add(stamped.crop(corner).tobytes())
    assert len(corners) == 1


@pytest.mark.parametrize("name", NAMES)
def test_the_tag_in_the_text_leaves_the_pixels_untagged(name):
    question, prompt = _prompt(name, 4)
    changed = _put(prompt, question, "text-tag", name=name)
    scene = controls.Scene(prompt, question, (), "x", 0)
    assert [i.tobytes() for i in changed.images] == [
        scene.stored[i].tobytes() for i in range(len(prompt.slots))
    ]
    assert changed.preamble == prompt.preamble and changed.question == prompt.question
    named = [item.lead if name != "mini-memlens" else item.parts[0] for item in changed.items if item.tag]
    assert named == [f"{item.tag} " for item in changed.items if item.tag] != []
    spoken = [part for item in changed.items for part in item.parts if isinstance(part, str)]
    before = [part for item in prompt.items for part in item.parts if isinstance(part, str)]
    assert [part for part in spoken if part not in named] == before


@settings(max_examples=20, deadline=None)
@given(number=st.integers(0, 500), k=st.integers(1, 6), stamped=st.booleans())
def test_reordered_pictures_are_the_same_under_the_same_tags_and_none_in_its_place(number, k, stamped):
    decisions = Decisions(identity="stamp" if stamped else "none")
    question, prompt = _prompt("mini-dmv-5", number, k, decisions)
    changed = _put(prompt, question, "reordered", name="mini-dmv-5")
    if changed is None:
        assert len(prompt.slots) < 2
        return
    before, after = ([slot.record_id for slot in p.slots] for p in (prompt, changed))
    assert sorted(after) == sorted(before) and all(a != b for a, b in zip(after, before, strict=True))
    pixels = {slot.record_id: (slot.tag, slot.image.tobytes()) for slot in prompt.slots}
    assert {slot.record_id: (slot.tag, slot.image.tobytes()) for slot in changed.slots} == pixels
    assert changed.items == prompt.items and changed.question == prompt.question
    assert "in their order" in prompt.preamble and "order.\n" not in changed.preamble.split("\n")[-2]
    swapped = _put(changed, question, "blank", name="mini-dmv-5")
    assert [(s.record_id, s.tag) for s in swapped.slots] == [(s.record_id, s.tag) for s in changed.slots]


@pytest.mark.parametrize("layout", ["images-last", "text-first"])
@pytest.mark.parametrize("identity", ["stamp", "none"])
def test_pictures_shown_in_another_order_come_with_no_word_of_one(layout, identity):
    """In an agent's step, stamped, nothing was said of one before: there the order alone changes."""
    question, prompt = _prompt("mini-dmv-5", 3)
    records = [question.memory[i] for i in prompt.delivered]
    prompt = deliver(records, question, Decisions(identity=identity), layout=layout)
    order = [*range(1, len(prompt.slots)), 0]
    changed = controls.shown_in(prompt, order)
    assert [slot.record_id for slot in changed.slots] == [prompt.slots[i].record_id for i in order]
    assert changed.preamble.endswith(IN_ANY_ORDER) and IMAGES_LAST not in changed.text
    assert changed.preamble == prompt.preamble.replace(IMAGES_LAST, IN_ANY_ORDER)
    assert (changed.text == prompt.text) == (layout == "text-first" and identity == "stamp")
    moved = _put(prompt, question, "reordered", name="mini-dmv-5")
    assert moved.preamble == changed.preamble and moved.items == prompt.items


@pytest.mark.parametrize("control", ["reordered", "constant-tag", "blank"])
def test_a_control_of_a_whole_conversation_changes_its_pictures_alone_or_can_not_be_had(control):
    """Read whole, pictures stand in their messages, under headers that are no control's to change."""
    question = load("mini-memlens").questions[3]
    prompt = memlens.full_context(question)
    changed = controls.apply(prompt, control, question=question)
    if changed is None:
        return
    assert changed.text == prompt.text
    assert [part for part in changed.parts if isinstance(part, Slot)] == [*changed.slots]


@pytest.fixture(scope="module")
def processor():
    from delivermem.reference import build

    return build.processor()


@pytest.mark.parametrize("control", [name for name in CONTROLS if name != "correct"])
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=3, deadline=None)
@given(number=st.integers(0, 500))
def test_a_control_leaves_the_processors_image_tokens_as_they_are(processor, control, name, number):
    """By the processor's own count; and, but for the arms whose variable is text, every text token too."""
    question, prompt = _prompt(name, number)
    changed = _put(prompt, question, control, name=name)
    if changed is None or not prompt.slots:
        return
    counted = []
    for p in (prompt, changed):
        found = processor.apply_chat_template(
            [p.to_transformers()], tokenize=True, return_dict=True, return_tensors="pt", add_generation_prompt=True
        )  # fmt: skip
        ids = found["input_ids"][0]
        image = ids == processor.image_token_id
        grid = found["image_grid_thw"].prod(1).sum() // processor.image_processor.merge_size**2
        assert image.sum() == grid
        counted.append((int(image.sum()), len(p.slots), ids[~image].tolist()))
    assert counted[0][:2] == counted[1][:2] and counted[0][0] > 0
    if control in PICTURES:
        assert counted[0][2] == counted[1][2]


@settings(max_examples=20, deadline=None)
@given(number=st.integers(0, 500), k=st.integers(1, 8))
def test_shuffled_times_are_the_same_dates_in_other_places(number, k):
    question, prompt = _prompt("mini-memlens", number, k)
    changed = _put(prompt, question, "shuffled-times")
    times = [item.time for item in prompt.items]
    if changed is None:
        assert len(set(times)) < 2
        return
    after = [item.time for item in changed.items]
    assert Counter(after) == Counter(times)
    stay = sum(a == b for a, b in zip(times, after, strict=True))
    assert stay == max(0, 2 * max(Counter(times).values()) - len(times))
    assert [s.image for s in changed.slots] == [s.image for s in prompt.slots]
    assert [item.parts for item in changed.items] == [item.parts for item in prompt.items]


def test_ordinals_say_the_order_and_no_date():
    question, prompt = _prompt("mini-memlens", 11)
    changed = _put(prompt, question, "ordinal-times")
    pairs = sorted({(a.time, int(b.time[:-2])) for a, b in zip(prompt.items, changed.items, strict=True)})
    assert [number for _, number in pairs] == list(range(1, len(pairs) + 1))
    assert [controls._ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 111)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "111th",
    ]  # fmt: skip


def test_what_can_not_be_had_is_none_and_what_is_unknown_is_refused():
    question, _ = _prompt("mini-memlens", 0)
    text = deliver(rank("gold", question, 4), question, Decisions("text"))
    for control in CONTROLS:
        if control not in ("correct", "shuffled-times", "ordinal-times"):
            assert controls.apply(text, control, question=question) is None
    bare = deliver(rank("gold", question, 4), question, Decisions(time="none"))
    assert controls.apply(bare, "ordinal-times", question=question) is None
    with pytest.raises(ValueError, match="permuted"):
        controls.apply(text, "permute", question=question)
    assert not any(isinstance(part, Slot) for part in text.parts)


def test_two_pictures_of_one_name_stay_apart_and_a_record_from_elsewhere_is_refused():
    pair = tuple(Picture("same.jpg", Image.new("RGB", (40, 40), colour)) for colour in ("red", "blue"))
    memory = Memory("m", (Record("a", "two: <image> <image>", pictures=pair),))
    question = Question("q", "What?", "red", "information_extraction", memory)
    prompt = deliver(memory.records, question)
    for control in ("text-tag", "blank"):
        images = controls.apply(prompt, control, question=question).images
        assert [image.getpixel((39, 39)) for image in images] == [(255, 0, 0), (0, 0, 255)]
    other = deliver([Record("ext", "<image>", pictures=pair[:1])], question)
    with pytest.raises(ValueError, match="'ext' is delivered but not in memory 'm'"):
        controls.apply(other, "blank", question=question)
