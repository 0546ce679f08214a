"""Control tokens in stored text: broken before a model's template reads them, whole again in its answer.

A message may spell `<|image_pad|>` or `<|im_end|>`; as text of a user it must neither open an image slot nor end a
turn. A zero-width space after the token's first character keeps it text, on any tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from delivermem.records import Prompt

BREAK = "\u200b"
"""Zero-width space: what a reader doesn't see and a tokenizer doesn't read as part of a control token."""


def special_tokens(tokenizer: Any) -> list[str]:
    """Every string that the tokenizer would read as a control token, picture places among them, longest first."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    found = {token for token in [*tokenizer.all_special_tokens, *added] if token}
    return sorted(found, key=lambda token: (-len(token), token))


def neutralise(text: str, tokens: Sequence[str]) -> str:
    """The text with every token that it spells broken after its first character.

    A token already so broken gets one break more, hence `restore` gives back any text exactly.
    """
    return _spelled(tokens, "*").sub(lambda m: m[0][0] + BREAK + m[0][1:], text)


def restore(text: str, tokens: Sequence[str]) -> str:
    """The inverse of `neutralise`: one break less in every broken token."""
    return _spelled(tokens, "+").sub(lambda m: m[0][0] + m[0][2:], text)


def neutralised(prompt: Prompt, tokenizer: Any) -> list[dict[str, Any]]:
    """The prompt's messages for `processor.apply_chat_template`, every text in them neutralised."""
    tokens, messages = special_tokens(tokenizer), prompt.to_transformers()
    for message in messages:
        for part in message["content"]:
            if part["type"] == "text":
                part["text"] = neutralise(part["text"], tokens)
    return messages


def _spelled(tokens: Sequence[str], breaks: str) -> re.Pattern[str]:
    """A pattern of each token with `breaks` ("*" or "+") of BREAK inside; without tokens it never matches."""
    spelled = [f"{re.escape(token[0])}{BREAK}{breaks}{re.escape(token[1:])}" for token in tokens]
    return re.compile("|".join(spelled) or r"(?!)")
