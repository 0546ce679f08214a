"""DMV-Bench (arXiv 2606.27499) in its published layout: catalogue, cues, pictures, chains, and recall probes.

Memory after session j holds every product page viewed in sessions 0 to j, j too, each product once, as it was first seen:
the released bank's rule. It has no clock; what a store can say is the session, and that is the stated time.

An errand here asks the benchmark's blocks in the benchmark's order (step, subtask, conversation, memory, current page, then
the pictures: the page's, then the memories' by rank), at most 8 steps from `/`, and ends as it does. What differs from its
released loop:

- the words are this package's, the same on every benchmark: the released system prompt also lists the shop's ten
  categories and ten styles and advises to go straight to a remembered page; one client puts it into the user's message;
- a memory item reads as `deliver` has it (tag or number, stated time, text), not as a system's own label;
- an address that no page has leaves the agent where it is; the released shop shows "not found" there, and a made-up product
  of 6 to 16 hex digits then counts as the page last seen;
- `add_to_wishlist` never moves the agent, and a reply without an `Action:` line asks for nothing; the released loop goes to a
  product named with the former, and looks for an action in the whole of the latter;
- a failed call is a failure; there it is an action `done`, and so a miss.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from delivermem import runs
from delivermem.benchmarks import Benchmark
from delivermem.benchmarks import dmv_tasks as tasks
from delivermem.benchmarks.dmv_files import FETCH, Files, Product
from delivermem.benchmarks.storefront import CatalogueError
from delivermem.benchmarks.world import indefinite
from delivermem.records import IMAGE_MARK, Memory, Question, Record

CHAINS = {5: (25, 0), 10: (25, 0), 15: (25, 0), 50: (5, 10)}
"""Sessions of a chain: how many chains, seeds from 0, and probes of each reach; 0: all there are."""
ENCODER, TEXT_ENCODER = "google/siglip2-base-patch16-384", "sentence-transformers/all-MiniLM-L6-v2"
"""What the benchmark's own system retrieves pictures and texts by."""
PICK_ONE_GUESS = 0.2
"""Chance of naming the right one of 5 delivered items blindly."""


def load(name: str) -> Benchmark:
    """`dmv-5`, `dmv-10`, `dmv-15` or `dmv-50` out of the fetched folder; ValueError where it is not at hand."""
    folder = runs.data_dir() / "benchmarks" / "dmv"
    if not folder.is_dir():
        raise CatalogueError(f"benchmark {name!r}: {folder} is not there; {FETCH}")
    return read(folder, sessions=int(name.removeprefix("dmv-")))


def read(
    folder: Path,
    *,
    sessions: int = 5,
    chains: int | None = None,
    probes: int | None = None,
    encoder: str = ENCODER,
    text_encoder: str = TEXT_ENCODER,
) -> Benchmark:
    """The benchmark of chains of that many sessions.

    chains: how many, seeds from 0; probes: of each reach, 0 for all; both as the paper has them (CHAINS) unless given.
    Where `trajectories/` holds recordings for any of these seeds, the chains are those that are recorded to their end;
    where it holds none, the seeded policy browses. Raises CatalogueError, a ValueError, for any file that does not fit.
    """
    if sessions < 2 or (chains is not None and chains < 1) or (probes is not None and probes < 0):
        raise ValueError(
            f"sessions={sessions}, chains={chains}, probes={probes}: give 2 sessions, 1 chain, 0 probes or more"
        )
    number, each = CHAINS.get(sessions, CHAINS[5])
    number, each = chains or number, each if probes is None else probes
    files = Files(folder)
    files.check()
    viewed, notes = _viewed(files, number, sessions)
    questions: list[Question] = []
    digest = hashlib.sha256()
    for seed, products in viewed.items():
        task = files.chain(seed, sessions)
        drawn = tasks.monte_carlo(task, products, each) if each else tasks.exhaustive(task, products)
        task = task._replace(probes=tuple(tasks.in_order(task.probes or drawn)))
        digest.update(runs.canonical([task, products]).encode())
        questions += _questions(files, task, products)
    if not questions:
        raise CatalogueError(f"{folder}: no chain has a product to recall; record its trajectories again")
    captioned = len({p.place for p in files.products.values()} & files.captions.keys())
    if captioned:
        notes.append(
            f"Memory items hold their picture's caption, for {captioned} of {len(files.products)} products."
        )
        digest.update(runs.canonical(files.captions).encode())
    how = "recorded" if any(files.recorded(seed) for seed in viewed) else tasks.POLICY
    return Benchmark(
        f"dmv-{sessions}",
        f"{files.revision}+{how}.{digest.hexdigest()[:16]}",
        tuple(questions),
        layout="images-last",
        ranker="tiles",
        shop=files.shop,
        encoder=encoder,
        text_encoder=text_encoder,
        notes=tuple(notes),
    )


