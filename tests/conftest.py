"""What several tests share: no network, a small memory with pictures, a small benchmark, a model of random weights."""

from __future__ import annotations

import json
import socket
from datetime import datetime
from pathlib import Path

import pytest
from PIL import Image

from delivermem.benchmarks import Benchmark
from delivermem.records import REFUSAL, Memory, Picture, Question, Record


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Any connection but to this machine fails the test that makes it."""
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in (
            "127.0.0.1",
            "::1",
            "localhost",
        ):
            raise AssertionError(f"a test reached for the network: {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def picture(name: str, colour: str = "red", size: tuple[int, int] = (96, 96)) -> Picture:
    return Picture(name, Image.new("RGB", size, colour), f"a {size[0]} pixel picture")


def small_memory(name: str = "m") -> Memory:
    """Six messages, three with pictures, one picture each but for the fourth, which has two."""

    def at(day: int) -> datetime:
        return datetime(2024, 5, day, 10, 0)

    records = (
        Record("r1", "A photo of the harbor. <image>", at(1), pictures=(picture("p1", "red"),)),
        Record("r2", "Nice weather in the harbor town.", at(2), role="assistant"),
        Record("r3", "My garden today: <image> is it not green?", at(3), pictures=(picture("p3", "green"),)),
        Record(
            "r4",
            "Two shots <image> and <image>",
            at(4),
            pictures=(picture("p4a", "blue"), picture("p4b", "pink")),
        ),
        Record("r5", "I bought a lamp for the office.", at(5)),
        Record("r6", "Good night.", at(6), role="assistant"),
    )
    return Memory(name, records)


@pytest.fixture
def memory() -> Memory:
    return small_memory()


@pytest.fixture
def small_benchmark(monkeypatch) -> Benchmark:
    """Four questions to two memories, known to the package as `small`."""
    from delivermem import benchmarks

    asked_at = datetime(2024, 6, 1, 9, 0)
    questions = []
    for name in ("m1", "m2"):
        memory = small_memory(name)
        questions += [
            Question(
                f"{name}-a", "What colour is the harbor?", "red", "information_extraction", memory, "colour",
                asked_at, ("r1",), frozenset({"pixels"}), 0.25,
            ),
            Question(f"{name}-b", "What is in the cellar?", REFUSAL, "answer_refusal", memory, "place", asked_at),
        ]  # fmt: skip
    made = Benchmark("small", "rev0", tuple(questions))
    benchmarks.load.cache_clear()
    monkeypatch.setitem(benchmarks.BENCHMARKS, "small", lambda: made)
    yield made
    benchmarks.load.cache_clear()


SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")  # fmt: skip
CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def random_qwen(tmp_path_factory) -> Path:
    """A folder with a Qwen3-VL of random weights, two layers and some 100 kB: it answers nonsense, deterministically.

    Its generation_config asks for what real ones ask for: sampling and a repetition penalty.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2VLImageProcessorPil, Qwen3VLConfig
    from transformers import Qwen3VLForConditionalGeneration as Qwen

    from delivermem.delivery import PREAMBLES, SYSTEM
    from delivermem.processors import StillQwen3VLProcessor

    folder = tmp_path_factory.mktemp("models") / "random-qwen"
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([SYSTEM, *PREAMBLES.values(), "Question date: the harbor photo"] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[1:]),
    )
    images = Qwen2VLImageProcessorPil(
        patch_size=16, merge_size=2, size=dict(shortest_edge=32 * 32, longest_edge=128 * 128)
    )
    StillQwen3VLProcessor(image_processor=images, tokenizer=tokenizer, chat_template=CHAT).save_pretrained(
        folder
    )
    ids = {name: tokenizer.convert_tokens_to_ids(name) for name in SPECIAL}
    rope = dict(rope_type="default", rope_theta=10000.0, mrope_section=[4, 2, 2], mrope_interleaved=True)
    config = Qwen3VLConfig(
        text_config=dict(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, head_dim=16, rope_parameters=rope,
            max_position_embeddings=2048, pad_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|im_end|>"],
            bos_token_id=None, tie_word_embeddings=True,
        ),
        vision_config=dict(
            depth=2, hidden_size=32, intermediate_size=64, num_heads=2, patch_size=16, spatial_merge_size=2,
            temporal_patch_size=2, out_hidden_size=32, num_position_embeddings=36, deepstack_visual_indexes=[0],
        ),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    net = Qwen(config)
    with torch.no_grad():  # wide enough that answers vary with the prompt and with the pixels
        for weight in net.parameters():
            if weight.ndim >= 2:
                weight.normal_(std=1.5 * weight[0].numel() ** -0.5)
    net.save_pretrained(folder)
    shipped = dict(do_sample=True, temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.2)
    ends = dict(eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"])
    (folder / "generation_config.json").write_text(json.dumps(shipped | ends))
    return folder
