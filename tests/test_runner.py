"""The runner on what is more than one question: errands that keep their steps, arms of their own K, prompts that read all."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest
from conftest import picture
from PIL import Image

from delivermem import agent, benchmarks, dense, experiments, runner, runs
from delivermem.benchmarks import Benchmark, memlens
from delivermem.benchmarks.storefront import Storefront
from delivermem.delivery import Decisions
from delivermem.experiments import Condition, Experiment
from delivermem.records import Answer, Memory, Picture, Question, Record, Verdict
from delivermem.retrieval import recall
from delivermem.verify import verify

PRODUCTS = {"a0n": "red star", "b1o": "blue key", "c2p": "pink moon"}
SHADES = {"a0n": "red", "b1o": "blue", "c2p": "pink"}
NO_TAGS = Decisions(identity="none")
WALKS = (
    Condition("walk-stamp", "bm25", asks="errand"),
    Condition("walk-none", "bm25", NO_TAGS, asks="errand"),
)


def _visits(photos=None):
    """Three products seen, a day each, and a message without a picture."""
    pictures = photos or {code: picture(f"p-{code}", SHADES[code]) for code in PRODUCTS}
    visits = [
        Record(f"v-{code}", f"Look at this lamp: /product/{code} <image>", datetime(2024, 5, day, 9, 0),
               session=f"s{day}", pictures=(pictures[code],))
        for day, code in enumerate(PRODUCTS, 1)
    ]  # fmt: skip
    return Memory(
        "chain", (*visits, Record("talk", "Good morning.", datetime(2024, 5, 9, 9, 0), session="s9"))
    )


def _store():
    catalogue = dict(
        categories=[dict(id="cat", slug="lamp", sortOrder=0)],
        collections=[dict(id="col", slug="lamp-a", categoryId="cat", displayOrder=0)],
        variants=[
            dict(id=code, collectionId="col", urlHash=code, primaryImage=code, _cue_color=cue.split()[0],
                 _cue_object=cue.split()[1])
            for code, cue in PRODUCTS.items()
        ],
    )  # fmt: skip
    return Storefront(catalogue, lambda path: Image.new("RGB", (64, 64), SHADES[path]))


def _errands(memory, wanted=PRODUCTS, **more):
    questions = tuple(
        Question(f"q-{code}", f"Which product shows a {PRODUCTS[code]}?", code, "recall", memory,
                 gold=(f"v-{code}",), needs=frozenset({"pixels"}))
        for code in wanted
    )  # fmt: skip
    return Benchmark("store", "rev0", questions, layout="images-last", ranker="recent", **more)


def _known(monkeypatch, data):
    benchmarks.load.cache_clear()
    monkeypatch.setitem(benchmarks.BENCHMARKS, data.name, lambda: data)
    return data


def _grid(monkeypatch, *conditions):
    monkeypatch.setitem(experiments.EXPERIMENTS, "grid", Experiment("grid", conditions))


@pytest.fixture
def store(monkeypatch):
    """A benchmark of three errands in one shop, and a grid of two errand arms, known as `store` and `grid`."""
    _grid(monkeypatch, *WALKS)
    yield _known(monkeypatch, _errands(_visits(), shop=_store()))
    benchmarks.load.cache_clear()


class Shopper:
    """Goes to the product whose cue it is told of, by way of a page that does not exist, and wishes for it."""

    def __init__(self, name="shopper", rule=None):
        self.name, self.asked, self.rule = name, [], rule or self.goes
        self.identity = dict(model=name, revision="1", generation={"temperature": 0})

    @staticmethod
    def goes(prompt):
        code = next(code for code, cue in PRODUCTS.items() if cue in prompt.text)
        if "Step 1/8" in prompt.text:
            return "Thought: I guess.\nAction: navigate(/product/zzz)"
        if f"URL: /product/{code}" in prompt.text:
            return "Thought: this page shows it.\nAction: add_to_wishlist"
        return f"Thought: M1 shows it.\nAction: navigate(/product/{code})"

    def answer(self, prompts):
        prompts = list(prompts)
        for i in reversed(range(len(prompts))):
            self.asked.append(prompts[i])
            said = self.rule(prompts[i])
            yield (
                i,
                said if isinstance(said, Answer) else Answer(said, text_tokens=9, image_tokens=4, images=1),
            )


def _run(folder, backbone, benchmark="store", **more):
    return runner.run(
        "grid", benchmark=benchmark, backbone=backbone, outputs=folder, say=str, **(dict(k=2) | more)
    )


def _path(folder, arm="walk-stamp", name="shopper", benchmark="store"):
    return folder / benchmark / name / f"{arm}.jsonl"


def _lines(folder, arm="walk-stamp", **more):
    return list(runs.read(_path(folder, arm, **more)))


def _failing(fails):
    """The same shopper, whose model fails where `fails` says so of a prompt's text."""
    return Shopper(
        rule=lambda p: Answer("", "failed", "error: it broke") if fails(p.text) else Shopper.goes(p)
    )


