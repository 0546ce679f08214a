"""The transformers engine beside the usual loop, one prompt at a time, over the same prompts: `python tests/benchmarks/bench_transformers.py`.

Without options on the embedded model and a CPU. `--real`, on a GPU: the architecture of Qwen3-VL-8B with random weights in
bfloat16 and prompts of ten pictures of 800 x 800, and how busy the GPU is by nvidia-smi; `--layers`, `--width` and `--side`
shrink it, to try the script itself where there is no GPU. Both load from one folder, the model once each, and take turns by
halves of the prompts, so that a machine that slows down slows both.
"""

import argparse
import gc
import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import torch
import transformers
from PIL import Image

from delivermem import DELIVERMEM, Picture, Record, backbones, benchmarks, deliver, retrieval, runs
from delivermem.processors import StillQwen3VLProcessor
from delivermem.records import Prompt

TINY = runs.data_dir() / "models" / "tiny-qwen3-vl"


def questions(count: int) -> list[Prompt]:
    """Of the embedded benchmark: ten retrieved messages and their pictures."""
    asked = benchmarks.load("mini-memlens").questions[:count]
    return [
        deliver(retrieval.rank("bm25", question, 10, seed=0), question.text, DELIVERMEM) for question in asked
    ]


def large(count: int, side: int) -> list[Prompt]:
    """Ten messages with a picture each, of side x side pixels: smooth colours with some grain."""
    prompts = []
    for n in range(count):
        rng = np.random.default_rng(n)
        records = []
        for i in range(10):
            coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).resize((side, side))
            pixels = np.clip(
                np.asarray(coarse, np.int16) + rng.integers(-8, 9, (side, side, 3)), 0, 255
            ).astype(np.uint8)
            told = " ".join(["we walked on along the river"] * 12)
            when = datetime(2024, 5, 1) + timedelta(hours=i)
            picture = Picture(f"p{n}-{i}", Image.fromarray(pixels))
            records.append(Record(f"r{n}-{i}", f"{told} <image>", when, pictures=(picture,)))
        prompts.append(deliver(records, "What colour is the boat?", DELIVERMEM))
    return prompts


def random_8b(folder: Path, layers: int, width: int, side: int, device: str) -> None:
    """Write a model of the published sizes of Qwen3-VL-8B-Instruct with random weights, and the embedded one's tokenizer.

    Source of the sizes: config.json of Qwen/Qwen3-VL-8B-Instruct. layers and width are of the language model.
    """
    config = transformers.Qwen3VLConfig.from_pretrained(TINY)
    text, vision = config.text_config, config.vision_config
    text.update(dict(vocab_size=151936, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=layers,
                     num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=262144))  # fmt: skip
    rope = dict(rope_type="default", rope_theta=5e6, mrope_section=[24, 20, 20], mrope_interleaved=True)
    text.rope_parameters = rope
    depth = 27 if layers == 36 else 2
    vision.update(dict(depth=depth, hidden_size=1152, intermediate_size=4304, num_heads=16, out_hidden_size=width,
                       num_position_embeddings=2304, deepstack_visual_indexes=[8, 16, 24] if depth == 27 else [0, 1]))  # fmt: skip
    config.tie_word_embeddings = text.tie_word_embeddings = False
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.Qwen3VLForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f} billion parameters, random")
    model.save_pretrained(folder)
    processor = StillQwen3VLProcessor.from_pretrained(TINY)
    processor.image_processor.size = dict(shortest_edge=32 * 32, longest_edge=side * side)
    processor.save_pretrained(folder)
    shipped = dict(eos_token_id=text.eos_token_id, pad_token_id=processor.tokenizer.pad_token_id)
    (folder / "generation_config.json").write_text(json.dumps(shipped))


