"""Colab: what is installed there, what its GPU holds, answers that outlive the machine, badges, papermill."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import sys
import types

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delivermem import badges, benchmarks, colab, hardware, notebooks, runs, shards
from delivermem.answers import Setting
from delivermem.backbones import BackboneError

EIGHT = "Qwen/Qwen3-VL-8B-Instruct"
T4 = "Tesla T4, 15360, 7.5"
L4 = "NVIDIA L4, 23034, 8.9"
A100 = "NVIDIA A100-SXM4-80GB, 81920, 8.0"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Puts an nvidia-smi first on the path that prints those lines and ends with that status."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def make(*lines, status=0):
        script = folder / "nvidia-smi"
        said = "\n".join(f"echo '{line}'" for line in lines)
        script.write_text(f"#!/bin/sh\n{said}\nexit {status}\n")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)

    return make


@pytest.fixture
def drive(tmp_path, monkeypatch):
    """A Drive that is mounted, on a machine that looks like Colab; and a list that grows whenever it is left."""
    mounted = tmp_path / "MyDrive"
    mounted.mkdir()
    left = []
    package = types.ModuleType("google.colab")
    package.drive = types.ModuleType("google.colab.drive")
    package.drive.flush_and_unmount = lambda: left.append(True)
    for name, module in (("google.colab", package), ("google.colab.drive", package.drive)):
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("DELIVERMEM_DRIVE", str(mounted))
    yield mounted, left
    while colab._keepers:
        colab._keepers.pop().close()


# What is installed


def test_only_what_is_absent_is_installed_and_what_is_too_old_is_said(tmp_path):
    project = tmp_path / "pyproject.toml"
    project.write_text(
        '[project]\ndependencies = ["numpy>=1.0", "no-such-thing>=2", "pillow>=999", "jupyterlab>=999", "ipykernel>=999"]\n'
    )
    lacking, old = colab.needed(project)
    assert lacking == ["no-such-thing>=2"]
    here = importlib.metadata.version("pillow")
    assert old == [f"pillow is {here} here, delivermem needs >=999"]


def test_this_machine_lacks_nothing_so_that_set_up_calls_no_pip(monkeypatch, capsys):
    monkeypatch.setattr(colab.subprocess, "run", None)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert colab.set_up() == []
    assert "Drive is not mounted" in capsys.readouterr().out
    assert os.environ["PYTHONPATH"].split(os.pathsep) == [str(notebooks.root()), "elsewhere"]


def test_every_version_at_hand_is_a_constraint():
    lines = colab.constraints().splitlines()
    assert f"numpy=={importlib.metadata.version('numpy')}" in lines
    assert all(re.fullmatch(r"[a-z0-9.-]+==\S+", line) for line in lines)
    names = [line.partition("==")[0] for line in lines]
    assert len(names) == len(set(names)) > 50


def test_a_pip_that_fails_is_said_with_what_it_said(monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(
        RuntimeError, match=r"could not install no-such-thing-here beside what is here: .*No matching"
    ):
        colab._install(["no-such-thing-here"])


def test_a_module_that_changed_under_the_kernel_asks_for_a_restart(monkeypatch):
    assert colab.changed() == []
    monkeypatch.setattr(sys.modules["numpy"], "__version__", "1.0.0")
    assert colab.changed() == ["numpy"]


# What fits


@pytest.mark.parametrize("line, name, gib, compute, bf16", [
    (T4, "Tesla T4", 15, 7.5, False),
    (A100, "NVIDIA A100-SXM4-80GB", 80, 8.0, True),
])  # fmt: skip
def test_the_gpu_is_read_from_the_driver(smi, line, name, gib, compute, bf16):
    smi(line, line)
    found = colab.gpu()
    assert (found.name, found.gib, found.compute, found.bf16, found.count) == (name, gib, compute, bf16, 2)


@pytest.mark.parametrize("lines, status", [
    ((), 0), (("NVIDIA-SMI has failed",), 9), (("No devices were found",), 0),
])  # fmt: skip
def test_a_driver_without_a_gpu_is_no_gpu(smi, lines, status):
    smi(*lines, status=status)
    assert colab.gpu() is None
    assert colab.machine().startswith("no GPU here")
    assert colab.too_small(EIGHT).startswith(f"{EIGHT} needs a GPU; the cached answers need no GPU")


def test_what_fits_a_t4_is_what_memory_allows(smi):
    smi(T4)
    lines = colab.machine().splitlines()
    assert lines[0] == "Tesla T4, 15.0 GiB, compute 7.5: float16"
    said = dict(line.strip().split(": ", 1) for line in lines[1:])
    assert said["Qwen/Qwen3-VL-2B-Instruct"] == "fits in float16 or 4bit"
    assert said[EIGHT] == "fits in 4bit"
    assert said["Qwen/Qwen3-VL-32B-Instruct"] == "does not fit"
    assert list(said) == list(hardware.MODELS)
    trouble = colab.too_small(EIGHT)
    assert trouble.startswith("Tesla T4 (15.0 GiB) is too small for " + EIGHT)
    assert "Qwen/Qwen3-VL-2B-Instruct" in trouble and "--quantization 4bit" in trouble and "cached" in trouble
    assert "4bit" not in colab.too_small("Qwen/Qwen3-VL-32B-Instruct")


def test_what_fits_an_l4_and_an_a100(smi):
    smi(L4)
    assert colab.too_small(EIGHT) == "" and colab.machine().splitlines()[0].endswith(": bfloat16")
    assert colab.too_small("Qwen/Qwen3-VL-32B-Instruct")
    smi(A100)
    assert not any(colab.too_small(name) for name in hardware.MODELS)
    assert colab.too_small("someone/unheard-of") == ""


def test_preflight_says_machine_and_plan_before_anything_loads(smi, tmp_path):
    smi(T4)
    said = []
    trouble = colab.preflight(EIGHT, "mini-memlens", limit=4, outputs=tmp_path, say=said.append)
    text = "\n".join(said)
    assert trouble == said[-1] and "too small" in trouble
    assert "24 answers at K = 10" in text and "estimated hours by GPU" in text and "T4: " in text
    smi(L4)
    assert colab.preflight(EIGHT, "mini-memlens", limit=4, outputs=tmp_path, say=said.append) == ""


def test_a_notebook_that_would_answer_stops_before_loading_where_the_gpu_is_too_small(smi, tmp_path):
    smi(T4)
    said = []
    here = Setting(
        "mini-memlens", backbone=EIGHT, limit=2, regenerate=True, outputs=tmp_path, say=said.append
    )
    with pytest.raises(BackboneError, match="too small"):
        here.answers("decomposition")
    assert not list(tmp_path.rglob("*.jsonl"))


# What survives


def test_a_run_goes_on_after_a_disconnect(drive, tmp_path, monkeypatch):
    """All cells again on a new machine: what Drive kept is given back, and none of it is asked again."""
    kept, left = drive
    said = []
    mine = tmp_path / "mine"  # not one that came with the clone
    shutil.copytree(runs.data_dir() / "models" / "tiny-qwen3-vl-2", mine)
    monkeypatch.chdir(tmp_path)
    settings = dict(benchmark="mini-memlens", backbone="mine", regenerate=True, say=said.append)
    first = tmp_path / "first"
    colab.keep_on(colab.drive_folder() / "outputs", folder=first, every=3600, say=said.append)
    before = Setting(**settings, limit=2, outputs=first).answers("decomposition")
    assert list(kept.rglob("*.shards"))  # copied as the run ended, without waiting
    second = tmp_path / "second"
    colab.keep_on(colab.drive_folder() / "outputs", folder=second, every=3600, say=said.append)
    said.clear()
    after = Setting(**settings, limit=2, outputs=second).answers("decomposition")
    assert any("0 distinct prompts asked" in text for text in said)
    assert before.equals(after)
    more = Setting(**settings, limit=3, outputs=second).answers("decomposition")
    assert len(more) == 18 and before.answer.isin(more.answer).all()
    assert colab.finish() and left == [True]
    third = tmp_path / "third"
    shards.restore(kept / "delivermem" / "outputs", third)
    assert {p.relative_to(third): p.read_bytes() for p in third.rglob("*.jsonl")} == {
        p.relative_to(second): p.read_bytes() for p in second.rglob("*.jsonl")
    }


def test_answers_that_came_with_the_clone_are_not_kept(tmp_path):
    where = runs.data_dir() / "outputs" / "mini-memlens" / "tiny-qwen3-vl"
    assert where.is_dir()
    assert colab.embedded((where / "gold-pixels.jsonl").relative_to(runs.data_dir() / "outputs"))
    for other in ("memlens-32k/tiny-qwen3-vl/a.jsonl", "mini-memlens/Qwen--Qwen3-VL-8B-Instruct/a.jsonl"):
        assert not colab.embedded(type(where)(other))


def test_a_drive_that_is_away_is_said_once_and_tried_again(tmp_path):
    answers, to, said = tmp_path / "outputs", tmp_path / "drive", []
    file = answers / "bench" / "model" / "a.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("{}\n")
    to.write_text("a file where the folder should be")
    keeper = shards.Keeper(answers, to, every=3600, say=said.append)
    assert not keeper.copy() and not keeper.copy()
    assert len(said) == 1 and "tried again" in said[0]
    to.unlink()
    assert keeper.close()
    assert shards.restore(to, tmp_path / "back") == 1


lines = st.lists(st.binary(max_size=6).map(lambda part: part.replace(b"\n", b"") + b"\n"), max_size=5).map(
    b"".join
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "rewrite", "torn"]), lines), max_size=6))
def test_shards_give_back_every_whole_line(tmp_path_factory, steps):
    root = tmp_path_factory.mktemp("shards")
    file, to = root / "outputs" / "bench" / "model" / "a.jsonl", root / "drive"
    file.parent.mkdir(parents=True)
    content = b""
    for how, part in steps:
        content = part if how == "rewrite" else content + part
        file.write_bytes(content + (b"half a li" if how == "torn" else b""))
        shards.mirror(root / "outputs", to)
        assert shards.mirror(root / "outputs", to) == 0
        back = root / f"back-{len(list(root.iterdir()))}"
        shards.restore(to, back)
        given_back = back / "bench" / "model" / "a.jsonl"
        if content:
            assert given_back.read_bytes() == content
    for path in to.rglob("*"):
        assert not path.name.endswith(".part")


def test_a_damaged_shard_ends_what_is_given_back_and_is_replaced(tmp_path):
    file, to = tmp_path / "outputs" / "bench" / "model" / "a.jsonl", tmp_path / "drive"
    file.parent.mkdir(parents=True)
    content = b""
    for n in range(3):
        content += b'{"n": %d}\n' % n
        file.write_bytes(content)
        shards.mirror(tmp_path / "outputs", to)
    kept = sorted(to.rglob("a.jsonl.shards/*"))
    assert len(kept) == 3
    kept[1].write_bytes(b'{"n": 9}\n')
    assert shards.restore(to, tmp_path / "back") == 1
    assert (tmp_path / "back/bench/model/a.jsonl").read_bytes() == b'{"n": 0}\n'
    other = tmp_path / "other/bench/model/a.jsonl"
    other.parent.mkdir(parents=True)
    other.write_bytes(b'{"mine": 1}\n')
    assert shards.restore(to, tmp_path / "other") == 0 and other.read_bytes() == b'{"mine": 1}\n'


# Where notebooks come from


@pytest.fixture
def clone(tmp_path):
    root = tmp_path / "clone"
    (root / "notebooks").mkdir(parents=True)
    for path in notebooks.find():
        shutil.copy(path, root / "notebooks")
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(notebooks.root() / name, root)
    return root


def _address(root, said):
    project = root / "pyproject.toml"
    project.write_text(re.sub(r'(?m)^repository = ".*"$', f'repository = "{said}"', project.read_text()))


def test_badges_follow_the_address_there_and_back(clone):
    def texts():
        return {
            path.name: path.read_bytes()
            for path in sorted(clone.rglob("*"))
            if path.suffix in (".ipynb", ".md")
        }

    before = texts()
    badges.main(clone)
    assert texts() == before  # what is committed is what the address says
    _address(clone, "https://github.com/made/delivermem.git")
    badges.main(clone)
    after = texts()
    badges.main(clone)
    assert texts() == after != before
    for path in notebooks.find(folder=clone / "notebooks"):
        notebook = nbformat.read(path, as_version=4)
        to = f"colab.research.google.com/github/made/delivermem/blob/main/notebooks/{path.name}"
        assert notebook.cells[0].source.count(to) == 1 and to in (clone / "README.md").read_text()
        cells = [cell.source for cell in notebook.cells if "set-up" in cell.metadata.get("tags", ())]
        assert len(cells) == 1 and "https://github.com/made/delivermem" in cells[0]
        compile(cells[0], path.name, "exec")
        assert len(cells[0].splitlines()) <= 20
    _address(clone, "")
    badges.main(clone)
    assert texts() == before


@pytest.mark.parametrize(
    "said", ["github.com/a/b", "https://github.com", "https://github.com/a b/c", "file:///a/b"]
)
def test_an_address_that_can_not_be_cloned_is_refused(clone, said):
    _address(clone, said)
    with pytest.raises(ValueError, match="give an https address"):
        badges.address(clone / "pyproject.toml")


def test_elsewhere_than_github_there_is_no_badge_but_a_clone():
    where = badges.Address("https://gitlab.com/made/delivermem", "v1")
    assert badges.badge(where, "01_decomposition") == ""
    assert where.url in badges.set_up_cell(where) and '"v1"' in badges.set_up_cell(where)


def test_the_set_up_cell_fetches_a_clone_once_and_does_nothing_elsewhere(tmp_path, monkeypatch):
    """The cell itself, run in a process that looks like Colab, with git's address of the clone led to a repository here."""
    source = tmp_path / "source"
    (source / "delivermem").mkdir(parents=True)
    (source / "delivermem" / "__init__.py").write_text("")
    (source / "delivermem" / "colab.py").write_text("def set_up():\n    print('set up')\n")
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "--quiet", "-b", "main"], ["add", "."], ["commit", "--quiet", "-m", "made"]):
        subprocess.run(["git", "-C", str(source), *who, *words], check=True)
    config = tmp_path / "gitconfig"
    config.write_text(f'[url "file://{source}"]\n\tinsteadOf = https://github.com/made/delivermem\n')
    cell = badges.set_up_cell(badges.Address("https://github.com/made/delivermem", "main"))
    colab_like = "import sys, types\nsys.modules['google.colab'] = types.ModuleType('google.colab')\n"
    work = tmp_path / "content"
    work.mkdir()
    env = dict(os.environ, GIT_CONFIG_GLOBAL=str(config), PYTHONPATH="")
    for script, says in ((colab_like + cell, "set up\n"), (colab_like + cell, "set up\n"), (cell, "")):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=work, env=env, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (0, says), done.stderr
    assert (work / "delivermem" / ".git").is_dir()


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_papermill_sets_the_parameters(tmp_path, monkeypatch):
    import papermill

    monkeypatch.setenv("DELIVERMEM_FIGURES", str(tmp_path / "figures"))
    to = tmp_path / "out.ipynb"
    path = notebooks.find(["01"])[0]
    asked = dict(benchmark="mini-memlens", backbone="tiny-qwen3-vl", limit=40)
    papermill.execute_notebook(
        str(path), str(to), parameters=asked, kernel_name="python3", progress_bar=False
    )
    made = nbformat.read(to, as_version=4)
    injected = [cell for cell in made.cells if "injected-parameters" in cell.metadata.get("tags", ())]
    assert len(injected) == 1 and "limit = 40" in injected[0].source
    assert (
        tmp_path / "figures" / "mini-memlens--tiny-qwen3-vl--first-40" / "fig1_decomposition.png"
    ).exists()
    assert len(benchmarks.load("mini-memlens").questions) > 40
