"""Figures of results, read from their artists: published and measured values never share a panel."""

from __future__ import annotations

import functools
import itertools
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from test_figures import LONG, assert_readable, face, png

from delivermem import canvas, published, result_figures

SETTING = {"backbone": "tiny", "k": 10}
TIMES = (1.0, 2.0, 4.0, 7.4)


@functools.cache
def memlens():
    return published.memlens()


@functools.cache
def implied():
    return published.implied()


@functools.cache
def shop():
    return published.dmv()


def row(condition, times=1.0, estimate=60.0, *, n=512, beyond=0, **other):
    name = "mini-memlens" if times == 1 else f"mini-memlens-{times:g}x"
    interval = {"estimate": estimate, "low": max(0, estimate - 4), "high": min(100, estimate + 3)}
    counts = {"n": n, "clusters": 64, "not_applicable": beyond}
    return SETTING | {"benchmark": name, "condition": condition, "times": times} | interval | counts | other


def lengths_table(case="all", **other):
    rows = [row("bm25-pixels", times, 80 - 3 * times, **other) for times in TIMES]
    nothing = {"n": 0, "beyond": 512, "low": math.nan, "high": math.nan}
    rows += [
        row("full-context", 1.0, 40.0, **other),
        row("full-context", 2.0, 30.0, n=412, beyond=100, **other | {"k": 60}),
        *(row("full-context", times, math.nan, **nothing, **other) for times in (4.0, 7.4)),
    ]
    kept = {
        "all": rows,
        "one": rows[:1],
        "worst": [r | {"estimate": 0.0, "low": 0.0, "high": 0.7} for r in rows[:6]],
    }
    kept["best"] = [r | {"estimate": 100.0, "low": 99.0, "high": 100.0} for r in rows[:6]]
    kept["no interval"] = [r | {"low": math.nan, "high": math.nan} for r in rows]
    return pd.DataFrame(kept[case])


def sessions_table(js=(5, 10, 15, 50), backbone="tiny", estimate=97.0, low=96.0):
    rows = [
        {"benchmark": f"mini-dmv-{j}", "condition": "tiles-full", "sessions": j, "estimate": estimate - j / 5}
        | {"low": low - j / 5, "high": 99.0, "n": 600 + j, "clusters": 12 if j == 50 else 40}
        for j in js
    ]
    return pd.DataFrame(rows).assign(backbone=backbone, k=5)


def errand_table(conditions=tuple(result_figures.ERRANDS), backbone="tiny"):
    rows = [
        {"benchmark": "mini-dmv-10", "condition": name, "estimate": 90.0 - 20 * i, "low": 85.0 - 20 * i}
        | {"high": 93.0 - 20 * i, "n": 600, "clusters": 40}
        for i, name in enumerate(conditions)
    ]
    return pd.DataFrame(rows).assign(backbone=backbone, k=5)


def lines(ax):
    return {line.get_label(): line for line in ax.lines}


def points(line):
    return dict(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))


# --- accuracy by length


def test_published_lengths_are_the_tables_values():
    left, _ = result_figures.lengths(memlens(), implied(), lengths_table()).axes
    drawn = lines(left)
    for name, count in (("memlens_agents", 7), ("memlens_lvlms_195", 6)):
        table = memlens()[(memlens()["table"] == name) & (memlens()["kind"] == "overall")]
        assert table["system"].nunique() == count
        for system, part in table.groupby("system"):
            assert points(drawn[system]) == dict(zip(part["length"], part["value"], strict=True)), system
    assert points(drawn["best agent"]) == {32: 32.82, 64: 31.28, 128: 31.28, 256: 30.77}
    assert set(drawn) == {*memlens().query("n == 195")["system"], "best agent", "DeliverMem"}


def test_what_the_paper_implies_is_hollow_and_in_the_published_panel_alone():
    left, right = result_figures.lengths(memlens(), implied(), lengths_table()).axes
    mark = lines(left)["DeliverMem"]
    assert mark.get_marker() == "D" and mark.get_markerfacecolor() == "white"
    assert points(mark) == pytest.approx({32: 100 * 100 / 195, 64: 100 * 86 / 195, 128: 100 * 82 / 195})
    assert not any(line.get_marker() == "D" for line in right.lines)
    assert "not measured here" in left.get_title(loc="left") and "n = 195" in left.get_title(loc="left")
    assert to_hex(lines(right)["DeliverMem"].get_color()).upper() == canvas.PALETTE["pixels"]
    greys = {to_hex(line.get_color()) for line in left.lines}
    assert all(
        len({grey[1:3], grey[3:5], grey[5:]}) <= 3 and grey.upper() != canvas.PALETTE["pixels"]
        for grey in greys
    )


