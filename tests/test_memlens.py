"""MemLens in its published form: every shape read, fetched from a folder, and asked whole as its evaluator asks."""

from __future__ import annotations

import copy
import io
import json
import re
import subprocess
import tarfile

import made_memlens
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from delivermem import benchmarks, hub, pictures
from delivermem.benchmarks import memlens, memlens_store, released
from delivermem.delivery import deliver
from delivermem.pictures import content_hash
from delivermem.records import REFUSAL, Slot


def row(**changes):
    """One question to two sessions, the second of which holds the evidence."""
    known = dict(
        question_id="q_1", question_type="temporal_reasoning", question="When was the mug bought?", answer="2024/05/07",
        question_date="2024/05/31 (Fri) 07:58", haystack_dates=["2024/05/06 (Mon) 17:17", "2024/05/07 (Tue) 09:00"],
        haystack_session_ids=["sess_a", "sess_b"], answer_session_ids=["sess_b"],
        haystack_sessions=[
            [dict(role="user", content="A photo. <image>", images=[dict(file="needle_images/a.jpg")], has_answer=False)],
            [dict(role="user", content="My mug", images=[], has_answer=True), dict(role="assistant", content="Nice")],
        ],
    )  # fmt: skip
    return {**copy.deepcopy(known), **changes}


def read(tmp_path, *rows, images=None, **about):
    return memlens.benchmark(
        [("f.json", r) for r in rows], images or tmp_path, name="m", revision="0", **about
    )


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_is_a_list_or_a_wrapper_and_sessions_are_lists_or_objects(tmp_path, wrapped, mark):
    one = row()
    as_objects = [
        dict(date=date, session=turns)
        for date, turns in zip(one["haystack_dates"], one["haystack_sessions"], strict=True)
    ]
    two = row(question_id="q_2", haystack_sessions=as_objects)
    three = row(question_id="q_3", haystack_sessions=as_objects)
    del three["haystack_dates"], three["haystack_session_ids"]
    rows = [one, two, three]
    path = tmp_path / "dataset.json"
    path.write_text(mark + json.dumps({"data": rows} if wrapped else rows), encoding="utf-8")
    a, b, c = memlens.read(path).questions
    assert a.memory is b.memory and [r.id for r in a.memory] == ["sess_a:00", "sess_b:00", "sess_b:01"]
    assert [r.text for r in c.memory] == [r.text for r in a.memory]
    assert [r.time for r in c.memory] == [r.time for r in a.memory]
    assert [r.role for r in a.memory] == ["user", "user", "assistant"]
    assert (a.gold, b.gold) == (("sess_b:00",), ("sess_b:00",)) and c.gold == ("session-002:00",)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        (dict(file="needle_images/a.jpg"), "needle_images/a.jpg"),
        (dict(path="release_images/needle_images/a.jpg"), "needle_images/a.jpg"),
        (dict(file_path="x/b.png"), "x/b.png"),
        (dict(img_file=["x/b.png", "x/c.png"]), "x/b.png"),
        (dict(file=None, path="x/b.png"), "x/b.png"),
        ("x/b.png", "x/b.png"),
    ],
)
def test_a_picture_is_named_by_any_of_the_known_keys(tmp_path, image, name):
    stored = row()
    stored["haystack_sessions"][0][0]["images"] = [image]
    (picture,) = read(tmp_path, stored).questions[0].memory["sess_a:00"].pictures
    assert picture.id == name and picture.source == tmp_path / name
    assert memlens.picture_names("f", stored) == {name}


def test_a_picture_out_of_the_folder_is_refused_and_one_on_the_web_is_not_fetched(tmp_path):
    for bad in ("../x.png", "/etc/x.png", ""):
        stored = row()
        stored["haystack_sessions"][0][0]["images"] = [dict(file=bad)]
        with pytest.raises(memlens.FormatError, match="lies outside"):
            read(tmp_path, stored)
    stored["haystack_sessions"][0][0]["images"] = [dict(image_url="https://example.org/x.jpg")]
    (picture,) = read(tmp_path, stored).questions[0].memory["sess_a:00"].pictures
    assert picture.source is pictures.unreadable() and memlens.picture_names("f", stored) == set()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(question_type="trivia"), "'trivia'"),
        (dict(answer=None), "no field 'answer'"),
        (dict(haystack_sessions=None), "no field 'haystack_sessions'"),
        (dict(haystack_dates=None), "no field 'haystack_dates'"),
        (dict(haystack_dates=["2024/05/06 (Mon) 17:17"]), "2 sessions and 1 haystack_dates"),
        (dict(haystack_session_ids=["s", "s"]), "occurs twice"),
        (dict(haystack_sessions=[["text"], []]), "layout"),
        (dict(haystack_sessions=[[dict(role="user", content=5)], []]), "no text"),
    ],
)
def test_a_row_out_of_form_is_one_sentence_with_question_and_cure(tmp_path, change, says):
    with pytest.raises(memlens.FormatError, match=re.escape(says)) as error:
        read(tmp_path, row(**change))
    assert "q_1" in str(error.value) or "session 'sess_a'" in str(error.value)
    assert "f.json" in str(error.value) and "fetch the file again" in str(error.value)


