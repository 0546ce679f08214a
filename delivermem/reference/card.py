"""Measure a trained reference model on fresh scenes and write its folder: weights, processor, card.

`python -m delivermem.reference.card CHECKPOINTS data/models/tiny-qwen3-vl`; for a training that began from a trained model,
with `--begun NAME` of that model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from delivermem.benchmarks import scenes
from delivermem.reference.train import SHARES, SHOP_K, STAGES, WARM_UP, Trainer, answerable

FRESH_SEED = 777_000
"""Seed of the scenes behind the card's table; no decision about the model looked at them."""
ARMS: dict[str, dict[str, Any]] = {
    "full": dict(tags="rank"),
    "tags shuffled": dict(tags="shuffled"),
    "tag constant": dict(tags="constant"),
    "no tags": dict(tags="none"),
    "no dates": dict(times=False),
    "no pixels": dict(modality="text"),
}
KS = (1, 2, 5, 8, 10)
SHOP_ARMS = ("full", "tags shuffled", "tag constant", "no tags", "no pixels")
WHOLE = {"4 sessions": 4, "whole conversations": 10}
"""Sessions of the conversations that are read whole."""

Table = dict[str, dict[str, tuple[float, int]]]


def measure(trainer: Trainer, *, contexts: int = 96) -> Table:
    """Exact-match accuracy by arm and sort of question, against what full delivery supports; (share, n) cells."""
    table = {}
    for k in KS:
        for name, arm in ARMS.items():
            if name == "full" or k in (5, 10):
                found = trainer.evaluate(k, seed=FRESH_SEED + k, contexts=contexts, expect_full=True, **arm)
                table[f"K = {k}, {name}"] = found
    for place, count in (
        ("shop", contexts),
        ("errand", 4 * contexts),
    ):  # an errand's step asks one thing, a visit many
        for name in SHOP_ARMS:
            found = trainer.evaluate(
                SHOP_K, seed=FRESH_SEED, contexts=count, place=place, expect_full=True, **ARMS[name]
            )
            table[f"{place}, K = {SHOP_K}, {name}"] = found
    for name, sessions in WHOLE.items():
        table[name] = trainer.evaluate(
            0, seed=FRESH_SEED, contexts=contexts, place="whole", sessions=sessions
        )
    return table


def export(
    trainer: Trainer, folder: Path, table: Table, history: Sequence[dict[str, Any]], begun: str = ""
) -> None:
    """Write the model in the layout that `from_pretrained` reads, with `evaluation.json` and the card. begun: the model
    that its training began from, if any."""
    folder.mkdir(parents=True, exist_ok=True)
    trainer.net.eval().save_pretrained(folder)
    trainer.processor.save_pretrained(folder)
    (folder / "evaluation.json").write_text(
        json.dumps(dict(accuracy=table, history=list(history)), indent=1) + "\n"
    )
    (folder / "README.md").write_text(_card(trainer, table, folder.name, begun))


def _card(trainer: Trainer, table: Table, model: str, begun: str) -> str:
    count = sum(p.numel() for p in trainer.net.parameters())
    sorts = [*sorted({name for row in table.values() for name in row} - {"refusal"}), "refusal"]
    lines = ["| delivered | answerable | " + " | ".join(sorts) + " |", "|---|" + "---|" * (len(sorts) + 1)]
    for arm, row in table.items():
        cells = [f"{row[name][0]:.2f}" if name in row else "" for name in sorts]
        lines.append(f"| {arm} | {answerable(row):.2f} | " + " | ".join(cells) + " |")
    ks = "; ".join(", ".join(map(str, stage)) for stage, _ in STAGES)
    n = min(sum(cell[1] for cell in row.values()) for row in table.values())
    origin = f"trained further from `{begun}`" if begun else "trained from scratch"
    steps, stages = trainer.step, f"stages of K (delivered messages):\n  {ks}"
    if begun:
        steps, stages = (
            steps - WARM_UP,
            f"the last stage of K (delivered messages) alone:\n  {ks.split('; ')[-1]}",
        )
    return f"""# {model}

An instrument, not a result: a {count / 1e6:.1f} million parameter model of the real `Qwen3VLForConditionalGeneration`
class, {origin} so that every notebook of this repository runs anywhere, on a CPU, through the path that
the 8B model takes (processor, chat template, image tokens, `generate`). Nothing it gives is a result of the paper.

- **Data**: procedural photographs ({len(scenes.OBJECTS)} pictograms in {len(scenes.COLOURS)} colours) in dated
  conversations, delivered by `deliver` under varying decisions; no scene or frame of the embedded benchmarks, and none of
  {len(scenes.HELD_OUT)} pairs of colour and object that the benchmarks show, occurs in training. In the last stage
  {100 * SHARES["shop"]:.0f} % of the batches ask about visits to the shop, frames with a small cue, in DMV-Bench's layout, and
  {100 * SHARES["errand"]:.0f} % are an agent's steps there; {100 * SHARES["whole"]:.0f} % are conversations read whole.
- **Training**: {steps:,} steps in {trainer.spent:.0f} minutes, seed {trainer.seed}, float32; {stages}. Beside the answers, training used hints: what an image token shows, which
  earlier tokens a token should attend to, and which words it should then hold. Code: `delivermem/reference/`; weights are stored in bfloat16.
- **Use**: `delivermem.backbones.load("{model}").answer([prompt])`; by hand, the folder loads with
  `transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype="float32")` and its processor with
  `delivermem.processors.StillQwen3VLProcessor.from_pretrained(folder)` (`AutoProcessor` looks for a video branch).

## Accuracy on fresh scenes

Exact match against what full delivery supports, so that a row shows what withholding costs (refusals: against
refusing). At least {n} questions a row; scenes and questions drawn after every choice had been made.

{chr(10).join(lines)}
"""


def main(arguments: Sequence[str] | None = None) -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--contexts", type=int, default=96)
    parser.add_argument("--begun", default="", help="name of the model that this training began from")
    options = parser.parse_args(arguments)
    trainer = Trainer(options.checkpoints, seed=0, minutes=0.0)
    if not trainer.resume("best"):
        raise SystemExit(f"{options.checkpoints}: no best.safetensors; train first")
    trainer.net.to(torch.bfloat16).to(torch.float32)  # what is stored is what is measured
    history = [json.loads(line) for line in (options.checkpoints / "log.jsonl").read_text().splitlines()]
    table = measure(trainer, contexts=options.contexts)
    trainer.net.to(torch.bfloat16)
    export(trainer, options.folder, table, history, options.begun)


if __name__ == "__main__":
    main()
