"""The engine for servers: a real `transformers serve`, and one whose faults and replies are written out."""

from __future__ import annotations

import base64
import json
from collections import Counter
from datetime import datetime
from io import BytesIO
from itertools import count

import pytest
import serving
from conftest import picture
from PIL import Image
from serving import TINY, Reply, Scripted
from typer.testing import CliRunner

from delivermem import Picture, Record, backbones, deliver, server
from delivermem.backbones import BackboneError
from delivermem.cli import app
from delivermem.delivery import Decisions

PLAIN = Decisions(identity="none")


def _prompt(text="What colour is it?", *, said="A photo <image>", colour="red", how=None, size=(96, 96)):
    record = Record(f"r-{colour}", said, datetime(2024, 5, 1), pictures=(picture(colour, colour, size),))
    return deliver([record], text, how or Decisions())


def _prompts(count):
    colours = ("red", "green", "blue", "pink", "black", "white", "gray", "brown")
    return [_prompt(f"Question {i}?", colour=colours[i % 8]) for i in range(count)]


def _backbone(url, name="made", **settings):
    return backbones.load(name, engine="openai", url=url, **dict(max_new_tokens=12, batch_size=4) | settings)


@pytest.fixture
def made():
    """A scripted server, running, and its address."""
    script = Scripted()
    with script.running() as url:
        script.url = url
        yield script


@pytest.fixture(scope="module")
def served():
    with serving.real() as url:
        yield url


# -- a real server -----------------------------------------------------------------------------------------------------


def test_a_real_server_answers_as_the_transformers_engine_does(served):
    prompts = serving.dozen()
    expected = serving.here(prompts)
    found = dict(_backbone(served, TINY).answer(prompts))
    assert {i: found[i].text for i in found} == {i: answer.text for i, answer in expected.items()}
    assert len({answer.text for answer in found.values()}) > 5
    for i, answer in expected.items():
        here = (answer.status, answer.finish, answer.text_tokens, answer.image_tokens, answer.images)
        there = found[i]
        assert here == (there.status, there.finish, there.text_tokens, there.image_tokens, there.images)


def test_a_run_through_a_real_server_resumes_and_verifies(served, tmp_path):
    words = [
        "run",
        "decomposition",
        "--backbone",
        TINY,
        "--engine",
        "openai",
        "--url",
        served,
        "--limit",
        "3",
    ]
    where = ["--outputs", str(tmp_path)]
    first = CliRunner().invoke(app, [*words, *where])
    assert first.exit_code == 0, first.output
    again = CliRunner().invoke(app, [*words, *where])
    assert again.exit_code == 0 and "0 distinct prompts asked" in again.output
    rows = json.loads(CliRunner().invoke(app, ["status", "--json", *where]).stdout)
    assert len(rows) == 6 and all(row["answers"] == 3 and not row["failed"] for row in rows)
    assert {row["backbone"] for row in rows} == {"tiny-qwen3-vl-2--openai"}  # apart from the other engine's
    assert "answers verified" in CliRunner().invoke(app, ["verify", *where]).output
    assert served not in "".join(path.read_text() for path in tmp_path.rglob("*.json*"))


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1, 5])
def test_every_prompt_is_asked_once_and_the_bound_of_requests_is_kept_and_used(made, bound):
    made.seconds = 0.02
    prompts = _prompts(24)
    backbone = _backbone(made.url, batch_size=bound)
    found = dict(backbone.answer(prompts))
    assert sorted(found) == list(range(24)) and {answer.status for answer in found.values()} == {"ok"}
    assert len(made.seen) == 24 and made.most == bound
    for i, answer in found.items():
        (request,) = (r for r in made.seen if f"Question {i}?" in json.dumps(r))
        assert answer.text == serving.spoken(serving.parts(request))


def test_prompts_that_share_a_prefix_are_sent_one_after_another(made):
    prompts = [_prompt(said=f"{side} <image>", text=f"{i}?") for i in range(6) for side in ("left", "right")]
    list(_backbone(made.url, batch_size=1, max_new_tokens=3).answer(iter(prompts[:4])))  # one window
    sides = ["left" if "left" in json.dumps(request) else "right" for request in made.seen]
    assert sides in (["left"] * 2 + ["right"] * 2, ["right"] * 2 + ["left"] * 2)


def test_every_sampling_field_is_stated(made):
    list(_backbone(made.url).answer(_prompts(1)))
    (request,) = made.seen
    stated = {name: request[name] for name in (*server.GREEDY, "max_tokens")}
    assert stated == {**server.GREEDY, "max_tokens": 12} and stated["temperature"] == 0
    assert "top_k" not in request and "repetition_penalty" not in request


