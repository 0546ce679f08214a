"""Checkpoints of a training run: weights and optimizers as safetensors, all else as JSON, each replaced whole."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def save(
    path: Path,
    tensors: Mapping[str, Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    about: Mapping[str, Any],
) -> None:
    """Write `path`.safetensors, then `path`.json; either is there whole or as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = dict(tensors)
    for i, optimizer in enumerate(optimizers):
        for index, state in optimizer.state_dict()["state"].items():
            kept |= {f"optim.{i}.{index}.{name}": torch.as_tensor(value) for name, value in state.items()}
    part = path.with_suffix(".part")
    save_file({name: tensor.detach().clone().contiguous() for name, tensor in kept.items()}, part)
    part.replace(path.with_suffix(".safetensors"))
    part.write_text(json.dumps(dict(about)))
    part.replace(path.with_suffix(".json"))


def load(
    path: Path, optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The tensors and the rest of a checkpoint, its optimizers set to what they were; None where there is none."""
    if not path.with_suffix(".json").exists():
        return None
    tensors = load_file(path.with_suffix(".safetensors"))
    for i, optimizer in enumerate(optimizers):
        state: dict[int, dict[str, Tensor]] = defaultdict(dict)
        for name in [name for name in tensors if name.startswith(f"optim.{i}.")]:
            _, _, index, field = name.split(".", 3)
            state[int(index)][field] = tensors.pop(name)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": dict(state)})
    return tensors, json.loads(path.with_suffix(".json").read_text())
