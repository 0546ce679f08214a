"""Colab: what the set-up cell does there, what its GPU holds, and answers that survive a disconnect.

Nothing that Colab preloads is changed. Answers are written to the machine's own disk and copied to Drive, where it is
mounted, as closed shards (`shards`); a new machine gets them back, and running all cells again goes on from there.
"""

from __future__ import annotations

import atexit
import importlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from delivermem import benchmarks, hardware, notebooks, runs, shards
from delivermem.backbones import Backbone

FRONT_END = frozenset({"ipykernel", "ipywidgets", "jupyterlab", "nbclient", "nbformat"})
"""What Colab brings in versions of its own, and a notebook that runs there does not need newer."""
LOADED = ("numpy", "pandas", "PIL", "matplotlib", "torch", "transformers")
"""Modules whose files must not change under a running kernel."""
Say = Callable[[str], None]


def set_up(*, dry: bool = False, say: Say = print) -> list[str]:
    """Install what this package needs and the machine lacks, give back answers kept on Drive, and keep them there from now on.

    Every version at hand is a constraint to pip, so that nothing preloaded is changed. Returns the requirements that were
    installed; dry: those that would be, and nothing is done. What is there but too old is said, not replaced. A failing
    pip is a RuntimeError with its last lines.
    """
    root = notebooks.root()
    lacking, old = needed(root / "pyproject.toml")
    for text in old:
        say(f"{text}: upgrade it with %pip install -U, then restart the session")
    if dry:
        return lacking
    if lacking:
        _install(lacking)
        say(f"installed: {', '.join(lacking)}")
    for name in changed():
        say(f"{name} on disk is not the {name} that is loaded: restart the session, then run all cells")
    paths = [str(root), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))  # for !python -m delivermem.cli …
    drive = drive_folder()
    if drive is None:
        say("Drive is not mounted: answers are lost with this machine (mount it and run this cell again)")
    else:
        keep_on(drive / "outputs", say=say)
    return lacking


def needed(project: Path) -> tuple[list[str], list[str]]:
    """(requirements of a pyproject.toml that are not installed, sentences on those that are too old), the front end's left out."""
    from packaging.requirements import Requirement

    lacking, old = [], []
    for text in tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]:
        wanted = Requirement(text)
        if wanted.name.lower() in FRONT_END:
            continue
        try:
            found = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            lacking.append(str(wanted))
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            old.append(f"{wanted.name} is {found} here, delivermem needs {wanted.specifier}")
    return lacking, old


def constraints() -> str:
    """Every installed distribution at its version, as pip's constraints, a line each."""
    known: dict[str, str] = {}
    for found in metadata.distributions():
        name = found.metadata["Name"] if found.metadata else None
        if name and re.fullmatch(r"[\w.!+-]+", found.version or ""):
            known.setdefault(re.sub(r"[-_.]+", "-", name).lower(), found.version)
    return "".join(f"{name}=={version}\n" for name, version in sorted(known.items()))


