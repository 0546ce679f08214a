"""One cached answer as a page of HTML: what the model saw, in order and in pixels, and what it said.

The page holds everything in itself and needs no script. Its prompt is built anew; whether it is the one that was
answered, its hashes tell.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from delivermem import benchmarks, experiments, retrieval, runner, runs
from delivermem.prompt_figure import CSS, Markup, messages, records, tag


@dataclass(frozen=True, eq=False)
class Seen:
    """A cached answer beside its prompt.

    line: as in the file; where: file and number of the line. troubles: what of it does not hold, a sentence each.
    """

    plan: runner.Plan
    line: Mapping[str, Any]
    manifest: Mapping[str, Any]
    where: str
    troubles: tuple[str, ...]


def find(
    question_id: str,
    condition: str,
    *,
    benchmark: str = "mini-memlens",
    backbone: str = "tiny-qwen3-vl",
    outputs: Path | None = None,
) -> Seen:
    """The answer that is cached for a question in a condition, with its prompt built again as `verify` builds it.

    backbone: the name of its folder of answers. outputs: by default data/outputs. Raises ValueError, one sentence with
    the known names or the nearest, for what is unknown or not at hand.
    """
    arms = {arm.name: arm for e in experiments.EXPERIMENTS.values() for arm in e.conditions}
    if condition not in arms:
        raise ValueError(f"condition {condition!r} is unknown; {_near(condition, list(arms))}")
    data, arm = benchmarks.load(benchmark), arms[condition]
    folder = _folder(outputs or runs.data_dir() / "outputs", benchmark, backbone)
    manifest, path = _manifest(folder / "manifest.json"), folder / f"{condition}.jsonl"
    asked = {question.id: question for question in data.questions}
    if question_id not in asked:
        raise ValueError(f"{benchmark} has no question {question_id!r}; {_near(question_id, list(asked))}")
    number, line = _line(path, question_id, benchmark)
    question = asked.pop(question_id)
    ids = line.get(runs.STEPS, [line])[0]["delivered"]
    lost = [name for name in ids if name not in question.memory]
    if lost:
        raise ValueError(
            f"{path}, line {number}: record {lost[0]!r} is not in the memory asked; restore the file"
        )
    first = replace(data, questions=(question, *asked.values()))  # the other memories stay in their order
    known = {(condition, question_id): ids} if {arm.ranker, data.ranker} & retrieval.BY_SIGHT else None
    setting = {"k": manifest["k"], "seed": manifest["seed"], "folder": folder}
    plan = next(runner.plan(first, [arm], manifest["backbone"], limit=1, delivered=known, **setting))
    where = f"{benchmark}/{folder.name}/{path.name}, line {number}"
    troubles = [*_differs(plan, line, manifest, data.revision), *_changed(path, manifest)]
    return Seen(plan, line, manifest, where, tuple(f"{where}: {trouble}" for trouble in troubles))


def page(question_id: str, condition: str, **where: Any) -> str:
    """The whole HTML document of an answer. Arguments and errors as of `find`."""
    return document(find(question_id, condition, **where))


def fragment(question_id: str, condition: str, **where: Any) -> str:
    """The same to stand in another page, as `IPython.display.HTML(fragment(...))`. Arguments as of `find`."""
    seen = find(question_id, condition, **where)
    return f"{tag('style', Markup(CSS))}\n{_body(seen, 3)}\n"


def document(seen: Seen) -> str:
    """What was found, as one HTML document that loads nothing."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = [
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        tag("title", _title(seen)),
        tag("style", Markup(f":root{{color-scheme:light dark}}{CSS}")),
    ]
    body = tag("main", _body(seen, 1))
    return f"<!DOCTYPE html>\n{tag('html', tag('head', *head), tag('body', body), lang='en')}\n"


def write(seen: Seen, to: Path | None = None) -> Path:
    """Write the page into a file, or into a folder under a name of its own (by default the current one); its path."""
    names = "-".join(["show", seen.where.split("/")[0], seen.line["question_id"], seen.line["condition"]])
    own = re.sub(r"[^\w.-]+", "-", names) + ".html"
    path = Path(own) if to is None else to / own if to.is_dir() else to
    try:
        path.write_text(document(seen), encoding="utf-8", newline="\n")
    except OSError as error:
        raise ValueError(f"{path} can't be written ({error.strerror}); name another file with --to") from None
    return path


