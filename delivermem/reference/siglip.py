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
from transformers import AutoTokenizer, SiglipConfig, SiglipModel, SiglipProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from delivermem import dense, tiles
from delivermem.benchmarks import scenes, shop
from delivermem.benchmarks.world import indefinite
from delivermem.reference import checkpoints
from delivermem.reference.muon import Muon
from delivermem.runs import data_dir

SIDE = 96
TEXT_LENGTH = 16
PATCHES = 6
"""Patches a side."""
BATCH = 64
RATE, MATRIX_RATE = 2e-3, 8e-3
"""Learning rates of AdamW, and of Muon for the layers' matrices."""
WARM_UP, COOL_DOWN = 0.2, 0.4
"""Share of the time in which small things are shown large, as they are learnt far sooner so; share at the end in which
rates fall."""
WAVES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0)
"""Periods a side of the sines that position embeddings start from."""
OBJECTS, COLOURS = list(scenes.OBJECTS), list(scenes.COLOURS)

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
        patch_size=SIDE // PATCHES,
    )  # fmt: skip
    torch.manual_seed(seed)
    net = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
    net.logit_scale.data.fill_(float(np.log(10.0)))
    net.logit_bias.data.fill_(-5.0)
    _look_around(net.vision_model)
    return net


def _look_around(vision: Any) -> None:
    """Start with patches that attend to their neighbours: sines for positions, queries and keys alike.

    Source: the mimetic initialisation of Trockman & Kolter 2023, without its values and projections.
    """
    at = torch.arange(PATCHES)[:, None] / PATCHES * 2 * np.pi * torch.tensor(WAVES)
    line = torch.cat([at.sin(), at.cos()], 1)
    plane = torch.cat([line[:, None].expand(-1, PATCHES, -1), line[None].expand(PATCHES, -1, -1)], 2)
    mix = torch.randn(plane.shape[2], vision.config.hidden_size) / plane.shape[2] ** 0.5
    vision.embeddings.position_embedding.weight.data = 1.7 * plane.flatten(0, 1) @ mix
    for layer in vision.encoder.layers:
        queries, keys = layer.self_attn.q_proj.weight.data, layer.self_attn.k_proj.weight.data
        queries.mul_(1.5)
        keys.copy_(queries)


class Views:
    """Pictures with the small things that can be seen whole in them. `large`: only tiles of the finest grids."""

    def __init__(self, rng: np.random.Generator):
        self.rng, self.left, self.large = rng, 0, False

    def draw(self) -> tuple[Image.Image, list[Pair], np.ndarray]:
        """A photograph, a frame, or a tile of a frame; its pairs of colour and object; and, of each patch, by rows, the
        object and the colour that its middle lies on, (patches, 2), -1 where there is none."""
        rng = self.rng
        if rng.random() < 0.2 and not self.large:
            scene = scenes.draw_scene(rng, for_benchmark=False)
            image = scenes.render(scene, int(rng.integers(2**31)))
            return self._seen(image, (0, 0, *image.size), [(c, o, scenes.PLACES[at]) for c, o, at in scene])
        if self.left == 0:
            self.products, self.left = shop.catalogue(rng, for_benchmark=False), 1000
        self.left -= 1
        product = self.products[int(rng.integers(len(self.products)))]
        grid = tiles.boxes(product.photo.size, int(rng.integers(3 if self.large else 1, 5)))
        return self._seen(product.photo, grid[int(rng.integers(len(grid)))], [product.cue, *product.others])

    def _seen(
        self, image: Image.Image, box: tuple[int, int, int, int], placed: Sequence[shop.Placed]
    ) -> tuple[Image.Image, list[Pair], np.ndarray]:
        left, top, right, bottom = box
        cell, middles = scenes.CELL, (np.arange(PATCHES) + 0.5) / PATCHES
        columns, rows = (left + middles * (right - left)) // cell, (top + middles * (bottom - top)) // cell
        labels, pairs = np.full((PATCHES, PATCHES, 2), -1), []
        for colour, name, (column, row) in placed:
            labels[np.ix_(rows == row, columns == column)] = OBJECTS.index(name), COLOURS.index(colour)
            x, y, slack = column * cell, row * cell, 4
            across = left <= x + slack and x + cell - slack <= right
            if across and top <= y + slack and y + cell - slack <= bottom:
                pairs.append((colour, name))
        return image.crop(box), pairs, labels.reshape(-1, 2)

    def batch(self, size: int) -> tuple[torch.Tensor, list[str], torch.Tensor, torch.Tensor]:
        """Pixels (n, 3, SIDE, SIDE), texts, which text is true of which picture (n, n) as 1 or -1, and labels of patches
        (n, patches, 2)."""
        drawn = [self.draw() for _ in range(size)]
        asked = []
        for _, pairs, _ in drawn:
            pairs = pairs or [scenes.PAIRS[int(self.rng.integers(len(scenes.PAIRS)))]]
            order = self.rng.permutation(len(pairs))[: 1 if self.rng.random() < 0.8 else 2]
            asked.append([pairs[i] for i in order])
        forms = self.rng.integers(len(TEMPLATES), size=size)
        texts = [query(want, TEMPLATES[form]) for want, form in zip(asked, forms, strict=True)]
        true = [[1.0 if set(want) <= set(have) else -1.0 for want in asked] for _, have, _ in drawn]
        labels = torch.from_numpy(np.stack([labels for _, _, labels in drawn]))
        return pixels([image for image, _, _ in drawn]), texts, torch.tensor(true), labels