class Loop:
    """What a user would write: for each prompt the processor, then `generate`."""

    def __init__(self, folder: Path, dtype: str, device: str, tokens: int):
        self.processor = StillQwen3VLProcessor.from_pretrained(folder)
        self.model = transformers.AutoModelForImageTextToText.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).to(device)
        self.settings = dict(max_new_tokens=tokens, do_sample=False)

    def answer(self, prompts: Sequence[Prompt]) -> list[str]:
        said = []
        for prompt in prompts:
            inputs = self.processor.apply_chat_template(
                prompt.to_transformers(), add_generation_prompt=True, tokenize=True, return_dict=True,
                processor_kwargs=dict(return_tensors="pt"),
            )  # fmt: skip
            inputs = inputs.to(self.model.device, self.model.dtype)
            with torch.inference_mode():
                out = self.model.generate(**inputs, **self.settings)
            new = out[0, inputs["input_ids"].shape[1] :]
            said.append(self.processor.decode(new, skip_special_tokens=True).strip())
        return said


@contextmanager
def busy(shares: list[float]) -> Iterator[None]:
    """Adds what nvidia-smi says of the GPU's use, five times a second, while the block runs."""
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop-ms=200"]
    watch = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def read() -> None:
        shares.extend(float(line) for line in watch.stdout or () if line.strip())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield
    finally:
        watch.terminate()
        reader.join()


@contextmanager
def nothing(_: list[float]) -> Iterator[None]:
    yield


def main() -> None:
    take = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    take.add_argument("--real", action="store_true")
    take.add_argument("--count", type=int, default=64, help="prompts")
    take.add_argument("--batch", type=int, default=16)
    take.add_argument("--tokens", type=int, default=0, help="of a reply; default 24, with --real 40")
    take.add_argument("--layers", type=int, default=36)
    take.add_argument("--width", type=int, default=4096)
    take.add_argument("--side", type=int, default=800)
    given = take.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = given.tokens or (40 if given.real else 24)
    dtype = "bfloat16" if given.real and device == "cuda" else "float32"
    prompts = large(given.count, given.side) if given.real else questions(given.count)
    parts = [prompts[: given.count // 2], prompts[given.count // 2 :]]
    with tempfile.TemporaryDirectory() as place:
        folder = TINY
        if given.real:
            folder = Path(place)
            random_8b(folder, given.layers, given.width, given.side, device)
            gc.collect()
        print(
            f"{len(prompts)} prompts, {dtype} on {device}, {torch.get_num_threads()} threads, {tokens} tokens a reply"
        )
        loop = Loop(folder, dtype, device, tokens)
        ours = backbones.load(
            str(folder), dtype=dtype, device=device, batch_size=given.batch, max_new_tokens=tokens
        )
        loop.answer(prompts[:1])
        list(ours.answer(prompts[:1]))  # loads the model
        shares: list[float] = []
        took, said = {"loop": 0.0, "ours": 0.0}, {"loop": [], "ours": []}
        for part in parts:
            started = time.perf_counter()
            said["loop"] += loop.answer(part)
            took["loop"] += time.perf_counter() - started
            started = time.perf_counter()
            with (busy if device == "cuda" else nothing)(shares):
                found = dict(ours.answer(part))
            took["ours"] += time.perf_counter() - started
            failed = [answer.finish for answer in found.values() if answer.status != "ok"]
            assert not failed, failed[0]
            said["ours"] += [found[i].text for i in range(len(part))]
    same = sum(a == b for a, b in zip(said["loop"], said["ours"], strict=True))
    per = {name: seconds / len(prompts) for name, seconds in took.items()}
    read = statistics.mean(answer.text_tokens + answer.image_tokens for answer in found.values())
    print(f"{read:.0f} tokens a prompt; {same} of {len(prompts)} replies alike")
    print(f"one at a time {per['loop']:.3f} s a prompt; batches of {given.batch} {per['ours']:.3f} s")
    print(f"ratio {per['loop'] / per['ours']:.2f}")
    if shares:
        print(f"GPU busy {statistics.mean(shares):.0f} % of the time")


if __name__ == "__main__":
    main()
