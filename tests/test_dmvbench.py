"""DMV-Bench in its published form: its files, its chains and probes, its CSV, its harness, and a run from end to end."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import made_dmv
import numpy as np
import pytest
from PIL import Image

from delivermem import agent, benchmarks, delivery, dmv_csv, runner, runs
from delivermem.benchmarks import dmv_tasks, dmvbench
from delivermem.benchmarks.dmv_files import Files
from delivermem.delivery import Decisions
from delivermem.dmv_harness import System

SPINES = {
    0: "rug 26 bookshelf 22 wall_art 27 sofa 23 vase 26 lamp 25 chair 26 cushion 27 table 27 plant_pot 26 rug 24 bookshelf 27",
    7: "bookshelf 22 cushion 28 wall_art 23 vase 24 plant_pot 24 rug 27 chair 24 lamp 24 sofa 23 table 23 bookshelf 28 cushion 25",
    24: "lamp 22 table 26 bookshelf 23 vase 27 cushion 27 wall_art 22 rug 28 chair 27 sofa 28 plant_pot 25 lamp 28 table 22",
}
"""Category and steps of the first twelve sessions of three chains, as the released generator made them."""
DRAWN = (
    "s4_r1_p000_mc 3c s3_r1_p001_mc 2b s2_r1_p002_mc 1c s2_r1_p003_mc 1a s2_r2_p000_mc 0a s3_r2_p001_mc 1a s2_r2_p002_mc 0b "
    "s3_r2_p003_mc 1c s4_r3_p000_mc 1b s3_r3_p001_mc 0b s4_r3_p002_mc 1a s4_r3_p003_mc 1c s4_r4_p000_mc 0a s4_r4_p001_mc 0b "
    "s4_r4_p002_mc 0c"
)
"""What it drew, 4 a reach, of chain 3 with 5 sessions in which `<session>a`, `b` and `c` were viewed, the first two twice."""
VIEWED = [[f"{j}{letter}" for letter in "abcab"] for j in range(5)]


@pytest.fixture
def folder(tmp_path) -> Path:
    return made_dmv.laid_out(made_dmv.make(tmp_path / "published"), tmp_path / "dmv")


def _files(folder: Path) -> Files:
    files = Files(folder)
    files.check()
    return files


def _record(folder: Path, *, sessions: int, chains: int, viewed=None) -> Files:
    """Trajectories as somebody recorded them: on another machine, of what the policy views unless given."""
    files = _files(folder)
    for seed in range(chains):
        for session in files.chain(seed, sessions).sessions:
            seen = viewed(session) if viewed else dmv_tasks.browse(seed, session, files.shop)
            dmv_tasks.write_trajectory(
                folder / "trajectories", seed, session, seen,
                lambda code: f"/elsewhere/images/with_cue/{files.products[code].place}",
            )  # fmt: skip
    return files


def _change(path: Path, change) -> None:
    """A file's JSON with one thing changed."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# -- chains and probes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SPINES)
def test_a_chain_has_the_sessions_of_the_released_generator_at_every_length(seed):
    words = SPINES[seed].split()
    expected = [(i, c, int(n)) for i, (c, n) in enumerate(zip(words[::2], words[1::2], strict=True))]
    for sessions in (5, 12):
        task = dmv_tasks.spine(seed, sessions)
        assert task.id == f"f2_chain_d{sessions}_s{seed:04d}"
        assert [tuple(session) for session in task.sessions] == expected[:sessions]


def test_monte_carlo_probes_are_those_of_the_released_generator():
    drawn = dmv_tasks.monte_carlo(dmv_tasks.spine(3, 5), VIEWED, 4)
    assert " ".join(f"{probe.id} {probe.product}" for probe in drawn) == DRAWN


def test_every_product_of_every_earlier_session_is_probed_once_after_every_session():
    task = dmv_tasks.spine(3, 5)
    probes = dmv_tasks.exhaustive(task, VIEWED)
    assert len(probes) == len(set(probes)) == 3 * 5 * 4 / 2
    for probe in probes:
        assert 0 <= probe.target < probe.at < 5 and probe.reach == probe.at - probe.target
        assert probe.product.startswith(str(probe.target))
        place = VIEWED[probe.target].index(probe.product)
        assert probe.id == f"s{probe.at}_r{probe.reach}_p{place:02d}"
    everything = dmv_tasks.monte_carlo(task, VIEWED, 1000)
    assert {p[1:] for p in everything} == {p[1:] for p in probes}
    met = dmv_tasks.in_order(everything)
    assert all((a.at, a.reach) <= (b.at, b.reach) for a, b in pairwise(met)) and set(met) == set(everything)


