"""The transformers engine at work: memory that runs out, prompts that break, callers that stop, and the models it is for."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from conftest import SPECIAL, picture
from PIL import Image

from delivermem import backbones, local, overlap
from delivermem.delivery import deliver
from delivermem.records import Picture, Prompt, Record

TOKENS = 6


def _prompts(n: int, size: tuple[int, int] = (64, 64)) -> list[Prompt]:
    colours = ("red", "green", "blue", "pink", "black", "white")
    return [
        deliver(
            [
                Record(
                    f"r{i}",
                    f"Photo {i} <image>" + " harbor" * i,
                    pictures=(picture(f"p{i}", colours[i % 6], size),),
                )
            ],
            "What?",
        )
        for i in range(n)
    ]


@pytest.fixture
def model(random_qwen):
    return backbones.load(str(random_qwen), max_new_tokens=TOKENS, batch_size=4)


@pytest.fixture(scope="module")
def answers(random_qwen):
    """What each of twenty prompts is answered alone."""
    alone = backbones.load(str(random_qwen), max_new_tokens=TOKENS, batch_size=1)
    return {i: answer.text for i, answer in alone.answer(_prompts(20))}


def _texts(found):
    return {i: answer.text for i, answer in found.items()}


def _with_room_for(model, monkeypatch, most: int, error=None):
    """The real model, but for batches of more than `most`: the sizes it was given."""
    net, sizes = model._load()[1], []
    generate = net.generate

    def small(**given):
        sizes.append(len(given["input_ids"]))
        if sizes[-1] > most:
            raise error or torch.OutOfMemoryError("CUDA out of memory")
        return generate(**given)

    monkeypatch.setattr(net, "generate", small)
    return sizes


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryError()],
    ids=["cuda", "cpu", "python"],
)  # fmt: skip
def test_memory_that_runs_out_costs_no_answer(model, answers, monkeypatch, most, error):
    sizes = _with_room_for(model, monkeypatch, most, error)
    found = dict(model.answer(_prompts(20)))
    assert _texts(found) == answers and {a.status for a in found.values()} == {"ok"}
    assert sizes[0] == 4 and max(sizes[1:]) <= 4 // 2 if most > 1 else max(sizes[2:]) == 1


def test_batches_are_prepared_at_the_size_that_fitted(model, monkeypatch):
    """After memory ran out, only what was ready by then is prepared twice: the rest is still prepared ahead."""
    _with_room_for(model, monkeypatch, 2)
    sizes, prepared = [], model._prepared
    monkeypatch.setattr(
        model, "_prepared", lambda prompts: (sizes.append(len(prompts)), prepared(prompts))[1]
    )
    assert len(dict(model.answer(_prompts(48)))) == 48
    ready = local.AHEAD + 2
    assert set(sizes) == {4, 2} and sizes.count(4) <= ready and sum(sizes) <= 48 + 4 * ready


def test_what_did_not_fit_leaves_the_device(model, monkeypatch):
    """The inputs of a batch that failed are not moved in place, so that its halves have the room."""
    net, given = model._load()[1], []
    prepared, generate = model._prepared, net.generate
    monkeypatch.setattr(model, "_prepared", lambda p: (given.append(prepared(p)), given[-1])[1])
    seen = []
    monkeypatch.setattr(net, "generate", lambda **fields: (seen.append(fields), generate(**fields))[1])
    half = SimpleNamespace(dtype=torch.bfloat16)
    monkeypatch.setattr(type(net), "dtype", property(lambda self: half.dtype), raising=False)
    list(model.answer(_prompts(2)))
    assert seen[0]["pixel_values"].dtype == torch.bfloat16
    assert given[0].fields["pixel_values"].dtype == torch.float32


def test_a_bad_prompt_fails_alone_and_says_why(model, answers):
    prompts = _prompts(8)
    sliver = Picture("thin", Image.new("RGB", (8, 2000), "red"))
    prompts[5] = deliver([Record("thin", "<image>", pictures=(sliver,))], "What?")
    found = dict(model.answer(prompts))
    assert sorted(found) == list(range(8))
    assert (found[5].status, found[5].text) == ("failed", "")
    assert found[5].finish.startswith("error: a picture of 8 x 2000 pixels")
    assert {i: a.text for i, a in found.items() if i != 5} == {i: answers[i] for i in range(8) if i != 5}


def test_prompts_that_stop_with_an_error_pass_it_on_after_what_came_before(model, answers):
    def given():
        yield from _prompts(16)
        raise KeyError("the store is gone")

    found = {}
    with pytest.raises(KeyError, match="the store is gone"):
        for i, answer in model.answer(given()):
            found[i] = answer
    assert _texts(found) == {i: answers[i] for i in range(16)}
    assert not _workers()
    assert len(dict(model.answer(_prompts(3)))) == 3  # it can be asked again


def _workers():
    return [thread for thread in threading.enumerate() if thread.name == "prepares batches"]


def test_a_caller_that_stops_early_leaves_no_thread_and_draws_no_further_prompt(model):
    drawn = []

    def given():
        for i, prompt in enumerate(_prompts(18) * 20):
            drawn.append(i)
            yield prompt

    answered = model.answer(given())
    assert next(answered)[1].status == "ok" and _workers()
    answered.close()
    assert not _workers()
    at = len(drawn)
    assert at <= local.WINDOW * 4 * (local.AHEAD + 2) < 360
    assert len(dict(model.answer(_prompts(3)))) == 3 and len(drawn) == at


def test_prompts_are_drawn_as_they_are_answered(model):
    drawn = []

    def given() -> Iterator[Prompt]:
        for prompt in _prompts(18) * 8:
            drawn.append(prompt)
            yield prompt

    for done, _ in enumerate(model.answer(given()), 1):
        ahead = len(drawn) - done
        assert ahead <= 4 * (2 * local.WINDOW + local.AHEAD + 2)
    assert done == len(drawn) == 144


def test_work_ahead_is_done_ahead_in_order_and_no_further_than_said():
    made = []

    def source():
        for i in range(9):
            made.append(i)
            yield i

    reached = []
    for item in overlap.ahead(source(), 2):
        reached.append(item)
        assert len(made) - len(reached) <= 3
    assert reached == list(range(9))


def test_prompts_are_padded_on_the_left_and_batched_by_length(model, monkeypatch):
    net, seen = model._load()[1], []
    generate = net.generate
    monkeypatch.setattr(net, "generate", lambda **given: (seen.append(given), generate(**given))[1])
    list(model.answer(_prompts(16)))
    for given in seen:
        mask = given["attention_mask"]
        assert mask[:, -1].all() and (mask.diff(dim=1) >= 0).all()
    longest = [given["input_ids"].shape[1] for given in seen]
    assert longest == sorted(longest, reverse=True) and len(seen) == 4
    padding = sum(int((given["attention_mask"] == 0).sum()) for given in seen)
    assert padding < sum(given["input_ids"].numel() for given in seen) / 10


def test_no_picture_takes_more_tokens_than_the_cap_and_its_shape_is_kept(random_qwen):
    large = _prompts(2, (128, 64))
    free = dict(backbones.load(str(random_qwen), max_new_tokens=2).answer(large))
    capped = dict(backbones.load(str(random_qwen), max_new_tokens=2, image_tokens=2).answer(large))
    assert {a.image_tokens for a in free.values()} == {8} and {a.image_tokens for a in capped.values()} == {2}


def test_a_cap_that_the_model_can_not_keep_is_refused(random_qwen, tmp_path):
    folder = tmp_path / "least"
    shutil.copytree(random_qwen, folder)
    path = folder / "processor_config.json"
    about = json.loads(path.read_text())
    about["image_processor"]["size"]["shortest_edge"] = 4 * 32 * 32
    path.write_text(json.dumps(about))
    asked = backbones.load(str(folder), max_new_tokens=2, image_tokens=3)
    with pytest.raises(backbones.BackboneError, match="image_tokens=3: least takes 4 tokens or more"):
        list(asked.answer(_prompts(1)))
    at_least = backbones.load(str(folder), max_new_tokens=2, image_tokens=4)
    assert [a.image_tokens for _, a in at_least.answer(_prompts(1))] == [4]


def test_logits_that_are_no_numbers_are_a_failure_of_their_prompt_alone(random_qwen):
    """In float16, as on a GPU without bfloat16: one row of a batch overflows."""
    half = backbones.load(str(random_qwen), max_new_tokens=TOKENS, batch_size=4, dtype="float16")
    fine = dict(half.answer(_prompts(4)))
    assert {a.status for a in fine.values()} == {"ok"}
    spoilt = half._load()[1].lm_head.register_forward_hook(
        lambda module, given, logits: logits.index_fill(0, torch.tensor([1]), float("nan"))
    )
    found = dict(half.answer(_prompts(4)))
    spoilt.remove()
    lost = [i for i, a in found.items() if a.status == "failed"]
    assert len(lost) == 1 and "no numbers in float16" in found[lost[0]].finish and found[lost[0]].text == ""
    assert {i: a.text for i, a in found.items() if i not in lost} == {
        i: a.text for i, a in fine.items() if i not in lost
    }


@pytest.mark.parametrize(
    ("places", "refused"),
    [
        ({"a": 0, "b": 1}, ""),
        ({"": "cpu"}, ""),
        ({"a": 0, "b": "cpu"}, "cpu"),
        ({"a": 0, "b": "disk"}, "disk"),
        ({"a": "cpu", "b": "disk"}, "cpu and disk"),
    ],
)
def test_a_model_that_lies_partly_off_the_gpu_is_refused(random_qwen, places, refused):
    spread = local.TransformersBackbone(
        str(random_qwen), dtype="float32", device="auto", batch_size=1, max_new_tokens=1
    )
    loaded = SimpleNamespace(hf_device_map=places)
    if not refused:
        spread._refuse_offload(loaded)
        return
    with pytest.raises(backbones.BackboneError, match=f"part of it would lie on {refused}; take a smaller"):
        spread._refuse_offload(loaded)


# -- the models it is for -------------------------------------------------------------------------------------


def _family(kind: str, random_qwen, folder):
    """A folder of that model type in the hub's layout, small, of random weights, with the tokenizer of `random_qwen`."""
    import transformers

    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(random_qwen / name, folder)
    template = (random_qwen / "chat_template.jinja").read_text()
    (folder / "chat_template.json").write_text(json.dumps(dict(chat_template=template)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(random_qwen)
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    rope = dict(rope_type="default", rope_theta=10000.0, mrope_section=[4, 2, 2])
    text = dict(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, max_position_embeddings=2048,
        pad_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"], bos_token_id=None,
    )  # fmt: skip
    vision = dict(
        depth=2, hidden_size=32, intermediate_size=64, num_heads=2, spatial_merge_size=2, temporal_patch_size=2,
        out_hidden_size=32,
    )  # fmt: skip
    if kind == "qwen2_5_vl":
        patch, made = 14, transformers.Qwen2_5_VLConfig
        net = transformers.Qwen2_5_VLForConditionalGeneration
        text |= dict(rope_parameters=rope)
        vision |= dict(patch_size=14, window_size=56, fullatt_block_indexes=[1])
        processor = "Qwen2_5_VLProcessor"
    else:
        patch, made = 16, transformers.Qwen3VLMoeConfig
        net = transformers.Qwen3VLMoeForConditionalGeneration
        text |= dict(
            rope_parameters={**rope, "mrope_interleaved": True}, num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=32, decoder_sparse_step=1,
        )  # fmt: skip
        vision |= dict(patch_size=16, num_position_embeddings=36, deepstack_visual_indexes=[0])
        processor = "Qwen3VLProcessor"
    config = made(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    area = (2 * patch) ** 2
    sizes = (
        dict(min_pixels=4 * area, max_pixels=16 * area)
        if kind == "qwen2_5_vl"
        else dict(size=dict(shortest_edge=4 * area, longest_edge=16 * area))
    )
    about = dict(
        image_processor_type="Qwen2VLImageProcessor", processor_class=processor, patch_size=patch, merge_size=2,
        temporal_patch_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3, **sizes,
    )  # fmt: skip
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    torch.manual_seed(0)
    built = net(config)
    with torch.no_grad():
        for weight in built.parameters():
            if weight.ndim >= 2:
                weight.normal_(
                    std=1.5 * (weight.shape[-1] if weight.ndim == 3 else weight[0].numel()) ** -0.5
                )
    built.save_pretrained(folder)
    shipped = dict(do_sample=True, temperature=0.1, repetition_penalty=1.05, top_k=1)
    ends = dict(eos_token_id=[ids["<|im_end|>"], ids["<|endoftext|>"]], pad_token_id=ids["<|endoftext|>"])
    (folder / "generation_config.json").write_text(json.dumps(shipped | ends))
    return folder


@pytest.mark.parametrize(("kind", "factor"), [("qwen2_5_vl", 28), ("qwen3_vl_moe", 32)])
def test_the_other_models_of_the_family_load_and_answer(kind, factor, random_qwen, tmp_path):
    folder = _family(kind, random_qwen, tmp_path / kind)
    sizes = [(factor * 3, factor * 2), (20, 20), (factor * 9, factor * 9)]
    records = [
        Record(f"r{i}", f"Photo {i} <image>", pictures=(picture(f"p{i}", "red", size),))
        for i, size in enumerate(sizes)
    ]
    prompts = [*(deliver([record], "What?") for record in records), deliver(records, "What?")]
    batched = dict(backbones.load(str(folder), max_new_tokens=TOKENS, batch_size=4).answer(prompts))
    alone = dict(backbones.load(str(folder), max_new_tokens=TOKENS, batch_size=1).answer(prompts))
    assert [batched[i].status for i in range(4)] == ["ok"] * 4, batched
    assert [batched[i].image_tokens for i in range(4)] == [6, 4, 16, 26]
    assert _texts(batched) == _texts(alone) and len(set(_texts(alone).values())) > 1
    capped = backbones.load(str(folder), max_new_tokens=2, image_tokens=9)
    assert [a.image_tokens for _, a in sorted(capped.answer(prompts[:3]))] == [6, 4, 9]


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "qwen3_vl_moe"])
def test_a_picture_is_resized_once(kind, random_qwen, tmp_path):
    """The processor gets pictures of the size that it would give them, so its own resize changes nothing."""
    folder = _family(kind, random_qwen, tmp_path / kind)
    model = backbones.load(str(folder), max_new_tokens=1)
    processor = model._load()[0]
    noise = Image.effect_noise((300, 111), 80).convert("RGB")
    prompt = deliver([Record("r", "<image>", pictures=(Picture("p", noise),))], "What?")
    fitted, stamped = model._prepared([prompt]), prompt.slots[0].image
    grid = local.grid_of(processor.image_processor)
    size = grid.size(300, 111)
    direct = processor.image_processor(
        images=[stamped.resize(size, Image.Resampling.BICUBIC)], return_tensors="pt"
    )
    assert torch.equal(fitted.fields["pixel_values"], direct["pixel_values"])
    assert fitted.fields["image_grid_thw"].tolist() == direct["image_grid_thw"].tolist()