# -- errands --------------------------------------------------------------------------------------------------


def test_an_errand_is_kept_with_its_steps_and_judged_by_the_product_it_ends_on(tmp_path, store):
    _run(tmp_path, Shopper())
    lines = _lines(tmp_path)
    assert [line["question_id"] for line in lines] == ["q-a0n", "q-b1o", "q-c2p"]
    for line, code in zip(lines, PRODUCTS, strict=True):
        assert tuple(line) == (*runs.FIELDS, "steps")
        steps = line["steps"]
        assert [step["outcome"] for step in steps] == ["no such page", "opened", "wishlist"]
        assert [step["url"] for step in steps] == ["/", "/", f"/product/{code}"]
        assert (line["answer"], line["status"], line["finish"], line["verdict"]) == (
            code,
            "ok",
            "stop",
            "right",
        )
        assert (line["prompt"], line["pixels"]) == (steps[0]["prompt"], steps[0]["pixels"])
        assert (line["text_tokens"], line["image_tokens"], line["images"]) == (27, 12, 3)
        assert line["delivered"] == steps[-1]["delivered"] and len(line["delivered"]) == line["k"] == 2
        tags = dict(zip(steps[-1]["delivered"], steps[-1]["tags"], strict=True))
        shown = [name for name in tags if name != "talk"]  # the one record without a picture
        assert {name: tag for name, tag in tags.items() if tag} == {
            name: f"M{n}" for n, name in enumerate(shown, 1)
        }
    assert all(
        tag == "" for line in _lines(tmp_path, "walk-none") for s in line["steps"] for tag in s["tags"]
    )


def test_what_is_delivered_at_a_step_is_retrieved_for_the_page_the_agent_is_on(tmp_path, store):
    _run(tmp_path, Shopper())
    for line in _lines(tmp_path):
        question = next(q for q in store.questions if q.id == line["question_id"])
        for step in line["steps"]:
            asked = replace(question, text=agent.query(question.text, step["url"]))
            found = [record.id for record in runner.retrieval.rank("bm25", asked, 2)]
            assert step["delivered"] == found
        assert line["steps"][-1]["delivered"][0] == f"v-{line['answer']}"  # its page's name is in the query


def test_recall_is_of_what_the_line_says_was_delivered(tmp_path, store):
    _run(tmp_path, Shopper(), k=1)
    for line in _lines(tmp_path):
        question = next(q for q in store.questions if q.id == line["question_id"])
        assert line["recall"] == recall(question, line["delivered"])


def test_a_run_tells_how_many_prompts_the_model_was_given(tmp_path, store):
    backbone = Shopper()
    assert _run(tmp_path, backbone) == len(backbone.asked) > 6


def test_a_second_run_of_errands_asks_nothing_and_changes_no_byte(tmp_path, store):
    _run(tmp_path, Shopper())
    before = {path.name: path.read_bytes() for path in _path(tmp_path).parent.iterdir()}
    again = Shopper()
    assert _run(tmp_path, again) == 0 and again.asked == []
    assert {path.name: path.read_bytes() for path in _path(tmp_path).parent.iterdir()} == before
    assert verify(tmp_path) == []


