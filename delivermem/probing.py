"""What a server is asked before its answers count: does it serve the model, keep pictures in place, see them, cut nothing off?

Each check compares requests that must be alike if the fault is there, and so holds for any model, whatever it can name or
read: by the server's own count of tokens, else by the replies and, where the server gives them, their log-probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from delivermem.backbones import BackboneError
from delivermem.local import _length
from delivermem.records import Prompt, Slot
from delivermem.special_tokens import neutralise

if TYPE_CHECKING:
    from PIL.Image import Image

    from delivermem.server import ServerBackbone

Block = str | Slot
CUT = ("The recal", "led pict", "ure of a mem", "ory")
"""Texts that are other tokens apart than together: pieces of words, between which pictures stand."""
QUESTION = "What does this picture show?"
SIDE = 256
"""Pixels of a side of the probe's own pictures."""
TELLING = 0.05
"""Difference of a log-probability, in nats, that no change of batch makes but another input does."""
PAIRS = 8
"""Prompts of the run's own that are tried where the probe's own do not tell two inputs apart."""
SEAM = 8
"""Tokens by which a prompt may differ from the sum of its halves."""
LONGER = 1.1
"""A prompt so many times as long as any before is probed for limits."""


@dataclass(frozen=True)
class Heard:
    """A reply: the server's count of the prompt's tokens, where it gives one, what it said, and how surely."""

    tokens: int | None
    text: str
    surely: tuple[float, ...] = ()

    def apart(self, other: Heard) -> float:
        """Largest difference of the two replies' log-probabilities; 0 where there are none."""
        return max((abs(a - b) for a, b in zip(self.surely, other.surely, strict=False)), default=0.0)