def test_the_two_panels_are_two_benchmarks_with_axes_of_their_own():
    left, right = result_figures.lengths(memlens(), implied(), lengths_table()).axes
    assert "MemLens's questions" in left.get_ylabel() and "mini-memlens's questions" in right.get_ylabel()
    assert not left.get_shared_y_axes().joined(left, right)
    title = right.get_title(loc="left").replace("\n", " ")
    assert title == "measured here: tiny on mini-memlens, 64 conversations each, K = 10"


def test_measured_lengths_are_the_tables_values_and_what_does_not_fit_is_no_accuracy():
    table = lengths_table()
    _, ax = result_figures.lengths(memlens(), implied(), table).axes
    drawn = lines(ax)
    for condition, name in (("bm25-pixels", "DeliverMem"), ("full-context", "reads everything")):
        rows = table[(table["condition"] == condition) & table["estimate"].notna()]
        assert [*points(drawn[name]).values()] == pytest.approx(rows["estimate"].tolist())
    whiskers = [segment[:, 1].tolist() for c in ax.collections for segment in c.get_segments()]
    known = table[table["estimate"].notna()]
    assert sorted(whiskers) == sorted(known[["low", "high"]].to_numpy().tolist())
    beyond = drawn["reads everything: none fits the model"]
    assert beyond.get_linestyle() == "None" and beyond.get_marker() == "x"
    assert [round(x) for x in points(beyond)] == [2, 3]
    ticks = [tick.get_text().split("\n") for tick in ax.get_xticklabels()]
    assert [tick[0] for tick in ticks] == ["1x", "2x", "4x", "7.4x"]
    assert [tick[1:] for tick in ticks[1:3]] == [["● 512", "■ 412"], ["● 512", "■ 0"]]


@pytest.mark.parametrize(
    ("case", "backbone"),
    [("all", LONG), ("one", "tiny"), ("worst", LONG), ("best", "tiny"), ("no interval", "tiny")],
)
def test_lengths_are_readable(case, backbone):
    fig = result_figures.lengths(memlens(), implied(), lengths_table(case, backbone=backbone))
    assert backbone in face(fig).replace(" ", "")
    assert_readable(fig)


# --- success by sessions


def test_published_sessions_are_the_tables_values_on_both_back_ends():
    fig = result_figures.sessions(shop(), sessions_table())
    table = shop().query("table == 'dmv_systems' and name == 'success'")
    for ax, backbone in zip(fig.axes, ("Qwen2.5-VL-7B", "Gemini"), strict=False):
        assert ax.get_title(loc="left") == f"back-end {backbone}"
        part = table[table["backbone"] == backbone]
        drawn = lines(ax)
        assert set(drawn) == set(part["system"]) and len(drawn) == 7
        for system, rows in part.groupby("system"):
            assert [*points(drawn[system]).values()] == rows.sort_values("length")["value"].tolist()
        stated = part[part["low"].notna()].sort_values("length")[["low", "high"]].to_numpy().tolist()
        assert [segment[:, 1].tolist() for c in ax.collections for segment in c.get_segments()] == stated
        sizes = part.groupby("length")["n"].first()
        ticks = [tick.get_text() for tick in ax.get_xticklabels()]
        assert ticks == [f"{j}\nn = {n}" for j, n in sizes.items()]
    assert "DMV-Bench's probes" in fig.axes[0].get_ylabel() and "not measured here" in face(fig)


def test_measured_sessions_have_a_panel_of_their_own():
    table = sessions_table()
    fig = result_figures.sessions(shop(), table.sample(frac=1, random_state=1))
    *published_axes, ours = fig.axes
    assert [*points(lines(ours)["DeliverMem"]).values()] == pytest.approx(table["estimate"].tolist())
    assert "mini-dmv's probes" in ours.get_ylabel()
    assert not any(ours.get_shared_y_axes().joined(ours, ax) for ax in published_axes)
    assert [tick.get_text() for tick in ours.get_xticklabels()] == [
        f"{j}\nn = {600 + j}" for j in (5, 10, 15, 50)
    ]
    assert "tiny on mini-dmv, 12 to 40 chains, K = 5" in ours.get_title(loc="left").replace("\n", " ")


