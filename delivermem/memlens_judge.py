"""What MemLens's judge does: its prompts, taken at run time from the released code, one call, what precedes and follows it.

Nothing of that code is copied: the prompts are imported from a checkout at the pinned commit (`delivermem fetch
memlens-judge`). The checks before a call and the reading of a reply follow its rules, but a reply without a verdict stays
without one. Source: MemLens (arXiv 2605.14906) and its evaluation code, https://github.com/xrenaf/MEMLENS.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from delivermem import judges, pins, runs
from delivermem.benchmarks import released
from delivermem.records import Question

if TYPE_CHECKING:
    import openai

MODEL = "qwen3-235b-judge"
"""The name under which MemLens serves its judge, Qwen3-VL-235B-A22B-Instruct, by default."""
NAMES = (MODEL, "Qwen/Qwen3-VL-235B-A22B-Instruct")
"""The names of the benchmark's own judge; one of another name is labelled not canonical."""
SETTINGS: dict[str, Any] = dict(
    temperature=0.0, max_tokens=2048, extra_body={"chat_template_kwargs": {"enable_thinking": False}}
)
CLOSED: dict[str, Any] = dict(temperature=0.0, max_completion_tokens=256)
"""The released settings for a hosted, closed model."""
MOST_CHARACTERS, LAST_SHARE = 6000, 0.3
CUT = "[...truncated earlier reasoning...]\n"
"""What stands before the end of a cut answer; the judge's prompt refers to it by these words."""
MOST_WORDS = 500
"""A longer answer scores 0 without a call."""
PAUSES = (2.0, 4.0)
"""Seconds before the second and the third attempt of a call."""
TIMEOUT = 600.0
HOPELESS, PASSING = (401, 403, 404), (408, 409, 429)
"""HTTP states that no call will change, and those below 500 that another attempt may."""

_SPECIAL = re.compile(r"<\|[^>]*\|>")
_REJECTED = "[CONTENT_FILTER_REJECTED]"
_SCORES = (
    re.compile(r'"answer_score"\s*:\s*(\d+)'),
    re.compile(r"deserves\s+(\d+)\s+point", re.IGNORECASE),
    re.compile(r"\[Score\]\s*:\s*(\d+)"),
)
"""Where a reply states its score, in the order in which they are looked for."""


class JudgeError(ValueError):
    """A judge that can't be had: one sentence with what, where and the cure."""


@dataclass(frozen=True)
class Judge:
    """All of a judge that can change a verdict: the model's name at its server, the settings of a call, and the commit of
    the prompts."""

    model: str = MODEL
    settings: Mapping[str, Any] = field(default_factory=lambda: SETTINGS)
    commit: str = field(default_factory=lambda: pins.MEMLENS_CODE[1])

    @property
    def canonical(self) -> bool:
        """Whether it is the benchmark's own judge, by its name, settings and prompts."""
        own = runs.canonical(SETTINGS) == runs.canonical(self.settings)
        return self.model in NAMES and own and self.commit == pins.MEMLENS_CODE[1]

    @property
    def identity(self) -> dict[str, Any]:
        return dict(model=self.model, settings=dict(self.settings), commit=self.commit)

    def key(self, question: Question, prediction: str) -> str:
        """The name of a verdict: SHA-256 over the judge and all that its prompt is made of, so that other words of the
        prompt, which come with another commit or another question, have another key. prediction: from `prepared`."""
        made_of = dict(
            kind=question.kind,
            subtype=question.subtype,
            question=question.text,
            reference=question.answer,
            old_answer=question.old_answer,
            prediction=prediction,
        )
        return hashlib.sha256(runs.canonical(dict(judge=self.identity, case=made_of)).encode()).hexdigest()


def prepared(answer: str) -> str:
    """An answer as the judge is shown it: what follows a thought, without control tokens; of a long one the end."""
    text = answer.partition("</think>")[2] if "</think>" in answer else answer
    text = _SPECIAL.sub("", text).replace(_REJECTED, "").strip()
    if len(text) > MOST_CHARACTERS:
        text = CUT + text[int(len(text) * (1 - LAST_SHARE)) :]
    return text


def too_long(prediction: str) -> bool:
    """Whether an answer, as from `prepared`, has so many words that it scores 0 without a call."""
    return len(prediction.split()) > MOST_WORDS


def read_score(reply: str) -> int | None:
    """The score that a judge's reply states, 0 or 1 (a greater one is 1); None where it states none."""
    for pattern in _SCORES:
        if found := pattern.search(reply):
            return int(any(int(digit) for digit in found[1]))
    return None


