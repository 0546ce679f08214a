"""Answering: a backbone takes prompts and yields answers. Transformers runs any local folder or pinned hub model.

Greedy means that every field of generation is stated, whatever a model's own generation_config says.
"""

from __future__ import annotations

import hashlib
import re
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from delivermem.records import Answer, Prompt
from delivermem.runs import data_dir
from delivermem.special_tokens import neutralised, restore, special_tokens

MAX_NEW_TOKENS = 24
"""Longest answer in tokens: closed answers are words. A longer one is cut off and says so in `finish`."""
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
DTYPES = ("float32", "bfloat16", "float16")
_FILES = {
    "weights": ("*.safetensors", "*.safetensors.index.json"),
    "config": ("config.json", "generation_config.json"),
    "processor": ("*processor_config.json", "tokenizer*", "vocab*", "merges.txt", "chat_template*",
                  "special_tokens_map.json", "added_tokens.json"),
}  # fmt: skip
"""The files of a model's folder that can change an answer, by what they are."""
_OUT_OF_MEMORY = "out of memory"


class Backbone(Protocol):
    """What the runner needs: a name, an identity that is all that can change an answer, and `answer`."""

    name: str
    identity: dict[str, Any]

    def answer(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, Answer]]: ...


class BackboneError(ValueError):
    """A backbone that can't be had, said in one sentence with the name and the cure."""


def _find(name: str) -> tuple[str, str | None, Path | None]:
    """(model id or folder, revision, folder): an embedded model, a local folder, or `owner/name@revision`."""
    models = data_dir() / "models"
    for folder in (models / name, Path(name)):
        if (folder / "config.json").is_file():
            if not any(folder.glob("*.safetensors")):
                raise BackboneError(
                    f"backbone {name!r}: {folder} has no *.safetensors; put the weights there"
                )
            return str(folder), None, folder.resolve()
    if re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", name):
        hub, revision = name.split("@")
        return hub, revision, None
    if re.fullmatch(r"[\w.-]+/[\w.-]+(@.*)?", name):
        raise BackboneError(
            f"backbone {name!r}: pin the hub revision, as owner/name@<40 hex digits of a commit>"
        )
    known = sorted(path.parent.name for path in models.glob("*/config.json"))
    listed = ", or: " + ", ".join(known) if known else f" ({models} holds none)"
    raise BackboneError(f"backbone {name!r} is unknown; give owner/name@revision of a hub, a folder{listed}")


