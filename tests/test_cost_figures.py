"""What reading costs: counted on a few made-up answers, and the figures of it read from their artists."""

from __future__ import annotations

import functools
import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from test_figures import LONG, assert_readable, face, png, texts

from delivermem import canvas, cost, cost_figures, figures, published, stats
from delivermem.cost import DELIVERED, EVERYTHING

TIMES = {"mini-memlens": 1, "mini-memlens-2x": 2, "mini-memlens-4x": 4, "mini-memlens-7.4x": 7.4}
ROOM = 3000
NO_TAG = "no tag names a memory where everything is read"
FEW = {"resamples": 200, "seed": 0}


def line(benchmark, condition, number, right=True, **changed):
    """One answer as `runs.load` gives it. Six questions a conversation: the fifth asks for a tag, the sixth is refusal."""
    sort = number % 6
    whole = condition == EVERYTHING
    messages = round(50 * TIMES[benchmark]) + number // 6
    size = {"text_tokens": 18 * messages, "image_tokens": 5 * messages, "images": messages // 2}
    if not whole:
        size = {"text_tokens": 250 + number, "image_tokens": 40, "images": 4}
    made = {
        "benchmark": benchmark, "backbone": "tiny", "question_id": f"q{number:03d}", "cluster": f"c{number // 6}",
        "kind": "answer_refusal" if sort == 5 else "information_extraction",
        "subtype": "which" if sort == 4 else "colour", "condition": condition, "replicate": 0,
        "k": messages if whole else 10, "status": "ok", "finish": "stop", "verdict": "right" if right else "wrong",
        "refused": False, "recall": 1.0, **size,
    }  # fmt: skip
    total = made["text_tokens"] + made["image_tokens"]
    if whole and sort == 4:
        none = {"text_tokens": 0, "image_tokens": 0, "images": 0}
        made |= {"status": "not_applicable", "finish": NO_TAG, "verdict": "unjudged", **none}
    elif whole and total + 24 > ROOM:
        reason = f"not run: {total} tokens and a reply exceed the context of {ROOM} tokens"
        made |= {"status": "not_applicable", "finish": reason, "verdict": "unjudged"}
    return made | changed


def answers(share=(0.8, 0.5), n=60, benchmarks=tuple(TIMES), seed=0, **changed):
    """Both arms at every length, right with these chances."""
    rng = np.random.default_rng(seed)
    rows = [
        line(benchmark, condition, number, bool(rng.random() < chance), **changed)
        for benchmark in benchmarks
        for condition, chance in zip((DELIVERED, EVERYTHING), share, strict=True)
        for number in range(n)
    ]
    return pd.DataFrame(rows)


def at_ks(shares=None, n=60, seed=1):
    """The shortest benchmark at several K, as `runs.load("frontier")` gives it."""
    rng = np.random.default_rng(seed)
    shares = shares or {1: 0.3, 2: 0.5, 5: 0.7, 10: 0.8, 20: 0.75}
    rows = []
    for (k, chance), number in itertools.product(shares.items(), range(n)):
        name = DELIVERED if k == 10 else f"k{k}"
        size = {"text_tokens": 60 + 25 * k, "image_tokens": 4 * k}
        rows.append(line("mini-memlens", name, number, bool(rng.random() < chance), k=k, **size))
    return pd.DataFrame(rows)


# --- which answers are compared


def test_questions_for_a_tag_leave_both_arms_and_long_prompts_stay():
    arms = cost.compared(answers())
    count = arms.groupby(["benchmark", "condition"]).size()
    assert set(count) == {50} and len(count) == 8
    assert not (arms["subtype"] == "which").any()
    whole = arms[arms["condition"] == EVERYTHING].groupby("benchmark")
    assert whole["beyond"].sum().to_dict() == dict(zip(TIMES, (0, 0, 50, 50), strict=True))
    assert whole["tokens"].min()["mini-memlens-4x"] == 23 * 200
    assert not arms[arms["condition"] == DELIVERED]["beyond"].any()
    assert set(arms["room"]) == {ROOM} and set(arms["k"]) == {10}
    assert arms["messages"].between(50, 380).all() and set(arms["times"]) == set(TIMES.values())
    both = arms.groupby(["benchmark", "question_id"])["messages"].nunique()
    assert (both == 1).all()
    assert arms.groupby("group").size().to_dict() == {"answerable": 320, "refusal": 80}


def test_the_context_is_what_the_reason_says_and_unknown_where_all_fit():
    long = answers(benchmarks=["mini-memlens-7.4x"])
    long["finish"] = long["finish"].str.replace(f"context of {ROOM}", "context of 131072")
    assert set(cost.compared(long)["room"]) == {131072}
    assert cost.compared(answers(benchmarks=["mini-memlens"]))["room"].isna().all()


def test_settings_without_both_arms_are_left_out_and_none_is_one_sentence():
    table = answers()
    half = table[(table["condition"] == DELIVERED) | (table["benchmark"] == "mini-memlens")]
    assert set(cost.compared(half)["benchmark"]) == {"mini-memlens"}
    other = table.assign(benchmark="mini-dmv-10")
    assert len(cost.compared(pd.concat([table, other]))) == len(cost.compared(table))
    for lacking in (other, table[table["condition"] == DELIVERED], table[table["condition"] == EVERYTHING]):
        with pytest.raises(ValueError, match="delivermem run cost --benchmark mini-memlens"):
            cost.compared(lacking)
    table.loc[0, "k"] = 7
    with pytest.raises(ValueError, match="several K"):
        cost.compared(table)


# --- tokens


def test_tokens_are_means_over_the_same_questions_text_and_image_apart():
    spent = cost.tokens(cost.compared(answers()), **FEW)
    assert list(spent["benchmark"]) == [name for name in TIMES for _ in range(2)]
    kept = [number for number in range(60) if number % 6 != 4]
    for row in spent.to_dict("records"):
        messages = [round(50 * row["times"]) + number // 6 for number in kept]
        if row["condition"] == DELIVERED:
            assert (
                row["text"] == pytest.approx(250 + np.mean(kept))
                and row["image"] == 40
                and row["images"] == 4
            )
            assert (row["ratio"], row["ratio_low"], row["ratio_high"]) == (1, 1, 1)
        else:
            assert row["text"] == pytest.approx(18 * np.mean(messages))
            assert row["least"] == 23 * min(messages) and row["most"] == 23 * max(messages)
            delivered = 290 + np.mean(kept)
            assert row["ratio"] == pytest.approx(23 * np.mean(messages) / delivered)
        assert row["tokens"] == pytest.approx(row["text"] + row["image"])
        assert row["low"] < row["tokens"] < row["high"] and row["n"] == 50 and row["clusters"] == 10
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]


def test_a_failed_call_leaves_both_arms_of_the_tokens_and_is_never_zero():
    table = answers(benchmarks=["mini-memlens"])
    failed = (table["condition"] == EVERYTHING) & (table["question_id"] == "q000")
    lost = ["failed", "error: out of memory", "unjudged", 0, 0]
    table.loc[failed, ["status", "finish", "verdict", "text_tokens", "image_tokens"]] = lost
    arms = cost.compared(table)
    spent = cost.tokens(arms, **FEW)
    assert set(spent["n"]) == {49} and spent["least"].min() > 0 and not arms["beyond"].any()
    level = cost.accuracy(arms, **FEW).set_index(["condition", "group"])
    assert level.loc[(EVERYTHING, "answerable"), ["n", "failed", "asked"]].tolist() == [39, 1, 40]
    (first, _) = cost.differences(arms, **FEW).to_dict("records")
    assert (first["n"], first["left_out"]) == (39, 1)


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 30), st.integers(0, 1000))
def test_the_ratio_grows_with_everything_and_rows_may_be_in_any_order(times, seed):
    arms = cost.compared(answers(benchmarks=["mini-memlens"], n=24))
    options = {"seed": 0, "resamples": 50}
    plain = cost.tokens(arms, **options)
    pd.testing.assert_frame_equal(plain, cost.tokens(arms.sample(frac=1, random_state=seed), **options))
    larger = arms.assign(tokens=arms["tokens"].where(arms["condition"] == DELIVERED, arms["tokens"] * times))
    ratio = cost.tokens(larger, **options).set_index("condition")["ratio"]
    assert ratio[EVERYTHING] == pytest.approx(times * plain.set_index("condition")["ratio"][EVERYTHING])
    assert ratio[DELIVERED] == 1


