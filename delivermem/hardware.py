"""What a GPU and a model are, in figures: what fits, and about how long prompts take.

Hours are estimates from the arithmetic of a transformer, not measurements: prefill at `Gpu.share` of the stated peak, decoding
bound by reading the weights once a token for `BATCH` prompts together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GIB = 2**30
BATCH = 8
REPLY = 40
"""Tokens of a usual reply; a run's own limit is far above it."""
SPARE = 1.5
"""GiB beside weights and cache: the vision encoder at work, the libraries."""


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU: usable memory in GiB, whether it computes in bfloat16, peak in Tflop/s (16 bit, dense), GB/s, and the
    share of the peak that prefill reaches."""

    name: str
    gib: float
    bf16: bool
    tflops: float
    gbs: float
    share: float = 0.45


GPUS = (
    Gpu("T4", 15, False, 65, 320, 0.40),
    Gpu("L4", 22, True, 121, 300),
    Gpu("A100 40 GB", 40, True, 312, 1555),
    Gpu("A100 80 GB", 80, True, 312, 2039),
    Gpu("H100", 80, True, 989, 3350),
)
"""Those that Colab lends. Source: the makers' data sheets; shares as measured by others for dense models of 8B."""


@dataclass(frozen=True)
class Size:
    """A model: parameters and those at work on a token, in billions; layers, heads of queries and of keys and their size;
    pixels a side of an image token."""

    billions: float
    active: float
    layers: int
    queries: int
    heads: int
    head: int
    factor: int

    @property
    def cache(self) -> int:
        """Bytes of key-value cache a token, in 16 bit."""
        return 2 * 2 * self.layers * self.heads * self.head


MODELS = {
    "Qwen/Qwen3-VL-2B-Instruct": Size(2.1, 2.1, 28, 16, 8, 128, 32),
    "Qwen/Qwen3-VL-4B-Instruct": Size(4.4, 4.4, 36, 32, 8, 128, 32),
    "Qwen/Qwen3-VL-8B-Instruct": Size(8.8, 8.8, 36, 32, 8, 128, 32),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": Size(31.1, 3.8, 48, 32, 4, 128, 32),
    "Qwen/Qwen3-VL-32B-Instruct": Size(33.4, 33.4, 64, 64, 8, 128, 32),
    "Qwen/Qwen2.5-VL-3B-Instruct": Size(3.8, 3.8, 36, 16, 2, 128, 28),
    "Qwen/Qwen2.5-VL-7B-Instruct": Size(8.3, 8.3, 28, 28, 4, 128, 28),
}
"""Source: the models' cards and published configurations, in round figures."""


@dataclass(frozen=True)
class Load:
    """Prompts of one condition, and tokens of each: words and pictures. `steps`: prompts of an errand, at most."""

    prompts: int
    text: int
    image: int
    steps: int = 1


def weights_gib(size: Size, quantization: str = "") -> float:
    """GiB of a model's weights: 16 bit, or 4 bit with what is kept in 16 (about a tenth)."""
    return size.billions * 1e9 * (0.1 * 2 + 0.9 * 0.56 if quantization == "4bit" else 2) / GIB


def fits(backbone: str, gib: float, bf16: bool, *, tokens: int = 8192) -> list[str]:
    """In which precisions a model and one prompt of so many tokens fit a GPU's memory: of bfloat16 (float16 where the GPU has
    none) and 4bit; none where it is too small. ValueError for a model whose size is not known here."""
    size = known(backbone)
    half = "bfloat16" if bf16 else "float16"
    room = gib - SPARE - size.cache * tokens / GIB
    return [name for name in (half, "4bit") if weights_gib(size, name) <= room]


def known(backbone: str) -> Size:
    """The size of a model by its hub id; a ValueError lists those that are known."""
    name = backbone.partition("@")[0]
    if name not in MODELS:
        raise ValueError(f"the size of {backbone!r} is not known here; known: {', '.join(MODELS)}")
    return MODELS[name]


def hours(size: Size, gpu: Gpu, loads: Sequence[Load], *, quantization: str = "") -> float:
    """About how long a GPU takes for those prompts."""
    seconds = 0.0
    for load in loads:
        tokens = load.text + load.image
        work = 2 * size.active * 1e9 * tokens + 2 * size.layers * size.queries * size.head * tokens**2
        prefill = work / (gpu.tflops * 1e12 * gpu.share)
        read = weights_gib(size, quantization) * GIB * min(1.0, size.active * BATCH / size.billions)
        decode = REPLY * read / (gpu.gbs * 1e9) / BATCH
        seconds += load.prompts * load.steps * (prefill + decode)
    return seconds / 3600