def test_what_is_no_list_of_questions_is_refused(tmp_path):
    path = tmp_path / "x.json"
    for text, says in (
        ("[{", "not JSON"),
        ("", "not JSON"),
        ('{"rows": []}', "list of questions"),
        ("[]", "list of"),
    ):
        path.write_text(text)
        with pytest.raises(memlens.FormatError, match=says):
            memlens.read(path)


def test_roles_blocks_and_times_are_kept_as_far_as_they_can_be_read(tmp_path):
    stored = row(haystack_dates=["some day in May", "2024/05/07 (Tue) 09:00"])
    stored["haystack_sessions"][0] = [
        dict(role="AI Assistant", content=[dict(type="text", text="One "), "two"]),
        dict(role="USER", content=None),
    ]
    first, second, third, _ = read(tmp_path, stored).questions[0].memory
    assert (first.role, second.role, first.text, second.text) == ("assistant", "user", "One two", "")
    assert (
        first.time is None
        and first.stated_time == "some day in May"
        and third.stated_time == "2024/05/07 (Tue) 09:00"
    )


def test_a_weekday_that_is_not_the_dates_is_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="that day is a Mon"):
        read(tmp_path, row(haystack_dates=["2024/05/06 (Fri) 17:17", "2024/05/07 (Tue) 09:00"]))


@pytest.mark.parametrize(
    ("kind", "question", "answer", "subtype"),
    [
        (
            "temporal_reasoning",
            "Which of the following two durations is longer? A … B …",
            "A",
            "duration_comparison",
        ),
        ("temporal_reasoning", "Please sort these facts in chronological order.", "x", "order_ranking"),
        ("temporal_reasoning", "Which came first?", "(2)(1)(3)", "order_ranking"),
        ("temporal_reasoning", "When was it?", "2024/05/07", "temporal_info_extraction"),
        ("multi_session_reasoning", "Is it the same cat?", "Yes", "entity_resolution"),
        ("multi_session_reasoning", "How many cats?", "3", ""),
        ("information_extraction", "What colour?", "red", ""),
        ("knowledge_update", "Which city now?", "Rome", "knowledge_update"),
        ("answer_refusal", "Which boat?", "NOT_MENTIONED", "answer_refusal"),
    ],
)
def test_a_subtype_that_is_not_stated_is_inferred_and_says_so(tmp_path, kind, question, answer, subtype):
    asked = row(question_type=kind, question=question, answer=answer)
    (inferred,) = read(tmp_path, asked).questions
    assert inferred.subtype == subtype and ("subtype" in inferred.inferred) == bool(subtype)
    (stated,) = read(tmp_path, {**asked, "question_subtype": "counting"}).questions
    assert stated.subtype == "counting" and "subtype" not in stated.inferred
    assert inferred.answer == (REFUSAL if kind == "answer_refusal" else answer)


def test_evidence_of_unmarked_turns_is_the_answer_sessions_and_says_so(tmp_path):
    stored = row()
    for turns in stored["haystack_sessions"]:
        for turn in turns:
            turn.pop("has_answer", None)
    (question,) = read(tmp_path, stored).questions
    assert question.gold == ("sess_b:00", "sess_b:01") and "gold" in question.inferred


@pytest.mark.parametrize("where", [dict(old_answer="Oslo"), dict(question_content=dict(old_answer="Oslo"))])
def test_what_was_true_before_an_update_is_kept(tmp_path, where):
    assert read(tmp_path, row(**where)).questions[0].old_answer == "Oslo"
    assert read(tmp_path, row()).questions[0].old_answer == ""


