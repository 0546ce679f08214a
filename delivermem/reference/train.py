"""Train the embedded reference model from scratch: `python -m delivermem.reference.train --help`.

The network is the unchanged `Qwen3VLForConditionalGeneration`; only the forward pass of training is our own, to
let many questions share one context and to read the hints off the attention. Stages widen K when held-out
accuracy says so. A run resumes from its checkpoint; checkpoints are safetensors and JSON.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen

from delivermem.benchmarks import scenes, world
from delivermem.pictures import stamp
from delivermem.records import REFUSAL
from delivermem.reference import build, corpus

STAGES: tuple[tuple[tuple[int, ...], float], ...] = (((1, 2, 3), 0.55), ((3, 5, 6), 0.60), ((5, 8, 10), 2.0))
"""Numbers of delivered turns drawn in each stage, and the held-out accuracy at the largest that ends it."""
VISION_RATE, VISION_RATE_LATER = 2e-3, 7e-4
"""Learning rate of the vision tower while it is alone, and after."""
HINTED_LAYERS = (1, 2, 3, 4)
BATCH_TOKENS = 3600
WARM_UP = 700
"""Steps on single photographs before the first conversation."""
PICK_K = 8
"""Held-out loss at this K picks the checkpoint that is kept as `best`."""


class Muon(torch.optim.Optimizer):
    """Momentum orthogonalised by Newton-Schulz (Jordan et al. 2024), in float32: torch.optim.Muon computes in
    bfloat16, which many CPUs emulate some twenty times slower. Parameters of one shape are updated as a batch."""

    def __init__(
        self, params: Sequence[Tensor], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.05
    ):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    shapes[p.shape].append(p)
            for shape, alike in shapes.items():
                updates = []
                for p in alike:
                    assert p.grad is not None
                    state = self.state[p]
                    velocity = state.setdefault("momentum", torch.zeros_like(p))
                    velocity.lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(velocity, group["momentum"]))
                moved = _orthogonal(torch.stack(updates)) * (0.2 * max(shape) ** 0.5)
                for p, update in zip(alike, moved, strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"])


def _orthogonal(x: Tensor, steps: int = 5) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: (b, m, n) -> (b, m, n) with singular values near 1."""
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if wide else x.mT


