"""Execute the numbered notebooks from the cache, and leave them clean: what a reader of the repository sees."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS_A_CELL = 600
TAGS = ("parameters", "set-up")
"""Tags of cells that are kept: papermill's, after which it puts its own values, and that of the cell `badges` writes."""


class NotebookError(RuntimeError):
    """A cell that failed: which notebook, which cell, and its error."""


def root() -> Path:
    """The clone that holds `notebooks` and `figures`."""
    return Path(__file__).resolve().parents[1]


def find(numbers: Sequence[str] = (), folder: Path | None = None) -> list[Path]:
    """The notebooks of those numbers (`01` or `1`), or all but 90 and above; an unknown number is a ValueError."""
    known = {
        path.name[:2]: path for path in sorted((folder or root() / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    }
    wanted = [number.zfill(2)[:2] for number in numbers] or [number for number in known if number < "90"]
    unknown = [number for number in wanted if number not in known]
    if unknown:
        raise ValueError(f"no notebook {unknown[0]!r}; choose from {', '.join(known)}")
    return [known[number] for number in wanted]


def execute(path: Path) -> str:
    """Run one notebook top to bottom in a fresh kernel, clean it, and replace the file.

    Returns what its cells wrote to stderr (progress, warnings), which the file does not keep. A failing cell is a
    NotebookError, and the file on disk stays as it was.
    """
    import nbformat

    return _run(path, nbformat.read(path, as_version=4), path, SECONDS_A_CELL)


def render(path: Path, to: Path, *, seconds: int | None = None, **parameters: Any) -> str:
    """Run a notebook with other parameters and write it to `to`; the notebook itself stays as it is.

    parameters: values for names in its cell tagged `parameters`; they stand in a cell of their own after it, as papermill
    puts them. seconds: the most that a cell may take (default: no limit, as answering may take hours). Returns and raises
    as `execute` does; an unknown parameter is a ValueError that lists the known.
    """
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    at, known = parameters_of(notebook)
    unknown = [name for name in parameters if name not in known]
    if unknown:
        raise ValueError(f"{path.name} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    lines = "\n".join(f"{name} = {value!r}" for name, value in parameters.items())
    if lines:
        cell = nbformat.v4.new_code_cell(lines, metadata={"tags": ["injected-parameters"]})
        notebook.cells.insert(at + 1, cell)
    to.parent.mkdir(parents=True, exist_ok=True)
    return _run(path, notebook, to, seconds)


def parameters_of(notebook: Any) -> tuple[int, dict[str, Any]]:
    """(place of the cell tagged `parameters`, its names and default values); (-1, {}) where there is none."""
    for at, cell in enumerate(notebook.cells):
        if "parameters" in cell.metadata.get("tags", ()):
            assigned = [node for node in ast.parse(cell.source).body if isinstance(node, ast.Assign)]
            names = {ast.unparse(node.targets[0]): ast.literal_eval(node.value) for node in assigned}
            return at, names
    return -1, {}


def _run(path: Path, notebook: Any, to: Path, seconds: int | None) -> str:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    client = NotebookClient(
        notebook,
        timeout=seconds,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        extra_arguments=["--IPKernelApp.log_level=40"],
    )
    try:
        client.execute()
    except CellExecutionError as error:
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        at = next((i for i, c in enumerate(code, 1) if any(o.output_type == "error" for o in c.outputs)), 0)
        raise NotebookError(f"{path.name}, code cell {at}: {error.ename}: {error.evalue}") from None
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    aside = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stderr")
    clean(notebook)
    part = to.with_suffix(".part")
    nbformat.write(notebook, part)
    os.replace(part, to)
    return aside


def clean(notebook: Any) -> None:
    """Counts 1..n; no progress on stderr, widgets, timestamps or paths of this machine; no metadata but TAGS."""
    here = re.escape(str(root()))
    count = 0
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        tags = [tag for tag in cell.metadata.get("tags", ()) if tag in (*TAGS, "injected-parameters")]
        cell.metadata, cell.id = {"tags": tags} if tags else {}, f"cell-{number:02d}"
        if cell.cell_type != "code":
            continue
        count += bool(cell.source.strip())
        cell.execution_count = count if cell.source.strip() else None
        cell.outputs = [o for o in cell.outputs if not (o.output_type == "stream" and o.name == "stderr")]
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count
            if "metadata" in output:
                output.metadata = {}
            if output.output_type == "stream":
                output.text = re.sub(here + "/?", "", output.text)
            for kind, value in (output.get("data") or {}).items():
                if kind.startswith("text/") and isinstance(value, str):
                    output.data[kind] = re.sub(here + "/?", "", value)
