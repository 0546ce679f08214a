"""Every notebook runs from the cache without network, and what is committed is clean and current."""

from __future__ import annotations

import ast
import json
import re
import shutil

import nbformat
import pytest

from delivermem import notebooks, readme

PATHS = notebooks.find()
EVERY = sorted((notebooks.root() / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_runs_from_the_cache_without_network(path, tmp_path, monkeypatch):
    """A copy runs with figures kept apart, every proxy pointing nowhere, warns of nothing, and gives the committed text outputs."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("DELIVERMEM_FIGURES", str(tmp_path / "figures"))
    (tmp_path / "notebooks").mkdir()
    copy = shutil.copy(path, tmp_path / "notebooks")
    assert notebooks.execute(tmp_path / "notebooks" / path.name) == ""
    ran, committed = (nbformat.read(p, as_version=4) for p in (copy, path))
    for a, b in zip(ran.cells, committed.cells, strict=True):
        if a.cell_type == "code":
            assert _texts(a) == _texts(b), a.source


def _texts(cell):
    found = []
    for output in cell.outputs:
        text = output.get("text") or (output.get("data") or {}).get("text/plain", "")
        found.append(re.sub(r"0x[0-9a-f]+", "0x", text))
    return found


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.stem)
def test_it_is_committed_clean(path):
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert path.stat().st_size < 1_000_000
    assert "widgets" not in notebook.metadata
    assert str(notebooks.root()) not in text
    if path.name < "90":
        assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        assert not any(o.output_type == "error" or o.get("name") == "stderr" for o in cell.outputs), (
            cell.source
        )
        assert len(cell.source.splitlines()) <= 20
        tree = ast.parse(cell.source)
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith(
        f"# {path.name[:2]} "
    )
    for before, cell in zip(notebook.cells, notebook.cells[1:], strict=False):
        if cell.cell_type == "code" and before.cell_type == "markdown":
            assert len(before.source) > 5


def test_the_readme_shows_the_current_numbers(tmp_path):
    committed = notebooks.root() / "README.md"
    copy = tmp_path / "README.md"
    shutil.copy(committed, copy)
    readme.refresh(copy)
    assert copy.read_bytes() == committed.read_bytes()


def test_the_numbers_have_their_names_intervals_and_n():
    numbers = json.loads((notebooks.root() / "figures" / "numbers.json").read_text())
    for name in ("delivery_term", "retrieval_term", "gap"):
        entry = numbers[f"decomposition.{name}"]
        assert entry["low"] <= entry["value"] <= entry["high"] and entry["n"] >= 400
    for name in ("gap_p", "fixed", "broken", "confident_wrong"):
        assert "value" in numbers[f"decomposition.{name}"]


def test_a_readme_without_its_marks_is_refused(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("# x\n")
    with pytest.raises(ValueError, match="marks"):
        readme.refresh(path)