def test_the_policy_browses_one_category_a_page_a_step_and_widely(tmp_path):
    big = made_dmv.laid_out(made_dmv.make(tmp_path / "p", categories=2, styles=5, per=8), tmp_path / "f")
    files = _files(big)
    counts, styles = [], []
    for seed in range(20):
        for session in files.chain(seed, 4).sessions:
            viewed = dmv_tasks.browse(seed, session, files.shop)
            assert viewed == dmv_tasks.browse(seed, session, files.shop)
            assert len(viewed) == (session.steps - 1) // 2  # a collection's page before each product's
            assert {files.products[code].category for code in viewed} == {session.category}
            counts.append(len(set(viewed)))
            styles.append(len({files.products[code].place.split("/")[1] for code in viewed}))
    assert 10.5 < np.mean(counts) < 12 and np.mean(styles) >= 3
    assert (
        len(
            {tuple(dmv_tasks.browse(seed, files.chain(seed, 2).sessions[0], files.shop)) for seed in range(9)}
        )
        == 9
    )


def test_a_shop_smaller_than_a_session_is_seen_again_and_one_without_the_category_is_refused(folder):
    files = _files(folder)
    session = dmv_tasks.Session(0, "chair", 28)
    viewed = dmv_tasks.browse(0, session, files.shop)
    assert len(viewed) == 13 and len(set(viewed)) == 6
    with pytest.raises(ValueError, match="'rug' has no products"):
        dmv_tasks.browse(0, session._replace(category="rug"), files.shop)


# -- what the benchmark's files become -------------------------------------------------------------------------------


def test_a_chain_becomes_memories_that_grow_and_probes_for_what_they_hold(folder):
    made = dmvbench.read(folder, sessions=5, chains=2)
    files = _files(folder)
    assert (made.name, made.layout, made.ranker, made.judge) == ("dmv-5", "images-last", "tiles", "exact")
    assert made.revision.startswith("0" * 40 + "+browse.v1.") and "stands in" in made.notes[0]
    assert {question.memory.id for question in made.questions} == {"f2_chain_d5_s0000", "f2_chain_d5_s0001"}
    assert (
        len({question.memory for question in made.questions}) == 2 * 4
    )  # one a chain and session that is probed
    for question in made.questions:
        task, at, reach = re.fullmatch(r"(\w+)-s(\d)_r(\d)_p\d\d", question.id).groups()
        product = files.products[question.answer]
        assert question.memory.id == task and question.subtype == f"reach {reach}"
        viewed = [
            dmv_tasks.browse(int(task[-4:]), session, files.shop)
            for session in files.chain(int(task[-4:]), 5).sessions
        ]
        seen = list(dict.fromkeys(code for products in viewed[: int(at) + 1] for code in products))
        assert [record.id.split("-")[1] for record in question.memory] == seen
        assert question.answer in viewed[int(at) - int(reach)]
        (gold,) = question.gold
        record = question.memory[gold]
        assert record.pictures[0].source == folder / "images" / "with_cue" / product.place
        assert record.text == f"Saw a {product.kind}: /product/{product.code} <image>"
        assert record.session == gold[:3] and record.stated_time == f"session {gold[1:3]}"
        assert question.query == f"product with {product.cue}" and product.cue in question.text
        assert not any(product.cue in record.text for record in question.memory)


def test_a_product_that_is_seen_again_is_one_memory_of_its_first_session(folder):
    def viewed(session):
        chairs = sorted(code for code, p in _files(folder).products.items() if p.category == "chair")
        return [*chairs[session.number :][:2], chairs[session.number]]

    _record(folder, sessions=3, chains=1, viewed=viewed)
    made = dmvbench.read(folder, sessions=3, chains=1)
    last = made.questions[-1].memory
    assert [record.session for record in last] == ["s00", "s00", "s01", "s02"]
    twice = [question for question in made.questions if question.answer == last.records[1].id.split("-")[1]]
    assert {question.gold for question in twice} == {(last.records[1].id,)}
    assert sorted(question.subtype for question in twice) == ["reach 1", "reach 1", "reach 2"]


