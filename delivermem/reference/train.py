"""Train the embedded reference model from scratch: `python -m delivermem.reference.train --help`.

Stages widen K when held-out accuracy says so. A run resumes from its checkpoint; checkpoints are safetensors and JSON.
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
from torch import Tensor

from delivermem.benchmarks import scenes, shop, world
from delivermem.pictures import stamp
from delivermem.records import REFUSAL
from delivermem.reference import checkpoints, corpus, errands, shopping
from delivermem.reference.muon import Muon
from delivermem.reference.network import Network

STAGES: tuple[tuple[tuple[int, ...], float], ...] = (((1, 2, 3), 0.55), ((3, 5, 6), 0.60), ((5, 8, 10), 2.0))
"""Numbers of delivered turns drawn in each stage, and the held-out accuracy at the largest that ends it."""
VISION_RATE, VISION_RATE_LATER = 2e-3, 7e-4
"""Learning rate of the vision tower while it is alone, and after."""
BATCH_TOKENS = 3600
WARM_UP = 700
"""Steps on single photographs before the first conversation."""
PICK_K = 8
"""Held-out loss at this K, and in the shop, picks the checkpoint that is kept as `best`."""
SHARES = {"world": 0.33, "shop": 0.2, "errand": 0.32, "whole": 0.15}
"""Shares of the last stage's batches: some messages of conversations, visits to the shop with questions, an agent's steps
in it, whole conversations."""
SHOP_K = 5
"""Visits delivered in the shop: DMV-Bench's five."""
PAUSE = 20.0
"""A step that took more seconds is counted as so many: the machine stood still meanwhile."""
RETRAIN = 0.6
"""Learning rates of a training that starts from a trained model, as a share of those from scratch."""


