"""Answering: a backbone takes prompts and yields answers. Transformers runs any local folder or pinned hub model.

Greedy means that every sampling field is stated, whatever a model's own generation_config says.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from delivermem.records import Answer, Prompt
from delivermem.runs import data_dir

MAX_NEW_TOKENS = 24
BATCH_SIZE = 16
GREEDY: dict[str, Any] = dict(
    do_sample=False,
    num_beams=1,
    num_return_sequences=1,
    temperature=1.0,
    top_p=1.0,
    top_k=50,
    repetition_penalty=1.0,
    no_repeat_ngram_size=0,
    length_penalty=1.0,
)
"""Every field that could bend greedy decoding, at its neutral value (temperature, top_p, top_k do nothing without
sampling; these are the library's own defaults, so that it does not warn of them)."""
_BREAK = "\u200b"
"""Zero-width space that breaks a special token written by a user, so that it stays text."""


class Backbone(Protocol):
    """What the runner needs: a name, an identity that is all that can change an answer, and `answer`."""

    name: str
    identity: dict[str, Any]

    def answer(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, Answer]]: ...


class BackboneError(ValueError):
    """A backbone that can't be had, said in one sentence with the name and the cure."""


def _find(name: str) -> tuple[str, str | None, Path | None]:
    """(model id or folder, revision, folder): an embedded model, a local folder, or `owner/name@revision`."""
    for folder in (data_dir() / "models" / name, Path(name)):
        if (folder / "config.json").is_file():
            return str(folder), None, folder
    if re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", name):
        hub, revision = name.split("@")
        return hub, revision, None
    if re.fullmatch(r"[\w.-]+/[\w.-]+(@.*)?", name):
        raise BackboneError(
            f"backbone {name!r}: pin the hub revision, as in owner/name@<40 hex digits of a commit>"
        )
    models = data_dir() / "models"
    known = (
        sorted(path.name for path in models.iterdir() if (path / "config.json").is_file())
        if models.is_dir()
        else []
    )
    raise BackboneError(
        f"backbone {name!r} is unknown; give a hub id with its revision, a folder, or: {', '.join(known)}"
    )


