"""Encoders: SigLIP2 and sentence encoders in their true layout; what ranks by them, fused and alone."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest
from conftest import small_memory
from hypothesis import given, settings
from hypothesis import strategies as st
from made_encoders import minilm, siglip2
from PIL import Image

from delivermem import backbones, dense, encoders, retrieval
from delivermem.pins import PINS
from delivermem.records import Memory, Picture, Question, Record

RNG = np.random.default_rng(3)
IMAGES = [
    Image.fromarray(RNG.integers(0, 256, (h, w, 3), dtype=np.uint8))
    for h, w in ((40, 60), (33, 32), (90, 20))
]
TEXTS = ["The red harbor", "a green lamp at night", "it", "what the garden showed " * 9]


@pytest.fixture(scope="session")
def eye(tmp_path_factory):
    return siglip2(tmp_path_factory.mktemp("enc") / "siglip2")


@pytest.fixture(scope="session")
def reader(tmp_path_factory):
    return minilm(tmp_path_factory.mktemp("enc") / "minilm")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    """Kept vectors lie in the test's own folder, and none are in memory."""
    monkeypatch.setattr(dense, "data_dir", lambda: tmp_path)
    for made in (dense._index, dense._texts, dense._held):
        made.clear() if isinstance(made, dict) else made.cache_clear()


def test_siglip2_vectors_do_not_depend_on_what_else_is_in_the_batch(eye, monkeypatch):
    encoder = encoders.Siglip(str(eye))
    pictures, texts = encoder.images(IMAGES), encoder.texts(TEXTS)
    assert (
        pictures.shape == (3, 32) and texts.shape == (4, 32) and pictures.dtype == texts.dtype == np.float32
    )
    for vectors in (pictures, texts):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    monkeypatch.setattr(encoders, "BATCH", 1)
    np.testing.assert_allclose(encoder.images(IMAGES[::-1])[::-1], pictures, atol=1e-5)
    np.testing.assert_allclose(encoder.texts(TEXTS[::-1])[::-1], texts, atol=1e-5)
    assert np.abs(pictures[0] - pictures[1]).max() > 0.01 and np.abs(texts[0] - texts[1]).max() > 0.01


def test_siglip2_reads_lower_case_padded_to_64_places_with_an_end(eye):
    """Against transformers' own model, given the tokens that the hub's tokenizer is to give."""
    import torch
    import transformers

    encoder = encoders.Siglip(str(eye))
    model = transformers.SiglipModel.from_pretrained(eye)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(eye / "tokenizer.json"))
    ids = tokenizer("the red harbor", add_special_tokens=False)["input_ids"]
    padded = torch.tensor([[*ids, 1, *[0] * (63 - len(ids))]])
    with torch.no_grad():
        wanted = model.get_text_features(input_ids=padded).pooler_output
    wanted = (wanted / wanted.norm()).numpy()
    np.testing.assert_allclose(encoder.texts(["The RED harbor"]), wanted, atol=1e-5)
    loud = encoder.texts(["red " * 200, "red " * 300])  # cut, and both end alike
    np.testing.assert_allclose(loud[0], loud[1], atol=1e-6)


def test_siglip2_of_any_shape_reads_pictures_of_any_shape(tmp_path):
    """NaFlex checkpoints have `model_type` siglip2 and their own image processor."""
    from transformers import Siglip2Config, Siglip2Model

    folder = siglip2(tmp_path / "naflex")
    sides = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    vision = dict(patch_size=8, num_patches=16, **sides)
    vocabulary = json.loads((folder / "config.json").read_text())["text_config"]["vocab_size"]
    config = Siglip2Config(text_config=dict(vocab_size=vocabulary, **sides), vision_config=vision)
    Siglip2Model(config).save_pretrained(folder)
    about = dict(image_processor_type="Siglip2ImageProcessor", patch_size=8, max_num_patches=16)
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    encoder = encoders.Siglip(str(folder))
    together = encoder.images(IMAGES)
    np.testing.assert_allclose(encoder.images(IMAGES[1:2]), together[1:2], atol=1e-5)
    np.testing.assert_allclose(encoder.texts(["RED lamp"]), encoder.texts(["red lamp"]), atol=1e-6)


