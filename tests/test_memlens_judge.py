"""The benchmark's own judge: what precedes a call, how a reply is read, three states, verdicts kept and never asked twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from conftest import small_memory

from delivermem import benchmarks, judges, memlens_judge, pins, runner, runs, show, stats, verdicts
from delivermem.benchmarks import Benchmark, released
from delivermem.memlens_judge import CUT, Judge, JudgeError, prepared, read_score, too_long
from delivermem.records import REFUSAL, Answer, Prompt, Question
from delivermem.verify import verify

EMPTY = Prompt("", "", (), "")
PROMPTS = {
    "frame.py": 'FRAME = "Grade as {task}: yes or no?\\n"\n',
    "__init__.py": textwrap.dedent('''
        """A stand-in for the released prompts: other words, the same two functions."""
        from .frame import FRAME

        def get_task_key(question_type, question_subtype, reference):
            if question_subtype == "entity_resolution":
                return "MSR_YesNo" if reference in ("Yes", "No") else "MSR_Counting"
            return f"{question_type}/{question_subtype}"

        def build_judge_prompt(task_type, question, reference, prediction, old_answer=None):
            old = f"was: {old_answer}\\n" if old_answer else ""
            return FRAME.format(task=task_type) + f"Q: {question}\\nA: {reference}\\n{old}SAID: {prediction}"
    '''),
}  # fmt: skip


def _git(place, *words):
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(place), *who, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A made checkout where the released one would stand, and its commit pinned."""
    monkeypatch.setenv("DELIVERMEM_DATA", str(tmp_path / "data"))
    place = released.folder()
    (place / "judge_prompts").mkdir(parents=True)
    for name, text in PROMPTS.items():
        (place / "judge_prompts" / name).write_text(text)
    _git(place, "init", "--quiet")
    _git(place, "add", ".")
    _git(place, "commit", "--quiet", "-m", "made")
    monkeypatch.setattr(pins, "MEMLENS_CODE", ("made", _git(place, "rev-parse", "HEAD")))
    monkeypatch.setattr(memlens_judge, "PAUSES", (0.0, 0.0))
    return place


@pytest.fixture
def server():
    """A scripted judge on loopback. `script(message, number of times it came)` gives the reply, or an HTTP state."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = asked["messages"][0]["content"]
            with lock:
                seen.append(asked)
                count[message] += 1
                said = made.script(message, count[message])
            state = said if isinstance(said, int) else 200
            choice = dict(index=0, finish_reason="stop", message=dict(role="assistant", content=said))
            body = dict(id="x", object="chat.completion", created=0, model=asked["model"], choices=[choice])
            text = json.dumps(body if state == 200 else {"error": {"message": "scripted"}}).encode()
            self.send_response(state)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    lock, seen, count = threading.Lock(), [], Counter()
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.script, made.seen, made.url = score_of, seen, f"http://127.0.0.1:{made.server_port}/v1"
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def score_of(message, _):
    """Right where the reply holds the reference, or declines the unanswerable."""
    gold = message.split("A: ")[1].split("\n")[0]
    return f'[Scoring Rationale]: …\n[JSON]: {{"answer_score": {int(gold in message.split("SAID: ")[1])}}}'


class Fake:
    """A backbone that answers by a table of question to reply."""

    name = "org--fake"

    def __init__(self, says=None):
        self.says = says or {}
        self.identity = dict(model="org/fake", revision="1", dtype="float32", generation={"temperature": 0})

    def answer(self, prompts):
        for i, prompt in enumerate(prompts):
            said = next((said for text, said in self.says.items() if text in prompt.question), "I think red")
            yield i, said if isinstance(said, Answer) else Answer(said, seconds=0.5)


@pytest.fixture
def asked(monkeypatch, checkout):
    """Five questions to two conversations, judged by MemLens's judge, known to the package as `small`."""
    m1, m2 = small_memory("m1"), small_memory("m2")
    say = "information_extraction"
    questions = (
        Question("q1", "Which colour has the harbor?", "red", say, m1, "entity", gold=("r1",)),
        Question("q2", "Which colour has the garden?", "green", say, m1, "previnfo", gold=("r3",)),
        Question("q3", "Where do I live now?", "Rome", "knowledge_update", m2, old_answer="Oslo", gold=("r5",)),
        Question("q4", "What is in the cellar?", REFUSAL, "answer_refusal", m2),
        Question("q5", "Is the lamp new?", "Yes", "multi_session_reasoning", m2, "entity_resolution", gold=("r5",)),
    )  # fmt: skip
    benchmarks.load.cache_clear()
    made = Benchmark("small", "rev0", questions, judge="memlens")
    monkeypatch.setitem(benchmarks.BENCHMARKS, "small", lambda: made)
    yield made
    benchmarks.load.cache_clear()