def pixels(images: Sequence[Image.Image]) -> torch.Tensor:
    """As the processor gives them: resized by Pillow, in [-1, 1]."""
    resized = [np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)) for image in images]
    return torch.from_numpy(np.stack(resized)).permute(0, 3, 1, 2).float() / 127.5 - 1


def _losses(net: SiglipModel, heads: torch.nn.Linear, batch: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    """SigLIP's sigmoid loss, the loss of what each patch shows, and the share of objects named right by their patches."""
    images, ids, true, labels = batch
    seen = net.vision_model(pixel_values=images)
    a = F.normalize(seen.pooler_output, dim=-1)
    b = F.normalize(net.get_text_features(input_ids=ids).pooler_output, dim=-1)
    pairs = -F.logsigmoid(true * (a @ b.T * net.logit_scale.exp() + net.logit_bias)).sum() / len(images)
    logits, (kind, colour) = heads(seen.last_hidden_state).flatten(0, 1), labels.flatten(0, 1).T
    shown, nothing = kind >= 0, len(OBJECTS)
    named, coloured = logits[:, : nothing + 1], logits[:, nothing + 1 :]
    patches = F.cross_entropy(named, kind.where(shown, nothing)) + F.cross_entropy(
        coloured, colour.where(shown, len(COLOURS))
    )
    return pairs, patches, (named.argmax(1) == kind)[shown].float().mean()


def train(folder: Path, *, minutes: float, seed: int, every: float = 2.0) -> SiglipModel:
    """Train until the minutes (resumed parts counted in) are used up; a checkpoint every `every` minutes."""
    tok = processor().tokenizer
    net = model(len(tok), tok.pad_token_id, tok.eos_token_id, seed=seed).train()
    heads = torch.nn.Linear(net.config.vision_config.hidden_size, len(OBJECTS) + len(COLOURS) + 2)
    matrices = [p for name, p in net.named_parameters() if p.ndim == 2 and ".layers." in name]
    chosen = {id(p) for p in matrices}
    rest = [p for p in (*net.parameters(), *heads.parameters()) if id(p) not in chosen]
    optimizers = (
        Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=RATE, weight_decay=0.0, betas=(0.9, 0.98), fused=True),
    )
    parts = torch.nn.ModuleDict(dict(net=net, heads=heads))
    step, spent, rng = 0, 0.0, np.random.default_rng(seed)
    found = checkpoints.load(folder / "siglip", optimizers)
    if found is not None:
        parts.load_state_dict(found[0])
        step, spent = found[1]["step"], found[1]["spent"]
        rng.bit_generator.state = found[1]["rng"]
    views, started, saved, losses = Views(rng), time.time() - spent * 60, spent, []

    def save() -> None:
        about = dict(step=step, spent=spent, rng=rng.bit_generator.state, seed=seed)
        checkpoints.save(folder / "siglip", parts.state_dict(), optimizers, about)

    while spent < minutes:
        rate = min(1.0, (step + 1) / 100, max(0.02, (minutes - spent) / (COOL_DOWN * minutes)))
        for optimizer, base in zip(optimizers, (MATRIX_RATE, RATE), strict=True):
            optimizer.param_groups[0]["lr"] = base * rate
        views.large = spent < WARM_UP * minutes
        images, texts, true, labels = views.batch(BATCH)
        ids = tok(texts, padding="max_length", max_length=TEXT_LENGTH, truncation=True, return_tensors="pt")
        pairs, patches, named = _losses(net, heads, (images, ids["input_ids"], true, labels))
        (pairs + 2 * patches).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step, spent = step + 1, (time.time() - started) / 60
        losses.append((pairs.item(), patches.item(), named.item()))
        if step % 100 == 0:
            means = "pairs {:.3f}  patches {:.3f}  objects {:.2f}".format(*np.mean(losses, 0))
            print(f"{spent:6.1f} of {minutes:.0f} min  step {step}  {means}", flush=True)
            losses.clear()
        if spent - saved >= every:
            save()
            saved = spent
    save()
    return net