def test_a_sentence_vector_is_the_masked_mean_over_its_tokens(reader):
    import torch
    import transformers

    encoder = encoders.Sentences(str(reader))
    found = encoder.texts(TEXTS)
    model = transformers.BertModel.from_pretrained(reader).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(reader)
    for text, vector in zip(TEXTS, found, strict=True):
        ids = tokenizer(text, truncation=True, max_length=24)["input_ids"]
        with torch.no_grad():
            mean = model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(vector, (mean / mean.norm()).numpy(), atol=1e-5)
    assert len(tokenizer(TEXTS[3], truncation=True, max_length=24)["input_ids"]) == 24
    assert encoder.texts([]).shape[0] == 0


def test_an_encoder_that_runs_out_of_memory_takes_smaller_batches(eye):
    encoder, sizes = encoders.Siglip(str(eye)), []
    model = encoder._loaded[2]
    whole = model.get_text_features

    def short(input_ids):
        sizes.append(len(input_ids))
        if len(input_ids) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return whole(input_ids=input_ids)

    texts = [f"lamp {i}" for i in range(7)]
    wanted = encoder.texts(texts)
    model.get_text_features = short
    np.testing.assert_allclose(encoder.texts(texts), wanted, atol=1e-5)
    assert sizes == [7, 3, 1, 1, 1, 1, 1, 1, 1]


def test_vectors_that_are_no_numbers_are_refused(reader):
    encoder = encoders.Sentences(str(reader))
    encoder._loaded[1].embeddings.word_embeddings.weight.data.fill_(float("nan"))
    with pytest.raises(backbones.BackboneError, match=r"text encoder minilm@.* not made of numbers"):
        encoder.texts(["red"])


def test_a_hub_name_is_pinned_or_refused_before_anything_is_fetched():
    for name, commit in PINS.items():
        if "siglip2" in name:
            assert encoders.Siglip(name).identity == f"{name}@{commit}"
        if "MiniLM" in name:
            assert encoders.Sentences(f"{name}@{commit}").identity == encoders.Sentences(name).identity
    with pytest.raises(
        backbones.BackboneError, match=r"^encoder 'google/siglip2-large-patch16-384': pin the"
    ):
        encoders.Siglip("google/siglip2-large-patch16-384")


def test_half_precision_is_part_of_an_encoders_name(eye, monkeypatch):
    monkeypatch.setattr(backbones, "_dtype", lambda device: "bfloat16")
    encoder = encoders.Siglip(str(eye))
    assert encoder.identity.endswith(" in bfloat16")
    exact = dense.Siglip(str(eye))
    exact.dtype = "float32"
    half, full = encoder.images(IMAGES), exact.images(IMAGES)
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, full, atol=0.05)
    np.testing.assert_allclose(np.linalg.norm(half, axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: (f / "sentence_bert_config.json").unlink(), "sentence_bert_config.json can't be read"),
        (lambda f: (f / "modules.json").write_text("{"), "modules.json can't be read"),
        (
            lambda f: (f / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense"}]'),
            r"no plain mean over tokens \(Dense",
        ),
        (lambda f: minilm(f, pooling="cls"), r"no plain mean over tokens \(pooling_mode_cls_token\)"),
        (lambda f: (f / "model.safetensors").unlink(), r"^text encoder .*no \*\.safetensors"),
    ],
)
def test_a_text_encoder_of_another_kind_is_one_sentence(tmp_path, change, says):
    folder = minilm(tmp_path / "minilm")
    change(folder)
    with pytest.raises(backbones.BackboneError, match=says) as caught:
        encoders.Sentences(str(folder))
    assert "\n" not in str(caught.value)


def test_the_two_kinds_of_encoder_are_not_taken_for_each_other(eye, reader):
    with pytest.raises(backbones.BackboneError, match="text encoder 'siglip2': a model of pictures"):
        encoders.Sentences(str(eye))
    with pytest.raises(backbones.BackboneError, match="encoder 'minilm': a model of type 'bert'"):
        encoders.Siglip(str(reader))


def test_another_length_is_another_text_encoder(tmp_path, reader):
    other = minilm(tmp_path / "minilm", most=12)
    assert encoders.Sentences(str(other)).identity != encoders.Sentences(str(reader)).identity


def _asked(memory, text="Where is the red lamp?", **more):
    return Question("q", text, "", "x", memory, **more)


def _by_hand(vectors, owners, query):
    best = {}
    for vector, record in zip(vectors, owners, strict=True):
        best[record] = max(best.get(record, -2.0), float(vector @ query))
    return best