ARMS = ["gold-pixels", "gold-text"]


def _run(backbone=None, **more):
    wanted = dict(benchmark="small", backbone=backbone or Fake(), k=2, say=str, conditions=ARMS)
    return runner.run("decomposition", **(wanted | more))


def _judge(server=None, **more):
    return verdicts.judge_answers(
        "small", "org/fake@1", **(dict(url=(server and server.url) or "", say=str) | more)
    )


def _lines(arm="gold-pixels"):
    return {line["question_id"]: line for line in runs.read(_root() / f"{arm}.jsonl")}


def _root():
    return runs.data_dir() / "outputs" / "small" / "org--fake"


def _kept():
    return list(runs.read(_root() / "verdicts" / f"{memlens_judge.MODEL}.jsonl"))


# -- before and after a call ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("red", "red"), ("  red\n", "red"), ("", ""), ("<think>blue? no</think> red", "red"),
        ("a</think>b</think>c", "b</think>c"), ("<|im_start|>red<|im_end|>", "red"),
        ("<|begin_of_box|>red<|end_of_box|>", "red"), ("[CONTENT_FILTER_REJECTED]", ""), ("a <b> |c|", "a <b> |c|"),
        ("x" * 6000, "x" * 6000), ("a" * 7007 + "b" * 3003, CUT + "b" * 3003),
    ],
)  # fmt: skip
def test_the_judge_is_shown_the_answer_without_its_thought_and_of_a_long_one_the_end(said, shown):
    assert prepared(said) == shown


def test_only_more_than_500_words_score_nothing_without_a_call():
    assert not too_long("w " * 500) and too_long("w " * 501)
    cut = prepared("ab " * 2500)  # 7,500 characters, of which 30 % are some 750 words
    assert cut.startswith(CUT) and too_long(cut)


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ('{"answer_score": 1}', 1), ('{ "answer_score" :0 }', 0), ('"answer_score": 7', 1), ('"answer_score": 00', 0),
        ("In summary, the student's answer deserves 1 point.", 1), ("Deserves  0 points", 0), ("[Score]: 1 point", 1),
        ("[Score]: 0", 0), ('[Score]: 1 … deserves 1 point … "answer_score": 0', 0), ("[Score]: 1, deserves 0 points", 0),
        ('"answer_score": 1 then "answer_score": 0', 1), ('"answer_score": "1"', None), ("", None), ("correct!", None),
        ("deserves one point", None), ("[score]: 1", None),
    ],
)  # fmt: skip
def test_a_score_is_read_where_it_is_stated_first_as_json_then_in_words_then_in_brackets(reply, score):
    assert read_score(reply) == score


def test_prompts_come_from_the_checkout_alone_and_leave_no_trace(checkout, memory):
    path = list(sys.path)
    taken = memlens_judge.prompts()
    question = Question("q", "Where?", "Rome", "knowledge_update", memory, old_answer="Oslo")
    assert taken.prompt(question, "Rome") == (
        "Grade as knowledge_update/: yes or no?\nQ: Where?\nA: Rome\nwas: Oslo\nSAID: Rome"
    )
    yes = replace(question, kind="multi_session_reasoning", subtype="entity_resolution", answer="Yes")
    assert taken.task(yes) == "MSR_YesNo" and taken.task(replace(yes, answer="yes")) == "MSR_Counting"
    assert sys.path == path and "judge_prompts" not in sys.modules
    assert _git(checkout, "status", "--porcelain", "--ignored") == ""


