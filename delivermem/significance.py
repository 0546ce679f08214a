"""Exact tests and intervals from counts and per-cluster totals. Knows nothing of tables."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def discordant(a: Mapping[str, bool], b: Mapping[str, bool]) -> tuple[int, int]:
    """(right in a and wrong in b, wrong in a and right in b), counted question by question.

    a, b: question id to whether it was answered rightly; ValueError where they cover different questions.
    """
    if set(a.keys()) != set(b.keys()):
        odd = min(set(a.keys()) ^ set(b.keys()), key=str)
        raise ValueError(f"question {odd!r} is in one arm only; pair answers to the same questions")
    fixed = sum(1 for question in a if a[question] and not b[question])
    broken = sum(1 for question in a if b[question] and not a[question])
    return fixed, broken


def mcnemar(b: int, c: int) -> float:
    """Exact two-sided p of McNemar's test from the two discordant counts; 1 where there are none.

    p = min(1, 2 P(X <= min(b, c))), X ~ Binomial(b + c, 1/2), as computed by statsmodels.
    Source: McNemar 1947, in its exact conditional form.
    """
    from statsmodels.stats.contingency_tables import mcnemar as exact_test

    if b < 0 or c < 0:
        raise ValueError(f"discordant counts {b} and {c} must not be negative")
    return float(exact_test([[0, b], [c, 0]], exact=True).pvalue) if b + c else 1.0


def sign_test(differences: Iterable[float]) -> float:
    """Exact two-sided sign test: one difference per cluster, zeros carry no sign; all zero gives 1."""
    values = list(differences)
    return mcnemar(sum(value > 0 for value in values), sum(value < 0 for value in values))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values for one declared family, in the order given (Holm 1979)."""
    from statsmodels.stats.multitest import multipletests

    if any(not 0 <= p <= 1 for p in ps):
        raise ValueError(f"p values must lie in [0, 1]: {list(ps)}")
    return [float(p) for p in multipletests(ps, method="holm")[1]] if len(ps) else []


def generator(seed: int, *names: object) -> np.random.Generator:
    """A stream of its own for each named estimate, so that none depends on which others are computed."""
    digest = hashlib.sha256("\0".join(map(str, names)).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def unseen(clusters: int, level: float) -> float:
    """How common, in percent, something may be that none of so many clusters showed: 100 (1 - (alpha / 2)^(1 / n)), the
    open end of the exact binomial interval with clusters as trials (Clopper & Pearson 1934)."""
    return 100 * (1 - math.pow((1 - level) / 2, 1 / clusters))


def cluster_bootstrap(
    sums: Mapping[Any, float],
    sizes: Mapping[Any, int],
    *,
    rng: np.random.Generator,
    resamples: int = 10_000,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile interval (low, high) of 100 sum(sums) / sum(sizes), resampling whole clusters.

    sizes: questions of each cluster; sums: the total to average, 0 where a cluster is not named. A cluster
    drawn twice counts twice. Fewer than two clusters give NaN. Source: the percentile interval of Efron &
    Tibshirani 1993, chapter 13, with clusters as the units that are drawn.
    """
    if resamples < 1 or not 0 < level < 1:
        raise ValueError(f"resamples={resamples} must be positive and level={level} between 0 and 1")
    if len(sizes) < 2:
        return math.nan, math.nan
    order = sorted(sizes)
    total = np.array([sums.get(cluster, 0) for cluster in order], dtype=float)
    size = np.array([sizes[cluster] for cluster in order], dtype=float)
    share = np.full(len(order), 1 / len(order))
    draws = []
    for start in range(0, resamples, 1000):
        weights = rng.multinomial(len(order), share, size=min(1000, resamples - start))
        draws.append((weights @ total) / (weights @ size))
    low, high = np.quantile(100 * np.concatenate(draws), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
