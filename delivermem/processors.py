"""The Qwen3-VL processor without its video branch, so that torchvision is never needed."""

from __future__ import annotations

from typing import Any

from transformers import Qwen3VLProcessor


class StillQwen3VLProcessor(Qwen3VLProcessor):
    """`Qwen3VLProcessor` for still images: loads any Qwen3-VL folder and saves one that stays loadable."""

    def __init__(
        self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **kwargs: Any
    ):
        super().__init__(image_processor, tokenizer, None, chat_template=chat_template)

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "processor_class": "Qwen3VLProcessor"}