def test_a_missing_picture_keeps_its_place_and_shifts_no_other(tmp_path):
    (tmp_path / "needle_images").mkdir()
    for name, colour in (("a", "red"), ("c", "blue")):
        Image.new("RGB", (64, 48), colour).save(tmp_path / "needle_images" / f"{name}.png")
    stored = row()
    names = [f"needle_images/{name}.png" for name in "abc"]
    stored["haystack_sessions"][0][0] |= dict(
        content="<image> one <image> two <image> three", images=[dict(file=n) for n in names]
    )
    (question,) = read(tmp_path, stored, missing={names[1]}).questions
    prompt = deliver(question.memory, question)
    slots = [part for part in prompt.items[0].parts if isinstance(part, Slot)]
    assert [slot.picture_id for slot in slots] == names
    assert [slot.image.size for slot in slots] == [(64, 48), pictures.unreadable().size, (64, 48)]
    (question,) = read(tmp_path, stored).questions  # one that nobody knew of fails the prompt that needs it
    with pytest.raises(pictures.PictureError, match=r"b\.png"):
        deliver(question.memory, question)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """An empty data folder, and no benchmark remembered from another."""
    monkeypatch.setenv("DELIVERMEM_DATA", str(tmp_path / "data"))
    benchmarks.load.cache_clear()
    yield tmp_path
    benchmarks.load.cache_clear()


@pytest.mark.parametrize(
    ("form", "images"),
    [("json", "folder"), ("wrapped", "archive"), ("parquet", "archive"), ("json", "archive")],
)
def test_it_is_fetched_from_a_folder_in_every_published_form(kept, form, images):
    said = []
    hub.fetch_memlens(
        "32k", source=made_memlens.make(kept / "hub", form=form, images=images), say=said.append
    )
    whole, part = benchmarks.load("memlens-32k-all"), benchmarks.load("memlens-32k")
    expected = made_memlens.rows()
    assert [q.id for q in whole.questions] == [r["question_id"] for r in expected]
    assert [q.id for q in part.questions] == [r["question_id"] for r in expected][:-1]
    assert (
        part.judge == "memlens"
        and "0 pictures can't be had" in said[-1]
        and part.revision.startswith("sha256:")
    )
    shown = [p for memory in whole.memories for r in memory for p in r.pictures]
    assert shown and all(pictures.load(p).size != pictures.unreadable().size for p in shown)
    listed = json.loads((memlens_store.folder() / "32k.json").read_text())
    assert len(listed["images"]) == len({p.id for p in shown}) == len(list(kept.glob("data/**/*.png")))


def test_a_stopped_fetch_goes_on_and_a_second_one_writes_nothing_anew(kept, monkeypatch):
    source = made_memlens.make(kept / "hub")

    class Stopped(Exception):
        pass

    def torn(path):
        for i, one in enumerate(json.loads(path.read_text())):
            if i == 3:
                raise Stopped
            yield one

    with monkeypatch.context() as patched:
        patched.setattr(memlens, "rows", torn)
        with pytest.raises(Stopped):
            hub.fetch_memlens("32k", source=source, say=lambda text: None)
    with pytest.raises(ValueError, match="delivermem fetch memlens --length 32k"):
        benchmarks.load("memlens-32k")
    hub.fetch_memlens("32k", source=source, say=lambda text: None)
    files = {p: p.stat().st_mtime_ns for p in (memlens_store.folder()).rglob("*") if p.is_file()}
    hub.fetch_memlens("32k", source=source, say=lambda text: None)
    again = {p: p.stat().st_mtime_ns for p in (memlens_store.folder()).rglob("*") if p.is_file()}
    rewritten = {p.name for p in files if files[p] != again[p]}
    assert files.keys() == again.keys() and rewritten <= {"32k.json", "images.json"}


def test_pictures_that_cannot_be_had_are_named_and_change_the_revision(kept):
    source = made_memlens.make(kept / "hub")
    hub.fetch_memlens("32k", source=source, say=lambda text: None)
    before = benchmarks.load("memlens-32k").revision
    first, second, *_ = sorted((source / "release_images").rglob("*.png"))
    first.write_bytes(b"<html>not found</html>")
    second.unlink()
    for path in (memlens_store.folder() / "images").rglob("*.png"):
        path.unlink()
    said: list[str] = []
    benchmarks.load.cache_clear()
    hub.fetch_memlens("32k", source=source, say=said.append)
    assert "2 pictures can't be had" in said[-1] and any(first.name in line for line in said)
    found = benchmarks.load("memlens-32k")
    assert (
        found.revision.startswith(before + "-")
        and first.name in found.notes[0]
        and second.name in found.notes[0]
    )
    lost = [p for m in found.memories for r in m for p in r.pictures if p.source is pictures.unreadable()]
    assert {p.id.rpartition("/")[2] for p in lost} <= {first.name, second.name}


