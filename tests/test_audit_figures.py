"""Figures of the audit, read from their artists."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from matplotlib.patches import Rectangle
from PIL import Image
from test_figures import LONG, assert_readable, face, texts

from delivermem import audit, audit_figures, published
from delivermem.records import Slot

LABELS = {"errand-stamp": "stamped tags", "errand-constant": "constant tag", "errand-none": "no tag"}
FAILING = {
    "errand-stamp": [0] * 7,
    "errand-constant": [9, 1, 5, 2, 3, 20, 60],
    "errand-none": [0, 0, 0, 0, 0, 0, 30],
}


def arm(condition, backbone="tiny"):
    return {"benchmark": "mini-dmv-10", "backbone": backbone, "k": 5, "condition": condition}


def counts(failing=FAILING, backbone="tiny"):
    rows = []
    for condition, numbers in failing.items():
        failures = sum(numbers)
        classes = dict(zip(audit.FAILURES, numbers, strict=True))
        known = {"probes": 600, "right": 590 - failures, "unjudged": 10, "failures": failures}
        rows.append(arm(condition, backbone) | known | classes)
    return pd.DataFrame(rows)


def shares(failing=FAILING, backbone="tiny"):
    rows = []
    for share in audit.SHARES:
        for i, (condition, numbers) in enumerate(failing.items()):
            n = sum(numbers)
            held = n // (2 + i)
            value = 100 * held / n if n else np.nan
            found = {
                "estimate": value,
                "low": value / 2,
                "high": (100 + value) / 2,
                "held": held,
                "n": n,
                "clusters": 9,
            }
            rows.append(arm(condition, backbone) | {"share": share} | found)
    return pd.DataFrame(rows)


def distances(n=40):
    rows = []
    for condition in LABELS:
        for away in (-4, -3, -2, -1, 1, 2, 3, 4):
            found = {"distance": away, "count": away + 4, "share": float(away + 4), "alike": 12.5, "n": n}
            if not n:
                found |= {"count": 0, "share": np.nan, "alike": np.nan}
            rows.append(arm(condition) | found)
    return pd.DataFrame(rows)


def bars(ax):
    return {c.get_label(): c.patches[0] for c in ax.containers}


def test_the_stacks_are_the_classes_and_the_papers_shares_are_marked():
    table = counts()
    fig = audit_figures.by_class(table, shares(), LABELS, paper=published.paper())
    top, below = fig.axes
    drawn = bars(top)
    for y, (condition, label) in enumerate(LABELS.items()):
        numbers = FAILING[condition]
        left = 0.0
        for name, (number, colour) in dict(
            zip(audit.FAILURES, zip(numbers, audit_figures.COLOURS.values(), strict=True), strict=True)
        ).items():
            patch = drawn[f"{condition}: {name}"]
            width = 100 * number / sum(numbers) if sum(numbers) else 0
            assert patch.get_width() == pytest.approx(width) and patch.get_x() == pytest.approx(left), name
            assert patch.get_y() + patch.get_height() / 2 == pytest.approx(y)
            assert f"#{''.join(f'{round(255 * c):02X}' for c in patch.get_facecolor()[:3])}" == colour
            left += width
        assert f"{sum(numbers)} of 600 fail, 10 not judged" in face(fig)
        assert top.get_yticklabels()[y].get_text() == label
    marks = {
        line.get_label(): (line.get_xdata()[0], line.get_marker())
        for line in below.lines
        if line.get_label()[0] != "_"
    }
    diamonds = {name: at for name, (at, marker) in marks.items() if marker == "D"}
    assert diamonds == {"paper neighbour_failures": 98, "paper named_then_missed": 94}
    dots = {name: at for name, (at, marker) in marks.items() if marker == "o"}
    some = shares()[shares().n > 0]
    assert dots == {f"{r.condition}: {r.share}": r.estimate for r in some.itertuples()}
    assert face(fig).count("no such failure") == len(audit.SHARES)
    assert "published values, not measured here" in face(fig) and "%" in below.get_xlabel()
    assert "tiny on mini-dmv-10, K = 5" in face(fig)
    assert_readable(fig)


def test_only_classes_that_occur_are_in_the_legend_and_without_any_failure_the_figure_says_so():
    fig = audit_figures.by_class(counts(), shares(), LABELS)
    assert {t.get_text() for t in fig.axes[0].get_legend().get_texts()} == set(audit.FAILURES)
    one = {condition: [0] * 6 + [3] for condition in LABELS}
    fig = audit_figures.by_class(counts(one), shares(one), LABELS)
    assert [t.get_text() for t in fig.axes[0].get_legend().get_texts()] == ["cue named"]
    none = {condition: [0] * 7 for condition in LABELS}
    fig = audit_figures.by_class(counts(none), shares(none), LABELS, paper=published.paper())
    assert fig.axes[0].get_legend() is None and "no arm has a failure" in face(fig)
    assert face(fig).count("no such failure") == 3 * len(audit.SHARES)
    assert_readable(fig)


def test_long_names_fit_and_the_order_of_rows_changes_nothing():
    fig = audit_figures.by_class(
        counts(backbone=LONG), shares(backbone=LONG), LABELS, paper=published.paper()
    )
    assert_readable(fig)
    again = audit_figures.by_class(counts()[::-1], shares()[::-1], LABELS, paper=published.paper())
    first = audit_figures.by_class(counts(), shares(), LABELS, paper=published.paper())
    assert again._repr_png_() == first._repr_png_()


def test_a_table_of_two_backbones_or_of_an_arm_without_a_label_is_refused():
    both = pd.concat([counts(), counts(backbone="other")])
    with pytest.raises(ValueError, match="one benchmark and backbone"):
        audit_figures.by_class(both, shares(), LABELS)
    with pytest.raises(ValueError, match="labelled arm"):
        audit_figures.by_class(counts(), shares(), {"errand-stamp": "stamped"})
    with pytest.raises(ValueError, match="lacks the columns: failures"):
        audit_figures.by_class(counts().drop(columns="failures"), shares(), LABELS)


def test_distances_are_bars_beside_what_any_neighbour_alike_would_give():
    fig = audit_figures.distance(distances(), LABELS)
    assert len(fig.axes) == 3
    for ax, label in zip(fig.axes, LABELS.values(), strict=True):
        assert ax.get_title(loc="left") == f"{label}\nn = 40 opened neighbours"
        heights = {round(p.get_x() + p.get_width() / 2): p.get_height() for p in ax.containers[0].patches}
        assert heights == {away: away + 4 for away in (-4, -3, -2, -1, 1, 2, 3, 4)}
        dashes = next(line for line in ax.lines if line.get_label() == "any neighbour alike")
        assert list(dashes.get_ydata()) == [12.5] * 8
    assert "places from the target" in face(fig) and "share (%)" in face(fig)
    assert_readable(fig)
    fig = audit_figures.distance(distances(0), LABELS)
    assert face(fig).count("none opened") == 3 and not any(ax.patches for ax in fig.axes)
    assert_readable(fig)


def slots(number=5):
    rng = np.random.default_rng(0)
    frames = [Image.fromarray(rng.integers(0, 255, (128, 128, 3), dtype=np.uint8)) for _ in range(number)]
    return [Slot(f"r{i}", f"p{i}", frame) for i, frame in enumerate(frames)]


def example(said="Thought: M1 shows the red key.", mark=(22, 29), **changed):
    known = {
        "target": 2,
        "opened": 1,
        "box": (90, 10, 118, 40),
        "said": said,
        "mark": mark,
        "asked": "red key",
        "heading": "one",
    }
    shown = slots()
    return audit_figures.worked(shown, [f"M{i}" for i in range(1, len(shown) + 1)], **known | changed)


def roles(fig):
    return [ax.get_title(loc="center") for ax in fig.axes[1:]]


def test_the_example_shows_the_pictures_as_delivered_with_the_cue_boxed_in_the_targets_alone():
    fig = example()
    assert roles(fig) == ["opened", "target", "", "", ""]
    for ax, slot in zip(fig.axes[1:], slots(), strict=True):
        assert np.array_equal(np.asarray(ax.images[0].get_array()), np.asarray(slot.image))
    boxes = [[p for p in ax.patches if isinstance(p, Rectangle)] for ax in fig.axes[1:]]
    assert [len(found) for found in boxes] == [0, 2, 0, 0, 0]
    left, top, width, height = boxes[1][-1].get_bbox().bounds
    assert left <= 89.5 and top <= 9.5 and left + width >= 117.5 and top + height >= 39.5 and width < 40
    assert_readable(fig)


def test_right_is_target_and_opened_in_one_and_nothing_opened_is_none():
    assert roles(example(opened=2)) == ["", "target, opened", "", "", ""]
    assert roles(example(opened=0)) == ["", "target", "", "", ""]
    fig = example(box=None, target=0, opened=0)
    assert roles(fig) == [""] * 5 and not any(ax.patches for ax in fig.axes)


@pytest.mark.parametrize("words", [1, 12, 60])
def test_the_words_are_whole_and_the_mention_has_the_colour_of_the_target(words):
    """Also where the quotation takes several lines and the mention goes over the end of one."""
    said = "so it is here " * words + "M1 shows the red key of all."
    start = said.index("red key")
    fig = example(said, (start, start + 7))
    page = fig.axes[0]
    quoted = [t for t in page.texts if t.get_text() not in ("one", "asked for: red key")]
    assert " ".join(t.get_text() for t in quoted).split() == f"“{said}”".split()
    coloured = [t.get_text() for t in quoted if t.get_color() == audit_figures.PALETTE["right"]]
    assert " ".join(coloured) == "red key"
    assert_readable(fig)


def test_a_trace_that_names_nothing_and_one_that_says_nothing_are_drawn():
    for said in ("Thought: M1 fits.", "", "x" * 400, "$a_b^c$ <b>&"):
        fig = example(said, (0, 0))
        assert not [t for t in fig.axes[0].texts if t.get_color() == audit_figures.PALETTE["right"]]
        assert_readable(fig)
        assert any(t.get_text().startswith("“") for t in texts(fig))


def test_pictures_and_names_must_pair():
    with pytest.raises(ValueError, match="5 pictures and 1 names"):
        audit_figures.worked(
            slots(), ["M1"], target=1, opened=2, box=None, said="", asked="red key", heading="one"
        )
