"""What a notebook's parameters mean: which answers, which model, which folder; and the command that draws another setting."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from delivermem import benchmarks, experiments, notebooks, runner
from delivermem.answers import Setting, folder_of
from delivermem.cli import app
from delivermem.runs import RunError

SECOND = "tiny-qwen3-vl-2"


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("experiment, benchmark", [
    ("decomposition", "mini-memlens"), ("decomposition", "memlens-32k"), ("cost", "memlens-256k-all"),
    ("errand", "dmv-5"), ("ladder", "dmv-50"), ("errand", "mini-errand-10"),
])  # fmt: skip
@pytest.mark.parametrize("backbone", [SECOND, "Qwen/Qwen3-VL-8B-Instruct", "Qwen/Qwen2.5-VL-7B-Instruct"])
def test_a_notebook_asks_the_very_model_that_a_run_does(experiment, benchmark, backbone, monkeypatch):
    """One identity, so that what the command answered is found by the notebook and nothing is asked twice."""
    found = []
    monkeypatch.setattr(runner, "run", lambda *_, backbone, **__: found.append(backbone.identity))
    done = call("run", experiment, "--benchmark", benchmark, "--backbone", backbone)
    assert done.exit_code == 0, done.output
    model = Setting(benchmark, backbone=backbone).model(experiment, benchmark)
    assert found == [model.identity]
    assert found[0]["generation"]["max_new_tokens"] == experiments.longest(experiment, benchmark)
    assert found[0].get("image_tokens") == experiments.image_tokens(benchmark)


@pytest.mark.parametrize("wrong, says", [
    (dict(benchmark="memlense"), "'memlense' is unknown; choose mini, or one of mini-memlens"),
    (dict(benchmark="memlens", length="33k"), "'memlens-33k' is unknown"),
    (dict(engine="vllm"), "engine 'vllm' is unknown; choose one of transformers"),
    (dict(limit=0), "limit=0: give 1 or more"),
])  # fmt: skip
def test_parameters_that_mean_nothing_are_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        Setting(**wrong)


def test_a_length_may_be_a_number_or_text_or_part_of_the_name():
    names = {Setting("dmv", length).name for length in (5, "5")} | {Setting("dmv-5").name}
    assert names == {"dmv-5--embedded"}
    assert Setting("dmv", 5, "a/b@c", limit=3).name == "dmv-5--a--b--first-3"
    assert folder_of("Qwen/Qwen3-VL-8B-Instruct@abc") == "Qwen--Qwen3-VL-8B-Instruct"
    assert Setting().embedded and Setting().figures is None and not Setting(limit=3).embedded


def test_what_is_not_at_hand_is_said_with_the_command_that_makes_it(tmp_path):
    for setting, says in (
        (Setting("memlens", "32k", "Qwen/Qwen3-VL-8B-Instruct", outputs=tmp_path),
         "delivermem run decomposition --benchmark memlens-32k --backbone Qwen/Qwen3-VL-8B-Instruct, or set regenerate"),
        (Setting(outputs=tmp_path, limit=3), "delivermem run decomposition, or set regenerate = True"),
    ):  # fmt: skip
        with pytest.raises(RunError, match=says):
            setting.answers("decomposition")
    with pytest.raises(
        RunError,
        match="'errand' is asked where there is a shop, which memlens has not; take benchmark = 'dmv'",
    ):
        Setting("memlens", "32k", outputs=tmp_path).answers("errand")


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """A folder with a few answers of the second embedded model to the embedded benchmark."""
    outputs = tmp_path_factory.mktemp("outputs")
    done = call("run", "decomposition", "--backbone", SECOND, "--limit", 3, "--outputs", outputs)
    assert done.exit_code == 0, done.output
    return outputs


def test_answers_of_the_first_questions_alone(answered):
    first = [question.id for question in benchmarks.load("mini-memlens").questions]
    for limit in (2, 3):
        table = Setting("mini-memlens", backbone=SECOND, limit=limit, outputs=answered).answers(
            "decomposition"
        )
        assert len(table) == 6 * limit and {*table.question_id} == {*first[:limit]}


def test_without_a_verdict_there_is_nothing_to_draw_and_with_some_they_are_counted(answered, tmp_path):
    folder = answered / "mini-memlens" / SECOND
    kept = {path: path.read_text() for path in folder.glob("*.jsonl")}
    said = []
    setting = dict(benchmark="mini-memlens", backbone=SECOND, outputs=answered, say=said.append)
    try:
        for n, path in enumerate(sorted(kept)):
            lines = [json.loads(line) | dict(verdict="unjudged") for line in kept[path].splitlines()]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            if not n:
                here = Setting(**setting)
                here.answers("decomposition")
                assert here.open == {"decomposition": 3}
                assert "of 18 answers 3 have no verdict and 0 failed; they leave their pairs" in said[-1]
                here.record({"x.y": dict(value=1.0)})
                assert said[-1] == "no number is recorded: 3 answers failed or await their verdict"
        with pytest.raises(
            RunError, match="of 18 answers of mini-memlens--tiny-qwen3-vl-2 18 have no verdict and 0 failed"
        ):
            Setting(**setting).answers("decomposition")
    finally:
        for path, text in kept.items():
            path.write_text(text)


def test_the_figures_of_another_setting_are_drawn_beside_and_the_notebook_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("DELIVERMEM_FIGURES", str(tmp_path))
    before = {path: path.read_bytes() for path in notebooks.find()}
    done = call(
        "figures", "01", "04", "--benchmark", "mini-memlens", "--backbone", "tiny-qwen3-vl", "--limit", 60
    )
    place = tmp_path / "mini-memlens--tiny-qwen3-vl--first-60"
    assert done.exit_code == 1
    assert f"{place / '01_decomposition.ipynb'}: " in done.stdout
    assert "04_failure_traces.ipynb, code cell" in done.stderr and "'errand' is asked where" in done.stderr
    assert {path.name for path in place.glob("*.ipynb")} == {"01_decomposition.ipynb"}
    assert {path.suffix for path in place.glob("fig1_decomposition.*")} == {".png", ".pdf", ".csv"}
    numbers = json.loads((place / "numbers.json").read_text())
    assert 0 < numbers["decomposition.delivery_term"]["n"] <= 60
    assert before == {path: path.read_bytes() for path in notebooks.find()}


@pytest.mark.parametrize("words, says", [
    (("01", "--regenerate"), "made anew by: delivermem run EXPERIMENT --fresh"),
    (("01", "--engine", "ray"), "made anew by"),
    (("01", "--benchmark", "none"), "benchmark 'none' is unknown"),
    (("1x", "--benchmark", "mini-memlens"), "no notebook '1x'"),
])  # fmt: skip
def test_options_that_do_not_fit_are_refused_before_a_notebook_runs(words, says):
    done = call("figures", *words)
    assert done.exit_code == 2 and says in done.stderr
