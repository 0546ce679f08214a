"""The command line: one sentence and status 2 for bad input, plain progress, notebooks run and cleaned."""

from __future__ import annotations

import json
import subprocess
import sys

import nbformat
import pytest
from test_runs import Fake
from typer.testing import CliRunner

from delivermem import notebooks
from delivermem.cli import app

RUNNER = CliRunner()


def _call(*words):
    return RUNNER.invoke(app, list(words))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "decompositon"], "decomposition"),
        (["run", "decomposition", "--benchmark", "memlense"], "mini-memlens"),
        (["run", "decomposition", "--backbone", "no-such-model"], "tiny-qwen3-vl"),
        (["run", "decomposition", "--backbone", "Qwen/Qwen3-VL-9B-Instruct"], "pin the hub revision"),
        (["run", "decomposition", "--conditions", "gold-pixel"], "gold-pixels"),
        (["figures", "77"], "no notebook '77'"),
    ],
)
def test_unknown_names_list_the_known_ones(words, says):
    result = _call(*words)
    assert result.exit_code == 2
    assert says in result.stderr and result.stderr.count("\n") == 1 and "Traceback" not in result.stderr


def test_run_status_and_verify(tmp_path, small_benchmark, monkeypatch):
    monkeypatch.setattr("delivermem.backbones.load", lambda name, **_: Fake(name))
    where = ["--outputs", str(tmp_path)]
    assert "no answers yet" in _call("status", *where).stdout
    monkeypatch.setattr("delivermem.backbones.locate", lambda name: (name, None, tmp_path))
    ask = ["run", "decomposition", "--benchmark", "small", "--backbone", "fake", "--k", "3", *where]
    assert "24 to be had" in _call(*ask, "--dry-run").stdout and not list(tmp_path.iterdir())
    result = _call(*ask)
    assert result.exit_code == 0 and "24 answers" in result.stdout
    assert "24 cached, 0 to be had" in _call(*ask, "--dry-run").stdout
    rows = json.loads(_call("status", "--json", *where).stdout)
    assert len(rows) == 6 and sum(row["answers"] for row in rows) == 24
    assert "gold-pixels" in _call("status", *where).stdout
    assert "24 answers verified" in _call("verify", *where).stdout
    path = tmp_path / "small/fake/gold-text.jsonl"
    path.write_text(path.read_text().replace("Insufficient", "insufficient", 1))
    broken = _call("verify", *where)
    assert broken.exit_code == 1 and "gold-text.jsonl" in broken.stdout


def test_limit_and_conditions_narrow_the_run(tmp_path, small_benchmark, monkeypatch):
    monkeypatch.setattr("delivermem.backbones.load", lambda name, **_: Fake(name))
    where = ["--outputs", str(tmp_path), "--benchmark", "small", "--backbone", "fake", "--k", "3"]
    _call("run", "decomposition", "--limit", "1", "--conditions", "gold-text", *where)
    rows = json.loads(_call("status", "--json", "--outputs", str(tmp_path)).stdout)
    assert [(row["condition"], row["answers"]) for row in rows] == [("gold-text", 1)]
    _call("run", "decomposition", *where)
    _call("run", "decomposition", "--limit", "1", *where)
    rows = json.loads(_call("status", "--json", "--outputs", str(tmp_path)).stdout)
    assert {row["answers"] for row in rows} == {4}  # a narrower run throws nothing away


def test_the_version_is_the_packages():
    from delivermem import __version__

    assert _call("--version").stdout.strip() == __version__


def _notebook(path, *cells):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(notebook, path)


def test_a_notebook_is_run_in_its_folder_and_left_clean(tmp_path):
    path = tmp_path / "01_x.ipynb"
    _notebook(
        path,
        "import sys, os\nfrom pathlib import Path\nfrom delivermem.notebooks import root\nprint('progress', file=sys.stderr)",
        "",
        "print(root() / 'data' / 'x'); Path.cwd().name",
    )
    notebooks.execute(path)
    notebook = nbformat.read(path, as_version=4)
    assert [cell.execution_count for cell in notebook.cells] == [1, None, 2]
    assert notebook.cells[0].outputs == []
    printed, value = notebook.cells[2].outputs
    assert printed.text == "data/x\n" and value.data["text/plain"] == repr(tmp_path.name)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    first = path.read_bytes()
    notebooks.execute(path)
    assert path.read_bytes() == first


def test_a_failing_cell_is_named_and_the_file_stays(tmp_path):
    path = tmp_path / "02_y.ipynb"
    _notebook(path, "x = 1", "x / 0")
    before = path.read_bytes()
    with pytest.raises(notebooks.NotebookError, match=r"02_y\.ipynb, code cell 2: ZeroDivisionError"):
        notebooks.execute(path)
    assert path.read_bytes() == before


def test_importing_the_package_and_its_command_line_is_light():
    code = (
        "import sys, delivermem, delivermem.cli; delivermem.deliver; "
        "heavy = {'torch', 'transformers', 'datasets', 'pandas', 'matplotlib.pyplot', 'seaborn', 'statsmodels'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