# -- what is at hand ------------------------------------------------------------------------------------------


def _near(name: str, known: Sequence[str]) -> str:
    """The names most like an unknown one; where none is, all, or of many the first and the last."""
    close = difflib.get_close_matches(name, known, n=5, cutoff=0.7)
    if close:
        return f"did you mean {', '.join(sorted(close, key=known.index))}?"
    span = ", ".join(known) if len(known) <= 60 else f"the {len(known)} from {known[0]} to {known[-1]}"
    return f"choose one of {span}"


def _folder(root: Path, benchmark: str, backbone: str) -> Path:
    at_hand = {path.name: path for path in runs.folders(root) if path.parent.name == benchmark}
    name = backbone.replace("/", "--")
    if name not in at_hand:
        cure = f"at hand: {', '.join(at_hand)}" if at_hand else "make some with: delivermem run EXPERIMENT"
        raise ValueError(f"{root} holds no answers of backbone {backbone!r} on {benchmark}; {cure}")
    return at_hand[name]


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = dict(json.loads(path.read_text()))
        lacking = {"backbone", "benchmark", "conditions", "k", "revision", "seed"} - manifest.keys()
    except (ValueError, TypeError):
        raise ValueError(f"{path}: unreadable; restore it, or move that folder away") from None
    if lacking:
        raise ValueError(f"{path}: no {min(lacking)!r} in it; restore it, or move that folder away")
    return manifest


def _line(path: Path, question_id: str, benchmark: str) -> tuple[int, dict[str, Any]]:
    """Number and content of the newest line for a question."""
    names = (e.name for e in experiments.EXPERIMENTS.values() if path.stem in {c.name for c in e.conditions})
    cure = f"make it with: delivermem run {next(names)} --benchmark {benchmark} --conditions {path.stem}"
    if not path.exists():
        others = ", ".join(sorted(other.stem for other in path.parent.glob("*.jsonl"))) or "none"
        raise ValueError(
            f"condition {path.stem!r} is not at hand for {path.parent.name} on {benchmark}; {cure}; at hand: {others}"
        )
    found = [(n, line) for n, line in enumerate(runs.read(path), 1) if line.get("question_id") == question_id]
    if not found:
        raise ValueError(f"{path}: no answer to question {question_id!r}; {cure}")
    number, line = found[-1]
    missing = [field for field in runs.FIELDS if field not in line]
    if missing:
        raise ValueError(f"{path}, line {number}: no field {missing[0]!r}; {cure}")
    return number, line


def _differs(
    plan: runner.Plan, line: Mapping[str, Any], manifest: Mapping[str, Any], revision: str
) -> Iterator[str]:
    """What of the prompt, the key or the verdict is not as the line states it."""
    if revision != manifest["revision"]:
        yield f"it was asked on revision {manifest['revision']} of the benchmark, which is now {revision}; run again"
    for what, name in (("text of its prompt", "prompt"), ("pictures of its prompt", "pixels")):
        if plan.line[name] != line[name]:
            yield f"the {what} would be others now, so the model saw something else than is shown here; run again"
    if runs.STEPS not in line and plan.line["delivered"] != line["delivered"]:
        yield "it states other records than would be delivered now; run again"
    stated = {name: line[name] for name in ("question_id", "prompt", "pixels", "replicate")}
    if line["key"] != runs.key(**stated, **{name: manifest[name] for name in ("benchmark", "revision", "backbone")}):  # fmt: skip
        yield "what it states no longer hashes to its key"
    now = runner.rejudged(plan, line)
    if now["verdict"] != line["verdict"]:
        yield f"it states {line['verdict']!r}, and would be judged {now['verdict']!r} now ({now['rule']})"


def _changed(path: Path, manifest: Mapping[str, Any]) -> Iterator[str]:
    stated = manifest["conditions"].get(path.stem, {}).get("sha256")
    if stated != hashlib.sha256(path.read_bytes()).hexdigest():
        yield "the file's bytes are not those of the manifest; restore it or run the experiment again"


# -- the page -------------------------------------------------------------------------------------------------


def _title(seen: Seen) -> str:
    benchmark, backbone, _ = seen.where.split("/")
    return f"{seen.line['question_id']} · {seen.line['condition']} · {backbone} on {benchmark}"


