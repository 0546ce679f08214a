"""What a run would take, before anything is loaded: what to fetch, how many prompts, how many tokens, about how many hours.

Hours are estimates: see `hardware`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from delivermem import backbones, benchmarks, experiments, hub, runner, runs
from delivermem.benchmarks import released
from delivermem.experiments import Condition
from delivermem.hardware import GPUS, MODELS, Load, Size, fits, hours, weights_gib
from delivermem.records import Prompt
from delivermem.sizing import Grid

SAMPLE = 12
"""Questions whose prompts are made to measure a fetched benchmark's lengths."""


MEMLENS = {"32k": (14, 20, 124), "64k": (26, 39, 242), "128k": (49, 74, 468), "256k": (93, 138, 928)}
"""Sessions and pictures of a question, kilobytes of its JSON. Source: arXiv 2605.14906 and the data card for 32k and 256k, and
file sizes over 789 questions; sessions and pictures between are in proportion to size."""
TURNS = 10
"""Turns of a session on MemLens (arXiv 2605.14906)."""
PROBES = {5: 1053, 10: 4821, 15: 10307, 50: 2407}
"""Probes of DMV-Bench by sessions, on Qwen2.5-VL's own trajectories (arXiv 2606.27499); others' trajectories give others."""


def plan_text(
    experiment: str,
    benchmark: str,
    named: str,
    *,
    model: backbones.Backbone | None = None,
    url: str = "",
    quantization: str = "",
    max_new_tokens: int,
    fresh: bool = False,
    conditions: Sequence[str] | None = None,
    limit: int | None = None,
    k: int | None = None,
    outputs: Path | None = None,
) -> str:
    """The whole plan of a run in plain sentences. model: the backbone whose cached answers count, unloaded; None: none do.
    url: of the server that has the model, which is asked what it serves; weights and GPU are its own.

    Raises ValueError for an unknown experiment, condition or benchmark; what is merely not here yet is part of the plan.
    """
    if benchmark not in benchmarks.known():
        benchmarks.load(benchmark)  # says which there are
    arms = experiments.chosen(experiments.find(experiment), conditions)
    k = experiments.default_k(benchmark) if k is None else k
    absent = hub.absent(benchmark)
    data = None if absent else benchmarks.load(benchmark)
    missing = [f"the data: {absent}"] if absent else []
    root = (outputs or runs.data_dir() / "outputs") / benchmark / (model.name if model else "none")
    held = {} if fresh or model is None else runner.kept(root, arms)
    if url and (away := _away(model)):
        missing.append(f"the server: {away}")
        model = None
    lines = [f"{experiment} on {benchmark} with {named}, K = {k}, at most {max_new_tokens} tokens a reply"]
    size = MODELS.get(named.partition("@")[0])
    if data is None:
        loads = _guessed(benchmark, arms, k, limit, size)
        cached = 0
    else:
        exact = benchmark in benchmarks.BENCHMARKS and model is not None
        loads, cached = _measured(data, arms, model if exact else None, k, limit, held, size)
    total = sum(load.prompts for load in loads.values())
    about = "" if data is not None else "about "
    lines.append(f"{about}{total} answers at K = {k}: {cached} cached, {total - cached} to be had")
    lines.append(
        "tokens of a prompt, words and pictures" + (", at most" if data is None else ", on average") + ":"
    )
    for name, load in loads.items():
        steps = f", at most {load.steps} steps each" if load.steps > 1 else ""
        lines.append(f"  {name}: {load.prompts} prompts{steps}, {load.text} + {load.image} tokens")
    if not url:
        missing += _weights(named, quantization)
    missing += _missing(arms, data, benchmark)
    left = {name: load for name, load in loads.items() if load.prompts}
    lines += _time_by_gpu(named, size, list(left.values()), (total - cached) / max(1, total), quantization)
    if data is not None and data.notes:
        lines += ["about the data:", *(f"  {note}" for note in data.notes)]
    if benchmark.startswith("memlens-"):
        lines.append(f"after the run {total} answers await the judge: delivermem judge {benchmark} --url …")
    lines += ["missing here:", *(f"  {what}" for what in missing)] if missing else ["nothing is missing here"]
    return "\n".join(lines)


def _guessed(
    benchmark: str, arms: Sequence[Condition], k: int, limit: int | None, size: Size | None
) -> dict[str, Load]:
    """Prompts and tokens of a benchmark that is not here, from what its paper states: one picture to every record."""
    if benchmark.startswith("dmv-"):
        cap = experiments.image_tokens(benchmark) or 0
        picture, words, count = cap, 120, PROBES[int(benchmark.split("-")[1])]
        whole_text = whole_images = 0
    else:
        sessions, pictures, kilobytes = MEMLENS[benchmark.split("-")[1]]
        picture = experiments.image_tokens(benchmark) or 0
        whole_text, whole_images = kilobytes * 1000 // 5, pictures * picture
        words = whole_text // (sessions * TURNS)
        count = 789 if benchmark.endswith("-all") else 195
    count = min(count, limit or count)
    loads = {}
    for arm in arms:
        if arm.asks == "everything":
            loads[arm.name] = Load(count, whole_text, whole_images)
            continue
        n = arm.k or k
        shown = n if arm.decisions.modality == "pixels" else 0
        steps = 8 if arm.asks == "errand" else 1
        loads[arm.name] = Load(count, 150 + n * words, (shown + (steps > 1)) * picture, steps)
    return loads