def test_a_failed_step_fails_its_errand_alone_and_is_asked_again_on_the_next_run(tmp_path, store):
    def fails(text):
        return "blue key" in text and "Step 2/8" in text

    _run(tmp_path, _failing(fails))
    lines = {line["question_id"]: line for line in _lines(tmp_path)}
    broken = lines.pop("q-b1o")
    assert (broken["status"], broken["verdict"], broken["finish"]) == (
        "failed",
        "unjudged",
        "error: it broke",
    )
    assert [step["outcome"] for step in broken["steps"]] == ["no such page", "failed"]
    assert all(line["verdict"] == "right" for line in lines.values()) and verify(tmp_path) == []
    again = Shopper()
    assert _run(tmp_path, again) > 0
    assert again.asked and all("blue key" in prompt.text for prompt in again.asked)
    assert [line["verdict"] for line in _lines(tmp_path)] == ["right"] * 3 and verify(tmp_path) == []
    assert len(_lines(tmp_path)[1]["steps"]) == 3


def test_a_failure_takes_no_answered_errands_place(tmp_path, store):
    _run(tmp_path, Shopper())
    before = _lines(tmp_path)
    _run(tmp_path, _failing(lambda text: True), fresh=True)
    assert _lines(tmp_path) == before


def test_an_errand_too_long_for_the_model_is_not_asked_for_on_every_run(tmp_path, store):
    """A step that exceeds the context would exceed it again: a second run makes no call."""

    def rule(prompt):
        long = "Step 2/8" in prompt.text
        return Answer("", "not_applicable", "not run: 3000 tokens") if long else Shopper.goes(prompt)

    _run(tmp_path, Shopper(rule=rule))
    assert {line["verdict"] for line in _lines(tmp_path)} == {"unjudged"}
    again = Shopper(rule=rule)
    _run(tmp_path, again)
    assert again.asked == []


def test_a_killed_run_keeps_the_errands_that_were_over(tmp_path, store):
    def rule(prompt):
        if "Step 3/8" in prompt.text:
            raise KeyboardInterrupt
        return "Action: done" if "red star" in prompt.text else Shopper.goes(prompt)

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, Shopper(rule=rule))
    assert [line["question_id"] for line in _lines(tmp_path)] == ["q-a0n"]
    again = Shopper()
    _run(tmp_path, again)
    assert not any("red star" in prompt.text for prompt in again.asked)
    assert [line["question_id"] for line in _lines(tmp_path)] == ["q-a0n", "q-b1o", "q-c2p"]
    assert verify(tmp_path) == []


def test_arms_that_show_the_same_share_every_step_and_keep_a_trace_each(tmp_path, store, monkeypatch):
    _grid(monkeypatch, WALKS[0], Condition("walk-twin", "bm25", asks="errand"))
    backbone = Shopper()
    _run(tmp_path, backbone)
    assert len(backbone.asked) == 9  # three errands of three steps
    one, twin = _lines(tmp_path), _lines(tmp_path, "walk-twin")
    assert [line["steps"] for line in one] == [line["steps"] for line in twin]
    assert verify(tmp_path) == []


def test_an_errand_whose_control_can_not_be_had_is_recorded_as_that_and_never_asked(
    tmp_path, store, monkeypatch
):
    _grid(monkeypatch, Condition("walk-reordered", "bm25", control="reordered", asks="errand"))
    backbone = Shopper()
    assert _run(tmp_path, backbone, k=1) == 0 and not backbone.asked
    for line in _lines(tmp_path, "walk-reordered"):
        assert (line["status"], line["verdict"]) == ("not_applicable", "unjudged") and "steps" not in line
    assert _run(tmp_path, backbone, k=1) == 0 and verify(tmp_path) == []


