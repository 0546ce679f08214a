"""MemLens's published JSON layout, read into records and questions (arXiv 2605.14906, dataset card and code)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from delivermem.benchmarks import Benchmark
from delivermem.delivery import Decisions, deliver
from delivermem.records import REFUSAL, Memory, Picture, Prompt, Question, Record, format_time, parse_time

KINDS = (
    "information_extraction", "multi_session_reasoning", "temporal_reasoning", "knowledge_update", "answer_refusal",
)  # fmt: skip
IMAGE_KEYS = ("file", "path", "file_path", "img_file")
SYSTEM = f"Reply from the memories that follow. If they do not hold the answer, reply: {REFUSAL}"
INSTRUCTION = "Reply with the answer alone.\n"


class FormatError(ValueError):
    """A file that is not in the layout: one sentence with the file, the question, the field and the cure."""


def read(
    path: Path, *, images: Path | None = None, name: str = "memlens", revision: str = "local"
) -> Benchmark:
    """Read a MemLens JSON file: a list of questions, or {"data": [...]}.

    images: the folder that image paths are relative to (default: `release_images` beside the file). One record per
    turn, `<session id>:<turn>`; its time is its session's date. Evidence is what `has_answer` marks; where it marks
    nothing, every turn of the sessions in `answer_session_ids`.
    """
    folder = Path(os.path.abspath(images or path.parent / "release_images"))
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise FormatError(f"{path}: not JSON ({error}); fetch the file again") from None
    rows = data["data"] if isinstance(data, dict) and "data" in data else data
    if not isinstance(rows, list):
        raise FormatError(
            f"{path}: expected a list of questions or {{'data': [...]}}; is this a MemLens dataset file?"
        )
    memories: dict[str, Memory] = {}
    questions = []
    for row in rows:
        try:
            questions.append(_question(path, row, folder, memories))
        except FormatError:
            raise
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            name_of = row.get("question_id", "?") if isinstance(row, dict) else "?"
            raise FormatError(
                f"{path}: question {name_of!r} is not in MemLens's layout ({type(error).__name__}: {error}); "
                "fetch the file again"
            ) from None
    return Benchmark(name, revision, tuple(questions))


def full_context(question: Question) -> Prompt:
    """The prompt that reads everything: each turn a message of its role, its pictures in place, before the first of a
    session its number and date; last the instruction, the question's date and the question.

    Source: MemLens (arXiv 2605.14906), how its evaluator asks a model that has no memory. The words are ours.
    """
    whole = deliver(question.memory, question, Decisions(identity="none", time="none"))
    items, sessions = [], set()
    for item, record in zip(whole.items, question.memory, strict=True):
        new = record.session not in sessions
        sessions.add(record.session)
        header = f"=== Session {len(sessions)} (Date: {record.stated_time}) ===\n" if new else ""
        items.append(replace(item, lead=header, role=record.role))
    date = f"Question Date: {format_time(question.time)}\n" if question.time else ""
    return replace(
        whole,
        system=SYSTEM,
        preamble=INSTRUCTION,
        items=tuple(items),
        question=f"{date}Question: {question.text}",
        decisions={},
        layout="chat",
    )


def _need(path: Path, row: dict[str, Any], field: str) -> Any:
    if field not in row:
        raise FormatError(
            f"{path}: question {row.get('question_id', '?')!r} has no field {field!r}; fetch the file again"
        )
    return row[field]


def _question(path: Path, row: dict[str, Any], folder: Path, memories: dict[str, Memory]) -> Question:
    kind = str(_need(path, row, "question_type"))
    if kind not in KINDS:
        raise FormatError(
            f"{path}: question {row['question_id']!r} has question_type {kind!r}; known: {', '.join(KINDS)}"
        )
    records, gold = [], []
    dates, ids = _need(path, row, "haystack_dates"), _need(path, row, "haystack_session_ids")
    sessions = [s["session"] if isinstance(s, dict) else s for s in _need(path, row, "haystack_sessions")]
    for session, date, turns in zip(ids, dates, sessions, strict=True):
        for i, turn in enumerate(turns):
            record_id = f"{session}:{i:02d}"
            if turn.get("has_answer") is True:
                gold.append(record_id)
            pictures = tuple(_picture(path, image, folder) for image in turn.get("images") or ())
            time = parse_time(date) if date else None
            role = "assistant" if "assistant" in str(turn["role"]).lower() else "user"
            records.append(Record(record_id, turn.get("content") or "", time, role, session, pictures, date))
    marked = set(row.get("answer_session_ids") or ())
    gold = gold or [record.id for record in records if record.session in marked]
    # questions to one conversation share one memory, so that it is one cluster
    text = json.dumps(
        [
            ids,
            dates,
            [[(t.get("role"), t.get("content"), t.get("images")) for t in turns] for turns in sessions],
        ]
    )
    memory = memories.setdefault(text, Memory(f"conversation-{len(memories):03d}", tuple(records)))
    answer = str(_need(path, row, "answer"))
    subtype = str(row.get("question_subtype") or "")
    asked_at = row.get("question_date") or ""
    return Question(
        id=str(_need(path, row, "question_id")),
        text=str(_need(path, row, "question")),
        answer=REFUSAL if kind == "answer_refusal" else answer,
        kind=kind,
        memory=memory,
        subtype=subtype,
        time=parse_time(asked_at) if asked_at else None,
        gold=tuple(gold),
        answer_is_record=answer in {record.id for record in records},
    )


def _picture(path: Path, image: dict[str, Any], folder: Path) -> Picture:
    named = next((image[key] for key in IMAGE_KEYS if image.get(key)), "")
    name = str(named[0] if isinstance(named, list) else named)
    file = Path(os.path.normpath(folder / name))  # by its name: a hub's cache keeps links to files elsewhere
    if not name or not file.is_relative_to(folder):
        raise FormatError(f"{path}: image {name!r} lies outside {folder}; only files below it are read")
    return Picture(file.relative_to(folder).as_posix(), file, str(image.get("blip_caption") or ""))
