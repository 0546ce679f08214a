"""Cached runs: keys that miss when anything changes, answers that survive a kill, and a checker that finds damage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivermem import benchmarks, dense, experiments, runner, runs
from delivermem.benchmarks import Benchmark
from delivermem.delivery import deliver
from delivermem.records import REFUSAL, Answer, Picture, Record, Verdict
from delivermem.verify import verify


class Fake:
    """A backbone that counts what it is asked, answers by a rule, and can fail on demand."""

    def __init__(self, name="fake", fail=()):
        self.name, self.asked, self.fail = name, [], set(fail)
        self.identity = dict(model=name, revision="1", dtype="float32", generation={"temperature": 0})

    def answer(self, prompts):
        prompts = list(prompts)
        for i in reversed(range(len(prompts))):
            self.asked.append(prompts[i])
            if len(self.asked) in self.fail:
                yield i, Answer("", "failed", "error: it broke")
            else:
                yield i, Answer("red" if prompts[i].slots else REFUSAL, text_tokens=7, seconds=0.01)


def _run(folder, backbone, **more):
    return runner.run(
        "decomposition", benchmark="small", backbone=backbone, outputs=folder, say=str, k=3, **more
    )


PARTS = dict(benchmark="b", revision="r", question_id="q", prompt="p", pixels="x", replicate=0)


def test_a_key_does_not_depend_on_the_order_of_a_dict_or_on_zero_against_zero_point_zero():
    one = runs.key(**PARTS, backbone={"a": 1, "b": {"c": 0, "d": [1.0]}})
    assert one == runs.key(**PARTS, backbone={"b": {"d": [1], "c": 0.0}, "a": 1.0})
    with pytest.raises(ValueError):
        runs.key(**PARTS, backbone={"a": float("nan")})


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(sorted(PARTS)), st.text(min_size=1))
def test_a_key_changes_with_every_part(part, value):
    changed = PARTS | {part: 1 if part == "replicate" else PARTS[part] + value}
    assert runs.key(**changed, backbone={}) != runs.key(**PARTS, backbone={})
    assert runs.key(**PARTS, backbone={"dtype": value}) != runs.key(**PARTS, backbone={})


def test_one_changed_pixel_or_word_gives_another_prompt_hash(memory):
    prompt = deliver([memory["r1"]], "What?")
    text, pixels = runs.prompt_hashes(prompt)
    assert (text, pixels) == runs.prompt_hashes(deliver([memory["r1"]], "What?"))

    def spot(_, slot):
        image = slot.image.copy()
        image.putpixel((95, 95), (1, 2, 3))
        return image

    changed = runs.prompt_hashes(prompt.with_images(spot))
    assert changed[0] == text and changed[1] != pixels
    assert runs.prompt_hashes(deliver([memory["r1"]], "What??"))[0] != text


def test_a_second_run_makes_no_call_and_changes_no_byte(tmp_path, small_benchmark):
    first, second = Fake(), Fake()
    assert _run(tmp_path, first) == len(first.asked) <= 24
    folder = tmp_path / "small" / "fake"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {f"{c.name}.jsonl" for c in experiments.find("decomposition").conditions} | {
        "manifest.json"
    }
    assert _run(tmp_path, second) == 0 and second.asked == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert verify(tmp_path) == []


@pytest.mark.parametrize("other", ["dtype", "k", "seed"])
def test_another_model_k_or_seed_is_not_mixed_in_and_loses_nothing(tmp_path, small_benchmark, other):
    _run(tmp_path, Fake())
    before = {path.name: path.read_bytes() for path in (tmp_path / "small/fake").iterdir()}
    changed = Fake()
    if other == "dtype":
        changed.identity = {**changed.identity, "dtype": "float16"}
    settings = dict(k=2 if other == "k" else 3, seed=1 if other == "seed" else 0)
    for fresh in (False, True):
        with pytest.raises(runs.RunError, match=r"answers with another (backbone|k|seed)"):
            runner.run(
                "decomposition", benchmark="small", backbone=changed, outputs=tmp_path, say=str, fresh=fresh, **settings
            )  # fmt: skip
    assert not changed.asked
    assert {path.name: path.read_bytes() for path in (tmp_path / "small/fake").iterdir()} == before


class Eye:
    """An encoder whose vectors are mean colours."""

    def __init__(self, identity="eye@1"):
        self.identity = identity

    def images(self, images):
        means = np.stack([np.asarray(image, np.float32).mean((0, 1)) for image in images])
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    def texts(self, texts):
        return np.tile(np.float32([0.6, 0.8, 0]), (len(texts), 1))


def test_what_retrieved_by_sight_is_stated_and_not_mixed_and_verify_ranks_nothing(
    tmp_path, small_benchmark, monkeypatch
):
    monkeypatch.setattr(dense, "data_dir", lambda: tmp_path / "data")

    def adapter(identity, benchmark="small", experiment="adapter"):
        monkeypatch.setattr(dense, "encoder", lambda: Eye(identity))
        dense._index.cache_clear()
        return runner.run(
            experiment, benchmark=benchmark, backbone=Fake(), outputs=tmp_path / "o", say=str, k=2
        )

    def stated():
        return json.loads((tmp_path / "o/small/fake/manifest.json").read_text()).get("encoder")

    adapter("eye@1", experiment="decomposition")
    assert stated() is None and adapter("eye@1") > 0 and stated() == "eye@1"
    adapter("eye@2", experiment="decomposition")
    assert stated() == "eye@1" and "retrieved by eye@1" in runs.about(tmp_path / "o")
    with pytest.raises(runs.RunError, match="another encoder"):
        adapter("eye@2")
    monkeypatch.setattr(dense, "encoder", lambda: pytest.fail("nothing is ranked by sight to verify"))
    dense._index.cache_clear()
    assert verify(tmp_path / "o") == []
    path = tmp_path / "o/small/fake/tiles-full.jsonl"
    text = path.read_text()
    first = json.loads(text.splitlines()[0])
    swapped = json.dumps(first["delivered"][::-1])
    path.write_text(text.replace(json.dumps(first["delivered"]), swapped, 1))
    assert any("built differently" in problem for problem in verify(tmp_path / "o"))
    path.write_text(text.replace(json.dumps(first["delivered"]), '["elsewhere"]', 1))
    assert any("no such question or delivered record" in problem for problem in verify(tmp_path / "o"))


def test_a_failure_never_takes_the_place_of_an_answer(tmp_path, small_benchmark):
    _run(tmp_path, Fake())
    before = list(runs.read(tmp_path / "small/fake/gold-pixels.jsonl"))
    _run(tmp_path, Fake(fail=range(1, 100)), fresh=True)
    assert list(runs.read(tmp_path / "small/fake/gold-pixels.jsonl")) == before


def test_answers_are_judged_by_the_rules_of_today(tmp_path, small_benchmark, monkeypatch):
    """A changed rule shows in `verify`, and a run without a model call brings the verdicts up to date."""
    _run(tmp_path, Fake())
    monkeypatch.setattr(runner.judges, "judge", lambda *_: Verdict("wrong", "strict"))
    assert any("judged differently" in problem for problem in verify(tmp_path))
    assert _run(tmp_path, Fake()) == 0 and verify(tmp_path) == []
    lines = list(runs.read(tmp_path / "small/fake/gold-pixels.jsonl"))
    assert {line["rule"] for line in lines} == {"strict"}


@pytest.mark.parametrize("wrong", [dict(k=0), dict(limit=0), dict(limit=-1)])
def test_numbers_that_make_no_sense_are_refused(tmp_path, small_benchmark, wrong):
    with pytest.raises(ValueError, match="give 1 or more"):
        runner.run("decomposition", benchmark="small", backbone=Fake(), outputs=tmp_path, say=str, **wrong)


def test_lines_hold_the_facts_and_the_verdicts(tmp_path, small_benchmark):
    _run(tmp_path, Fake())
    lines = list(runs.read(tmp_path / "small/fake/gold-pixels.jsonl"))
    assert [line["question_id"] for line in lines] == [q.id for q in small_benchmark.questions]
    assert all(tuple(line) == runs.FIELDS for line in lines)
    colour, absent = lines[0], lines[1]
    assert (colour["answer"], colour["verdict"], colour["recall"], colour["k"]) == ("red", "right", 1.0, 3)
    assert "r1" in colour["delivered"] and colour["gold"] == ["r1"] and colour["needs_pixels"]
    assert absent["recall"] is None and absent["gold"] == []
    text = list(runs.read(tmp_path / "small/fake/gold-text.jsonl"))
    assert (text[0]["refused"], text[0]["verdict"], text[1]["verdict"]) == (True, "wrong", "right")


def test_the_same_prompt_in_two_arms_is_asked_once(tmp_path, small_benchmark):
    backbone = Fake()
    _run(tmp_path, backbone, conditions=["gold-pixels", "bm25-pixels"])
    keys = [
        line["key"]
        for c in ("gold-pixels", "bm25-pixels")
        for line in runs.read(tmp_path / f"small/fake/{c}.jsonl")
    ]
    assert len(keys) == 8 and len(backbone.asked) == len(set(keys)) < 8


def test_conditions_advance_together(small_benchmark):
    arms = experiments.find("decomposition").conditions
    plans = list(runner.plan(small_benchmark, arms, {}, k=3))
    assert [p.condition.name for p in plans[:6]] == [arm.name for arm in arms]
    assert len({p.question.id for p in plans[:6]}) == 1


def test_failures_are_kept_as_failures_and_asked_again(tmp_path, small_benchmark):
    _run(tmp_path, Fake(fail={1, 5}))
    table = runs.load("decomposition", outputs=tmp_path)
    assert len(table) == 24 and (table.status == "failed").sum() >= 2
    assert set(table[table.status == "failed"].verdict) == {"unjudged"}
    again = Fake()
    assert _run(tmp_path, again) == table[table.status == "failed"].key.nunique()
    assert (runs.load("decomposition", outputs=tmp_path).status == "ok").all()


def test_an_unreadable_picture_fails_in_its_own_arms_and_drops_no_row(tmp_path, small_benchmark, monkeypatch):
    gone = Picture("gone", tmp_path / "gone.png")
    memory = small_benchmark.questions[0].memory
    records = tuple(Record(r.id, r.text, r.time, pictures=(gone,) if r.pictures else ()) for r in memory)
    question = replace(small_benchmark.questions[0], memory=type(memory)("m1", records))
    bad = Benchmark("small", "rev1", (question,))
    benchmarks.load.cache_clear()
    monkeypatch.setitem(benchmarks.BENCHMARKS, "small", lambda: bad)
    _run(tmp_path, Fake(), conditions=["gold-pixels", "gold-text"])
    pixels, text = (next(runs.read(tmp_path / f"small/fake/gold-{arm}.jsonl")) for arm in ("pixels", "text"))
    assert pixels["status"] == "failed" and "gone.png" in pixels["finish"] and pixels["verdict"] == "unjudged"
    assert text["status"] == "ok"


def test_a_torn_last_line_is_cut_and_costs_only_itself(tmp_path, small_benchmark):
    _run(tmp_path, Fake())
    path = tmp_path / "small/fake/gold-text.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-25])
    assert len(list(runs.read(path))) == 3
    backbone = Fake()
    assert _run(tmp_path, backbone) == 1
    assert path.read_bytes() == whole


def test_a_second_writer_is_told_and_a_dead_ones_lock_is_taken(tmp_path):
    with runs.Folder(tmp_path), pytest.raises(runs.RunError, match="is writing here"), runs.Folder(tmp_path):
        pass
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True
    )
    import socket

    (tmp_path / ".lock").write_text(f"{done.stdout.strip()}@{socket.gethostname()}")
    with runs.Folder(tmp_path):
        assert (tmp_path / ".lock").read_text().startswith(str(os.getpid()))
    assert not (tmp_path / ".lock").exists()


def test_a_killed_writer_loses_nothing_it_finished(tmp_path):
    """SIGKILL at eight moments: every answer that was announced is in the file once, and the file reads."""
    script = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from delivermem.runs import Folder
        with Folder(Path(sys.argv[1])) as folder:
            start = int(sys.argv[2])
            for i in range(start, start + 100000):
                folder.append({"condition": "c", "question_id": f"q{i}", "replicate": 0, "pad": "x" * 3000})
                print(i, flush=True)
        """
    )
    start, announced = 0, []
    for round_ in range(8):
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), str(start)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        for _ in range(5 + 7 * round_):
            announced.append(int(process.stdout.readline()))
        time.sleep(0.001 * round_)
        process.send_signal(signal.SIGKILL)
        announced += [int(line) for line in process.stdout.read().split(b"\n")[:-1]]
        process.stdout.close()
        process.wait()
        start = max(announced) + 2
    found = [line["question_id"] for line in runs.read(tmp_path / "c.jsonl")]
    assert set(found) >= {f"q{i}" for i in announced} and len(found) == len(set(found))
    assert len(found) <= len(announced) + 8  # an answer may have been written and not yet announced


