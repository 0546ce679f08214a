"""What reading costs: the tokens of a delivered prompt and of one that holds everything, and what each buys.

Tokens are the processor's own, text and image apart. Both arms put the same questions to the same backbone; a prompt
that exceeds its context is not run, but its tokens are known, so that it has a cost and no accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from delivermem import stats
from delivermem.experiments import LENGTHS, find
from delivermem.pairing import Missing
from delivermem.significance import cluster_bootstrap, generator

if TYPE_CHECKING:
    import pandas as pd

EVERYTHING = next(arm.name for arm in find("cost").conditions if arm.asks == "everything")
DELIVERED = next(arm.name for arm in find("cost").conditions if arm.asks == "delivered")
"""The two arms: the whole conversation, and K retrieved messages."""
GROUPS = ("answerable", "refusal")
"""Questions by whether memory holds their answer. They are told apart everywhere: one may decline without reading."""
SETTING = list(stats.SETTING)


def compared(answers: pd.DataFrame) -> pd.DataFrame:
    """The answers to questions that can be put to both arms, with what their prompts took.

    answers: from `runs.load("cost")`; settings that lack an arm are left out, and no setting with both is a ValueError.
    A question whose answer is a memory's tag can't be put where everything is read, and leaves both arms. Columns beside
    runs.FIELDS: times and messages (length of the conversation), group (one of GROUPS), tokens (text and image, NaN
    where the call failed), beyond (the prompt exceeds the context, so it was not run), room (that context in tokens,
    NaN where no prompt of the backbone exceeds it). k is the delivered arm's, in both.
    """
    where = ["benchmark", "backbone", "question_id"]
    rows = answers[answers["benchmark"].isin(list(LENGTHS))]
    arms = {name: rows[rows["condition"] == name] for name in (DELIVERED, EVERYTHING)}
    both = arms[DELIVERED][[*where, "k"]].merge(
        _spent(arms[EVERYTHING])[[*where, "k", "status", "tokens"]], on=where, suffixes=("", "_all")
    )
    both = both[(both["status"] != "not_applicable") | (both["tokens"] > 0)]
    if both.empty:
        name = next(iter(rows["benchmark"]), next(iter(LENGTHS)))
        raise ValueError(
            f"no benchmark has answers under both {DELIVERED} and {EVERYTHING}; "
            f"make them, of the same backbone, with: delivermem run cost --benchmark {name}"
        )
    if both.groupby(where[:2])["k"].nunique().gt(1).any():
        raise ValueError(f"condition {DELIVERED!r} has answers of several K; select one K a benchmark")
    length = both[[*where, "k", "k_all"]].rename(columns={"k_all": "messages"})
    found = _spent(rows[rows["condition"].isin(list(arms))]).drop(columns="k").merge(length, on=where)
    found["times"] = found["benchmark"].map(LENGTHS)
    found["group"] = (found["kind"] == "answer_refusal").map({False: GROUPS[0], True: GROUPS[1]})
    said = found["finish"].where(found["beyond"]).astype("string").str.extract(r"context of (\d+) tokens")[0]
    found["room"] = said.astype(float).groupby(found["backbone"]).transform("max")
    return found.sort_values(["backbone", "times", *where[2:], "condition"], ignore_index=True)


def _spent(rows: pd.DataFrame) -> pd.DataFrame:
    """With `tokens`, unknown where the call failed and counted none, and `beyond`."""
    tokens = (rows["text_tokens"] + rows["image_tokens"]).astype(float)
    beyond = (rows["status"] == "not_applicable") & (tokens > 0)
    return rows.assign(tokens=tokens.mask(rows["status"] == "failed"), beyond=beyond)


def tokens(arms: pd.DataFrame, *, seed: int, resamples: int = 10_000) -> pd.DataFrame:
    """Tokens a question, one row per benchmark, backbone and arm, the shortest conversations first.

    arms: from `compared`; questions whose tokens are known in both arms, n of them. Columns: benchmark, backbone, k,
    times, condition, messages, n, clusters, beyond (questions not run), room; means text, image, tokens, and images;
    low, high: 95 % interval of tokens over conversations; least, most: its range over questions; ratio, ratio_low,
    ratio_high: mean tokens of everything over those delivered, 1 for the delivered arm itself.
    """
    import pandas as pd

    known = arms.dropna(subset="tokens")
    pairs = known.groupby([*SETTING, "question_id"])["condition"].transform("nunique") == 2
    rows = []
    for key, part in known[pairs].groupby(["backbone", "k", "times", "benchmark"], sort=True):
        setting = dict(zip(("backbone", "k", "times", "benchmark"), key, strict=True))
        total = part.groupby(["condition", "cluster"])["tokens"].sum()
        for condition in (DELIVERED, EVERYTHING):
            arm = part[part["condition"] == condition]
            rng = generator(seed, *key, condition)
            sizes = arm.groupby("cluster").size().to_dict()
            low, high = cluster_bootstrap(total[condition], sizes, rng=rng, resamples=resamples)
            mean = arm[["text_tokens", "image_tokens", "images", "messages", "tokens"]].mean()
            # a ratio of totals: the delivered tokens are the sizes that the other arm's are shared over
            base = {cluster: int(value) for cluster, value in total[DELIVERED].items()}
            ends = cluster_bootstrap(total[condition], base, rng=rng, resamples=resamples)
            names = ("benchmark", "backbone", "k", "times")
            rows.append(
                {name: setting[name] for name in names}
                | {
                    "condition": condition,
                    "messages": mean["messages"],
                    "n": len(arm),
                    "clusters": len(sizes),
                }
                | {"beyond": int(arm["beyond"].sum()), "room": arm["room"].iloc[0]}
                | {"text": mean["text_tokens"], "image": mean["image_tokens"], "images": mean["images"]}
                | {"tokens": mean["tokens"], "low": low / 100, "high": high / 100}
                | {"least": int(arm["tokens"].min()), "most": int(arm["tokens"].max())}
                | {"ratio": total[condition].sum() / total[DELIVERED].sum()}
                | {"ratio_low": ends[0] / 100, "ratio_high": ends[1] / 100}
            )
    return pd.DataFrame(rows)


def accuracy(
    arms: pd.DataFrame, *, seed: int, resamples: int = 10_000, missing: Missing = "refuse"
) -> pd.DataFrame:
    """`stats.accuracy` by benchmark, backbone, k, times, group and condition, with asked, messages, beyond and room.

    arms: from `compared`. Where no prompt was run, there is a row with n = 0 and no estimate.
    """
    by = [*SETTING, "times", "group", "condition"]
    asked = arms.groupby(by, as_index=False).agg(
        asked=("question_id", "size"),
        messages=("messages", "mean"),
        beyond=("beyond", "sum"),
        room=("room", "max"),
    )
    scored = stats.accuracy(arms, by, seed=seed, resamples=resamples, missing=missing)
    found = asked.merge(scored, on=by, how="left")
    counts = ["n", "clusters", "right", "wrong", "refused", "unjudged", "failed"]
    found[counts] = found[counts].fillna(0).astype(int)
    return found.sort_values(["backbone", "times", "group", "condition"], ignore_index=True)


def differences(arms: pd.DataFrame, *, seed: int, resamples: int = 10_000) -> pd.DataFrame:
    """Delivered minus everything, paired by question, at each length and group of which both arms were run.

    arms: from `compared`. Columns: benchmark, backbone, k, times, group, the fields of stats.PairedTerm, and p_holm,
    p_cluster_holm, adjusted over the rows of a backbone, which are one declared family. left_out: questions that exceed
    the context, failed, or were not judged. No row where the arms share no answer.
    """
    by = ["backbone", "k", "times", "benchmark", "group"]
    ran = arms[~arms["beyond"]]
    return _paired(arms, ran, by, (DELIVERED, EVERYTHING), seed=seed, resamples=resamples)


def growth(arms: pd.DataFrame, *, seed: int, resamples: int = 10_000) -> pd.DataFrame:
    """Each arm at the longest conversations that it was run on, minus the same arm at the shortest: what length costs.

    arms: from `compared`. The same answerable questions, paired; columns as of `differences`, with condition, and with
    shortest and longest in place of times. No row for an arm that was run at one length alone.
    """
    import pandas as pd

    found = []
    answerable = arms[arms["group"] == GROUPS[0]]
    judged = answerable[(answerable["status"] == "ok") & (answerable["verdict"] != "unjudged")]
    for (backbone, condition), part in judged.groupby(["backbone", "condition"]):
        ends = {"shortest": part["times"].min(), "longest": part["times"].max()}
        if ends["shortest"] == ends["longest"]:
            continue
        whole = answerable[(answerable["backbone"] == backbone) & (answerable["condition"] == condition)]
        whole = whole[whole["times"].isin(list(ends.values()))]
        # each length is an arm of its own, so that a question is paired with itself
        renamed = whole.assign(arm=condition, condition=whole["times"].map("{:g}x".format), **ends)
        pair = (f"{ends['longest']:g}x", f"{ends['shortest']:g}x")
        by = ["backbone", "k", "shortest", "longest", "arm"]
        found.append(_paired(renamed, renamed, by, pair, seed=seed, resamples=resamples))
    table = pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=["arm"])
    return table.rename(columns={"arm": "condition"})


def _paired(
    whole: pd.DataFrame, ran: pd.DataFrame, by: list[str], pair: tuple[str, str], *, seed: int, resamples: int
) -> pd.DataFrame:
    """A paired term per group of `by` in which both of the pair have a judged answer to some question."""
    import pandas as pd

    rows: list[dict[str, Any]] = []
    judged = ran[(ran["status"] == "ok") & (ran["verdict"] != "unjudged")]
    for key, part in whole.groupby(by, sort=True):
        group = dict(zip(by, key, strict=True))
        here = judged.loc[judged.index.intersection(part.index)]
        if not here.groupby("question_id")["condition"].nunique().eq(2).any():
            continue
        rng = generator(seed, *key)
        found = stats.paired_term(part, *pair, rng=rng, resamples=resamples, missing="intersection")
        rows.append(group | found._asdict())
    table = pd.DataFrame(rows, columns=[*by, *stats.PairedTerm._fields])
    for p in ("p", "p_cluster"):
        family = table.groupby(["backbone"], sort=False)[p]
        table[f"{p}_holm"] = family.transform(lambda ps: stats.holm(ps.tolist())).astype(float)
    return table


def frontier(
    ks: pd.DataFrame, arms: pd.DataFrame, *, seed: int, resamples: int = 10_000, missing: Missing = "refuse"
) -> pd.DataFrame:
    """Accuracy and mean tokens at each K and where everything is read, and which of them no other beats.

    ks: from `runs.load("frontier")`; arms: from `compared`, whose answerable questions are kept where every K was asked
    them. One row per benchmark, backbone and condition: k (NaN where everything is read), tokens, asked, beyond, room,
    the fields of `stats.accuracy`, and best: no other is right as often or more for as few tokens or fewer, one of the
    two strictly. Where a prompt was not run there is no estimate, as it would rest on other questions. A setting with
    one K is left out; no other is a ValueError.
    """
    import pandas as pd

    rows = _several(ks, arms)
    asked = rows[["benchmark", "backbone", "question_id"]].drop_duplicates()
    whole = arms[arms["condition"] == EVERYTHING].merge(asked)
    both = pd.concat([rows, whole.assign(k=math.inf)], ignore_index=True)
    by = [*SETTING, "condition"]
    spent = both.groupby(by, as_index=False).agg(
        tokens=("tokens", "mean"),
        asked=("question_id", "size"),
        beyond=("beyond", "sum"),
        room=("room", "max"),
    )
    run = both[~both.groupby(by)["beyond"].transform("any")]
    scored = stats.accuracy(run, by, seed=seed, resamples=resamples, missing=missing)
    found = spent.merge(scored, on=by, how="left")
    found["n"] = found["n"].fillna(0).astype(int)
    found["best"] = False
    for _, part in found[found["n"] > 0].groupby(["benchmark", "backbone"]):
        for i, tokens, right in part[["tokens", "estimate"]].itertuples():
            rival = part[(part["tokens"] <= tokens) & (part["estimate"] >= right)]
            found.loc[i, "best"] = not ((rival["tokens"] < tokens) | (rival["estimate"] > right)).any()
    found["k"] = found["k"].replace(math.inf, math.nan)
    return found.sort_values(["backbone", "benchmark", "tokens"], ignore_index=True)


def steps(ks: pd.DataFrame, arms: pd.DataFrame, *, seed: int, resamples: int = 10_000) -> pd.DataFrame:
    """Every K against the delivered arm's: `stats.contrasts` over the questions of `frontier`, named by the two K."""
    rows = _several(ks, arms)
    own = rows[rows["condition"] == DELIVERED]["k"].iloc[0]
    others = rows[rows["k"] != own].sort_values("k").drop_duplicates("k")
    pairs = {
        f"K = {k} - K = {own}": (name, DELIVERED)
        for k, name in zip(others["k"], others["condition"], strict=True)
    }
    options: dict[str, Any] = {"seed": seed, "resamples": resamples, "missing": "intersection"}
    return stats.contrasts(rows.assign(k=own), pairs, **options)


