"""Statistics: a table of answers in, a table of estimates out.

A table holds one answer a row (`delivermem.load`). Questions are paired by id; intervals resample whole
conversations (`cluster`), whose questions are not independent. A failed or unjudged answer is never counted
as wrong. The order of rows never matters, and a seed gives the same numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from delivermem.pairing import JUDGED, Missing, arm_of, awaiting, cluster_of, common, groups, state_of
from delivermem.significance import cluster_bootstrap, discordant, generator, holm, mcnemar, sign_test, unseen

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "SETTING", "TERMS", "PairedTerm", "accuracy", "contrast_numbers", "contrasts", "decomposition", "discordant", "failures", "holm",
    "mcnemar", "numbers", "paired_term", "recall_at_1", "sign_test",
]  # fmt: skip

TERMS: dict[str, tuple[str, str]] = {
    "delivery": ("gold-pixels", "gold-text"),
    "retrieval": ("gold-pixels", "bm25-pixels"),
    "gap": ("bm25-pixels", "gold-text"),
    "recent": ("recent-pixels", "bm25-pixels"),
    "random": ("random-pixels", "bm25-pixels"),
}
"""Each term is accuracy in its first condition minus accuracy in its second. gap = delivery - retrieval: the
corner gold-pixels cancels. recent and random are the query-blind selections against the retriever."""

QUERY_BLIND = ("recent", "random")
SETTING = ("benchmark", "backbone", "k")


class PairedTerm(NamedTuple):
    """A paired difference of two conditions over the same questions.

    points, low, high: percentage points, treated minus control. n questions in `clusters` conversations;
    left_out: questions dropped, as a control could not be had or by `missing="intersection"`. fixed: right in treated, wrong in control;
    broken: the reverse; up, down: clusters whose difference is positive, negative. p: exact McNemar over questions, the paper's test, which overstates where questions
    of one conversation depend on one another; p_cluster: sign test over conversations, which does not.
    """

    points: float
    low: float
    high: float
    n: int
    clusters: int
    fixed: int
    broken: int
    up: int
    down: int
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
    NaN. Where all differ alike a bootstrap can't vary: the interval then reaches to either side as far as
    `significance.unseen` clusters could lie. An unjudged or failed answer, or a question asked in one arm only, is a
    ValueError; with missing="intersection" such questions leave both arms, and the result states n and left_out.
    """
    a, b = arm_of(table, treated), arm_of(table, control)
    judged, left_out = common({treated: a, control: b}, missing)
    right_a = {q: a[q].state == "right" for q in judged}
    right_b = {q: b[q].state == "right" for q in judged}
    fixed, broken = discordant(right_a, right_b)
    sums: Counter[tuple[str, str]] = Counter()
    for q in judged:
        sums[a[q].cluster] += right_a[q] - right_b[q]
    sizes = Counter(a[q].cluster for q in judged)
    low, high = cluster_bootstrap(sums, sizes, rng=rng, resamples=resamples, level=level)
    points = 100 * (fixed - broken) / len(judged)
    if len(sizes) > 1 and len({sums[cluster] / size for cluster, size in sizes.items()}) == 1:
        reach = unseen(len(sizes), level)
        low, high = max(-100.0, points - reach), min(100.0, points + reach)
    up, down = (sum(sign * total > 0 for total in sums.values()) for sign in (1, -1))
    p, p_cluster = mcnemar(fixed, broken), sign_test(sums.values())
    n, clusters = len(judged), len(sizes)
    return PairedTerm(points, low, high, n, clusters, fixed, broken, up, down, p, p_cluster, left_out)


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
    for setting, part in groups(table, SETTING, answerable=True):
        run = set(part["condition"])
        terms = {t: pair for t, pair in TERMS.items() if t not in QUERY_BLIND or run.issuperset(pair)}
        used = {condition for pair in terms.values() for condition in pair}
        whole, left_out = common({condition: arm_of(part, condition) for condition in sorted(used)}, missing)
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
    for setting, part in groups(table, SETTING, answerable=True):
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
    own = ("name", "treated", "control", *PairedTerm._fields, "p_holm", "p_cluster_holm")
    return pd.DataFrame(rows, columns=[*SETTING, *own])


