"""Encoders of pictures and queries into one space, through transformers' own SigLIP classes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

BATCH = 64


class Siglip:
    """A SigLIP model in a folder of `data/models`, by name: pictures and texts -> vectors of unit length, float32."""

    def __init__(self, name: str = "tiny-siglip"):
        from delivermem.backbones import BackboneError, identity
        from delivermem.runs import data_dir

        self.folder = data_dir() / "models" / name
        if not (self.folder / "model.safetensors").is_file():
            raise BackboneError(
                f"encoder {name!r}: {self.folder} holds no model; name a folder of data/models"
            )
        self.revision = str(identity(str(self.folder))["revision"])
        self.name = name
        self.identity = f"{name}@{self.revision}"

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        """(processor, model in evaluation mode), images resized by Pillow."""
        import transformers

        from delivermem.loading import plainly

        with plainly():
            processor = transformers.AutoProcessor.from_pretrained(self.folder)
            processor.image_processor = transformers.AutoImageProcessor.from_pretrained(
                self.folder, backend="pil"
            )
            model = transformers.AutoModel.from_pretrained(self.folder, dtype="float32").eval()
        return processor, model

    def images(self, images: Sequence[Image]) -> np.ndarray:
        """(n, d): one vector a picture, whatever its size."""
        processor, model = self._loaded
        return _batched(images, lambda part: _images(processor, model, part))

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """(n, d): one vector a text; longer ones are cut at the model's length."""
        processor, model = self._loaded
        return _batched(texts, lambda part: _texts(processor, model, part))


def _batched(items: Sequence[Any], encode: Any) -> np.ndarray:
    import torch

    with torch.inference_mode():
        parts = [encode(items[i : i + BATCH]) for i in range(0, len(items), BATCH)]
    return np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)


def _images(processor: Any, model: Any, images: Sequence[Image]) -> np.ndarray:
    pixels = processor.image_processor(images=list(images), return_tensors="pt")["pixel_values"]
    return _unit(model.get_image_features(pixel_values=pixels))


def _texts(processor: Any, model: Any, texts: Sequence[str]) -> np.ndarray:
    length = model.config.text_config.max_position_embeddings
    ids = processor.tokenizer(
        list(texts), padding="max_length", max_length=length, truncation=True, return_tensors="pt"
    )["input_ids"]
    return _unit(model.get_text_features(input_ids=ids))


def _unit(features: Any) -> np.ndarray:
    vectors = getattr(features, "pooler_output", features)
    return np.asarray((vectors / vectors.norm(dim=-1, keepdim=True)).float().numpy(), np.float32)