def test_load_without_answers_names_the_command(tmp_path):
    with pytest.raises(runs.RunError, match="delivermem run decomposition"):
        runs.load("decomposition", outputs=tmp_path)


def test_the_table_and_the_dataset_hold_the_same(tmp_path, small_benchmark):
    _run(tmp_path, Fake())
    table = runs.load("decomposition", outputs=tmp_path)
    data = runs.as_dataset("decomposition", outputs=tmp_path)
    assert len(data) == len(table) == 24
    assert data[0]["delivered"] == table.iloc[0].delivered and data.column_names == list(table.columns)
    assert set(table.backbone) == {"fake"} and set(table.benchmark) == {"small"}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda p: p.write_bytes(p.read_bytes().replace(b'"answer": "red"', b'"answer": "rod"', 1)),
            "bytes are not",
        ),
        (lambda p: p.write_text(p.read_text() + p.read_text().splitlines()[0] + "\n"), "occurs 2 times"),
        (lambda p: p.write_text(p.read_text().replace('"prompt": "', '"prompt": "0', 1)), "no longer hashes"),
        (lambda p: p.write_text(p.read_text().replace('"k": 3, ', "", 1)), "no field 'k'"),
        (lambda p: p.write_text("{broken\n"), "not JSON"),
        (lambda p: p.unlink(), "missing"),
        (lambda p: p.with_name("stray.jsonl").write_text(""), "not in the manifest"),
        (lambda p: (p.parent / "manifest.json").write_text("{}"), "unreadable or incomplete"),
    ],
)
def test_verify_finds_every_kind_of_damage(tmp_path, small_benchmark, damage, says):
    _run(tmp_path, Fake())
    damage(tmp_path / "small/fake/gold-pixels.jsonl")
    assert any(says in problem for problem in verify(tmp_path))