def test_a_checkout_that_is_not_the_pinned_one_is_refused_with_the_command(checkout, monkeypatch):
    with pytest.raises(released.CheckoutError, match="delivermem fetch memlens-judge"):
        memlens_judge.prompts(commit="0" * 40)
    (checkout / "judge_prompts" / "frame.py").write_text("FRAME = 'always 1'\n")
    with pytest.raises(released.CheckoutError, match=r"frame\.py is not as published.*fetch memlens-judge"):
        memlens_judge.prompts()
    monkeypatch.setenv("DELIVERMEM_DATA", str(checkout / "nowhere"))
    with pytest.raises(
        released.CheckoutError, match=r"not there; fetch it with: delivermem fetch memlens-judge"
    ):
        memlens_judge.prompts()


def test_a_checkout_without_the_two_functions_is_refused(checkout, monkeypatch):
    (checkout / "judge_prompts" / "__init__.py").write_text("")
    _git(checkout, "commit", "--quiet", "-am", "other")
    with pytest.raises(released.CheckoutError, match="is this MemLens's released evaluation code"):
        memlens_judge.prompts(commit=_git(checkout, "rev-parse", "HEAD"))


def test_a_key_changes_with_the_judge_the_prompts_and_all_that_a_prompt_is_made_of(memory):
    question = Question("q", "Where?", "Rome", "knowledge_update", memory, "s", old_answer="Oslo")
    own = Judge()
    keys = [
        own.key(question, "Rome"),
        own.key(question, "Rom"),
        Judge(settings=memlens_judge.CLOSED).key(question, "Rome"),
    ]
    keys += [Judge(**{part: "another"}).key(question, "Rome") for part in ("model", "commit")]
    changes = dict(text="When?", answer="Oslo", kind="temporal_reasoning", subtype="t", old_answer="")
    keys += [own.key(replace(question, **{part: value}), "Rome") for part, value in changes.items()]
    assert len({*keys}) == len(keys)
    assert own.key(replace(question, id="other", memory=small_memory("else")), "Rome") == keys[0]
    assert Judge(settings=json.loads(json.dumps(memlens_judge.SETTINGS))).key(question, "Rome") == keys[0]


def test_only_the_benchmarks_own_model_settings_and_prompts_are_canonical():
    assert Judge().canonical and Judge(memlens_judge.NAMES[1]).canonical
    assert not any(
        judge.canonical for judge in (Judge("gpt"), Judge(settings=memlens_judge.CLOSED), Judge(commit="0"))
    )


# -- answers and their verdicts -------------------------------------------------------------------------------


def test_before_the_judge_every_answer_awaits_it_and_no_number_is_made(asked):
    says = {"cellar": Answer("", "failed", "error: it broke"), "lamp": Answer("Yes it", finish="length")}
    _run(Fake(says))
    lines = _lines()
    assert {lines[q]["rule"] for q in ("q1", "q2", "q3")} == {judges.AWAITS}
    assert (lines["q4"]["rule"], lines["q5"]["rule"]) == ("failed", "truncated")
    assert {line["verdict"] for line in lines.values()} == {"unjudged"} and verify() == []
    answers = runs.load("decomposition")
    command = "run: delivermem judge small --backbone org--fake"
    with pytest.raises(ValueError, match=f"6 of 10 answers have no verdict of the judge; {command}"):
        stats.accuracy(answers, seed=0)
    with pytest.raises(ValueError, match=command):
        stats.paired_term(answers, *ARMS, rng=np.random.default_rng(0))
    counted = stats.accuracy(answers, seed=0, missing="intersection")
    assert list(counted.n) == [0, 0] and list(counted.unjudged) == [4, 4]


