"""The engine that spreads prompts over Ray's workers: a real Ray on this machine, with two workers on its CPUs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import ray
import serving
from serving import TINY
from typer.testing import CliRunner

from delivermem import backbones, fleet
from delivermem.backbones import BackboneError
from delivermem.cli import app

MANY = 48
pytestmark = [
    # Ray's own settings set their own deprecated ones, wherever they are made.
    pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning:ray"),
]


def _ray(name=TINY, **settings):
    settings = dict(workers=2, batch_size=2, max_new_tokens=12, device="cpu") | settings
    return backbones.load(name, engine="ray", **settings)


@pytest.fixture(scope="module")
def cluster():
    """A Ray of this machine that stays for several tests, as a user's own would."""
    with fleet._cluster(None, 2) as ray:
        yield ray


@pytest.fixture(scope="module")
def expected():
    return serving.here(serving.dozen(MANY))


def _texts(found):
    return {i: answer.text for i, answer in found.items()}


def _workers():
    """Process ids of the workers that answer, as Ray names them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if said.startswith("ray::MapWorker"):
            found.append(int(path.parent.name))
    return found


def test_a_run_goes_on_with_another_engine_where_one_stopped(tmp_path):
    """Without a Ray of the user's: one is started for the run, and stopped."""
    assert not ray.is_initialized()
    words = ["run", "decomposition", "--backbone", "tiny-qwen3-vl-2", "--outputs", str(tmp_path)]
    first = CliRunner().invoke(app, [*words, "--limit", "2"])
    assert first.exit_code == 0, first.output
    kept = {path: path.read_text() for path in tmp_path.rglob("*.jsonl")}
    second = CliRunner().invoke(app, [*words, "--limit", "4", "--engine", "ray", "--workers", "2"])
    assert second.exit_code == 0, second.output
    rows = json.loads(CliRunner().invoke(app, ["status", "--json", "--outputs", str(tmp_path)]).stdout)
    assert len(rows) == 6 and all((row["answers"], row["failed"]) == (4, 0) for row in rows)
    assert all(path.read_text().startswith(said) for path, said in kept.items())
    assert "answers verified" in CliRunner().invoke(app, ["verify", "--outputs", str(tmp_path)]).output
    assert not ray.is_initialized()


def test_two_workers_answer_as_the_transformers_engine_does(cluster, expected):
    backbone = _ray()
    assert backbone.identity == backbones.load(TINY, max_new_tokens=12).identity
    assert backbone.name == "tiny-qwen3-vl-2"
    found = dict(backbone.answer(serving.dozen(MANY)))
    assert _texts(found) == _texts(expected)
    for i, answer in expected.items():
        assert (answer.status, answer.finish) == (found[i].status, found[i].finish)
        assert (answer.text_tokens, answer.image_tokens) == (found[i].text_tokens, found[i].image_tokens)
    assert {answer.status for answer in found.values()} == {"ok"}
    assert dict(backbone.answer([])) == {}


def test_what_a_lost_worker_had_is_answered_by_another(cluster, expected):
    killed, found = [], {}
    for i, answer in _ray().answer(serving.dozen(MANY)):
        assert i not in found
        found[i] = answer
        if not killed:
            killed = _workers()[:1]
            os.kill(killed[0], signal.SIGKILL)
    assert killed and _texts(found) == _texts(expected)


def test_prompts_are_drawn_as_they_are_answered(cluster):
    drawn = []

    def prompts():
        for i, prompt in enumerate(serving.dozen(12) * 40):
            drawn.append(i)
            yield prompt

    replies = _ray().answer(prompts())
    next(replies)
    time.sleep(2)
    ahead = (
        (2 * fleet.AHEAD + 2) * fleet.BLOCK * 2
    )  # for two workers, with what is at hand and what was answered
    assert len(drawn) <= ahead < 60  # of 480
    replies.close()
    time.sleep(0.5)
    assert len(drawn) <= ahead


def test_prompts_that_stop_with_an_error_pass_it_on(cluster):
    def prompts():
        yield from serving.dozen(12)
        raise OSError("a picture is gone")

    found = []
    with pytest.raises(OSError, match="a picture is gone"):
        for i, _ in _ray().answer(prompts()):
            found.append(i)
    assert sorted(found) == list(range(12))


def test_workers_can_be_clients_of_a_server(cluster):
    made = serving.Scripted(seconds=0.05)
    prompts = serving.dozen(24)
    with made.running() as url:
        backbone = _ray("made", url=url, batch_size=3, device=None)
        assert backbone.identity["backend"] == "openai"
        found = dict(backbone.answer(prompts))
    assert sorted(found) == list(range(24)) and {answer.status for answer in found.values()} == {"ok"}
    assert len(made.seen) == 24 and made.most > 3  # more than one client's bound


def test_a_worker_that_can_not_start_stops_the_run_in_a_sentence(cluster, tmp_path):
    folder = tmp_path / "broken"
    folder.mkdir()
    for path in Path(TINY).iterdir():
        (folder / path.name).symlink_to(path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(BackboneError) as error:
        list(_ray(str(folder)).answer(serving.dozen(12)))
    assert "\n" not in str(error.value) and str(error.value)


def test_more_workers_than_gpus_and_settings_that_make_no_sense_are_refused():
    for wrong, says in (
        (dict(workers=0), "workers=0: give 1 or more"),
        (dict(device="cuda:1"), "each worker has one GPU"),
        (dict(url="http://localhost:1/v1"), "are the server's where --url is given"),
    ):
        with pytest.raises(BackboneError, match=says):
            _ray(**wrong)