@pytest.mark.parametrize("ranker", ["text", "fused", "fused-tiles", "whole", "tiles"])
def test_rankers_of_every_channel_agree_with_the_arithmetic(eye, reader, ranker, tmp_path):
    memory = small_memory()
    question = _asked(memory)
    found = retrieval.rank(ranker, question, 9, encoder=str(eye), text_encoder=str(reader))
    see, read = encoders.Siglip(str(eye)), encoders.Sentences(str(reader))
    shown = [(r.id, p.source) for r in memory for p in r.pictures]
    cut = [dense.tiles.cut(image, 2, whole=True) if "tiles" in ranker else [image] for _, image in shown]
    owners = [name for (name, _), pieces in zip(shown, cut, strict=True) for _ in pieces]
    visual = _by_hand(
        see.images([p for pieces in cut for p in pieces]), owners, see.texts([question.text])[0]
    )
    plain = {r.id: " ".join(r.text.replace("<image>", " ").split()) for r in memory}
    verbal = _by_hand(read.texts(list(plain.values())), plain, read.texts([question.text])[0])

    def scale(scores):
        least, most = min(scores.values()), max(scores.values())
        return {name: (score - least) / (most - least) for name, score in scores.items()}

    if ranker == "text":
        wanted = verbal
    elif "fused" in ranker:
        wanted = {n: 0.75 * scale(visual).get(n, 0.5) + 0.25 * s for n, s in scale(verbal).items()}
    else:
        wanted = {r.id: visual.get(r.id, -9.0) for r in memory}
    assert [r.id for r in found] == sorted(wanted, key=lambda n: (-round(wanted[n], 5), n))
    assert len(list((tmp_path / "cache" / "embeddings").glob("*.npy"))) == 1 + ("fused" in ranker)


def test_kept_vectors_serve_again_and_a_memory_that_grew_costs_what_it_grew(eye, reader, monkeypatch):
    memory = small_memory()
    young = Memory("m", memory.records[:3])
    by = dict(encoder=str(eye), text_encoder=str(reader))
    given = []
    for kind, method in ((encoders.Siglip, "images"), (encoders.Sentences, "texts")):
        real = getattr(kind, method)
        monkeypatch.setattr(
            kind, method, lambda self, items, real=real: given.append(len(items)) or real(self, items)
        )
    retrieval.rank("fused", _asked(young), 3, **by)
    assert given == [2, 3, 1]  # pictures, texts, the question's own
    first = retrieval.rank("fused", _asked(memory), 6, **by)
    assert given[3:] == [2, 3, 1]
    dense._held.clear(), dense._index.cache_clear(), dense._texts.cache_clear()
    retrieval.rank("fused", _asked(young), 3, **by)
    assert retrieval.rank("fused", _asked(memory), 6, **by) == first
    assert given[6:] == [1, 1]


def test_the_query_is_what_memory_is_asked(reader):
    memory = small_memory()
    by = dict(text_encoder=str(reader))
    for ranker in ("text", "bm25"):
        plain = retrieval.rank(ranker, _asked(memory, "lamp office"), 6, **by)
        other = _asked(memory, "Which one?", query="lamp office")
        assert retrieval.rank(ranker, other, 6, **by) == plain
    assert plain[0].id == "r5"


class Eye:
    """Sees two things in a picture: how red it is and how green. `said`: what it was asked."""

    identity = "eye@1"

    def images(self, images):
        means = np.stack([np.asarray(image, np.float32).mean((0, 1)) for image in images])
        return (means / 255)[:, :2]

    def texts(self, texts):
        return np.tile(np.float32([1, 0]), (len(texts), 1))


class Reader:
    """A text is worth its number."""

    identity = "reader@1"

    def texts(self, texts):
        return np.array([[float(t) if t.replace(".", "").isdigit() else 1.0] for t in texts], np.float32)