def test_the_papers_margin_is_said_and_not_drawn():
    without = result_figures.sessions(shop(), sessions_table())
    fig = result_figures.sessions(shop(), sessions_table(), paper=published.paper())
    said = "largest margin over the strongest is +23.5 points, at J = 50, its back-end not stated"
    assert said in face(fig) and said not in face(without)
    assert [len(ax.lines) for ax in fig.axes] == [len(ax.lines) for ax in without.axes]


def test_errands_are_drawn_where_they_were_run():
    table = errand_table()
    fig = result_figures.sessions(shop(), sessions_table(), errand=table)
    ax = fig.axes[-1]
    assert {name: next(iter(points(line))) for name, line in lines(ax).items()} == dict(
        zip(table["condition"], table["estimate"], strict=True)
    )
    assert "tiny's walks on mini-dmv-10, n = 600 in 40 chains, K = 5" in ax.get_title(loc="left").replace(
        "\n", " "
    )
    some = result_figures.sessions(shop(), sessions_table(), errand=errand_table(["errand-none"]))
    assert [tick.get_text() for tick in some.axes[-1].get_yticklabels()] == ["no tag"]
    table.loc[0, ["estimate", "low", "high"]] = math.nan
    assert "not judged" in face(result_figures.sessions(shop(), sessions_table(), errand=table))


@pytest.mark.parametrize(
    ("backbone", "errand", "js", "estimate", "low"),
    [
        (LONG, True, (5, 10, 15, 50), 100, 99),
        (LONG, False, (10,), 4, math.nan),
        ("tiny", True, (5, 50), 50, math.nan),
    ],
)
def test_sessions_are_readable(backbone, errand, js, estimate, low):
    run = errand_table(backbone=backbone) if errand else None
    table = sessions_table(js, backbone, estimate, low)
    assert_readable(result_figures.sessions(shop(), table, errand=run, paper=published.paper()))


# --- what holds for both


def test_the_order_of_rows_changes_nothing():
    own = lengths_table()
    mixed = [table.sample(frac=1, random_state=1) for table in (memlens(), implied(), own)]
    assert png(result_figures.lengths(memlens(), implied(), own)) == png(result_figures.lengths(*mixed))
    shuffled = result_figures.sessions(shop().sample(frac=1, random_state=1), sessions_table())
    assert png(shuffled) == png(result_figures.sessions(shop(), sessions_table()))


def test_tables_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="must have one backbone, not 2; select one"):
        both = pd.concat([lengths_table(), lengths_table(backbone="other")])
        result_figures.lengths(memlens(), implied(), both)
    with pytest.raises(ValueError, match="must have one condition, not 2"):
        two = pd.concat([lengths_table(), lengths_table("one").assign(condition="top-k5")])
        result_figures.lengths(memlens(), implied(), two)
    with pytest.raises(ValueError, match="one row a benchmark and condition"):
        result_figures.lengths(memlens(), implied(), pd.concat([lengths_table(), lengths_table()]))
    with pytest.raises(ValueError, match="must have one k, not 2"):
        result_figures.sessions(shop(), pd.concat([sessions_table(), sessions_table().assign(k=9)]))
    with pytest.raises(ValueError, match="lacks the columns: not_applicable"):
        result_figures.lengths(memlens(), implied(), lengths_table().drop(columns="not_applicable"))
    with pytest.raises(ValueError, match="has 0 rows"):
        result_figures.sessions(shop(), sessions_table().head(0))


@given(st.lists(st.floats(-50, 50), max_size=12).map(sorted), st.floats(0, 10))
def test_labels_stand_apart_and_no_further_off_than_they_must(values, gap):
    placed = result_figures.apart(values, gap)
    assert len(placed) == len(values)
    assert all(b - a >= gap - 1e-9 for a, b in itertools.pairwise(placed))
    assert sum(placed) == pytest.approx(sum(values), abs=1e-6)
    if all(b - a >= gap for a, b in itertools.pairwise(values)):
        assert placed == pytest.approx(values, abs=1e-9)