def test_recordings_are_read_where_there_are_any_and_named_in_notes_and_revision(folder):
    browsed = dmvbench.read(folder, sessions=3, chains=2)
    _record(folder, sessions=3, chains=2)
    first = folder / "trajectories" / "f2traj_s0000_sess0.json"
    kept = json.loads(first.read_text())
    assert list(kept) == ["session_idx", "visited", "injection", "n_steps", "vlm_calls"]
    _change(first, lambda t: t["visited"].append(["deadbeef", ""]))
    made = dmvbench.read(folder, sessions=3, chains=2)
    assert [question.id for question in made.questions] == [question.id for question in browsed.questions]
    assert "+recorded." in made.revision and made.revision != browsed.revision
    assert made.notes[0].startswith("Products were viewed in 2 recorded chains of 2")
    assert made.notes[-1].endswith("left out: 1.")
    (folder / "trajectories" / "f2traj_s0001_sess2.json").unlink()
    shorter = dmvbench.read(folder, sessions=3, chains=2)
    assert len(shorter.memories) == 1 and "fewer than 3 sessions are left out: 1" in shorter.notes[1]
    with pytest.raises(ValueError, match="no chain is recorded for 4 sessions"):
        dmvbench.read(folder, sessions=4, chains=2)


def test_the_revision_names_what_is_asked(folder):
    revisions = [
        dmvbench.read(folder, sessions=5, chains=n, probes=k).revision for n, k in ((1, 0), (2, 0), (2, 1))
    ]
    assert len(set(revisions)) == 3
    assert revisions[2] == dmvbench.read(folder, sessions=5, chains=2, probes=1).revision


def test_monte_carlo_asks_the_same_number_at_every_reach(folder):
    made = dmvbench.read(folder, sessions=6, chains=2, probes=3)
    assert Counter(question.subtype for question in made.questions) == {f"reach {r}": 6 for r in range(1, 6)}
    assert all(re.search(r"_p\d{3}_mc$", question.id) for question in made.questions)
    assert dmvbench.CHAINS == {5: (25, 0), 10: (25, 0), 15: (25, 0), 50: (5, 10)}


def test_task_files_written_here_are_read_back_with_their_probes(folder):
    files = _files(folder)
    task = files.chain(1, 4)
    viewed = [dmv_tasks.browse(1, session, files.shop) for session in task.sessions]
    rows = {row["url_hash"]: row for row in json.loads((folder / "cue_registry.json").read_text())["rows"]}
    cues = {code: (row["cue_id"], row["cue_object"], row["cue_color"]) for code, row in rows.items()}
    filled = task._replace(probes=tuple(dmv_tasks.monte_carlo(task, viewed, 2)))
    path = dmv_tasks.write_tree(filled, folder / "trees", cues)
    tree = json.loads(path.read_text())
    assert (tree["variant"], tree["n_sessions"], tree["max_steps_per_session"]) == (
        "f2_per_product_ic_v6",
        4,
        50,
    )
    assert tree["metadata"] == dict(generator="f2.per_product_ic.v6", seed=1, design="v6_per_product_ic")
    assert tree["probes"][0]["target_cue_id"] == cues[tree["probes"][0]["target_url_hash"]][0]
    assert files.chain(1, 4) == filled
    asked = {question.id for question in dmvbench.read(folder, sessions=4, chains=2).questions}
    assert {f"{task.id}-{probe.id}" for probe in filled.probes} == {name for name in asked if "s0001" in name}
    with pytest.raises(ValueError, match="has no cue"):
        dmv_tasks.write_tree(filled, folder / "trees", {})


