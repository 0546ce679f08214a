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


@pytest.fixture(scope="module")
def longer():
    return load("mini-memlens-2x")


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


@pytest.mark.parametrize(("sessions", "chains", "probes"), [(5, 40, 600), (15, 40, 600), (50, 12, 588)])
def test_a_chain_asks_for_one_product_that_its_pixels_alone_name(sessions, chains, probes):
    """Every probed cue is on one frame of the chain, in no text; reach counts sessions; codes are the pages'."""
    data = load(f"mini-dmv-{sessions}")
    assert len(data.questions) == probes and len(data.memories) == chains and data.layout == "images-last"
    assert {q.subtype for q in data.questions} == {f"reach {n}" for n in range(1, sessions)}
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


def test_errands_are_probes_of_every_chain_at_every_reach_in_the_same_shop():
    """As DMV-Bench's probes, to the same memories; the product that is looked for has a page, whose picture is gold's."""
    data, whole = load("mini-errand-10"), load("mini-dmv-10")
    assert len(data.memories) == 40 and Counter(q.memory.id for q in data.questions) == Counter(
        {memory.id: 5 for memory in whole.memories}
    )
    assert {q.subtype for q in data.questions} == {f"reach {n}" for n in range(1, 10)}
    assert data.revision != whole.revision and (data.layout, data.ranker) == (whole.layout, whole.ranker)
    probes = {q.id: q for q in whole.questions}
    for question in data.questions:
        twin = probes[question.id]
        assert (question.text, question.answer, question.gold) == (twin.text, twin.answer, twin.gold)
        page = f"/product/{question.answer}"
        assert page in data.shop and question.text == shop.probe(*data.shop.cue(question.answer).split())
        (picture,) = question.memory[question.gold[0]].pictures
        assert data.shop.image(page).tobytes() == open_picture(picture).tobytes()


# -- longer conversations -------------------------------------------------------------------------------------


def _seen(record):
    """What a record holds, its pictures by their pixels."""
    shown = [(picture.id, content_hash(open_picture(picture))) for picture in record.pictures]
    return record.id, record.text, record.time, record.role, record.session, shown


def test_a_longer_conversation_is_asked_the_same_and_holds_all_that_the_shorter_one_held(benchmark_, longer):
    assert (benchmark_.name, longer.name) == ("mini-memlens", "mini-memlens-2x")
    assert benchmark_.revision == "b3f2b150cc197f90" != longer.revision
    for old, new in zip(benchmark_.questions, longer.questions, strict=True):
        for field in (
            "id",
            "text",
            "answer",
            "kind",
            "subtype",
            "time",
            "gold",
            "needs",
            "guess",
            "answer_is_record",
        ):
            assert getattr(old, field) == getattr(new, field), field
    for old, new in zip(benchmark_.memories, longer.memories, strict=True):
        kept = [record for record in new if record.id in old]
        assert [record.id for record in kept] == [record.id for record in old]
        assert [_seen(record) for record in kept] == [_seen(record) for record in old]


def test_a_longer_conversation_has_as_many_sessions_more_and_every_one_in_its_time(benchmark_, longer):
    for old, new in zip(benchmark_.memories, longer.memories, strict=True):
        sessions = [record.session for record in new]
        assert len(set(sessions)) == 2 * len({record.session for record in old})
        times = [record.time for record in new]
        assert times == sorted(times)
        begun = [a for a, b in zip(sessions, ["", *sessions], strict=False) if a != b]
        assert len(begun) == len(set(begun))  # no session goes on after another has begun
        assert all(len({r.time for r in new if r.session == name}) == 1 for name in set(sessions))
    for question in longer.questions:
        assert max(record.time for record in question.memory) < question.time


def test_what_is_added_says_no_topic_and_no_thing_of_the_questions_or_of_the_conversation(benchmark_, longer):
    names = {*world.TOPICS, *world.KEPT}
    for old, new in zip(benchmark_.memories, longer.memories, strict=True):
        asked = [q.text for q in benchmark_.questions if q.memory is old]
        held = {word for text in (*asked, *(r.text for r in old)) for word in re.findall(r"\w+", text)}
        added = {word for r in new if r.id not in old for word in re.findall(r"\w+", r.text)}
        assert added & names and not added & held & names


@pytest.mark.parametrize("times", [2, 7.4])
def test_what_is_added_shows_nothing_that_a_question_names_and_is_drawn_from_the_benchmarks_own(
    monkeypatch, times
):
    drawn, render = {}, world.render
    monkeypatch.setattr(mini, "CONVERSATIONS", 3)
    monkeypatch.setattr(
        world, "render", lambda scene, seed: drawn.setdefault((scene, seed), render(scene, seed))
    )
    data = mini.memlens(times=times)
    assert data.name == f"mini-memlens-{times}x" and mini.memlens(times=times).revision == data.revision
    scene_of = {id(image): scene for (scene, _), image in drawn.items()}
    for memory in data.memories:
        asked = {w for q in data.questions if q.memory is memory for w in re.findall(r"\w+", q.text)}
        added = [p for record in memory if record.session.startswith("f") for p in record.pictures]
        assert added and len({record.session for record in memory}) == round(10 * times)
        for picture in added:
            scene = scene_of[id(picture.source)]
            assert scenes.reserved(scene) and not asked & {thing.name for thing in scene}


def test_no_two_pictures_of_a_longer_conversation_have_one_name(longer):
    for memory in longer.memories:
        names = [picture.id for record in memory for picture in record.pictures]
        assert len(set(names)) == len(names)


def test_a_longer_conversation_written_as_memlens_and_read_back_is_the_same(longer, tmp_path):
    part = type(longer)("part", "0", longer.questions[:8])
    again = memlens.read(mini.write_memlens(part, tmp_path))
    (old,), (new,) = part.memories, again.memories
    for a, b in zip(old, new, strict=True):
        assert (a.id, a.text, a.time, a.role, a.session) == (b.id, b.text, b.time, b.role, b.session)
        assert [content_hash(open_picture(p)) for p in a.pictures] == [
            content_hash(open_picture(p)) for p in b.pictures
        ]


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
