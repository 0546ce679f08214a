"""Answering through transformers, on this machine: any image-text-to-text model, by its own processor and `generate`."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from delivermem.backbones import BackboneError, device_of, final, identity, locate, needs
from delivermem.overlap import ahead
from delivermem.records import Answer, Prompt
from delivermem.sizing import grid_of
from delivermem.special_tokens import neutralised, restore, special_tokens

WINDOW = 4
"""Batches' worth of prompts that are drawn and sorted by length together."""
AHEAD = 2
"""Batches that are ready and wait while the model generates."""
THREADS = 4
"""Threads that resize pictures."""
OUT_OF_MEMORY = "out of memory"
Batch = list[tuple[int, Prompt]]


@dataclass(frozen=True, eq=False)
class Inputs:
    """A batch as its model takes it: the processor's fields, and per prompt its tokens, those of pictures, its pictures."""

    fields: Any
    lengths: list[int]
    image_tokens: list[int]
    images: list[int]
    thinking: bool


class TransformersBackbone:
    """An image-text-to-text model of transformers. Arguments as of `backbones.load`."""

    def __init__(
        self,
        name: str,
        *,
        dtype: str | None,
        device: str | None,
        batch_size: int,
        max_new_tokens: int,
        quantization: str | None = None,
        image_tokens: int | None = None,
    ):
        self.identity = identity(
            name,
            dtype=dtype,
            device=device,
            max_new_tokens=max_new_tokens,
            quantization=quantization,
            image_tokens=image_tokens,
        )
        self.name = str(self.identity["model"]).replace("/", "--")
        """Fit to name a folder: a hub id has `--` for its slash."""
        self.device, self.batch_size = device, batch_size
        self._quantized, self._cap = quantization is not None, image_tokens
        self._source, self._revision, _ = locate(name)
        self._loaded: tuple[Any, Any] | None = None

    def answer(self, prompts: Iterable[Prompt]) -> Iterator[tuple[int, Answer]]:
        """Answer every prompt once: (its index, its answer), in batches of like length, longest first of those drawn.

        Prompts are drawn, and the next batches prepared, while the model generates. A prompt whose batch fails is tried
        alone; what fails alone is an Answer with status `failed` and the reason in `finish`. One that exceeds the model's
        context is not put to it: `not_applicable`, with its tokens and the reason. Running out of memory halves the batch
        and goes on so. `seconds` is the batch's time over its size.
        """
        self._load()
        size = [self.batch_size]  # what memory has room for; the thread that prepares batches reads it too
        for batch, ready in ahead(self._batches(prompts, size), AHEAD):
            left = batch
            while left:
                part = left[: size[0]]
                answers, trouble = self._try([p for _, p in part], ready if len(part) == len(batch) else None)
                if trouble and len(part) > 1:
                    if trouble == OUT_OF_MEMORY:
                        size[0] = len(part) // 2
                        continue
                    answers = [self._try([p])[0][0] for _, p in part]
                yield from zip((i for i, _ in part), answers, strict=True)
                left = left[len(part) :]

    def _batches(
        self, prompts: Iterable[Prompt], size: Sequence[int]
    ) -> Iterator[tuple[Batch, Inputs | None]]:
        """Batches of like length with their inputs; without, where those can't be made and each prompt is tried alone."""
        numbered = enumerate(prompts)
        while window := list(islice(numbered, WINDOW * self.batch_size)):
            window.sort(key=lambda pair: (-_length(pair[1]), pair[0]))
            while window:
                batch, window = window[: size[0]], window[size[0] :]
                try:
                    ready = self._prepared([p for _, p in batch])
                except Exception:  # what is wrong is found again, and kept, where the batch is answered
                    ready = None
                yield batch, ready

    def _try(self, prompts: Sequence[Prompt], ready: Inputs | None = None) -> tuple[list[Answer], str]:
        """The answers and "", or failed answers and what went wrong, on one line."""
        try:
            return self._generate(prompts, ready), ""
        except Exception as error:  # whatever fails here is kept with the answer it cost
            named = "" if isinstance(error, ValueError | RuntimeError) else f"{type(error).__name__}: "
            reason = OUT_OF_MEMORY if out_of_memory(error) else " ".join(f"{named}{error}".split())[:300]
        if reason == OUT_OF_MEMORY:
            import torch

            torch.cuda.empty_cache()
        return [Answer(text="", status="failed", finish=f"error: {reason}")] * len(prompts), reason

    def _load(self) -> tuple[Any, Any]:
        """(processor, model), loaded once; the model's own generation settings keep nothing but its end tokens."""
        if self._loaded is None:
            import torch
            import transformers

            from delivermem.loading import plainly
            from delivermem.processors import STILL

            where = dict(revision=self._revision) if self._revision else {}
            more: dict[str, Any] = {}
            if self._quantized:
                needs("gpu", "bitsandbytes", "quantization 4bit")
                more["quantization_config"] = transformers.BitsAndBytesConfig(
                    load_in_4bit=True,
                    bnb_4bit_quant_type="nf4",
                    bnb_4bit_compute_dtype=getattr(torch, self.identity["dtype"]),
                )
            if self.device == "auto":
                needs("gpu", "accelerate", "device auto")
            kind = transformers.AutoConfig.from_pretrained(self._source, **where).model_type
            processor = STILL.get(kind, transformers.AutoProcessor).from_pretrained(self._source, **where)
            processor.tokenizer.padding_side = "left"
            # One way to resize on every machine: with torchvision at hand pixels would differ slightly.
            images = transformers.AutoImageProcessor.from_pretrained(self._source, backend="pil", **where)
            processor.image_processor = images
            grid = grid_of(images, self._cap)
            if grid is not None and self._cap is not None and self._cap < grid.least:
                raise BackboneError(
                    f"image_tokens={self._cap}: {self.name} takes {grid.least} tokens or more for a picture; give as many"
                )
            with plainly():
                model = transformers.AutoModelForImageTextToText.from_pretrained(
                    self._source,
                    **where,
                    **more,
                    dtype=getattr(torch, self.identity["dtype"]),
                    attn_implementation="sdpa",
                    device_map="auto" if self.device == "auto" else None,
                )
            self._refuse_offload(model)
            placed = self.device == "auto" or self._quantized
            model = model if placed else model.to(device_of(self.device))
            shipped, tokens = model.generation_config, processor.tokenizer
            end = tokens.eos_token_id if shipped.eos_token_id is None else shipped.eos_token_id
            ends = [end] if isinstance(end, int) else list(end)
            pad = next(i for i in (shipped.pad_token_id, tokens.pad_token_id, ends[0]) if i is not None)
            model.generation_config = transformers.GenerationConfig(
                **self.identity["generation"], eos_token_id=ends, pad_token_id=pad
            )
            self._loaded = processor, model.eval()
        return self._loaded

    def _refuse_offload(self, model: Any) -> None:
        """A model of which a part lies on CPU or disk answers a hundred times slower: better said than waited for."""
        places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
        if self.device == "auto" and places & {"cpu", "disk"} and places != {"cpu"}:
            raise BackboneError(
                f"backbone {self.name!r}: part of it would lie on {' and '.join(sorted(places & {'cpu', 'disk'}))}; "
                "take a smaller model, --quantization 4bit, or a GPU with more memory"
            )

    @cached_property
    def _readers(self) -> threading.local:
        """A processor for each thread: tokenizers must not be shared."""
        return threading.local()

    def _prepared(self, prompts: Sequence[Prompt]) -> Inputs:
        """The batch's inputs, pictures at their final size, image tokens held against the processor's grid.

        Source of the chat: the model's own template. Raises ValueError where pictures and their tokens disagree.
        """
        whole, model = self._load()
        processor = getattr(self._readers, "processor", None)
        if processor is None:
            processor = self._readers.processor = deepcopy(whole)
        grid = grid_of(processor.image_processor, self._cap)
        chats = [neutralised(prompt, processor.tokenizer) for prompt in prompts]
        if grid is not None:
            blocks = [
                b for chat in chats for message in chat for b in message["content"] if b["type"] == "image"
            ]
            for block, image in zip(
                blocks, self._pool.map(lambda b: grid.fit(b["image"]), blocks), strict=True
            ):
                block["image"] = image
        fields = processor.apply_chat_template(
            chats,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            processor_kwargs=dict(return_tensors="pt", padding=True),
        )
        ids, slots = fields["input_ids"], [len(prompt.slots) for prompt in prompts]
        tokens = (ids == model.config.image_token_id).sum(1).tolist()
        expected = _tokens_by_grid(processor, fields, slots) or tokens
        for found, wanted, count in zip(tokens, expected, slots, strict=True):
            if found != wanted or bool(found) != bool(count):
                raise ValueError(f"{count} pictures need {wanted} image tokens; the prompt holds {found}")
            if grid is not None and found > count * grid.most:
                raise ValueError(f"{count} pictures took {found} image tokens, more than {grid.most} each")
        lengths = fields["attention_mask"].sum(1).tolist()
        thinking = processor.tokenizer.decode(ids[0, -4:]).rstrip().endswith("<think>")
        return Inputs(fields, lengths, tokens, slots, thinking)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix="pictures")

    def _generate(self, prompts: Sequence[Prompt], ready: Inputs | None = None) -> list[Answer]:
        import torch

        processor, model = self._load()
        started = time.perf_counter()
        given = ready or self._prepared(prompts)
        room = _context(model.config)
        short = [
            i
            for i, n in enumerate(given.lengths)
            if n + self.identity["generation"]["max_new_tokens"] <= room
        ]
        if len(short) < len(prompts):
            ran = dict(zip(short, self._generate([prompts[i] for i in short]) if short else [], strict=True))
            return [ran[i] if i in ran else _beyond(given, i, room) for i in range(len(prompts))]
        inputs = copy(given.fields).to(model.device, model.dtype)  # not in place: what fails frees its memory
        watch = _Watch() if model.dtype == torch.float16 else None
        more = {"logits_processor": [watch]} if watch else {}
        with torch.inference_mode():
            out = model.generate(**inputs, **self.identity["generation"], **more)
        out = out[:, inputs["input_ids"].shape[1] :].tolist()
        seconds = round((time.perf_counter() - started) / len(prompts), 4)
        ends = set(model.generation_config.eos_token_id)
        answers, broken = [], special_tokens(processor.tokenizer)
        for i, new in enumerate(out):
            stop = next((at for at, token in enumerate(new) if token in ends), None)
            said = processor.tokenizer.decode(new[:stop], skip_special_tokens=True)
            text, there = final(restore(said, broken), thinking=given.thinking)
            lost = watch is not None and bool(watch.lost[i])
            answers.append(
                Answer(
                    text="" if lost else text,
                    status="failed" if lost else "ok",
                    finish=f"error: {_NOT_NUMBERS}"
                    if lost
                    else "stop"
                    if there and stop is not None
                    else "length",
                    text_tokens=given.lengths[i] - given.image_tokens[i],
                    image_tokens=given.image_tokens[i],
                    images=given.images[i],
                    seconds=seconds,
                )
            )
        return answers