class Probe:
    """The checks of one server, each made once, when a prompt first needs it.

    They can be wrong: a model that answers everything alike, on a server without log-probabilities, may be taken for one that
    does not see; a fault that shows with some pictures only stays hidden; a count of tokens is believed.
    """

    def __init__(self, server: ServerBackbone):
        self.server = server
        self._shown = False
        self._most, self._longest = 0, 0.0
        self._surely, self._counts, self._noise, self._steady = True, True, 0.0, True

    # -- the server and its model ---------------------------------------------------------------------------------

    def card(self) -> dict[str, Any]:
        """What the server's list says of the model. BackboneError where it can't be reached or has no such model."""
        return self._card

    @cached_property
    def _card(self) -> dict[str, Any]:
        import openai

        at = self.server.url
        try:
            cards = {card.id: card for card in self.server.client.with_options(max_retries=1).models.list()}
        except (openai.AuthenticationError, openai.PermissionDeniedError):
            raise BackboneError(f"the server at {at} refuses the key; set OPENAI_API_KEY") from None
        except openai.APIConnectionError:
            raise BackboneError(f"no server answers at {at}; start it, or correct --url") from None
        except (openai.APIStatusError, ValueError) as error:
            raise BackboneError(
                f"the server at {at} lists no models ({self.server.said(error)}); give --url up to its /v1"
            ) from None
        if self.server.model not in cards:
            known = ", ".join(sorted(cards)[:8]) or "none"
            raise BackboneError(f"the server at {at} does not serve {self.server.model!r}; it lists: {known}")
        found: dict[str, Any] = cards[self.server.model].model_dump()
        return found

    def version(self) -> dict[str, str]:
        """The version of a vLLM server, which tells it beside its protocol; {} for others."""
        import openai

        if self.card().get("owned_by") != "vllm":
            return {}
        try:
            said = self.server.client.get(self.server.url.removesuffix("/v1") + "/version", cast_to=object)
        except openai.APIStatusError:
            return {}
        return {"version": str(said["version"])}

    # -- before prompts are sent ----------------------------------------------------------------------------------

    def look(self, prompts: Sequence[Prompt]) -> None:
        """Make the checks that these prompts need and that were not made yet. BackboneError names what is wrong.

        Up to seven small requests for the first prompts with pictures, up to sixteen more where the model does not tell the probe's
        pictures apart; four of the size of the longest prompt, or of its halves, whenever a longer one comes.
        """
        if not prompts:
            return
        self.card()
        if not self._shown and any(prompt.slots for prompt in prompts):
            shown = [prompt for prompt in prompts if prompt.slots][:PAIRS]
            self._pictures([self.server.fitted(prompt) for prompt in shown])
            self._shown = True
        longest = max(prompts, key=_length)
        most = max(prompts, key=lambda prompt: len(prompt.slots))
        if len(most.slots) > self._most or _length(longest) > LONGER * self._longest:
            for prompt in {id(prompt): prompt for prompt in (longest, most)}.values():
                self._limits(self.server.fitted(prompt))
            self._most, self._longest = max(self._most, len(most.slots)), max(self._longest, _length(longest))

    def ask(self, blocks: Sequence[Block], *, system: str = "", max_tokens: int = 16) -> Heard:
        """One request of one message of the user. BackboneError where the server refuses it."""
        import openai

        user = [
            {"type": "text", "text": neutralise(block, self.server.control(block))}
            if isinstance(block, str)
            else {"type": "image_url", "image_url": {"url": block.data_url}}
            for block in blocks
        ]
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": user})  # type: ignore[dict-item]
        more = dict(logprobs=True) if self._surely else {}
        try:
            reply = self.server.send(messages, max_tokens=max_tokens, **more)
        except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
            if self._surely and "logprob" in str(error).lower():
                self._surely = False
                return self.ask(blocks, system=system, max_tokens=max_tokens)
            raise
        except openai.APIConnectionError:
            raise BackboneError(f"the server at {self.server.url} does not reply; see its log") from None
        choice = reply.choices[0]
        given = getattr(choice.logprobs, "content", None) or ()
        counted = reply.usage.prompt_tokens if reply.usage else None
        return Heard(counted or None, choice.message.content or "", tuple(part.logprob for part in given))

    # -- pictures in place, and seen ------------------------------------------------------------------------------

    def _pictures(self, prompts: Sequence[Prompt]) -> None:
        import openai

        try:
            self._order(prompts)
            self._seen(prompts)
            self._grid(prompts)
        except openai.APIStatusError as error:
            raise BackboneError(
                f"the server at {self.server.url} refused a prompt with pictures: {self.server.said(error)}"
            ) from None

    def _order(self, prompts: Sequence[Prompt]) -> None:
        """A prompt of pictures between texts, against the same with all pictures first: to a server that moves pictures,
        wherever to, the two are one input, of as many tokens and with the same reply."""
        first, second = (Slot("", "", image) for image in test_pictures())
        mixed: list[Block] = [CUT[0], first, CUT[1], second, *CUT[2:]]
        base, again = self.ask(mixed), self.ask(mixed)
        self._counts = base.tokens is not None and base.tokens == again.tokens
        self._noise, self._steady = base.apart(again), base.text == again.text
        if not any(self._differ(one, other) for one, other in self._pairs(mixed, base, prompts)):
            raise BackboneError(
                f"the server at {self.server.url} seems to move pictures out of their places in the text; keep them there "
                "(vLLM: --chat-template-content-format openai)"
            )

    def _pairs(
        self, mixed: Sequence[Block], base: Heard, prompts: Sequence[Prompt]
    ) -> Iterator[tuple[Heard, Heard]]:
        """Replies to prompts as they are and with their pictures first: the probe's own, then some of the run's."""
        yield base, self.ask(pictures_first(mixed))
        for prompt in prompts:
            blocks = prompt.parts
            if pictures_first(blocks) != blocks:
                yield self._both(prompt, blocks, pictures_first(blocks))

    def _both(self, prompt: Prompt, one: Sequence[Block], other: Sequence[Block]) -> tuple[Heard, Heard]:
        most = self.server.max_new_tokens
        return tuple(self.ask(blocks, system=prompt.system, max_tokens=most) for blocks in (one, other))  # type: ignore[return-value]

    def _differ(self, one: Heard, other: Heard) -> bool:
        """Whether two replies come of two inputs: by their counts of tokens, log-probabilities, or words, as far as these
        are the same for the same input."""
        if self._counts and one.tokens != other.tokens:
            return True
        if one.surely and other.surely:
            return one.apart(other) > max(TELLING, 3 * self._noise)
        return self._steady and one.text != other.text

    def _seen(self, prompts: Sequence[Prompt]) -> None:
        """Two pictures that have nothing in common must not give one reply of one probability."""
        first, second = (self.ask([Slot("", "", image), QUESTION]) for image in test_pictures())
        if self._differ(first, second):
            return
        for prompt in prompts:
            turned = prompt.with_images(lambda _, slot: inverted(slot.image))
            if self._differ(*self._both(prompt, prompt.parts, turned.parts)):
                return
        raise BackboneError(
            f"the server at {self.server.url} gives one answer to different pictures; see that {self.server.model!r} is "
            "served with its vision part and that no cache in between ignores pictures"
        )

    def _grid(self, prompts: Sequence[Prompt]) -> None:
        """Whether the server counts a picture as the model's grid does, its two marks beside; else no grid is assumed."""
        if self.server.grid is None:
            return
        slot = max((s for p in prompts for s in p.slots), key=lambda s: s.image.width * s.image.height)
        bare, shown = self.ask([QUESTION], max_tokens=1), self.ask([slot, QUESTION], max_tokens=1)
        expected = self.server.grid.tokens(*slot.image.size)
        if not self._counts or bare.tokens is None or shown.tokens is None:
            return
        if shown.tokens - bare.tokens - expected not in range(3):
            if self.server.cap is not None:
                raise BackboneError(
                    f"the server at {self.server.url} takes {shown.tokens - bare.tokens} tokens for a picture of {slot.image.width} "
                    f"x {slot.image.height} pixels, not {expected}; image_tokens can't be kept, set the limit on the server"
                )
            self.server.grid = None

    # -- limits ---------------------------------------------------------------------------------------------------

    def _limits(self, prompt: Prompt) -> None:
        """A prompt's tokens must be those of its halves: a server that drops pictures, or cuts text, counts fewer.

        One that says that the prompt is too long cuts nothing. Without a count nothing is found but a refusal.
        """
        import openai

        blocks = prompt.parts if len(prompt.parts) > 1 else halves(prompt.parts[0])
        middle = len(blocks) // 2
        try:
            whole, head, tail, none = (
                self.ask(part, system=prompt.system, max_tokens=1).tokens
                for part in (blocks, blocks[:middle], blocks[middle:], ["?"])
            )
        except openai.APIStatusError as error:
            if self.server.beyond(error):
                return
            raise BackboneError(
                f"the server at {self.server.url} refuses a prompt of {len(prompt.slots)} pictures ({self.server.said(error)}); "
                "raise its limit (vLLM: --limit-mm-per-prompt)"
            ) from None
        if not self._counts or whole is None or head is None or tail is None or none is None:
            return
        missing = head + tail - (none - 1) - whole
        if missing > SEAM or (prompt.slots and whole <= none):
            raise BackboneError(
                f"the server at {self.server.url} cuts a prompt of {len(prompt.slots)} pictures: it read {whole} tokens, and "
                f"{head} + {tail} of its halves; raise its context (Ollama: num_ctx) and its limit of pictures"
            )


def pictures_first(blocks: Sequence[Block]) -> list[Block]:
    """The blocks, all pictures before all text."""
    return sorted(blocks, key=lambda block: isinstance(block, str))


def halves(block: Block) -> list[Block]:
    """A text as two, cut at a space; a picture as it is."""
    if isinstance(block, Slot) or " " not in block[len(block) // 2 :]:
        return [block]
    at = block.index(" ", len(block) // 2)
    return [block[:at], block[at:]]


def inverted(image: Image) -> Image:
    from PIL import ImageOps

    return ImageOps.invert(image)


@cache
def test_pictures() -> tuple[Image, Image]:
    """Two pictures that have nothing in common: red, and upright stripes of black and white."""
    from PIL import Image

    stripes = Image.new("L", (SIDE, SIDE))
    for left in range(0, SIDE, SIDE // 4):
        stripes.paste(255, (left, 0, left + SIDE // 8, SIDE))
    return Image.new("RGB", (SIDE, SIDE), (220, 20, 20)), stripes.convert("RGB")
