"""Published numbers: the arithmetic from counts gives the printed digits, a malformed table says where."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delivermem import published, stats

HEADER = ",".join(published.COLUMNS)
DATA = Path(__file__).resolve().parents[1] / "data" / "published"
TYPES = {
    "information_extraction": (61, 246),
    "multi_session_reasoning": (35, 143),
    "temporal_reasoning": (48, 194),
    "knowledge_update": (29, 116),
    "answer_refusal": (22, 90),
}
"""Questions of each type in MemLens's subset and in the whole (arXiv 2605.14906)."""


def csv_of(*rows, **common):
    """A table as text; what is not given is as little as a number needs."""
    text = io.StringIO()
    writer = csv.DictWriter(text, published.COLUMNS, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({"name": "x", "unit": "percent", "source": "page 1"} | common | row for row in rows)
    return text.getvalue()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "published").mkdir()
    monkeypatch.setenv("DELIVERMEM_DATA", str(tmp_path))
    return tmp_path / "published"


def only(table, name, backbone="Qwen3-VL-8B", benchmark="MemLens 32K"):
    rows = table[
        (table["name"] == name) & (table["backbone"] == backbone) & (table["benchmark"] == benchmark)
    ]
    (row,) = rows.to_dict("records")
    return row


@pytest.mark.parametrize("name", published.tables())
def test_shares_of_counts_round_to_the_printed_digits(name):
    table = published.read(name)
    rows = table[table["unit"].isin(["points", "percent"]) & table["count"].notna()].to_dict("records")
    assert len(rows) == {"delivermem_paper": 9, "memlens_agents": 168, "memlens_lvlms_195": 108}.get(
        name, len(rows)
    )
    for row in rows:
        decimals = len(row["printed"].partition(".")[2])
        assert f"{100 * row['count'] / row['n']:.{decimals}f}" == row["printed"], row


def test_counts_of_questions_are_their_values():
    table = published.paper()
    counted = table[table["unit"] == "questions"]
    assert len(counted) >= 5
    assert (counted["value"] == counted["count"]).all()


def test_the_decomposition_is_consistent():
    table = published.paper()
    value = {
        name: only(table, name) for name in ("delivery_term", "retrieval_term", "gap", "fixed", "broken")
    }
    assert value["fixed"]["count"] - value["broken"]["count"] == value["delivery_term"]["count"]
    assert value["delivery_term"]["count"] - value["retrieval_term"]["count"] == value["gap"]["count"]
    discordant = [only(table, name)["count"] for name in ("gap_fixed", "gap_broken")]
    assert discordant[0] - discordant[1] == value["gap"]["count"]
    gap_p = only(table, "gap_p")
    assert f"{stats.mcnemar(*discordant):.4f}" == gap_p["printed"]
    assert only(table, "confident_wrong")["n"] == value["fixed"]["count"]


def test_the_claims_come_out_of_their_counts():
    """What the paper states, against whole numbers that give it and no others."""
    table = published.paper()
    counts = {
        row["name"]: row["count"] for row in table.to_dict("records") if row["benchmark"] == "MemLens 32K"
    }
    assert counts["delivery_term"] == 24 and f"{100 * 24 / 173:.2f}" == "13.87"
    assert counts["retrieval_term"] == 4 and f"{100 * 4 / 173:.2f}" == "2.31"
    assert counts["gap"] == 20 and f"{100 * 20 / 173:.2f}" == "11.56"
    assert counts["margin_agent_answerable"] == 17 and f"{100 * 17 / 173:.2f}" == "9.83"
    assert counts["binding"] == 11 and f"{100 * 11 / 173:.2f}" == "6.36"
    assert only(table, "confident_wrong")["n"] == counts["fixed"] == 31
    refusals = counts["margin_agent"] - counts["margin_agent_answerable"]
    assert (counts["margin_agent"], refusals) == (36, 19)
    full = table[table["name"] == "margin_full_context"].set_index("length")
    assert full["count"].to_dict() == {32: 1, 64: -7, 128: 15} and (full["n"] == 195).all()
    stated = {row["name"]: row["counted"] for row in table.to_dict("records")}
    assert (stated["margin_agent"], stated["delivery_term"]) == ("stated", "derived")