def _card(about: dict[str, Any], net: SiglipModel) -> str:
    """What was trained, on what, for how long, and how it retrieves fresh frames of the training half."""
    products = shop.catalogue(np.random.default_rng(778_000), for_benchmark=False)
    frames, asked = [p.photo for p in products], [shop.probe(*p.cue[:2]) for p in products]
    rows = []
    for n in (1, 2, 3, 4):
        ranks = np.array(dense.ranks(frames, asked, n, whole=n > 1))
        shares = " | ".join(f"{100 * (ranks <= k).mean():.0f}" for k in (1, 5))
        rows.append(
            f"| {'whole image' if n == 1 else f'whole and {n} x {n}'} | {shares} | {(1 / ranks).mean():.2f} |"
        )
    count = sum(p.numel() for p in net.parameters())
    return f"""# {dense.ENCODER}

An instrument, not a result: a {count / 1e6:.1f} million parameter model of the real `SiglipModel` class, trained from
scratch so that pictures can be retrieved anywhere, on a CPU.

- **Data**: photographs, frames of the shop and tiles of frames, of the training half of the world, with words for the
  small things that are whole in them; SigLIP's sigmoid loss, batches of {BATCH}.
- **Training**: {about["step"]:,} steps in {about["spent"]:.0f} minutes, seed {about["seed"]}, float32; beside the
  loss of pairs, each patch names the object and colour under its middle. Weights are stored in bfloat16. Code:
  `delivermem/reference/siglip.py`.
- **Use**: `delivermem.encoders.Siglip("tiny-siglip")`, or `transformers.AutoModel.from_pretrained(folder)`.

Recall (%) of {len(frames)} frames by their cue, among all of them; frames drawn after every choice had been made:

| encoding | Recall@1 | Recall@5 | mean reciprocal rank |
|---|---|---|---|
{chr(10).join(rows)}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where checkpoints go")
    parser.add_argument("--minutes", type=float, default=45.0, help="training time in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--export", action="store_true", help="put the trained model and its card into data/models"
    )
    options = parser.parse_args(arguments)
    net = train(options.folder, minutes=options.minutes, seed=options.seed)
    if options.export:
        target = data_dir() / "models" / dense.ENCODER
        net.eval().to(torch.bfloat16).save_pretrained(target)
        processor().save_pretrained(target)
        about = json.loads((options.folder / "siglip.json").read_text())
        (target / "README.md").write_text(_card(about, net))


if __name__ == "__main__":
    main()
