"""The embedded reference model before training: a small tokenizer, the real Qwen3-VL class, a small configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from delivermem import agent
from delivermem.benchmarks import asking, scenes, shop, world
from delivermem.delivery import IMAGES_LAST, IN_ANY_ORDER, PREAMBLES, SYSTEM, question_block
from delivermem.processors import StillQwen3VLProcessor
from delivermem.records import REFUSAL, format_time
from delivermem.reference import errands

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]  # fmt: skip
PATCH = 16
GRID = scenes.SIDE // PATCH
"""Patches on a side of a photograph; 2 x 2 of them merge into one image token."""

CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}{%- for part in message.content %}"
    "{%- if part.type in ('image', 'image_url') %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
_WORDS = r" \([A-Z][a-z]{2}\)|[/:]\d\d| ?\p{L}+\d*| ?\d{1,4}| ?[^\s\p{L}\p{N}]|\n|\s+"


def _corpus(conversations: int = 1500) -> Iterator[str]:
    """The text the world can produce, for the tokenizer: messages, dates, questions, answers, tags."""
    rng = np.random.default_rng(7)
    for _ in range(conversations):
        turns = world.conversation(rng, for_benchmark=False)
        for turn in turns:
            yield f"[{format_time(turn.time)}] {turn.text}\n{turn.topic}"
        for subtype in asking.SORTS:
            asked = asking.ask(rng, turns, subtype)
            if asked is not None:
                yield question_block(asked.text) + "\n" + (asked.answer if subtype != "which" else "M1")
    captions = [f"[image: {world.CAPTION}]", *(f"[image: {shop.caption(c)}]" for c in shop.CATEGORIES)]
    words = [
        *shop.CATEGORIES,
        *scenes.COLOURS,
        *scenes.OBJECTS,
        *world.TOPICS,
        *world.ROOMS,
        *world.BOUGHT,
        *world.KEPT,
        *world.NUMBERS,
    ]
    for _ in range(50):
        yield "\n".join(
            [SYSTEM, *PREAMBLES.values(), REFUSAL, "user\n", "system\n", "assistant\n", "Question date:"]
        )
        yield "\n".join([IMAGES_LAST, IN_ANY_ORDER, agent.SYSTEM, *errands.texts(), *captions])
        yield "".join(f"\nM{i} M{i} M{i}" for i in range(1, 21)) + "\nM"
        yield "".join(f"{word}\n {word}\n" for word in words)
        yield "".join(f"/{i:02d}:{i:02d} {i:02d}" for i in range(60))


def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of whole words (any text encodes), with Qwen's special tokens; deterministic."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        min_frequency=20,
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    bpe.train_from_iterator(_corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        padding_side="left",
        additional_special_tokens=SPECIAL[1:],
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def processor() -> StillQwen3VLProcessor:
    """Tokenizer, chat layout and an image processor that brings every picture to the area of a photograph at least and
    of a frame at most."""
    images = Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=2,
        temporal_patch_size=2,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        size=dict(shortest_edge=scenes.SIDE**2, longest_edge=shop.FRAME**2),
    )
    return StillQwen3VLProcessor(image_processor=images, tokenizer=tokenizer(), chat_template=CHAT_TEMPLATE)


def model(
    proc: StillQwen3VLProcessor, *, seed: int, width: int = 192, layers: int = 6
) -> Qwen3VLForConditionalGeneration:
    """A fresh model. Initialised so that a token's identity survives the residual stream of a narrow network:
    embeddings at standard deviation 1, branch outputs scaled down, a word with and without its leading space alike
    but for one direction that all such pairs share (an answer starts without a space, its evidence has one). All
    heads begin as weak matchers and copiers over one shared subspace (after the mimetic initialisation of Trockman
    & Kolter 2023), so that what one layer gathers another can match, and binding is learnt sooner.
    """
    tok = proc.tokenizer
    ids = tok.convert_tokens_to_ids
    text: dict[str, Any] = dict(
        vocab_size=len(tok), hidden_size=width, intermediate_size=512, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, head_dim=64, max_position_embeddings=4096, rms_norm_eps=1e-6,
        rope_parameters=dict(rope_type="default", rope_theta=5e6, mrope_section=[12, 10, 10], mrope_interleaved=True),
        pad_token_id=ids("<|endoftext|>"), bos_token_id=None, eos_token_id=ids("<|im_end|>"), tie_word_embeddings=True,
    )  # fmt: skip
    vision: dict[str, Any] = dict(
        depth=4, hidden_size=128, intermediate_size=384, num_heads=4, patch_size=PATCH, spatial_merge_size=2,
        temporal_patch_size=2, out_hidden_size=width, num_position_embeddings=GRID**2, deepstack_visual_indexes=[1, 2],
    )  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    net = Qwen3VLForConditionalGeneration(config)
    net.generation_config.update(
        eos_token_id=ids("<|im_end|>"), pad_token_id=ids("<|endoftext|>"), do_sample=False
    )
    language = net.model.language_model
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim == 2 and ("layers" in name or "blocks" in name or "merger" in name):
                weight.normal_(std=weight.shape[1] ** -0.5)
            if "language_model" in name and ("o_proj" in name or "down_proj" in name):
                weight.mul_(0.3)
            if "q_norm" in name or "k_norm" in name:
                weight.fill_(1.3)
        shared = torch.linalg.qr(torch.randn(width, 64)).Q.T  # (64, width), orthonormal rows
        for layer in language.layers:
            attention = layer.self_attn
            for name in ("q_proj", "k_proj", "v_proj"):
                weight = getattr(attention, name).weight
                weight.copy_(0.7 * (weight + shared.repeat(len(weight) // 64, 1)))
            weight = attention.o_proj.weight
            weight.copy_(weight + 1.5 * shared.repeat(weight.shape[1] // 64, 1).T)
        table = language.embed_tokens.weight
        table.normal_(std=1.0)
        unspaced = 0.6 * torch.randn(width)
        for word, index in tok.get_vocab().items():
            spaced = tok.get_vocab().get("Ġ" + word)
            if spaced is not None and word.isalnum():
                table[index] = table[spaced] + unspaced
        language.norm.weight.fill_(width**-0.5)
    return net