_NOT_NUMBERS = "the model's logits are no numbers in float16; take bfloat16, float32 or another model"


class _Watch:
    """Notes which rows of a batch had logits that are not numbers, as half precision without bfloat16 may give."""

    def __init__(self) -> None:
        self.lost: Any = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        found = scores.isnan().any(dim=-1)
        self.lost = found if self.lost is None else self.lost | found
        return scores


def _beyond(given: Inputs, i: int, room: int) -> Answer:
    """The answer of a prompt that the model's context can't hold."""
    n = given.lengths[i]
    return Answer(
        "",
        "not_applicable",
        f"not run: {n} tokens and a reply exceed the context of {room} tokens",
        text_tokens=n - given.image_tokens[i],
        image_tokens=given.image_tokens[i],
        images=given.images[i],
    )


def _context(config: Any) -> int:
    """The most tokens that a model reads and writes together, by its configuration."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", sys.maxsize))


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory ran out, on any device."""
    return bool(re.search("out of memory|can't allocate memory|ALLOC_FAILED|^MemoryError", repr(error)))


def _length(prompt: Prompt) -> int:
    """About how long a prompt is, in characters: a picture counts four for each 32 x 32 pixels."""
    return len(prompt.text) + sum(slot.image.width * slot.image.height // 256 for slot in prompt.slots)


def _tokens_by_grid(processor: Any, inputs: Any, slots: Sequence[int]) -> list[int]:
    """Image tokens of each prompt by the processor's grids (t, h, w) in patches, merged; empty without grids."""
    if "image_grid_thw" not in inputs:
        return []
    sizes = iter((inputs["image_grid_thw"].prod(1) // processor.image_processor.merge_size**2).tolist())
    return [sum(next(sizes) for _ in range(count)) for count in slots]
