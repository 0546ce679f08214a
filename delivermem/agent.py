"""DMV-Bench's recall loop: an agent in a shop, shown what is retrieved at every step, is to find a product again.

A step's prompt has the benchmark's blocks in the benchmark's order, all texts before all pictures; what of the memory
stands in it, and in what form, is `deliver`'s and the controls' alone.
Source: DMV-Bench (arXiv 2606.27499), how a probe is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from delivermem.benchmarks.world import indefinite
from delivermem.records import Prompt, Slot

if TYPE_CHECKING:
    from PIL.Image import Image

STEPS = 8
"""Steps at most, as DMV-Bench allows."""
SYSTEM = (
    "You shop in a web store. Its pages are /, /category/<name>, /collection/<name> and /product/<code>. Reply in two "
    "lines, one Thought and one Action. Actions: navigate(url), click_index(n), add_to_wishlist, done."
)


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