def test_no_other_split_with_the_net_of_the_gap_has_its_p():
    table = published.paper()
    net, printed = only(table, "gap")["count"], only(table, "gap_p")["printed"]
    fits = [broken for broken in range(174 - net) if f"{stats.mcnemar(broken + net, broken):.4f}" == printed]
    assert fits == [only(table, "gap_broken")["count"]] == [16]


def test_the_implied_accuracy_is_worked_out_from_margins_and_tables():
    table = published.implied().set_index(["benchmark", "kind"])
    overall = table.xs("overall", level="kind")
    assert overall["count"].to_dict() == {"MemLens 32K": 100, "MemLens 64K": 86, "MemLens 128K": 82}
    assert overall["printed"].to_dict() == {
        "MemLens 32K": "51.28",
        "MemLens 64K": "44.10",
        "MemLens 128K": "42.05",
    }
    assert overall["source"]["MemLens 32K"] == "derived from margin_full_context and margin_agent"
    memlens = (
        published.memlens()
        .query("kind == 'overall' and benchmark == 'MemLens 32K'")
        .set_index(["table", "system"])
    )
    value = {
        row["name"]: row["value"]
        for row in published.paper().query("benchmark == 'MemLens 32K'").to_dict("records")
    }
    for other, margin in (
        (memlens.loc[("memlens_agents", "MemAgent-7B"), "value"], "margin_agent"),
        (memlens.loc[("memlens_lvlms_195", "Qwen3-VL-8B-I"), "value"], "margin_full_context"),
    ):
        assert f"{other + value[margin]:.2f}" == "51.28"
    parts = table.loc["MemLens 32K"].drop("overall")
    assert parts["count"].sum() == 100 and parts["n"].sum() == 195
    assert parts["count"]["answer_refusal"] == 22


@pytest.mark.parametrize("name", ["memlens_agents", "memlens_lvlms_195", "memlens_lvlms_789"])
def test_types_of_question_give_the_overall_number_or_a_note_says_that_they_do_not(name):
    """Counts are worked out here anew; the notes are on those tables' errors and on nothing else."""
    table = published.read(name)
    table = table[table["kind"] != ""]
    whole, off = name.endswith("789"), set()
    for (system, benchmark), part in table.groupby(["system", "benchmark"]):
        value = part.set_index("kind")["value"]
        n = {kind: n[whole] for kind, n in TYPES.items()}
        assert part.set_index("kind")["n"].drop("overall").to_dict() == {
            kind: n[kind] for kind in value.index[:-1]
        }
        if len(value) < 6:
            continue
        total = sum(round(value[kind] * n[kind] / 100) for kind in n)
        if f"{100 * total / sum(n.values()):.2f}" != f"{value['overall']:.2f}":
            off.add((system, benchmark))
    noted = table[
        table["note"].str.startswith(published.AS_PRINTED) & ~table["note"].str.contains("no count")
    ]
    assert off == set(zip(noted["system"], noted["benchmark"], strict=True))
    assert len(off) == (10 if name == "memlens_agents" else 0)


def test_the_known_misprints_are_kept_as_printed():
    table = published.memlens().set_index(["table", "system", "benchmark", "kind"]).sort_index()
    m2a = table.loc[("memlens_agents", "M2A", "MemLens 32K")]
    assert m2a["printed"]["temporal_reasoning"] == "2.08"
    rest = m2a["count"].drop(index=["overall", "temporal_reasoning"]).sum()
    assert rest + 13 == m2a["count"]["overall"] == 30 and f"{100 * 13 / 48:.2f}" == "27.08"
    memos = table.loc[("memlens_agents", "MemOS", "MemLens 32K", "overall")]
    assert memos["printed"] == "30.26" and memos["note"].startswith(
        "as printed: the types give 60 of 195 (30.77)"
    )
    shop = published.dmv()
    gap = shop[(shop["name"] == "difference") & (shop["backbone"] == "Gemini") & (shop["length"] == 15)].iloc[
        0
    ]
    assert gap["printed"] == "12.4" and "differ by 11.7" in gap["note"]
    assert set(shop[shop["table"] == "dmv_tables_7_8"]["note"].str[:12]) == {"as printed: "}


