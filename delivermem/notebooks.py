"""Execute the numbered notebooks from the cache, and leave them clean: what a reader of the repository sees."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS_A_CELL = 600


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
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS_A_CELL,
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
    part = path.with_suffix(".part")
    nbformat.write(notebook, part)
    os.replace(part, path)
    return aside


def clean(notebook: Any) -> None:
    """Counts 1..n; no progress on stderr, widgets, timestamps or paths of this machine; the plainest metadata."""
    here = re.escape(str(root()))
    count = 0
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.metadata, cell.id = {}, f"cell-{number:02d}"
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