@dataclass(frozen=True)
class Prompts:
    """The released functions that choose the criteria of a question and write the judge's prompt."""

    task_key: Callable[[str, str, str], str]
    build: Callable[..., str]

    def task(self, question: Question) -> str:
        """The name of the criteria for a question, by type, subtype and reference."""
        return self.task_key(question.kind, question.subtype, question.answer)

    def prompt(self, question: Question, prediction: str) -> str:
        """The one message of a call. prediction: from `prepared`."""
        written = self.build(
            self.task(question), question.text, question.answer, prediction, question.old_answer
        )
        if not isinstance(written, str):
            raise released.CheckoutError(
                f"the judge's prompts give {type(written).__name__} and no text; fetch memlens-judge again"
            )
        return written


def prompts(checkout: Path | None = None, commit: str | None = None) -> Prompts:
    """The prompts from a checkout of the released code (default: where `delivermem fetch memlens-judge` puts it).

    Raises released.CheckoutError, which says how to fetch it, where it is not there, at another commit or changed.
    """
    place = released.verified(checkout, commit or pins.MEMLENS_CODE[1])
    module = _imported(place.resolve() / "judge_prompts", released.git(place, "rev-parse", "HEAD"))
    try:
        return Prompts(module.get_task_key, module.build_judge_prompt)
    except AttributeError as error:
        raise released.CheckoutError(
            f"{place / 'judge_prompts'}: {error}; is this MemLens's released evaluation code?"
        ) from None


@cache
def _imported(folder: Path, commit: str) -> ModuleType:
    """The package in that folder, under a name that no other has; sys.path stays as it is and no byte code is written."""
    name = f"_memlens_judge_prompts_{commit}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None or not (folder / "__init__.py").is_file():
        raise released.CheckoutError(f"{folder}: not there; is this MemLens's released evaluation code?")
    module, before = importlib.util.module_from_spec(spec), sys.dont_write_bytecode
    sys.modules[name], sys.dont_write_bytecode = module, True
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.dont_write_bytecode = before
    return module


@dataclass(frozen=True)
class Reply:
    """What a call gave: the score read from its text, else None with the trouble, one of judges.OPEN, and its details."""

    score: int | None
    trouble: str = ""
    text: str = ""
    finish: str = ""
    seconds: float = 0.0


def client(url: str) -> openai.OpenAI:
    """A client of an OpenAI-compatible server. Its key is taken from OPENAI_API_KEY; a local server needs none."""
    if importlib.util.find_spec("openai") is None:
        raise JudgeError('the judge needs openai; install it with: pip install "delivermem[serve]"')
    if not re.match(r"https?://", url):
        raise JudgeError(
            f"the judge's address {url!r} is none; give one such as --url http://localhost:8000/v1"
        )
    import openai

    key = os.environ.get("OPENAI_API_KEY") or "none"
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=TIMEOUT)


def ask(server: openai.OpenAI, judge: Judge, message: str) -> Reply:
    """One verdict, in up to three attempts. A call that fails is a Reply with its trouble; a server that does not know the
    model, or the key, is a JudgeError, as no other call would fare better."""
    import openai

    started, said = time.monotonic(), ""
    for pause in (0.0, *PAUSES):
        time.sleep(pause)
        try:
            given = server.chat.completions.create(
                model=judge.model, messages=[{"role": "user", "content": message}], **judge.settings
            )
        except openai.APIStatusError as error:
            said = f"{error.status_code}: {error.message}"
            if error.status_code in HOPELESS:
                raise JudgeError(
                    f"{server.base_url}: the judge {judge.model!r} is refused ({' '.join(said.split())[:160]}); give the "
                    "name that the server serves with --model, and its key in OPENAI_API_KEY"
                ) from None
            if error.status_code < 500 and error.status_code not in PASSING:
                break
            continue
        except openai.APIError as error:
            said = f"{type(error).__name__}: {error.message}"
            continue
        choices = getattr(given, "choices", None)
        if not choices:
            said = "the server's reply holds no choice"
            continue
        text, finish = (choices[0].message.content or "").strip(), str(choices[0].finish_reason or "")
        score, took = read_score(text), time.monotonic() - started
        return Reply(score, "" if score is not None else judges.UNREAD, text, finish, took)
    return Reply(None, judges.FAILED, " ".join(said.split())[:300], "", time.monotonic() - started)
