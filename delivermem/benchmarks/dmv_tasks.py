"""DMV-Bench's tasks: chains of shopping sessions, what was viewed in each, and the probes for it, in its own files.

A chain's sessions follow from seed strings alone, and session j from (seed, j), so that longer chains begin as shorter
ones do. What is viewed in a session is a model's own browsing; its recordings are not released, and where none are at hand
the seeded policy `browse` stands in: a stand-in, and no model's. Source: DMV-Bench (arXiv 2606.27499) and the formats and
seed strings of its released generator, design v6.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from delivermem.benchmarks.storefront import CatalogueError, Storefront

CATEGORIES = "chair sofa lamp cushion vase rug table bookshelf plant_pot wall_art".split()
"""The shop's categories in the order in which the generator draws from them, which is the catalogue's own."""
STEPS = (22, 28)
"""Fewest and most steps of a session."""
MOST_STEPS = 50
"""What the generator writes as `max_steps_per_session` where nothing else is said; no session reaches it."""
VARIANT, GENERATOR, DESIGN = "f2_per_product_ic_v6", "f2.per_product_ic.v6", "v6_per_product_ic"
"""What a task file states of itself."""
MC_SEED = "f2.mc.v6"
"""Where the Monte Carlo draws begin, as the released runner's default has it."""
POLICY = "browse.v1"
"""The name of the stand-in below; another policy must have another."""
LEAVE, AGAIN = 1 / 4, 1 / 16
"""The policy's chances: to go on to another collection after a product, and to open one that was seen before."""


class Session(NamedTuple):
    """One session of a chain: its number from 0, the category that is shopped for, and how many steps it has."""

    number: int
    category: str
    steps: int


class Probe(NamedTuple):
    """One recall: asked after session `at` for a product viewed in session `target`, `reach` sessions before."""

    id: str
    at: int
    target: int
    product: str
    reach: int


class Task(NamedTuple):
    """One chain. probes: empty until what was viewed is known."""

    id: str
    seed: int
    sessions: tuple[Session, ...]
    probes: tuple[Probe, ...] = ()


def name(seed: int, sessions: int) -> str:
    """What a chain is called, its file too."""
    return f"f2_chain_d{sessions}_s{seed:04d}"


def spine(seed: int, sessions: int, categories: Sequence[str] = CATEGORIES) -> Task:
    """The chain of that seed: a category a session, in an order of its own that begins again when all had their turn."""
    order = Random(f"f2.seed.{seed}").sample(list(categories), len(categories))
    made = tuple(
        Session(j, order[j % len(order)], Random(f"f2.session.{seed}.{j}").randint(*STEPS))
        for j in range(sessions)
    )
    return Task(name(seed, sessions), seed, made)


def browse(seed: int, session: Session, shop: Storefront) -> list[str]:
    """The products that the seeded policy views in a session, by hash, in order, with repeats.

    It begins on the category's page and spends a step a page, as the benchmark's agent does: a collection, a product, back
    to the collection, and now and then on to another one. On the benchmark's own shop it views some 11 distinct products
    of 3 collections a session, as the benchmark's Gemini does (11.0).
    """
    rng = Random(f"{POLICY}.{seed}.{session.number}")
    ahead = _collections(session.category, shop)
    rng.shuffle(ahead)
    viewed: list[str] = []
    here = ""
    for step in range(2, session.steps + 1):  # the first step sees the category's page
        if step % 2 == 0:
            if not here or rng.random() < LEAVE or not _new(here, viewed, shop):
                here = next((page for page in ahead if page != here and _new(page, viewed, shop)), ahead[0])
                ahead.append(ahead.pop(ahead.index(here)))
            continue
        fresh = _new(here, viewed, shop)
        old = [product for product in _products(here, shop) if product not in fresh]
        viewed.append(rng.choice(old if old and (not fresh or rng.random() < AGAIN) else fresh))
    return viewed


def _collections(category: str, shop: Storefront) -> list[str]:
    page = f"/category/{category}"
    found = [link for link in shop.links(page) if link.startswith("/collection/")] if page in shop else []
    found = [link for link in found if _products(link, shop)]
    if not found:
        raise CatalogueError(
            f"category {category!r} has no products in this shop; take a session of one that has"
        )
    return found


