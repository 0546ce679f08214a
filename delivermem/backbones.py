"""Answering: a backbone takes prompts and yields answers. Three engines: transformers, a server, Ray over either.

Greedy means that every field of generation is stated, whatever a model's own generation_config says.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from delivermem.pins import PINS
from delivermem.records import Answer, Prompt
from delivermem.runs import data_dir

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
ENGINES = ("transformers", "openai", "ray")
QUANTIZATIONS = ("4bit",)


class Backbone(Protocol):
    """What the runner needs: a name, an identity that is all that can change an answer, and `answer`, which draws prompts as
    it goes and gives each one's place and answer, in any order."""

    name: str

    @property
    def identity(self) -> dict[str, Any]: ...

    def answer(self, prompts: Iterable[Prompt]) -> Iterator[tuple[int, Answer]]: ...


class BackboneError(ValueError):
    """A backbone that can't be had, said in one sentence with the name and the cure."""


def locate(name: str) -> tuple[str, str | None, Path | None]:
    """(model id or folder, revision, folder): an embedded model, a local folder, or `owner/name@revision` of a hub, whose
    revision need not be said where `pins` knows it."""
    models = data_dir() / "models"
    for folder in (models / name, Path(name)):
        if (folder / "config.json").is_file():
            if not any(folder.glob("*.safetensors")):
                raise BackboneError(
                    f"backbone {name!r}: {folder} has no *.safetensors; put the weights there"
                )
            return str(folder), None, folder.resolve()
    name = f"{name}@{PINS[name]}" if name in PINS else name
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
    name: str,
    *,
    dtype: str | None = None,
    device: str | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    quantization: str | None = None,
    image_tokens: int | None = None,
) -> dict[str, Any]:
    """All that can change a backbone's answer beside the prompt, without loading its weights.

    `weights`, `config`, `processor`: SHA-256 of a folder's files, or a hub model's pinned revision. The batch size is
    left out: it must not change an answer, and a test sees to that. Arguments as of `load`.
    """
    if dtype is not None and dtype not in DTYPES:
        raise BackboneError(f"dtype {dtype!r} is unknown; choose one of {', '.join(DTYPES)}")
    if quantization not in (None, *QUANTIZATIONS):
        raise BackboneError(f"quantization {quantization!r} is unknown; choose {', '.join(QUANTIZATIONS)}")
    model, revision, folder = locate(name)
    if folder is not None:
        model = folder.name
        content = {part: _digest(folder, patterns) for part, patterns in _FILES.items()}
        revision = "sha256:" + hashlib.sha256("".join(content.values()).encode()).hexdigest()[:16]
    else:
        content = dict.fromkeys(_FILES, str(revision))
    set_here = dict(quantization=quantization, image_tokens=image_tokens)
    return dict(
        model=model,
        revision=revision,
        **content,
        dtype=dtype or _dtype(device_of(device)),
        backend="transformers",
        images="pil",
        versions=dict(transformers=version("transformers"), torch=".".join(version("torch").split(".")[:2])),
        generation={**GREEDY, "max_new_tokens": max_new_tokens},
        **{name: value for name, value in set_here.items() if value is not None},
    )


def _digest(folder: Path, patterns: Collection[str]) -> str:
    """SHA-256 over name and content of the folder's files that match, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}):
        with path.open("rb") as file:
            digest.update(f"{path.name}\n".encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def device_of(device: str | None) -> str:
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


def installed(module: str) -> bool:
    """Whether a library is there, without importing it."""
    return find_spec(module) is not None


def needs(extra: str, module: str, what: str) -> None:
    """BackboneError where an optional library is not installed: what needs it, and the command that installs it."""
    if not installed(module):
        raise BackboneError(f'{what} needs {module}; install it with: pip install "delivermem[{extra}]"')


def final(said: str, *, thinking: bool) -> tuple[str, bool]:
    """The answer in a reply, and whether one is there: what follows the last `</think>`.

    thinking: the prompt itself has opened a thought. A thought that is not closed leaves no answer: a monologue is none.
    """
    if "</think>" in said:
        return said.rpartition("</think>")[2].strip(), True
    if thinking or said.lstrip().startswith("<think>"):
        return "", False
    return said.strip(), True


def load(
    name: str,
    *,
    engine: str = "transformers",
    dtype: str | None = None,
    device: str | None = None,
    quantization: str | None = None,
    image_tokens: int | None = None,
    batch_size: int = BATCH_SIZE,
    max_new_tokens: int = MAX_NEW_TOKENS,
    url: str | None = None,
    address: str | None = None,
    workers: int | None = None,
) -> Backbone:
    """The backbone of that name: a folder in data/models, a path, or `owner/name@revision` of a hub.

    engine: `transformers`; `openai`, a server at `url` that serves `name`; `ray`, `workers` of either (default: one a GPU)
    on a cluster at `address`. dtype: one of DTYPES; by default float32 on a CPU, bfloat16 or float16 on a GPU. device: as
    torch names it, or "auto" to spread a large model over all GPUs (needs accelerate). quantization: "4bit". image_tokens:
    the most that one picture may take; a larger one is shrunk. batch_size: prompts at once, of a server in flight. Weights
    load when the first prompt is answered. Raises BackboneError for what is unknown, contradicts itself, or is not installed.
    """
    if engine not in ENGINES:
        raise BackboneError(f"engine {engine!r} is unknown; choose one of {', '.join(ENGINES)}")
    if batch_size < 1 or max_new_tokens < 1 or (image_tokens is not None and image_tokens < 1):
        raise BackboneError(
            f"batch_size={batch_size}, max_new_tokens={max_new_tokens}, image_tokens={image_tokens}: give 1 or more"
        )
    here: dict[str, Any] = dict(dtype=dtype, device=device, quantization=quantization)
    if (engine == "openai" or url) and any(here.values()):
        raise BackboneError(
            "dtype, device and quantization are the server's where --url is given; set them there"
        )
    if engine == "openai" and not url:
        raise BackboneError(
            "engine openai needs the server's address, such as --url http://localhost:8000/v1"
        )
    if engine == "transformers" and url:
        raise BackboneError(
            f"--url {url} is a server's; say --engine openai, or --engine ray for several clients"
        )
    common: dict[str, Any] = dict(
        image_tokens=image_tokens, batch_size=batch_size, max_new_tokens=max_new_tokens
    )
    if engine == "ray":
        from delivermem import fleet

        return fleet.RayBackbone(name, url=url, address=address, workers=workers, **common, **here)
    if engine == "openai":
        from delivermem import server

        return server.ServerBackbone(name, url=str(url), **common)
    from delivermem import local

    return local.TransformersBackbone(name, **common, **here)
