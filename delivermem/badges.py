"""The notebooks' badges and set-up cells, and the README's, from the repository's address in `pyproject.toml`.

`python -m delivermem.badges` (or `make badges`) rewrites them; twice is once. Without an address there is no badge, and the
set-up cell says that a clone has to be brought.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from delivermem import notebooks

BADGE = re.compile(r"\n*^\[!\[Open in Colab\]\([^)]*\)\]\([^)]*\)\n*", re.M)
IMAGE = "https://colab.research.google.com/assets/colab-badge.svg"
CLONE = """\
    if not clone.exists():
        fetch = ["git", "clone", "--quiet", "--depth", "1", "--branch", {ref!r}]
        subprocess.run([*fetch, {url!r}, str(clone)], check=True)
"""
NO_CLONE = """\
    if not clone.exists():
        raise FileNotFoundError(
            f"no public address of this repository is known here: put a clone of it at {clone}"
        )
"""
SET_UP = """\
import sys
from pathlib import Path

if "google.colab" in sys.modules:  # elsewhere this cell does nothing
    clone = Path("delivermem").resolve()
{clone}\
    sys.path.insert(0, str(clone))
    from delivermem import colab

    colab.set_up()"""


class Address(NamedTuple):
    """Where the repository is cloned from, and the branch or tag; url "" where none is known."""

    url: str
    ref: str


def address(project: Path | None = None) -> Address:
    """The address in [tool.delivermem] of a pyproject.toml (default: of this clone). ValueError for one that can't be cloned."""
    path = project or notebooks.root() / "pyproject.toml"
    known = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("delivermem", {})
    url, ref = (
        str(known.get("repository", "")).rstrip("/").removesuffix(".git"),
        str(known.get("ref", "main")),
    )
    if url and not re.fullmatch(r"https://[\w.-]+(/[\w.-]+){2,}", url):
        raise ValueError(
            f"{path}: [tool.delivermem] repository is {url!r}; give an https address such as https://github.com/owner/name"
        )
    if not re.fullmatch(r"[\w./-]+", ref):
        raise ValueError(f"{path}: [tool.delivermem] ref is {ref!r}; give a branch or a tag")
    return Address(url, ref)


def badge(where: Address, stem: str) -> str:
    """Markdown of a notebook's badge; "" where Colab can't open it: no address, or one that is not GitHub's."""
    if not where.url.startswith("https://github.com/"):
        return ""
    place = where.url.removeprefix("https://")
    to = f"https://colab.research.google.com/{place.replace('github.com', 'github', 1)}/blob/{where.ref}/notebooks/{stem}.ipynb"
    return f"[![Open in Colab]({IMAGE})]({to})"


def set_up_cell(where: Address) -> str:
    """The source of the set-up cell, the same in every notebook: on Colab it clones, installs what lacks; elsewhere nothing."""
    if not where.url:
        return SET_UP.format(clone=NO_CLONE)
    cell = SET_UP.format(clone=CLONE.format(ref=where.ref, url=where.url))
    return cell.replace("import sys\n", "import subprocess\nimport sys\n", 1).replace("'", '"')


def rewrite(notebook: Any, stem: str, where: Address) -> None:
    """Put badge and set-up cell into a notebook's first cell and its cell tagged `set-up`; ValueError where that lacks."""
    title = notebook.cells[0]
    head, _, rest = BADGE.sub("\n\n", title.source).partition("\n")
    mark = badge(where, stem)
    title.source = "\n\n".join(part for part in (head.strip(), mark, rest.strip()) if part)
    tagged = [cell for cell in notebook.cells if "set-up" in cell.metadata.get("tags", ())]
    if len(tagged) != 1:
        raise ValueError(f"{stem}.ipynb: {len(tagged)} cells are tagged 'set-up'; tag one")
    tagged[0].source = set_up_cell(where)


def main(root: Path | None = None) -> None:
    """Rewrite every numbered notebook below 90 and the README of a clone (default: this one)."""
    import nbformat

    from delivermem import readme

    root = root or notebooks.root()
    where = address(root / "pyproject.toml")
    for path in notebooks.find(folder=root / "notebooks"):
        notebook = nbformat.read(path, as_version=4)
        rewrite(notebook, path.stem, where)
        part = path.with_suffix(".part")
        nbformat.write(notebook, part)
        os.replace(part, path)
    readme.refresh(root / "README.md", where=where)


if __name__ == "__main__":
    main()
