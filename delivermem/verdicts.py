"""Verdicts of a benchmark's judge: asked for once, kept apart from the answers, and read back wherever answers are judged.

outputs/<benchmark>/<backbone>/verdicts/judge.json     the judge whose verdicts count in the lines
outputs/<benchmark>/<backbone>/verdicts/<judge>.jsonl  a line a reply; the newest verdict of a key holds
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from delivermem import benchmarks, experiments, judges, memlens_judge, runs
from delivermem.memlens_judge import CLOSED, MODEL, SETTINGS, Judge, JudgeError, Reply
from delivermem.progress import Clock
from delivermem.records import Answer, Prompt, Question, Verdict

LOCAL = "exact match"
"""The name of the judge for smoke runs: `judges.judge`, which knows no paraphrase."""
NOT_CANONICAL = ", not canonical"
"""What stands after the rule of a verdict that is not of the benchmark's own judge."""
LOST = 8
"""Failed calls one after another, none between them answered, after which no more are made."""
FIELDS = ("key", "question_id", "judge", "task", "prompt", "score", "trouble", "reply", "finish", "seconds")
"""What a line holds. score: 0, 1, or null with its trouble; prompt: a hash of the message; seconds alone varies by run."""


@dataclass(frozen=True, eq=False)
class Judging:
    """How the answers of a folder are judged where its benchmark has a judge: called as `judges.judge` is.

    judge: whose verdicts count; None: LOCAL. kept: key -> score, or the trouble of having none. released: two states, as the
    released code counts: what was asked and has no verdict is wrong, and a cut-off answer is judged as it is.
    """

    judge: Judge | None = field(default_factory=Judge)
    kept: Mapping[str, int | str] = field(default_factory=dict)
    released: bool = False

    def __call__(self, question: Question, answer: Answer, prompt: Prompt) -> Verdict:
        exact = judges.judge(question, answer, prompt)
        if not self.judges(question, answer):
            return exact
        if self.judge is None:
            return Verdict(exact.state, exact.rule + NOT_CANONICAL)
        aside = "" if self.judge.canonical else NOT_CANONICAL
        text = memlens_judge.prepared(answer.text)
        if memlens_judge.too_long(text):
            return Verdict("wrong", f"over {memlens_judge.MOST_WORDS} words{aside}")
        found = self.kept.get(self.judge.key(question, text), judges.AWAITS)
        if isinstance(found, int):
            return Verdict("right" if found else "wrong", f"judge {self.judge.model}{aside}")
        if self.released and found != judges.AWAITS:
            return Verdict("wrong", f"{found}, 0 as released{aside}")
        return Verdict("unjudged", found)

    def judges(self, question: Question, answer: Answer) -> bool:
        """Whether the judge has a say: not on what failed or was cut off, nor where a tag is the answer."""
        cut = answer.finish == "length" and not (self.released and self.judge is not None)
        return answer.status == "ok" and not cut and not question.answer_is_record


def judging(benchmark: benchmarks.Benchmark, folder: Path | None) -> Callable[..., Verdict]:
    """How answers to a benchmark are judged: by exact match, or by the judge in effect in their folder, whose verdicts are
    read once, here. No call is made: what has no verdict yet awaits it."""
    if benchmark.judge == "exact":
        return judges.judge
    stated = in_effect(folder) if folder is not None else {}
    if stated.get("model") == LOCAL:
        return Judging(judge=None)
    judge = Judge(**{name: stated[name] for name in ("model", "settings", "commit")}) if stated else Judge()
    kept = _kept(_file(folder, judge.model)) if folder is not None else {}
    return Judging(judge, kept, bool(stated.get("released_scoring")))


def in_effect(folder: Path) -> dict[str, Any]:
    """What `judge.json` of a folder of answers says; {} where no judge was asked yet."""
    path = folder / "verdicts" / "judge.json"
    if not path.exists():
        return {}
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        stated = None
    lacking = {"model", "settings", "commit", "canonical", "released_scoring"} - {*(stated or {})}
    if not isinstance(stated, dict) or lacking:
        raise JudgeError(f"{path}: unreadable or incomplete; remove it and run delivermem judge again")
    return stated


def told(folder: Path) -> str:
    """The judge in effect in a folder, as provenance ends with it; "" where none was asked."""
    stated = in_effect(folder)
    if not stated:
        return ""
    scoring = " (released two-state scoring)" if stated["released_scoring"] else ""
    return f"; judged by {stated['model']}{scoring}{'' if stated['canonical'] else NOT_CANONICAL}"


def label(folder: Path) -> str:
    """The name of a folder's backbone in tables and figures: its own, and that its judge is not canonical."""
    stated = in_effect(folder)
    other = stated and not stated["canonical"]
    return f"{folder.name} [judge {stated['model']}{NOT_CANONICAL}]" if other else folder.name