@pytest.mark.parametrize("where", ["first", "later"])
def test_a_picture_that_can_not_be_read_fails_its_errand_and_not_the_run(tmp_path, store, monkeypatch, where):
    """Whether it is delivered at the first step or only on the page that the agent has gone to."""
    photos = {code: picture(f"p-{code}", SHADES[code]) for code in PRODUCTS}
    photos["c2p"] = Picture("gone", tmp_path / "gone.png")
    wanted = ["c2p", "a0n"] if where == "later" else ["a0n"]
    data = _known(monkeypatch, _errands(_visits(photos), wanted, shop=_store()))
    first = {q.id: runner.errand(data, q, WALKS[0], 1).deliver for q in data.questions}
    if where == "later":  # at the first step another picture is delivered
        assert first["q-c2p"]("/").delivered != ("v-c2p",)
    _run(tmp_path, Shopper(), k=4 if where == "first" else 1)
    lines = {line["question_id"]: line for line in _lines(tmp_path)}
    broken = lines["q-a0n" if where == "first" else "q-c2p"]
    assert broken["status"] == "failed" and "gone.png" in broken["finish"] and broken["verdict"] == "unjudged"
    assert where == "first" or lines["q-a0n"]["verdict"] == "right"


def test_errands_are_judged_by_the_rules_of_today_and_keep_their_traces(tmp_path, store, monkeypatch):
    _run(tmp_path, Shopper())
    before = _lines(tmp_path)
    monkeypatch.setattr(runner.judges, "judge", lambda *_: Verdict("wrong", "strict"))
    assert any("judged differently" in problem for problem in verify(tmp_path))
    assert _run(tmp_path, Shopper()) == 0 and verify(tmp_path) == []
    assert _lines(tmp_path) == [line | dict(verdict="wrong", rule="strict") for line in before]


def test_an_errand_without_a_shop_is_refused_in_one_sentence_and_leaves_the_folder_as_it_was(
    tmp_path, small_benchmark, monkeypatch
):
    _grid(monkeypatch, Condition("plain", "bm25"))
    _run(tmp_path, Shopper(rule=lambda prompt: "red"), benchmark="small")
    folder = tmp_path / "small" / "shopper"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    _grid(monkeypatch, *WALKS)
    backbone = Shopper()
    with pytest.raises(ValueError, match="'small' has no shop to run errands in; ") as error:
        _run(tmp_path, backbone, benchmark="small")
    assert "\n" not in str(error.value) and not backbone.asked
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


class Eye:
    """An encoder whose vectors are mean colours."""

    identity = "eye@1"

    def images(self, images):
        means = np.stack([np.asarray(image, np.float32).mean((0, 1)) for image in images])
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    def texts(self, texts):
        return np.tile(np.float32([0.6, 0.8, 0]), (len(texts), 1))


def test_an_errand_without_a_shop_does_not_say_that_anything_was_retrieved_by_sight(
    tmp_path, small_benchmark, monkeypatch
):
    """The grid of the package itself: its arms rank by sight, and a refusal must not put the encoder on record."""
    monkeypatch.setattr(dense, "data_dir", lambda: tmp_path / "data")
    monkeypatch.setattr(dense, "encoder", Eye)
    dense._index.cache_clear()
    _grid(monkeypatch, Condition("plain", "bm25"))
    _run(tmp_path / "o", Shopper(rule=lambda prompt: "red"), benchmark="small")
    with pytest.raises(ValueError, match="has no shop"):
        runner.run("errand", benchmark="small", backbone=Shopper(), outputs=tmp_path / "o", say=str, k=2)
    assert "encoder" not in json.loads((tmp_path / "o/small/shopper/manifest.json").read_text())


def test_the_errand_grid_changes_the_tags_alone_and_is_verified_without_its_encoder(
    tmp_path, store, monkeypatch
):
    monkeypatch.setattr(dense, "data_dir", lambda: tmp_path / "data")
    monkeypatch.setattr(dense, "encoder", Eye)
    dense._index.cache_clear()
    backbone = Shopper()
    runner.run("errand", benchmark="store", backbone=backbone, outputs=tmp_path / "o", say=str, k=2)
    stamp, constant, none = (_lines(tmp_path / "o", f"errand-{arm}") for arm in ("stamp", "constant", "none"))
    for a, b, c in zip(stamp, constant, none, strict=True):
        assert a["delivered"] == b["delivered"] == c["delivered"]
        assert b["prompt"] == c["prompt"] != a["prompt"]
        assert len({a["pixels"], b["pixels"], c["pixels"]}) == 3
    monkeypatch.setattr(dense, "encoder", lambda: pytest.fail("nothing is ranked by sight to verify"))
    dense._index.cache_clear()
    assert verify(tmp_path / "o") == []