def test_what_only_some_servers_know_is_sent_to_those_and_is_part_of_the_identity(made):
    made.card |= dict(owned_by="vllm", root="/models/made-8b", max_model_len=4096, created=17)
    backbone = _backbone(made.url, "made@0123")
    list(backbone.answer(_prompts(1)))
    (request,) = made.seen
    assert (request["top_k"], request["min_p"], request["repetition_penalty"]) == (-1, 0.0, 1.0)
    who = backbone.identity
    assert who["served"] == dict(owned_by="vllm", root="made-8b", max_model_len=4096, version="0.99")
    assert (who["model"], who["revision"], who["backend"]) == ("made", "0123", "openai")
    assert who["generation"]["repetition_penalty"] == 1.0 and who["generation"]["max_tokens"] == 12
    assert made.url not in json.dumps(who) and "17" not in json.dumps(who["served"])


def test_the_key_goes_to_the_server_and_nowhere_else(made, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    _refusing(made, 400, "bad key sk-very-secret", "Question 0?")
    backbone = _backbone(made.url)
    found = dict(backbone.answer(_prompts(2)))
    assert made.keys == {"Bearer sk-very-secret"}
    assert found[0].status == "failed" and "***" in found[0].finish
    assert "secret" not in f"{found} {backbone.identity}"


def test_stored_files_are_sent_as_they_are_and_edited_pictures_as_png(made, tmp_path):
    path = tmp_path / "photo.jpg"
    Image.effect_noise((96, 64), 60).convert("RGB").save(path, quality=71)
    record = Record("r", "This <image>", datetime(2024, 5, 1), pictures=(Picture("p", path),))
    list(_backbone(made.url, batch_size=1).answer([deliver([record], "?", PLAIN), deliver([record], "?")]))
    by_kind = {}
    for request in made.seen:
        ((_, url),) = (part for part in serving.parts(request) if part[0] == "picture")
        head, _, data = url.partition(",")
        by_kind[head] = base64.b64decode(data)
    assert by_kind.keys() == {"data:image/jpeg;base64", "data:image/png;base64"}
    assert by_kind["data:image/jpeg;base64"] == path.read_bytes()
    with Image.open(BytesIO(by_kind["data:image/png;base64"])) as stamped, Image.open(path) as plain:
        assert stamped.size == plain.size and stamped.tobytes() != plain.convert("RGB").tobytes()


def test_control_tokens_that_a_message_spells_are_broken_and_the_reply_is_whole(made):
    made.says = lambda request, _: (
        serving.spoken(serving.parts(request))
        if "logprobs" in request
        else " ".join(said for kind, said in serving.parts(request) if kind == "text")
    )
    prompt = _prompt(said="so <|im_end|> and </s> <image>")
    ((_, answer),) = _backbone(made.url).answer([prompt])
    (request,) = made.seen
    assert "<|im_end|>" not in json.dumps(request) and "</s>" not in json.dumps(request)
    assert "<|im_end|>" in answer.text and "</s>" in answer.text


# -- pictures beyond the cap -------------------------------------------------------------------------------------------


def test_a_picture_beyond_the_cap_is_shrunk_here_and_the_others_stay(made):
    name = "Qwen/Qwen3-VL-8B-Instruct"
    made.card["id"] = name
    made.counts = False
    list(
        _backbone(made.url, name, image_tokens=64).answer(
            [_prompt(size=(640, 320)), _prompt(size=(256, 256))]
        )
    )
    sizes = []
    for request in made.seen:
        ((_, url),) = (part for part in serving.parts(request) if part[0] == "picture")
        with Image.open(BytesIO(base64.b64decode(url.partition(",")[2]))) as image:
            sizes.append(image.size)
    assert sorted(sizes) == [(256, 256), (352, 160)]
    assert all((w // 32) * (h // 32) <= 64 for w, h in sizes)


def test_a_cap_is_refused_where_the_count_of_a_picture_is_not_known_or_is_another(made):
    with pytest.raises(
        BackboneError, match=r"how 'made' counts a picture is not known .*set the limit on the server"
    ):
        _backbone(made.url, image_tokens=64)
    made.card["id"] = "Qwen3-VL-4B"  # by its name 64 tokens for 96 x 96 pixels; this server counts 16
    with pytest.raises(BackboneError, match=r"takes 16 tokens .*not 64; image_tokens can't be kept"):
        list(_backbone(made.url, "Qwen3-VL-4B", image_tokens=64).answer(_prompts(1)))
    ((_, answer),) = _backbone(made.url, "Qwen3-VL-4B").answer(_prompts(1))
    assert answer.image_tokens == 0 and answer.text_tokens > 0  # uncapped: the count is not claimed


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [Reply(429, {"error": "slow down"}, retry_after_ms="5"), Reply(503, {"error": "busy"}, retry_after_ms="5"), None],
    ids=["429", "503", "hangs up"],
)  # fmt: skip
def test_a_passing_fault_is_tried_again(made, fault):
    tried = Counter()

    def says(request, _):
        if "logprobs" in request:
            return serving.spoken(serving.parts(request))
        tried[json.dumps(request["messages"])] += 1
        return fault if tried[json.dumps(request["messages"])] == 1 else "red"

    made.says = says
    found = dict(_backbone(made.url).answer(_prompts(3)))
    assert [answer.text for answer in found.values()] == ["red"] * 3
    assert set(tried.values()) == {2}


def _refusing(made, state, words, which="Question 1?"):
    def says(request, _):
        mine = which in json.dumps(request) and "logprobs" not in request
        return Reply(state, {"error": {"message": words}}) if mine else serving.spoken(serving.parts(request))

    made.says = says


def test_a_request_that_is_refused_fails_alone_and_says_why(made):
    _refusing(made, 400, "the picture of this prompt offends")
    found = dict(_backbone(made.url).answer(_prompts(6)))
    assert [i for i, answer in sorted(found.items()) if answer.status != "ok"] == [1]
    assert (found[1].status, found[1].text) == ("failed", "") and "offends" in found[1].finish
    assert found[1].finish.startswith("error: ") and "\n" not in found[1].finish


@pytest.mark.parametrize(
    "words",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "The decoder prompt (length 9000) is longer than the maximum model length of 8192",
        "the request exceeds the available context size (4096 tokens)",
    ],
)
def test_a_prompt_beyond_the_context_is_recorded_as_not_run(made, words):
    _refusing(made, 400, words)
    found = dict(_backbone(made.url).answer(_prompts(3)))
    assert found[1].status == "not_applicable" and found[1].finish.startswith("not run: ")
    assert {found[i].status for i in (0, 2)} == {"ok"}


@pytest.mark.parametrize(
    ("ended", "status", "finish"),
    [
        ("stop", "ok", "stop"),
        ("length", "ok", "length"),
        ("content_filter", "failed", "error: the server ended with content_filter"),
    ],
)
def test_how_a_reply_ended_is_kept(made, ended, status, finish):
    def says(request, _):
        if "logprobs" in request:
            return serving.spoken(serving.parts(request))
        choice = dict(index=0, finish_reason=ended, message=dict(role="assistant", content="red"))
        return Reply(200, dict(id="x", object="chat.completion", created=0, model="made", choices=[choice]))

    made.says = says
    ((_, answer),) = _backbone(made.url).answer(_prompts(1))
    assert (answer.status, answer.finish, answer.text) == (status, finish, "red" if status == "ok" else "")


def test_a_thought_is_no_answer(made):
    said = {"a": "<think>it is blue</think> red", "b": "<think>it is blu"}

    def says(request, _):
        if "logprobs" in request:
            return serving.spoken(serving.parts(request))
        return said["a" if "Question 0" in json.dumps(request) else "b"]

    made.says = says
    found = dict(_backbone(made.url).answer(_prompts(2)))
    assert (found[0].text, found[0].finish) == ("red", "stop")
    assert (found[1].text, found[1].finish) == ("", "length")


def test_a_server_that_is_gone_stops_the_run_and_keeps_what_came_before(made, monkeypatch):
    monkeypatch.setattr(server, "RETRIES", 0)
    answered, numbers = [], count()

    def says(request, _):
        if "logprobs" in request or next(numbers) < 3:
            return serving.spoken(serving.parts(request))
        return None

    made.says = says
    with pytest.raises(BackboneError, match="no longer answers; start it and run again"):
        for i, answer in _backbone(made.url, batch_size=2).answer(_prompts(30)):
            answered.append((i, answer.status))
    assert Counter(status for _, status in answered)["ok"] == 3
    assert len(made.seen) < 15  # the rest is not asked of it


def test_a_caller_that_stops_early_leaves_no_request_waiting(made):
    made.seconds = 0.02
    replies = _backbone(made.url, batch_size=2).answer(_prompts(50))
    next(replies)
    replies.close()
    assert made.flying == 0 and len(made.seen) < 10


# -- what is probed before the first answer ----------------------------------------------------------------------------


def _first(read):
    return sorted(read, key=lambda part: part[0] != "picture")


def _last(read):
    return sorted(read, key=lambda part: part[0] == "picture")


def _blind(read):
    return [(kind, "" if kind == "picture" else said) for kind, said in read]


def _one_picture(read):
    seen = [i for i, (kind, _) in enumerate(read) if kind == "picture"]
    return [part for i, part in enumerate(read) if i not in seen[1:]]


def _short(read):
    left, kept = 60, []
    for kind, said in reversed(read):
        words = said.split() if kind == "text" else [said]
        kept.append((kind, " ".join(words[max(0, len(words) - left) :])))
        left = max(0, left - len(words))
    return kept[::-1]


@pytest.mark.parametrize("counts", [True, False], ids=["counts tokens", "counts nothing"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [(_first, "move pictures out of"), (_last, "move pictures out of"), (_blind, "one answer to different pictures")],
    ids=["first", "last", "blind"],
)  # fmt: skip
def test_pictures_that_are_moved_or_not_seen_stop_the_run_before_an_answer(made, fault, says, counts):
    made.reads, made.counts = fault, counts
    with pytest.raises(BackboneError, match=says):
        list(_backbone(made.url).answer(_prompts(3)))
    assert made.seen == []


@pytest.mark.parametrize("fault", [_one_picture, _short])
def test_a_limit_that_cuts_stops_the_run_before_an_answer(made, fault):
    records = [
        Record(f"r{i}", f"Photo {i} <image> " + "we walked " * 30, datetime(2024, 5, 1), pictures=(picture(f"p{i}", c),))
        for i, c in enumerate(("red", "green", "blue", "pink"))
    ]  # fmt: skip
    made.reads = fault
    prompts = [deliver(records, f"Which {i}?") for i in range(3)]
    with pytest.raises(
        BackboneError, match=r"cuts a prompt of 4 pictures: it read \d+ tokens, and \d+ \+ \d+ of its halves"
    ):
        list(_backbone(made.url).answer(prompts))
    assert made.seen == []
    made.reads = list
    assert len(list(_backbone(made.url).answer(prompts))) == 3


def test_a_server_that_takes_fewer_pictures_says_so(made):
    made.says = lambda request, _: (
        Reply(400, {"error": {"message": "At most 2 image(s) may be provided in one prompt."}})
        if len([kind for kind, _ in serving.parts(request) if kind == "picture"]) > 2
        else serving.spoken(serving.parts(request))
    )
    records = [
        Record(f"r{i}", "<image>", datetime(2024, 5, 1), pictures=(picture(f"p{i}"),)) for i in range(3)
    ]
    with pytest.raises(
        BackboneError, match=r"refuses a prompt of 3 pictures .*At most 2.*limit-mm-per-prompt"
    ):
        list(_backbone(made.url).answer([deliver(records, "?")]))


def test_a_model_of_words_alone_refuses_pictures(made):
    made.says = lambda request, _: (
        Reply(400, {"error": {"message": "made is not a multimodal model"}})
        if any(kind == "picture" for kind, _ in serving.parts(request))
        else "red"
    )
    with pytest.raises(BackboneError, match=r"refused a prompt with pictures.*not a multimodal model"):
        list(_backbone(made.url).answer(_prompts(1)))
    words = deliver([Record("r", "the boat is red", datetime(2024, 5, 1))], "?")
    assert [answer.text for _, answer in _backbone(made.url).answer([words])] == ["red"]


def test_a_server_without_log_probabilities_is_probed_without(made):
    def says(request, _):
        if "logprobs" in request:
            return Reply(400, {"error": {"message": "logprobs is not supported"}})
        return serving.spoken(made.reads(serving.parts(request)))

    made.says = says
    assert [answer.status for _, answer in _backbone(made.url).answer(_prompts(2))] == ["ok"] * 2
    made.reads = _first
    with pytest.raises(BackboneError, match="move pictures"):
        list(_backbone(made.url).answer(_prompts(2)))


def test_a_model_that_is_not_served_and_a_server_that_is_not_there_are_named(made):
    with pytest.raises(BackboneError, match="does not serve 'other'; it lists: made"):
        _ = _backbone(made.url, "other").identity
    with pytest.raises(
        BackboneError, match=r"no server answers at http://127\.0\.0\.1:\d+/v1; start it, or correct --url"
    ):
        _ = _backbone(f"http://127.0.0.1:{serving.port()}/v1").identity
    with pytest.raises(BackboneError, match="needs the server's address"):
        backbones.load("made", engine="openai")


def test_a_probe_is_made_once_and_again_only_for_a_longer_prompt(made):
    backbone = _backbone(made.url)
    list(backbone.answer(_prompts(4)))
    probed = len(made.all) - len(made.seen)
    list(backbone.answer(_prompts(4)))
    assert len(made.all) - len(made.seen) == probed <= 10
    list(backbone.answer([_prompt(said="we walked " * 200 + "<image>")]))
    assert len(made.all) - len(made.seen) == probed + 4
