"""DMV-Bench's recall loop: an agent in a shop, shown what is retrieved at every step, is to find a product again.

A step's prompt has the benchmark's blocks in the benchmark's order, all texts before all pictures; what of the memory
stands in it, and in what form, is `deliver`'s and the controls' alone. The loop keeps every step: the trace is data.
Source: DMV-Bench (arXiv 2606.27499), how a probe is asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from delivermem import runs
from delivermem.benchmarks.storefront import CatalogueError, Storefront
from delivermem.benchmarks.world import indefinite
from delivermem.pictures import PictureError
from delivermem.records import Answer, Prompt, Slot

if TYPE_CHECKING:
    from PIL.Image import Image

    from delivermem.backbones import Backbone

HOME = "/"
"""Where an errand begins."""
STEPS = 8
"""Steps at most, as DMV-Bench allows."""
SYSTEM = (
    "You shop in a web store. Its pages are /, /category/<name>, /collection/<name> and /product/<code>. Reply in two "
    "lines, one Thought and one Action. Actions: navigate(url), click_index(n), add_to_wishlist, done."
)
Kind = Literal["navigate", "click_index", "add_to_wishlist", "done", ""]
Outcome = Literal["opened", "no such page", "no such link", "wishlist", "done", "unparsed", "failed"]
"""What came of a step; the first three and `unparsed` end nothing, a page that does not exist changes nothing."""


class Action(NamedTuple):
    """What a reply asks for: "" where it asks for nothing that can be read."""

    kind: Kind
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.kind}({self.argument})" if self.argument else self.kind


def parse(reply: str) -> Action:
    """The action of a reply's last `Action:` line. Of several in that line the first in this order counts:
    add_to_wishlist, click_index(n), navigate(url), a product's path by itself, done."""
    lines = re.findall(r"^\W*(?:\d+\W+)?action\W*:(.*)$", reply, re.MULTILINE | re.IGNORECASE)
    line = lines[-1] if lines else ""
    if re.search(r"\badd_to_wishlist\b", line, re.IGNORECASE):
        return Action("add_to_wishlist")
    if found := re.search(r"\bclick_index\s*\(\s*(?:n\s*=\s*)?(\d{1,6})\s*\)", line, re.IGNORECASE):
        return Action("click_index", found[1])
    if found := re.search(r"\bnavigate\s*\(\s*(?:url\s*=\s*)?[\"']?([^\s\"')]+)", line, re.IGNORECASE):
        return Action("navigate", found[1])
    if found := re.search(r"/product/[\w-]+", line):
        return Action("navigate", found[0])
    return Action("done") if re.search(r"\bdone\b", line, re.IGNORECASE) else Action("")


def step_prompt(
    delivered: Prompt, cue: str, *, step: int, url: str, page: Image | None, replies: Sequence[str] = ()
) -> Prompt:
    """The prompt of one step around what was delivered for it.

    delivered: from `deliver` and a control, its question's text unused. cue: colour and object of what is looked for.
    step: from 1. url, page: where the agent is, and the picture shown there, on product pages. replies: the agent's own
    in earlier steps.
    """
    thing = indefinite(cue)
    said = "".join(f"assistant: {reply}\n" for reply in replies)
    head = (
        f"Step {step}/{STEPS}.\n"
        f"[Subtask] Go to the product that shows {thing}.\n"
        f"[Conversation so far]\nuser: Earlier I saw a product with {thing}. Take me back to it.\n{said}"
        f"[Memory context retrieved this step] {len(delivered.items)} items\n"
    )
    return replace(
        delivered,
        system=SYSTEM,
        preamble=head + delivered.preamble,
        question=f"[Current page]\nURL: {url}\nTitle: {url}\nDescription: {url}\n",
        layout="text-first",
        before=() if page is None else (Slot("", url, page),),
    )


def query(question: str, url: str) -> str:
    """What memory is asked at a step: what is looked for, in the probe's own words, and where the agent is."""
    return f"{question} CURRENT: {url}"


@dataclass
class Step:
    """One step of a trace: where it began, what was delivered, the reply, and what came of it.

    delivered, tags: record ids in order, and what names each in prompt and picture ("" where nothing does). prompt, pixels:
    hashes of what the model was given.
    """

    url: str
    delivered: list[str]
    tags: list[str]
    reply: str = ""
    action: str = ""
    outcome: Outcome = "failed"
    landed: str = ""
    status: Literal["ok", "failed", "not_applicable"] = "ok"
    finish: str = ""
    text_tokens: int = 0
    image_tokens: int = 0
    images: int = 0
    seconds: float = 0.0
    prompt: str = ""
    pixels: str = ""


Deliver = Callable[[str], "Prompt | None"]
"""From where the agent is to what is delivered there; None where the arm can't be had."""