def judge_answers(
    benchmark: str,
    backbone: str,
    *,
    url: str = "",
    model: str = MODEL,
    experiment: str | None = None,
    conditions: Sequence[str] | None = None,
    outputs: Path | None = None,
    concurrency: int = 8,
    closed: bool = False,
    local: bool = False,
    released_scoring: bool = False,
    fresh: bool = False,
    say: Callable[[str], None] = print,
) -> dict[str, int]:
    """Have the kept answers of a benchmark and backbone judged, each distinct one once, and state the verdicts in their lines.

    backbone: the name of its folder, or of the model. url: an OpenAI-compatible server that serves `model`; needed where a
    verdict is missing. experiment, conditions: of those alone. closed: the released settings for a hosted, closed model.
    local: by exact match, for smoke runs, labelled not canonical. released_scoring: two states (`Judging`). fresh: ask
    again for all. What failed or could not be read is asked again by the next call. Returns counts: asked, failed, unread,
    and of all lines right, wrong, unjudged. Raises JudgeError, RunError, CheckoutError: one sentence with the cure.
    """
    data = benchmarks.load(benchmark)
    if data.judge == "exact":
        raise JudgeError(f"benchmark {benchmark!r} is scored by exact match; it needs no judge")
    if concurrency < 1:
        raise JudgeError(f"concurrency={concurrency}: give 1 or more")
    root = _folder(outputs or runs.data_dir() / "outputs", benchmark, backbone)
    made_on = json.loads((root / "manifest.json").read_text(encoding="utf-8")).get("revision")
    if made_on != data.revision:
        raise JudgeError(
            f"{root}: made on {benchmark} {made_on}, which is now {data.revision}; move that folder away and run again"
        )
    grid = experiments.chosen(experiments.find(experiment), conditions) if experiment else ()
    wanted = {arm.name for arm in grid} or {*(conditions or ())}
    judge = None if local else Judge(model, CLOSED if closed else SETTINGS)
    asked_of = {question.id: question for question in data.questions}
    counts: Counter[str] = Counter()
    with runs.Folder(root) as folder:
        held = {path.stem: list(runs.read(path)) for path in sorted(root.glob("*.jsonl"))}
        if unknown := sorted(set(conditions or ()) - held.keys()):
            raise JudgeError(
                f"{root}: no answers under condition {unknown[0]!r}; at hand: {', '.join(held) or 'none'}"
            )
        if judge is not None:
            path = _file(root, judge.model)
            runs.mend(path)
            known = Judging(judge, {} if fresh else _kept(path), released_scoring)
            lines = [line for name in held if name in (wanted or held) for line in held[name]]
            if cases := _missing(lines, asked_of, known):
                counts += _ask(judge, cases, path, url, concurrency, say)
        stated = dict(model=LOCAL, settings={}, commit="") if judge is None else judge.identity
        about = dict(canonical=judge is not None and judge.canonical, released_scoring=released_scoring)
        _replace(root / "verdicts" / "judge.json", json.dumps({**stated, **about}, indent=1) + "\n")
        verdict_of = judging(data, root)
        for name, part in held.items():
            for line in part:
                new = _restated(line, asked_of, verdict_of)
                if new != line:
                    folder.append(new)
            folder.settle(name, list(asked_of))
            settled = runs.read(root / f"{name}.jsonl")
            counts.update(x["verdict"] for x in settled if x["status"] != "not_applicable")
        folder.write_manifest({}, asked=False)
    found = {state: counts[state] for state in ("asked", "failed", "unread", "right", "wrong", "unjudged")}
    say(f"{root.name} on {benchmark}{told(root)}: " + ", ".join(f"{n} {state}" for state, n in found.items()))
    if counts["failed"] or counts["unread"]:
        say(f"{counts['failed'] + counts['unread']} have no verdict; the same command asks for them again")
    return found