def test_each_distinct_answer_is_asked_once_with_the_released_settings_and_the_lines_say_who_judged(
    asked, server
):
    says = {"garden": "blue", "live": "Rome", "cellar": f"{REFUSAL}.", "lamp": "w " * 501}
    _run(Fake(says))
    found = _judge(server)
    assert found == dict(
        asked=4, failed=0, unread=0, right=6, wrong=4, unjudged=0
    )  # both arms gave the same answers
    assert len(server.seen) == 4 and len({each["messages"][0]["content"] for each in server.seen}) == 4
    for each in server.seen:
        message = each.pop("messages")
        assert [part["role"] for part in message] == ["user"]
        assert each == dict(model=memlens_judge.MODEL, temperature=0.0, max_tokens=2048,
                            chat_template_kwargs={"enable_thinking": False})  # fmt: skip
    for arm in ARMS:
        states = {name: (line["verdict"], line["rule"]) for name, line in _lines(arm).items()}
        by = f"judge {memlens_judge.MODEL}"
        assert states == dict(q1=("right", by), q2=("wrong", by), q3=("right", by), q4=("right", by),
                              q5=("wrong", "over 500 words"))  # fmt: skip
    assert {line["task"] for line in _kept()} >= {"knowledge_update/", "information_extraction/previnfo"}
    assert any("was: Oslo" in line["reply"] or line["question_id"] == "q3" for line in _kept())
    assert verify() == [] and f"; judged by {memlens_judge.MODEL}" in runs.about()
    assert stats.accuracy(runs.load("decomposition"), seed=0).estimate.tolist() == [60.0, 60.0]


def test_a_second_call_asks_nothing_and_changes_no_byte_even_without_server_and_checkout(
    asked, server, checkout
):
    _run()
    _judge(server)
    count = len(server.seen)
    before = {path: path.read_bytes() for path in _root().rglob("*") if path.is_file()}
    (checkout / "judge_prompts" / "frame.py").unlink()
    assert _judge()["asked"] == 0 and len(server.seen) == count
    assert _run() == 0  # nor does the runner take a verdict back
    assert {path: path.read_bytes() for path in _root().rglob("*") if path.is_file()} == before
    assert not show.find("q1", "gold-pixels", benchmark="small", backbone="org--fake").troubles
    assert [row["condition"] for row in runs.status()] == ARMS  # the folder of verdicts is no condition


def test_the_same_answer_in_another_condition_has_its_verdict_at_once(asked, server):
    _run(conditions=ARMS[:1])
    _judge(server)
    _run()
    assert {line["rule"] for line in _lines("gold-text").values()} == {f"judge {memlens_judge.MODEL}"}
    _run(Fake({"harbor": "a rosy red"}), conditions=["bm25-pixels"])
    assert {name for name, line in _lines("bm25-pixels").items() if line["verdict"] == "unjudged"} == {"q1"}


@pytest.mark.parametrize("trouble", ["unread", "failed"])
def test_no_verdict_is_never_wrong_blocks_the_number_and_is_asked_for_again(asked, server, trouble):
    _run()
    bad = "I can't say." if trouble == "unread" else 500
    server.script = lambda message, n: bad if "garden" in message else score_of(message, n)
    found = _judge(server)
    assert found[trouble] == 1 and found["unjudged"] == 2 and verify() == []
    assert _lines()["q2"]["rule"] == (judges.UNREAD if trouble == "unread" else judges.FAILED)
    asked_of_it = sum("garden" in each["messages"][0]["content"] for each in server.seen)
    assert asked_of_it == (1 if trouble == "unread" else 3)
    answers = runs.load("decomposition")
    with pytest.raises(ValueError, match="run: delivermem judge small --backbone org--fake"):
        stats.paired_term(answers, *ARMS, rng=np.random.default_rng(0))
    server.script, count = score_of, len(server.seen)
    assert _judge(server)["unjudged"] == 0 and len(server.seen) == count + 1
    assert _lines()["q2"]["verdict"] == "wrong"


