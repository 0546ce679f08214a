"""The published benchmarks from end to end, in folders made here: fetch, every experiment, judge, CSV, notebooks."""

from __future__ import annotations

import functools
import json
import subprocess

import made_dmv
import made_memlens
import pytest
from test_memlens_judge import PROMPTS, server  # noqa: F401 - a fixture
from typer.testing import CliRunner

from delivermem import benchmarks, hub, notebooks, pins, runs
from delivermem.answers import Setting
from delivermem.benchmarks import released
from delivermem.cli import app

TINY = "tiny-qwen3-vl-2"
WORDS = (
    'SYSTEM_TEMPLATE = "Reply from the conversation, or: Insufficient information"\n'
    'INSTRUCTION_DEFAULT = "The answer alone."\n'
    'QUESTION_TEMPLATE = "{instruction}\\nDay: {question_date}\\nAsked: {question}\\n"\n'
)


def call(*words):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder without benchmarks and answers."""
    here = runs.data_dir()
    (tmp_path / "data").mkdir()
    for name in ("models", "published", "ranks"):
        (tmp_path / "data" / name).symlink_to(here / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DELIVERMEM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DELIVERMEM_FIGURES", str(tmp_path / "figures"))
    benchmarks.load.cache_clear()
    yield tmp_path / "data"
    benchmarks.load.cache_clear()


@pytest.fixture
def code(tmp_path, monkeypatch):
    """A made repository of the evaluation code, at the commit that is pinned."""
    place = tmp_path / "code"
    (place / "judge_prompts").mkdir(parents=True)
    (place / "data.py").write_text(WORDS)
    for name, text in PROMPTS.items():
        (place / "judge_prompts" / name).write_text(text)
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "made"]):
        subprocess.run(["git", "-C", str(place), *who, *words], check=True)
    monkeypatch.setattr(pins, "MEMLENS_CODE", ("made", released.git(place, "rev-parse", "HEAD")))
    return place


def rows(*words):
    return [row for row in json.loads(call("status", "--json")) if row["condition"] in words or not words]


def test_memlens_goes_through_fetch_every_experiment_the_judge_and_a_notebook(data, code, tmp_path, server):  # noqa: F811
    source = made_memlens.make(tmp_path / "hub", images="archive")
    call("fetch", "memlens", "--length", "32k", "--from", str(source))
    call("fetch", "memlens-judge", "--from", str(code))
    call("fetch", "memlens-judge", "--from", str(code))  # goes on, and harms nothing
    where = ["--benchmark", "memlens-32k", "--backbone", TINY, "--limit", "3"]
    plan = call("run", "cost", *where, "--dry-run")
    assert "nothing is missing here" in plan and "0 cached, 6 to be had" in plan and "await the judge" in plan
    for experiment in ("decomposition", "ladder", "controls", "cost"):
        call("run", experiment, *where)
    assert call("run", "decomposition", *where).count("0 distinct prompts asked") == 1
    assert all(row["unjudged"] + row["not_applicable"] == row["answers"] for row in rows())
    assert sum(row["failed"] for row in rows()) == 0 and len(rows()) > 20
    assert "awaits the judge" in (data / f"outputs/memlens-32k/{TINY}/gold-pixels.jsonl").read_text()
    call("judge", "memlens-32k", "--backbone", TINY, "--url", server.url)
    asked = len(server.seen)
    assert asked > 0 and all(
        row["right"] + row["wrong"] + row["not_applicable"] == row["answers"] for row in rows()
    )
    call("judge", "memlens-32k", "--backbone", TINY, "--url", server.url)
    assert len(server.seen) == asked
    assert "answers verified" in call("verify")
    assert "judged" in drawn("memlens-32k", "01", "02", "03", "05", "06")


def drawn(benchmark, *numbers):
    """The text of the first notebook, after all were drawn from the answers at hand."""
    call("figures", *numbers, "--benchmark", benchmark, "--backbone", TINY)
    paths = [
        runs.data_dir().parent / "figures" / f"{benchmark}--{TINY}" / path.name
        for path in notebooks.find(numbers)
    ]
    assert all(TINY in path.read_text() and benchmark in path.read_text() for path in paths)
    assert any(path.suffix == ".png" for path in paths[0].parent.iterdir())
    return paths[0].read_text()


def test_regenerating_brings_what_is_not_here_and_waits_for_the_judge(data, code, tmp_path, monkeypatch):
    """One command on a bare machine: data, pictures and the evaluator's words, then answers; the verdicts are another's."""
    source = made_memlens.make(tmp_path / "hub", images="archive")
    for name, whence in (("fetch_memlens", source), ("fetch_judge", code)):
        monkeypatch.setattr(hub, name, functools.partial(getattr(hub, name), source=whence))
    said = []
    here = Setting("memlens", "32k", TINY, limit=2, regenerate=True, say=said.append)
    with pytest.raises(
        runs.RunError,
        match=r"have no verdict and 0 failed, so there is nothing to draw; .* delivermem judge memlens-32k",
    ):
        here.answers("cost")
    assert any("memlens 32k is ready" in text for text in said) and any(
        "memlens-judge is ready" in text for text in said
    )
    assert said.index(next(text for text in said if text.startswith("cost on memlens-32k"))) < said.index(
        next(text for text in said if "memlens 32k is ready" in text)
    )
    (data / "benchmarks" / "memlens" / "images.json").unlink()  # as if the fetch had been stopped
    assert "fetch memlens --length 32k" in hub.absent("memlens-32k")
    said.clear()
    with pytest.raises(runs.RunError):
        Setting("memlens", "32k", TINY, limit=2, regenerate=True, say=said.append).answers("cost")
    assert any("memlens 32k is ready" in text for text in said) and any(
        "0 distinct prompts" in text for text in said
    )
    call("judge", "memlens-32k", "--backbone", TINY, "--local-judge")
    assert len(Setting("memlens", "32k", TINY, limit=2).answers("cost")) == 4


def test_dmv_goes_through_fetch_errands_the_ladder_and_its_csv(data, tmp_path, monkeypatch):
    call("fetch", "dmv", "--from", str(made_dmv.make(tmp_path / "published")))
    from delivermem.benchmarks import dmvbench

    small = dmvbench.read(data / "benchmarks" / "dmv", sessions=5, chains=1, encoder="tiny-siglip")
    monkeypatch.setitem(benchmarks.FETCHED, "dmv-5", lambda: small)
    where = ["--benchmark", "dmv-5", "--backbone", TINY, "--limit", "2"]
    for experiment in ("errand", "ladder", "controls", "adapter"):
        call("run", experiment, *where)
    assert sum(row["failed"] for row in rows()) == 0
    assert "answers verified" in call("verify")
    printed = call("csv", "dmv-5", "--backbone", TINY)
    assert printed.count(".csv") == 2
    drawn("dmv-5", "02", "03", "04", "06")