def _store(levels):
    """A record for each (red, number); None: no picture, no words."""
    records = []
    for i, (red, number) in enumerate(levels):
        text = ("" if number is None else str(number)) + ("" if red is None else " <image>")
        shown = () if red is None else (Picture(f"p{i}", Image.new("RGB", (40, 40), (red, 0, 0))),)
        records.append(Record(f"r{i:02d}", text, datetime(2024, 1, 1 + i // 2), pictures=shown))
    return Memory("m", tuple(records))


@pytest.fixture
def fakes(monkeypatch):
    monkeypatch.setattr(dense, "encoder", lambda *_: Eye())
    monkeypatch.setattr(dense, "text_encoder", lambda *_: Reader())


def test_fusion_weighs_scaled_channels_and_what_tells_nothing_is_neutral(fakes):
    memory = _store([(255, 2), (51, 10), (None, 6), (153, None), (None, None), (51, 2)])
    question = _asked(memory)
    found = [r.id for r in retrieval.rank("fused", question, 9, text_encoder="x")]
    by_hand = {
        "r00": 0.75 * 1.0 + 0.25 * 0.0,
        "r01": 0.75 * 0.0 + 0.25 * 1.0,
        "r02": 0.75 * 0.5 + 0.25 * 0.5,
        "r03": 0.75 * 0.5 + 0.25 * 0.5,
        "r04": 0.5,
        "r05": 0.0,
    }
    assert dense.ALPHA == 0.75 and dense.NEUTRAL == 0.5
    assert found == sorted(by_hand, key=lambda n: (-by_hand[n], n))
    texts = [r.id for r in retrieval.rank("text", question, 9, text_encoder="x")]
    assert texts == ["r01", "r02", "r00", "r05", "r03", "r04"]  # those that say nothing last, by age
    flat = _store([(51, 3), (51, 9)])
    assert [r.id for r in retrieval.rank("fused", _asked(flat), 2, text_encoder="x")] == ["r01", "r00"]


LEVELS = st.lists(
    st.tuples(st.none() | st.integers(0, 255), st.none() | st.integers(0, 9)), min_size=1, max_size=9
)


@settings(max_examples=40, deadline=None)
@given(LEVELS, st.integers(1, 10), st.sampled_from(["text", "fused", "fused-tiles", "tiles"]), st.randoms())
def test_dense_rankers_give_k_distinct_records_whatever_the_stored_order(levels, k, ranker, random):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "encoder", lambda *_: Eye())
        patch.setattr(dense, "text_encoder", lambda *_: Reader())
        memory = _store(levels)
        found = [r.id for r in retrieval.rank(ranker, _asked(memory), k, text_encoder="x")]
        assert len(set(found)) == len(found) == min(k, len(levels))
        shuffled = list(memory.records)
        random.shuffle(shuffled)
        again = retrieval.rank(ranker, _asked(Memory("m", tuple(shuffled))), k, text_encoder="x")
        assert [r.id for r in again] == found


@given(st.dictionaries(st.text(max_size=3), st.floats(-1, 1), max_size=8))
def test_scaled_scores_keep_their_order_between_0_and_1(scores):
    found = dense.scaled(scores)
    assert found.keys() == scores.keys() and all(0 <= value <= 1 for value in found.values())
    for a in scores:
        for b in scores:
            assert not (scores[a] < scores[b] and found[a] > found[b])
    if len(set(scores.values())) > 1:
        assert {0.0, 1.0} <= set(found.values())
    else:
        assert set(found.values()) <= {0.5}


@pytest.mark.parametrize("ranker", sorted(retrieval.BY_WORDING))
def test_a_ranker_of_texts_without_an_encoder_of_texts_is_refused_first(ranker, monkeypatch):
    monkeypatch.setattr(dense, "encoder", lambda *_: pytest.fail("no model is to be had"))
    question = _asked(small_memory())
    for asked in (dict(ranker=ranker), dict(ranker="gold", beside_gold=ranker)):
        with pytest.raises(
            ValueError, match=f"ranker '{ranker}' reads texts .*names none; set its text_encoder"
        ):
            retrieval.rank(question=question, k=2, **asked)
    with pytest.raises(ValueError, match="names none"):
        dense.stated({"bm25", ranker}, "tiny-siglip", "")


def test_what_a_manifest_says_names_both_encoders_and_loads_none(eye, reader):
    dense.encoder.cache_clear()
    said = dense.stated({"tiles"}, str(eye), str(reader))
    assert said == f"{encoders.Siglip(str(eye)).identity} + {encoders.Sentences(str(reader)).identity}"
    assert "_loaded" not in dense.encoder(str(eye)).__dict__
    assert dense.stated({"tiles"}, "tiny-siglip", "") == dense.encoder().identity
    with pytest.raises(backbones.BackboneError, match="text encoder 'nowhere' is unknown"):
        dense.stated({"text"}, "tiny-siglip", "nowhere")
    with pytest.raises(backbones.BackboneError, match="no encoder is named"):
        dense.stated({"tiles"}, "", "")


def test_gold_keeps_the_order_of_a_fused_ranker(eye, reader):
    memory = small_memory()
    by = dict(encoder=str(eye), text_encoder=str(reader))
    question = replace(_asked(memory), gold=("r6", "r2"))
    everything = [r.id for r in retrieval.rank("fused", question, 6, **by)]
    found = [r.id for r in retrieval.rank("gold", question, 3, beside_gold="fused", **by)]
    assert found == [name for name in everything if name in found] and {"r6", "r2"} <= set(found)