class Trainer(Network):
    """Everything a step needs; `run` trains until the minutes given are used up."""

    def __init__(self, folder: Path, *, seed: int, minutes: float):
        super().__init__(seed=seed)
        self.folder, self.seed, self.minutes, self.scale = folder, seed, minutes, 1.0
        self.rng = np.random.default_rng(seed)
        self.step, self.stage, self.spent, self.best = 0, 0, 0.0, float("inf")
        self.held_out_loss = float("nan")
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

    # -- data -------------------------------------------------------------------------------------------------

    def batch(self) -> dict[str, Any]:
        """Conversations, or from the last stage on SHARES of what there is, under some arm each."""
        last = self.stage == len(STAGES) - 1
        place = str(self.rng.choice(list(SHARES), p=list(SHARES.values()))) if last else "world"
        k = int(self.rng.choice(STAGES[self.stage][0])) if place == "world" else SHOP_K
        tokens = {"world": 380 + 27 * k, "shop": 600, "errand": 450, "whole": 1400}[place]
        return self.packer.pack(
            self._contexts(self.rng, k, max(2, BATCH_TOKENS // tokens), place=place, questions=14)
        )

    def _contexts(
        self, rng: np.random.Generator, k: int, count: int, *, place: str, questions: int, **arm: Any
    ) -> list[corpus.Context]:
        """That many contexts, two of each conversation; the arm is drawn for each, but for what `arm` fixes."""
        made, modes = [], corpus.TAG_MODES if place == "world" else shopping.TAG_MODES
        shopping_trip = place in ("shop", "errand")
        visits = shop.chain(rng, shop.catalogue(rng, for_benchmark=False), 6) if shopping_trip else []
        for i in range(count):
            drawn = arm or dict(
                modality=str(rng.choice(["pixels", "caption", "text"], p=[0.9, 0.05, 0.05])),
                times=bool(rng.random() > 0.1),
                tags=list(modes)[int(rng.choice(len(modes), p=list(modes.values())))],
            )
            if place == "errand":
                context: corpus.Context = errands.context(rng, visits, k, **drawn)
            elif place == "shop":
                context = shopping.context(rng, visits, k, questions=questions, **drawn)
            elif place == "whole":
                sessions = arm.get("sessions") or int(rng.integers(3, 11))
                turns = world.conversation(rng, for_benchmark=False, sessions=sessions)
                context = corpus.whole(rng, turns, questions=questions)
            else:
                if i % 2 == 0:
                    turns = world.conversation(rng, for_benchmark=False)
                context = corpus.context(rng, turns, k, questions=questions, **drawn)
            if context.asks:
                made.append(context)
        return made

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
    def evaluate(
        self, k: int, *, seed: int, contexts: int = 32, place: str = "world", **arm: Any
    ) -> dict[str, tuple[float, int]]:
        """Share of answers whose every token is the most likely one (what greedy decoding gives), by sort, with their
        number; `held_out_loss` keeps the mean loss of an answer token. arm: as of `corpus.context`."""
        self.net.eval()
        rng, hits, losses = np.random.default_rng(seed), defaultdict(list), []
        for _ in range(0, contexts, 8):
            made = self._contexts(rng, k, 8, place=place, questions=12, **{"tags": "rank", **arm})
            batch = self.packer.pack(made)
            logits, label, _ = self.forward(batch)
            losses.append(F.cross_entropy(logits, label).item())
            right = torch.zeros_like(batch["label"], dtype=torch.bool)
            right[batch["label"] != -100] = logits.argmax(1) == label
            for b, context in enumerate(made):
                for number, (asked, answer) in enumerate(context.asks, 1):
                    here = (batch["seg"][b] == number) & (batch["label"][b] != -100)
                    name = "refusal" if asked.refusal or answer == REFUSAL else asked.subtype
                    hits[name].append(bool(right[b][here].all()))
        self.net.train()
        self.held_out_loss = sum(losses) / len(losses)
        return {name: (sum(found) / len(found), len(found)) for name, found in sorted(hits.items())}

    def begin_from(self, folder: Path) -> None:
        """Start in the last stage from the weights of a trained model, whose tokenizer may know fewer words: rows of
        tokens that both know are carried over, word by word. For a training that has not begun."""
        from safetensors.torch import load_file
        from transformers import AutoTokenizer

        trained = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        own, table = self.net.state_dict(), "model.language_model.embed_tokens.weight"
        theirs = AutoTokenizer.from_pretrained(folder).get_vocab()
        rows = own[table].clone()
        for word, index in self.processor.tokenizer.get_vocab().items():
            if word in theirs:
                rows[index] = trained[table][theirs[word]]
        missing = self.net.load_state_dict({**trained, table: rows}, strict=False).missing_keys
        if set(missing) - {"lm_head.weight"}:
            raise ValueError(f"{folder}: its weights lack {missing[0]}; give a model of this architecture")
        self.step, self.stage = WARM_UP, len(STAGES) - 1

    # -- the run ----------------------------------------------------------------------------------------------

    def save(self) -> None:
        tensors = {f"net.{n}": t for n, t in self.net.state_dict().items() if n != "lm_head.weight"}
        about = dict(
            step=self.step,
            stage=self.stage,
            spent=self.spent,
            best=self.best,
            seed=self.seed,
            rng=self.rng.bit_generator.state,
        )
        tensors["nothing"] = self.nothing.data
        checkpoints.save(self.folder / "checkpoint", tensors, self.optimizers, about)

    def resume(self, name: str = "checkpoint") -> bool:
        """Go on from the folder's checkpoint (or its `best`), if it has one."""
        found = checkpoints.load(self.folder / name, self.optimizers)
        if found is None:
            return False
        tensors, about = found
        self.nothing.data = tensors.pop("nothing")
        self.net.load_state_dict({name[4:]: tensor for name, tensor in tensors.items()}, strict=False)
        self.step, self.stage, self.spent, self.best = (about[n] for n in ("step", "stage", "spent", "best"))
        self.seed = about["seed"]
        self.rng.bit_generator.state = about["rng"]
        return True

    def run(self, *, every: float = 6.0) -> None:
        torch.set_flush_denormal(True)
        began, losses, report = time.monotonic(), defaultdict(list), self.spent + every
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
                group["lr"] = (VISION_RATE_LATER if later else base) * rate * self.scale
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
            now = time.monotonic()
            self.spent, began = self.spent + min(now - began, PAUSE) / 60, now
            if self.step % 50 == 0:
                means = " ".join(f"{name} {np.mean(values):.3f}" for name, values in losses.items())
                print(f"{self.spent:6.1f} min  step {self.step}  stage {self.stage}  {means}", flush=True)
                losses.clear()
            if self.step > WARM_UP and self.spent >= report:
                self._report(log)
                report, began = self.spent + every, time.monotonic()
        self._report(log)

    def _report(self, log: Any) -> None:
        ks, bar = STAGES[self.stage]
        tables = {str(k): self.evaluate(k, seed=10_000 + k) for k in [*{max(ks)} - {PICK_K}, PICK_K]}
        loss = self.held_out_loss
        if self.stage == len(STAGES) - 1:
            for place, contexts in (("shop", 32), ("errand", 96)):
                tables[place] = self.evaluate(SHOP_K, seed=10_000, place=place, contexts=contexts)
                loss += self.held_out_loss
                tables[f"{place}, no tags"] = self.evaluate(
                    SHOP_K, seed=10_001, place=place, contexts=contexts, tags="none"
                )
            tables["all"] = self.evaluate(0, seed=10_000, place="whole", contexts=16)
            loss = (loss + self.held_out_loss) / 4
        answered = {name: answerable(table) for name, table in tables.items()}
        about = dict(minutes=self.spent, step=self.step, stage=self.stage, loss=loss, accuracy=tables)
        log.write(json.dumps(about) + "\n")
        log.flush()
        for k, table in tables.items():
            cells = " ".join(f"{name} {share:.2f}" for name, (share, _) in table.items())
            print(f"    held out, K = {k}: answerable {answered[k]:.3f}; {cells}", flush=True)
        print(f"    held-out loss: {loss:.4f} (best before {self.best:.4f})", flush=True)
        if answered[str(max(ks))] >= bar:
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
        "--minutes", type=float, default=90.0, help="training time in all, resumed parts counted in"
    )
    parser.add_argument("--begin", type=Path, help="a trained model to go on from, instead of from scratch")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(options.folder, seed=options.seed, minutes=options.minutes)
    resumed = trainer.resume()
    if options.begin is not None:
        trainer.scale = RETRAIN
        if not resumed:
            trainer.begin_from(options.begin)
    print("resumed" if resumed else f"from {options.begin or 'scratch'}", flush=True)
    trainer.run()


if __name__ == "__main__":
    main()