def test_the_agents_subset_must_be_of_the_questions(kept):
    source = made_memlens.make(kept / "hub")
    (source / "agent_subset_195.json").write_text(json.dumps(dict(question_ids=["q_unknown"])))
    hub.fetch_memlens("32k", source=source, say=lambda text: None)
    with pytest.raises(memlens.FormatError, match="'q_unknown' is not among those of 32k"):
        benchmarks.load("memlens-32k")
    for text in ("[", "[]", '{"question_ids": 5}'):
        (memlens_store.folder() / "agent_subset_195.json").write_text(text)
        with pytest.raises(memlens.FormatError, match="agent_subset_195"):
            benchmarks.load("memlens-32k")


def archive(path, *members):
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, 4 if kind == tarfile.REGTYPE else 0
            tar.addfile(info, io.BytesIO(b"data") if kind == tarfile.REGTYPE else None)
    return path


@pytest.mark.parametrize(
    "member",
    [
        ("../x.png", tarfile.REGTYPE, ""),
        ("/x.png", tarfile.REGTYPE, ""),
        ("release_images/../../x.png", tarfile.REGTYPE, ""),
        ("a/C:\\x.png", tarfile.REGTYPE, ""),
        ("link.png", tarfile.SYMTYPE, "/etc/passwd"),
        ("hard.png", tarfile.LNKTYPE, "good.png"),
        ("pipe.png", tarfile.FIFOTYPE, ""),
    ],
)
def test_an_archive_with_one_bad_member_is_refused_whole(tmp_path, member):
    path = archive(tmp_path / "x.tar.gz", ("good.png", tarfile.REGTYPE, ""), member)
    with pytest.raises(hub.FetchError, match="take the published archive"):
        hub.unpack(path, tmp_path / "to")
    assert not (tmp_path / "to").exists() and not (tmp_path / "x.png").exists()


def test_an_outsized_member_and_a_torn_archive_are_refused(tmp_path, monkeypatch):
    path = archive(tmp_path / "x.tar.gz", ("release_images/a/good.png", tarfile.REGTYPE, ""))
    assert hub.unpack(path, tmp_path / "to", say=lambda text: None) == 1
    assert (tmp_path / "to" / "a" / "good.png").read_bytes() == b"data"
    with monkeypatch.context() as patched:
        patched.setattr(hub, "LARGEST", 3)
        with pytest.raises(hub.FetchError, match="4 bytes"):
            hub.unpack(path, tmp_path / "to")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(hub.FetchError, match="fetch it again"):
        hub.unpack(path, tmp_path / "to")


def test_what_a_folder_lacks_is_said_before_anything_is_written(kept):
    with pytest.raises(hub.FetchError, match="no folder"):
        hub.fetch_memlens("32k", source=kept / "nowhere")
    (kept / "empty").mkdir()
    with pytest.raises(hub.FetchError, match=r"dataset_32k\.json"):
        hub.fetch_memlens("32k", source=kept / "empty")
    with pytest.raises(hub.FetchError, match="choose one of 32k"):
        hub.fetch_memlens("33k", source=kept / "empty")


def test_without_a_hub_the_cure_is_said(kept):
    with pytest.raises(hub.FetchError, match="--from"):
        hub.fetch_memlens("32k", say=lambda text: None)


# The whole conversation, as the released evaluator asks.


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A git repository with the evaluator's constants, in words of ours; and its commit."""
    place = tmp_path_factory.mktemp("code")
    (place / "data.py").write_text(
        'import json\n\nSYSTEM_TEMPLATE = ("Look at what was said. " "Else say: none.")\n'
        'INSTRUCTION_DEFAULT = "Only the answer."\n'
        'QUESTION_TEMPLATE = """{instruction}\nDay: {question_date}\nAsked: {question}\n"""\n'
        'raise SystemExit("this is never run")\n'
    )
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", "-C", str(place), *words], check=True)
    return place, released.git(place, "rev-parse", "HEAD")


