"""The model's forward pass of training: the unchanged network, exact short cuts, and losses on what is in between.

Many questions share one context, all images have one grid, and the hints are read off the attention's own queries
and keys. Nothing here is needed to answer: `generate` of the stored model does that.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen

from delivermem.benchmarks import scenes, shop, world
from delivermem.reference import build
from delivermem.reference.packing import GATHERED_BY, Hint, Packer

HINTED_LAYERS = (1, 2, 3, 4)


class Network:
    """A fresh model with its processor, its packer, and the words that tokens are scored against."""

    def __init__(self, *, seed: int):
        self.processor = build.processor()
        self.net = build.model(self.processor, seed=seed).train()
        self.packer = Packer(self.processor.tokenizer)
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
            **{f"code {i}": torch.tensor(ids(list(letters))) for i, letters in enumerate(shop.CODES)},
            "tag": self.words["tag"],
            "day": torch.tensor(ids([f"/{day:02d}" for day in range(1, 32)])),
        }
        self.nothing = torch.nn.Parameter(torch.zeros(4))
        self._hidden: dict[int, Tensor] = {}
        for layer in HINTED_LAYERS:
            attention = self.net.model.language_model.layers[layer].self_attn
            attention.register_forward_pre_hook(self._keep(layer), with_kwargs=True)

    def _keep(self, layer: int) -> Any:
        def hook(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
            self._hidden[layer] = kwargs["hidden_states"]
            self._rotary = kwargs["position_embeddings"]

        return hook

    # -- vision: the tower of the model, over images that all have one size -------------------------------

    @cache  # noqa: B019
    def _grid(self, side: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """Where an image of side x side patches takes its position embeddings, with what weight, and its rotation."""
        grid = torch.tensor([[1, side, side]])
        at, by = qwen.get_vision_interpolation_indices_and_weights(
            grid,
            num_grid_per_side=build.GRID,
            mode="bilinear",
            align_corners=True,
            spatial_merge_size=2,
            kwargs={},
        )
        places = qwen.get_vision_position_ids(
            grid, self.net.config.vision_config.spatial_merge_size, kwargs={}
        )
        return at, by, self.net.model.visual.rotary_pos_emb(torch.zeros(1), places)

    def see(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """images (n, side, side, 3) uint8 -> image tokens (n * (side / 32)^2, width) and the deepstack features."""
        tower, n, side = self.net.model.visual, len(images), images.shape[1] // build.PATCH
        at, by, turn = self._grid(side)
        x = images.permute(0, 3, 1, 2).float() / 127.5 - 1
        x = x.reshape(n, 3, side // 2, 2, build.PATCH, side // 2, 2, build.PATCH)
        x = x.permute(0, 2, 5, 3, 6, 1, 4, 7)
        weight = tower.patch_embed.proj.weight.sum(2).flatten(1)
        x = F.linear(x.reshape(n, side**2, -1), weight, tower.patch_embed.proj.bias)
        x = x + (tower.pos_embed(at) * by[:, :, None]).sum(1)
        cos, sin = (part[None, :, None] for part in turn)
        deep: list[Tensor] = []
        for i, block in enumerate(tower.blocks):
            a = block.attn
            q, k, v = a.qkv(block.norm1(x)).reshape(n, side**2, 3, a.num_heads, -1).unbind(2)
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
        groups: dict[tuple[int, int], list[tuple[int, Hint]]] = defaultdict(list)
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
        hidden, table = self._hidden[GATHERED_BY], self.net.model.language_model.embed_tokens.weight
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
