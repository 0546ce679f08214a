"""Delivery: what each decision changes, that it changes nothing else, and that the store is never written to."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from conftest import picture, small_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from delivermem import DELIVERMEM, Decisions, Memory, Picture, Question, Record, deliver
from delivermem.benchmarks import memlens
from delivermem.delivery import IMAGES_LAST, IN_ANY_ORDER, PREAMBLES, SYSTEM
from delivermem.pictures import PictureError, content_hash, load, stamp_box
from delivermem.records import IMAGE_MARK, Slot
from delivermem.runs import prompt_hashes

DECISIONS = st.builds(
    Decisions,
    st.sampled_from(["pixels", "caption", "text"]),
    st.sampled_from(["stamp", "none"]),
    st.sampled_from(["store", "none"]),
)
ORDERS = st.lists(st.sampled_from(["r1", "r2", "r3", "r4", "r5", "r6"]), unique=True, max_size=6)


def test_the_default_is_the_papers_one_configuration():
    assert Decisions() == DELIVERMEM == Decisions("pixels", "stamp", "store")


@pytest.mark.parametrize(("field", "value"), [("modality", "audio"), ("identity", "name"), ("time", "clock")])
def test_an_unknown_decision_lists_the_known_ones(field, value):
    with pytest.raises(ValueError, match=f"{field}='{value}'"):
        Decisions(**{field: value})


def test_a_prompt_reads_preamble_items_in_rank_order_question(memory):
    question = Question("q", "What colour?", "red", "x", memory, time=datetime(2024, 6, 1, 9, 5))
    prompt = deliver([memory["r3"], memory["r2"], memory["r1"]], question)
    assert prompt.text == (
        f"{SYSTEM}\n\n{PREAMBLES['stamp']}"
        "[2024/05/03 (Fri) 10:00] My garden today: <image> is it not green?\n"
        "[2024/05/02 (Thu) 10:00] Nice weather in the harbor town.\n"
        "[2024/05/01 (Wed) 10:00] A photo of the harbor. <image>\n"
        "Question date: 2024/06/01 (Sat) 09:05\nQuestion: What colour?"
    )
    assert prompt.tags == {"M1": "r3", "M2": "r1"}  # counted over the records that have pictures, by rank
    assert [(slot.record_id, slot.picture_id, slot.tag) for slot in prompt.slots] == [
        ("r3", "p3", "M1"),
        ("r1", "p1", "M2"),
    ]


def test_pictures_stand_in_place_of_their_marks_and_further_ones_follow_the_text():
    record = Record("r", "one <image> two", pictures=(picture("a"), picture("b"), picture("c")))
    parts = deliver([record], "?").items[0].parts
    assert [p.picture_id if isinstance(p, Slot) else p for p in parts] == ["one ", "a", " two", "b", "c"]
    marks = Record("r", "x <image> y <image> z", pictures=(picture("a"),))
    assert [p.picture_id if isinstance(p, Slot) else p for p in deliver([marks], "?").items[0].parts] == [
        "x ", "a", " y ", " z",
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(ORDERS, DECISIONS)
def test_decisions_change_neither_the_records_nor_their_order_nor_the_question(order, decisions):
    memory = small_memory()
    records = [memory[i] for i in order]
    before = {p.id: content_hash(load(p)) for r in memory for p in r.pictures}
    prompt, full = deliver(records, "What?", decisions), deliver(records, "What?")
    assert prompt.delivered == full.delivered == tuple(order)
    assert prompt.question == full.question
    assert prompt.tags == full.tags  # which record a tag would name does not depend on the decisions
    assert {p.id: content_hash(load(p)) for r in memory for p in r.pictures} == before
    words = [" ".join(p for p in item.parts if isinstance(p, str)) for item in prompt.items]
    for record, said in zip(records, words, strict=True):
        for piece in record.text.split(IMAGE_MARK):
            assert piece.strip() in said
    assert len(prompt.slots) == (len(full.slots) if decisions.modality == "pixels" else 0)
    assert all(bool(item.time) == (decisions.time == "store") for item in prompt.items)
    assert prompt.text == deliver(records, "What?", decisions).text


@settings(max_examples=30, deadline=None)
@given(ORDERS.filter(lambda order: {"r1", "r3"} & set(order)))
def test_identity_alters_only_the_stamped_corner_and_the_preamble(order):
    memory = small_memory()
    records = [memory[i] for i in order]
    with_tags, without = deliver(records, "?"), deliver(records, "?", Decisions(identity="none"))
    assert with_tags.text.replace(PREAMBLES["stamp"], PREAMBLES["none"]) == without.text
    for a, b in zip(with_tags.slots, without.slots, strict=True):
        x, y = np.asarray(a.image).copy(), np.asarray(b.image).copy()
        left, top, right, bottom = stamp_box(a.image.size, a.tag)
        assert (x[top:bottom, left:right] != y[top:bottom, left:right]).any()
        x[top:bottom, left:right] = y[top:bottom, left:right] = 0
        assert (x == y).all() and a.image.size == b.image.size


def test_both_chat_forms_hold_the_same_text_and_pixels_in_the_same_places(memory):
    prompt = deliver([memory["r4"], memory["r5"]], "What?")
    ours, theirs = prompt.to_transformers(), prompt.to_openai()
    assert [m["role"] for m in ours] == [m["role"] for m in theirs] == ["system", "user"]
    for a, b in zip(ours[1]["content"], theirs[1]["content"], strict=True):
        if a["type"] == "text":
            assert a == b
        else:
            data = b["image_url"]["url"].split(",")[1]
            assert content_hash(Image.open(io.BytesIO(base64.b64decode(data)))) == content_hash(a["image"])
    assert prompt.accounting["images"] == 2 and prompt.accounting["sizes"] == [(96, 96)] * 2


def test_deliver_works_in_an_agent_that_knows_nothing_of_benchmarks():
    record = Record(
        "note", "Lunch. <image>", pictures=(Picture("photo", Image.new("RGB", (640, 480), "navy")),)
    )
    prompt = deliver([record], "What is on the plate?")
    assert prompt.text.endswith("Lunch. <image>\nQuestion: What is on the plate?")


def test_a_picture_that_cannot_be_read_stops_delivery_and_not_the_text_arm(tmp_path):
    record = Record("r", "<image>", pictures=(Picture("p", tmp_path / "gone.jpg"),))
    with pytest.raises(PictureError, match=r"gone\.jpg"):
        deliver([record], "?")
    assert not deliver([record], "?", Decisions("text")).slots


def test_a_memory_refuses_two_records_of_one_id():
    with pytest.raises(ValueError, match="'a' occurs twice"):
        Memory("m", (Record("a", "x"), Record("a", "y")))


def test_changing_images_keeps_everything_else(memory):
    prompt = deliver([memory["r1"], memory["r4"]], "?")
    changed = prompt.with_images(lambda i, slot: Image.new("RGB", slot.image.size, (i, i, i)))
    assert changed.text == prompt.text and changed.tags == prompt.tags
    assert [s.picture_id for s in changed.slots] == [s.picture_id for s in prompt.slots]
    assert [s.image.getpixel((90, 90)) for s in changed.slots] == [(0, 0, 0), (1, 1, 1), (2, 2, 2)]


def test_a_record_given_twice_is_refused_and_any_iterable_is_taken(memory):
    with pytest.raises(ValueError, match="'r1' is delivered twice"):
        deliver([memory["r1"], memory["r3"], memory["r1"]], "What?")
    listed = deliver([memory["r1"], memory["r3"]], "What?")
    assert deliver((memory[name] for name in ("r1", "r3")), "What?").text == listed.text


def test_a_time_with_a_zone_is_refused():
    with pytest.raises(ValueError, match="record 'x': its time has a zone"):
        Record("x", "Good morning.", datetime(2024, 5, 1, tzinfo=UTC))


def test_what_could_not_be_delivered_is_refused_where_it_is_made(memory):
    with pytest.raises(ValueError, match="half a character at 2"):
        Record("x", "a \ud83d b")
    with pytest.raises(ValueError, match="gold record 'nope' is not in memory"):
        Question("q", "What?", "red", "information_extraction", memory, gold=("r1", "nope"))
    with pytest.raises(ValueError, match="question 'q': its time has a zone"):
        Question("q", "What?", "red", "", memory, time=datetime(2024, 5, 1, tzinfo=UTC))
    with pytest.raises(ValueError, match="choose one of interleaved, images-last"):
        deliver([memory["r1"]], "What?", layout="sideways")
    with pytest.raises(PictureError, match=r"'p'.*floating-point"):
        load(Picture("p", Image.new("F", (4, 4))))


@pytest.mark.parametrize(
    ("layout", "identity", "words"),
    [
        ("interleaved", "stamp", ""),
        ("interleaved", "none", ""),
        ("images-last", "stamp", IMAGES_LAST),
        ("images-last", "none", IMAGES_LAST),
        ("text-first", "stamp", IN_ANY_ORDER),
        ("text-first", "none", IMAGES_LAST),
    ],
)
def test_what_is_said_of_the_pictures_order_follows_the_layout_and_the_identity(
    memory, layout, identity, words
):
    records = [memory[i] for i in ("r3", "r2", "r1")]
    prompt = deliver(records, "What?", Decisions(identity=identity), layout=layout)
    assert prompt.preamble == PREAMBLES[identity] + words
    leads = ["M1 ", "(2) ", "M2 "] if identity == "stamp" else ["(1) ", "(2) ", "(3) "]
    assert [item.lead for item in prompt.items] == (["", "", ""] if layout == "interleaved" else leads)
    places = [i for i, part in enumerate(prompt.parts) if isinstance(part, Slot)]
    end = len(prompt.parts) - 1
    expected = {"interleaved": [1, 3], "images-last": [end - 2, end - 1], "text-first": [end - 1, end]}
    assert places == expected[layout] and [slot.record_id for slot in prompt.slots] == ["r3", "r1"]


# -- conversations as a model without a memory is asked -------------------------------------------------------


def _conversation(sessions=("s1", "s1", "s1", "s2", "s2", "s3"), memory=None):
    """The small memory in sessions, asked a question."""
    records = (memory or small_memory()).records
    held = Memory("m", tuple(replace(r, session=s) for r, s in zip(records, sessions, strict=True)))
    return Question("q", "What colour?", "red", "x", held, time=datetime(2024, 6, 1, 9, 5))


def _shape(parts):
    return [part if isinstance(part, str) else part.picture_id for part in parts]


def test_everything_is_read_as_messages_of_their_roles_under_their_sessions_and_the_question_last():
    prompt = memlens.full_context(_conversation())
    assert prompt.layout == "chat" and prompt.system == memlens.SYSTEM
    assert [(role, _shape(parts)) for role, parts in prompt.messages] == [
        ("user", ["=== Session 1 (Date: 2024/05/01 (Wed) 10:00) ===\nA photo of the harbor. ", "p1"]),
        ("assistant", ["Nice weather in the harbor town."]),
        ("user", ["My garden today: ", "p3", " is it not green?"]),
        ("user", ["=== Session 2 (Date: 2024/05/04 (Sat) 10:00) ===\nTwo shots ", "p4a", " and ", "p4b"]),
        ("user", ["I bought a lamp for the office."]),
        ("assistant", ["=== Session 3 (Date: 2024/05/06 (Mon) 10:00) ===\nGood night."]),
        (
            "user",
            [f"{memlens.INSTRUCTION}Question Date: 2024/06/01 (Sat) 09:05\nQuestion: What colour?"],
        ),
    ]
    assert prompt.delivered == ("r1", "r2", "r3", "r4", "r5", "r6")


def test_a_sessions_header_stands_before_its_first_turn_alone_wherever_its_others_are():
    prompt = memlens.full_context(_conversation(("b", "a", "b", "b", "a", "c")))
    starts = [parts[0].split(" (Date")[0] if "===" in parts[0] else "" for _, parts in prompt.messages]
    assert starts == ["=== Session 1", "=== Session 2", "", "", "", "=== Session 3", ""]
    assert prompt.text.count("=== Session") == 3


def test_what_the_store_does_not_know_is_not_made_up():
    records = (
        Record("a", "Hello.", time_text="a while ago"),
        Record("b", "Hi.", role="assistant", session="x"),
    )
    prompt = memlens.full_context(Question("q", "What?", "", "", Memory("m", records)))
    assert [parts[0] for _, parts in prompt.messages] == [
        "=== Session 1 (Date: a while ago) ===\nHello.",
        "=== Session 2 (Date: ) ===\nHi.",
        f"{memlens.INSTRUCTION}Question: What?",
    ]


def test_what_is_read_whole_bears_no_tag_and_the_stores_own_pixels():
    question = _conversation()
    prompt = memlens.full_context(question)
    stored = [load(p) for record in question.memory for p in record.pictures]
    assert [content_hash(image) for image in prompt.images] == [content_hash(image) for image in stored]
    assert not any(slot.tag for slot in prompt.slots) and "M1" not in prompt.text


def test_messages_parts_and_text_of_a_conversation_hold_the_same_in_the_same_order():
    prompt = memlens.full_context(_conversation())
    assert prompt.parts == [part for _, parts in prompt.messages for part in parts]
    assert [part for part in prompt.parts if isinstance(part, Slot)] == [*prompt.slots]
    bodies = [
        f"{role}: " + "".join(p if isinstance(p, str) else IMAGE_MARK for p in parts)
        for role, parts in prompt.messages
    ]
    assert prompt.text == "\n\n".join([memlens.SYSTEM, *bodies])
    assert (
        prompt.accounting["images"] == prompt.text.count(IMAGE_MARK) == 4
        and prompt.accounting["records"] == 6
    )


def test_both_chat_forms_of_a_conversation_hold_its_messages():
    prompt = memlens.full_context(_conversation())
    ours, theirs = prompt.to_transformers(), prompt.to_openai()
    roles = ["system", "user", "assistant", "user", "user", "user", "assistant", "user"]
    assert [m["role"] for m in ours] == [m["role"] for m in theirs] == roles
    assert ours[0]["content"][0]["text"] == theirs[0]["content"] == memlens.SYSTEM
    for (_, parts), a, b in zip(prompt.messages, ours[1:], theirs[1:], strict=True):
        for part, x, y in zip(parts, a["content"], b["content"], strict=True):
            if isinstance(part, str):
                assert x == y == {"type": "text", "text": part}
            else:
                data = base64.b64decode(y["image_url"]["url"].split(",")[1])
                assert content_hash(part.image) == content_hash(x["image"])
                assert content_hash(part.image) == content_hash(Image.open(io.BytesIO(data)))


def test_the_hashes_of_a_conversation_follow_its_roles_its_sessions_and_its_pixels():
    question = _conversation()
    whole = prompt_hashes(memlens.full_context(question))
    records = question.memory.records

    def other(index, **change):
        changed = tuple(replace(r, **change) if i == index else r for i, r in enumerate(records))
        return prompt_hashes(memlens.full_context(replace(question, memory=Memory("m", changed))))

    assert other(0) == whole
    for index, role in ((4, "assistant"), (1, "user"), (5, "user")):
        text, pixels = other(index, role=role)
        assert text != whole[0] and pixels == whole[1]
    assert other(4, session="s9")[0] != whole[0]
    text, pixels = other(0, pictures=(picture("p1", "gold"),))
    assert text == whole[0] and pixels != whole[1]


def test_other_layouts_are_one_message_of_the_user_and_their_text_says_no_role(memory):
    for layout in ("interleaved", "images-last", "text-first"):
        prompt = deliver([memory["r2"], memory["r1"]], "What?", layout=layout)
        ((role, parts),) = prompt.messages
        assert role == "user" and parts == prompt.parts and "user: " not in prompt.text


def test_a_delivery_can_not_be_laid_out_as_a_conversation(memory):
    """`chat` is how a benchmark asks a model without a memory: it has no place for tags and times."""
    with pytest.raises(ValueError, match="'chat' can't be delivered; choose one of interleaved"):
        deliver([memory["r1"]], "What?", layout="chat")
