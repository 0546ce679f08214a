"""Training contexts of the agent in the shop: one step of an errand each, with the two lines that a good agent replies.

The page is any (the target may be in no memory), the one that was looked for, or a neighbour opened by mistake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from delivermem import agent
from delivermem.benchmarks import asking, shop
from delivermem.benchmarks.world import pick
from delivermem.delivery import Modality
from delivermem.records import Prompt
from delivermem.reference import corpus, shopping
from delivermem.reference.shopping import CELLS, READABLE

ON_TARGET, ASTRAY, ABSENT = 0.2, 0.2, 0.12
"""Share of contexts on the page that was looked for, on a neighbour's page, and without the target in memory."""


def texts() -> list[str]:
    """What an errand is told in and answered with, for the tokenizer (its codes are letters and digits)."""
    said = [
        "Thought: this page shows the red key.\nAction: add_to_wishlist",
        "Thought: no memory shows the\nAction: done",
    ]
    said += [navigate(named, "red key", "") for named in ("M1", "memory image 2")]
    empty = Prompt("", "", (), "")
    return [
        agent.step_prompt(empty, "red key", step=i, url=f"/category/{name}", page=None, replies=said).text
        for i, name in enumerate(shop.CATEGORIES, 1)
    ]


@dataclass
class Errand(corpus.Context):
    """A context whose question stands before its items: where in the text its cue is named, where in the reply what is
    looked up stands (character ranges), and where the page's picture lies, if there is one."""

    cue: tuple[int, int] = (0, 0)
    marks: tuple[tuple[int, int], ...] = ()
    page: tuple[int, int] | None = None


def navigate(named: str, cue: str, code: str) -> str:
    """The reply that goes to a remembered product. named: `M2`, or `memory image 2` where no tag names it."""
    return f"Thought: {named} shows the {cue}.\nAction: navigate(/product/{code})"


def context(
    rng: np.random.Generator,
    visits: Sequence[shop.Visit],
    k: int,
    *,
    modality: Modality = "pixels",
    times: bool = True,
    tags: str = "rank",
    expect_full: bool = False,
) -> Errand:
    """One step; arguments as of `corpus.context`."""
    view = shopping.recalled(rng, visits, k)
    prompt = shopping.shown(rng, view, visits, modality, times, tags, "text-first")
    counts, unique = shopping.things(view)
    at, (colour, name, (column, row)) = pick(rng, unique)
    where = rng.random()
    on_target, on_product = where < ON_TARGET, where < ON_TARGET + ASTRAY
    absent = not on_product and rng.random() < ABSENT
    if absent:
        colour, name = shopping.near_miss(rng, counts, colour, name)
    cue = f"{colour} {name}"
    tag = {item.record_id: item.tag for item in prompt.items}
    names = [tag[v.id] if tags in (*READABLE, "text") else f"memory image {i}" for i, v in enumerate(view, 1)]
    product, replies = None, []
    if on_product:
        i = at if on_target else pick(rng, [i for i in range(len(view)) if i != at])
        product = view[i].product
        replies = [navigate(names[i], cue, product.code)] * (1 + int(rng.random() < 0.2))
    url = product.page if product else pick(rng, ("/", "/", f"/category/{pick(rng, shop.CATEGORIES)}"))
    page = product.photo if product else None
    whole = agent.step_prompt(prompt, cue, step=len(replies) + 1, url=url, page=page, replies=replies)
    text, spans = shopping.texts(whole, view, tags in READABLE)
    labels = shopping.slot_labels(whole, view, tags in READABLE)
    page_at = None
    if product is not None:
        first = text.index("<|vision_start|>")
        page_at = (first, first + len(corpus.slot_text(CELLS**2)))
        labels = [shopping.cell_labels(product, ""), *labels]
    cell = f"cell {row * CELLS + column}"
    marks: tuple[str, ...] = (names[at], view[at].product.code)
    reply, evidence = navigate(names[at], cue, marks[1]), ((at, cell),)
    if on_target:
        reply, marks = f"Thought: this page shows the {cue}.\nAction: add_to_wishlist", ("this",)
        evidence = ((-1, cell),)
    elif absent or not (modality == "pixels" or expect_full):
        reply, marks = f"Thought: no memory shows the {cue}.\nAction: done", ("no",)
        absent = True
    asked = asking.Ask("errand", "", reply, (at,), evidence, evidence, refusal=absent)
    begins = text.index(cue)
    return Errand(
        text=text,
        images=[np.asarray(image) for image in whole.images],
        labels=labels,
        asks=[(asked, reply)],
        spans=spans,
        cue=(begins, begins + len(cue)),
        marks=tuple((reply.index(mark), reply.index(mark) + len(mark)) for mark in marks),
        page=page_at,
    )