def _install(requirements: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "constraints.txt"
        file.write_text(constraints(), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--constraint", str(file), *requirements], capture_output=True, text=True, check=False
        )
    if done.returncode:
        said = " ".join(done.stderr.split()[-80:])
        raise RuntimeError(f"pip could not install {', '.join(requirements)} beside what is here: {said}")


def changed() -> list[str]:
    """Modules of LOADED whose version in this process is not the installed one: the session must be restarted."""
    found = []
    for name in LOADED:
        here = getattr(sys.modules.get(name), "__version__", None)
        if here and here.split("+")[0] != metadata.version("pillow" if name == "PIL" else name).split("+")[0]:
            found.append(name)
    return found


@dataclass(frozen=True)
class Found:
    """A GPU of this machine: its name, memory in GiB, compute capability, and how many there are."""

    name: str
    gib: float
    compute: float
    count: int = 1

    @property
    def bf16(self) -> bool:
        return self.compute >= 8.0


def gpu() -> Found | None:
    """The first GPU as the driver states it, without loading anything; None where there is none."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
    if done.returncode or not rows or len(rows[0]) != 3:
        return None
    name, mib, compute = rows[0]
    return Found(name, float(mib) / 1024, float(compute), len(rows))


def preflight(
    backbone: str,
    benchmark: str,
    *,
    experiment: str = "decomposition",
    model: Backbone | None = None,
    limit: int | None = None,
    outputs: Path | None = None,
    say: Say = print,
) -> str:
    """Say what this machine's GPU is, what fits it, and what a run would take, before anything is loaded.

    model: the backbone, unloaded, whose cached answers count. Returns "" where the backbone fits; where it does not, a
    sentence that names what does, and the cached answers, which need no GPU.
    """
    from delivermem import experiments, planning

    say(machine())
    longest = experiments.longest(experiment, benchmark)
    wanted: dict[str, Any] = dict(model=model, max_new_tokens=longest, limit=limit, outputs=outputs)
    say(planning.plan_text(experiment, benchmark, backbone, **wanted))
    trouble = too_small(backbone)
    if trouble:
        say(trouble)
    return trouble


def machine() -> str:
    """GPU, memory, and precision, and what fits: a line a backbone known to `hardware`."""
    here = gpu()
    if here is None:
        return "no GPU here (Runtime > Change runtime type lends one): the embedded models and the cached answers need none"
    dtype = "bfloat16" if here.bf16 else "float16"
    count = f"{here.count} x " if here.count > 1 else ""
    lines = [f"{count}{here.name}, {here.gib:.1f} GiB, compute {here.compute:.1f}: {dtype}"]
    for name in hardware.MODELS:
        ways = hardware.fits(name, here.gib, here.bf16)
        lines.append(f"  {name}: {'fits in ' + ' or '.join(ways) if ways else 'does not fit'}")
    return "\n".join(lines)


def too_small(backbone: str) -> str:
    """Why a backbone can't be run here and what can be done instead, in one sentence; "" where it can, or its size is unknown."""
    if backbone.partition("@")[0] not in hardware.MODELS:
        return ""
    here = gpu()
    ways = {name: hardware.fits(name, here.gib, here.bf16) if here else [] for name in hardware.MODELS}
    own = ways[backbone.partition("@")[0]]
    if {*own} - {"4bit"}:
        return ""
    whole = [name for name, found in ways.items() if {*found} - {"4bit"}]
    said = [
        f"{here.name} ({here.gib:.1f} GiB) is too small for {backbone}"
        if here
        else f"{backbone} needs a GPU",
        f"{', '.join(whole)} fit" if whole else "",
        f"in 4 bit it fits: delivermem run … --backbone {backbone} --quantization 4bit" if own else "",
        "the cached answers need no GPU: leave the parameter backbone empty, and regenerate = False",
    ]
    return "; ".join(filter(None, said))


def drive_folder() -> Path | None:
    """Where Drive keeps what belongs to this package, `delivermem` in My Drive; None outside Colab or where it is not mounted."""
    if "google.colab" not in sys.modules:
        return None
    mounted = Path(os.environ.get("DELIVERMEM_DRIVE", "/content/drive/MyDrive"))
    return mounted / "delivermem" if mounted.is_dir() else None


def embedded(place: Path) -> bool:
    """Whether a file `<benchmark>/<backbone>/<file>` of answers came with the clone, so that Drive need not keep it."""
    benchmark, backbone, *_ = place.parts
    return benchmark in benchmarks.BENCHMARKS and (runs.data_dir() / "models" / backbone).is_dir()


_keepers: list[shards.Keeper] = []


def keep_on(
    to: Path, *, folder: Path | None = None, every: float = shards.EVERY, say: Say = print
) -> shards.Keeper:
    """Give back what `to` keeps of the answers, then copy them there from now on; a second call takes the first's place."""
    folder = folder or runs.data_dir() / "outputs"
    while _keepers:
        _keepers.pop().close()
    back = shards.restore(to, folder)
    say(f"{to}: {back} files of answers given back; they are copied there every {every:.0f} s")
    _keepers.append(shards.Keeper(folder, to, every=every, skip=embedded, say=say))
    return _keepers[0]


def keep() -> bool:
    """Copy now, where answers are kept on Drive; whether nothing is left to copy."""
    done = [keeper.copy() for keeper in _keepers]
    return all(done)


def finish() -> bool:
    """A last copy and, on Colab, Drive unmounted, which waits until it holds what was written; whether the copy succeeded."""
    done = [keeper.close() for keeper in _keepers]
    _keepers.clear()
    if drive_folder() is not None:
        importlib.import_module("google.colab.drive").flush_and_unmount()
    return all(done)


atexit.register(keep)
