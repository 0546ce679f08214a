"""The trainer's short cuts are the model: vision tower, positions, text and answers agree with the real path."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from delivermem import agent, dense, encoders, runs
from delivermem.benchmarks import asking, memlens, scenes, shop, world
from delivermem.controls import shown_in
from delivermem.delivery import IMAGES_LAST, Decisions, deliver
from delivermem.records import REFUSAL, Memory, Picture, Question, Record, Slot
from delivermem.reference import build, corpus, errands, shopping, siglip, train
from delivermem.reference.muon import Muon
from delivermem.reference.train import Trainer
from delivermem.retrieval import rank


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    return Trainer(tmp_path_factory.mktemp("run"), seed=0, minutes=0.05)


@pytest.fixture(scope="module")
def turns():
    return world.conversation(np.random.default_rng(0), for_benchmark=False)


def _packed_is_real(trainer, made, prompt, answer):
    """Token ids, next-token logits and labels of a context's first question are those of processor and model."""
    real = trainer.processor.apply_chat_template(
        [prompt.to_transformers()],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    batch = trainer.packer.pack([made])
    first, second = ((batch["seg"][0] == n).nonzero().flatten() for n in (0, 1))
    reply = [*trainer.packer.ids(answer), trainer.packer.end]
    kept = torch.cat([first, second[: len(second) - len(reply)]])
    assert batch["ids"][0, kept].tolist() == real["input_ids"][0].tolist()
    with torch.no_grad():
        theirs = trainer.net.eval()(**real).logits[0, -1]
        logits, label, _ = trainer.forward(batch)
    trainer.net.train()
    rows = batch["seg"][batch["label"] != -100]
    torch.testing.assert_close(logits[rows == 1][0], theirs, atol=2e-3, rtol=1e-3)
    assert label[rows == 1].tolist() == reply


def test_the_trainers_vision_is_the_models_vision(trainer):
    rng = np.random.default_rng(1)
    images = [scenes.render(scenes.draw_scene(rng, for_benchmark=False), i) for i in range(3)]
    real = trainer.processor.image_processor(images=images, return_tensors="pt")
    with torch.no_grad():
        theirs = trainer.net.model.visual(real["pixel_values"], real["image_grid_thw"])
        tokens, deep = trainer.see(torch.from_numpy(np.stack([np.asarray(image) for image in images])))
    torch.testing.assert_close(tokens, theirs.pooler_output, atol=1e-4, rtol=1e-4)
    for ours, other in zip(deep, theirs.deepstack_features, strict=True):
        torch.testing.assert_close(ours, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("pixels", [True, False])
def test_the_packed_context_is_the_delivered_prompt_and_gives_its_logits(trainer, turns, pixels):
    """Text, token ids, 3-D positions and the next-token logits equal those of processor and model."""
    rng = np.random.default_rng(2)
    made = corpus.context(rng, turns, 4, questions=3, modality="pixels" if pixels else "text", tags="rank")
    view = [span.turn for span in made.spans]
    asked, answer = made.asks[0]
    base = deliver([turn.record() for turn in view], asked.text, Decisions("pixels" if pixels else "text"))
    date = made.text.split("Question date: ")[1].split("\n")[0]
    prompt = type(base)(
        base.system, base.preamble, base.items, f"Question date: {date}\n{base.question}", base.decisions
    )
    _packed_is_real(trainer, made, prompt, answer)


def test_every_hint_points_at_what_it_names(trainer, turns):
    """Key words, dates, evidence cells: the hinted tokens decode to them, and lie before their source."""
    rng = np.random.default_rng(3)
    made = corpus.context(rng, turns, 6, questions=10)
    batch = trainer.packer.pack([made])
    ids = batch["ids"][0].tolist()
    text = trainer.processor.tokenizer.convert_ids_to_tokens(ids)
    words = {f"Ġ{word}" for word in (*world.TOPICS, *world.KEPT)}
    assert batch["hints"]
    for _, hint in batch["hints"]:
        assert all(
            batch["mask"][0, 0, hint.source, target] for target in hint.targets if target != hint.source
        ) or (hint.layer == 1 and min(hint.targets) <= hint.source)
        if (hint.layer, hint.head) == (1, 0):
            assert text[hint.targets[0]] in words
        if (hint.layer, hint.head) == (1, 1):
            assert text[hint.targets[0]].isdigit() and text[hint.targets[1]].startswith("/")
    for asked, answer in made.asks:
        if answer != REFUSAL and asked.subtype == "colour":
            turn, (column, row) = asked.focus[0][0], scenes.PLACES[asked.focus[0][1]]
            labels = made.labels[[s.turn.id for s in made.spans if s.slot].index(made.spans[turn].turn.id)]
            assert list(scenes.COLOURS)[labels[row * 3 + column].colour] == answer


def test_what_a_token_should_hold_is_what_its_item_and_its_question_say(trainer, turns):
    """Gathered words: an item's key, date and places; a question's own words; each known in its group."""
    made = corpus.context(np.random.default_rng(5), turns, 6, questions=10)
    batch = trainer.packer.pack([made])
    name = trainer.processor.tokenizer.convert_ids_to_tokens
    text = name(batch["ids"][0].tolist())
    pad = [i for i, token in enumerate(text) if token == "<|image_pad|>"]
    held = {}
    for _, word in batch["gathered"]:
        assert 0 <= word.source < len(text)
        held.setdefault((word.group, word.source), set()).add(name(word.token).removeprefix("Ġ"))
        known = word.token in trainer.groups[word.group]
        assert known or word.group == "year", (word, name(word.token))
    for n, photo in enumerate(span for span in made.spans if span.slot):
        cells = pad[n * corpus.TOKENS : (n + 1) * corpus.TOKENS]
        for place, (column, row) in scenes.PLACES.items():
            assert held["place", cells[row * corpus.GRID + column]] == set(place.split())
        assert not photo.turn.topic or all(held["key", cell] == {photo.turn.topic} for cell in cells)
    first = {n: batch["seg"][0].tolist().index(n) for n in range(1, len(made.asks) + 1)}
    for number, (asked, _) in enumerate(made.asks, 1):
        for (group, source), words in held.items():
            if source >= first[number] and batch["seg"][0, source] == number:
                assert words <= set(asked.text.replace("?", " ").split()), (group, words, asked.text)


def _read_whole(turns, text=""):
    """All of the turns as a model without a memory is asked about them."""
    memory = Memory("", tuple(turn.record() for turn in turns))
    return memlens.full_context(Question("", text, "", "", memory, time=max(turn.time for turn in turns)))


@pytest.mark.parametrize("sessions", [3, 5])
def test_a_packed_conversation_is_the_prompt_that_reads_everything_and_gives_its_logits(trainer, sessions):
    """As for what is delivered: a message a turn, of its role, with its session's header, its pictures in place."""
    rng = np.random.default_rng(sessions)
    turns = world.conversation(rng, for_benchmark=False, sessions=sessions)
    made = corpus.whole(rng, turns, questions=3)
    asked, answer = made.asks[0]
    prompt = _read_whole(turns, asked.text)
    assert {role for role, _ in prompt.messages} == {"user", "assistant"} and prompt.slots
    _packed_is_real(trainer, made, prompt, answer)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_asked_of_a_whole_conversation_needs_no_tag_and_is_answered_from_all_of_it(seed):
    """Without tags nothing can be named by one; every question that is not a refusal has its evidence there."""
    rng = np.random.default_rng(seed)
    turns = world.conversation(rng, for_benchmark=False)
    made = corpus.whole(rng, turns, questions=30, absent=0.3)
    sorts = {asked.subtype for asked, _ in made.asks}
    assert len(made.asks) > 15 and "which" not in sorts and len(sorts) > 6
    for asked, answer in made.asks:
        assert answer == (REFUSAL if asked.refusal else asked.answer) and bool(asked.gold) != asked.refusal
    photos = [turn for turn in turns if turn.scene is not None]
    assert len(made.images) == len(made.labels) == len(photos)
    for image, labels, turn in zip(made.images, made.labels, photos, strict=True):
        assert image.tobytes() == scenes.render(turn.scene, turn.seed).tobytes()
        shown = {
            (list(scenes.COLOURS)[c.colour], list(scenes.OBJECTS)[c.object]) for c in labels if c.object >= 0
        }
        assert shown == {thing[:2] for thing in turn.scene} and {cell.tag for cell in labels} == {-1}


def test_every_item_of_a_whole_conversation_lies_where_its_span_says_under_its_sessions_date(trainer):
    """Its words, its picture's place, and the date of the header above it; what the hints bind lies there too."""
    rng = np.random.default_rng(9)
    turns = world.conversation(rng, for_benchmark=False, sessions=4)
    made = corpus.whole(rng, turns, questions=6)
    assert [span.turn for span in made.spans] == turns
    for span in made.spans:
        body, turn = made.text[span.start : span.end], span.turn
        assert turn.text.replace("<image>", corpus.slot_text(corpus.TOKENS)) in body and body.endswith(
            "<|im_end|>"
        )
        assert made.text[slice(*span.date)] == f"{turn.time:%Y/%m/%d}" and span.date[0] < span.end
        assert (span.slot is None) == (turn.scene is None)
        assert span.slot is None or made.text[slice(*span.slot)] == corpus.slot_text(corpus.TOKENS)
        assert made.text[: span.start].endswith(f"<|im_start|>{turn.role}\n")
    batch = trainer.packer.pack([made])
    text = trainer.processor.tokenizer.convert_ids_to_tokens(batch["ids"][0].tolist())
    dates = [hint for _, hint in batch["hints"] if (hint.layer, hint.head) == (1, 1)]
    assert dates and all(
        text[h.targets[0]].isdigit() and text[h.targets[1]].startswith("/") and max(h.targets) < h.source
        for h in dates
    )


def test_whole_conversations_have_a_share_of_the_last_stage_and_can_be_evaluated(trainer, monkeypatch):
    assert set(train.SHARES) == {"world", "shop", "errand", "whole"} and train.SHARES["whole"] > 0
    assert sum(train.SHARES.values()) == pytest.approx(1)
    monkeypatch.setattr(train, "BATCH_TOKENS", 1)  # two contexts, the least there is
    monkeypatch.setattr(trainer, "stage", len(train.STAGES) - 1)
    monkeypatch.setattr(train, "SHARES", {"whole": 1.0})
    made, whole = [], corpus.whole
    monkeypatch.setattr(corpus, "whole", lambda *a, **b: made.append(whole(*a, **b)) or made[-1])
    batch = trainer.batch()
    assert len(made) == len(batch["ids"]) == 2 and all("=== Session 3 (Date: " in c.text for c in made)
    table = trainer.evaluate(0, seed=1, contexts=8, place="whole", sessions=3)
    assert len(table) > 4 and "which" not in table and np.isfinite(trainer.held_out_loss)
    assert all(0 <= share <= 1 and number > 0 for share, number in table.values())


def test_withheld_evidence_is_answered_by_refusing(turns):
    rng = np.random.default_rng(4)
    blind = corpus.context(rng, turns, 8, questions=20, modality="text", absent=0.0)
    for asked, answer in blind.asks:
        needs = asking.SORTS[asked.subtype].needs
        assert (answer == REFUSAL) == ("pixels" in needs)
    full = corpus.context(rng, turns, 8, questions=20, modality="text", absent=0.0, expect_full=True)
    assert all(answer != REFUSAL for _, answer in full.asks)
    assert not any(isinstance(part, Slot) for part in blind.images)


def test_training_goes_down_saves_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr("delivermem.reference.train.BATCH_TOKENS", 1200)
    trainer = Trainer(tmp_path, seed=3, minutes=1e9)
    batch = trainer.batch()

    def loss():
        logits, label, _ = trainer.forward(batch)
        return torch.nn.functional.cross_entropy(logits, label) + 0.3 * trainer.hint_loss(batch)

    before = loss()
    for _ in range(4):
        value = loss()
        value.backward()
        for optimizer in trainer.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        trainer.step += 1
    after = loss()
    assert after.item() < before.item()
    trainer.save()
    again = Trainer(tmp_path, seed=9, minutes=1e9)
    assert again.resume() and again.step == trainer.step
    for a, b in zip(trainer.net.parameters(), again.net.parameters(), strict=True):
        assert torch.equal(a, b)
    assert again.rng.bit_generator.state == trainer.rng.bit_generator.state
    momenta = [o.state_dict()["state"] for o in (trainer.optimizers[0], again.optimizers[0])]
    assert all(torch.equal(momenta[0][i]["momentum"], momenta[1][i]["momentum"]) for i in momenta[0])
    json.loads((tmp_path / "checkpoint.json").read_text())


def test_muon_steps_have_one_size_in_every_direction():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(8, 16))
    weight.grad = torch.randn(8, 3) @ torch.randn(3, 16) + 0.1 * torch.randn(8, 16)
    Muon([weight], lr=1.0, weight_decay=0.0).step()
    singular = torch.linalg.svdvals(weight.data) / (0.2 * 16**0.5)
    assert singular.max() < 1.3 and singular[2] > 0.6


def test_the_tokenizer_keeps_any_text_and_whole_words(trainer):
    tok = trainer.processor.tokenizer
    for text in ("[2024/05/11 (Sat) 19:33] Where is the umbrella?", "naïve 中文 <tag>\n\ttabs", "M10 M11"):
        assert tok.decode(tok.encode(text, add_special_tokens=False)) == text
    for word in (*scenes.COLOURS, *scenes.OBJECTS, *world.TOPICS, *world.ROOMS, *world.KEPT, *world.BOUGHT):
        assert len(tok.encode(f" {word}", add_special_tokens=False)) == 1, word
    assert build.GRID**2 // 4 == corpus.TOKENS


def _delivered(visits, made, tags, text=""):
    """The visits of a context as `deliver` gives them, their pictures in the context's order."""
    question = Question("", text, "", "", Memory("", ()), time=max(visit.time for visit in visits))
    decisions = Decisions(identity="stamp" if tags == "rank" else "none")
    records = [span.visit.record() for span in made.spans]
    prompt = deliver(records, question, decisions, layout="images-last")
    order = tuple(int(i) for i in np.argsort([span.slot[0] for span in made.spans]))
    if order == tuple(range(len(order))) and IMAGES_LAST in made.text:
        return prompt
    return shown_in(prompt, order)


@pytest.mark.parametrize("seed", [6, 7])
@pytest.mark.parametrize("tags", ["rank", "none"])
def test_a_packed_visit_to_the_shop_is_the_delivered_prompt_and_gives_its_logits(trainer, tags, seed):
    """As for conversations: frames larger than photographs, all pictures after all texts, in the items' order or not."""
    rng = np.random.default_rng(seed)
    visits = shop.chain(rng, shop.catalogue(rng, for_benchmark=False), 3)
    made = shopping.context(rng, visits, 5, questions=3, tags=tags, absent=0.0)
    asked, answer = made.asks[0]
    prompt = _delivered(visits, made, tags, asked.text)
    _packed_is_real(trainer, made, prompt, answer)
    if asked.subtype == "product":
        (cell,) = asked.focus
        assert answer == made.spans[cell[0]].visit.product.code and "/product/" + answer in prompt.text


def test_an_errand_is_the_agents_prompt_and_its_hints_point_at_the_cue(trainer):
    """Whatever the page, with tags or without: text, tokens, positions and logits; and what is looked up is in the frame
    that shows the cue, the page's own where the product has been found."""
    rng, seen = np.random.default_rng(3), set()
    visits = shop.chain(rng, shop.catalogue(rng, for_benchmark=False), 3)
    for number in range(16):
        tags = ("rank", "none")[number % 2]
        made = errands.context(rng, visits, 5, tags=tags)
        (asked, reply), text = made.asks[0], made.text
        url = text.split("URL: ")[1].split("\n")[0]
        product = next((v.product for v in visits if v.product.page == url), None)
        said = re.findall("(?<=assistant: )Thought: [^\n]+\nAction: [^\n]+", text)
        cue = text[slice(*made.cue)]
        prompt = agent.step_prompt(
            _delivered(visits, made, tags), cue, step=len(said) + 1, url=url,
            page=product.photo if product else None, replies=said,
        )  # fmt: skip
        if number < 4:
            _packed_is_real(trainer, made, prompt, reply)
        shows = {
            v.product.code
            for v in visits
            if cue in {" ".join(p[:2]) for p in (v.product.cue, *v.product.others)}
        }
        delivered = {span.visit.product.code for span in made.spans}
        action = reply.split("Action: ")[1]
        seen.add(action.split("(")[0])
        if action.startswith("navigate"):
            code = action.removeprefix("navigate(/product/").removesuffix(")")
            assert code in shows & delivered
        elif action == "add_to_wishlist":
            assert product.code in shows
        else:
            assert not shows & delivered and asked.refusal
        row = trainer.packer._row(made)
        targets = {t for hint in row["hints"] if hint.layer == 3 for t in hint.targets}
        if asked.refusal:
            assert targets == {0}
            continue
        (target,) = targets
        char, _ = trainer.packer.rust.encode(text, add_special_tokens=False).offsets[target]
        holder, (first, end) = product, made.page or (0, 0)
        if action != "add_to_wishlist":
            span = next(span for span in made.spans if span.visit.product.code == code)
            holder, (first, end) = span.visit.product, span.slot
        assert row["ids"][target] == trainer.packer.image and first < char < end
        pads = text.count("<|image_pad|>", first, char)
        placed = next(p for p in (holder.cue, *holder.others) if " ".join(p[:2]) == cue)
        assert pads == placed[2][1] * shop.CELLS + placed[2][0]
    assert seen == {"navigate", "add_to_wishlist", "done"}


def test_the_encoder_learns_goes_on_where_it_stopped_and_loads(tmp_path, monkeypatch):
    monkeypatch.setattr(siglip, "BATCH", 8)
    torch.manual_seed(5)
    siglip.train(tmp_path / "run", minutes=0.02, seed=0)
    about = json.loads((tmp_path / "run" / "siglip.json").read_text())
    assert about["step"] > 0 and about["spent"] >= 0.02
    same = siglip.train(tmp_path / "run", minutes=0.02, seed=0)
    assert json.loads((tmp_path / "run" / "siglip.json").read_text())["step"] == about["step"]
    same.eval().save_pretrained(tmp_path / "model")
    siglip.processor().save_pretrained(tmp_path / "model")
    monkeypatch.setattr(runs, "data_dir", lambda: tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "model").rename(tmp_path / "models" / dense.ENCODER)
    encoder = encoders.Siglip(dense.ENCODER)
    frames = [product.photo for product in shop.catalogue(np.random.default_rng(0), for_benchmark=False)[:3]]
    vectors, words = encoder.images(frames), encoder.texts(["a photo of a red star"])
    assert vectors.shape == (3, 128) and words.shape == (1, 128) and vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    with torch.no_grad():
        direct = same.get_image_features(pixel_values=siglip.pixels(frames)).pooler_output
    np.testing.assert_allclose(
        vectors @ (direct / direct.norm(dim=1, keepdim=True)).numpy().T, vectors @ vectors.T, atol=1e-4
    )


def test_pictures_are_ranked_by_their_best_tile(monkeypatch, tmp_path):
    """With an encoder that sees mean colours: a small red spot is found by tiles and lost in the whole."""

    class Colours:
        identity = "colours@1"

        def images(self, images):
            means = np.stack([np.asarray(image, np.float32).mean((0, 1)) for image in images])
            return means / np.linalg.norm(means, axis=1, keepdims=True)

        def texts(self, texts):
            return np.array([[1.0, 0, 0] if "red" in text else [0, 0, 1.0] for text in texts], np.float32)

    monkeypatch.setattr(dense, "encoder", Colours)
    monkeypatch.setattr(dense, "data_dir", lambda: tmp_path)
    spot = Image.new("RGB", (96, 96), "green")
    spot.paste((255, 0, 0), (48, 48, 96, 96))
    half = Image.new("RGB", (96, 96), (140, 128, 0))
    images = [spot, half, Image.new("RGB", (96, 96), "blue")]
    asked = ["red?", "red!", "blue"]
    assert dense.ranks(images, asked, 1) == [2, 1, 1] and dense.ranks(images, asked, 2) == [1, 2, 1]
    assert dense.ranks(images, asked, 2, seed=3) == dense.ranks(images, asked, 2, seed=3)
    assert dense.winner(spot, "red", 2)[:2] == (41, 41)
    records = [Record(f"r{i}", "<image>", pictures=(Picture("p", image),)) for i, image in enumerate(images)]
    memory = Memory("m", (Record("t", "no picture"), *records))
    question = Question("q", "red?", "", "", memory)
    assert [r.id for r in dense.rank(question, 9, "tiles")] == ["r0", "r1", "r2", "t"]
    assert [r.id for r in dense.rank(question, 1, "whole")] == ["r1"]
    assert {r.id for r in rank("crops", question, 3, seed=2)} == {"r0", "r1", "r2"}
    assert rank("crops", question, 4, seed=2) == rank("crops", question, 4, seed=2)
    asked_for = Question("q", "red?", "", "", memory, gold=("r2",))
    assert [r.id for r in rank("gold", asked_for, 2, beside_gold="tiles")] == ["r0", "r2"]
    assert len([*(tmp_path / "cache" / "embeddings").glob("*.npy")]) == 5


def test_what_a_view_shows_is_whole_in_it():
    views = siglip.Views(np.random.default_rng(0))
    images, texts, true, labels = views.batch(40)
    assert images.shape == (40, 3, siglip.SIDE, siglip.SIDE) and true.shape == (40, 40)
    assert labels.shape == (40, siglip.PATCHES**2, 2) and 0.05 < (labels >= 0).float().mean() < 0.6
    assert set(true.unique().tolist()) == {-1.0, 1.0} and (true > 0).any(0).float().mean() > 0.5
    assert len({text.split()[0] for text in texts}) >= 2 and all(" " in text for text in texts)