def test_verify_finds_answers_to_prompts_that_are_built_differently_now(
    tmp_path, small_benchmark, monkeypatch
):
    _run(tmp_path, Fake())
    monkeypatch.setitem(runner.deliver.__globals__["PREAMBLES"], "stamp", "Other words.\n")
    assert any("built differently" in problem for problem in verify(tmp_path))


def test_manifests_hold_no_path_and_no_date(tmp_path, small_benchmark):
    _run(tmp_path, Fake())
    text = (tmp_path / "small/fake/manifest.json").read_text()
    manifest = json.loads(text)
    assert str(tmp_path) not in text and str(Path.home()) not in text
    assert manifest["conditions"]["gold-text"]["answers"] == 4 and manifest["backbone"]["model"] == "fake"


def test_a_control_that_can_not_be_had_is_recorded_as_that_and_never_asked(tmp_path, small_benchmark):
    """With one record delivered there is nothing to permute; the other rungs are asked, and a repeat asks for nothing."""

    def run(backbone, experiment="ladder"):
        return runner.run(experiment, benchmark="small", backbone=backbone, outputs=tmp_path, say=str, k=1)

    first = Fake()
    assert run(first) == len(first.asked)
    lines = {
        name: list(runs.read(tmp_path / f"small/fake/ladder-{name}.jsonl")) for name in ("permuted", "blank")
    }
    by_id = {line["question_id"]: line for line in lines["permuted"]}
    assert by_id["m1-a"]["status"] == "not_applicable" and by_id["m1-a"]["verdict"] == "unjudged"
    assert by_id["m1-a"]["finish"] == "permuted can't be had here"
    assert {line["question_id"]: line["status"] for line in lines["blank"]}["m1-a"] == "ok"
    assert run(Fake()) == 0 and verify(tmp_path) == []
    row = next(row for row in runs.status(tmp_path) if row["condition"] == "ladder-permuted")
    assert row["not_applicable"] > 0 and row["unjudged"] == 0 and row["failed"] == 0