def test_released_scoring_counts_what_has_no_verdict_as_wrong_and_can_be_taken_back(asked, server):
    _run(Fake({"lamp": Answer("Yes it", finish="length")}))
    server.script = lambda message, n: {"garden": "?", "live": 400}.get(
        next((w for w in ("garden", "live") if w in message), ""), score_of(message, n)
    )
    found = _judge(server, released_scoring=True)
    assert found["unjudged"] == 0 and (found["failed"], found["unread"]) == (1, 1)
    lines = _lines()
    assert lines["q2"]["verdict"] == lines["q3"]["verdict"] == "wrong"
    assert lines["q2"]["rule"] == "verdict unread, 0 as released"
    assert lines["q3"]["rule"] == "judge call failed, 0 as released"
    assert lines["q5"]["verdict"] == "right"  # the released code judges a cut-off answer as it is
    assert "(released two-state scoring)" in runs.about() and verify() == []
    _judge(server)
    assert {_lines()[q]["verdict"] for q in ("q2", "q3", "q5")} == {"unjudged"}


def test_a_judge_that_is_not_the_benchmarks_own_is_labelled_wherever_it_shows(asked, server):
    _run(Fake({"harbor": "red", "live": "in Rome"}))
    _judge(local=True)
    lines = _lines()
    assert (lines["q1"]["verdict"], lines["q1"]["rule"]) == ("right", "exact match, not canonical")
    assert lines["q3"]["verdict"] == "wrong"  # it knows no paraphrase
    name = "org--fake [judge exact match, not canonical]"
    assert set(runs.load("decomposition").backbone) == {name} == {row["backbone"] for row in runs.status()}
    assert "judged by exact match, not canonical" in runs.about() and verify() == []
    assert _run() == 0 and _lines() == lines
    _judge(server, model="a/small one", closed=True)
    assert set(server.seen[0]) == {"model", "messages", "temperature", "max_completion_tokens"}
    assert _lines()["q1"]["rule"] == "judge a/small one, not canonical"
    assert (_root() / "verdicts" / "a--small-one.jsonl").exists()
    _judge(server)
    assert _lines()["q3"]["rule"] == f"judge {memlens_judge.MODEL}"
    assert set(runs.load("decomposition").backbone) == {"org--fake"}


def test_a_fresh_call_asks_again_and_a_failure_takes_no_verdicts_place(asked, server):
    _run()
    _judge(server)
    server.script = lambda message, n: 400
    found = _judge(server, fresh=True)
    assert found["asked"] == found["failed"] == 5 and found["unjudged"] == 0
    server.script = lambda message, n: '"answer_score": 1'
    assert _judge(server, fresh=True)["right"] == 10


def test_a_torn_last_verdict_is_mended_and_asked_again(asked, server):
    _run()
    _judge(server)
    path = _root() / "verdicts" / f"{memlens_judge.MODEL}.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert _judge(server)["asked"] == 1 and len(_kept()) == 5 and verify() == []


KILLED = """
import sys
from pathlib import Path
import pytest
sys.path.insert(0, sys.argv[1])
import test_memlens_judge as t
from delivermem import benchmarks, pins, verdicts
pins.MEMLENS_CODE = ("made", sys.argv[3])
made = benchmarks.Benchmark("small", "rev0", t.many(), judge="memlens")
benchmarks.BENCHMARKS["small"] = lambda: made
verdicts.judge_answers("small", "org--fake", url=sys.argv[2], concurrency=2)
"""


def many():
    memory = small_memory("m1")
    return tuple(
        Question(f"q{i:02d}", f"Number {i}?", str(i), "information_extraction", memory, gold=("r1",))
        for i in range(30)
    )