# --- accuracy and differences


def test_what_was_not_run_has_no_accuracy():
    levels = cost.accuracy(cost.compared(answers()), **FEW).set_index(["benchmark", "group", "condition"])
    assert len(levels) == 16
    for benchmark, group in itertools.product(TIMES, cost.GROUPS):
        row = levels.loc[(benchmark, group, EVERYTHING)]
        asked = 40 if group == "answerable" else 10
        ran = asked if TIMES[benchmark] <= 2 else 0
        assert (row["asked"], row["n"], row["beyond"]) == (asked, ran, asked - ran)
        assert math.isnan(row["estimate"]) == (not ran)
        assert levels.loc[(benchmark, group, DELIVERED), "n"] == asked


@pytest.mark.parametrize(("share", "sign"), [((0.9, 0.3), 1), ((0.3, 0.9), -1)])
def test_differences_are_the_paired_terms_whoever_wins(share, sign):
    table = answers(share)
    arms = cost.compared(table)
    found = cost.differences(arms, **FEW)
    assert list(zip(found["benchmark"], found["group"], strict=True)) == [
        *itertools.product(("mini-memlens", "mini-memlens-2x"), cost.GROUPS)
    ]
    for row in found.to_dict("records"):
        part = arms[(arms["benchmark"] == row["benchmark"]) & (arms["group"] == row["group"])]
        rng = np.random.default_rng(0)
        term = stats.paired_term(part, DELIVERED, EVERYTHING, rng=rng, resamples=50)
        same = ("points", "n", "clusters", "fixed", "broken", "p", "p_cluster")
        assert [row[name] for name in same] == [getattr(term, name) for name in same]
        assert row["left_out"] == 0
    assert found["p_holm"].tolist() == stats.holm(found["p"].tolist())
    assert found["p_cluster_holm"].tolist() == stats.holm(found["p_cluster"].tolist())
    answerable = found[found["group"] == "answerable"]
    assert (np.sign(answerable["points"]) == sign).all()


