"""Processors of the Qwen-VL family without their video branch, so that torchvision is never needed."""

from __future__ import annotations

from typing import Any

from transformers import Qwen2_5_VLProcessor, Qwen2VLProcessor, Qwen3VLProcessor


class StillQwen3VLProcessor(Qwen3VLProcessor):
    """`Qwen3VLProcessor` for still images: loads any Qwen3-VL folder and saves one that stays loadable."""

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **kwargs: Any
    ):
        super().__init__(image_processor, tokenizer, None, chat_template=chat_template)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "processor_class": "Qwen3VLProcessor"}


class StillQwen2_5VLProcessor(Qwen2_5_VLProcessor):
    """The same of Qwen2.5-VL."""

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **kwargs: Any
    ):
        super().__init__(image_processor, tokenizer, None, chat_template=chat_template)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "processor_class": "Qwen2_5_VLProcessor"}


class StillQwen2VLProcessor(Qwen2VLProcessor):
    """The same of Qwen2-VL."""

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **kwargs: Any
    ):
        super().__init__(image_processor, tokenizer, None, chat_template=chat_template)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "processor_class": "Qwen2VLProcessor"}


STILL: dict[str, Any] = {
    "qwen3_vl": StillQwen3VLProcessor,
    "qwen3_vl_moe": StillQwen3VLProcessor,
    "qwen2_5_vl": StillQwen2_5VLProcessor,
    "qwen2_vl": StillQwen2VLProcessor,
}
"""By a model's `model_type`."""