def test_a_repeat_shares_no_answer_with_what_it_repeats(tmp_path, small_benchmark):
    """`full-again` is the noise floor: its prompts are those of `full`, and yet they are asked anew."""
    backbone = Fake()
    runner.run(
        "controls", benchmark="small", backbone=backbone, conditions=["full", "full-again"], outputs=tmp_path, say=str
    )  # fmt: skip
    full, again = (list(runs.read(tmp_path / f"small/fake/{n}.jsonl")) for n in ("full", "full-again"))
    assert [line["prompt"] for line in full] == [line["prompt"] for line in again]
    assert not {line["key"] for line in full} & {line["key"] for line in again}
    assert len(backbone.asked) == len(full) + len(again)


def test_a_run_that_asks_nothing_leaves_the_provenance_as_it_was(tmp_path, small_benchmark, monkeypatch):
    _run(tmp_path, Fake())
    before = (tmp_path / "small/fake/manifest.json").read_bytes()
    monkeypatch.setattr(runs, "provenance", lambda: dict(commit="another", dirty=True))
    assert _run(tmp_path, Fake()) == 0
    assert (tmp_path / "small/fake/manifest.json").read_bytes() == before
    _run(tmp_path, Fake(), fresh=True)
    assert json.loads((tmp_path / "small/fake/manifest.json").read_text())["commit"] == "another"
