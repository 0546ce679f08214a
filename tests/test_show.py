"""One cached answer as a page: everything the model saw, in its order, escaped, held against its hashes, and alone."""

from __future__ import annotations

import base64
import io
import json
from datetime import datetime
from html.parser import HTMLParser

import pytest
from conftest import picture, small_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_runs import Eye, Fake
from typer.testing import CliRunner

from delivermem import benchmarks, controls, dense, experiments, prompt_figure, runner, runs, show
from delivermem.benchmarks import Benchmark, memlens
from delivermem.cli import app
from delivermem.delivery import Decisions, deliver
from delivermem.pictures import content_hash
from delivermem.records import Memory, Question, Record


class Page(HTMLParser):
    """What a browser makes of the HTML: messages of [text or picture], captions, tags and attributes, all text."""

    def __init__(self, html):
        super().__init__()
        self.messages, self.captions, self.tags, self.attributes, self.said = [], [], [], [], ""
        self._in = []
        self.feed(html)
        self.close()
        assert self._in == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag == "pre":
            self.messages.append([])
        if tag == "span" and ("class", "slot") in attributes:
            self.captions.append("")
        if tag == "img":
            source = dict(attributes)["src"].removeprefix("data:image/png;base64,")
            self.messages[-1].append(Image.open(io.BytesIO(base64.b64decode(source, validate=True))))
        elif tag != "meta":
            self._in.append(tag)

    def handle_endtag(self, tag):
        assert self._in.pop() == tag

    def handle_data(self, data):
        if "style" in self._in:
            return
        self.said += data
        if "span" in self._in and self.captions:
            self.captions[-1] += data
        elif "pre" in self._in:
            before = self.messages[-1]
            if before and isinstance(before[-1], str):
                before[-1] += data
            else:
                before.append(data)

    def read(self):
        """Each message as the prompt has it: texts, and hashes of pixels."""
        plain = []
        for message in self.messages:
            assert message[0].startswith("\n")  # which a browser drops at the head of <pre>
            parts = [message[0][1:], *message[1:]]
            plain.append([p if isinstance(p, str) else content_hash(p) for p in parts if p != ""])
        return plain


def _asked(memory):
    return Question("q", "Which <memory> & why?", "r3", "information_extraction", memory, gold=("r3",))


def _prompts():
    memory = small_memory()
    question = _asked(memory)
    yield "interleaved", deliver(memory, question)
    last = deliver(memory, question, layout="images-last")
    yield "images-last", last
    yield "reordered", controls.apply(last, "reordered", question=question)
    yield "text-first", deliver(memory, question, layout="text-first")
    yield "no pixels", deliver(memory, question, Decisions(modality="text"))
    yield "chat", memlens.full_context(question)


@pytest.mark.parametrize(("name", "prompt"), [pytest.param(*case, id=case[0]) for case in _prompts()])
def test_every_message_stands_as_the_model_gets_it_pictures_in_their_places(name, prompt):
    shown = Page(prompt_figure.messages(prompt, ["r3"]))
    wanted = [
        [p["text"] if p["type"] == "text" else content_hash(p["image"]) for p in message["content"]]
        for message in prompt.to_transformers()
    ]
    assert shown.read() == wanted
    assert shown.tags.count("img") == len(prompt.slots) == len(shown.captions)
    for slot, caption in zip(prompt.slots, shown.captions, strict=True):
        assert caption.startswith(f"{slot.tag or 'no tag'}, record {slot.record_id}")
        assert ("gold" in caption) == (slot.record_id == "r3")
    widths = [int(value) for tag, name, value in shown.attributes if (tag, name) == ("img", "width")]
    assert widths == [192] * len(prompt.slots)  # 96 pixels, each a square of 2 by 2


@settings(deadline=None)
@given(st.text(), st.text(), st.text())
def test_whatever_text_is_stored_it_shows_as_text(said, asked, name):
    prompt = deliver([Record("r1", said), Record(f"<{name}>", "x")], asked)
    shown = Page(prompt_figure.messages(prompt))
    assert shown.read() == [[p["text"] for p in m["content"] if p["text"]] for m in prompt.to_transformers()]
    table = Page(prompt_figure.records(prompt, ["<gone>"]))
    assert f"<{name}>" in table.said and "<gone>" in table.said
    assert set(shown.tags + table.tags) <= set("ol li div pre b table tr th td p mark".split())


def test_attributes_and_half_characters_are_escaped_too():
    page = Page(prompt_figure.tag("p", title='"><script>x</script>'))
    assert page.tags == ["p"] and page.attributes == [("p", "title", '"><script>x</script>')]
    assert prompt_figure.text("a\ud800<").encode() == b"a\\ud800&lt;"


