"""delivermem: what of a retrieved memory reaches the model, in what form, and what each choice is worth.

    from delivermem import DELIVERMEM, Picture, Record, deliver
    prompt = deliver(records, "Where is the smaller piece?", DELIVERMEM)
    prompt.to_transformers()   # or prompt.to_openai()

Names load when first used, so that importing the package is light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delivermem.delivery import DELIVERMEM, Decisions, deliver
    from delivermem.records import Answer, Memory, Picture, Prompt, Question, Record, Verdict
    from delivermem.runs import load

__version__ = "0.1.0"

_HOME = {
    "deliver": "delivery",
    "Decisions": "delivery",
    "DELIVERMEM": "delivery",
    "Answer": "records",
    "Memory": "records",
    "Picture": "records",
    "Prompt": "records",
    "Question": "records",
    "Record": "records",
    "Verdict": "records",
    "load": "runs",
}
__all__ = [
    "DELIVERMEM",
    "Answer",
    "Decisions",
    "Memory",
    "Picture",
    "Prompt",
    "Question",
    "Record",
    "Verdict",
    "deliver",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"delivermem.{_HOME[name]}"), name)
    raise AttributeError(f"module 'delivermem' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
