"""The README's generated parts: what was measured, and what every notebook takes, each between its marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from delivermem import badges, experiments, runs
from delivermem.notebooks import root

MARKS = {
    "numbers": ("<!-- numbers: made by `delivermem figures` -->", "<!-- /numbers -->"),
    "notebooks": ("<!-- notebooks: made by `delivermem figures` -->", "<!-- /notebooks -->"),
}
HEADLINES = {
    "decomposition.delivery_term": "gold messages: their pixels, delivered against withheld",
    "decomposition.retrieval_term": "pixels delivered: gold messages against the retriever's",
    "decomposition.gap": "gap of the two",
    "controls.mini-memlens.D2_none": "D2, conversations: stamped tags against none",
    "controls.mini-memlens.D3_none": "D3, conversations: dates against none",
    "controls.mini-dmv-10.D2_none": "D2, shop, one question: stamped tags against none",
    "audit.D2_constant.points": "D2, shop, an errand: stamped tags against one symbol on all",
    "audit.D2_none.points": "D2, shop, an errand: stamped tags against none",
    "adapter.mini-dmv-50.R1_whole": "R1, shop, 50 sessions: tiles against whole pictures",
    "cost.mini-memlens-2x.difference_answerable": "twice the conversation: DeliverMem against reading everything",
    "cost.mini-memlens-7.4x.ratio": "tokens of reading everything, 7.4 times the conversation",
}
"""Entries of `figures/numbers.json` that the README shows, and what it calls them."""
SECTIONS = (
    ("The problem; The stage", "00_start_here", "", ()),
    ("A controlled decomposition", "01_decomposition", "fig1", ("decomposition",)),
    ("Counterfactual images", "02_counterfactual_ladder", "fig2", ("ladder",)),
    ("Each decision against its control", "03_delivery_controls", "fig3", ("controls", "adapter")),
    ("Failure analysis", "04_failure_traces", "fig4", ("errand",)),
    ("Cost", "05_cost_curve", "fig5", ("cost", "frontier")),
    ("Results", "06_results", "fig6", ()),
)
"""Section of the paper's page, notebook, how its figures' names begin, the experiments it draws first."""


def numbers_table(numbers: Path | None = None) -> str:
    """HEADLINES as they were measured, with interval and n, and what they were measured on."""
    path = numbers or root() / "figures" / "numbers.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    missing = [name for name in HEADLINES if name not in found]
    if missing:
        raise ValueError(f"{path}: no entry {missing[0]!r}; make it with: delivermem figures")
    rows = ["| measured here | value | 95 % interval | n |", "|---|---|---|---|"]
    for name, label in HEADLINES.items():
        entry = found[name]
        interval = "" if entry.get("low") is None else f"{entry['low']:.1f} to {entry['high']:.1f}"
        sign = "+" if entry["unit"] == "points" else ""
        rows.append(f"| {label} | {entry['value']:{sign}.1f} {entry['unit']} | {interval} | {entry['n']} |")
    about = dict.fromkeys(found[name]["run"] for name in HEADLINES)
    return "\n".join([*rows, "", "Measured on:", "", *(f"- {run}" for run in about)]) + "\n"


def notebooks_table(outputs: Path | None = None, *, where: badges.Address | None = None) -> str:
    """One row a notebook: section, figures, the time that the answers at hand took (by their own `seconds`), and the badge
    that opens it on Colab. where: the repository's address (default: `badges.address()`)."""
    where = where or badges.address()
    rows = [
        "| paper | notebook | figures | from the cache | from scratch | Colab |",
        "|---|---|---|---|---|---|",
    ]
    for section, stem, prefix, names in SECTIONS:
        drawn = sorted(p.stem for p in (root() / "figures").glob(f"{prefix}*.png")) if prefix else []
        figures = ", ".join(f"[`{name.split('_')[0]}`](figures/{name}.png)" for name in drawn)
        commands = ", ".join(f"`delivermem run {name}`" for name in names)
        again = f"{_time(names, outputs)} on a CPU: {commands}" if names else "answers of the others"
        if stem.startswith("00"):
            again = "asks the model live"
        rows.append(
            f"| {section} | [`{stem}`](notebooks/{stem}.ipynb) | {figures or 'prompts as delivered'} "
            f"| CPU, about a minute | {again} | {badges.badge(where, stem) or 'CPU runtime'} |"
        )
    own = "[`90_reference_models`](notebooks/90_reference_models.ipynb)"
    rows.append(
        f"| (not in the paper) | {own} | | by hand | `python -m delivermem.reference.train` and `.siglip` | |"
    )
    return "\n".join(rows) + "\n"


def _time(names: tuple[str, ...], outputs: Path | None) -> str:
    """What the distinct answers of these experiments took, over all folders at hand: minutes, or from 100 on hours."""
    seconds: dict[str, float] = {}
    for folder in runs.folders(outputs):
        for name in names:
            for condition in experiments.find(name).conditions:
                lines: Any = runs.read(folder / f"{condition.name}.jsonl")
                seconds |= {line["key"]: line["seconds"] for line in lines}
    minutes = sum(seconds.values()) / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def refresh(
    path: Path | None = None, numbers: Path | None = None, *, where: badges.Address | None = None
) -> None:
    """Put the current tables between the README's marks; the rest of the file stays as it is."""
    path = path or root() / "README.md"
    text = path.read_text(encoding="utf-8")
    for name, table in (("numbers", numbers_table(numbers)), ("notebooks", notebooks_table(where=where))):
        begin, end = MARKS[name]
        before, _, rest = text.partition(begin)
        _, mark, after = rest.partition(end)
        if not mark:
            raise ValueError(f"{path}: the marks {begin} and {end} are gone; put them back around the table")
        text = f"{before}{begin}\n{table}{end}{after}"
    path.write_text(text, encoding="utf-8", newline="\n")