def test_where_some_exceed_the_context_only_the_others_are_paired():
    table = answers(benchmarks=["mini-memlens-2x"])
    long = (table["condition"] == EVERYTHING) & (table["cluster"] >= "c6") & (table["subtype"] != "which")
    reason = f"not run: 9999 tokens and a reply exceed the context of {ROOM} tokens"
    table.loc[long, ["status", "finish", "verdict"]] = ["not_applicable", reason, "unjudged"]
    arms = cost.compared(table)
    first = cost.differences(arms, **FEW).iloc[0]
    assert (first["n"], first["clusters"], first["left_out"]) == (24, 6, 16)
    spent = cost.tokens(arms, **FEW).set_index("condition")
    assert spent["n"].tolist() == [50, 50] and spent.loc[EVERYTHING, "beyond"] == 20
    level = cost.accuracy(arms, **FEW).query("group == 'answerable'").set_index("condition")
    assert level["n"].to_dict() == {DELIVERED: 40, EVERYTHING: 24}
    everything_long = cost.compared(answers(benchmarks=["mini-memlens-7.4x"]))
    none = cost.differences(everything_long, **FEW)
    assert none.empty and {"group", "points", "p_holm", "p_cluster_holm"} <= set(none)


def test_growth_pairs_each_arm_with_itself_at_its_longest_and_shortest():
    table = answers()
    table.loc[(table["condition"] == DELIVERED) & (table["benchmark"] == "mini-memlens"), "verdict"] = "right"
    table.loc[(table["condition"] == DELIVERED) & (table["benchmark"] == "mini-memlens-7.4x"), "verdict"] = (
        "wrong"
    )
    found = cost.growth(cost.compared(table), **FEW).set_index("condition")
    assert found.loc[DELIVERED, ["shortest", "longest", "points", "n"]].tolist() == [1, 7.4, -100, 40]
    assert found.loc[EVERYTHING, ["shortest", "longest", "n"]].tolist() == [1, 2, 40]
    assert cost.growth(cost.compared(answers(benchmarks=["mini-memlens"])), **FEW).empty


# --- frontier


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.3, 0.6, 1.0]), min_size=5, max_size=5), st.sampled_from([0.0, 0.5, 1.0])
)
def test_on_the_frontier_is_what_no_other_beats(shares, everything):
    arms = cost.compared(answers((0.8, everything), benchmarks=["mini-memlens"], n=24))
    ks = at_ks(dict(zip((1, 2, 5, 10, 20), shares, strict=True)), n=24)
    points = cost.frontier(ks, arms, seed=0, resamples=20)
    assert len(points) == 6 and set(points["n"]) == {16} and points["k"].isna().sum() == 1
    for i, row in points.iterrows():
        beaten = any(
            other["tokens"] <= row["tokens"]
            and other["estimate"] >= row["estimate"]
            and (other["tokens"], other["estimate"]) != (row["tokens"], row["estimate"])
            for j, other in points.iterrows()
            if i != j
        )
        assert row["best"] == (not beaten)
    assert points["best"].any() and points.loc[points["tokens"].idxmin(), "best"]