@pytest.fixture
def answered(tmp_path, small_benchmark):
    """A folder with answers of the decomposition and of the controls."""
    for experiment in ("decomposition", "controls"):
        runner.run(experiment, benchmark="small", backbone=Fake(), outputs=tmp_path, say=str, k=3)
    return {"benchmark": "small", "backbone": "fake", "outputs": tmp_path}


def _path(answered, condition="gold-pixels"):
    return answered["outputs"] / "small" / "fake" / f"{condition}.jsonl"


def _rewrite(answered, change, condition="gold-pixels"):
    """Change the first line of a file, and let the manifest state the new bytes."""
    path = _path(answered, condition)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0] |= change(lines[0])
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with runs.Folder(path.parent) as folder:
        manifest = json.loads((path.parent / "manifest.json").read_text())
        names = ("benchmark", "revision", "backbone", "k", "seed")
        folder.write_manifest({name: manifest[name] for name in names}, asked=False)


def test_a_page_states_the_answer_its_facts_and_where_it_comes_from(answered):
    seen = show.find("m1-a", "gold-pixels", **answered)
    assert seen.troubles == () and seen.where == "small/fake/gold-pixels.jsonl, line 1"
    said = Page(show.page("m1-a", "gold-pixels", **answered)).said
    line, manifest = seen.line, seen.manifest
    for fact in (
        seen.plan.question.text, line["answer"], line["expected"], line["verdict"], line["rule"], line["key"], line["prompt"],
        line["pixels"], f"{line['text_tokens']} of text", "K = 3", "rev0", manifest["commit"], "float32", "status",
        "ok, finish: stop", "1 of 1 gold", "retrieval gold", "hash to what this answer",
        "delivermem show m1-a --condition gold-pixels --benchmark small --backbone fake",
    ):  # fmt: skip
        assert fact in said, fact
    assert all(name in said for name in line["delivered"])
    missed = Page(show.page("m1-a", "recent-pixels", **answered)).said
    assert "0 of 1 gold; not delivered: r1" in missed and "does not hold" not in missed


def test_a_page_loads_nothing_and_names_itself(answered):
    text = show.page("m1-a", "gold-pixels", **answered)
    page = Page(text)
    assert text.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert page.tags.count("title") == page.tags.count("h1") == page.tags.count("main") == 1
    assert "m1-a · gold-pixels · fake on small" in page.said
    linked = [
        value for _, name, value in page.attributes if name in ("src", "href", "srcset", "data", "action")
    ]
    assert linked and all(value.startswith("data:image/png;base64,") for value in linked)
    assert not {"script", "link", "iframe", "object", "a"} & set(page.tags)
    assert "url(" not in text and "@import" not in text
    assert not [name for _, name, _ in page.attributes if name.startswith("on")]
    alts = [value for tag, name, value in page.attributes if (tag, name) == ("img", "alt")]
    assert len(alts) == page.tags.count("img") > 0 and all(alts) and len(set(alts)) == len(alts)
    assert ("meta", "name", "viewport") in page.attributes


def test_a_fragment_is_the_page_without_its_frame(answered):
    part, page = (make("m1-a", "gold-pixels", **answered) for make in (show.fragment, show.page))
    inside, whole = Page(part), Page(page)
    assert inside.read() == whole.read() and not {"html", "head", "body", "h1"} & set(inside.tags)
    assert [tag for tag in inside.tags if tag in ("h3", "h4")] == ["h3" if t == "h1" else "h4" for t in whole.tags if t in ("h1", "h2")]  # fmt: skip