@pytest.mark.parametrize("ranker", ["bm25", "gold", "recent"])
def test_an_errand_begun_anew_is_the_one_that_was_planned(store, ranker):
    """`errand` ranks for itself where nothing is handed to it: by the same rule as the plan."""
    arm = Condition("walk", ranker, asks="errand")
    for planned in runner.plan(store, [arm], {}, k=2):
        again = runner.errand(store, planned.question, arm, 2).prompt(store.shop)
        assert runs.prompt_hashes(again) == runs.prompt_hashes(planned.prompt)


# -- traces that are no longer what they were -----------------------------------------------------------------


def _damaged(folder, change, number=1):
    """The kept file with one line changed, the manifest's digest beside it as it was."""
    path = _path(folder)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines[number])
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return [problem for problem in verify(folder) if "its bytes are not those" not in problem]


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [
        (0, "reply", "Thought: M1 shows it.\nAction: done"),
        (1, "reply", "Thought: M1 shows it.\nAction: navigate(/product/c2p)"),
        (1, "url", "/category/lamp"),
        (1, "delivered", ["talk", "v-a0n"]),
        (1, "tags", ["M9", "M1"]),
        (1, "outcome", "no such page"),
        (1, "action", "done"),
        (1, "landed", "/"),
        (2, "prompt", "0" * 64),
        (2, "pixels", "0" * 64),
        (2, "status", "failed"),
    ],
)
def test_verify_finds_a_step_that_was_tampered_with(tmp_path, store, number, field, value):
    _run(tmp_path, Shopper())

    def change(line):
        assert line["steps"][number][field] != value
        line["steps"][number][field] = value

    problems = _damaged(tmp_path, change)
    assert len(problems) == 1 and "q-b1o" in problems[0] and problems[0].endswith("run again"), problems
    assert "step " in problems[0] and "line 2" in problems[0]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda line: line["steps"].pop(), "ends before the errand does"),
        (lambda line: line["steps"].append(line["steps"][-1]), "one too many"),
        (lambda line: line.update(answer="c2p", verdict="wrong"), "its product is not where its steps end"),
    ],
)
def test_verify_finds_a_trace_that_does_not_lead_to_its_answer(tmp_path, store, change, says):
    _run(tmp_path, Shopper())
    assert any(says in problem for problem in _damaged(tmp_path, change))


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line["steps"][1].update(delivered=["nobody"]),
        lambda line: line["steps"][0].update(delivered=["nobody"]),
        lambda line: line["steps"][1].pop("url"),
        lambda line: line["steps"][1].pop("reply"),
        lambda line: line.update(steps=[]),
        lambda line: line.update(steps=None),
        lambda line: line.pop("steps"),
    ],
    ids=["a later record", "a first record", "no url", "no reply", "no step", "null", "no trace"],
)
def test_verify_says_of_a_trace_that_can_not_be_read_what_is_wrong(tmp_path, store, change):
    """A sentence on that line, and no traceback: the other lines are verified too."""
    _run(tmp_path, Shopper())
    assert any("q-b1o" in problem for problem in _damaged(tmp_path, change))


def test_verify_finds_another_shop(tmp_path, store, monkeypatch):
    _run(tmp_path, Shopper())
    other = Storefront(
        dict(
            categories=[dict(id="cat", slug="lamp", sortOrder=0)],
            collections=[dict(id="col", slug="lamp-a", categoryId="cat", displayOrder=0)],
            variants=[
                dict(id=code, collectionId="col", urlHash=code, primaryImage=code, _cue_color=cue.split()[0], _cue_object=cue.split()[1])
                for code, cue in PRODUCTS.items()
            ],
        ),
        lambda path: Image.new("RGB", (64, 64), "white"),
    )  # fmt: skip
    _known(monkeypatch, replace(store, shop=other))
    problems = verify(tmp_path)
    assert len(problems) == 6 and all("step 3: its pixels would be another now" in p for p in problems)