def test_a_killed_judge_goes_on_and_asks_nothing_twice_but_what_was_in_flight(
    asked, server, monkeypatch, checkout
):
    made = replace(asked, questions=many())
    benchmarks.load.cache_clear()
    monkeypatch.setitem(benchmarks.BENCHMARKS, "small", lambda: made)
    _run()
    reached = threading.Event()

    def slow(message, n):
        time.sleep(0.02)
        if len(server.seen) > 8:
            reached.set()
        return score_of(message, n)

    server.script = slow
    words = [sys.executable, "-c", KILLED, str(Path(__file__).parent), server.url, pins.MEMLENS_CODE[1]]
    child = subprocess.Popen(words, env=os.environ, stdout=subprocess.DEVNULL)
    assert reached.wait(60)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = len(_kept())
    assert 0 < before < 30 and {line["verdict"] for line in _lines().values()} == {"unjudged"}
    found = _judge(server)
    assert found["asked"] == 30 - before and found["unjudged"] == 0
    times = Counter(each["messages"][0]["content"] for each in server.seen)
    assert len(times) == 30 and sum(n - 1 for n in times.values()) <= 3 and verify() == []


def test_a_verdict_that_was_changed_is_found(asked, server):
    _run()
    _judge(server)
    path = _root() / "verdicts" / f"{memlens_judge.MODEL}.jsonl"
    path.write_text(path.read_text().replace('"score": 0', '"score": 1'))
    problems = verify()
    assert any("its score is not what its reply says" in problem for problem in problems)
    assert any("judged differently now; run again, or delivermem judge" in problem for problem in problems)


# -- what can't be had ----------------------------------------------------------------------------------------


def test_a_server_that_refuses_the_model_or_is_gone_stops_with_one_sentence_and_keeps_the_answers(
    asked, server
):
    _run()
    server.script = lambda message, n: 404
    with pytest.raises(JudgeError, match=r"'qwen3-235b-judge' is refused .*--model"):
        _judge(server)
    assert {line["rule"] for line in _lines().values()} == {judges.AWAITS} and verify() == []
    server.script = lambda message, n: 429
    with pytest.raises(JudgeError, match=r"calls in a row failed .*429: .*run the same command again"):
        _judge(server, concurrency=1, model="other", conditions=ARMS) if verdicts.LOST <= 5 else _many_fail(
            server
        )
    with pytest.raises(JudgeError, match="give one such as --url"):
        _judge()


def _many_fail(server):
    for _ in range(2):  # five questions: two rounds of failures lie below the bound one by one
        verdicts._ask(Judge("other"), {str(i): (many()[i], "x") for i in range(verdicts.LOST)},
                      _root() / "verdicts" / "other.jsonl", server.url, 1, str)  # fmt: skip


def test_what_is_asked_of_the_judge_wrongly_is_one_sentence(asked, server, monkeypatch):
    with pytest.raises(
        JudgeError, match=r"holds no answers of backbone 'org/fake@1' on small; make some with"
    ):
        _judge(server)
    _run()
    with pytest.raises(
        JudgeError, match="no answers under condition 'gold'; at hand: gold-pixels, gold-text"
    ):
        _judge(server, conditions=["gold"])
    with pytest.raises(JudgeError, match="at hand: org--fake"):
        verdicts.judge_answers("small", "other", url=server.url)
    with pytest.raises(JudgeError, match="scored by exact match; it needs no judge"):
        verdicts.judge_answers("mini-memlens", "tiny-qwen3-vl", url=server.url)
    benchmarks.load.cache_clear()
    monkeypatch.setitem(benchmarks.BENCHMARKS, "small", lambda: replace(asked, revision="rev1"))
    with pytest.raises(JudgeError, match="made on small rev0, which is now rev1"):
        _judge(server)
    assert not server.seen


def test_a_question_for_a_memory_is_judged_by_its_tag(asked, memory):
    judging = verdicts.judging(asked, None)
    question = Question("q", "Which?", "r3", "information_extraction", memory, answer_is_record=True)
    assert judging(question, Answer("M9"), EMPTY).rule == "no such tag"
