"""Encoders through transformers' own classes: pictures and queries into one space by SigLIP, texts by a sentence encoder.

The sentence-transformers library is not needed: what its models do here is a mean over tokens, and its releases would have
to follow those of transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from delivermem import runs
from delivermem.backbones import BackboneError, device_of, identity, locate
from delivermem.local import out_of_memory

if TYPE_CHECKING:
    from PIL.Image import Image

BATCH = 64
SIGLIP = ("siglip", "siglip2")
"""Values of `model_type`: SigLIP and SigLIP2 at a fixed size are both `siglip`, SigLIP2 at any shape (NaFlex) is `siglip2`."""
POOLED = {"Transformer", "Pooling", "Normalize"}
"""The modules of a sentence encoder that is a mean over tokens and nothing more."""
T = TypeVar("T")


class _Encoder:
    """A model in a folder of `data/models`, by name, in any other folder, or `owner/name@revision` of a hub, whose revision
    need not be said where `pins` knows it.

    device: as torch names it; by default a GPU where there is one, in half precision; a CPU computes in float32. `identity`
    is all that can change a vector. Nothing is loaded or fetched before the first vector is asked for. Raises
    backbones.BackboneError, a ValueError, for what is unknown, not pinned or of another kind.
    """

    what: ClassVar[str]

    def __init__(self, name: str, *, device: str | None = None):
        if not name:
            raise BackboneError(f"no {self.what} is named; give a folder or owner/name@revision of a hub")
        embedded = runs.data_dir() / "models" / name
        asked = str(embedded) if (embedded / "config.json").is_file() else name
        try:
            self._source, self._revision, self.folder = locate(asked)
            about = identity(asked, device=device)
        except BackboneError as error:
            raise BackboneError(str(error).replace("backbone", self.what, 1)) from None
        self.device, self.dtype = device_of(device), str(about["dtype"])
        self.name = self.folder.name if self.folder is not None else self._source
        self.revision = str(about["revision"])
        exact = "" if self.dtype == "float32" else f" in {self.dtype}"
        self.identity = f"{self.name}@{self.revision}{exact}"
        if self.folder is not None:
            self._refuse_other(json.loads((self.folder / "config.json").read_text()))

    @property
    def _at(self) -> dict[str, Any]:
        return dict(revision=self._revision) if self._revision else {}

    def _refuse_other(self, config: dict[str, Any]) -> None:
        """BackboneError where the model is of another kind than this encoder."""
        raise NotImplementedError

    def _model(self) -> Any:
        """The model, in evaluation mode, where it runs. Its kind is looked at before its weights are fetched."""
        import transformers

        self._refuse_other(transformers.AutoConfig.from_pretrained(self._source, **self._at).to_dict())
        model = transformers.AutoModel.from_pretrained(
            self._source, **self._at, dtype=self.dtype, use_safetensors=True
        )
        return model.to(self.device).eval()

    def _batched(self, items: Sequence[T], encode: Callable[[Sequence[T]], Any]) -> np.ndarray:
        """(n, d), float32, of unit length; out of memory, batches are halved."""
        import torch

        parts: list[np.ndarray] = []
        at, size = 0, BATCH
        while at < len(items):
            part = items[at : at + size]
            try:
                with torch.inference_mode():
                    vectors = encode(part).float()
                    parts.append((vectors / vectors.norm(dim=-1, keepdim=True)).cpu().numpy())
            except Exception as error:
                if len(part) == 1 or not out_of_memory(error):
                    raise
                size = len(part) // 2
                torch.cuda.empty_cache()
                continue
            at += len(part)
        found = np.concatenate(parts) if parts else np.zeros((0, 1), np.float32)
        if not np.isfinite(found).all():
            raise BackboneError(
                f"{self.what} {self.identity}: a vector is not made of numbers; take another dtype or model"
            )
        return found


class Siglip(_Encoder):
    """A SigLIP or SigLIP2 model: pictures and texts -> vectors of unit length, float32."""

    what = "encoder"

    def __init__(self, name: str = "tiny-siglip", *, device: str | None = None):
        super().__init__(name, device=device)

    def _refuse_other(self, config: dict[str, Any]) -> None:
        kind = config.get("model_type")
        if kind not in SIGLIP:
            raise BackboneError(
                f"encoder {self.name!r}: a model of type {kind!r}, which is no SigLIP; pictures need one, "
                "such as google/siglip2-base-patch16-384"
            )

    @cached_property
    def _loaded(self) -> tuple[Any, Any, Any]:
        """(image processor, which resizes by Pillow; tokenizer; model)."""
        import transformers

        from delivermem.loading import plainly

        with plainly():
            images = transformers.AutoImageProcessor.from_pretrained(self._source, backend="pil", **self._at)
            tokenizer = transformers.AutoTokenizer.from_pretrained(self._source, **self._at)
            return images, tokenizer, self._model()

    def images(self, images: Sequence[Image]) -> np.ndarray:
        """(n, d): one vector a picture, whatever its size."""
        processor, _, model = self._loaded

        def encode(part: Sequence[Image]) -> Any:
            fields = processor(images=list(part), return_tensors="pt").to(self.device)
            fields["pixel_values"] = fields["pixel_values"].to(model.dtype)
            return _pooled(model.get_image_features(**fields))

        return self._batched(images, encode)

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """(n, d): one vector a text; longer ones are cut at the model's length.

        As the models were trained: padded on the right to the full length, padding attended to, the last place pooled. SigLIP2
        reads lower case alone (arXiv 2502.14786, section 2), which its tokenizer, Gemma's, does not see to.
        """
        import transformers

        _, tokenizer, model = self._loaded
        lower = isinstance(tokenizer, transformers.GemmaTokenizer)
        length = model.config.text_config.max_position_embeddings

        def encode(part: Sequence[str]) -> Any:
            ids = tokenizer(
                [text.lower() if lower else text for text in part],
                padding="max_length",
                padding_side="right",
                max_length=length,
                truncation=True,
                return_tensors="pt",
            )["input_ids"]
            return _pooled(model.get_text_features(input_ids=ids.to(self.device)))

        return self._batched(texts, encode)


class Sentences(_Encoder):
    """A sentence encoder in the layout of sentence-transformers whose vectors are the mean over a text's tokens, such as
    sentence-transformers/all-MiniLM-L6-v2: texts -> vectors of unit length, float32."""

    what = "text encoder"

    def __init__(self, name: str, *, device: str | None = None):
        super().__init__(name, device=device)
        if self.folder is not None:  # a commit of a hub covers these settings, the hash of a folder doesn't
            most, lower = self._limits()
            self.identity += f" of {most or 'any'} tokens" + (" in lower case" if lower else "")

    def _refuse_other(self, config: dict[str, Any]) -> None:
        if "vision_config" in config:
            raise BackboneError(
                f"text encoder {self.name!r}: a model of pictures ({config.get('model_type')}); name one of texts, "
                "such as sentence-transformers/all-MiniLM-L6-v2"
            )

    def _limits(self) -> tuple[int | None, bool]:
        """(most tokens of a text, whether it is read in lower case), out of the files that say so. BackboneError where they
        are missing, or say that a vector is more than a mean over tokens."""
        modules = self._said("modules.json")
        pooling = self._said("1_Pooling/config.json")
        others = sorted({str(module["type"]).rsplit(".", 1)[-1] for module in modules} - POOLED)
        ways = {name for name, on in pooling.items() if name.startswith("pooling_mode") and on is True}
        ways |= {str(pooling["pooling_mode"])} if "pooling_mode" in pooling else set()
        if others or not ways <= {"pooling_mode_mean_tokens", "mean"} or not ways:
            found = ", ".join([*others, *sorted(ways)]) or "no pooling"
            raise BackboneError(
                f"text encoder {self.name!r}: its vectors are no plain mean over tokens ({found}); take one whose are, "
                "such as sentence-transformers/all-MiniLM-L6-v2"
            )
        limits = self._said("sentence_bert_config.json")
        most = limits.get("max_seq_length")
        return (None if most is None else int(most)), bool(limits.get("do_lower_case"))

    def _said(self, file: str) -> Any:
        """A JSON file of the model."""
        path: Any = self.folder / file if self.folder is not None else None
        try:
            if path is None:
                from transformers.utils import cached_file

                path = cached_file(self._source, file, **self._at)
            return json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise BackboneError(
                f"text encoder {self.name!r}: {file} can't be read ({' '.join(str(error).split())[:160]}); "
                "take a model in the layout of sentence-transformers"
            ) from None

    @cached_property
    def _loaded(self) -> tuple[Any, Any, int, bool]:
        """(tokenizer, model, most tokens, whether in lower case)."""
        import transformers

        from delivermem.loading import plainly

        most, lower = self._limits()
        with plainly():
            tokenizer = transformers.AutoTokenizer.from_pretrained(self._source, **self._at)
            model = self._model()
        reach = int(getattr(model.config, "max_position_embeddings", tokenizer.model_max_length))
        return tokenizer, model, min(n for n in (most, reach, tokenizer.model_max_length) if n), lower

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """(n, d): one vector a text, the mean of its tokens' (Reimers & Gurevych 2019); longer ones are cut."""
        tokenizer, model, most, lower = self._loaded

        def encode(part: Sequence[str]) -> Any:
            given = [text.lower() if lower else text for text in part]
            fields = tokenizer(
                given,
                padding=True,
                padding_side="right",
                truncation=True,
                max_length=most,
                return_tensors="pt",
            )
            fields = fields.to(self.device)
            states = model(**fields).last_hidden_state.float()
            mask = fields["attention_mask"].unsqueeze(-1).to(states.dtype)
            return (states * mask).sum(1) / mask.sum(1)

        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # little padding in a batch
        vectors = self._batched([texts[i] for i in order], encode)
        return vectors[np.argsort(order)] if len(texts) else vectors


def _pooled(features: Any) -> Any:
    return getattr(features, "pooler_output", features)