CHANGES = {
    "text": (lambda line: {"prompt": "0" * 64}, "text of its prompt would be others"),
    "pixels": (lambda line: {"pixels": "0" * 64}, "pictures of its prompt would be others"),
    "records": (lambda line: {"delivered": line["delivered"][::-1]}, "other records"),
    "key": (lambda line: {"key": "0" * 64}, "no longer hashes to its key"),
    "verdict": (lambda line: {"verdict": "wrong"}, "would be judged 'right' now"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_line_that_does_not_hold_is_said_on_the_page(answered, name):
    change, sentence = CHANGES[name]
    _rewrite(answered, change)
    seen = show.find("m1-a", "gold-pixels", **answered)
    assert any(sentence in trouble and "line 1" in trouble for trouble in seen.troubles)
    assert not any("bytes" in trouble for trouble in seen.troubles)
    said = Page(show.document(seen)).said
    assert sentence in said and "does not hold" in said and "hash to what this answer" not in said
    assert show.find("m1-b", "gold-pixels", **answered).troubles == ()


def test_changed_bytes_and_a_changed_benchmark_are_said(answered, small_benchmark, monkeypatch):
    path = _path(answered)
    path.write_text(path.read_text().replace('"seconds"', '"seconds" '))
    (trouble,) = show.find("m1-a", "gold-pixels", **answered).troubles
    assert "bytes are not those of the manifest" in trouble
    other = small_memory("m1")
    other = Memory("m1", (Record("r1", other["r1"].text, other["r1"].time, pictures=(picture("p1", "teal"),)), *other.records[1:]))  # fmt: skip
    asked = small_benchmark.questions[0]
    changed = Question(
        asked.id, asked.text, asked.answer, asked.kind, other, time=asked.time, gold=asked.gold
    )
    monkeypatch.setitem(benchmarks.BENCHMARKS, "small", lambda: Benchmark("small", "rev1", (changed,)))
    benchmarks.load.cache_clear()
    troubles = show.find("m1-a", "bm25-pixels", **answered).troubles
    assert "revision rev0 of the benchmark, which is now rev1" in troubles[0]
    assert "pictures of its prompt" in troubles[1] and len(troubles) == 2


def test_what_was_not_asked_has_no_prompt_and_says_why(answered):
    seen = show.find("m1-a", "reordered", **answered)
    assert seen.plan.prompt is None and seen.troubles == ()
    page = Page(show.document(seen))
    assert "Nothing was put to the model: reordered can't be had here." in page.said
    assert "not applicable" in page.said and "img" not in page.tags


def test_the_steps_of_a_trace_are_listed(answered):
    step = {"url": "/", "reply": "<i>hm</i>", "action": "navigate(/a)", "outcome": "opened", "landed": "/a"}
    _rewrite(
        answered,
        lambda line: {"steps": [step | {"delivered": line["delivered"]}, {"reply": "?", "delivered": []}]},
    )
    page = Page(show.page("m1-a", "gold-pixels", **answered))
    assert "at its first step" in page.said
    assert "step 1 at /<i>hm</i>navigate(/a) → opened → /a" in page.said.replace("\n", "")
    assert "step 2 at ?" in page.said and "i" not in page.tags


def test_a_picture_lent_by_another_memory_is_the_same_whichever_question_is_looked_up(tmp_path, monkeypatch):
    """Looking one up must not change which memory lends."""
    questions = []
    for i, colour in enumerate(["navy", "olive", "plum", "tan", "cyan"]):
        record = Record("r", f"Photo {i} <image>", datetime(2024, 1, 1 + i), pictures=(picture("p", colour),))
        questions.append(Question(f"q{i}", "What?", colour, "x", Memory(f"m{i}", (record,)), gold=("r",)))
    monkeypatch.setitem(benchmarks.BENCHMARKS, "wide", lambda: Benchmark("wide", "r", tuple(questions)))
    benchmarks.load.cache_clear()
    runner.run("ladder", benchmark="wide", backbone=Fake(), outputs=tmp_path, say=str, k=1)
    for question in questions:
        for rung in ("stranger", "noise", "scrambled"):
            seen = show.find(
                question.id, f"ladder-{rung}", benchmark="wide", backbone="fake", outputs=tmp_path
            )
            assert seen.troubles == ()
    benchmarks.load.cache_clear()


def test_nothing_is_ranked_by_sight_again(tmp_path, small_benchmark, monkeypatch):
    monkeypatch.setattr(dense, "data_dir", lambda: tmp_path / "data")
    monkeypatch.setattr(dense, "encoder", lambda: Eye())
    dense._index.cache_clear()
    outputs = tmp_path / "o"
    runner.run("adapter", benchmark="small", backbone=Fake(), outputs=outputs, say=str, k=2)
    monkeypatch.setattr(dense, "encoder", lambda: pytest.fail("nothing is to be ranked"))
    dense._index.cache_clear()
    seen = show.find("m2-a", "tiles-full", benchmark="small", backbone="fake", outputs=outputs)
    assert seen.troubles == () and "eye@1" in Page(show.document(seen)).said


WRONG = {
    "question": (("m1-c", "gold-pixels"), {}, r"small has no question 'm1-c'; did you mean m1-a, m1-b"),
    "no such question": (("zzz", "gold-pixels"), {}, r"choose one of m1-a, m1-b, m2-a, m2-b$"),
    "condition": (("m1-a", "gold-pixel"), {}, r"condition 'gold-pixel' is unknown; did you mean gold-pixels"),
    "no such condition": (("m1-a", "zzz"), {}, r"choose one of gold-pixels, .*full-context"),
    "not at hand": (
        ("m1-a", "ladder-noise"),
        {},
        r"not at hand .* delivermem run ladder .* at hand: bm25-pixels",
    ),
    "benchmark": (
        ("m1-a", "gold-pixels"),
        {"benchmark": "smal"},
        r"'smal' is unknown; choose one of .*small",
    ),
    "backbone": (
        ("m1-a", "gold-pixels"),
        {"backbone": "../fake"},
        r"no answers of backbone .*; at hand: fake",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_unknown_or_not_at_hand_is_one_sentence_with_the_choices(answered, name, monkeypatch):
    (question, condition), where, sentence = WRONG[name]
    with pytest.raises(ValueError, match=sentence):
        show.page(question, condition, **answered | where)
    where = answered | where
    words = [question, "--condition", condition]
    words += [str(word) for key, value in where.items() for word in (f"--{key}", value)]
    result = CliRunner().invoke(app, ["show", *words])
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr


def test_every_condition_of_every_experiment_is_known_and_its_command_named(answered):
    for experiment in experiments.EXPERIMENTS.values():
        for condition in experiment.conditions:
            if _path(answered, condition.name).exists():
                assert show.find("m1-a", condition.name, **answered).plan.condition == condition
                continue
            with pytest.raises(ValueError, match="not at hand") as caught:
                show.find("m1-a", condition.name, **answered)
            named = str(caught.value).split("delivermem run ")[1].split()[0]
            assert condition in experiments.find(named).conditions


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: path.write_text(path.read_text().split("\n", 1)[1]), "no answer to question 'm1-a'"),
        (lambda path: path.write_text("nonsense\n"), "line 1: not JSON"),
        (
            lambda path: path.write_text(path.read_text().replace('"rule"', '"ruel"')),
            "line 1: no field 'rule'",
        ),
        (lambda path: path.write_text(path.read_text().replace('"r1"', '"r9"')), "'r9' is not in the memory"),
        (lambda path: (path.parent / "manifest.json").write_text("[1"), "manifest.json: unreadable"),
        (lambda path: (path.parent / "manifest.json").write_text("{}"), "manifest.json: no 'backbone' in it"),
    ],
)
def test_a_damaged_file_is_named(answered, damage, sentence):
    damage(_path(answered))
    with pytest.raises(ValueError, match=sentence.replace(".", r"\.")):
        show.find("m1-a", "gold-pixels", **answered)


def test_the_command_writes_a_page_and_prints_its_path(answered, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["show", "m1-a", "--condition", "gold-pixels", "--benchmark", "small", "--backbone", "fake"]
    words += ["--outputs", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "show-small-m1-a-gold-pixels.html\n", "")
    page = (tmp_path / "show-small-m1-a-gold-pixels.html").read_bytes()
    assert page == show.page("m1-a", "gold-pixels", **answered).encode()
    (tmp_path / "pages").mkdir()
    assert (
        CliRunner().invoke(app, [*words, "--to", "pages"]).stdout
        == "pages/show-small-m1-a-gold-pixels.html\n"
    )
    assert CliRunner().invoke(app, [*words, "--to", "x.html"]).stdout == "x.html\n"
    assert (tmp_path / "x.html").read_bytes() == page
    lost = CliRunner().invoke(app, [*words, "--to", "no/such/x.html"])
    assert lost.exit_code == 2 and "can't be written" in lost.stderr and lost.stderr.count("\n") == 1
    _rewrite(answered, CHANGES["pixels"][0])
    off = CliRunner().invoke(app, [*words, "--to", "x.html"])
    assert off.exit_code == 1 and off.stdout == "x.html\n" and "pictures of its prompt" in off.stderr


def test_a_name_with_slashes_makes_a_plain_file_name(answered, monkeypatch, tmp_path):
    _rewrite(answered, lambda line: {"question_id": "../m 1"})
    asked = benchmarks.load("small").questions[0]
    odd = Question("../m 1", asked.text, asked.answer, asked.kind, asked.memory, gold=asked.gold)
    monkeypatch.setitem(benchmarks.BENCHMARKS, "small", lambda: Benchmark("small", "rev0", (odd,)))
    benchmarks.load.cache_clear()
    path = show.write(show.find("../m 1", "gold-pixels", **answered), tmp_path)
    assert path.parent == tmp_path and path.name == "show-small-..-m-1-gold-pixels.html"