class Trainer:
    """Everything a step needs; `run` trains until the minutes given are used up."""

    def __init__(self, folder: Path, *, seed: int, minutes: float):
        self.folder, self.seed, self.minutes = folder, seed, minutes
        self.processor = build.processor()
        self.net = build.model(self.processor, seed=seed).train()
        self.packer = corpus.Packer(self.processor.tokenizer)
        self.rng = np.random.default_rng(seed)
        self.step, self.stage, self.spent, self.best = 0, 0, 0.0, float("inf")
        self.held_out_loss = float("nan")
        ids = self.processor.tokenizer.convert_tokens_to_ids
        self.words = {
            "colour": torch.tensor(ids([f"Ġ{name}" for name in scenes.COLOURS])),
            "object": torch.tensor(ids([f"Ġ{name}" for name in scenes.OBJECTS])),
            "tag": torch.tensor(ids([f"M{i}" for i in range(1, 11)])),
            "count": torch.tensor(ids(list(world.NUMBERS[1:5]))),
        }
        spaced = [f"Ġ{word}" for word in (*world.TOPICS, *world.KEPT)]
        self.groups = {
            "key": torch.tensor(ids(spaced)),
            "object": self.words["object"],
            "colour": self.words["colour"],
            "place": torch.tensor(ids(["Ġtop", "Ġright", "Ġbottom", "Ġleft", "Ġcenter"])),
            "year": torch.tensor(ids(["2023", "2024", "2025"])),
            "day": torch.tensor(ids([f"/{day:02d}" for day in range(1, 32)])),
        }
        self.nothing = torch.nn.Parameter(torch.zeros(4))
        matrices = [
            p for n, p in self.net.model.language_model.named_parameters() if p.ndim == 2 and "layers" in n
        ]
        chosen = {id(p) for p in matrices}
        vision = list(self.net.model.visual.parameters())
        embedding = [self.net.model.language_model.embed_tokens.weight]
        chosen |= {id(p) for p in vision + embedding}
        rest = [p for p in self.net.parameters() if id(p) not in chosen] + [self.nothing]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, lr=6e-3),
            torch.optim.AdamW(
                [
                    dict(params=rest, lr=2e-3),
                    dict(params=vision, lr=VISION_RATE),
                    dict(params=embedding, lr=4e-4),
                ],
                betas=(0.9, 0.98),
                weight_decay=0.0,
                fused=True,
            ),
        ]
        self._first_vision = vision[0]
        self.rates = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self._hidden: dict[int, Tensor] = {}
        for layer in HINTED_LAYERS:
            attention = self.net.model.language_model.layers[layer].self_attn
            attention.register_forward_pre_hook(self._keep(layer), with_kwargs=True)
        self._grid_of_one()

    def _keep(self, layer: int) -> Any:
        def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            self._hidden[layer] = kwargs["hidden_states"]
            self._rotary = kwargs["position_embeddings"]

        return hook

    # -- vision: the tower of the model, over images that all have the same grid -------------------------------

    def _grid_of_one(self) -> None:
        config = self.net.config.vision_config
        grid = torch.tensor([[1, build.GRID, build.GRID]])
        self._at, self._by = qwen.get_vision_interpolation_indices_and_weights(
            grid,
            num_grid_per_side=build.GRID,
            mode="bilinear",
            align_corners=True,
            spatial_merge_size=2,
            kwargs={},
        )
        places = qwen.get_vision_position_ids(grid, config.spatial_merge_size, kwargs={})
        self._turn = self.net.model.visual.rotary_pos_emb(torch.zeros(1), places)

    def see(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """images (n, SIDE, SIDE, 3) uint8 -> image tokens (n * TOKENS, width) and the deepstack features."""
        tower, n, half = self.net.model.visual, len(images), build.GRID // 2
        x = images.permute(0, 3, 1, 2).float() / 127.5 - 1
        x = x.reshape(n, 3, half, 2, build.PATCH, half, 2, build.PATCH).permute(0, 2, 5, 3, 6, 1, 4, 7)
        weight = tower.patch_embed.proj.weight.sum(2).flatten(1)
        x = F.linear(x.reshape(n, build.GRID**2, -1), weight, tower.patch_embed.proj.bias)
        x = x + (tower.pos_embed(self._at) * self._by[:, :, None]).sum(1)
        cos, sin = (part[None, :, None] for part in self._turn)
        deep: list[Tensor] = []
        for i, block in enumerate(tower.blocks):
            a = block.attn
            q, k, v = a.qkv(block.norm1(x)).reshape(n, build.GRID**2, 3, a.num_heads, -1).unbind(2)
            q, k = (y * cos + qwen.rotate_half(y) * sin for y in (q, k))
            o = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)))
            x = x + a.proj(o.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
            if i in tower.deepstack_visual_indexes:
                deep.append(tower.deepstack_merger_list[len(deep)](x.flatten(0, 1)))
        return tower.merger(x.flatten(0, 1)), deep

    def vision_loss(self, tokens: Tensor, cells: dict[str, Tensor]) -> tuple[Tensor, dict[str, float]]:
        """Each image token scored against the embeddings of the words for what it shows; class -1 is 'nothing'."""
        table = self.net.model.language_model.embed_tokens.weight
        loss, right = torch.zeros(()), {}
        for i, (name, ids) in enumerate(self.words.items()):
            scores = tokens @ table[ids].T / 8
            scores = torch.cat([scores, self.nothing[i].expand(len(scores), 1)], 1)
            target = torch.where(cells[name] < 0, len(ids), cells[name])
            loss = loss + F.cross_entropy(scores, target)
            shown = target < len(ids)
            right[name] = float((scores.argmax(1) == target)[shown].float().mean()) if shown.any() else 1.0
        return loss, right

    # -- language ---------------------------------------------------------------------------------------------

    def forward(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits at the answer positions (a, vocabulary), their labels (a,), and the image tokens."""
        model = self.net.model
        embedded, seen, deep, mask = model.language_model.embed_tokens(batch["ids"]), None, None, None
        if batch["images"] is not None:
            seen, deep = self.see(batch["images"])
            mask = batch["ids"] == self.net.config.image_token_id
            embedded = embedded.masked_scatter(mask[..., None].expand_as(embedded), seen)
        hidden = model.language_model(
            inputs_embeds=embedded,
            attention_mask=batch["mask"],
            position_ids=batch["position"],
            visual_pos_masks=mask,
            deepstack_visual_embeds=deep,
            use_cache=False,
        ).last_hidden_state
        chosen = batch["label"] != -100
        return self.net.lm_head(hidden[chosen]), batch["label"][chosen], seen

    def hint_loss(self, batch: dict[str, Any]) -> Tensor:
        """Mean over hinted heads of the mean -log attention mass that their tokens put on the targets."""
        groups: dict[tuple[int, int], list[tuple[int, corpus.Hint]]] = defaultdict(list)
        for b, hint in batch["hints"]:
            groups[hint.layer, hint.head].append((b, hint))
        total = torch.zeros(())
        for (layer, head), hints in groups.items():
            attention = self.net.model.language_model.layers[layer].self_attn
            hidden, dim = self._hidden[layer], attention.head_dim
            part = slice(head * dim, (head + 1) * dim)
            row = torch.tensor([b for b, _ in hints])
            source = torch.tensor([hint.source for _, hint in hints])
            q = attention.q_norm(F.linear(hidden[row, source], attention.q_proj.weight[part]))
            k = attention.k_norm(F.linear(hidden, attention.k_proj.weight[part]))
            cos, sin = self._rotary
            q = q * cos[row, source] + qwen.rotate_half(q) * sin[row, source]
            k = k * cos + qwen.rotate_half(k) * sin
            targets = torch.zeros(len(hints), k.shape[1], dtype=torch.bool)
            at = [(i, t) for i, (_, hint) in enumerate(hints) for t in hint.targets]
            targets[tuple(torch.tensor(at).T)] = True
            sizes = torch.bincount(row, minlength=len(k)).tolist()  # hints come row by row
            scores = (
                torch.cat([part_q @ k[b].T for b, part_q in enumerate(q.split(sizes))]) * attention.scaling
            )
            scores = scores.masked_fill(~batch["mask"][row, 0, source], -torch.inf)
            mass = scores.masked_fill(~targets, -torch.inf).logsumexp(1) - scores.logsumexp(1)
            total = total - mass.mean()
        return total / max(len(groups), 1)

    def gathered_loss(self, batch: dict[str, Any]) -> Tensor:
        """Tokens scored against the embeddings of the words that they should hold by layer GATHERED_BY, by group."""
        hidden, table = self._hidden[corpus.GATHERED_BY], self.net.model.language_model.embed_tokens.weight
        by_group: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        for b, word in batch["gathered"]:
            by_group[word.group].append((b, word.source, word.token))
        total = torch.zeros(())
        for group, found in by_group.items():
            row, source, token = torch.tensor(found).T
            scores = hidden[row, source] @ table[self.groups[group]].T / 8
            at = self.groups[group] == token[:, None]
            known = at.any(1)  # a rare year is spelt in several tokens
            if known.any():
                total = total + F.cross_entropy(scores[known], at[known].int().argmax(1))
        return total / max(len(by_group), 1)

    # -- data -------------------------------------------------------------------------------------------------

    def batch(self) -> dict[str, Any]:
        ks, rng = STAGES[self.stage][0], self.rng
        k = int(rng.choice(ks))
        contexts = []
        for i in range(max(4, BATCH_TOKENS // (380 + 27 * k))):
            if i % 2 == 0:
                turns = world.conversation(rng, for_benchmark=False)
            tags = list(corpus.TAG_MODES)[int(rng.choice(5, p=list(corpus.TAG_MODES.values())))]
            pixels, times = bool(rng.random() > 0.08), bool(rng.random() > 0.1)
            made = corpus.context(rng, turns, k, questions=14, pixels=pixels, times=times, tags=tags)
            if made.asks:
                contexts.append(made)
        return self.packer.pack(contexts)

    def scenes_batch(self, count: int = 96) -> tuple[Tensor, dict[str, Tensor]]:
        images, cells = [], []
        for _ in range(count):
            scene = scenes.draw_scene(self.rng, for_benchmark=False)
            tag = f"M{self.rng.integers(1, 11)}" if self.rng.random() < 0.8 else ""
            image = scenes.render(scene, int(self.rng.integers(2**31)))
            images.append(np.asarray(stamp(image, tag) if tag else image))
            cells += corpus.cell_labels(scene, tag)
        labels = {name: torch.tensor([getattr(cell, name) for cell in cells]) for name in self.words}
        return torch.from_numpy(np.stack(images)), labels

    # -- held-out accuracy ------------------------------------------------------------------------------------

    @torch.no_grad()
    def evaluate(self, k: int, *, seed: int, contexts: int = 32, **arm: Any) -> dict[str, tuple[float, int]]:
        """Share of answers whose every token is the most likely one (what greedy decoding gives), by sort, with their
        number; `held_out_loss` keeps the mean loss of an answer token."""
        self.net.eval()
        rng, hits, losses = np.random.default_rng(seed), defaultdict(list), []
        for _ in range(0, contexts, 8):
            made = []
            for _ in range(8):
                turns = world.conversation(rng, for_benchmark=False)
                made.append(corpus.context(rng, turns, k, questions=12, **arm))
            made = [context for context in made if context.asks]
            batch = self.packer.pack(made)
            logits, label, _ = self.forward(batch)
            losses.append(F.cross_entropy(logits, label).item())
            right = torch.zeros_like(batch["label"], dtype=torch.bool)
            right[batch["label"] != -100] = logits.argmax(1) == label
            for b, context in enumerate(made):
                for number, (asked, answer) in enumerate(context.asks, 1):
                    here = (batch["seg"][b] == number) & (batch["label"][b] != -100)
                    name = "refusal" if answer == REFUSAL else asked.subtype
                    hits[name].append(bool(right[b][here].all()))
        self.net.train()
        self.held_out_loss = sum(losses) / len(losses)
        return {name: (sum(found) / len(found), len(found)) for name, found in sorted(hits.items())}

    # -- the run ----------------------------------------------------------------------------------------------

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"net.{n}": t for n, t in self.net.state_dict().items() if n != "lm_head.weight"}
        tensors["nothing"] = self.nothing.data
        for i, optimizer in enumerate(self.optimizers):
            for index, state in optimizer.state_dict()["state"].items():
                tensors |= {f"optim.{i}.{index}.{n}": torch.as_tensor(value) for n, value in state.items()}
        part = self.folder / "checkpoint.part"
        save_file({n: t.detach().clone().contiguous() for n, t in tensors.items()}, part)
        part.replace(self.folder / "checkpoint.safetensors")
        about = dict(
            step=self.step,
            stage=self.stage,
            spent=self.spent,
            best=self.best,
            seed=self.seed,
            rng=self.rng.bit_generator.state,
        )
        (self.folder / "checkpoint.json").write_text(json.dumps(about))

    def resume(self, name: str = "checkpoint") -> bool:
        """Go on from the folder's checkpoint (or its `best`), if it has one."""
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            return False
        tensors, about = load_file(path), json.loads(path.with_suffix(".json").read_text())
        net = {n[4:]: t for n, t in tensors.items() if n.startswith("net.")}
        self.net.load_state_dict(net, strict=False)
        self.nothing.data = tensors["nothing"]
        for i, optimizer in enumerate(self.optimizers):
            state: dict[int, dict[str, Tensor]] = defaultdict(dict)
            for name, tensor in tensors.items():
                if name.startswith(f"optim.{i}."):
                    _, _, index, field = name.split(".", 3)
                    state[int(index)][field] = tensor
            optimizer.load_state_dict({**optimizer.state_dict(), "state": dict(state)})
        self.step, self.stage, self.spent, self.best = (about[n] for n in ("step", "stage", "spent", "best"))
        self.seed = about["seed"]
        self.rng.bit_generator.state = about["rng"]
        return True

    def see_as(self, folder: Path) -> None:
        """Start from the vision tower and word embeddings of another run's checkpoint instead of a warm-up."""
        tensors = load_file(folder / "checkpoint.safetensors")
        kept = {
            n[4:]: t
            for n, t in tensors.items()
            if n.startswith("net.") and ("visual" in n or "embed_tokens" in n)
        }
        self.net.load_state_dict(kept, strict=False)
        self.nothing.data = tensors["nothing"]
        self.step = WARM_UP

    def run(self, *, every: float = 4.0) -> None:
        started, losses, report = time.time() - self.spent * 60, defaultdict(list), self.spent + every
        log = (self.folder / "log.jsonl").open("a")
        while self.spent < self.minutes:
            left = (self.minutes - self.spent) / self.minutes
            rate = min(1.0, (self.step + 1) / 60, abs(self.step - WARM_UP) / 60 + 0.02) * min(
                1.0, max(0.02, left / 0.35)
            )
            for group, base in zip(
                (g for o in self.optimizers for g in o.param_groups), self.rates, strict=True
            ):
                later = (
                    base == VISION_RATE and self.step >= WARM_UP and group["params"][0] is self._first_vision
                )
                group["lr"] = (VISION_RATE_LATER if later else base) * rate
            if self.step < WARM_UP:
                images, cells = self.scenes_batch()
                loss, right = self.vision_loss(self.see(images)[0], cells)
                losses["vision"].append(loss.item())
                for name, share in right.items():
                    losses[name].append(share)
            else:
                batch = self.batch()
                logits, label, seen = self.forward(batch)
                answers = F.cross_entropy(logits, label)
                hints = self.hint_loss(batch)
                vision = self.vision_loss(seen, batch["cells"])[0] if seen is not None else torch.zeros(())
                words = self.gathered_loss(batch)
                loss = answers + 1.0 * hints + 0.5 * words + 0.5 * vision
                for name, value in (
                    ("answers", answers),
                    ("hints", hints),
                    ("words", words),
                    ("vision", vision),
                ):
                    losses[name].append(value.item())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            self.step += 1
            self.spent = (time.time() - started) / 60
            if self.step % 50 == 0:
                means = " ".join(f"{name} {np.mean(values):.3f}" for name, values in losses.items())
                print(f"{self.spent:6.1f} min  step {self.step}  stage {self.stage}  {means}", flush=True)
                losses.clear()
            if self.step > WARM_UP and self.spent >= report:
                self._report(log)
                self.spent = (time.time() - started) / 60
                report = self.spent + every
        self._report(log)

    def _report(self, log: Any) -> None:
        ks, bar = STAGES[self.stage]
        tables = {k: self.evaluate(k, seed=10_000 + k) for k in [*{max(ks)} - {PICK_K}, PICK_K]}
        answered, loss = {k: answerable(table) for k, table in tables.items()}, self.held_out_loss
        about = dict(minutes=self.spent, step=self.step, stage=self.stage, loss=loss, accuracy=tables)
        log.write(json.dumps(about) + "\n")
        log.flush()
        for k, table in tables.items():
            cells = " ".join(f"{name} {share:.2f}" for name, (share, _) in table.items())
            print(f"    held out, K = {k}: answerable {answered[k]:.3f}; {cells}", flush=True)
        print(f"    held-out loss at K = {PICK_K}: {loss:.4f} (best before {self.best:.4f})", flush=True)
        if answered[max(ks)] >= bar:
            self.stage += 1
        better, self.best = loss < self.best, min(loss, self.best)
        self.save()
        if better:
            for name in ("checkpoint.safetensors", "checkpoint.json"):
                shutil.copy(self.folder / name, self.folder / name.replace("checkpoint", "best"))


def answerable(table: dict[str, tuple[float, int]]) -> float:
    kept = [cell for name, cell in table.items() if name != "refusal"]
    return sum(share * n for share, n in kept) / max(1, sum(n for _, n in kept))


def main(arguments: Sequence[str] | None = None) -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where checkpoints and the log go")
    parser.add_argument(
        "--minutes", type=float, default=55.0, help="training time in all, resumed parts counted in"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--vision", type=Path, help="a run whose vision tower and word embeddings to start from"
    )
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(options.folder, seed=options.seed, minutes=options.minutes)
    resumed = trainer.resume()
    if options.vision and not resumed:
        trainer.see_as(options.vision)
    print("resumed" if resumed else "from scratch", flush=True)
    trainer.run()


if __name__ == "__main__":
    main()