def _ask(
    judge: Judge,
    cases: Mapping[str, tuple[Question, str]],
    path: Path,
    url: str,
    concurrency: int,
    say: Callable[[str], None],
) -> Counter[str]:
    """Ask for verdicts, so many calls at a time, and keep each as it comes. Returns counts: asked, failed, unread."""
    prompts, server = memlens_judge.prompts(commit=judge.commit), memlens_judge.client(url)
    say(f"{len(cases)} verdicts to ask of {judge.model} at {url}")

    def one(key: str) -> tuple[dict[str, Any], Reply]:
        question, text = cases[key]
        message = prompts.prompt(question, text)
        reply = memlens_judge.ask(server, judge, message)
        of_it = dict(score=reply.score, trouble=reply.trouble, reply=reply.text, finish=reply.finish)
        about = dict(key=key, question_id=question.id, judge=judge.identity, task=prompts.task(question))
        digest = sha256(message.encode()).hexdigest()
        return {**about, "prompt": digest, **of_it, "seconds": round(reply.seconds, 3)}, reply

    path.parent.mkdir(exist_ok=True)
    counts, clock, lost, synced = Counter(asked=0), Clock(say, "verdicts"), 0, time.monotonic()
    pool = ThreadPoolExecutor(concurrency)
    try:
        with path.open("ab", buffering=0) as file:
            for future in as_completed([pool.submit(one, key) for key in cases]):
                line, reply = future.result()
                file.write((json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode())
                if time.monotonic() - synced > runs.FSYNC_EVERY:
                    os.fsync(file.fileno())
                    synced = time.monotonic()
                failed = reply.trouble == judges.FAILED
                counts.update(asked=1, failed=failed, unread=reply.trouble == judges.UNREAD)
                clock.tick(counts["asked"], len(cases), f"{counts['failed']} failed")
                lost = lost + 1 if failed else 0
                if lost >= max(LOST, concurrency):
                    raise JudgeError(
                        f"{url}: {lost} calls in a row failed (the last: {reply.text}); mend the server and run the same "
                        "command again, which keeps what was judged"
                    )
            os.fsync(file.fileno())
    finally:
        pool.shutdown(cancel_futures=True)
        server.close()
    return counts


def troubles(folder: Path) -> Iterator[str]:
    """What is wrong with the kept verdicts of a folder of answers, a sentence each."""
    try:
        in_effect(folder)
        for path in sorted((folder / "verdicts").glob("*.jsonl")):
            for number, line in enumerate(runs.read(path), 1):
                missing = [name for name in FIELDS if name not in line]
                cure = "restore the file, or remove it and run delivermem judge again"
                if missing:
                    yield f"{path}, line {number}: no field {missing[0]!r}; {cure}"
                elif line["score"] != (
                    None if line["trouble"] == judges.FAILED else memlens_judge.read_score(line["reply"])
                ):
                    yield f"{path}, line {number}: its score is not what its reply says; {cure}"
    except ValueError as error:
        yield str(error)


# -- the lines ------------------------------------------------------------------------------------------------


def _answer(line: Mapping[str, Any]) -> Answer:
    return Answer(line["answer"], line["status"], line["finish"])


def _restated(
    line: dict[str, Any], asked_of: Mapping[str, Question], verdict_of: Callable[..., Verdict]
) -> dict[str, Any]:
    """A line with its verdict of now. A tag's verdict, which needs the prompt, stays."""
    question = asked_of.get(line["question_id"])
    if question is None or question.answer_is_record:
        return line
    verdict = verdict_of(question, _answer(line), Prompt("", "", (), ""))
    return line | dict(verdict=verdict.state, rule=verdict.rule)


def _missing(
    lines: Iterable[Mapping[str, Any]], asked_of: Mapping[str, Question], judging: Judging
) -> dict[str, tuple[Question, str]]:
    """Key -> question and prepared answer of every verdict that is missing, each once."""
    found: dict[str, tuple[Question, str]] = {}
    for line in lines:
        question, answer = asked_of.get(line["question_id"]), _answer(line)
        if question is None or judging.judge is None or not judging.judges(question, answer):
            continue
        text = memlens_judge.prepared(answer.text)
        key = judging.judge.key(question, text)
        if not memlens_judge.too_long(text) and not isinstance(judging.kept.get(key), int):
            found.setdefault(key, (question, text))
    return found


def _folder(root: Path, benchmark: str, backbone: str) -> Path:
    at_hand = {path.name: path for path in runs.folders(root) if path.parent.name == benchmark}
    for name in (backbone, backbone.partition("@")[0].replace("/", "--"), Path(backbone).name):
        if name in at_hand:
            return at_hand[name].resolve()
    cure = f"at hand: {', '.join(at_hand)}" if at_hand else "make some with: delivermem run EXPERIMENT"
    raise JudgeError(f"{root} holds no answers of backbone {backbone!r} on {benchmark}; {cure}")


def _file(folder: Path, model: str) -> Path:
    return folder / "verdicts" / (re.sub(r"[^\w.-]+", "-", model.replace("/", "--")) + ".jsonl")


def _kept(path: Path) -> dict[str, int | str]:
    """Key -> score, or the trouble of having none, which never takes the place of a score."""
    kept: dict[str, int | str] = {}
    for line in runs.read(path):
        if line.get("score") is not None or not isinstance(kept.get(line["key"]), int):
            kept[line["key"]] = line["trouble"] if line.get("score") is None else int(line["score"])
    return kept


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8", newline="\n")
    part.replace(path)
