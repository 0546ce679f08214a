"""Answering through an OpenAI-compatible server: vLLM, SGLang, llama.cpp, Ollama, LM Studio, `transformers serve`, a hosted API.

Requests go out concurrently, up to a bound, those that share a prefix after one another; the server keeps the weights,
the template and the processor. What it can't be trusted with is probed before the first answer (`probing`).
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from delivermem.backbones import BackboneError, final, needs
from delivermem.overlap import ahead
from delivermem.probing import Probe
from delivermem.records import Answer, Prompt, Slot
from delivermem.special_tokens import neutralise, restore
from delivermem.weightless import control_tokens, grid_named

GREEDY: dict[str, Any] = dict(
    temperature=0.0, top_p=1.0, n=1, seed=0, presence_penalty=0.0, frequency_penalty=0.0
)
"""Every field of the protocol that could bend greedy decoding. What is not stated, servers fill from the model's own
generation_config, penalties among it."""
MORE: dict[str, dict[str, Any]] = {
    "vllm": dict(top_k=-1, min_p=0.0, repetition_penalty=1.0),
    "sglang": dict(top_k=-1, min_p=0.0, repetition_penalty=1.0),
    "llamacpp": dict(top_k=0, min_p=0.0, repeat_penalty=1.0),
}
"""Fields beyond the protocol, by what a server calls itself in its list of models (`owned_by`). Others are sent none, as many
refuse what they do not know: `transformers serve` (whose repetition penalty follows frequency_penalty), hosted APIs.
Ollama's and LM Studio's penalties are those of their own settings of the model."""
STATED = ("root", "parent", "owned_by", "max_model_len", "meta")
"""What a server's list of models may say beside the id, that can change an answer."""
WINDOW = 4
"""Requests' worth, in units of those in flight, that are drawn and sorted by text together."""
AHEAD = 2
"""The same that are submitted: one in flight, one encoded and waiting."""
ENCODERS = 2
"""Threads that encode pictures."""
RETRIES = 6
"""Further tries of a request after 408, 409, 429, 5xx, a lost connection or a timeout; the client waits 0.5 s, twice as long
each time up to 8 s, with jitter, or as long as the server says."""
CONNECT, REPLY = 10.0, 600.0
"""Seconds to wait for a connection, and for a reply or the next part of one."""
BEYOND = re.compile(
    r"context.{0,3}(length|size|window)|max(imum)?.model.len|longer than the (maximum )?model|too long to fit",
    re.IGNORECASE,
)
"""How servers say that a prompt exceeds the model's context."""
LOST = "error: no connection"