def test_everything_that_exceeds_the_context_has_tokens_and_no_place_on_the_frontier():
    ks = at_ks().assign(benchmark="mini-memlens-7.4x")
    points = cost.frontier(ks, cost.compared(answers()), **FEW).set_index("condition")
    row = points.loc[EVERYTHING]
    assert row["tokens"] > ROOM and (row["n"], row["asked"], row["beyond"]) == (0, 40, 40)
    assert math.isnan(row["estimate"]) and not row["best"] and row["room"] == ROOM


def test_everything_has_no_place_on_the_frontier_where_some_exceed_the_context():
    table = answers((0.0, 1.0), benchmarks=["mini-memlens"])
    long = (table["condition"] == EVERYTHING) & (table["question_id"] == "q000")
    reason = f"not run: 9999 tokens and a reply exceed the context of {ROOM} tokens"
    table.loc[long, ["status", "finish", "verdict"]] = ["not_applicable", reason, "unjudged"]
    row = cost.frontier(at_ks(), cost.compared(table), **FEW).set_index("condition").loc[EVERYTHING]
    assert (row["n"], row["asked"], row["beyond"], row["best"]) == (0, 40, 1, False)
    assert math.isnan(row["estimate"])


def test_points_rest_on_the_questions_that_every_k_was_asked():
    ks = at_ks()
    ks = ks[(ks["k"] != 20) | (ks["question_id"] < "q030")]
    arms = cost.compared(answers())
    points = cost.frontier(ks, arms, **FEW)
    assert set(points["benchmark"]) == {"mini-memlens"} and set(points["asked"]) == {20}
    steps = cost.steps(ks, arms, **FEW)
    assert list(steps["name"]) == [f"K = {k} - K = 10" for k in (1, 2, 5, 20)] and set(steps["n"]) == {20}
    one = points.set_index("k")["estimate"]
    for row in steps.to_dict("records"):
        assert row["points"] == pytest.approx(one[float(row["name"].split()[2])] - one[10])
    with pytest.raises(ValueError, match="delivermem run frontier"):
        cost.frontier(ks[ks["k"] == 10], arms, **FEW)


# --- numbers


def test_numbers_are_named_by_benchmark_and_can_be_recorded(tmp_path):
    arms = cost.compared(answers())
    tables = cost.tokens(arms, **FEW), cost.differences(arms, **FEW), cost.frontier(at_ks(), arms, **FEW)
    run = {name: f"run of {name}" for name in TIMES}
    named = cost.numbers(*tables, run=run)
    assert {f"cost.{name}.ratio" for name in TIMES} <= set(named)
    assert named["cost.mini-memlens-4x.full_tokens"]["run"] == "run of mini-memlens-4x"
    assert "cost.mini-memlens-2x.difference_answerable" in named
    assert "cost.mini-memlens-4x.difference_answerable" not in named
    assert f"cost.mini-memlens.accuracy_{EVERYTHING}" in named
    path = figures.record_numbers(named, tmp_path / "numbers.json")
    entry = json.loads(path.read_text())["cost.mini-memlens.delivered_tokens"]
    assert entry["low"] < entry["value"] < entry["high"] and entry["n"] == 50 and entry["unit"] == "tokens"
    one = cost.tokens(arms[arms["cluster"] == "c0"], **FEW)
    assert "low" not in cost.numbers(one, *tables[1:], run=run)["cost.mini-memlens.ratio"]
    two = pd.concat([tables[0], tables[0].assign(backbone="other")])
    with pytest.raises(ValueError, match="one backbone"):
        cost.numbers(two, *tables[1:], run=run)


# --- figures


@functools.cache
def tables(backbones=("tiny",), benchmarks=tuple(TIMES), share=(0.8, 0.5)):
    """What the figures draw, of made-up answers; not to be changed in place."""
    found = []
    for backbone in backbones:
        arms = cost.compared(answers(share, benchmarks=benchmarks).assign(backbone=backbone))
        points = cost.frontier(at_ks().assign(backbone=backbone), arms, **FEW)
        found.append((cost.tokens(arms, **FEW), cost.accuracy(arms, **FEW), points))
    return tuple(pd.concat(parts, ignore_index=True) for parts in zip(*found, strict=True))


