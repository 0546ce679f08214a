"""The embedded benchmark: what it holds, what its text gives away, and that it is MemLens's own layout."""

from __future__ import annotations

import json
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivermem.benchmarks import asking, load, memlens, mini, scenes, shop, world
from delivermem.delivery import Decisions, deliver
from delivermem.pictures import content_hash
from delivermem.pictures import load as open_picture
from delivermem.records import REFUSAL


@pytest.fixture(scope="module")
def benchmark_():
    return load("mini-memlens")


def test_an_unknown_benchmark_lists_the_known_ones():
    with pytest.raises(ValueError, match="mini-memlens"):
        load("mini-memlense")


def test_it_is_as_large_as_it_says(benchmark_):
    kinds = Counter(question.kind for question in benchmark_.questions)
    assert set(kinds) == set(memlens.KINDS)
    assert sum(count for kind, count in kinds.items() if kind != "answer_refusal") >= 400
    assert kinds["answer_refusal"] >= 60
    assert len(benchmark_.memories) >= 60
    assert min(len(memory) for memory in benchmark_.memories) >= 40
    assert {question.subtype for question in benchmark_.questions} == set(asking.SORTS)
    assert len({question.id for question in benchmark_.questions}) == len(benchmark_.questions)


def test_the_same_seed_gives_the_same_benchmark_and_another_seed_another(benchmark_, monkeypatch):
    assert mini.memlens(0).revision == benchmark_.revision
    monkeypatch.setattr(mini, "CONVERSATIONS", 2)
    assert mini.memlens(1).revision != mini.memlens(2).revision


def test_answers_can_be_had_from_gold_and_only_from_gold(benchmark_):
    """Every gold record exists; a record asked for is gold; nothing refused has gold."""
    for question in benchmark_.questions:
        assert all(question.memory[i].id == i for i in question.gold)
        assert bool(question.gold) != question.refusal
        if question.answer_is_record:
            assert question.answer in question.gold
        if question.refusal:
            assert question.answer == REFUSAL


def test_no_text_channel_gives_a_pixel_answer_away(benchmark_):
    """Neither the gold messages' text, nor the captions, nor ids and times hold what only the pixels show."""
    asked = 0
    for question in benchmark_.questions:
        if "pixels" not in question.needs or question.refusal or question.subtype == "more":
            continue
        for decisions in (Decisions("text"), Decisions("caption")):
            gold = [question.memory[i] for i in question.gold]
            prompt = deliver(gold, question, decisions)
            parts = [part for item in prompt.items for part in item.parts if isinstance(part, str)]
            assert len(parts) >= len(gold) and not prompt.slots
            text = " ".join(parts).lower()
            if question.subtype == "when_photo":  # the date is delivered; which photo it is must not be
                shown = re.search(r"with the (\w+) (\w+)\?", question.text).groups()
                assert not any(re.search(rf"\b{word}\b", text) for word in shown)
            else:
                assert not any(re.search(rf"\b{word}\b", text) for word in question.answer.lower().split())
            ids = " ".join(picture.id for record in gold for picture in record.pictures).lower()
            assert not any(word in ids for word in (*scenes.COLOURS, *scenes.OBJECTS))
        asked += 1
    assert asked >= 200


def test_no_benchmark_scene_can_occur_in_training():
    rng = np.random.default_rng(3)
    for _ in range(200):
        for_training = scenes.draw_scene(rng, for_benchmark=False)
        assert not scenes.reserved(for_training)
        assert not any(thing[:2] in scenes.HELD_OUT for thing in for_training)
    assert all(
        scenes.reserved(turn.scene)
        for turn in world.conversation(np.random.default_rng(4), for_benchmark=True)
        if turn.scene
    )


def test_some_benchmark_scenes_show_held_out_pairs():
    rng = np.random.default_rng(5)
    drawn = [scenes.draw_scene(rng, for_benchmark=True) for _ in range(100)]
    share = np.mean([any(thing[:2] in scenes.HELD_OUT for thing in scene) for scene in drawn])
    assert 0.2 < share < 0.9


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_a_scene_shows_what_it_says(seed):
    """Something is drawn in each named cell and nothing in the others; the top-left corner stays free."""
    scene = scenes.draw_scene(np.random.default_rng(seed), for_benchmark=bool(seed % 2))
    pixels = np.asarray(scenes.render(scene, seed), np.float32)
    again = np.asarray(scenes.render(scene, seed), np.float32)
    assert (pixels == again).all()
    wall = np.median(pixels.reshape(-1, 3), axis=0)
    places = {scenes.PLACES[thing.place] for thing in scene}
    for row in range(3):
        for column in range(3):
            cell = pixels[row * 32 : row * 32 + 32, column * 32 : column * 32 + 32]
            painted = (np.abs(cell - wall).max(axis=2) > 25).mean()  # the grain is 4
            assert (painted > 0.02) == ((column, row) in places)


def test_every_pictogram_differs_from_every_other():
    masks = {name: np.asarray(scenes._mask(name, 28).shape[:2]) for name in scenes.OBJECTS}
    drawn = {name: scenes._mask(name, 28).tobytes() for name in masks}
    assert len(set(drawn.values())) == len(scenes.OBJECTS) >= 37