def _products(collection: str, shop: Storefront) -> list[str]:
    return [product for product in map(shop.product, shop.links(collection)) if product]


def _new(collection: str, viewed: Sequence[str], shop: Storefront) -> list[str]:
    return [product for product in _products(collection, shop) if product not in viewed]


def distinct(viewed: Sequence[str]) -> list[str]:
    """Each product once, in the order of its first view."""
    return list(dict.fromkeys(viewed))


def exhaustive(task: Task, viewed: Sequence[Sequence[str]]) -> list[Probe]:
    """A probe for every product of every earlier session, after every session. viewed: products of each session."""
    seen = [distinct(products) for products in viewed]
    return [
        Probe(f"s{at}_r{reach}_p{i:02d}", at, at - reach, product, reach)
        for at in range(1, len(task.sessions))
        for reach in range(1, at + 1)
        for i, product in enumerate(seen[at - reach])
    ]


def monte_carlo(task: Task, viewed: Sequence[Sequence[str]], number: int, seed: str = MC_SEED) -> list[Probe]:
    """`number` probes of every reach, drawn without replacement from all of that reach, or all where they are fewer."""
    seen = [distinct(products) for products in viewed]
    probes = []
    for reach in range(1, len(task.sessions)):
        pool = [(at, product) for at in range(reach, len(task.sessions)) for product in seen[at - reach]]
        drawn = Random(f"{seed}.{task.id}.reach{reach}").sample(pool, min(number, len(pool)))
        probes += [
            Probe(f"s{at}_r{reach}_p{i:03d}_mc", at, at - reach, product, reach)
            for i, (at, product) in enumerate(drawn)
        ]
    return probes


def in_order(probes: Sequence[Probe]) -> list[Probe]:
    """As a run meets them: by session, then by reach; those alike stay as they are."""
    return sorted(probes, key=lambda probe: (probe.at, probe.reach))


# -- the benchmark's files ---------------------------------------------------------------------------------------


def write_tree(task: Task, folder: Path, cues: Mapping[str, tuple[str, str, str]] | None = None) -> Path:
    """The chain as the released generator writes it. cues: product -> (cue id, object, colour), where it has probes."""
    known = cues or {}
    bare = [probe.product for probe in task.probes if probe.product not in known]
    if bare:
        raise ValueError(
            f"{task.id}: product {bare[0]!r} has no cue among `cues`; give one of each probe's product"
        )

    def probe(p: Probe) -> dict[str, Any]:
        cue, thing, colour = known[p.product]
        return dict(
            probe_id=p.id, at_session=p.at, target_session=p.target, target_url_hash=p.product, target_cue_id=cue,
            target_cue_object=thing, target_cue_color=colour, reach=p.reach,
        )  # fmt: skip

    tree = dict(
        task_id=task.id,
        variant=VARIANT,
        n_sessions=len(task.sessions),
        max_steps_per_session=MOST_STEPS,
        sessions=[
            dict(session_idx=s.number, shopping_list=[s.category], n_steps=s.steps) for s in task.sessions
        ],
        probes=[probe(p) for p in task.probes],
        metadata=dict(generator=GENERATOR, seed=task.seed, design=DESIGN),
    )
    return _write(folder / f"{task.id}.json", tree)


def trajectory_name(seed: int, session: int) -> str:
    return f"f2traj_s{seed:04d}_sess{session}.json"


def write_trajectory(
    folder: Path, seed: int, session: Session, viewed: Sequence[str], picture: Callable[[str], str | Path]
) -> Path:
    """What was viewed in a session, as the released runner keeps it; `vlm_calls` is 0, as no model was asked. picture:
    product -> path of its picture."""
    kept = dict(
        session_idx=session.number,
        visited=[[product, str(picture(product))] for product in viewed],
        injection=None,
        n_steps=session.steps,
        vlm_calls=0,
    )
    return _write(folder / trajectory_name(seed, session.number), kept)


