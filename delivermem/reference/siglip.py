"""Train the embedded encoder from scratch: `python -m delivermem.reference.siglip --help`.

A real `SiglipModel` of some two million parameters learns, with SigLIP's own sigmoid loss, to bring photographs, frames
of the shop and tiles of frames together with words for the small things that they show. Everything is drawn from the
training half of the world. The run resumes from its checkpoint.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, SiglipConfig, SiglipModel, SiglipProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from delivermem import tiles
from delivermem.benchmarks import scenes, shop
from delivermem.benchmarks.world import indefinite
from delivermem.runs import data_dir

SIDE = 96
TEXT_LENGTH = 16
BATCH = 128
RATE = 1e-3

Pair = tuple[str, str]


TEMPLATES = ("a photo of {x}", "Which product shows {x}?", "Which memory shows {x}?", "{x}")
"""Forms of a query: a caption's, and those of the questions that are asked."""


def query(pairs: Sequence[Pair], template: str = TEMPLATES[0]) -> str:
    """Words for small things, as a retriever is asked for them."""
    return template.format(x=" and ".join(f"{indefinite(colour)} {name}" for colour, name in pairs))


def processor() -> SiglipProcessor:
    """The tokenizer of the reference model, padded at the end, and an image processor that resizes to SIDE x SIDE."""
    tokenizer = AutoTokenizer.from_pretrained(data_dir() / "models" / "tiny-qwen3-vl")
    tokenizer.padding_side = "right"
    images = SiglipImageProcessorPil(
        size=dict(height=SIDE, width=SIDE), resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return SiglipProcessor(image_processor=images, tokenizer=tokenizer)


def model(vocabulary: int, pad: int, end: int, *, seed: int) -> SiglipModel:
    """A fresh model, temperature and bias as SigLIP starts them."""
    text: dict[str, Any] = dict(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=384, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=TEXT_LENGTH, pad_token_id=pad, bos_token_id=None, eos_token_id=end,
        projection_size=128,
    )  # fmt: skip
    vision: dict[str, Any] = dict(
        hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4, image_size=SIDE,
        patch_size=12,
    )  # fmt: skip
    torch.manual_seed(seed)
    net = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
    net.logit_scale.data.fill_(float(np.log(10.0)))
    net.logit_bias.data.fill_(-5.0)
    return net


class Views:
    """Pictures with the small things that can be seen whole in them."""

    def __init__(self, rng: np.random.Generator):
        self.rng, self.left = rng, 0

    def draw(self) -> tuple[Image.Image, list[Pair]]:
        """A photograph, a frame, or a tile of a frame, and its pairs of colour and object."""
        rng = self.rng
        if rng.random() < 0.2:
            scene = scenes.draw_scene(rng, for_benchmark=False)
            return scenes.render(scene, int(rng.integers(2**31))), [thing[:2] for thing in scene]
        if self.left == 0:
            self.products, self.left = shop.catalogue(rng, for_benchmark=False), 1000
        self.left -= 1
        product = self.products[int(rng.integers(len(self.products)))]
        frame, box = product.photo, (0, 0, shop.FRAME, shop.FRAME)
        n = int(rng.integers(1, 5))
        if n > 1:
            grid = tiles.boxes(frame.size, n)
            box = grid[int(rng.integers(len(grid)))]
        cell = scenes.CELL
        pairs = [
            (colour, name)
            for colour, name, (column, row) in (product.cue, *product.others)
            if box[0] <= column * cell + 4 and (column + 1) * cell - 4 <= box[2]
            and box[1] <= row * cell + 4 and (row + 1) * cell - 4 <= box[3]
        ]  # fmt: skip
        return frame.crop(box), pairs

    def batch(self, size: int) -> tuple[torch.Tensor, list[str], torch.Tensor]:
        """Pixels (n, 3, SIDE, SIDE), texts, and which text is true of which picture (n, n) as 1 or -1."""
        drawn = [self.draw() for _ in range(size)]
        asked = []
        for _, pairs in drawn:
            pairs = pairs or [scenes.PAIRS[int(self.rng.integers(len(scenes.PAIRS)))]]
            order = self.rng.permutation(len(pairs))[: 1 if self.rng.random() < 0.7 else 2]
            asked.append([pairs[i] for i in order])
        forms = self.rng.integers(len(TEMPLATES), size=size)
        texts = [query(want, TEMPLATES[form]) for want, form in zip(asked, forms, strict=True)]
        true = [[1.0 if set(want) <= set(have) else -1.0 for want in asked] for _, have in drawn]
        return pixels([image for image, _ in drawn]), texts, torch.tensor(true)


def pixels(images: Sequence[Image.Image]) -> torch.Tensor:
    """As the processor gives them: resized by Pillow, in [-1, 1]."""
    resized = [np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for image in images]
    return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float() / 127.5 - 1


def train(folder: Path, *, minutes: float, seed: int, every: float = 2.0) -> SiglipModel:
    """Train until the minutes (resumed parts counted in) are used up; a checkpoint every `every` minutes."""
    proc = processor()
    tok = proc.tokenizer
    net = model(len(tok), tok.pad_token_id, tok.eos_token_id, seed=seed).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=0.05, betas=(0.9, 0.98), fused=True)
    step, spent, rng = 0, 0.0, np.random.default_rng(seed)
    state = folder / "siglip.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    if state.exists():
        tensors, about = load_file(state), json.loads(state.with_suffix(".json").read_text())
        net.load_state_dict({n[4:]: t for n, t in tensors.items() if n.startswith("net.")})
        moments: dict[int, dict[str, Any]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optim."):
                _, index, field = name.split(".", 2)
                moments.setdefault(int(index), {})[field] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        step, spent = about["step"], about["spent"]
        rng.bit_generator.state = about["rng"]
    views, started, saved, losses = Views(rng), time.time() - spent * 60, spent, []

    def save() -> None:
        tensors = {f"net.{n}": t.detach().clone().contiguous() for n, t in net.state_dict().items()}
        for index, values in optimizer.state_dict()["state"].items():
            tensors |= {f"optim.{index}.{n}": torch.as_tensor(v).clone() for n, v in values.items()}
        save_file(tensors, state.with_suffix(".part"))
        state.with_suffix(".part").replace(state)
        about = dict(step=step, spent=spent, rng=rng.bit_generator.state, seed=seed)
        state.with_suffix(".json").write_text(json.dumps(about))

    while spent < minutes:
        rate = RATE * min(1.0, (step + 1) / 100) * min(1.0, max(0.02, (minutes - spent) / (0.4 * minutes)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        images, texts, true = views.batch(BATCH)
        ids = tok(texts, padding="max_length", max_length=TEXT_LENGTH, truncation=True, return_tensors="pt")
        a = F.normalize(net.get_image_features(pixel_values=images).pooler_output, dim=-1)
        b = F.normalize(net.get_text_features(input_ids=ids["input_ids"]).pooler_output, dim=-1)
        loss = -F.logsigmoid(true * (a @ b.T * net.logit_scale.exp() + net.logit_bias)).sum() / BATCH
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step, spent = step + 1, (time.time() - started) / 60
        losses.append(loss.item())
        if step % 50 == 0:
            print(f"{spent:6.1f} of {minutes:.0f} min  step {step}  loss {np.mean(losses):.3f}", flush=True)
            losses.clear()
        if spent - saved >= every:
            save()
            saved = spent
    save()
    return net


def _card(name: str, about: dict[str, Any], net: SiglipModel) -> str:
    """What was trained, on what, for how long, and how it retrieves fresh frames of the training half."""
    from delivermem import dense

    products = shop.catalogue(np.random.default_rng(777_000), for_benchmark=False)
    frames, asked = [p.photo for p in products], [shop.probe(*p.cue[:2]) for p in products]
    rows = []
    for n in (1, 2, 3, 4):
        ranks = np.array(dense.ranks(frames, asked, n, whole=n > 1))
        shares = " | ".join(f"{100 * (ranks <= k).mean():.0f}" for k in (1, 5))
        rows.append(
            f"| {'whole image' if n == 1 else f'whole and {n} x {n}'} | {shares} | {(1 / ranks).mean():.2f} |"
        )
    count = sum(p.numel() for p in net.parameters())
    return f"""# {name}

An instrument, not a result: a {count / 1e6:.1f} million parameter model of the real `SiglipModel` class, trained from
scratch so that pictures can be retrieved anywhere, on a CPU.

- **Data**: photographs, frames of the shop and tiles of frames, of the training half of the world, with words for the
  small things that are whole in them; SigLIP's sigmoid loss, batches of {BATCH}.
- **Training**: {about["step"]:,} steps in {about["spent"]:.0f} minutes, seed {about["seed"]}, float32; weights are stored in bfloat16.
  Code: `delivermem/reference/siglip.py`.

Recall (%) of {len(frames)} frames by their cue, among all of them; frames drawn after every choice had been made:

| encoding | Recall@1 | Recall@5 | mean reciprocal rank |
|---|---|---|---|
{chr(10).join(rows)}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where checkpoints go")
    parser.add_argument("--minutes", type=float, default=12.0, help="training time in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--export", type=Path, help="where the trained model and its card go")
    options = parser.parse_args(arguments)
    net = train(options.folder, minutes=options.minutes, seed=options.seed)
    if options.export:
        net.eval().to(torch.bfloat16).save_pretrained(options.export)
        processor().save_pretrained(options.export)
        about = json.loads((options.folder / "siglip.json").read_text())
        (options.export / "README.md").write_text(_card(options.export.name, about, net))


if __name__ == "__main__":
    main()
