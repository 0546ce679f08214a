"""Statistics: a table of answers in, a table of estimates out.

A table holds one answer a row (`delivermem.load`). Questions are paired by id; intervals resample whole
conversations (`cluster`), whose questions are not independent. A failed or unjudged answer is never counted
as wrong. The order of rows never matters, and a seed gives the same numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from delivermem.significance import cluster_bootstrap, discordant, generator, holm, mcnemar, sign_test

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "SETTING", "TERMS", "PairedTerm", "accuracy", "contrasts", "decomposition", "discordant", "failures", "holm",
    "mcnemar", "numbers", "paired_term", "sign_test",
]  # fmt: skip

Missing = Literal["refuse", "intersection"]

TERMS: dict[str, tuple[str, str]] = {
    "delivery": ("gold-pixels", "gold-text"),
    "retrieval": ("gold-pixels", "bm25-pixels"),
    "gap": ("bm25-pixels", "gold-text"),
    "recent": ("recent-pixels", "bm25-pixels"),
    "random": ("random-pixels", "bm25-pixels"),
}
"""Each term is accuracy in its first condition minus accuracy in its second. gap = delivery - retrieval: the
corner gold-pixels cancels. recent and random are the query-blind selections against the retriever."""

JUDGED = ("right", "wrong")
QUERY_BLIND = ("recent", "random")
COLUMNS = ("question_id", "kind", "cluster", "condition", "status", "verdict", "refused", "recall")
SETTING = ("benchmark", "backbone", "k")


class PairedTerm(NamedTuple):
    """A paired difference of two conditions over the same questions.

    points, low, high: percentage points, treated minus control. n questions in `clusters` conversations;
    left_out: questions dropped, as a control could not be had or by `missing="intersection"`. fixed: right in treated, wrong in control;
    broken: the reverse. p: exact McNemar over questions, the paper's test, which overstates where questions
    of one conversation depend on one another; p_cluster: sign test over conversations, which does not.
    """

    points: float
    low: float
    high: float
    n: int
    clusters: int
    fixed: int
    broken: int
    p: float
    p_cluster: float
    left_out: int = 0


def paired_term(
    table: pd.DataFrame,
    treated: str,
    control: str,
    *,
    rng: np.random.Generator,
    resamples: int = 10_000,
    level: float = 0.95,
    missing: Missing = "refuse",
) -> PairedTerm:
    """Accuracy under condition `treated` minus accuracy under `control`, paired by question.

    table: answers of one benchmark, backbone and replicate. The interval is the percentile bootstrap over
    conversations (over questions where each is its own conversation, or none is known); fewer than two give
    NaN. An unjudged or failed answer, or a question asked in one arm only, is a ValueError; with
    missing="intersection" such questions leave both arms, and the result states n and left_out.
    """
    a, b = _arm(table, treated), _arm(table, control)
    judged, left_out = _common({treated: a, control: b}, missing)
    right_a = {q: a[q].state == "right" for q in judged}
    right_b = {q: b[q].state == "right" for q in judged}
    fixed, broken = discordant(right_a, right_b)
    sums: Counter[tuple[str, str]] = Counter()
    for q in judged:
        sums[a[q].cluster] += right_a[q] - right_b[q]
    sizes = Counter(a[q].cluster for q in judged)
    low, high = cluster_bootstrap(sums, sizes, rng=rng, resamples=resamples, level=level)
    points = 100 * (fixed - broken) / len(judged)
    p, p_cluster = mcnemar(fixed, broken), sign_test(sums.values())
    return PairedTerm(points, low, high, len(judged), len(sizes), fixed, broken, p, p_cluster, left_out)


def decomposition(
    table: pd.DataFrame,
    *,
    seed: int,
    resamples: int = 10_000,
    level: float = 0.95,
    missing: Missing = "refuse",
) -> pd.DataFrame:
    """The terms of `TERMS` over the answerable questions, one row per benchmark, backbone, K and term.

    Columns: benchmark, backbone, k, term, treated, control, then the fields of PairedTerm. The three
    conditions of the first three terms are required; the query-blind terms appear where they were run.
    missing="intersection" keeps the questions judged in every condition used, so the corner still cancels.
    Source: "Retrieved but Not Delivered" (arXiv 2609.32590), the controlled decomposition.
    """
    import pandas as pd

    rows = []
    for setting, part in _groups(table, SETTING, answerable=True):
        run = set(part["condition"])
        terms = {t: pair for t, pair in TERMS.items() if t not in QUERY_BLIND or run.issuperset(pair)}
        used = {condition for pair in terms.values() for condition in pair}
        whole, left_out = _common({condition: _arm(part, condition) for condition in sorted(used)}, missing)
        kept = part[part["question_id"].isin(whole)]
        for term, (treated, control) in terms.items():
            rng = generator(seed, *setting.values(), term)
            found = paired_term(kept, treated, control, rng=rng, resamples=resamples, level=level)
            names = {"term": term, "treated": treated, "control": control}
            rows.append(setting | names | found._replace(left_out=left_out)._asdict())
    return pd.DataFrame(rows)


def contrasts(
    table: pd.DataFrame,
    pairs: Mapping[str, tuple[str, str]],
    *,
    seed: int,
    resamples: int = 10_000,
    level: float = 0.95,
    missing: Missing = "refuse",
) -> pd.DataFrame:
    """Paired differences of named pairs of conditions, one row per benchmark, backbone, K and name.

    pairs: name -> (treated, control). Columns: benchmark, backbone, k, name, treated, control, the fields of PairedTerm,
    and p_holm, p_cluster_holm: each p adjusted by Holm over the names of its setting, which are one declared family.
    Answerable questions alone, as in `decomposition`.
    """
    import pandas as pd

    rows = []
    for setting, part in _groups(table, SETTING, answerable=True):
        family = []
        for name, (treated, control) in pairs.items():
            rng = generator(seed, *setting.values(), name)
            found = paired_term(
                part, treated, control, rng=rng, resamples=resamples, level=level, missing=missing
            )
            family.append(setting | {"name": name, "treated": treated, "control": control} | found._asdict())
        for p in ("p", "p_cluster"):
            for row, adjusted in zip(family, holm([row[p] for row in family]), strict=True):
                row[f"{p}_holm"] = adjusted
        rows += family
    return pd.DataFrame(rows)


def accuracy(
    table: pd.DataFrame,
    by: Sequence[str] = (*SETTING, "condition"),
    *,
    seed: int,
    resamples: int = 10_000,
    level: float = 0.95,
) -> pd.DataFrame:
    """Accuracy per group of `by`: estimate, low, high (percent), n, clusters and counts.

    estimate = right / n with n = right + wrong, NaN where n = 0; failed and unjudged answers are counted
    beside it, and at_least, at_most are the estimate if all of them were wrong, or right. refused: refusals
    among the n. recall: mean share of gold records delivered, percent. The interval resamples conversations;
    where all answers are right, or all wrong, a bootstrap can't vary, and the interval is the exact binomial
    one with conversations as trials, whose open end is 100 (alpha / 2)^(1 / clusters) from the far side.
    """
    import pandas as pd

    rows = []
    for group, part in _groups(table, by):
        part = part[part["status"] != "not_applicable"]
        if part.empty:
            continue
        states = [_state(s, v) for s, v in zip(part["status"], part["verdict"], strict=True)]
        count = Counter(states)
        n, asked = count["right"] + count["wrong"], len(states)
        sets = part["benchmark"] if "benchmark" in part else [""] * asked
        units = [
            (str(b), *_cluster(*ids))
            for b, *ids in zip(sets, part["cluster"], part["question_id"], strict=True)
        ]
        sizes = Counter(unit for unit, state in zip(units, states, strict=True) if state in JUDGED)
        right = Counter(unit for unit, state in zip(units, states, strict=True) if state == "right")
        refused = sum(bool(r) for r, state in zip(part["refused"], states, strict=True) if state in JUDGED)
        rng = generator(seed, *group.values())
        low, high = cluster_bootstrap(right, sizes, rng=rng, resamples=resamples, level=level)
        if n and count["right"] in (0, n):
            end = 100 * ((1 - level) / 2) ** (1 / len(sizes))
            low, high = (end, 100.0) if count["right"] else (0.0, 100 - end)
        found = {"estimate": 100 * count["right"] / n if n else math.nan, "low": low, "high": high, "n": n}
        found |= {
            "clusters": len(sizes),
            "right": count["right"],
            "wrong": count["wrong"],
            "refused": refused,
        }
        found |= {"unjudged": count["unjudged"], "failed": count["failed"]}
        found |= {"at_least": 100 * count["right"] / asked, "at_most": 100 - 100 * count["wrong"] / asked}
        rows.append(group | found | {"recall": 100 * part["recall"].astype(float).mean()})
    return pd.DataFrame(rows)


def failures(
    table: pd.DataFrame,
    treated: str = "gold-pixels",
    control: str = "gold-text",
    *,
    missing: Missing = "refuse",
) -> pd.DataFrame:
    """How `control` fails on the answerable questions that `treated` fixes; a row per benchmark, backbone, K.

    Columns: benchmark, backbone, k, n (questions in both), fixed, confident_wrong (another answer), refusal.
    missing as in `paired_term`.
    """
    import pandas as pd

    rows = []
    for setting, part in _groups(table, SETTING, answerable=True):
        a, b = _arm(part, treated), _arm(part, control)
        questions, _ = _common({treated: a, control: b}, missing)
        fixed = [q for q in questions if a[q].state == "right" and b[q].state == "wrong"]
        refusal = sum(b[q].refused for q in fixed)
        counts = {"n": len(questions), "fixed": len(fixed)}
        rows.append(setting | counts | {"confident_wrong": len(fixed) - refusal, "refusal": refusal})
    return pd.DataFrame(rows)


def numbers(terms: pd.DataFrame, counts: pd.DataFrame, *, run: str = "") -> dict[str, dict[str, Any]]:
    """The named numbers of one decomposition, for `figures.record_numbers`.

    terms: from `decomposition`; counts: from `failures`; both of one benchmark and backbone.
    """
    rows = {row["term"]: row for row in terms.to_dict("records")}
    if len(rows) != len(terms) or len(counts) != 1:
        raise ValueError("numbers are named for one benchmark, backbone and K; select one in both tables")
    delivery, gap, only = rows["delivery"], rows["gap"], counts.to_dict("records")[0]
    named: dict[str, tuple[Any, int, str]] = {
        "gap_p": (gap["p"], gap["n"], "p (exact McNemar over questions)"),
        "gap_p_cluster": (gap["p_cluster"], gap["clusters"], "p (sign test over conversations)"),
        "fixed": (delivery["fixed"], delivery["n"], "questions"),
        "broken": (delivery["broken"], delivery["n"], "questions"),
        "confident_wrong": (only["confident_wrong"], only["fixed"], "questions"),
    }
    plain = {name: {"value": value, "n": n, "unit": unit} for name, (value, n, unit) in named.items()}
    for term, name in (("delivery", "delivery_term"), ("retrieval", "retrieval_term"), ("gap", "gap")):
        interval = {key: rows[term][key] for key in ("low", "high", "n")}
        plain[name] = {"value": rows[term]["points"], **interval, "unit": "points"}
    return {f"decomposition.{name}": {**entry, "run": run} for name, entry in plain.items()}


class _Scored(NamedTuple):
    state: str
    cluster: tuple[str, str]
    refused: bool


def _judged(scored: _Scored) -> bool:
    return scored.state in JUDGED


def _state(status: str, verdict: str) -> str:
    if status not in ("ok", "failed", "not_applicable") or verdict not in ("right", "wrong", "unjudged"):
        raise ValueError(f"an answer has status {status!r} and verdict {verdict!r}; see delivermem.records")
    return verdict if status == "ok" else status


def _cluster(cluster: object, question: str) -> tuple[str, str]:
    """The conversation of a question; the question itself where none is known."""
    unknown = cluster is None or cluster == "" or (isinstance(cluster, float) and math.isnan(cluster))
    return ("question", str(question)) if unknown else ("cluster", str(cluster))


def _arm(table: pd.DataFrame, condition: str) -> dict[str, _Scored]:
    rows = table[table["condition"] == condition]
    if rows.empty:
        known = ", ".join(sorted(set(table["condition"])))
        raise ValueError(f"no answers under condition {condition!r}; the table has: {known}")
    arm: dict[str, _Scored] = {}
    columns = (rows[name] for name in ("question_id", "status", "verdict", "cluster", "refused"))
    for question, status, verdict, cluster, refused in zip(*columns, strict=True):
        if question in arm:
            raise ValueError(
                f"question {question!r} has several answers under {condition!r}; "
                "select one benchmark, backbone and replicate"
            )
        arm[question] = _Scored(_state(status, verdict), _cluster(cluster, question), bool(refused))
    return arm


def _common(arms: Mapping[str, Mapping[str, _Scored]], missing: Missing) -> tuple[list[str], int]:
    """Questions with a judged answer in every arm, sorted, and how many others were asked in some arm. A question that
    a control could not be put for leaves every arm."""
    if missing not in get_args(Missing):
        raise ValueError(f"missing={missing!r} is unknown; choose one of {', '.join(get_args(Missing))}")
    asked = set().union(*arms.values())
    every = asked - {q for arm in arms.values() for q in arm if arm[q].state == "not_applicable"}
    arms = {name: {q: arm[q] for q in every & arm.keys()} for name, arm in arms.items()}
    cure = "finish the run or its judging, or pass missing='intersection'"
    for condition, arm in arms.items() if missing == "refuse" else ():
        open_ones = sorted(q for q in arm if not _judged(arm[q]))
        if open_ones:
            states = " or ".join(sorted({arm[q].state for q in open_ones}))
            what = f"{len(open_ones)} {states} answers (first: {open_ones[0]!r})"
            raise ValueError(f"condition {condition!r} has {what}; {cure}")
        if len(arm) < len(every):
            first = min(every - arm.keys())
            count = len(every) - len(arm)
            raise ValueError(f"condition {condition!r} lacks {count} questions ({first!r}); {cure}")
    common = sorted(q for q in every if all(q in arm and _judged(arm[q]) for arm in arms.values()))
    if not common:
        raise ValueError(f"no question has a judged answer in all of {', '.join(arms)}")
    return common, len(asked) - len(common)


def _groups(
    table: pd.DataFrame, by: Sequence[str], *, answerable: bool = False
) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """({column: value}, rows) per group, in the order of keys; no rows is a ValueError."""
    lacking = [name for name in (*by, *COLUMNS) if name not in table]
    if lacking:
        raise ValueError(f"the table of answers lacks the columns {', '.join(lacking)}")
    rows = table[table["kind"] != "answer_refusal"] if answerable else table
    if rows.empty:
        raise ValueError(f"the table holds no {'answerable question' if answerable else 'answer'}")
    for key, part in rows.groupby(list(by), sort=True, dropna=False):
        yield dict(zip(by, key, strict=True)), part