# -- arms of their own K, and prompts that read everything ----------------------------------------------------


def test_an_arm_with_a_number_of_its_own_delivers_that_many_and_the_others_the_runs(
    tmp_path, small_benchmark, monkeypatch
):
    _grid(
        monkeypatch, Condition("all", "bm25"), Condition("one", "bm25", k=1), Condition("five", "bm25", k=5)
    )
    _run(tmp_path, Shopper(rule=lambda prompt: "red"), benchmark="small", k=3)
    for arm, k in (("all", 3), ("one", 1), ("five", 5)):
        lines = _lines(tmp_path, arm, benchmark="small")
        assert {(line["k"], len(line["delivered"])) for line in lines} == {(k, k)}
    manifest = json.loads((tmp_path / "small/shopper/manifest.json").read_text())
    assert manifest["k"] == 3 and verify(tmp_path) == []
    again = Shopper(rule=lambda prompt: "red")
    assert _run(tmp_path, again, benchmark="small", k=3) == 0 and not again.asked


def test_an_errand_with_a_number_of_its_own_keeps_it_at_every_step(tmp_path, store, monkeypatch):
    _grid(monkeypatch, Condition("walk-stamp", "bm25", k=3, asks="errand"))
    _run(tmp_path, Shopper(), k=1)
    lines = _lines(tmp_path)
    assert {line["k"] for line in lines} == {3}
    assert {len(step["delivered"]) for line in lines for step in line["steps"]} == {3}
    assert verify(tmp_path) == []


@pytest.fixture
def asks_for_records(small_benchmark, monkeypatch):
    """The small benchmark, one of whose questions is answered by a record."""
    which, *others = small_benchmark.questions
    which = replace(which, text="Which memory shows red?", answer="r1", answer_is_record=True)
    return _known(monkeypatch, replace(small_benchmark, questions=(which, *others)))


def test_reading_everything_is_asked_as_the_benchmark_asks_and_delivers_nothing(
    tmp_path, asks_for_records, monkeypatch
):
    _grid(monkeypatch, Condition("full-context", "everything", asks="everything"))
    backbone = Shopper(rule=lambda prompt: "red")
    assert _run(tmp_path, backbone, benchmark="small") == len(backbone.asked) == 3
    lines = _lines(tmp_path, "full-context", benchmark="small")
    assert tuple(lines[1]) == runs.FIELDS
    for line, question in zip(lines, asks_for_records.questions, strict=True):
        assert line["delivered"] == [] and line["k"] == len(question.memory) == 6
        assert line["recall"] == (1.0 if question.gold else None)
        if not question.answer_is_record:
            whole = memlens.full_context(question)
            assert (line["prompt"], line["pixels"]) == runs.prompt_hashes(whole)
    assert all(prompt.layout == "chat" for prompt in backbone.asked)
    assert [line["verdict"] for line in lines] == ["unjudged", "wrong", "right", "wrong"]


def test_where_everything_is_read_a_question_for_a_record_has_no_answer(
    tmp_path, asks_for_records, monkeypatch
):
    _grid(monkeypatch, Condition("full-context", "everything", asks="everything"))
    _run(tmp_path, Shopper(rule=lambda prompt: "red"), benchmark="small")
    line = _lines(tmp_path, "full-context", benchmark="small")[0]
    assert (line["status"], line["verdict"], line["answer"]) == ("not_applicable", "unjudged", "")
    assert "no tag" in line["finish"] and line["pixels"] == ""
    again = Shopper(rule=lambda prompt: "red")
    assert _run(tmp_path, again, benchmark="small") == 0 and not again.asked and verify(tmp_path) == []