def test_captions_stand_beside_the_pictures(folder):
    bare = dmvbench.read(folder, sessions=3, chains=1)
    product = _files(folder).products[bare.questions[0].answer]
    kept = {f"with_cue/{product.place}": "A small\nlamp <image> of oak.", f"base/{product.place}": "another"}
    (folder / "_caption_cache.json").write_text(json.dumps(kept))
    made = dmvbench.read(folder, sessions=3, chains=1)
    record = made.questions[0].memory[made.questions[0].gold[0]]
    assert record.text.endswith('<image> Caption: "A small lamp  of oak."')
    assert made.revision != bare.revision and "for 1 of 18 products" in made.notes[-1]


def test_the_shop_links_what_click_index_counts(folder):
    _change(folder / "seed_v2.json", lambda seed: seed["variants"][0].update(price=999))
    shop = _files(folder).shop
    assert shop.links("/") == ()
    assert shop.links("/category/chair") == ("/collection/chair-modern", "/collection/chair-minimalist")
    a, b, c = shop.links("/collection/chair-modern")  # the cheapest first
    assert shop.links(c) == ("/collection/chair-modern", a, b)
    assert shop.cue(shop.product(c)) == "red star"
    assert shop.image(c).size == (128, 128) and shop.image("/category/chair") is None


# -- files that do not fit -----------------------------------------------------------------------------------------


def test_what_was_not_fetched_is_said_with_the_command(tmp_path, monkeypatch, folder):
    monkeypatch.setenv("DELIVERMEM_DATA", str(tmp_path))
    benchmarks.load.cache_clear()
    with pytest.raises(ValueError, match="delivermem fetch dmv"):
        benchmarks.load("dmv-5")
    (folder / "images/with_cue/sofa/modern/01.png").unlink()
    with pytest.raises(
        ValueError, match=r"1 of 18 pictures are not there, sofa/modern/01.png first; .*fetch dmv"
    ):
        dmvbench.read(folder, chains=1)
    (folder / "cue_registry.json").unlink()
    with pytest.raises(ValueError, match=r"cue_registry.json is not there; .*fetch dmv"):
        dmvbench.read(folder, chains=1)


def test_the_fetched_folder_is_loaded_by_name(tmp_path, monkeypatch, folder):
    monkeypatch.setenv("DELIVERMEM_DATA", str(tmp_path))
    (tmp_path / "benchmarks").mkdir()
    folder.rename(tmp_path / "benchmarks" / "dmv")
    benchmarks.load.cache_clear()
    made = benchmarks.load("dmv-50")
    assert len(made.questions) == 5 * (48 * 10 + 6) and len(made.memories) == 5  # at reach 49 there are but 6
    assert made.encoder == "google/siglip2-base-patch16-384"
    benchmarks.load.cache_clear()


