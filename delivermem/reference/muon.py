"""Muon, for the matrices of the language model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


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