def test_differences_of_dmv_are_those_of_its_table_or_a_note_says_so():
    shop = published.dmv()
    at = shop[shop["table"] == "dmv_systems"].set_index(["name", "system", "backbone", "length"]).sort_index()
    for (backbone, length), row in at.loc[("difference", "DualMem - M2A")].iterrows():
        ours = at.loc[("success", "DualMem", backbone, length), "value"]
        found = ours - at.loc[("success", "M2A", backbone, length), "value"]
        assert (abs(found - row["value"]) < 0.05) != (f"differ by {found:.1f}" in row["note"]), (
            backbone,
            length,
        )


def test_the_images_of_gpt_are_counted_over_all_but_the_refusal_questions():
    table = published.memlens().query("table == 'memlens_images' and system == 'GPT-5.4'")
    value = table[table["name"] == "accuracy_with_images"].set_index("kind")["value"]
    n = {kind: TYPES[kind][1] for kind in value.index if kind in TYPES}
    total = sum(round(value[kind] * n[kind] / 100) for kind in n)
    assert (total, sum(n.values())) == (651, 699) and f"{100 * 651 / 699:.2f}" == f"{value['overall']:.2f}"


def test_the_families_are_whole():
    memlens, shop = published.memlens(), published.dmv()
    agents = memlens[(memlens["table"] == "memlens_agents") & (memlens["kind"] == "overall")]
    assert agents["system"].nunique() == 7 and set(agents["length"]) == {32, 64, 128, 256}
    best = agents.groupby("length")["value"].max()
    assert best.to_dict() == {32: 32.82, 64: 31.28, 128: 31.28, 256: 30.77}
    assert memlens[memlens["table"] == "memlens_lvlms_789"]["system"].nunique() == 15
    systems = shop[(shop["table"] == "dmv_systems") & (shop["name"] == "success")]
    assert len(systems) == 7 * 2 * 4 and set(systems["length"]) == {5, 10, 15, 50}
    assert set(systems[systems["low"].notna()]["system"]) == {"DualMem"}
    assert memlens["source"].str.startswith("arXiv 2605.14906").all()
    assert shop["source"].str.startswith("arXiv 2606.27499").all()


def test_every_number_has_a_source_and_worked_out_ones_say_so():
    table = published.paper()
    assert (table["source"] != "").all()
    derived = set(table[table["source"].str.startswith("derived")]["name"])
    assert derived == {"gap", "broken", "gap_fixed", "gap_broken"}


def test_every_shipped_table_reads():
    assert "delivermem_paper" in published.tables()
    for name in published.tables():
        assert len(published.read(name)) > 0