def test_written_as_memlens_and_read_back_it_is_the_same(benchmark_, tmp_path):
    part = type(benchmark_)("part", "0", benchmark_.questions[:16])
    path = mini.write_memlens(part, tmp_path)
    again = memlens.read(path)
    assert len(again.memories) == len(part.memories)
    for old, new in zip(part.questions, again.questions, strict=True):
        for field in ("id", "text", "answer", "kind", "subtype", "time", "gold", "answer_is_record"):
            assert getattr(old, field) == getattr(new, field), field
        for a, b in zip(old.memory, new.memory, strict=True):
            assert (a.id, a.text, a.time, a.role, a.session) == (b.id, b.text, b.time, b.role, b.session)
            for p, q in zip(a.pictures, b.pictures, strict=True):
                assert (
                    content_hash(open_picture(p)) == content_hash(open_picture(q)) and p.caption == q.caption
                )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda row: row.pop("haystack_dates"), "haystack_dates"),
        (lambda row: row.update(question_type="riddle"), "riddle"),
        (lambda row: row["haystack_sessions"][0][0].update(images=[{"file": "../../secret.png"}]), "outside"),
    ],
)
def test_a_file_out_of_form_is_refused_in_one_sentence(benchmark_, tmp_path, change, says):
    path = mini.write_memlens(type(benchmark_)("part", "0", benchmark_.questions[:1]), tmp_path)
    rows = json.loads(path.read_text())
    change(rows[0])
    path.write_text(json.dumps(rows))
    with pytest.raises(memlens.FormatError, match=says) as error:
        memlens.read(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(sorted(asking.SORTS)))
def test_an_ask_is_true_of_the_turns_it_was_asked_of(seed, subtype):
    """The answer follows from the gold turns alone: asking again of only those keeps it possible and equal."""
    rng = np.random.default_rng(seed)
    turns = world.conversation(rng, for_benchmark=True)
    asked = asking.ask(rng, turns, subtype)
    if asked is None:
        return
    gold = [turns[i] for i in asked.gold]
    assert gold and not asked.refusal
    if subtype == "count_photos":
        name = asked.text.rstrip("?").split()[-1]
        assert (
            world.NUMBERS[sum(any(t.name == name for t in turn.scene or ()) for turn in turns)]
            == asked.answer
        )
    if subtype.startswith("latest"):
        assert len(gold) == 2 and gold[0].time <= gold[1].time
    if subtype == "first":
        assert min(gold, key=lambda turn: turn.time).topic == asked.answer
    if subtype == "which":
        colour, name = asked.text.rstrip("?").split()[-2:]
        showing = [t.id for t in turns if any(thing[:2] == (colour, name) for thing in t.scene or ())]
        assert showing == [asked.answer]


@pytest.mark.parametrize("sessions", [5, 15])
def test_a_chain_asks_for_one_product_that_its_pixels_alone_name(sessions):
    """Every probed cue is on one frame of the chain, in no text; reach counts sessions; codes are the pages'."""
    data = load(f"mini-dmv-{sessions}")
    assert len(data.questions) == 600 and len(data.memories) == 40 and data.layout == "images-last"
    cue_words = {*scenes.COLOURS, *scenes.OBJECTS}
    for question in data.questions:
        (gold,) = question.gold
        assert f"/product/{question.answer} " in question.memory[gold].text
        session = int(gold[1:3])
        assert question.subtype == f"reach {sessions - 1 - session}"
    for memory in data.memories:
        pages = [re.search(r"/product/(\w+)", record.text)[1] for record in memory]
        assert len(set(pages)) == len(pages) == sessions * shop.VISITS
        for record in memory:
            words = set(re.findall(r"\w+", record.text.lower()))
            words |= set(re.findall(r"\w+", record.pictures[0].caption.lower()))
            assert not words & cue_words and record.time is not None


def test_a_cue_is_small_and_found_by_differencing():
    products = shop.catalogue(np.random.default_rng([0, 0]), for_benchmark=True)
    shares = []
    for product in products:
        cued, bare = (np.asarray(product.frame(cued=c), int) for c in (True, False))
        changed = np.abs(cued - bare).max(2) > 12
        column, row = product.cue[2]
        inside = changed[row * 32 : row * 32 + 32, column * 32 : column * 32 + 32]
        assert inside.sum() == changed.sum() > 0
        shares.append(100 * changed.mean())
    assert 1.5 <= np.median(shares) <= 2.0
    cues = [product.cue[:2] for product in products]
    others = {placed[:2] for product in products for placed in product.others}
    assert len(set(cues)) == len(products) == 240 and not others & set(cues)
    assert any(pair in scenes.HELD_OUT for pair in cues)


def test_no_frame_of_the_benchmark_occurs_in_training():
    rng = np.random.default_rng(1)
    trained = shop.catalogue(rng, for_benchmark=False)
    asked = shop.catalogue(np.random.default_rng([0, 0]), for_benchmark=True)
    assert not any(shop._reserved(product) for product in trained)
    assert all(shop._reserved(product) for product in asked)
    assert not any(placed[:2] in scenes.HELD_OUT for p in trained for placed in (p.cue, *p.others))
