"""The cached answers of errands as DMV-Bench's released metrics write theirs: a row a probe, and a row a system.

Columns, names of files, rounding and line ends are its own, so that its tools read them. Source: DMV-Bench
(arXiv 2606.27499), the released metrics of design v6.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from delivermem import runs
from delivermem.experiments import find

PER_PROBE, SUMMARY = "f2_per_probe.csv", "f2_summary.csv"
COLUMNS = (
    "system", "task_id", "probe_id", "at_session", "target_session", "reach", "correct", "target_url", "final_url",
    "vlm_calls",
)  # fmt: skip
NONE = -1.0
"""What stands for the recall at a reach of which a system has no probe."""
_ID = re.compile(r"(?P<task>.+)-(?P<probe>s(?P<at>\d+)_r(?P<reach>\d+)_p\d+(?:_mc)?)")


def write(
    benchmark: str, backbone: str, *, outputs: Path | None = None, to: Path | None = None
) -> list[Path]:
    """Write both files from the errands that are cached for a benchmark and a backbone (by its folder's name).

    Each condition is a system. outputs: the folder that holds <benchmark>/<backbone>/ (default: data/outputs). to: where
    the files go (default: results/<benchmark>/<backbone> where one is). Their format knows right and wrong alone: where an
    answer is neither, as its call failed, this is a RunError, for a failure is no miss.
    """
    folder = (outputs or runs.data_dir() / "outputs") / benchmark / backbone
    rows = [
        probe(line)
        for arm in sorted(arm.name for arm in find("errand").conditions)
        for line in _judged(folder / f"{arm}.jsonl")
    ]
    if not rows:
        raise runs.RunError(
            f"{folder} holds no errands; make them with: delivermem run errand --benchmark {benchmark}"
        )
    place = to or Path("results") / benchmark / backbone
    place.mkdir(parents=True, exist_ok=True)
    return [_write(place / PER_PROBE, COLUMNS, rows), _write(place / SUMMARY, *_summary(rows))]


def probe(line: Mapping[str, Any]) -> dict[str, Any]:
    """A row of COLUMNS from a cached line of an errand; RunError where its question is no probe."""
    match = _ID.fullmatch(line["question_id"])
    if match is None:
        raise runs.RunError(
            f"question {line['question_id']!r} is no probe of a chain; write the CSV of a benchmark of errands"
        )
    at, reach = int(match["at"]), int(match["reach"])
    return dict(
        system=line["condition"],
        task_id=match["task"],
        probe_id=match["probe"],
        at_session=at,
        target_session=at - reach,
        reach=reach,
        correct=int(line["verdict"] == "right"),
        target_url=f"/product/{line['expected']}",
        final_url=f"/product/{line['answer']}" if line["answer"] else "",
        vlm_calls=sum(bool(step["prompt"]) for step in line[runs.STEPS]),
    )


def _judged(path: Path) -> list[dict[str, Any]]:
    lines = list(runs.read(path))
    open_ = [line for line in lines if line["verdict"] == "unjudged"]
    if open_:
        raise runs.RunError(
            f"{path}: {len(open_)} of {len(lines)} answers are neither right nor wrong, {open_[0]['question_id']} first "
            f"({open_[0]['rule']}); run again, which asks for the failed ones anew"
        )
    return lines


def _summary(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """SR is the mean over all probes. injection_placed is 0: in design v6 cues are in the pictures from the start, and none
    is placed at run time."""
    reaches = range(1, max(row["reach"] for row in rows) + 1)
    table = []
    for system in sorted({row["system"] for row in rows}):
        own = [row for row in rows if row["system"] == system]
        found: dict[str, Any] = dict(
            system=system,
            SR=round(float(mean(row["correct"] for row in own)), 4),
            injection_placed=0.0,
            n_recall_tasks=len(own),
        )
        for reach in reaches:
            right = [row["correct"] for row in own if row["reach"] == reach]
            found[f"recall_at_reach_{reach}"] = round(float(mean(right)), 4) if right else NONE
        table.append(found)
    return tuple(table[0]), table


def _write(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(rows)
    return path
