"""Figures, read from their artists. Labels fit at the extremes, and files repeat byte by byte."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

from delivermem import canvas, delivery, figures, published, stats
from delivermem.records import Answer, Picture, Record, parse_time

LONG = "Some-Organisation/Some-Vision-Language-Model-235B-A22B-Instruct-FP8_with_a_long_suffix"
CASES = {
    "ordinary": {},
    "long names": {"backbone": LONG, "benchmark": "canonical-subset-128k"},
    "a dollar": {"backbone": "$100_model$", "benchmark": "a_b^c"},
    "two": {"backbones": ("A-small-model", LONG)},
}
VALUES = {
    "ordinary": lambda rng, n: np.sort(rng.uniform(5, 60, (n, 3)), axis=1),
    "zero": lambda rng, n: np.zeros((n, 3)),
    "negative": lambda rng, n: np.sort(rng.uniform(-60, -5, (n, 3)), axis=1),
    "widest": lambda rng, n: np.tile([-100.0, -100.0, 100.0], (n, 1)),
    "unknown": lambda rng, n: np.tile([np.nan, 3.0, np.nan], (n, 1)),
}


def setting(backbone="tiny", benchmark="mini", k=8):
    return {"benchmark": benchmark, "backbone": backbone, "k": k}


def settings_of(case):
    case = dict(CASES[case])
    backbones = case.pop("backbones", (case.pop("backbone", "tiny"),))
    return [setting(backbone, **case) for backbone in backbones]


def terms_table(case="ordinary", values="ordinary"):
    rows = []
    for i, names in enumerate(settings_of(case)):
        drawn = VALUES[values](np.random.default_rng(i), 5)
        for term, (low, points, high) in zip(
            ("delivery", "retrieval", "gap", "recent", "random"), drawn, strict=True
        ):
            found = {"term": term, "points": points, "low": low, "high": high, "n": 433, "clusters": 60}
            rows.append(
                names | found | {"fixed": 131, "broken": 27, "p": 0.0078, "p_cluster": 1e-9, "left_out": 0}
            )
    return pd.DataFrame(rows)


def accuracy_table(case="ordinary", kinds=None, share=None):
    rows = []
    for i, names in enumerate(settings_of(case)):
        rng = np.random.default_rng(i)
        for kind, condition in itertools.product(kinds or [None], figures.CONDITIONS):
            low, value, high = np.sort(rng.uniform(0, 100, 3)) if share is None else (share,) * 3
            found = {
                "condition": condition,
                "estimate": value,
                "low": low,
                "high": high,
                "n": 80,
                "clusters": 60,
            }
            found |= {"recall": 84.0, "failed": 0, "unjudged": 0} | ({"kind": kind} if kind else {})
            rows.append(names | found)
    return pd.DataFrame(rows)


def failure_table(case="ordinary", wrong=10, refusal=21):
    counts = {"n": 173, "fixed": wrong + refusal, "confident_wrong": wrong, "refusal": refusal}
    return pd.DataFrame([names | counts for names in settings_of(case)])


def texts(fig):
    return [t for t in fig.findobj(Text) if t.get_visible() and t.get_text().strip()]


def face(fig):
    return " ".join(t.get_text() for t in texts(fig)).replace("\n", " ")


def boxes(fig):
    """What each drawn text says and where it stands, in pixels; ticks out of view are not drawn."""
    fig.set_dpi(200)
    FigureCanvasAgg(fig).draw()
    hidden = set()
    for ax in fig.findobj(lambda artist: hasattr(artist, "get_xticklabels")):
        for axis in (ax.xaxis, ax.yaxis):
            shown = {id(tick) for tick in axis._update_ticks()} if ax.axison else set()
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                for label in (tick.label1, tick.label2):
                    if id(tick) not in shown:
                        hidden.add(id(label))
    return [(t.get_text(), t.get_window_extent()) for t in texts(fig) if id(t) not in hidden]


def assert_readable(fig):
    """Every text lies within the figure, and no two of them overlap."""
    drawn = boxes(fig)
    width, height = fig.bbox.size
    assert drawn
    for text, box in drawn:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, (text, box)
    for (a, box_a), (b, box_b) in itertools.combinations(drawn, 2):
        wide = min(box_a.x1, box_b.x1) - max(box_a.x0, box_b.x0)
        high = min(box_a.y1, box_b.y1) - max(box_a.y0, box_b.y0)
        assert wide <= 2 or high <= 4, f"{a!r} and {b!r} overlap"


def bars(ax):
    return {c.get_label(): c.patches[0] for c in ax.containers}


def png(fig):
    return fig._repr_png_()[0]


# --- decomposition


@pytest.mark.parametrize(
    ("case", "values"), [*(("ordinary", values) for values in VALUES), *((case, "widest") for case in CASES)]
)
def test_decomposition_shows_the_table(case, values):
    table = terms_table(case, values)
    fig = figures.decomposition(table, paper=published.paper())
    for ax, names in zip(fig.axes, settings_of(case), strict=False):
        part = table[(table["backbone"] == names["backbone"])].set_index("term")
        assert list(bars(ax)) == ["delivery", "retrieval", "gap"]
        for term, bar in bars(ax).items():
            assert bar.get_width() == pytest.approx(part.loc[term, "points"]) and bar.get_x() == 0
        intervals = [c.get_segments()[0][:, 0].tolist() for c in ax.collections]
        expected = part.loc[["delivery", "retrieval", "gap"], ["low", "high"]].dropna().to_numpy().tolist()
        assert intervals == expected
        low, high = ax.get_xlim()
        assert all(low <= end <= high for end in [0, *itertools.chain(*expected)])
    assert_readable(fig)


def test_decomposition_names_what_it_shows():
    shown = face(figures.decomposition(terms_table()))
    assert "tiny on mini, n = 433 questions in 60 conversations, K = 8" in shown
    assert "percentage points" in figures.decomposition(terms_table()).axes[-1].get_xlabel()
    assert "131 / 27" in shown and "0.0078" in shown and "< 0.0001" in shown
    assert "left out" not in shown
    assert "433 questions in 60 conversations (12 left out)" in face(
        figures.decomposition(terms_table().assign(left_out=12))
    )


def test_the_papers_values_are_hollow_and_apart():
    fig = figures.decomposition(terms_table(), paper=published.paper())
    ours, paper = fig.axes
    assert not any(line.get_marker() == "D" for line in ours.lines)
    marks = {line.get_label(): line for line in paper.lines if line.get_marker() == "D"}
    values = {name: float(line.get_xdata()[0]) for name, line in marks.items()}
    assert values == {"paper delivery_term": 13.87, "paper retrieval_term": 2.31, "paper gap": 11.56}
    assert all(line.get_markerfacecolor() == "white" for line in marks.values())
    assert not paper.containers
    assert "paper: Qwen3-VL-8B on MemLens 32K, n = 173" in paper.get_title(loc="left")
    assert "not measured here" in paper.get_title(loc="left")
    assert len(figures.decomposition(terms_table()).axes) == 1


def test_query_blind_terms_do_not_change_the_decomposition():
    table = terms_table()
    without = table[table["term"].isin(["delivery", "retrieval", "gap"])]
    assert png(figures.decomposition(table)) == png(figures.decomposition(without))


def test_a_table_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="lacks the columns: p_cluster"):
        figures.decomposition(terms_table().drop(columns="p_cluster"))
    with pytest.raises(ValueError, match="must have the terms delivery, retrieval, gap"):
        figures.decomposition(terms_table().query("term != 'gap'"))
    with pytest.raises(ValueError, match="one row per condition"):
        figures.conditions(accuracy_table(kinds=["knowledge_update", "answer_refusal"]))
    with pytest.raises(ValueError, match="has 0 rows"):
        figures.failures(failure_table().head(0))


# --- conditions, kinds, failures


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("share", [None, 100.0])
def test_conditions_show_the_table(case, share):
    table = accuracy_table(case, share=share)
    fig = figures.conditions(table)
    for ax, names in zip(fig.axes, settings_of(case), strict=True):
        part = table[table["backbone"] == names["backbone"]].set_index("condition")
        assert set(bars(ax)) == set(figures.CONDITIONS)
        for condition, bar in bars(ax).items():
            assert bar.get_width() == pytest.approx(part.loc[condition, "estimate"])
            assert canvas.PALETTE["pixels"] != canvas.PALETTE["text"]
        assert ax.get_xlim() == (0, 100)
    assert "% of questions" in fig.axes[-1].get_xlabel() and "n = 80 questions" in face(fig)
    assert "84 %" in face(fig)
    assert_readable(fig)


def test_condition_colours_mean_the_same_everywhere():
    from matplotlib.colors import to_hex

    drawn = {
        name: to_hex(bar.get_facecolor()).upper()
        for name, bar in bars(figures.conditions(accuracy_table()).axes[0]).items()
    }
    meaning = {"gold-pixels": "pixels", "gold-text": "text", "bm25-pixels": "pixels", "bm25-text": "text"}
    meaning |= {"recent-pixels": "query-blind", "random-pixels": "query-blind"}
    assert drawn == {name: canvas.PALETTE[key] for name, key in meaning.items()}


def test_open_answers_are_said_beside_the_bar():
    table = accuracy_table()
    table.loc[0, ["failed", "unjudged"]] = [3, 2]
    table.loc[1, ["estimate", "low", "high"]] = math.nan
    fig = figures.conditions(table)
    assert "(3 failed, 2 unjudged)" in face(fig) and "not judged" in face(fig)
    assert "gold-text" not in bars(fig.axes[0])


def test_unknown_conditions_and_missing_ones_are_drawn_as_they_are():
    table = accuracy_table().head(2)
    table.loc[1, "condition"] = "a-condition-with-a-very-long-name-that-nobody-planned-for"
    fig = figures.conditions(table)
    assert len(bars(fig.axes[0])) == 2
    assert_readable(fig)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("share", [None, 100.0])
def test_kinds_show_the_table(case, share):
    table = accuracy_table(case, kinds=list(figures.KINDS), share=share)
    fig = figures.by_kind(table)
    axes = iter(fig.axes)
    for names, kind in itertools.product(settings_of(case), figures.KINDS):
        ax = next(axes)
        part = table[(table["backbone"] == names["backbone"]) & (table["kind"] == kind)].set_index(
            "condition"
        )
        points = {line.get_label(): float(line.get_xdata()[0]) for line in ax.lines}
        assert points == pytest.approx(part["estimate"].to_dict())
        assert "n = 80" in ax.get_title(loc="left")
    assert "n = 400 questions" in face(fig) and "% of questions" in face(fig)
    assert_readable(fig)


def test_a_kind_that_a_backbone_lacks_stays_empty():
    table = accuracy_table("two", kinds=["knowledge_update", "something_of_its_own"])
    table = table[(table["backbone"] == "A-small-model") | (table["kind"] == "knowledge_update")]
    fig = figures.by_kind(table)
    assert [len(ax.lines) for ax in fig.axes].count(0) == 1
    assert "n = 0" in face(fig)


@pytest.mark.parametrize(
    ("case", "wrong", "refusal"),
    [("ordinary", 10, 21), ("long names", 0, 40), ("a dollar", 40, 0), ("two", 0, 0), ("ordinary", 1, 999)],
)
def test_failures_show_the_counts(case, wrong, refusal):
    fig = figures.failures(failure_table(case, wrong, refusal), paper=published.paper())
    (ax,) = fig.axes
    total = wrong + refusal
    for container in ax.containers:
        count = wrong if container.get_label() == "confident_wrong" else refusal
        assert container.patches[0].get_width() == pytest.approx(100 * count / total if total else 0)
    assert f"{total} of 173 questions fixed" in face(fig)
    (mark,) = [line for line in ax.lines if line.get_marker() == "D"]
    assert float(mark.get_xdata()[0]) == pytest.approx(100 * 10 / 31)
    assert "10 of 31 confident wrong answers" in face(fig) and "not measured here" in face(fig)
    assert "%" in ax.get_xlabel()
    assert_readable(fig)


# --- what holds for every figure


def test_the_order_of_rows_changes_nothing():
    kinds = accuracy_table("two", kinds=list(figures.KINDS))
    cases = [(figures.decomposition, terms_table("two")), (figures.conditions, accuracy_table("two"))]
    for draw, table in [*cases, (figures.by_kind, kinds), (figures.failures, failure_table("two"))]:
        assert png(draw(table)) == png(draw(table.sample(frac=1, random_state=1))), draw.__name__


def test_the_callers_settings_neither_matter_nor_change():
    import matplotlib

    plain = png(figures.conditions(accuracy_table()))
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "figure.dpi": 50}):
        before = dict(matplotlib.rcParams)
        assert png(figures.conditions(accuracy_table())) == plain
        assert dict(matplotlib.rcParams) == before


def test_drawing_touches_no_pyplot_and_no_backend():
    code = (
        "import sys, matplotlib, pandas as pd; from delivermem import figures;"
        "row = dict(benchmark='b', backbone='m', k=5, n=9, fixed=3, confident_wrong=1, refusal=2);"
        "figures.failures(pd.DataFrame([row]))._repr_png_();"
        "assert 'matplotlib.pyplot' not in sys.modules;"
        "assert matplotlib.get_backend(auto_select=False) is None"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def test_importing_figures_loads_no_matplotlib():
    code = (
        "import sys; import delivermem.figures, delivermem.stats, delivermem.published;"
        "assert not {'matplotlib', 'pandas', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def test_colours_are_told_apart_with_colour_vision_deficiencies():
    """Distance in CIELAB under the full-severity simulations of Machado, Oliveira & Fernandes 2009."""
    simulate = {
        "none": np.eye(3),
        "protan": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        "deutan": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
        "tritan": [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    }
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])

    def lab(colour, matrix):
        srgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
        xyz = to_xyz @ np.clip(np.array(matrix) @ linear, 0, 1) / to_xyz.sum(axis=1)
        f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    meanings = {name: colour for name, colour in canvas.PALETTE.items() if name != "quiet"}
    for (a, b), (kind, matrix) in itertools.product(itertools.combinations(meanings, 2), simulate.items()):
        assert np.linalg.norm(lab(meanings[a], matrix) - lab(meanings[b], matrix)) > 12, (a, b, kind)


# --- one prompt, drawn


def prompt(decisions=delivery.DELIVERMEM, text="My receipt says $460. <image> And $5 more."):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8))
    time = parse_time("2024/05/11 (Sat) 19:33")
    pictured = Record("r1", text, time, pictures=(Picture("p1", image, "a red cup"),))
    return delivery.deliver(
        [pictured, Record("r2", "Plain.", time), Record("r3", "")], "What is red?", decisions
    )


def test_a_prompt_is_drawn_with_its_pixels_in_order():
    drawn = prompt()
    fig = figures.delivered(drawn, Answer("a cup"), verdict="right")
    (ax,) = fig.axes
    (picture,) = ax.images
    assert np.array_equal(np.asarray(picture.get_array()), np.asarray(drawn.images[0]))
    left, right, bottom, top = picture.get_extent()
    assert (right - left) / (bottom - top) == pytest.approx(90 / 60)
    shown = face(fig)
    order = [
        "Reply with",
        "M1 2024/05/11 (Sat) 19:33",
        "$460",
        "$5 more",
        "Plain.",
        "What is red?",
        "✓ a cup",
    ]
    places = [shown.replace("  ", " ").index(piece) for piece in order]
    assert places == sorted(places)
    assert_readable(fig)


@pytest.mark.parametrize("modality", ["pixels", "caption", "text"])
@pytest.mark.parametrize("text", ["short", "word " * 900, "W" * 700, ""])
def test_a_drawn_prompt_is_readable(modality, text):
    fig = figures.delivered(
        prompt(delivery.Decisions(modality), f"{text}<image>"), "Insufficient information"
    )
    assert len(fig.axes[0].images) == (modality == "pixels")
    assert ("[image: a red cup]" in face(fig)) == (modality == "caption" and len(text) < 500)
    assert ("more lines]" in face(fig)) == (len(text) > 500)
    assert_readable(fig)


# --- files


def test_saving_twice_gives_the_same_bytes(tmp_path):
    table = terms_table()
    first = figures.save_figure(figures.decomposition(table), "fig1", table, tmp_path / "a")
    fig = figures.decomposition(table)
    figures.save_figure(fig, "fig1", table, tmp_path / "b")
    again = figures.save_figure(fig, "fig1", table, tmp_path / "b")
    assert [path.name for path in first] == ["fig1.png", "fig1.pdf", "fig1.csv"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    with Image.open(first[0]) as saved:
        assert saved.size[0] == round(200 * canvas.WIDTH) and "Software" not in saved.info
    pdf = first[1].read_bytes()
    assert b"CreationDate" not in pdf and b"atplotlib" not in pdf
    read = pd.read_csv(first[2])
    pd.testing.assert_frame_equal(read, table, check_dtype=False)


def test_without_a_table_there_is_no_csv(tmp_path):
    paths = figures.save_figure(figures.failures(failure_table()), "x", folder=str(tmp_path))
    assert sorted(path.suffix for path in paths) == [".pdf", ".png"]


def test_numbers_merge_sorted_and_repeat(tmp_path):
    path = tmp_path / "new" / "numbers.json"
    gap = {
        "value": np.float64(11.5),
        "low": 1.0,
        "high": 20.0,
        "n": np.int64(173),
        "unit": "points",
        "run": "r",
    }
    figures.record_numbers({"b.gap": gap}, path)
    figures.record_numbers({"a.p": {"value": 0.0078}}, path)
    once = path.read_bytes()
    figures.record_numbers({"b.gap": gap, "a.p": {"value": 0.0078}}, path)
    assert path.read_bytes() == once
    read = json.loads(once)
    assert list(read) == ["a.p", "b.gap"]
    assert read["b.gap"] == {"value": 11.5, "low": 1.0, "high": 20.0, "n": 173, "unit": "points", "run": "r"}
    assert read["a.p"] == {"value": 0.0078, "low": None, "high": None, "n": None, "unit": None, "run": None}
    figures.record_numbers({"a.p": {"value": 0.5}}, path)
    assert json.loads(path.read_text(encoding="utf-8"))["a.p"]["value"] == 0.5
    assert [entry.name for entry in path.parent.iterdir()] == ["numbers.json"]


@pytest.mark.parametrize(
    "entry", [{}, {"value": math.nan}, {"value": 1, "low": math.inf}, {"value": 1, "colour": 2}]
)
def test_a_number_that_is_none_is_refused_and_nothing_is_written(tmp_path, entry):
    path = tmp_path / "numbers.json"
    with pytest.raises(ValueError, match="'x'"):
        figures.record_numbers({"good": {"value": 1}, "x": entry}, path)
    assert not path.exists()


# --- text


@pytest.mark.parametrize("text", ["", "a", "one two three " * 20, "x" * 400, "a-b/c_" * 60, "line\n\nline"])
def test_wrapping_keeps_every_character_and_fits(text):
    lines = canvas.wrap(text, 1.5, 8).split("\n")
    assert "".join(lines).replace(" ", "") == text.replace(" ", "").replace("\n", "")
    fig = canvas.figure(3)
    drawn = [fig.text(0, 0, line, fontsize=8) for line in lines]
    FigureCanvasAgg(fig).draw()
    assert max(t.get_window_extent().width for t in drawn) <= 1.5 * fig.dpi * 1.05


def test_numbers_are_written_as_a_reader_expects():
    assert [canvas.signed(x) for x in (13.87, -2.31, 0.0, -0.04)] == [
        "+13.9",
        f"{canvas.MINUS}2.3",
        "0.0",
        "0.0",
    ]
    assert [canvas.p_value(p) for p in (1.0, 0.18, 0.00779, 1e-9)] == ["1", "0.18", "0.0078", "< 0.0001"]
    assert canvas.bracket(math.nan, math.nan) == "[no interval]"


def _contrasts(
    names=("one", "two", "none at all"), settings=(("toy", "stub", 5), ("mini-dmv-10", "stub", 5))
):
    rows = []
    for benchmark, backbone, k in settings:
        for i, name in enumerate(names):
            points = 20.0 - 10 * i
            rows.append(
                dict(
                    benchmark=benchmark, backbone=backbone, k=k, name=name, treated="full", control=name,
                    points=points, low=points - 3, high=points + 3, n=100 - i, clusters=40, fixed=30 - i,
                    broken=10, up=21 - i, down=4, p=0.01, p_cluster=0.02, left_out=i, p_holm=0.03, p_cluster_holm=0.04 + i / 10,
                )
            )  # fmt: skip
    return pd.DataFrame(rows)


def test_a_forest_shows_every_contrast_where_it_lies_and_in_the_order_of_its_labels():
    table = _contrasts()
    labels = {"two": "the second", "one": "the first", "none at all": "nothing - at all"}
    for rows in (table, table.sample(frac=1, random_state=1)):
        fig = figures.forest(rows, labels, xlabel="points lost (percentage points)")
        first, second = fig.axes
        assert [t.get_text() for t in first.get_yticklabels()] == [
            "the second",
            "the first",
            "nothing − at all",
        ]
        for ax in (first, second):
            dots = {line.get_label(): line.get_xdata()[0] for line in ax.lines if line.get_marker() == "o"}
            assert dots == {"one": 20.0, "two": 10.0, "none at all": 0.0}
        said = face(fig)
        assert "98 to 100 questions in 40 chains (0 to 2 left out)" in said and "0.24" in said
        assert "30 / 10" in said and "21 / 4" in said and "+20.0 [+17.0, +23.0]" in said
        assert "p, by chain" in said and "p, by conversation" in said
        assert second.get_xlabel() == "points lost (percentage points)"
        low, high = second.get_xlim()
        assert low < -3 and high > 23
    many = figures.forest(
        _contrasts(settings=[(f"mini-dmv-{j}", "stub", 5) for j in (50, 5, 10)]), labels, xlabel="x"
    )
    assert [ax.get_title(loc="left").split(",")[0] for ax in many.axes] == [
        f"stub on mini-dmv-{j}" for j in (5, 10, 50)
    ]
    with pytest.raises(ValueError, match="no label for none at all"):
        figures.forest(table, {"one": "1", "two": "2"}, xlabel="x")


def test_a_forest_quotes_the_paper_apart_and_only_what_it_states():
    labels = {"one": "the first", "two": "the second", "none at all": "nothing"}
    stated = {"one": "delivery_term", "two": "binding"}
    paper = published.paper()
    fig = figures.forest(_contrasts(), labels, xlabel="points", paper=paper, stated=stated)
    *_, quoted = fig.axes
    assert len(fig.axes) == 3 and [t.get_text() for t in quoted.get_yticklabels()] == [
        "the first",
        "the second",
    ]
    marks = {
        line.get_label(): (line.get_xdata()[0], line.get_marker())
        for line in quoted.lines
        if line.get_label()[0] != "_"
    }
    assert marks == {"paper delivery_term": (13.87, "D"), "paper binding": (6.36, "D")}
    assert "not measured here" in quoted.get_title(loc="left") and "173" in quoted.get_title(loc="left")
    assert not any(line.get_marker() == "o" for line in quoted.lines)
    assert_readable(fig)


def _map(found=None):
    rows = []
    for i, (benchmark, subtype) in enumerate(
        [("mini-memlens", "which"), ("mini-memlens", "when"), ("mini-dmv-10", "reach 1")]
    ):
        for j, name in enumerate(("D1", "D2")):
            if (i, j) != (2, 1):
                rows.append(
                    dict(setting("tiny", benchmark), subtype=subtype, name=name, n=40 - i, points=100.0 * (i == j), helps=i == j,
                         fails="" if i == j else "ii,iii")
                )  # fmt: skip
    return pd.DataFrame(rows)


def test_the_map_says_what_each_decision_is_worth_and_why_not():
    fig = figures.where(_map(), {"D2": "tags", "D1": "pixels", "D3": "dates"})
    ax = fig.axes[0]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["tags", "pixels"]
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "mini-memlens · which, n = 40", "when, n = 39", "mini-dmv-10 · reach 1, n = 38",
    ]  # fmt: skip
    assert "tiny on mini-memlens (K = 8), mini-dmv-10 (K = 8)" in face(fig)
    assert "ii: the information is not needed" in face(fig)
    written = {(int(t.get_position()[0]), int(t.get_position()[1])): t.get_text() for t in ax.texts}
    assert written == {
        (0, 0): "0  ii iii",
        (1, 0): "+100",
        (0, 1): "+100",
        (1, 1): "0  ii iii",
        (1, 2): "0  ii iii",
    }
    assert_readable(fig)
    with pytest.raises(ValueError, match="one row per"):
        figures.where(pd.concat([_map(), _map()]), {"D1": "pixels"})


def test_the_adapters_frame_shows_cue_and_tile_where_they_are():
    frame = Image.fromarray(np.random.default_rng(0).integers(0, 255, (128, 128, 3), dtype=np.uint8))
    fig = figures.adapter(
        frame, (90, 10, 118, 40), (55, 0, 128, 73), asked="Which?", whole=57, best=1, among=240, encoder="eye"
    )
    first, second, third = fig.axes
    assert [p.get_bbox().bounds for p in first.patches] == [(89.5, 9.5, 28, 30)]
    assert [p.get_bbox().bounds for p in second.patches] == [(89.5, 9.5, 28, 30), (54.5, -0.5, 73, 73)]
    assert np.array_equal(np.asarray(third.images[0].get_array()), np.asarray(frame)[:73, 55:])
    assert "57 of 240" in face(fig) and "1 of 240" in face(fig) and "eye: Which?" in face(fig)
    assert_readable(fig)


def test_tiles_show_each_picture_under_its_name():
    images = {f"rung {i}": Image.new("RGB", (20, 20), (i, 0, 0)) for i in range(5)}
    fig = figures.tiles(images)
    shown = [ax for ax in fig.axes if ax.images]
    assert [ax.get_title(loc="left") for ax in shown] == list(images) and len(fig.axes) == 8
    for ax, image in zip(shown, images.values(), strict=True):
        assert (np.asarray(ax.images[0].get_array()) == np.asarray(image)).all()
    with pytest.raises(ValueError, match="no picture"):
        figures.tiles({})


def test_granularity_shows_every_rank_share_with_its_interval():
    ranked = {("tiles", n): [1] * 10 * n + [7] * (40 - 10 * n) for n in (1, 2, 3)}
    ranked[("random crops", 1)] = [1] * 10 + [2] * 30
    table = stats.recall_at_1(ranked)
    by = table.set_index(["cut", "n"])
    assert by.loc[("tiles", 2), "estimate"] == 50 and by.loc[("random crops", 1), "mrr"] == (10 + 15) / 40
    assert (by.low < by.estimate).all() and (by.estimate < by.high).all()
    ax = figures.granularity(table, encoder="eye").axes[0]
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert lines == {"tiles": [25, 50, 75], "random crops": [25]}
    assert [t.get_text() for t in ax.get_xticklabels()] == ["1 x 1", "2 x 2", "3 x 3"]
    assert "eye, n = 40 frames" in ax.get_title(loc="left") and "%" in ax.get_ylabel()


def test_the_letters_are_of_matplotlibs_own_file_whatever_the_machine_has(monkeypatch):
    from matplotlib import font_manager, get_data_path

    installed = font_manager.FontEntry(fname="/no/such/DejaVuSans.ttf", name="DejaVu Sans", weight=400)
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [installed, *font_manager.fontManager.ttflist])
    with canvas.style():
        for weight, file in (("normal", "DejaVuSans.ttf"), ("bold", "DejaVuSans-Bold.ttf")):
            found = font_manager.findfont(
                font_manager.FontProperties(weight=weight), rebuild_if_missing=False
            )
            assert Path(found) == Path(get_data_path(), "fonts", "ttf", file)