def accuracy(
    table: pd.DataFrame,
    by: Sequence[str] = (*SETTING, "condition"),
    *,
    seed: int,
    resamples: int = 10_000,
    level: float = 0.95,
    missing: Missing = "refuse",
) -> pd.DataFrame:
    """Accuracy per group of `by`: estimate, low, high (percent), n, clusters and counts.

    estimate = right / n with n = right + wrong, NaN where n = 0; failed and unjudged answers are counted
    beside it, and at_least, at_most are the estimate if all of them were wrong, or right. refused: refusals
    among the n. recall: mean share of gold records delivered, percent. The interval resamples conversations;
    where all answers are right, or all wrong, a bootstrap can't vary, and the interval is the exact binomial
    one with conversations as trials, whose open end is 100 (alpha / 2)^(1 / clusters) from the far side. Answers that await
    their benchmark's judge are a ValueError, unless missing="intersection": then they are counted as unjudged.
    """
    import pandas as pd

    if missing == "refuse" and (cures := awaiting(table)):
        command = " and ".join(sorted({*cures.values()}))
        raise ValueError(f"{len(cures)} of {len(table)} answers have no verdict of the judge; run: {command}")

    rows = []
    for group, part in groups(table, by):
        part = part[part["status"] != "not_applicable"]
        if part.empty:
            continue
        states = [state_of(s, v) for s, v in zip(part["status"], part["verdict"], strict=True)]
        count = Counter(states)
        n, asked = count["right"] + count["wrong"], len(states)
        sets = part["benchmark"] if "benchmark" in part else [""] * asked
        units = [
            (str(b), *cluster_of(*ids))
            for b, *ids in zip(sets, part["cluster"], part["question_id"], strict=True)
        ]
        sizes = Counter(unit for unit, state in zip(units, states, strict=True) if state in JUDGED)
        right = Counter(unit for unit, state in zip(units, states, strict=True) if state == "right")
        refused = sum(bool(r) for r, state in zip(part["refused"], states, strict=True) if state in JUDGED)
        rng = generator(seed, *group.values())
        low, high = cluster_bootstrap(right, sizes, rng=rng, resamples=resamples, level=level)
        if n and count["right"] in (0, n):
            reach = unseen(len(sizes), level)
            low, high = (100 - reach, 100.0) if count["right"] else (0.0, reach)
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
    for setting, part in groups(table, SETTING, answerable=True):
        a, b = arm_of(part, treated), arm_of(part, control)
        questions, _ = common({treated: a, control: b}, missing)
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


def recall_at_1(ranked: Mapping[tuple[str, int], Sequence[int]], *, level: float = 0.95) -> pd.DataFrame:
    """Share of queries whose own picture ranks first, by way of cutting and tiles a side, with Wilson's interval.

    ranked: (cut, n) -> one rank, from 1, a query. Columns: cut, n, estimate, low, high (percent), mrr, frames.
    """
    import pandas as pd
    from statsmodels.stats.proportion import proportion_confint

    rows = []
    for (cut, n), ranks in ranked.items():
        first = sum(rank == 1 for rank in ranks)
        low, high = proportion_confint(first, len(ranks), alpha=1 - level, method="wilson")
        share = {"estimate": 100 * first / len(ranks), "low": 100 * low, "high": 100 * high}
        mrr = sum(1 / rank for rank in ranks) / len(ranks)
        rows.append({"cut": cut, "n": n, **share, "mrr": mrr, "frames": len(ranks)})
    return pd.DataFrame(rows)


def contrast_numbers(
    found: pd.DataFrame, prefix: str, *, run: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The points of `contrasts` as named numbers: `<prefix>.<benchmark>.<name>`. One backbone and K a benchmark; run:
    where each benchmark's answers come from."""
    if found.duplicated(["benchmark", "name"]).any():
        raise ValueError("numbers are named for one backbone and K a benchmark; select one of each")
    return {
        f"{prefix}.{row['benchmark']}.{row['name'].replace(' ', '_')}": {
            "value": row["points"], "low": row["low"], "high": row["high"], "n": row["n"], "unit": "points",
            "run": run[row["benchmark"]],
        }
        for row in found.to_dict("records")
    }  # fmt: skip
