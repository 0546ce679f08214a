"""Published numbers: the arithmetic from counts gives the printed digits, a malformed table says where."""

from __future__ import annotations

import pytest

from delivermem import published, stats

HEADER = ",".join(published.COLUMNS)


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


def test_shares_of_counts_round_to_the_printed_digits():
    table = published.paper()
    rows = table[table["unit"].isin(["points", "percent"]) & table["count"].notna()].to_dict("records")
    assert len(rows) >= 9
    for row in rows:
        decimals = len(row["printed"].partition(".")[2])
        assert f"{100 * row['count'] / row['n']:.{decimals}f}" == row["printed"], row["name"]


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
    line = "x,1.50,points,3,200,b,m,page 1,"
    (folder / "toy.csv").write_text(f"{HEADER}\n{line}\ny,0.5,p,,,,,page 2,\n", encoding="utf-8")
    table = published.read("toy")
    first, second = table.to_dict("records")
    assert (first["value"], first["count"], first["n"], first["printed"]) == (1.5, 3, 200, "1.50")
    assert table["count"].isna().tolist() == [False, True] and second["note"] == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "the columns must be name, value"),
        (f"{HEADER}\nx,many,points,,,b,m,s,\n", r"line 2 \('x'\): value must be a number"),
        (f"{HEADER}\nx,,points,,,b,m,s,\n", "value must be a number"),
        (f"{HEADER}\nx,1,points,2.5,,b,m,s,\n", "count must be a whole number"),
        (f"{HEADER}\nx,1,points,2,ten,b,m,s,\n", "n must be a whole number"),
        (f"{HEADER}\nx,1,furlongs,,,b,m,s,\n", "unit must be one of points"),
        (f"{HEADER}\nx,1,points,,,b,m,,\n", "name and source must be given"),
        (
            f"{HEADER}\nx,1,points,,,b,m,s,\nx,2,points,,,b,m,s,\n",
            r"line 3 \('x'\): this number occurs twice",
        ),
    ],
)
def test_a_malformed_table_names_the_file_and_line(folder, text, message):
    (folder / "toy.csv").write_text(text, encoding="utf-8")
    with pytest.raises(published.PublishedError, match=message) as caught:
        published.read("toy")
    assert "toy.csv" in str(caught.value)


def test_unknown_table_lists_the_known_ones(folder):
    (folder / "toy.csv").write_text(f"{HEADER}\n", encoding="utf-8")
    with pytest.raises(published.PublishedError, match="known tables: toy"):
        published.read("other")


def test_a_missing_folder_names_the_cure(tmp_path, monkeypatch):
    monkeypatch.setenv("DELIVERMEM_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(published.PublishedError, match="DELIVERMEM_DATA"):
        published.paper()
