"""What is known of a model without its weights or its library: its picture grid, its control tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from types import SimpleNamespace

from delivermem.backbones import BackboneError, locate
from delivermem.sizing import Grid, grid_of
from delivermem.special_tokens import BREAK

GRIDS: dict[str, Grid] = {
    r"qwen-?3-?vl": Grid(32, 65536 // 32**2, 16777216 // 32**2),
    r"qwen-?2(\.5)?-?vl": Grid(28, 3136 // 28**2, 12845056 // 28**2),
}
"""Patterns of names, and how their published image processors read pictures: the least and the most pixels."""
CONTROL = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|</?s>|<(?:bos|eos|pad|image|video|img|IMG_CONTEXT|start_of_turn|end_of_turn|start_of_image)>"
    r"|\[/?INST\]|\[IMG\]"
)
"""Shapes of control tokens among the open families of models: Qwen and Llama 3 (`<|...|>`), Gemma, InternVL, Mistral, LLaVA."""


def grid_named(model: str) -> Grid | None:
    """The picture grid of a model by its folder here, else by its name; None where neither is known."""
    try:
        folder = locate(model)[2]
    except BackboneError:
        folder = None
    if folder is not None:
        for name in ("processor_config.json", "preprocessor_config.json"):
            if (folder / name).is_file():
                stated = json.loads((folder / name).read_text())
                stated = stated.get("image_processor", stated)
                return grid_of(
                    SimpleNamespace(**stated | {"size": SimpleNamespace(**stated.get("size", {}))})
                )
    return next((grid for pattern, grid in GRIDS.items() if re.search(pattern, model, re.IGNORECASE)), None)


def control_tokens(model: str) -> Callable[[str], list[str]]:
    """Finds the control tokens that a text could spell: all of the tokenizer of a folder here, longest first, else those
    in the text that have the shape of one (CONTROL)."""
    try:
        folder = locate(model)[2]
    except BackboneError:
        folder = None
    if folder is not None and (folder / "tokenizer.json").is_file():
        added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
        known = sorted({t["content"] for t in added if t["special"]}, key=lambda t: (-len(t), t))
        return lambda _: known
    return lambda text: sorted(set(CONTROL.findall(text.replace(BREAK, ""))), key=lambda t: (-len(t), t))
