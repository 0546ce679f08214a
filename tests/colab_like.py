"""Notebooks on a machine like Colab, by hand: `python tests/colab_like.py FOLDER [01 …]`.

Makes a virtual environment in FOLDER with versions of Colab's kind (older numpy, pandas and matplotlib than the lock's, a
google.colab that does nothing), without some of what this package needs; runs notebook 01, or those named, there with its own
set-up cell; and compares what pip lists before and after. Prints what was installed; fails where a version changed. Needs a package index.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRELOADED = (
    "numpy==2.0.2", "pandas==2.2.2", "matplotlib==3.10.0", "scipy==1.16.1", "seaborn==0.13.2", "statsmodels==0.14.5", "pillow==11.3.0",
    "ipykernel==6.17.1", "nbclient", "nbformat", "jupyter-client<8", "tqdm", "requests", "pip",
)  # fmt: skip
"""As Colab's images of 2025 have them; torch and transformers at the lock's versions."""


def run(*words: str, **more: object) -> str:
    done = subprocess.run(list(words), capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{' '.join(words)[:200]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return str(done.stdout)


def listed(python: Path) -> dict[str, str]:
    found = json.loads(run(str(python), "-m", "pip", "list", "--format=json"))
    return {row["name"].lower(): row["version"] for row in found}


def main(folder: Path, numbers: list[str]) -> None:
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", str(folder / "venv"))
    lock = dict(
        line.split("==")
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    )
    more = [f"{name}=={lock[name]}" for name in ("torch", "transformers", "tokenizers", "safetensors")]
    run(str(python), "-m", "pip", "install", "--quiet", *PRELOADED, *more)
    site = Path(run(str(python), "-c", "import site; print(site.getsitepackages()[0])").strip())
    package = site / "google" / "colab"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "drive.py").write_text("def flush_and_unmount():\n    pass\n")
    (site / "colab_like.pth").write_text("import google.colab\n")  # loaded, as Colab's kernel has it
    before = listed(python)
    content = folder / "content"
    content.mkdir(exist_ok=True)
    if not (content / "delivermem").exists():
        run("git", "clone", "--quiet", str(ROOT), str(content / "delivermem"))
    script = (
        "import nbformat, nbclient, sys\n"
        "notebook = nbformat.read(sys.argv[1], as_version=4)\n"
        "client = nbclient.NotebookClient(notebook, timeout=1200, kernel_name='python3', resources=dict(metadata=dict(path=sys.argv[2])))\n"
        "client.execute()\n"
        "said = [o.text for c in notebook.cells for o in c.get('outputs', ()) if o.output_type == 'stream']\n"
        "pictures = sum('image/png' in o.get('data', {}) for c in notebook.cells for o in c.get('outputs', ()))\n"
        "print(''.join(said)); print(pictures, 'figures')\n"
    )
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env["DELIVERMEM_FIGURES"] = str(folder / "figures")
    for number in numbers:
        (notebook,) = (content / "delivermem" / "notebooks").glob(f"{number}_*.ipynb")
        print(f"{notebook.name}:", run(str(python), "-c", script, str(notebook), str(content), env=env))
    after = listed(python)
    moved = {
        name: (version, after.get(name)) for name, version in before.items() if after.get(name) != version
    }
    new = sorted(f"{name} {after[name]}" for name in after.keys() - before.keys())
    print(f"{len(before)} distributions before, {len(new)} more after: {', '.join(new)}")
    if moved:
        raise SystemExit(f"versions changed: {moved}")
    print("none of those before changed")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:] or ["01"])