SEED, CUES, SOURCE = "seed_v2.json", "cue_registry.json", "source.json"
MISFITS = {
    "no price": (SEED, lambda s: s["variants"][3].pop("price"), r"variants\[3\]: price is None"),
    "no variants": (SEED, lambda s: s.pop("variants"), "variants is None"),
    "no slug": (SEED, lambda s: s["categories"][0].pop("slug"), r"categories\[0\] has no 'slug'"),
    "an image elsewhere": (
        SEED, lambda s: s["variants"][0].update(primaryImage="/images_v2/../../x/y/00.png"), "primaryImage is",
    ),
    "no gallery": (SEED, lambda s: s["variants"][0].update(galleryImages="[nothing"), "galleryImages is"),
    "another gallery": (SEED, lambda s: s["variants"][0].update(galleryImages='["/x.png"]'), "galleryImages is"),
    "a cue of another colour": (CUES, lambda c: c["rows"][2].update(cue_color="beige"), r"rows\[2\]: .*beige"),
    "another picture": (CUES, lambda c: c["rows"][2].update(prod_idx=7), r"rows\[2\]: chair/modern/07.png"),
    "an unknown hash": (CUES, lambda c: c["rows"][2].update(url_hash="ffffffff"), "'ffffffff' is not in the catalogue"),
    "a hash twice": (CUES, lambda c: c["rows"][2].update(c["rows"][1]), "occurs twice"),
    "a number as text": (CUES, lambda c: c["rows"][2].update(prod_idx="2"), "prod_idx is '2', expected int"),
    "a bool": (CUES, lambda c: c["rows"][0].update(prod_idx=False), "prod_idx is False, expected int"),
    "too few rows": (CUES, lambda c: c["rows"].pop(), "n_cues is 18 and rows are 17"),
    "a product without a row": (CUES, lambda c: c.update(rows=c["rows"][1:], n_cues=17), "no row for product"),
    "no revision": (SOURCE, lambda s: s.pop("revision"), "revision is None"),
    "an empty revision": (SOURCE, lambda s: s.update(revision=" "), "revision is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISFITS)
def test_a_file_that_does_not_fit_is_named(folder, case):
    name, change, said = MISFITS[case]
    _change(folder / name, change)
    with pytest.raises(ValueError, match=said) as caught:
        dmvbench.read(folder, chains=1)
    assert name in str(caught.value) and "\n" not in str(caught.value)


def test_two_products_never_share_a_cue(folder):
    def same(seed):
        seed["variants"][1]["_cue_color"] = "red"

    _change(folder / SEED, same)
    _change(folder / CUES, lambda c: c["rows"][1].update(cue_color="red", cue_id="chair::star::red"))
    with pytest.raises(ValueError, match="'red star' is another product's too"):
        dmvbench.read(folder, chains=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update(session_idx=4), "session_idx is 4, its name says 1"),
        (lambda t: t.pop("visited"), "visited is None, expected list"),
        (lambda t: t["visited"].insert(0, ["a1b2c3d4"]), r"visited\[0\] is \['a1b2c3d4'\]"),
        (lambda t: t["visited"].insert(0, ["a1b2c3d4", "/x/images/with_cue/chair/modern/00.png"]), "not in the catalogue"),
        (lambda t: t["visited"][0].__setitem__(1, "/x/with_cue/rug/japandi/09.png"), "in the catalogue, not"),
        (lambda t: t.update(n_steps=2.5), "n_steps is 2.5, expected int"),
    ],
)  # fmt: skip
def test_a_recording_that_does_not_fit_is_named(folder, change, said):
    _record(folder, sessions=3, chains=1)
    _change(folder / "trajectories" / "f2traj_s0000_sess1.json", change)
    with pytest.raises(ValueError, match=said) as caught:
        dmvbench.read(folder, sessions=3, chains=1)
    assert "f2traj_s0000_sess1.json" in str(caught.value)


def test_a_hole_in_a_recording_is_named(folder):
    _record(folder, sessions=3, chains=1)
    (folder / "trajectories" / "f2traj_s0000_sess1.json").unlink()
    with pytest.raises(ValueError, match=r"f2traj_s0000_sess1\.json: is not there, and later sessions are"):
        dmvbench.read(folder, sessions=3, chains=1)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.update(n_sessions=4), "n_sessions 4"),
        (lambda t: t["metadata"].update(seed=5), "seed 5"),
        (lambda t: t["sessions"][1].update(shopping_list=["boat"]), r"sessions\[1\]: .*boat"),
        (lambda t: t["sessions"][1].update(n_steps=0), "n_steps is 0"),
        (lambda t: t.update(variant="f2_v5"), "variant is 'f2_v5'"),
        (lambda t: t["probes"].append(dict(at_session=1, target_session=1, reach=0, target_url_hash="x")), "do not fit"),
        (lambda t: t["probes"].append(dict(at_session=1, target_session=0, reach=1, target_url_hash="x")), "'x' is not in"),
    ],
)  # fmt: skip
def test_a_task_file_that_does_not_fit_is_named(folder, change, said):
    path = dmv_tasks.write_tree(_files(folder).chain(0, 3), folder / "trees")
    _change(path, change)
    with pytest.raises(ValueError, match=said) as caught:
        dmvbench.read(folder, sessions=3, chains=1)
    assert path.name in str(caught.value)


def test_a_probe_for_what_no_session_viewed_is_refused(folder):
    files = _record(folder, sessions=2, chains=1)
    task = files.chain(0, 2)
    other = next(code for code, p in files.products.items() if p.category != task.sessions[0].category
                 and p.category != task.sessions[1].category)  # fmt: skip
    path = dmv_tasks.write_tree(task, folder / "trees")
    row = dict(probe_id="s1_r1_p00", at_session=1, target_session=0, reach=1, target_url_hash=other)
    _change(path, lambda t: t["probes"].append(row))
    with pytest.raises(ValueError, match="which no session up to 1 has viewed"):
        dmvbench.read(folder, sessions=2, chains=1)