def _measured(
    data: benchmarks.Benchmark,
    arms: Sequence[Condition],
    model: backbones.Backbone | None,
    k: int,
    limit: int | None,
    held: Mapping[tuple[str, str], Any],
    size: Size | None,
) -> tuple[dict[str, Load], int]:
    """The same from the data itself, and how many answers are cached. Without `model` a sample is planned and the answers at
    hand are taken to be of the same prompts; the run itself looks at every one."""
    questions = data.questions[:limit]
    step = max(1, len(questions) // SAMPLE) if model is None else 1
    grid = Grid(size.factor if size else 32, 4, experiments.image_tokens(data.name) or 16384)
    from dataclasses import replace

    part = replace(data, questions=tuple(questions[::step]))
    seen, text, image, cached = Counter[str](), Counter[str](), Counter[str](), 0
    for p in runner.plan(part, arms, model.identity if model else {}, k=k):
        name = p.condition.name
        seen[name] += 1
        cached += (name, p.line["key"]) in held
        if p.prompt is not None:
            text[name] += _words(p.prompt)
            image[name] += sum(grid.tokens(*slot.image.size) for slot in p.prompt.slots)
    if model is None:
        ids = {question.id for question in questions}
        cached = sum(line["question_id"] in ids for line in held.values())
    loads = {
        arm.name: Load(
            len(questions),
            text[arm.name] // max(1, seen[arm.name]),
            image[arm.name] // max(1, seen[arm.name]),
            8 if arm.asks == "errand" else 1,
        )
        for arm in arms
    }
    return loads, cached


def _words(prompt: Prompt) -> int:
    """About how many tokens a prompt's words are: one for four characters."""
    return len(prompt.text) // 4


def _away(model: backbones.Backbone | None) -> str:
    """Why a server can't be asked what it serves; "" where it can."""
    try:
        return "" if model and model.identity else "no model was named"
    except backbones.BackboneError as error:
        return str(error)


def _weights(named: str, quantization: str) -> Iterator[str]:
    """What a model would lack on this machine, a sentence each with the cure."""
    model, revision, folder = backbones.locate(named)
    if folder is None and not _downloaded(model, str(revision)):
        size = MODELS.get(model)
        gigabytes = f", about {size.billions * 2:.0f} GB" if size else ""
        yield f"the model's weights: {model} at {str(revision)[:12]}{gigabytes}; the hub's client fetches them at the first prompt"
    if folder is None and backbones.device_of(None) == "cpu":
        yield "a GPU: torch sees none here, and a model of this size takes minutes for an answer on a CPU"
    if quantization == "4bit" and not backbones.installed("bitsandbytes"):
        yield "bitsandbytes, for 4 bit: pip install bitsandbytes"


def _missing(arms: Sequence[Condition], data: benchmarks.Benchmark | None, benchmark: str) -> Iterator[str]:
    """What the questions would lack, likewise."""
    if benchmark.startswith("memlens-") and any(arm.asks == "everything" for arm in arms):
        try:
            released.words()
        except released.CheckoutError as error:
            yield f"the evaluator's own words for the whole conversation: {error}"
    if data is not None and data.encoder and experiments.by_sight(arms, data.ranker):
        encoder, revision, folder = backbones.locate(data.encoder)
        if folder is None and not _downloaded(encoder, str(revision)):
            yield f"the encoder: {encoder} at {str(revision)[:12]}; the hub's client fetches it when it first encodes"


def _downloaded(model: str, revision: str) -> bool:
    import huggingface_hub

    return isinstance(huggingface_hub.try_to_load_from_cache(model, "config.json", revision=revision), str)


def _time_by_gpu(
    named: str, size: Size | None, loads: Sequence[Load], share: float, quantization: str
) -> Iterator[str]:
    if size is None:
        yield f"no estimate of hours: the size of {named} is not known here"
        return
    yield f"estimated hours by GPU ({weights_gib(size, quantization):.0f} GiB of weights; arithmetic, not measured):"
    longest = max((load.text + load.image for load in loads), default=0)
    for gpu in GPUS:
        ways = fits(named, gpu.gib, gpu.bf16, tokens=longest)
        way = quantization or (ways[0] if ways else "")
        if way not in ways:
            yield f"  {gpu.name}: does not fit ({gpu.gib:.0f} GiB)"
            continue
        took = hours(size, gpu, loads, quantization=way) * share
        yield f"  {gpu.name}: {f'{took:.1f} h' if took >= 1 else f'{took * 60:.0f} min'} in {way}"