def test_the_evaluators_words_are_read_from_its_checkout_and_never_run(checkout):
    words = released.words(*checkout)
    assert words.system == "Look at what was said. Else say: none."
    assert words.question("Which?", "") == "Only the answer.\nDay: unknown\nAsked: Which?\n"


def test_a_checkout_must_be_there_at_its_commit_and_unchanged(checkout, tmp_path):
    place, commit = checkout
    with pytest.raises(released.CheckoutError, match="delivermem fetch memlens-judge"):
        released.verified(tmp_path, commit)
    with pytest.raises(released.CheckoutError, match="it is at commit"):
        released.verified(place, "0" * 40)
    (place / "__pycache__").mkdir()
    (place / "__pycache__" / "x.pyc").write_bytes(b"")
    assert released.verified(place, commit) == place
    (place / "extra.py").write_text("")
    with pytest.raises(released.CheckoutError, match=r"extra\.py is not as published"):
        released.verified(place, commit)
    (place / "extra.py").unlink()


TURNS = st.lists(
    st.tuples(
        st.sampled_from(["user", "assistant"]),
        st.lists(st.sampled_from(["", " ", "one", " two\n", "three"]), min_size=1, max_size=4),
        st.lists(st.sampled_from(["a.png", "b.png"]), max_size=3),
    ),
    min_size=1,
    max_size=3,
)


def restated(stored, root, words):
    """The chat by the rules of the released evaluator, written down anew: (role, [text or picture's hash])."""
    chat = [("system", [words.system])]
    for number, (date, turns) in enumerate(
        zip(stored["haystack_dates"], stored["haystack_sessions"], strict=True), 1
    ):
        for place, turn in enumerate(turns):
            shown = [f"#{content_hash(Image.open(root / i['file']).convert('RGB'))}" for i in turn["images"]]
            text, blocks = turn["content"], []
            if shown and "<image>" in text:
                left = list(shown)
                for piece in re.split("(<image>)", text):
                    if piece == "<image>":
                        blocks += left[:1]
                        left = left[1:]
                    elif piece.strip():
                        blocks.append(piece)
                blocks += left
            else:
                blocks = [
                    *shown,
                    *([text.replace("<image>", "").strip()] if text.replace("<image>", "").strip() else []),
                ]
            if place == 0:
                header = f"=== Session {number} (Date: {date}) ==="
                if blocks and not blocks[0].startswith("#"):
                    blocks[0] = f"{header}\n{blocks[0]}"
                else:
                    blocks.insert(0, header)
            if blocks:
                chat.append((turn["role"], blocks))
    last = f"{words.instruction}\nDay: {stored['question_date']}\nAsked: {stored['question']}\n"
    return [*chat, ("user", [last])]


def joined(blocks):
    texts: list[str] = []
    for block in blocks:
        if texts and not block.startswith("#") and not texts[-1].startswith("#"):
            texts[-1] += block
        else:
            texts.append(block)
    return texts


@pytest.fixture(scope="module")
def shots(tmp_path_factory):
    root = tmp_path_factory.mktemp("shots")
    for name, colour in (("a", "red"), ("b", "blue")):
        Image.new("RGB", (8, 8), colour).save(root / f"{name}.png")
    return root


@settings(max_examples=60, deadline=None)
@given(sessions=st.lists(TURNS, min_size=1, max_size=3))
def test_the_whole_conversation_is_asked_as_the_released_evaluator_asks(shots, checkout, sessions):
    stored = row(
        haystack_sessions=[
            [
                dict(role=role, content="<image>".join(pieces), images=[dict(file=n) for n in names])
                for role, pieces, names in turns
            ]
            for turns in sessions
        ],
        haystack_dates=[f"2024/05/0{i} ({d}) 10:00" for i, d in ((1, "Wed"), (2, "Thu"), (3, "Fri"))][
            : len(sessions)
        ],
        haystack_session_ids=["s1", "s2", "s3"][: len(sessions)],
    )
    words = released.words(*checkout)
    (question,) = read(shots, stored).questions
    ours = [
        (
            message["role"],
            [
                p["text"] if p["type"] == "text" else f"#{content_hash(p['image'])}"
                for p in message["content"]
            ],
        )
        for message in memlens.full_context(question, words).to_transformers()
    ]
    assert ours == [(role, joined(blocks)) for role, blocks in restated(stored, shots, words)]