def marks(ax):
    """(x, y) -> (marker, face) of every mark that is drawn."""
    return {
        (float(x), float(y)): (
            drawn.get_marker(),
            to_hex(drawn.get_markerfacecolor()).upper(),
            drawn.get_fillstyle(),
        )
        for drawn in ax.lines
        if drawn.get_marker() not in ("", "None", None)
        for x, y in zip(drawn.get_xdata(), drawn.get_ydata(), strict=True)
    }


BLUE, GREY, WHITE = canvas.PALETTE["pixels"], canvas.PALETTE["quiet"], "#FFFFFF"


def test_the_curve_shows_means_ranges_and_what_was_not_run():
    spent, _, _ = tables()
    fig = cost_figures.curve(spent, paper=published.paper())
    (ax,) = fig.axes
    expected = {}
    for row in spent.to_dict("records"):
        whole = row["condition"] == EVERYTHING
        inside = (WHITE if row["beyond"] else GREY) if whole else BLUE
        expected[row["messages"], row["tokens"]] = ("s" if whole else "o", inside, "full")
    assert marks(ax) == expected
    bars = [s.tolist() for c in ax.collections for s in c.get_segments()]
    for row in spent.to_dict("records"):
        assert [[row["messages"], row["least"]], [row["messages"], row["most"]]] in bars
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    low, high = ax.get_ylim()
    assert low < spent["least"].min() and high > spent["most"].max()
    assert_readable(fig)


def test_the_curve_writes_the_share_names_the_context_and_keeps_the_paper_apart():
    spent, _, _ = tables()
    fig = cost_figures.curve(spent, paper=published.paper())
    (ax,) = fig.axes
    ratios = spent[spent["condition"] == EVERYTHING]["ratio"]
    written = [t.get_text() for t in texts(fig)]
    for ratio in ratios:
        assert f"1/{ratio:.1f}" in written if ratio < 9.95 else f"1/{ratio:.0f}" in written
    (band,) = [p for p in ax.patches if "paper" in p.get_label()]
    assert (band.get_y(), band.get_y() + band.get_height()) == (2405, 2450)
    said = face(fig)
    assert "paper: Qwen3-VL-8B on MemLens, 2,405 to 2,450 tokens delivered" in said
    assert "not measured here; another benchmark, backbone and tokenizer" in said
    (context,) = [line for line in ax.lines if "context of the backbone" in line.get_label()]
    assert set(context.get_ydata()) == {ROOM} and f"{ROOM:,} tokens" in said
    assert "tiny on mini-memlens at 4 lengths, K = 10, n = 50 questions in 10 conversations a length" in said
    assert "counted, not run" in said and "tokens of the prompt" in ax.get_ylabel()
    alone = cost_figures.curve(spent[spent["times"] == 1].assign(room=math.nan))
    assert not alone.axes[0].patches and "context" not in face(alone) and "paper" not in face(alone)


@pytest.mark.parametrize(
    ("ratio", "text"), [(3.23, "1/3.2"), (22.1, "1/22"), (9.96, "1/10"), (0.5, "2 times")]
)
def test_a_share_is_written_as_a_reader_says_it(ratio, text):
    spent, _, _ = tables(benchmarks=("mini-memlens",))
    set_to = spent.assign(ratio=ratio)
    assert text in [t.get_text() for t in texts(cost_figures.curve(set_to))]


def test_accuracy_shows_the_table_and_why_there_is_no_mark():
    _, levels, _ = tables()
    fig = cost_figures.accuracy(levels)
    answerable, refusal = fig.axes
    for ax, group in ((answerable, "answerable"), (refusal, "refusal")):
        rows = levels[(levels["group"] == group) & (levels["n"] > 0)]
        assert sorted(y for _, y in marks(ax)) == sorted(rows["estimate"])
        order = list(TIMES.values())
        for (x, y), (marker, _, _) in marks(ax).items():
            condition = DELIVERED if marker == "o" else EVERYTHING
            row = rows[(rows["times"] == order[round(x)]) & (rows["condition"] == condition)]
            assert row["estimate"].tolist() == [y]
        ends = sorted(s[:, 1].tolist() for c in ax.collections for s in c.get_segments())
        assert ends == sorted(rows[["low", "high"]].to_numpy().tolist())
        reasons = [t.get_text() for t in ax.texts]
        assert reasons == [f"exceeds the context\nof {ROOM:,} tokens,\nnot run"] * 2
        assert group in ax.get_title(loc="left") and "n = " in ax.get_title(loc="left")
    assert "reads everything" in face(fig) and "% of questions" in face(fig)
    assert_readable(fig)