def test_a_prompt_beyond_the_models_context_is_kept_as_not_run_and_not_asked_again(
    tmp_path, small_benchmark, monkeypatch
):
    _grid(monkeypatch, Condition("full-context", "everything", asks="everything"))
    said = Answer("", "not_applicable", "not run: 9000 tokens", text_tokens=8990, image_tokens=10, images=4)
    _run(tmp_path, Shopper(rule=lambda prompt: said), benchmark="small")
    lines = _lines(tmp_path, "full-context", benchmark="small")
    assert {(line["status"], line["verdict"], line["refused"]) for line in lines} == {
        ("not_applicable", "unjudged", False)
    }
    assert {(line["text_tokens"], line["finish"]) for line in lines} == {(8990, "not run: 9000 tokens")}
    again = Shopper(rule=lambda prompt: "red")
    assert _run(tmp_path, again, benchmark="small") == 0 and not again.asked and verify(tmp_path) == []


def test_a_changed_conversation_makes_what_read_everything_stale(tmp_path, small_benchmark, monkeypatch):
    _grid(monkeypatch, Condition("full-context", "everything", asks="everything"))
    _run(tmp_path, Shopper(rule=lambda prompt: "red"), benchmark="small")
    question = small_benchmark.questions[0]
    spoken = tuple(replace(r, role="user") for r in question.memory)
    changed = replace(question, memory=Memory("m1", spoken))
    _known(monkeypatch, replace(small_benchmark, questions=(changed, *small_benchmark.questions[1:])))
    (problem,) = verify(tmp_path)
    assert "m1-a" in problem and "built differently" in problem


def test_one_grid_may_ask_in_all_three_ways(tmp_path, store, monkeypatch):
    _grid(
        monkeypatch, WALKS[0], Condition("plain", "bm25", k=1), Condition("full-context", "everything", asks="everything")
    )  # fmt: skip

    def rule(prompt):
        return Shopper.goes(prompt) if prompt.layout == "text-first" else "a0n"

    _run(tmp_path, Shopper(rule=rule))
    found = {arm: _lines(tmp_path, arm) for arm in ("walk-stamp", "plain", "full-context")}
    assert {arm: [line["verdict"] for line in lines] for arm, lines in found.items()} == {
        "walk-stamp": ["right"] * 3,
        "plain": ["right", "wrong", "wrong"],
        "full-context": ["right", "wrong", "wrong"],
    }
    assert ["steps" in lines[0] for lines in found.values()] == [True, False, False]
    assert verify(tmp_path) == []
    again = Shopper(rule=rule)
    assert _run(tmp_path, again) == 0 and not again.asked


# -- the package's own grids ----------------------------------------------------------------------------------


def test_an_arm_means_the_same_in_every_grid_that_names_it():
    """Answers are filed by the arm's name alone, and are verified by what that name means."""
    meant = {}
    for grid in experiments.EXPERIMENTS.values():
        for arm in grid.conditions:
            assert meant.setdefault(arm.name, arm) == arm
        assert len({arm.name for arm in grid.conditions}) == len(grid.conditions)
        assert experiments.chosen(experiments.find(grid.name), None) == grid.conditions


def test_the_cost_grid_and_the_frontier_share_the_papers_k():
    cost, frontier = (experiments.find(name).conditions for name in ("cost", "frontier"))
    assert {arm.name for arm in cost} == {"top-k10", "full-context"}
    assert [(arm.k, arm.ranker, arm.asks) for arm in frontier] == [
        (k, "bm25", "delivered") for k in (1, 2, 5, 10, 20)
    ]
    assert {arm.asks for arm in experiments.find("errand").conditions} == {"errand"}


def test_every_benchmark_that_is_named_for_its_length_or_its_k_exists():
    known = benchmarks.known()
    assert set(experiments.LENGTHS) <= set(known) and set(experiments.DEFAULT_K) <= set(known)
    assert {name for name in known if name not in experiments.DEFAULT_K} == set(experiments.LENGTHS)
    assert (experiments.default_k("mini-errand-10"), experiments.default_k("mini-memlens-4x")) == (5, 10)