class ServerBackbone:
    """A model behind an OpenAI-compatible server at `url`. Arguments as of `backbones.load`.

    name: as the server calls it; `@<commit>` behind it states the revision that you started the server with, which no server
    tells. The key is taken from OPENAI_API_KEY and goes nowhere but to the server. image_tokens: a picture beyond it is
    shrunk here, and then sent as PNG. Control tokens that a message spells are broken as the transformers engine does, by the
    tokenizer of a model that lies in a folder here, else by their common shapes (`weightless.CONTROL`).
    """

    def __init__(
        self, name: str, *, url: str, image_tokens: int | None, batch_size: int, max_new_tokens: int
    ):
        needs("serve", "openai", "engine openai")
        self.model, _, self.revision = name.partition("@")
        last = PurePosixPath(self.model).name if self.model.startswith(("/", ".")) else self.model
        self.called = last
        """The model without a path of this machine."""
        self.name = re.sub(r"[^\w.-]+", "-", last.replace("/", "--")) + "--openai"
        """Fit to name a folder, and another than that of the transformers engine: their answers must not be mixed."""
        self.url, self.batch_size, self.max_new_tokens = url.rstrip("/"), batch_size, max_new_tokens
        self.cap = image_tokens
        self._whole = grid_named(self.model)
        self.grid = self._whole
        """How the model reads pictures within the cap, where that is known; the probe drops it where the server counts
        otherwise."""
        if image_tokens is not None and self.grid is None:
            raise BackboneError(
                f"image_tokens={image_tokens}: how {name!r} counts a picture is not known here; set the limit on the server"
            )
        if self._whole is not None and image_tokens is not None:
            least, most = self._whole.least, self._whole.most
            self.grid = replace(self._whole, most=max(least, min(most, image_tokens)))
        self.control, self._probe = control_tokens(self.model), Probe(self)
        self._lock, self._flying = threading.Lock(), 0

    @cached_property
    def client(self) -> Any:
        import openai

        return openai.OpenAI(
            base_url=self.url,
            api_key=os.environ.get("OPENAI_API_KEY") or "none",
            max_retries=RETRIES,
            timeout=openai.Timeout(REPLY, connect=CONNECT),
        )

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that can change an answer and that a server tells: not its address, two of which may lead to one server.

        Asks the server for its list of models, and for its version where it has one (vLLM). What none tells stays unseen: its
        dtype, quantization, flags, and weights that change under one name; give such a server's answers another --outputs.
        """
        card = self._probe.card()
        stated = {name: card[name] for name in STATED if card.get(name) is not None}
        root = stated.get("root")
        if isinstance(root, str) and root.startswith("/"):
            stated["root"] = PurePosixPath(root).name
        return dict(
            model=self.called,
            revision=self.revision or "as served",
            backend="openai",
            served=stated | self._probe.version(),
            images="stored file or png",
            generation={**GREEDY, **self.extras, "max_tokens": self.max_new_tokens},
            **({} if self.cap is None else dict(image_tokens=self.cap)),
        )

    @property
    def extras(self) -> dict[str, Any]:
        return MORE.get(str(self._probe.card().get("owned_by")), {})

    def send(self, messages: list[dict[str, Any]], **more: Any) -> Any:
        """One request, retried; the reply as the client gives it, or an error of `openai`."""
        fields = {**GREEDY, "max_tokens": self.max_new_tokens, **more}
        return self.client.chat.completions.create(
            model=self.model, messages=messages, extra_body=self.extras or None, **fields
        )

    def answer(self, prompts: Iterable[Prompt]) -> Iterator[tuple[int, Answer]]:
        """Answer every prompt once, in the order of the replies, `batch_size` requests in flight.

        Prompts are drawn, sorted and encoded while requests are in flight. A request that fails for good is an Answer with
        status `failed` and the reason in `finish`; one that the server refuses as longer than the model's context is
        `not_applicable`. A server that is gone stops the run: BackboneError. Tokens are the server's count; of them
        those of pictures are computed where the model's grid is known, and else stand with the text's. `seconds` is a
        request's time over the requests in flight when it began.
        """
        flying: dict[Future[Answer], int] = {}
        source = ahead(self._ordered(prompts), self.batch_size)
        lost = 0
        with ThreadPoolExecutor(self.batch_size) as askers, ThreadPoolExecutor(ENCODERS) as encoders:

            def landed() -> Iterator[tuple[int, Answer]]:
                nonlocal lost
                for done in wait(flying, return_when=FIRST_COMPLETED).done:
                    answer = done.result()
                    lost = lost + 1 if answer.finish.startswith(LOST) else 0
                    yield flying.pop(done), answer
                if lost > self.batch_size:
                    raise BackboneError(
                        f"the server at {self.url} no longer answers; start it and run again to go on"
                    )

            try:
                for i, prompt in source:
                    ready = encoders.submit(self.messages, prompt)
                    flying[askers.submit(self._ask, prompt, ready)] = i
                    if len(flying) >= AHEAD * self.batch_size:
                        yield from landed()
                while flying:
                    yield from landed()
            finally:
                source.close()  # type: ignore[attr-defined]
                for waiting in flying:
                    waiting.cancel()

    def _ordered(self, prompts: Iterable[Prompt]) -> Iterator[tuple[int, Prompt]]:
        """Prompts by window, sorted by text, so that shared prefixes meet; what is new in a window is probed first."""
        numbered = enumerate(prompts)
        while window := list(islice(numbered, WINDOW * self.batch_size)):
            self._probe.look([prompt for _, prompt in window])
            window.sort(key=lambda pair: (pair[1].text, pair[0]), reverse=True)
            while window:
                yield window.pop()

    def messages(self, prompt: Prompt) -> list[dict[str, Any]]:
        """The chat as it is sent: pictures within the cap, control tokens broken."""
        tokens = self.control(prompt.text)
        found = self.fitted(prompt).to_openai()
        for message in found:
            if isinstance(message["content"], str):
                message["content"] = neutralise(message["content"], tokens)
                continue
            for part in message["content"]:
                if part["type"] == "text":
                    part["text"] = neutralise(part["text"], tokens)
        return found

    def fitted(self, prompt: Prompt) -> Prompt:
        """The prompt with every picture within the cap."""
        whole, capped = self._whole, self.grid
        if self.cap is None or whole is None or capped is None:
            return prompt

        def fit(slot: Slot) -> Slot:
            large = whole.tokens(*slot.image.size) > capped.most
            return slot.showing(capped.fit(slot.image)) if large else slot

        before = tuple(fit(slot) for slot in prompt.before)
        return replace(prompt.with_images(lambda _, slot: fit(slot).image), before=before)

    def _ask(self, prompt: Prompt, ready: Future[list[dict[str, Any]]]) -> Answer:
        """One prompt's answer; whatever fails here is kept with the answer it cost."""
        import openai

        with self._lock:
            self._flying += 1
            busy = self._flying
        try:
            messages = ready.result()
            started = time.perf_counter()
            reply = self.send(messages)
            return self._read(prompt, reply, (time.perf_counter() - started) / busy)
        except openai.APIConnectionError as error:
            slow = isinstance(error, openai.APITimeoutError)
            reason = (
                f"error: no reply within {REPLY:g} s"
                if slow
                else f"{LOST}: {self.said(error.__cause__ or error)}"
            )
            return Answer("", "failed", reason, images=len(prompt.slots))
        except openai.APIStatusError as error:
            return self._refused(prompt, error)
        except Exception as error:  # a reply that can't be read, a picture that can't be encoded
            return Answer("", "failed", f"error: {type(error).__name__}: {self.said(error)}")
        finally:
            with self._lock:
                self._flying -= 1

    def _refused(self, prompt: Prompt, error: Any) -> Answer:
        said, images = self.said(error), len(prompt.slots)
        if self.beyond(error):
            return Answer("", "not_applicable", f"not run: {said}", images=images)
        return Answer("", "failed", f"error: {said}", images=images)

    def beyond(self, error: Any) -> bool:
        """Whether a refusal says that the prompt exceeds the model's context."""
        return error.status_code in (400, 413, 422) and bool(BEYOND.search(str(error)))

    def said(self, error: Any) -> str:
        """What an error says, on one line, without the key."""
        key = os.environ.get("OPENAI_API_KEY")
        text = " ".join(f"{error}".split())[:300]
        return text.replace(key, "***") if key else text

    def _read(self, prompt: Prompt, reply: Any, seconds: float) -> Answer:
        choice = reply.choices[0]
        said, thought = choice.message.content or "", getattr(choice.message, "reasoning_content", None)
        # A server that parses thoughts gives them apart; else a model made to think begins with one.
        opened = "thinking" in self.model.lower() and not thought
        text, there = final(restore(said, self.control(prompt.text)), thinking=opened)
        grid, ended = self.grid, choice.finish_reason
        shown = sum(grid.tokens(*slot.image.size) for slot in prompt.slots) if grid else 0
        read = reply.usage.prompt_tokens if reply.usage else 0
        known = ended in ("stop", "length")
        return Answer(
            text=text if known else "",
            status="ok" if known else "failed",
            finish=("stop" if there and ended == "stop" else "length")
            if known
            else f"error: the server ended with {ended}",
            text_tokens=max(0, read - shown),
            image_tokens=shown,
            images=len(prompt.slots),
            seconds=round(seconds, 4),
        )