def test_a_mark_that_rests_on_some_is_half_filled_apart_and_says_on_how_many():
    spent, levels = (table.copy() for table in tables()[:2])
    some = (levels["times"] == 2) & (levels["condition"] == EVERYTHING)
    levels.loc[some, "beyond"], levels.loc[some, "n"] = 3, levels.loc[some, "asked"] - 3
    ax = cost_figures.accuracy(levels).axes[0]
    assert "n = 37:\n3 exceed\nthe context" in [t.get_text() for t in ax.texts]
    joined = {line.get_label(): line for line in ax.lines}
    assert len(joined[EVERYTHING].get_xdata()) == 1
    assert joined[f"{EVERYTHING}, some"].get_fillstyle() == "bottom"
    spent.loc[(spent["times"] == 2) & (spent["condition"] == EVERYTHING), "beyond"] = 3
    fig = cost_figures.curve(spent)
    assert [style for _, _, style in marks(fig.axes[0]).values()].count("bottom") == 1
    assert "some exceed the context" in face(fig)
    assert_readable(fig)


def test_the_frontier_joins_what_no_other_beats_and_hollows_the_rest():
    _, _, points = tables()
    fig = cost_figures.frontier(points)
    (ax,) = fig.axes
    expected = {
        (row["tokens"], row["estimate"]): WHITE
        if not row["best"]
        else GREY
        if row["condition"] == EVERYTHING
        else BLUE
        for row in points.to_dict("records")
    }
    assert {at: inside for at, (_, inside, _) in marks(ax).items()} == expected
    (joined,) = [line for line in ax.lines if "frontier" in line.get_label()]
    best = points[points["best"]].sort_values("tokens")
    assert list(joined.get_xdata()) == best["tokens"].tolist()
    assert list(joined.get_ydata()) == best["estimate"].tolist()
    assert {t.get_text() for t in ax.texts} == {*(f"K = {k}" for k in (1, 2, 5, 10, 20)), "everything"}
    assert "n = 40 answerable questions in 10 conversations" in face(fig)
    assert_readable(fig)


def test_the_frontier_shows_tokens_alone_where_everything_was_not_run():
    ks = at_ks().assign(benchmark="mini-memlens-7.4x")
    fig = cost_figures.frontier(cost.frontier(ks, cost.compared(answers()), **FEW))
    (ax,) = fig.axes
    assert len(marks(ax)) == 5 and "everything" not in [t.get_text() for t in ax.texts]
    assert f"40 of 40 exceed the context of {ROOM:,} tokens, not run" in face(fig)
    assert_readable(fig)


@pytest.mark.parametrize(
    ("share", "backbones"),
    [((0.0, 1.0), ("tiny",)), ((1.0, 0.0), ("tiny",)), ((1.0, 1.0), (LONG, "$a_b^c$"))],
)
def test_all_is_readable_at_the_extremes_and_with_several_backbones(share, backbones):
    spent, levels, points = tables(backbones, share=share)
    for fig in (
        cost_figures.curve(spent, paper=published.paper()),
        cost_figures.accuracy(levels),
        cost_figures.frontier(points),
    ):
        assert_readable(fig)
        assert all(name.split("-")[0] in face(fig) for name in backbones)


def test_the_order_of_rows_changes_nothing():
    for draw, table in zip(
        (cost_figures.curve, cost_figures.accuracy, cost_figures.frontier), tables(), strict=True
    ):
        assert png(draw(table)) == png(draw(table.sample(frac=1, random_state=1))), draw.__name__


def test_a_table_that_does_not_fit_is_refused():
    spent, levels, points = tables(benchmarks=("mini-memlens",))
    with pytest.raises(ValueError, match="lacks the columns: ratio"):
        cost_figures.curve(spent.drop(columns="ratio"))
    with pytest.raises(ValueError, match="has 0 rows"):
        cost_figures.frontier(points.head(0))
    with pytest.raises(ValueError, match="one row per length, group and condition"):
        cost_figures.accuracy(pd.concat([levels, levels]))