def _viewed(files: Files, chains: int, sessions: int) -> tuple[dict[int, list[list[str]]], list[str]]:
    """What was viewed in each session of each chain, by seed, and what is to be said of it."""
    recorded = {seed: files.recorded(seed) for seed in range(chains)}
    if not any(recorded.values()):
        browsed = {
            seed: [tasks.browse(seed, s, files.shop) for s in files.chain(seed, sessions).sessions]
            for seed in range(chains)
        }
        each = [len(set(products)) for chain in browsed.values() for products in chain]
        return browsed, [
            f"Products were viewed by a seeded policy ({tasks.POLICY}), which stands in for a model's own browsing: "
            f"{sum(each) / len(each):.1f} a session. Its probes are not those that the published numbers rest on."
        ]
    found, nowhere, short = {}, 0, []
    for seed, paths in recorded.items():
        if len(paths) < sessions and paths.keys() == set(range(len(paths))):
            short.append(seed)
            continue
        missing = [j for j in range(sessions) if j not in paths]
        if missing:
            absent = files.folder / "trajectories" / tasks.trajectory_name(seed, missing[0])
            raise CatalogueError(
                f"{absent}: is not there, and later sessions are; record it, or remove those"
            )
        places = {product.code: product.place for product in files.products.values()}
        read = [tasks.read_trajectory(paths[j], j, places) for j in range(sessions)]
        found[seed] = [products for products, _ in read]
        nowhere += sum(lost for _, lost in read)
    if not found:
        raise CatalogueError(
            f"{files.folder / 'trajectories'}: no chain is recorded for {sessions} sessions; record them, or move it away"
        )
    notes = [f"Products were viewed in {len(found)} recorded chains of {chains}."]
    if short:
        notes.append(f"Chains recorded for fewer than {sessions} sessions are left out: {len(short)}.")
    if nowhere:
        notes.append(f"Recorded views of pages that no product has, left out: {nowhere}.")
    return found, notes


def _questions(files: Files, task: tasks.Task, viewed: Sequence[Sequence[str]]) -> Iterator[Question]:
    """The probes of one chain. Its memories, one a session, have the chain's id, so that a chain is one cluster."""
    records: dict[str, Record] = {}
    memories = []
    for session, products in enumerate(viewed):
        for code in products:
            if code not in records:
                records[code] = _record(files, files.products[code], session, len(records))
        memories.append(Memory(task.id, tuple(records.values())))
    for probe in task.probes:
        product, memory = files.products[probe.product], memories[probe.at]
        record = records.get(probe.product)
        if record is None or record.id not in memory:
            raise CatalogueError(
                f"{task.id}: probe {probe.id!r} asks for {probe.product!r}, which no session up to {probe.at} has viewed; "
                "take the task file and the trajectories of one run"
            )
        yield Question(
            id=f"{task.id}-{probe.id}",
            text=f"Which product was seen with {indefinite(product.cue)}? Reply with the last part of its page's address.",
            answer=product.code,
            kind="recall",
            memory=memory,
            subtype=f"reach {probe.reach}",
            gold=(record.id,),
            needs=frozenset({"pixels", "identity"}),
            guess=PICK_ONE_GUESS,
            query=f"product with {product.cue}",
        )


def _record(files: Files, product: Product, session: int, place: int) -> Record:
    """A view as a memory item: the kind of product and its page, its picture, and the caption where there is one."""
    caption = files.captions.get(product.place, "").replace(IMAGE_MARK, "")
    said = f"Saw {indefinite(product.kind)}: /product/{product.code} {IMAGE_MARK}"
    return Record(
        f"s{session:02d}:{place:03d}-{product.code}",
        f'{said} Caption: "{caption}"' if caption else said,
        session=f"s{session:02d}",
        pictures=(product.picture,),
        time_text=f"session {session:02d}",
    )
