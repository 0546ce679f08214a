"""The plan before a run: what it says where nothing is here, what fits a GPU, and how hours follow from sizes."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import serving
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from delivermem import benchmarks, experiments, hardware, hub, runs
from delivermem.cli import app
from delivermem.hardware import Gpu, Load

QWEN3, QWEN25 = "Qwen/Qwen3-VL-{}-Instruct", "Qwen/Qwen2.5-VL-{}-Instruct"
GPUS = {gpu.name: gpu for gpu in hardware.GPUS}


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine without data, weights or GPU."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "models").symlink_to(runs.data_dir() / "models")
    monkeypatch.setenv("DELIVERMEM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    benchmarks.load.cache_clear()
    yield tmp_path
    benchmarks.load.cache_clear()


def plan(*words):
    done = CliRunner().invoke(app, ["run", *words, "--dry-run"])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_bare_machine_is_told_the_whole_plan(bare):
    said = plan("decomposition", "--benchmark", "memlens-32k", "--backbone", QWEN3.format("8B"))
    lines = said.splitlines()
    assert "about 1170 answers at K = 10: 0 cached, 1170 to be had" in lines
    for arm in experiments.find("decomposition").conditions:
        (line,) = [line for line in lines if line.startswith(f"  {arm.name}: 195 prompts, ")]
        words, pictures = map(int, re.search(r"(\d+) \+ (\d+) tokens", line).groups())
        assert words > 1000 and (pictures > 0) == (arm.decisions.modality == "pixels")
    for gpu in hardware.GPUS:
        assert re.search(rf"^  {gpu.name}: [\d.]+ (h|min) in (4bit|bfloat16)$", said, re.M)
    assert "arithmetic, not measured" in said
    missing = said[said.index("missing here:") :]
    for what in (
        f"{hub.MEMLENS_SIZES['32k']} MB of questions",
        "delivermem fetch memlens --length 32k",
        "about 18 GB",
        "a GPU: ",
    ):
        assert what in missing
    assert "await the judge: delivermem judge memlens-32k" in said
    assert not [path for path in bare.rglob("*") if path.name not in ("data", "models")]


@pytest.mark.parametrize("words, has", [
    (("errand", "--benchmark", "dmv-5", "--backbone", QWEN25.format("7B")), ("1053 prompts, at most 8 steps each", "fetch dmv")),
    (("cost", "--benchmark", "memlens-256k-all", "--backbone", QWEN3.format("8B")), ("about 1578 answers", "fetch memlens-judge")),
    (("cost", "--benchmark", "memlens-256k-all", "--backbone", QWEN3.format("8B"), "--limit", "7"), ("about 14 answers",)),
    (("decomposition", "--backbone", QWEN3.format("2B")), ("3072 answers", "0 cached")),
    (("decomposition", "--benchmark", "memlens-32k", "--backbone", QWEN3.format("8B"), "--quantization", "4bit"),
     ("T4: 1.5 h in 4bit", "min in 4bit", "pip install bitsandbytes")),
])  # fmt: skip
def test_other_plans_say_what_is_theirs(bare, words, has):
    said = plan(*words)
    for text in has:
        assert text in said


def test_a_server_is_asked_what_it_serves_and_lends_weights_and_gpu(bare, tmp_path):
    made, where = (
        serving.Scripted(),
        ["--benchmark", "mini-memlens", "--outputs", str(tmp_path / "kept"), "--limit", "4"],
    )
    words = ["decomposition", "--engine", "openai", "--backbone", "made", *where]
    with made.running() as url:
        said = plan(*words, "--url", url)
        assert "24 answers at K = 10: 0 cached, 24 to be had" in said and said.endswith(
            "nothing is missing here\n"
        )
        assert "no estimate of hours: the size of made is not known here" in said and not made.seen
        done = CliRunner().invoke(app, ["run", *words, "--url", url])
        assert done.exit_code == 0, done.output
        assert "24 cached, 0 to be had" in plan(*words, "--url", url)
    away = plan(*words, "--url", url)
    assert re.search(r"the server: .*" + re.escape(url), away) and "weights" not in away


def test_a_plan_loads_no_model_and_needs_no_network(bare):
    """In a process of its own, whose sockets lead nowhere."""
    script = (
        "import socket, sys\n"
        "def none(*_, **__): raise AssertionError('network')\n"
        "socket.socket.connect = none\n"
        "socket.create_connection = socket.getaddrinfo = none\n"
        "from delivermem.cli import app\n"
        "sys.argv = ['delivermem', 'run', 'decomposition', '--benchmark', 'memlens-32k', '--backbone', sys.argv[1], '--dry-run']\n"
        "import atexit\n"
        "atexit.register(lambda: print('models', 'transformers.models.qwen3_vl.modeling_qwen3_vl' in sys.modules))\n"
        "app()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, QWEN3.format("8B")],
        env=dict(os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "missing here:" in done.stdout and done.stdout.endswith("models False\n")


@pytest.mark.parametrize("backbone, gpu, tokens, ways", [
    (QWEN3.format("2B"), "T4", 8192, ["float16", "4bit"]),
    (QWEN3.format("4B"), "T4", 8192, ["float16", "4bit"]),
    (QWEN3.format("8B"), "T4", 8192, ["4bit"]),
    (QWEN25.format("7B"), "T4", 8192, ["4bit"]),
    (QWEN3.format("8B"), "L4", 8192, ["bfloat16", "4bit"]),
    (QWEN25.format("7B"), "L4", 16384, ["bfloat16", "4bit"]),
    (QWEN3.format("8B"), "A100 40 GB", 32768, ["bfloat16", "4bit"]),
    (QWEN3.format("30B-A3B"), "A100 40 GB", 8192, ["4bit"]),
    (QWEN3.format("30B-A3B"), "A100 80 GB", 8192, ["bfloat16", "4bit"]),
    (QWEN3.format("32B"), "A100 80 GB", 8192, ["bfloat16", "4bit"]),
    (QWEN3.format("32B"), "T4", 8192, []),
])  # fmt: skip
def test_what_fits_colabs_gpus(backbone, gpu, tokens, ways):
    found = GPUS[gpu]
    assert hardware.fits(backbone, found.gib, found.bf16, tokens=tokens) == ways
    assert hardware.fits(f"{backbone}@main", found.gib, found.bf16, tokens=tokens) == ways


def test_a_model_of_unknown_size_is_refused_with_the_known():
    with pytest.raises(ValueError, match=r"'someone/model' is not known here; known: Qwen/Qwen3-VL-2B"):
        hardware.fits("someone/model", 80, True)


sizes = st.sampled_from(list(hardware.MODELS.values()))
gpus = st.sampled_from(hardware.GPUS)
loads = st.builds(Load, st.integers(1, 500), st.integers(0, 30000), st.integers(0, 30000), st.integers(1, 8))


@given(sizes, gpus, loads, loads)
def test_hours_add_up_and_grow_with_the_work(size, gpu, one, other):
    both = hardware.hours(size, gpu, [one, other])
    assert both == pytest.approx(hardware.hours(size, gpu, [one]) + hardware.hours(size, gpu, [other]))
    more = Load(one.prompts, one.text + 100, one.image, one.steps)
    assert hardware.hours(size, gpu, [more]) > hardware.hours(size, gpu, [one]) > 0
    faster = Gpu("faster", gpu.gib, gpu.bf16, 2 * gpu.tflops, 2 * gpu.gbs, gpu.share)
    assert hardware.hours(size, faster, [one]) == pytest.approx(hardware.hours(size, gpu, [one]) / 2)


def test_hours_of_one_prompt_by_hand():
    """8.8 billion parameters, 8,000 tokens: 141 Tflop and attention on 300 Tflop/s; 40 tokens at 2 bytes a parameter, 8 together."""
    size = hardware.known(QWEN3.format("8B"))
    gpu = Gpu("made", 80, True, 1000, 1000, 0.3)
    prefill = (2 * 8.8e9 * 8000 + 2 * 36 * 32 * 128 * 8000**2) / 300e12
    decode = 40 * 17.6e9 / 1000e9 / 8
    assert hardware.hours(size, gpu, [Load(1, 2000, 6000)]) == pytest.approx((prefill + decode) / 3600)