def _several(ks: pd.DataFrame, arms: pd.DataFrame) -> pd.DataFrame:
    """The rows of settings with several K, on the answerable questions that all of them and both arms were put."""
    where = ["benchmark", "backbone", "question_id"]
    kept = arms[arms["group"] == GROUPS[0]][[*where, "room"]].drop_duplicates()
    rows = _spent(ks).merge(kept, on=where)
    count = rows.groupby(where[:2])["k"].transform("nunique")
    rows = rows[(count > 1) & (rows.groupby(where)["k"].transform("nunique") == count)]
    if rows.empty:
        raise ValueError("no benchmark has answers at several K; make them with: delivermem run frontier")
    return rows


def numbers(
    spent: pd.DataFrame, paired: pd.DataFrame, points: pd.DataFrame, *, run: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The named numbers of the cost, for `figures.record_numbers`: `cost.<benchmark>.<name>`.

    spent: from `tokens`, paired: from `differences`, points: from `frontier`, of one backbone. run: benchmark to where
    its answers come from. Intervals are the 95 % ones, left out where there is none.
    """
    if spent["backbone"].nunique() > 1:
        raise ValueError("numbers are named for one backbone; select one in every table")
    named: dict[str, dict[str, Any]] = {}

    def add(row: Mapping[str, Any], name: str, value: str, low: str, high: str, unit: str) -> None:
        entry = {"value": row[value], "n": row["n"], "unit": unit, "run": run[row["benchmark"]]}
        ends = {} if math.isnan(row[low]) else {"low": row[low], "high": row[high]}
        named[f"cost.{row['benchmark']}.{name}"] = entry | ends

    for row in spent.to_dict("records"):
        whole = row["condition"] == EVERYTHING
        add(row, "full_tokens" if whole else "delivered_tokens", "tokens", "low", "high", "tokens")
        if whole:
            add(row, "ratio", "ratio", "ratio_low", "ratio_high", "times the delivered tokens")
    for row in paired.to_dict("records"):
        add(row, f"difference_{row['group']}", "points", "low", "high", "points")
    for row in points[points["n"] > 0].to_dict("records"):
        add(row, f"accuracy_{row['condition']}", "estimate", "low", "high", "percent")
    return named