def identity(name: str, *, dtype: str | None = None, max_new_tokens: int = MAX_NEW_TOKENS) -> dict[str, Any]:
    """All that can change a backbone's answer beside the prompt, without loading its weights.

    A folder is named by the SHA-256 of its files that matter, a hub model by its pinned revision. The batch size is
    left out: it must not change an answer, and a test sees to that.
    """
    model, revision, folder = _find(name)
    if folder is not None:
        kept = [p for p in sorted(folder.iterdir()) if p.suffix in (".safetensors", ".json", ".jinja")]
        digest = hashlib.sha256()
        for path in kept:
            if path.name != "evaluation.json":
                digest.update(f"{path.name}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
        model, revision = folder.name, f"sha256:{digest.hexdigest()[:16]}"
    return dict(
        model=model,
        revision=revision,
        dtype=dtype or _default_dtype(),
        backend="transformers",
        transformers=version("transformers"),
        torch=version("torch").split("+")[0],
        generation={**GREEDY, "max_new_tokens": max_new_tokens},
    )


def _default_dtype() -> str:
    """float32 on a CPU (many emulate half precision slowly), bfloat16 where the GPU has it, else float16."""
    if version("torch").endswith("+cpu"):
        return "float32"
    import torch

    if not torch.cuda.is_available():
        return "float32"
    return "bfloat16" if torch.cuda.get_device_capability()[0] >= 8 else "float16"


def load(
    name: str, *, dtype: str | None = None, batch_size: int = BATCH_SIZE, max_new_tokens: int = MAX_NEW_TOKENS
) -> TransformersBackbone:
    """The backbone of that name. Weights load when the first prompt is answered."""
    return TransformersBackbone(name, dtype=dtype, batch_size=batch_size, max_new_tokens=max_new_tokens)


class TransformersBackbone:
    """An image-text-to-text model of transformers, through its own processor and `generate`."""

    def __init__(self, name: str, *, dtype: str | None, batch_size: int, max_new_tokens: int):
        self.identity = identity(name, dtype=dtype, max_new_tokens=max_new_tokens)
        self.name = str(self.identity["model"])
        self.batch_size, self.max_new_tokens = batch_size, max_new_tokens
        self._source, self._revision, _ = _find(name)
        self._loaded: tuple[Any, Any] | None = None

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            import torch
            from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor
            from transformers.utils import logging

            logging.disable_progress_bar()

            where = dict(revision=self._revision) if self._revision else {}
            config = AutoConfig.from_pretrained(self._source, **where)
            if config.model_type == "qwen3_vl":
                from delivermem.processors import StillQwen3VLProcessor as Processor
            else:
                Processor = AutoProcessor
            processor = Processor.from_pretrained(self._source, **where)
            processor.tokenizer.padding_side = "left"
            model = AutoModelForImageTextToText.from_pretrained(
                self._source,
                **where,
                dtype=getattr(torch, self.identity["dtype"]),
                attn_implementation="sdpa",
                device_map="auto" if torch.cuda.is_available() else None,
            )
            self._loaded = processor, model.eval()
        return self._loaded

    def answer(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, Answer]]:
        """Answer every prompt once: (its index, its answer), in batches of like length, longest first.

        A prompt whose batch fails is tried alone; what fails alone is an Answer with status `failed` and the reason
        in `finish`. Running out of memory halves the batch and goes on.
        """
        import torch

        self._load()
        order = sorted(
            range(len(prompts)), key=lambda i: (-len(prompts[i].text) - 200 * len(prompts[i].slots), i)
        )
        size = self.batch_size
        while order:
            batch = order[:size]
            try:
                answers = self._generate([prompts[i] for i in batch])
            except torch.cuda.OutOfMemoryError:
                if len(batch) == 1:
                    answers = [_failed("out of memory for a single prompt")]
                else:
                    size = len(batch) // 2
                    torch.cuda.empty_cache()
                    continue
            except (ValueError, RuntimeError, IndexError) as error:
                answers = (
                    [_failed(str(error))] if len(batch) == 1 else [self._alone(prompts[i]) for i in batch]
                )
            yield from zip(batch, answers, strict=True)
            order = order[len(batch) :]

    def _alone(self, prompt: Prompt) -> Answer:
        try:
            return self._generate([prompt])[0]
        except (ValueError, RuntimeError, IndexError) as error:
            return _failed(str(error))

    def _generate(self, prompts: Sequence[Prompt]) -> list[Answer]:
        import torch

        processor, model = self._load()
        started = time.perf_counter()
        inputs = processor.apply_chat_template(
            [neutralised(prompt, processor.tokenizer) for prompt in prompts],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            processor_kwargs=dict(return_tensors="pt", padding=True),
        ).to(model.device)
        ids, image = inputs["input_ids"], model.config.image_token_id
        slots = [len(prompt.slots) for prompt in prompts]
        tokens = _tokens_per_image(processor, inputs, slots)
        if (ids == image).sum(1).tolist() != tokens:
            raise ValueError("image tokens in the prompt do not match the pictures delivered")
        with torch.inference_mode():
            out = model.generate(**inputs, **GREEDY, max_new_tokens=self.max_new_tokens)[:, ids.shape[1] :]
        seconds = (time.perf_counter() - started) / len(prompts)
        ends = model.generation_config.eos_token_id
        ends = set(ends if isinstance(ends, list) else [ends])
        answers = []
        for row, new in enumerate(out.tolist()):
            stop = next((i for i, token in enumerate(new) if token in ends), None)
            text = (
                processor.tokenizer.decode(new[:stop], skip_special_tokens=True).replace(_BREAK, "").strip()
            )
            length = int(inputs["attention_mask"][row].sum())
            answers.append(
                Answer(
                    text=text,
                    finish="length" if stop is None else "stop",
                    text_tokens=length - tokens[row],
                    image_tokens=tokens[row],
                    images=slots[row],
                    seconds=round(seconds, 4),
                )
            )
        return answers


def _failed(reason: str) -> Answer:
    return Answer(text="", status="failed", finish=f"error: {' '.join(reason.split())[:200]}")


def _tokens_per_image(processor: Any, inputs: Any, slots: Sequence[int]) -> list[int]:
    """Image tokens of each prompt by the processor's own grids (t, h, w), h and w in patches before merging."""
    if "image_grid_thw" not in inputs:
        return [0] * len(slots)
    sizes = (inputs["image_grid_thw"].prod(1) // processor.image_processor.merge_size**2).tolist()
    ends = [sum(slots[: i + 1]) for i in range(len(slots))]
    return [sum(sizes[end - count : end]) for end, count in zip(ends, slots, strict=True)]


def neutralised(prompt: Prompt, tokenizer: Any) -> list[dict[str, Any]]:
    """The prompt's messages with every special token that its own text spells broken by a zero-width space.

    Reversible: dropping the zero-width spaces gives the text back. No stored text can open an image slot.
    """
    special = sorted({*tokenizer.all_special_tokens, *_added(tokenizer)}, key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(token) for token in special if token))
    messages = prompt.to_transformers()
    for message in messages:
        for part in message["content"]:
            if part["type"] == "text":
                part["text"] = pattern.sub(lambda m: m[0][0] + _BREAK + m[0][1:], part["text"])
    return messages


def _added(tokenizer: Any) -> list[str]:
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