def identity(
    name: str, *, dtype: str | None = None, device: str | None = None, max_new_tokens: int = MAX_NEW_TOKENS
) -> dict[str, Any]:
    """All that can change a backbone's answer beside the prompt, without loading its weights.

    `weights`, `config`, `processor`: SHA-256 of a folder's files, or a hub model's pinned revision. The batch size is
    left out: it must not change an answer, and a test sees to that. Arguments as of `load`.
    """
    if dtype is not None and dtype not in DTYPES:
        raise BackboneError(f"dtype {dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
    model, revision, folder = _find(name)
    if folder is not None:
        model = folder.name
        content = {part: _digest(folder, patterns) for part, patterns in _FILES.items()}
        revision = "sha256:" + hashlib.sha256("".join(content.values()).encode()).hexdigest()[:16]
    else:
        content = dict.fromkeys(_FILES, str(revision))
    return dict(
        model=model,
        revision=revision,
        **content,
        dtype=dtype or _dtype(_device(device)),
        backend="transformers",
        images="pil",
        versions=dict(transformers=version("transformers"), torch=".".join(version("torch").split(".")[:2])),
        generation={**GREEDY, "max_new_tokens": max_new_tokens},
    )


def _digest(folder: Path, patterns: Collection[str]) -> str:
    """SHA-256 over name and content of the folder's files that match, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}):
        with path.open("rb") as file:
            digest.update(f"{path.name}\n".encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _device(device: str | None) -> str:
    """The device asked for, else a GPU where there is one. A torch that is built without any is not imported."""
    if device not in (None, "auto"):
        return str(device)
    if version("torch").endswith("+cpu"):
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _dtype(device: str) -> str:
    """float32 on a CPU (many emulate half precision slowly), bfloat16 where the GPU has it, else float16."""
    if not device.startswith("cuda"):
        return "float32"
    import torch

    return "bfloat16" if torch.cuda.get_device_capability(device)[0] >= 8 else "float16"


def load(
    name: str,
    *,
    dtype: str | None = None,
    device: str | None = None,
    batch_size: int = BATCH_SIZE,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> TransformersBackbone:
    """The backbone of that name: a folder in data/models, a path, or `owner/name@revision` of a hub.

    dtype: one of DTYPES; by default float32 on a CPU, bfloat16 or float16 on a GPU. device: as torch names it, or
    "auto" to spread a large model over all GPUs (needs accelerate). Weights load when the first prompt is answered.
    Raises BackboneError for an unknown name or dtype, and for a hub id without its revision.
    """
    if batch_size < 1 or max_new_tokens < 1:
        raise BackboneError(f"batch_size={batch_size}, max_new_tokens={max_new_tokens}: give 1 or more")
    return TransformersBackbone(
        name, dtype=dtype, device=device, batch_size=batch_size, max_new_tokens=max_new_tokens
    )


class TransformersBackbone:
    """An image-text-to-text model of transformers, through its own processor and `generate`."""

    def __init__(
        self, name: str, *, dtype: str | None, device: str | None, batch_size: int, max_new_tokens: int
    ):
        self.identity = identity(name, dtype=dtype, device=device, max_new_tokens=max_new_tokens)
        self.name = str(self.identity["model"]).replace("/", "--")
        """Fit to name a folder: a hub id has `--` for its slash."""
        self.device, self.batch_size = device, batch_size
        self._source, self._revision, _ = _find(name)
        self._loaded: tuple[Any, Any] | None = None

    def answer(self, prompts: Sequence[Prompt]) -> Iterator[tuple[int, Answer]]:
        """Answer every prompt once: (its index, its answer), in batches of like length, longest first.

        A prompt whose batch fails is tried alone; what fails alone is an Answer with status `failed` and the reason
        in `finish`. One that exceeds the model's context is not put to it: `not_applicable`, with its tokens and the
        reason. Running out of memory halves the batch and goes on. `seconds` is the batch's time over its size.
        """
        self._load()
        order = sorted(range(len(prompts)), key=lambda i: (-_length(prompts[i]), i))
        size = self.batch_size
        while order:
            batch = order[:size]
            answers, trouble = self._try([prompts[i] for i in batch])
            if trouble and len(batch) > 1:
                if trouble == _OUT_OF_MEMORY:
                    size = len(batch) // 2
                    continue
                answers = [self._try([prompts[i]])[0][0] for i in batch]
            yield from zip(batch, answers, strict=True)
            order = order[len(batch) :]

    def _try(self, prompts: Sequence[Prompt]) -> tuple[list[Answer], str]:
        """The answers and "", or failed answers and what went wrong, on one line."""
        try:
            return self._generate(prompts), ""
        except Exception as error:  # whatever fails here is kept with the answer it cost
            named = "" if isinstance(error, ValueError | RuntimeError) else f"{type(error).__name__}: "
            reason = _OUT_OF_MEMORY if _out_of_memory(error) else " ".join(f"{named}{error}".split())[:300]
        if reason == _OUT_OF_MEMORY:
            import torch

            torch.cuda.empty_cache()
        return [Answer(text="", status="failed", finish=f"error: {reason}")] * len(prompts), reason

    def _load(self) -> tuple[Any, Any]:
        """(processor, model), loaded once; the model's own generation settings keep nothing but its end tokens."""
        if self._loaded is None:
            import torch
            import transformers

            from delivermem.loading import plainly

            where = dict(revision=self._revision) if self._revision else {}
            kind: Any = transformers.AutoProcessor
            if transformers.AutoConfig.from_pretrained(self._source, **where).model_type == "qwen3_vl":
                from delivermem.processors import StillQwen3VLProcessor as kind
            processor = kind.from_pretrained(self._source, **where)
            processor.tokenizer.padding_side = "left"
            # One way to resize on every machine: with torchvision at hand pixels would differ slightly.
            images = transformers.AutoImageProcessor.from_pretrained(self._source, backend="pil", **where)
            processor.image_processor = images
            with plainly():
                model = transformers.AutoModelForImageTextToText.from_pretrained(
                    self._source,
                    **where,
                    dtype=getattr(torch, self.identity["dtype"]),
                    attn_implementation="sdpa",
                    device_map="auto" if self.device == "auto" else None,
                )
            model = model if self.device == "auto" else model.to(_device(self.device))
            shipped, tokens = model.generation_config, processor.tokenizer
            end = tokens.eos_token_id if shipped.eos_token_id is None else shipped.eos_token_id
            ends = [end] if isinstance(end, int) else list(end)
            pad = next(i for i in (shipped.pad_token_id, tokens.pad_token_id, ends[0]) if i is not None)
            model.generation_config = transformers.GenerationConfig(
                **self.identity["generation"], eos_token_id=ends, pad_token_id=pad
            )
            self._loaded = processor, model.eval()
        return self._loaded

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
        )
        ids, slots = inputs["input_ids"], [len(prompt.slots) for prompt in prompts]
        tokens = (ids == model.config.image_token_id).sum(1).tolist()
        expected = _tokens_by_grid(processor, inputs, slots) or tokens
        for found, wanted, count in zip(tokens, expected, slots, strict=True):
            if found != wanted or bool(found) != bool(count):
                raise ValueError(f"{count} pictures need {wanted} image tokens; the prompt holds {found}")
        lengths, room = inputs["attention_mask"].sum(1).tolist(), _context(model.config)
        short = [
            i for i, n in enumerate(lengths) if n + self.identity["generation"]["max_new_tokens"] <= room
        ]
        if len(short) < len(prompts):
            ran = dict(zip(short, self._generate([prompts[i] for i in short]) if short else [], strict=True))
            return [
                ran[i]
                if i in ran
                else Answer(
                    "",
                    "not_applicable",
                    f"not run: {n} tokens and a reply exceed the context of {room} tokens",
                    text_tokens=n - tokens[i],
                    image_tokens=tokens[i],
                    images=slots[i],
                )
                for i, n in enumerate(lengths)
            ]
        inputs = inputs.to(model.device, model.dtype)
        with torch.inference_mode():
            out = model.generate(**inputs, **self.identity["generation"])[:, ids.shape[1] :].tolist()
        seconds = round((time.perf_counter() - started) / len(prompts), 4)
        ends = set(model.generation_config.eos_token_id)
        answers, broken = [], special_tokens(processor.tokenizer)
        for new, length, pictured, count in zip(out, lengths, tokens, slots, strict=True):
            stop = next((i for i, token in enumerate(new) if token in ends), None)
            said = processor.tokenizer.decode(new[:stop], skip_special_tokens=True)
            answers.append(
                Answer(
                    text=restore(said, broken).strip(),
                    finish="length" if stop is None else "stop",
                    text_tokens=length - pictured,
                    image_tokens=pictured,
                    images=count,
                    seconds=seconds,
                )
            )
        return answers


def _context(config: Any) -> int:
    """The most tokens that a model reads and writes together, by its configuration."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", sys.maxsize))


def _out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory ran out, on any device."""
    return bool(re.search("out of memory|can't allocate memory|^MemoryError", repr(error)))


def _length(prompt: Prompt) -> int:
    """About how long a prompt is, in characters: a picture counts four for each 32 x 32 pixels."""
    return len(prompt.text) + sum(slot.image.width * slot.image.height // 256 for slot in prompt.slots)


def _tokens_by_grid(processor: Any, inputs: Any, slots: Sequence[int]) -> list[int]:
    """Image tokens of each prompt by the processor's grids (t, h, w) in patches, merged; empty without grids."""
    if "image_grid_thw" not in inputs:
        return []
    sizes = iter((inputs["image_grid_thw"].prod(1) // processor.image_processor.merge_size**2).tolist())
    return [sum(next(sizes) for _ in range(count)) for count in slots]