@pytest.mark.parametrize("wrong", [dict(sessions=1), dict(chains=0), dict(probes=-1)])
def test_sizes_that_make_no_chain_are_refused(folder, wrong):
    with pytest.raises(ValueError, match="give 2 sessions, 1 chain"):
        dmvbench.read(folder, **wrong)


# -- from end to end with the tiny model ------------------------------------------------------------------------------


@pytest.fixture
def small(folder, monkeypatch):
    """Two chains of two sessions, one probe each, known as `dmv-2`."""
    made = dmvbench.read(folder, sessions=2, chains=2, probes=1, encoder="tiny-siglip")
    benchmarks.load.cache_clear()
    monkeypatch.setitem(benchmarks.BENCHMARKS, "dmv-2", lambda: made)
    yield made
    benchmarks.load.cache_clear()


def test_errands_and_ladder_run_on_two_chains(small, tmp_path):
    from delivermem import backbones

    backbone = backbones.load("tiny-qwen3-vl-2", max_new_tokens=40)
    for experiment, arms in (("errand", ["errand-stamp"]), ("ladder", None)):
        runner.run(
            experiment,
            benchmark="dmv-2",
            backbone=backbone,
            conditions=arms,
            outputs=tmp_path / "o",
            say=str,
            k=5,
        )
    folder = tmp_path / "o" / "dmv-2" / "tiny-qwen3-vl-2"
    walked = list(runs.read(folder / "errand-stamp.jsonl"))
    assert [line["cluster"] for line in walked] == ["f2_chain_d2_s0000", "f2_chain_d2_s0001"]
    for line in walked:
        assert line["status"] == "ok" and 1 <= len(line["steps"]) <= agent.STEPS
        assert all(len(step["delivered"]) == 5 == len(set(step["delivered"])) for step in line["steps"])
    rungs = {path.stem: list(runs.read(path)) for path in sorted(folder.glob("ladder-*.jsonl"))}
    assert len(rungs) == 10 and {len(lines) for lines in rungs.values()} == {2}
    for name, lines in rungs.items():
        assert all(line["gold"][0] in line["delivered"] for line in lines)
        assert all(
            line["images"] == (0 if name in ("ladder-withheld", "ladder-caption") else 5) for line in lines
        )
    paths = dmv_csv.write("dmv-2", "tiny-qwen3-vl-2", outputs=tmp_path / "o", to=tmp_path / "csv")
    rows = list(csv.DictReader(paths[0].read_text().splitlines()))
    assert len(rows) == 2 and all(int(row["vlm_calls"]) >= 1 for row in rows)


# -- the CSV files ------------------------------------------------------------------------------------------------------


def _line(condition, question, expected, answer, *, verdict=None, steps=2):
    state = verdict or ("right" if answer == expected else "wrong")
    return dict(
        condition=condition, question_id=question, expected=expected, answer=answer, verdict=state, rule="exact match",
        steps=[dict(prompt="x")] * steps + [dict(prompt="")],
    )  # fmt: skip


