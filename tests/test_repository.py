"""The repository's own promises: one set of versions, the user's top level, nothing of one machine."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
RANGES = [Requirement(text) for text in PROJECT["project"]["dependencies"] + EXTRAS["dev"]]
LOCK = {
    re.sub(r"[-_.]+", "-", name).lower(): Version(version)
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.lock").read_text(), re.M)
}


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_the_top_level_is_the_users():
    fixed = {"notebooks", "delivermem", "figures", "data", "tests", "environment.yml", "README.md"}
    tools = {
        "pyproject.toml",
        "requirements.lock",
        "Makefile",
        ".ci",
        "LICENSE",
        "CITATION.cff",
        "CHANGELOG.md",
    }
    tools |= {"CONTRIBUTING.md", ".gitignore"}
    assert {path.relative_to(ROOT).parts[0] for path in _tracked()} == fixed | tools


@pytest.mark.parametrize("requirement", RANGES, ids=str)
def test_the_lock_satisfies_every_range_and_no_range_has_an_upper_end(requirement):
    assert requirement.specifier.contains(LOCK[requirement.name.lower()])
    assert {specifier.operator for specifier in requirement.specifier} == {">="}


def test_the_extras_are_there_and_unpinned():
    assert set(EXTRAS) == {"gpu", "serve", "ray", "bench", "dev"}
    for extra in EXTRAS.values():
        assert all({s.operator for s in Requirement(text).specifier} == {">="} for text in extra)


def test_the_lock_is_whole_and_plain():
    lines = [
        line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")
    ]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    assert LOCK["torch"] == Version("2.13.0") and "torchvision" not in LOCK


def test_conda_users_get_the_same_versions():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    *packages, pip = environment["dependencies"]
    assert environment["name"] == PROJECT["project"]["name"]
    assert pip == {"pip": ["-r requirements.lock", "--no-deps -e ."]}
    python = next(p for p in packages if p.startswith("python="))
    assert Requirement(f"python{PROJECT['project']['requires-python']}").specifier.contains(
        python.split("=")[1]
    )


def test_ci_does_what_the_readme_says_and_nothing_else():
    script = (ROOT / ".ci/run").read_text()
    commands = [line for line in script.splitlines() if line and not line.startswith(("#", "set ", "cd "))]
    assert commands == ["exec make test"]
    assert (
        "make figures" in (ROOT / "README.md").read_text() and "make test" in (ROOT / "README.md").read_text()
    )


def test_the_citation_names_the_paper_as_a_reference():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["type"] == "software"
    (paper,) = citation["references"]
    assert "2609.32590" in paper["url"] and len(paper["authors"]) == 6


def test_no_tracked_text_names_a_machine():
    """No absolute path of anybody's machine and no address of a package registry."""
    told = re.compile(
        r"(?<![\w.:/~-])/(?:home|root|work|Users|tmp|opt)/\w|pypi\.org|registry\.npmjs|simple/\w"
    )
    for path in _tracked():
        if path.suffix in (".safetensors", ".png", ".pdf", ".jsonl") or path == Path(__file__):
            continue
        found = told.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{path.relative_to(ROOT)}: {found and found.group()!r}"


def test_nothing_tracked_is_large_or_pickled():
    for path in _tracked():
        assert path.stat().st_size < 25_000_000, path
        assert path.suffix not in (".pkl", ".pickle", ".pt", ".pth", ".bin"), path