@dataclass
class Walk:
    """One probe on its way: the cue it looks for, how its memory is delivered, and its steps so far."""

    cue: str
    deliver: Deliver
    url: str = HOME
    steps: list[Step] = field(default_factory=list)
    product: str = ""
    """The last product page that was opened, by its hash; "" before."""

    @property
    def over(self) -> bool:
        ends = bool(self.steps) and self.steps[-1].outcome in ("wishlist", "done", "failed")
        return ends or len(self.steps) == STEPS

    def next(self, shop: Storefront) -> Prompt:
        """The next step's prompt; of an arm that can be had once, and so everywhere."""
        prompt = self.prompt(shop)
        if prompt is None:
            raise ValueError(f"nothing can be delivered at {self.url} in this arm")
        return prompt

    def prompt(self, shop: Storefront) -> Prompt | None:
        """The same, or None where the arm can't be had."""
        delivered = self.deliver(self.url)
        if delivered is None:
            return None
        return step_prompt(
            delivered,
            self.cue,
            step=len(self.steps) + 1,
            url=self.url,
            page=shop.image(self.url),
            replies=[step.reply for step in self.steps],
        )

    def take(self, prompt: Prompt, answer: Answer, shop: Storefront) -> Step:
        """Go where a reply leads, and keep the step."""
        texts, pixels = runs.prompt_hashes(prompt)
        given = {name: getattr(answer, name) for name in ("text_tokens", "image_tokens", "images", "seconds")}
        tags = [item.tag if item.lead.startswith(item.tag) else "" for item in prompt.items]
        step = Step(self.url, list(prompt.delivered), tags, answer.text, prompt=texts, pixels=pixels, **given)
        step.status, step.finish = answer.status, answer.finish
        if answer.status == "ok":
            action = parse(answer.text)
            step.action = str(action)
            step.outcome, self.url = self._outcome(action, shop)
        step.landed, self.product = self.url, shop.product(self.url) or self.product
        self.steps.append(step)
        return step

    def stop(self, trouble: str) -> None:
        """Keep a step whose prompt could not be made, as a failure."""
        step = Step(self.url, [], [], status="failed", finish=f"error: {trouble}")
        step.landed = self.url
        self.steps.append(step)

    def _outcome(self, action: Action, shop: Storefront) -> tuple[Outcome, str]:
        if action.kind == "navigate":
            known = action.argument in shop
            return ("opened", shop.path(action.argument)) if known else ("no such page", self.url)
        if action.kind == "click_index":
            links = shop.links(self.url)
            known = int(action.argument) < len(links)
            return ("opened", links[int(action.argument)]) if known else ("no such link", self.url)
        if action.kind:
            return ("wishlist" if action.kind == "add_to_wishlist" else "done"), self.url
        return "unparsed", self.url

    @property
    def answer(self) -> Answer:
        """The whole walk as one answer: the product it ended on, the tokens of all steps; where one step failed or was not
        put to the model, that."""
        last = self.steps[-1]
        failed = last.outcome == "failed"
        return Answer(
            self.product,
            last.status if failed else "ok",
            last.finish if failed else ("stop" if last.outcome in ("wishlist", "done") else "steps"),
            text_tokens=sum(step.text_tokens for step in self.steps),
            image_tokens=sum(step.image_tokens for step in self.steps),
            images=sum(step.images for step in self.steps),
            seconds=round(sum(step.seconds for step in self.steps), 4),
        )

    @property
    def trace(self) -> list[dict[str, Any]]:
        """The steps as they are kept."""
        return [asdict(step) for step in self.steps]


def walk(walks: Sequence[Walk], backbone: Backbone, shop: Storefront) -> Iterator[Walk]:
    """Take all walks to their ends in step, each as soon as it is over; equal prompts are asked once."""
    going = [w for w in walks if not w.over]
    while going:
        ready: list[tuple[Walk, Prompt]] = []
        for w in going:
            try:
                ready.append((w, w.next(shop)))
            except (PictureError, CatalogueError) as error:
                w.stop(str(error))
        asked: dict[tuple[str, str], list[tuple[Walk, Prompt]]] = {}
        for w, prompt in ready:
            asked.setdefault(runs.prompt_hashes(prompt), []).append((w, prompt))
        same = list(asked.values())
        for number, answer in backbone.answer([group[0][1] for group in same]):
            for w, prompt in same[number]:
                w.take(prompt, answer, shop)
        yield from (w for w in going if w.over)
        going = [w for w in going if not w.over]


def replayed(walk: Walk, steps: Sequence[Mapping[str, Any]], shop: Storefront) -> str:
    """What of a kept trace is not as the loop would go now with the same replies; "" where all is."""
    for number, kept in enumerate(steps, 1):
        missing = [name.name for name in fields(Step) if name.name not in kept]
        if missing:
            return f"step {number} has no {missing[0]}"
        if walk.over:
            return f"step {number} is one too many"
        if kept["prompt"]:
            names = ("status", "finish", "text_tokens", "image_tokens", "images", "seconds")
            given: Any = {name: kept[name] for name in names}
            answer = Answer(kept["reply"], **given)
            walk.take(walk.next(shop), answer, shop)
        else:
            walk.stop(kept["finish"].removeprefix("error: "))
        other = [name for name, value in walk.trace[-1].items() if kept.get(name) != value]
        if other:
            return f"step {number}: its {other[0]} would be another now"
    return "" if walk.over else "the trace ends before the errand does"