def _answers(tmp_path, lines):
    folder = tmp_path / "o" / "dmv-5" / "model"
    folder.mkdir(parents=True)
    for line in lines:
        with (folder / f"{line['condition']}.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def test_answers_are_written_in_the_columns_of_the_released_metrics(tmp_path):
    chain = "f2_chain_d5_s0003"
    lines = [
        _line("errand-stamp", f"{chain}-s1_r1_p00", "aa11bb22", "aa11bb22"),
        _line("errand-stamp", f"{chain}-s2_r1_p00", "aa11bb23", "", steps=8),
        _line("errand-stamp", f"{chain}-s3_r1_p000_mc", "aa11bb24", "aa11bb22"),
        _line("errand-stamp", f"{chain}-s3_r3_p01", "aa11bb22", "aa11bb22"),
        _line("errand-none", f"{chain}-s1_r1_p00", "aa11bb22", "aa11bb23"),
    ]
    _answers(tmp_path, lines)
    probes, summary = dmv_csv.write("dmv-5", "model", outputs=tmp_path / "o", to=tmp_path / "csv")
    assert (probes.name, summary.name) == ("f2_per_probe.csv", "f2_summary.csv")
    assert probes.read_bytes().decode().split("\r\n") == [
        "system,task_id,probe_id,at_session,target_session,reach,correct,target_url,final_url,vlm_calls",
        f"errand-none,{chain},s1_r1_p00,1,0,1,0,/product/aa11bb22,/product/aa11bb23,2",
        f"errand-stamp,{chain},s1_r1_p00,1,0,1,1,/product/aa11bb22,/product/aa11bb22,2",
        f"errand-stamp,{chain},s2_r1_p00,2,1,1,0,/product/aa11bb23,,8",
        f"errand-stamp,{chain},s3_r1_p000_mc,3,2,1,0,/product/aa11bb24,/product/aa11bb22,2",
        f"errand-stamp,{chain},s3_r3_p01,3,0,3,1,/product/aa11bb22,/product/aa11bb22,2",
        "",
    ]
    assert summary.read_bytes().decode().split("\r\n") == [
        "system,SR,injection_placed,n_recall_tasks,recall_at_reach_1,recall_at_reach_2,recall_at_reach_3",
        "errand-none,0.0,0.0,1,0.0,-1.0,-1.0",
        "errand-stamp,0.5,0.0,4,0.3333,-1.0,1.0",
        "",
    ]


def test_a_failure_is_never_written_as_a_miss(tmp_path):
    _answers(
        tmp_path, [_line("errand-stamp", "f2_chain_d5_s0003-s1_r1_p00", "aa11bb22", "", verdict="unjudged")]
    )
    with pytest.raises(
        runs.RunError, match=r"1 of 1 answers are neither right nor wrong, f2_chain_d5_s0003-s1_r1_p00"
    ):
        dmv_csv.write("dmv-5", "model", outputs=tmp_path / "o", to=tmp_path / "csv")
    assert not (tmp_path / "csv").exists()


def test_no_answers_and_other_questions_are_said(tmp_path):
    with pytest.raises(runs.RunError, match="holds no errands; make them with: delivermem run errand"):
        dmv_csv.write("dmv-5", "model", outputs=tmp_path / "o")
    with pytest.raises(runs.RunError, match="'q7' is no probe"):
        dmv_csv.probe(_line("errand-stamp", "q7", "a", "a"))


def test_the_embedded_errands_can_be_written_too(tmp_path):
    (backbone,) = (
        path.parent.name for path in (runs.data_dir() / "outputs").glob("mini-errand-10/*/errand-stamp.jsonl")
    )
    _, summary = dmv_csv.write("mini-errand-10", backbone, to=tmp_path)
    table = runs.load("errand", benchmark="mini-errand-10", backbone=backbone)
    for row in csv.DictReader(summary.read_text().splitlines()):
        own = table[table["condition"] == row["system"]]
        assert int(row["n_recall_tasks"]) == len(own)
        assert float(row["SR"]) == round((own["verdict"] == "right").mean(), 4)


# -- behind the released harness -----------------------------------------------------------------------------------------


class Eye:
    """Sees the mean colour of a picture, and in a query the colour it names."""

    def __init__(self):
        self.seen = 0

    def images(self, images):
        self.seen += len(images)
        return self._unit(np.stack([np.asarray(image, np.float32).mean((0, 1)) for image in images]))

    def texts(self, texts):
        named = dict(red=(255, 0, 0), green=(0, 255, 0), blue=(0, 0, 255))
        return self._unit(np.float32([next(v for k, v in named.items() if k in text) for text in texts]))

    @staticmethod
    def _unit(vectors):
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


SHADES = dict(aaaa1111=(200, 20, 20), bbbb2222=(20, 160, 20), cccc3333=(20, 90, 220), dddd4444=(120, 110, 20))


@pytest.fixture
def system(tmp_path):
    """A system that was shown four products in two sessions, as a runner replays them."""
    made = System(Eye(), caption_fn=lambda path: f"caption of {Path(path).stem}", folder=tmp_path / "stamped")
    made.reset()
    for i, (slug, shade) in enumerate(SHADES.items()):
        Image.new("RGB", (128, 128), shade).save(tmp_path / f"{slug}.png")
        made.bank.set_session(i // 2)
        caption = made.caption_fn(str(tmp_path / f"{slug}.png"))
        made.bank.encode(
            image_path=str(tmp_path / f"{slug}.png"), slug=slug, encode_text="a plant pot", caption=caption
        )
    return made


def _query(text):
    return SimpleNamespace(recall_text=text, anchor_slug=None)


def test_the_harness_gets_tagged_words_and_stamped_copies_of_the_best_tiles(system, tmp_path):
    hits = system.retriever.retrieve(_query("product with green key CURRENT: /"), system.bank.entries(), k=3)
    assert [hit.slug for hit in hits] == ["bbbb2222", "dddd4444", "cccc3333"]
    rendered = [system.injector.render(hit) for hit in hits]
    head = delivery.PREAMBLES["stamp"] + delivery.IN_ANY_ORDER
    assert rendered[0].text == head + (
        'M1 [session 00] Saw a plant pot: /product/bbbb2222  Caption: "caption of bbbb2222"'
    )
    assert rendered[1].text.startswith("M2 [session 01] Saw a plant pot: /product/dddd4444")
    for i, payload in enumerate(rendered, 1):
        (path,) = payload.images
        assert Path(path).parent == tmp_path / "stamped"
        copy, stored = Image.open(path), Image.open(tmp_path / f"{hits[i - 1].slug}.png")
        assert copy.size == stored.size and copy.getpixel((127, 127)) == stored.getpixel((127, 127))
        assert copy.getpixel((1, 1)) == (0, 0, 0) != stored.getpixel((1, 1))
    assert [entry.text for entry in system.bank.entries()] == [""] * 4  # the store is as it was


def test_the_harness_keeps_a_product_once_and_encodes_five_pieces_of_a_picture(system, tmp_path):
    eye = system.bank.encoder
    assert eye.seen == 4 * 5
    again = system.bank.encode(image_path=str(tmp_path / "bbbb2222.png"), slug="aaaa1111")
    assert again is system.bank.find_by_slug("aaaa1111") and eye.seen == 20
    assert [getattr(entry, "slug", None) for entry in system.bank.entries()] == list(SHADES)
    assert again.image_path.endswith("aaaa1111.png") and again.caption == "caption of aaaa1111"
    system.reset()
    assert system.bank.entries() == [] and system.retrieve(_query("red")) is None


def test_an_entry_without_a_picture_comes_last_and_has_no_tag(system):
    system.bank.encode(image_path="", slug="col_rug-modern", encode_text="a rug")
    hits = system.retriever.retrieve(_query("red"), system.bank.entries(), k=10)
    assert len(hits) == 5 and hits[-1].slug == "col_rug-modern"
    last = system.injector.render(hits[-1])
    assert last.images == [] and last.text.endswith("(5) [session 01] Saw a rug: /collection/rug-modern")


def test_the_ceilings_get_one_memory(system, tmp_path):
    path = str(tmp_path / "bbbb2222.png")
    found = system.retrieve(_query("blue"))
    assert found.slug == "cccc3333" and "M1 [session 01]" in system.inject(found).text
    known = SimpleNamespace(anchor_path=path, anchor_slug="bbbb2222", encode_text="")
    assert "M1 [session 00] Saw a plant pot" in system.oracle_inject(known).text
    new = SimpleNamespace(anchor_path=path, anchor_slug="eeee5555", encode_text="a vase")
    assert "Saw a vase: /product/eeee5555" in system.oracle_inject(new).text
    assert system.bank.find_by_slug("eeee5555") is None
    assert system.encode(new).caption == "caption of bbbb2222" and len(system.bank.entries()) == 5


def test_decisions_reach_what_the_harness_injects(tmp_path, system):
    bare = System(Eye(), decisions=Decisions("text", "none", "none"), folder=tmp_path / "none")
    for entry in system.bank.entries():
        bare.encode_external(entry.image_path, entry.slug, entry.encode_text)
    hit = bare.retriever.retrieve(_query("red"), bare.bank.entries(), k=2)[1]
    payload = bare.injector.render(hit)
    assert payload.images == [] and payload.text == f"(2) Saw a plant pot: /product/{hit.slug}"
    assert not (tmp_path / "none").exists()