def _body(seen: Seen, level: int) -> Markup:
    """Everything, under one heading of that level."""
    prompt, line, low = seen.plan.prompt, seen.line, f"h{level + 1}"
    traced = runs.STEPS in line
    parts = [tag(f"h{level}", seen.plan.question.text), tag("p", _title(seen), class_="quiet")]
    parts += [tag("p", tag("mark", "does not hold", class_="trouble"), " ", said) for said in seen.troubles]
    if not seen.troubles:
        parts.append(
            tag("p", "Text and pictures were built anew and hash to what this answer was given for.")
        )
    parts += [tag(low, "What the model answered"), _answer(seen)]
    parts.append(tag(low, "What the model saw at its first step" if traced else "What the model saw"))
    if prompt is None:
        parts.append(tag("p", f"Nothing was put to the model: {seen.plan.trouble}."))
    else:
        parts.append(messages(prompt, line["gold"]))
    if traced:
        parts += [tag(low, "What it did"), _steps(line[runs.STEPS])]
    if prompt is not None:
        parts += [tag(low, "The records delivered"), records(prompt, line["gold"])]
    parts += [tag(low, "Where this comes from"), _facts(_source(seen))]
    return tag("div", Markup("\n".join(parts)), class_="delivermem")


def _facts(facts: Mapping[str, object]) -> Markup:
    return tag(
        "dl",
        *(tag(kind, part) for pair in facts.items() for kind, part in zip(("dt", "dd"), pair, strict=True)),
    )


def _answer(seen: Seen) -> Markup:
    line = seen.line
    names = {record: name for name, record in (seen.plan.prompt.tags if seen.plan.prompt else {}).items()}
    expected = line["expected"]
    if seen.plan.question.answer_is_record:
        expected = f"{names.get(expected, 'no tag')}, which is record {expected}"
    recall = "the memory does not hold the answer" if line["recall"] is None else f"{line['recall']:g}"
    return _facts(
        {
            "answer": tag("pre", "\n", line["answer"] or "(nothing)"),
            "expected": expected,
            "verdict": Markup(
                f"{tag('mark', line['verdict'], class_=line['verdict'])} {tag('span', line['rule'])}"
            ),
            "status": f"{line['status']}, finish: {line['finish']}",
            "tokens": f"{line['text_tokens']} of text, {line['image_tokens']} of {line['images']} pictures",
            "recall": recall,
        }
    )


def _steps(steps: Sequence[Mapping[str, Any]]) -> Markup:
    """An agent's steps in turn: where it was, its reply, the action read off it, and what came of that."""
    rows = []
    for number, step in enumerate(steps, 1):
        came = " → ".join(str(step[name]) for name in ("action", "outcome", "landed") if step.get(name))
        at = tag("div", f"step {number} at {step.get('url', '?')}", class_="quiet")
        rows.append(tag("li", at, tag("pre", "\n", step.get("reply", "")), tag("div", came, class_="quiet")))
    return tag("ol", *rows)


def _source(seen: Seen) -> dict[str, object]:
    line, stated, arm = seen.line, seen.manifest, seen.plan.condition
    model, names = stated["backbone"], ("model", "revision", "dtype", "backend")
    versions = {"delivermem": stated.get("delivermem", "?"), **stated.get("versions", {})}
    benchmark, backbone, _ = seen.where.split("/")
    chosen = ", ".join(f"{name} {value}" for name, value in asdict(arm.decisions).items())
    asks = chosen if arm.asks != "everything" else "all of the memory"
    facts: dict[str, object] = {
        "backbone": ", ".join(str(model[name]) for name in names if name in model),
        "benchmark": f"{stated['benchmark']}, revision {stated['revision']}, {line['kind']} ({line['subtype']})",
        "arm": f"retrieval {arm.ranker}, K = {line['k']}; {asks}; control {arm.control}; replicate {line['replicate']}",
        "answer in": seen.where,
        "key": line["key"],
        "text hash": line["prompt"],
        "pixel hash": line["pixels"],
        "retrieved by": stated.get("encoder", ""),
        "computed by": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "code": f"{stated.get('commit', '?')}{' + changes' if stated.get('dirty') else ''}",
        "this page": f"delivermem show {line['question_id']} --condition {arm.name} --benchmark {benchmark} --backbone {backbone}",
    }
    return {name: value for name, value in facts.items() if value}
