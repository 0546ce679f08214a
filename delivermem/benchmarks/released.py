"""What is taken at run time from a checkout of MemLens's released evaluation code: nothing of it is copied here."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from pathlib import Path

from delivermem import pins
from delivermem.runs import data_dir


class CheckoutError(ValueError):
    """A checkout that is not there, or not the pinned one: one sentence with the folder and the cure."""


@dataclass(frozen=True)
class Words:
    """How the released evaluator asks a model that reads everything: its system message and its last message."""

    system: str
    template: str
    instruction: str

    def question(self, text: str, date: str) -> str:
        """The last message; a question without a date has `unknown`, as the released code gives it."""
        return self.template.format(
            instruction=self.instruction, question_date=date or "unknown", question=text
        )


def folder() -> Path:
    """Where `delivermem fetch memlens-judge` puts the checkout."""
    return data_dir() / "benchmarks" / "memlens-judge"


def verified(checkout: Path | None = None, commit: str | None = None) -> Path:
    """The checkout, at that commit (default: the pinned one) and unchanged; anything else is a CheckoutError that says how to have it."""
    place, commit = checkout or folder(), commit or pins.MEMLENS_CODE[1]
    cure = "fetch it with: delivermem fetch memlens-judge"
    if not (place / ".git").exists():
        raise CheckoutError(f"{place}: MemLens's released evaluation code is not there; {cure}")
    if (head := git(place, "rev-parse", "HEAD")) != commit:
        raise CheckoutError(f"{place}: it is at commit {head[:12]}, not {commit[:12]}; remove it and {cure}")
    if changed := git(place, "status", "--porcelain", "--ignored"):
        kept = [line for line in changed.splitlines() if not line.rstrip("/").endswith("__pycache__")]
        if kept:
            raise CheckoutError(f"{place}: {kept[0].split()[-1]} is not as published; remove it and {cure}")
    return place


def git(place: Path | None, *words: str) -> str:
    """What git says; where it fails, a CheckoutError with its last line."""
    at = [] if place is None else ["-C", str(place)]
    done = subprocess.run(["git", *at, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckoutError(f"git {words[0]} {place or ''}: {said}; look at that folder and try again")
    return done.stdout.strip()


def words(checkout: Path | None = None, commit: str | None = None) -> Words:
    """The evaluator's own words, read from its source without running it."""
    path = verified(checkout, commit) / "data.py"
    wanted = ("SYSTEM_TEMPLATE", "QUESTION_TEMPLATE", "INSTRUCTION_DEFAULT")
    found = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        name = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(name, ast.Name) and name.id in wanted:
            found[name.id] = str(ast.literal_eval(node.value))
    missing = [name for name in wanted if name not in found]
    if missing:
        raise CheckoutError(f"{path}: it states no {missing[0]}; is this MemLens's released evaluation code?")
    return Words(*(found[name] for name in wanted))