def _write(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
    return path


def read_json(path: Path) -> Any:
    """The content of a JSON file; CatalogueError where it can't be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CatalogueError(
            f"{path}: can't be read as JSON ({error}); fetch or record the file again"
        ) from None


def value(where: str, row: Any, field: str, kind: type) -> Any:
    """A field of that type, or a CatalogueError that names file and field; a bool is no number."""
    found = row.get(field) if isinstance(row, Mapping) else None
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise CatalogueError(
            f"{where}: {field} is {found!r:.60}, expected {kind.__name__}; fetch or record the file again"
        )
    return found


def read_tree(
    path: Path, seed: int, sessions: int, categories: Sequence[str], products: Mapping[str, Any]
) -> Task:
    """The chain of a task file, its probes too where the file has any. CatalogueError for what does not fit the format,
    the chain asked for, or the shop's categories and products."""
    tree, where = read_json(path), str(path)
    found = []
    for j, row in enumerate(value(where, tree, "sessions", list)):
        at = f"{where}: sessions[{j}]"
        listed, index = value(at, row, "shopping_list", list), value(at, row, "session_idx", int)
        if len(listed) != 1 or listed[0] not in categories or index != j:
            raise CatalogueError(
                f"{at}: session_idx {index}, shopping_list {listed!r:.60}; expected {j} and one of the shop's categories"
            )
        steps = value(at, row, "n_steps", int)
        if steps < 1:
            raise CatalogueError(f"{at}: n_steps is {steps}, expected 1 or more; make the file again")
        found.append(Session(j, listed[0], steps))
    stated = (value(where, tree, "task_id", str), value(where, tree, "n_sessions", int), len(found))
    own = value(f"{where}: metadata", value(where, tree, "metadata", dict), "seed", int)
    if (*stated, own) != (name(seed, sessions), sessions, sessions, seed):
        raise CatalogueError(
            f"{where}: task_id {stated[0]!r}, n_sessions {stated[1]}, {stated[2]} sessions, seed {own}; "
            f"expected {name(seed, sessions)!r}; make the file again"
        )
    if (variant := value(where, tree, "variant", str)) != VARIANT:
        raise CatalogueError(
            f"{where}: variant is {variant!r}, only {VARIANT!r} is read; make the file again"
        )
    listed = value(where, tree, "probes", list)
    probes = tuple(_probe(f"{where}: probes[{i}]", row, sessions, products) for i, row in enumerate(listed))
    return Task(stated[0], seed, tuple(found), probes)


def _probe(where: str, row: Any, sessions: int, products: Mapping[str, Any]) -> Probe:
    at, target, reach = (value(where, row, key, int) for key in ("at_session", "target_session", "reach"))
    product = value(where, row, "target_url_hash", str)
    if not 0 <= target < at < sessions or reach != at - target:
        raise CatalogueError(
            f"{where}: at_session {at}, target_session {target}, reach {reach} do not fit; make the file again"
        )
    if product not in products:
        raise CatalogueError(
            f"{where}: target_url_hash {product!r} is not in the catalogue; make the file again"
        )
    return Probe(value(where, row, "probe_id", str), at, target, product, reach)


def read_trajectory(path: Path, session: int, pictures: Mapping[str, str]) -> tuple[list[str], int]:
    """The products viewed in a recorded session, and how many views were of pages that no product has: a model may go to
    an address that it made up, which shows nothing and is kept with an empty path.

    pictures: product -> its picture's path, `<category>/<style>/NN.png`. CatalogueError for any other misfit.
    """
    kept, where = read_json(path), str(path)
    if (index := value(where, kept, "session_idx", int)) != session:
        raise CatalogueError(
            f"{where}: session_idx is {index}, its name says {session}; record the file again"
        )
    value(where, kept, "n_steps", int)
    viewed, nowhere = [], 0
    for i, pair in enumerate(value(where, kept, "visited", list)):
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair)):
            raise CatalogueError(
                f"{where}: visited[{i}] is {pair!r:.60}, expected [hash, path]; record the file again"
            )
        product, shown = pair[0], pair[1].replace("\\", "/")
        if product not in pictures and not shown:
            nowhere += 1
        elif product not in pictures:
            raise CatalogueError(
                f"{where}: visited[{i}]: {product!r} is not in the catalogue; record it in this shop, or fetch the catalogue"
            )
        elif shown and not shown.endswith(f"/{pictures[product]}"):
            raise CatalogueError(
                f"{where}: visited[{i}]: {product!r} shows {pictures[product]} in the catalogue, not {shown!r:.100}"
            )
        else:
            viewed.append(product)
    return viewed, nowhere