def test_types(folder):
    text = csv_of(
        {"value": "1.50", "low": "1", "high": "2", "count": "3", "n": "200", "benchmark": "MemLens 32K"},
        {"name": "y", "value": "0.5", "unit": "p", "benchmark": "DMV-Bench J=5"},
    )
    (folder / "toy.csv").write_text(text, encoding="utf-8")
    table = published.read("toy")
    first, second = table.to_dict("records")
    assert (first["value"], first["low"], first["high"]) == (1.5, 1, 2)
    assert (first["count"], first["n"], first["printed"], first["counted"]) == (3, 200, "1.50", "stated")
    assert table["count"].isna().tolist() == table["low"].isna().tolist() == [False, True]
    assert table["length"].tolist() == [32, 5] and second["note"] == "" and second["counted"] == ""


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_count_is_derived_from_the_printed_digits_or_left_open(folder, data):
    drawn = []
    for i in range(20):
        n, decimals = data.draw(st.integers(1, 5000)), data.draw(st.integers(0, 2))
        count = data.draw(st.integers(0, n))
        told = count if 100 / n > 10**-decimals else None
        drawn.append(({"name": f"x{i}", "value": f"{100 * count / n:.{decimals}f}", "n": n}, told))
    (folder / "toy.csv").write_text(csv_of(*(row for row, _ in drawn)), encoding="utf-8")
    table = published.read("toy")
    assert table["count"].fillna(-1).tolist() == [-1 if told is None else told for _, told in drawn]
    assert table["counted"].tolist() == ["" if told is None else "derived" for _, told in drawn]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"value": "many"}], r"line 2 \('x'\): value must be a number"),
        ([{"value": ""}], "value must be a number"),
        ([{"value": "1", "low": "few"}], "low must be a number"),
        ([{"value": "1", "count": "2.5"}], "count must be a whole number"),
        ([{"value": "1", "n": "ten"}], "n must be a whole number"),
        ([{"value": "1", "unit": "furlongs"}], "unit must be one of points"),
        ([{"value": "1", "source": ""}], "name and source must be given"),
        ([{"value": "1"}, {"value": "2"}], r"line 3 \('x'\): this number occurs twice"),
        ([{"value": "101"}], "value in percent must be 0 to 100"),
        ([{"value": "-0.1"}], "value in percent must be 0 to 100"),
        ([{"value": "1.1", "unit": "p"}], "value in p must be 0 to 1"),
        ([{"value": "-1", "unit": "tokens"}], "value in tokens must be 0 or more"),
        ([{"value": "5", "low": "6", "high": "7"}], "low, value and high must ascend"),
        ([{"value": "5", "low": "4"}], "low and high must be given together"),
        ([{"value": "50", "count": "11", "n": "10"}], "count must be 0 to n"),
        ([{"value": "0", "count": "0", "n": "0"}], "count must be 0 to n"),
        ([{"value": "33.34", "count": "1", "n": "3"}], "count and n do not give the printed value"),
        ([{"value": "33.34", "n": "3"}], "no count of n gives the printed value"),
        (
            [{"value": "50.00", "n": "4", "kind": "overall"}, {"value": "25.00", "n": "4", "kind": "a"}],
            r"line 2 \('x'\): the types have count 1, not 2",
        ),
        (
            [{"value": "50.00", "n": "4", "kind": "overall"}, {"value": "50.00", "n": "2", "kind": "a"}],
            "the types have n 2, not 4",
        ),
    ],
)
def test_a_malformed_table_names_the_file_and_line(folder, rows, message):
    (folder / "toy.csv").write_text(csv_of(*rows), encoding="utf-8")
    with pytest.raises(published.PublishedError, match=message) as caught:
        published.read("toy")
    assert "toy.csv" in str(caught.value) and "correct that line" in str(caught.value)


def test_other_columns_are_refused(folder):
    (folder / "toy.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(published.PublishedError, match="the columns must be name, system"):
        published.read("toy")


def test_a_note_lets_an_error_of_the_source_stand(folder):
    rows = [
        {"value": "33.34", "n": "3", "note": "as printed: no third is this", "name": "alone"},
        {"value": "50.00", "n": "4", "kind": "overall", "note": "as printed: the types give 1"},
        {"value": "25.00", "n": "4", "kind": "a"},
    ]
    (folder / "toy.csv").write_text(csv_of(*rows), encoding="utf-8")
    table = published.read("toy")
    assert table["count"].isna().tolist() == [True, False, False]
    assert table["count"].tolist()[1:] == [2, 1]


def test_margins_that_contradict_one_another_are_refused(folder):
    for name in ("memlens_agents", "memlens_lvlms_195"):
        source = DATA / f"{name}.csv"
        (folder / source.name).write_bytes(source.read_bytes())
    text = (DATA / "delivermem_paper.csv").read_text(encoding="utf-8")
    (folder / "delivermem_paper.csv").write_text(text.replace("MemLens 32K,,0.51,", "MemLens 32K,,1.03,"))
    with pytest.raises(published.PublishedError, match=r"imply 101 of 195 and 100 of 195; correct"):
        published.implied()
    (folder / "memlens_lvlms_195.csv").write_text(HEADER + "\n", encoding="utf-8")
    with pytest.raises(published.PublishedError, match="0 rows with system 'Qwen3-VL-8B-I'"):
        published.implied()


def test_a_family_without_tables_is_refused(folder):
    with pytest.raises(published.PublishedError, match=r"no table dmv_\*; restore"):
        published.dmv()


def test_unknown_table_lists_the_known_ones(folder):
    (folder / "toy.csv").write_text(f"{HEADER}\n", encoding="utf-8")
    with pytest.raises(published.PublishedError, match="known tables: toy"):
        published.read("other")


def test_a_missing_folder_names_the_cure(tmp_path, monkeypatch):
    monkeypatch.setenv("DELIVERMEM_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(published.PublishedError, match="DELIVERMEM_DATA"):
        published.paper()
