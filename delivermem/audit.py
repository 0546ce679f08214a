"""The audit of failing errands: what a table of traces amounts to, by the rules of `traces` and `mentions`.

Source: "Retrieved but Not Delivered" (arXiv 2609.32590), failure analysis: of its failures, how many open a neighbour
while the target is in context, and how many of those name the target's cue.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from delivermem import stats
from delivermem.mentions import Cue, by_sentence, by_window
from delivermem.traces import (
    FAILURES,
    NAMINGS,
    NEIGHBOUR,
    Finding,
    Rule,
    Trace,
    classify,
    codes_of,
    cues_of,
    reasoning,
    trace_of,
)

if TYPE_CHECKING:
    import pandas as pd

    from delivermem.records import Question

__all__ = [
    "FAILURES", "NAMINGS", "NEIGHBOUR", "SHARES", "Finding", "Trace", "agreement", "as_html", "by_sentence",
    "by_window", "classify", "codes_of", "cues_of", "distances", "example", "findings", "reasoning", "sample",
    "shares", "table", "trace_of",
]  # fmt: skip

SHARES = {
    "in context": "of all failures: the target was delivered to the deciding step",
    "neighbour": "of all failures: a neighbour was opened, the target in context",
    "named": "of those: the trace names the target's cue",
    "elsewhere": "of those in turn: it gives the cue to an item that is not the target",
}
"""What `shares` measures; the last two are each among what the one before leaves."""
ARM = (*stats.SETTING, "condition")


def findings(
    answers: pd.DataFrame,
    questions: Iterable[Question],
    cues: Mapping[str, Cue],
    rule: Rule = by_sentence,
) -> pd.DataFrame:
    """One row per probe and arm: benchmark, backbone, k, condition, question_id, cluster, asked (the cue), the
    fields of Finding, and distance, places from the target to the opened neighbour in the order of delivery (NaN where
    no neighbour was opened).

    answers: from `runs.load`, of one benchmark, with `steps`; cues: from `cues_of`.
    """
    import pandas as pd

    asked, rows = {question.id: question for question in questions}, []
    for row in answers.to_dict("records"):
        name = row["question_id"]
        if name not in asked or name not in cues:
            raise ValueError(f"question {name!r} is unknown; give the questions and cues of its benchmark")
        found = classify(trace_of(row, asked[name], cues[name]), rule)
        away = found.opened - found.target if found.failure in NEIGHBOUR else math.nan
        names = {column: row[column] for column in (*ARM, "question_id", "cluster")}
        rows.append(names | {"asked": " ".join(cues[name])} | found._asdict() | {"distance": away})
    columns = [*ARM, "question_id", "cluster", "asked", *Finding._fields, "distance"]
    return pd.DataFrame(rows, columns=columns).sort_values([*ARM, "question_id"], ignore_index=True)


def table(found: pd.DataFrame) -> pd.DataFrame:
    """One row per arm: probes, right, unjudged (failed calls among them), failures, how many of these are of each class
    of FAILURES, and astray, how many asked for a page or link that does not exist. Probes that an arm could not be had
    for are not counted."""
    import pandas as pd

    rows = []
    for key, part in found[found["state"] != "not_applicable"].groupby(list(ARM), sort=True):
        count = part["state"].value_counts()
        counts = {"probes": len(part), "right": count.get("right", 0)}
        counts |= {
            "unjudged": count.get("unjudged", 0) + count.get("failed", 0),
            "failures": count.get("wrong", 0),
        }
        classes = {name: int((part["failure"] == name).sum()) for name in FAILURES}
        classes["astray"] = int(((part["state"] == "wrong") & (part["astray"] > 0)).sum())
        rows.append(dict(zip(ARM, key, strict=True)) | counts | classes)
    return pd.DataFrame(rows, columns=[*ARM, "probes", "right", "unjudged", "failures", *FAILURES, "astray"])


def shares(found: pd.DataFrame, *, seed: int, resamples: int = 10_000) -> pd.DataFrame:
    """The shares of SHARES, one row per arm and share: estimate, low, high (percent), held (how many), n, clusters.

    The interval resamples chains, as in `stats.accuracy`. Where there is nothing to share, n is 0 and the estimate NaN.
    """
    import pandas as pd

    wrong = found[found["state"] == "wrong"]
    near = wrong[wrong["failure"].isin(NEIGHBOUR)]
    named = near[near["failure"] == "cue named"]
    of = {
        "in context": (wrong, wrong["in_context"]),
        "neighbour": (wrong, wrong["failure"].isin(NEIGHBOUR)),
        "named": (near, near["failure"] == "cue named"),
        "elsewhere": (named, named["to"].isin(["opened", "another"])),
    }
    tables = []
    arms = table(found)[list(ARM)]
    for share, (part, holds) in of.items():
        judged = part.assign(
            verdict=np.where(holds, "right", "wrong"),
            status="ok",
            kind="recall",
            refused=False,
            recall=math.nan,
        )
        wanted = ["estimate", "low", "high", "right", "n", "clusters"]
        rows = pd.DataFrame(columns=[*ARM, *wanted])
        if len(judged):
            rows = stats.accuracy(judged, ARM, seed=seed, resamples=resamples)[[*ARM, *wanted]]
        rows = arms.merge(rows, how="left", on=list(ARM)).assign(share=share)
        tables.append(rows.fillna({"n": 0, "clusters": 0, "right": 0}).rename(columns={"right": "held"}))
    return pd.concat(tables, ignore_index=True).astype(
        {**dict.fromkeys(wanted[:3], float), **dict.fromkeys(("held", "n", "clusters"), int)}
    )


def distances(found: pd.DataFrame) -> pd.DataFrame:
    """Where the opened neighbour stands from the target: one row per arm and distance, from -(K - 1) to K - 1.

    distance is negative where the neighbour was delivered before the target. count; share (percent); alike: the share
    if every neighbour had been opened equally often; n: the arm's failures with a neighbour opened.
    """
    import pandas as pd

    rows = []
    for arm in table(found)[list(ARM)].to_dict("records"):
        part = found[(found[list(ARM)] == pd.Series(arm)).all(axis=1) & found["distance"].notna()]
        reach, n = int(arm["k"]) - 1, len(part)
        alike = dict.fromkeys(range(-reach, reach + 1), 0.0)
        for target, delivered in zip(part["target"], part["delivered"], strict=True):
            for place in {*range(1, delivered + 1)} - {target}:
                alike[place - target] += 100 / (delivered - 1) / n
        for away in sorted({*alike} - {0}):
            count = int((part["distance"] == away).sum())
            measured = {"distance": away, "count": count, "share": 100 * count / n if n else math.nan}
            rows.append(arm | measured | {"alike": alike[away] if n else math.nan, "n": n})
    return pd.DataFrame(rows, columns=[*ARM, "distance", "count", "share", "alike", "n"])


def agreement(first: pd.DataFrame, second: pd.DataFrame, column: str = "failure") -> pd.DataFrame:
    """How often two rules find the same: one row per class and `all`, with n, share (percent) and Cohen's kappa.

    first, second: `findings` of the same probes. column: failure, over the failing probes, or naming, over all that
    have steps. A class's row takes the rest together: n counts the probes that either rule puts there, share those that
    both do, kappa is over all. In `all`, n counts every probe. kappa is NaN where nothing varies. Source: Cohen 1960,
    as computed by statsmodels.
    """
    import pandas as pd
    from statsmodels.stats.inter_rater import cohens_kappa

    keys = [*ARM, "question_id"]
    both = first[[*keys, "step", column]].merge(second[[*keys, column]], on=keys, suffixes=("_1", "_2"))
    if not len(first) == len(second) == len(both):
        raise ValueError("the two tables are not of the same probes; give the findings of the same answers")
    both = both[(both[f"{column}_1"] != "") & (both["step"] > 0)]
    a, b = both[f"{column}_1"], both[f"{column}_2"]
    classes = [name for name in (*FAILURES, *NAMINGS) if name in {*a, *b}]
    rows = []
    for name in (*classes, "all"):
        x, y = (a, b) if name == "all" else (a == name, b == name)
        labels = sorted({*x, *y})
        cells = pd.crosstab(x, y).reindex(index=labels, columns=labels, fill_value=0).to_numpy()
        kappa = float(cohens_kappa(cells, return_results=False)) if len(labels) > 1 else math.nan
        n = len(x) if name == "all" else int((x | y).sum())
        same = int((x == y).sum()) if name == "all" else int((x & y).sum())
        rows.append({"class": name, "n": n, "share": 100 * same / n if n else math.nan, "kappa": kappa})
    return pd.DataFrame(rows)


def sample(found: pd.DataFrame, n: int = 30, seed: int = 0) -> pd.DataFrame:
    """At most n failing probes drawn at random, in the order of the table: the same for any order of its rows."""
    wrong = found[found["state"] == "wrong"].sort_values([*ARM, "question_id"], ignore_index=True)
    chosen = np.random.default_rng(seed).permutation(len(wrong))[:n]
    return wrong.iloc[np.sort(chosen)].reset_index(drop=True)


def as_html(rows: pd.DataFrame) -> str:
    """Findings as an HTML table, all that was said escaped, the mention that decided between <mark> tags."""
    head = ("arm", "probe", "asked for", "class", "naming", "given to", "target, opened", "reasoning")
    lines = ["<table>", "<tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"]
    for row in rows.to_dict("records"):
        (start, end), said = row["mark"], row["said"]
        parts = [html.escape(part) for part in (said[:start], said[start:end], said[end:])]
        marked = f"{parts[0]}<mark><b>{parts[1]}</b></mark>{parts[2]}" if end else html.escape(said)
        names = ("condition", "question_id", "asked", "failure", "naming", "to")
        cells = [html.escape(str(row[name])) for name in names]
        cells += [f"{row['target']}, {row['opened']} of {row['delivered']}", marked.replace("\n", "<br>")]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join([*lines, "</table>"])


def example(found: pd.DataFrame, conditions: Sequence[str]) -> tuple[dict[str, Any], str]:
    """The worked example, and the rule that chose it; by order of ids, in the first of those conditions that has one.

    The first failing probe that had its target in context and names the cue; else the first failing one that had its
    target in context; else the first right one. ValueError without any.
    """
    rows = found.sort_values("question_id")
    wrong = (rows["state"] == "wrong") & rows["in_context"]
    named = wrong & (rows["naming"] == "asserted")
    for said, holds in (
        ("the first failing probe that had its target in context and names the cue", named),
        ("no failing probe names the cue: the first that had its target in context", wrong),
        ("no probe fails with its target in context: the first that is right", rows["state"] == "right"),
    ):  # fmt: skip
        for condition in conditions:
            part = rows[holds & (rows["condition"] == condition)]
            if len(part):
                return part.to_dict("records")[0], f"{said}, of {condition}"
    raise ValueError(f"no judged probe under {', '.join(conditions)}; run the errand first")
