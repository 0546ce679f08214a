"""MemLens's published JSON layout, read into records and questions (arXiv 2605.14906, dataset card and code)."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from delivermem.benchmarks import Benchmark
from delivermem.benchmarks.released import Words
from delivermem.delivery import Decisions, deliver
from delivermem.pictures import unreadable
from delivermem.records import (
    IMAGE_MARK,
    REFUSAL,
    Item,
    Memory,
    Picture,
    Prompt,
    Question,
    Record,
    Slot,
    format_time,
    parse_time,
)  # fmt: skip

KINDS = (
    "information_extraction", "multi_session_reasoning", "temporal_reasoning", "knowledge_update", "answer_refusal",
)  # fmt: skip
IMAGE_KEYS = ("file", "path", "file_path", "img_file")
WEB_KEYS = ("image_hf_url", "image_url")
SYSTEM = f"Reply from the memories that follow. If they do not hold the answer, reply: {REFUSAL}"
INSTRUCTION = "Reply with the answer alone.\n"


class FormatError(ValueError):
    """A file that is not in the layout: one sentence with the file, the question, the field and the cure."""


def read(
    path: Path, *, images: Path | None = None, name: str = "memlens", revision: str = "local"
) -> Benchmark:
    """Read a MemLens JSON file: a list of questions, or {"data": [...]}, a question at a time.

    images: the folder that image paths are relative to (default: `release_images` beside the file). One record per
    turn, `<session id>:<turn>`; its time is its session's date. Evidence is what `has_answer` marks; where it marks
    nothing, every turn of the sessions in `answer_session_ids`.
    """
    folder = Path(os.path.abspath(images or path.parent / "release_images"))
    return benchmark(((str(path), row) for row in rows(path)), folder, name=name, revision=revision)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """The questions of a JSON file as they are stored, one in memory at a time."""
    import ijson

    with path.open("rb") as file:
        start = file.read(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        file.seek(3 if file.seek(0) == 0 and file.read(3) == b"\xef\xbb\xbf" else 0)
        found = 0
        try:
            for row in ijson.items(file, "data.item" if start == b"{" else "item", use_float=True):
                found += 1
                yield row
        except ijson.JSONError as error:
            raise FormatError(f"{path}: not JSON ({error}); fetch the file again") from None
    if not found:
        raise FormatError(
            f"{path}: expected a list of questions or {{'data': [...]}}; is this a MemLens dataset file?"
        )


def benchmark(
    stored: Iterable[tuple[str, Any]],
    images: Path,
    *,
    name: str,
    revision: str,
    missing: Collection[str] = (),
    **about: Any,
) -> Benchmark:
    """Questions as they are stored, each with the file it comes from. missing: pictures below `images` that can't be had;
    a labelled placeholder takes the place of each, so that no other moves up. about: more of the Benchmark's fields."""
    memories: dict[str, Memory] = {}
    questions = []
    for path, row in stored:
        try:
            questions.append(_question(path, row, images, memories, frozenset(missing)))
        except FormatError:
            raise
        except (KeyError, AttributeError, TypeError, ValueError) as error:
            name_of = row.get("question_id", "?") if isinstance(row, dict) else "?"
            raise FormatError(
                f"{path}: question {name_of!r} is not in MemLens's layout ({type(error).__name__}: {error}); "
                "fetch the file again"
            ) from None
    return Benchmark(name, revision, tuple(questions), **about)


def full_context(question: Question, words: Words | None = None) -> Prompt:
    """The prompt that reads everything: each turn a message of its role, its pictures in place, before the first of a
    session its number and date; last the instruction, the question's date and the question.

    words: the released evaluator's own (`released.words`), for results on MemLens itself. Then its rules hold to the letter:
    texts of turns are stripped, pictures of a turn without marks precede its text, a turn with nothing in it is left out.
    Source: MemLens (arXiv 2605.14906), how its evaluator asks a model that has no memory. The words by default are ours.
    """
    whole = deliver(question.memory, question, Decisions(identity="none", time="none"))
    items: list[Item] = []
    sessions: set[str] = set()
    for item, record in zip(whole.items, question.memory, strict=True):
        new = record.session not in sessions
        sessions.add(record.session)
        date = (record.time_text or "unknown") if words else record.stated_time
        header = f"=== Session {len(sessions)} (Date: {date}) ===" if new else ""
        parts = _as_released(item, record) if words else item.parts
        if header and not (words and (not parts or isinstance(parts[0], Slot))):
            header += "\n"
        if parts or header or not words:
            items.append(replace(item, parts=parts, lead=header, role=record.role))
    date = f"Question Date: {format_time(question.time)}\n" if question.time else ""
    asked = words.question(question.text, question.time_text) if words else f"{date}Question: {question.text}"
    return replace(
        whole,
        system=words.system if words else SYSTEM,
        preamble="" if words else INSTRUCTION,
        items=tuple(items),
        question=asked,
        decisions={},
        layout="chat",
    )


def _as_released(item: Item, record: Record) -> tuple[str | Slot, ...]:
    """A turn's parts by the released rules."""
    slots = [part for part in item.parts if isinstance(part, Slot)]
    if not slots or IMAGE_MARK not in record.text:
        text = record.text.replace(IMAGE_MARK, "").strip()
        return (*slots, text) if text else tuple(slots)
    return tuple(part for part in item.parts if isinstance(part, Slot) or part.strip())


def _need(path: str, row: Mapping[str, Any], field: str) -> Any:
    if row.get(field) is None:
        raise FormatError(
            f"{path}: question {row.get('question_id', '?')!r} has no field {field!r}; fetch the file again"
        )
    return row[field]


def _question(
    path: str, row: Any, folder: Path, memories: dict[str, Memory], missing: frozenset[str]
) -> Question:
    kind = str(_need(path, row, "question_type"))
    if kind not in KINDS:
        raise FormatError(
            f"{path}: question {row['question_id']!r} has question_type {kind!r}, which is none of "
            f"{', '.join(KINDS)}; fetch the file again"
        )
    sessions = _sessions(path, row)
    gold = [
        f"{session}:{i:02d}"
        for session, _, turns in sessions
        for i, turn in enumerate(turns)
        if turn.get("has_answer") in (True, "true", "True")
    ]
    # questions to one conversation share one memory, so that it is one cluster
    content = [
        [s, date, [[t.get("role"), t.get("content"), t.get("images")] for t in turns]]
        for s, date, turns in sessions
    ]
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    memory = memories.get(digest)
    if memory is None:
        records = tuple(_records(path, sessions, folder, missing))
        memory = memories[digest] = Memory(f"conversation-{len(memories):03d}", records)
    marked = set(row.get("answer_session_ids") or ())
    inferred = set() if gold or not marked else {"gold"}
    gold = gold or [record.id for record in memory if record.session in marked]
    answer = REFUSAL if kind == "answer_refusal" else str(_need(path, row, "answer"))
    text, subtype = str(_need(path, row, "question")), str(row.get("question_subtype") or "")
    if not subtype and (subtype := subtype_of(kind, text, answer)):
        inferred.add("subtype")
    nested = row.get("question_content")
    old = row.get("old_answer") or (nested.get("old_answer") if isinstance(nested, dict) else None)
    asked_at = str(row.get("question_date") or "")
    return Question(
        id=str(_need(path, row, "question_id")),
        text=text,
        answer=answer,
        kind=kind,
        memory=memory,
        subtype=subtype,
        time=_time(asked_at),
        gold=tuple(gold),
        answer_is_record=answer in memory,
        time_text=asked_at,
        old_answer=str(old or ""),
        inferred=frozenset(inferred),
    )


def subtype_of(kind: str, question: str, answer: str) -> str:
    """The subtype of a question whose row states none, or "" where nothing tells it.

    Source: the questions' own form, as `Which of the following two durations is longer` or an answer `(2)(1)(3)`.
    """
    said, given = question.lower(), answer.strip()
    if kind in ("knowledge_update", "answer_refusal"):
        return kind
    if kind == "temporal_reasoning":
        if "two durations is longer" in said:
            return "duration_comparison"
        ordered = "chronological order" in said or re.fullmatch(r"(?:\(\d+\)[\s,>-]*){2,}", given)
        return "order_ranking" if ordered else "temporal_info_extraction"
    if kind == "multi_session_reasoning" and given.lower().rstrip(".") in ("yes", "no"):
        return "entity_resolution"
    return ""


def _sessions(path: str, row: Mapping[str, Any]) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """(id, date as stated, turns) of every session, whichever way it is stored."""
    stored = _need(path, row, "haystack_sessions")
    dates, ids = row.get("haystack_dates"), row.get("haystack_session_ids")
    of_itself = all(isinstance(session, dict) for session in stored)
    for field, values in (("haystack_dates", dates), ("haystack_session_ids", ids)):
        if values is None and not of_itself:
            _need(path, row, field)
        if values is not None and len(values) != len(stored):
            raise FormatError(
                f"{path}: question {row.get('question_id', '?')!r} has {len(stored)} sessions and "
                f"{len(values)} {field}; fetch the file again"
            )
    found = []
    for i, session in enumerate(stored):
        own = session if isinstance(session, dict) else {}
        name = str(ids[i] if ids else own.get("session_id") or f"session-{i + 1:03d}")
        date = own.get("date") or (dates[i] if dates else "") or ""
        found.append((name, str(date), list(own.get("session") or ()) if own else list(session)))
    return found


def _records(
    path: str,
    sessions: Iterable[tuple[str, str, list[dict[str, Any]]]],
    folder: Path,
    missing: frozenset[str],
) -> Iterator[Record]:
    for session, date, turns in sessions:
        for i, turn in enumerate(turns):
            role = "assistant" if "assistant" in str(turn["role"]).lower() else "user"
            pictures = tuple(_picture(path, image, folder, missing) for image in turn.get("images") or ())
            text = _text(path, session, turn.get("content"))
            yield Record(f"{session}:{i:02d}", text, _time(date), role, session, pictures, date)


def _text(path: str, session: str, content: Any) -> str:
    """A turn's text; of content in blocks the texts, joined."""
    if isinstance(content, list):
        content = "".join(
            block if isinstance(block, str) else str(block.get("text") or "") for block in content
        )
    if content is not None and not isinstance(content, str):
        raise FormatError(
            f"{path}: a turn of session {session!r} has content {content!r:.60}, which is no text; fetch the file again"
        )
    return content or ""


def _time(text: str) -> datetime | None:
    """The time, or None where none is stated or the statement can't be read; the statement itself is kept beside it."""
    try:
        return parse_time(text) if text.strip() else None
    except ValueError:
        return None


def stored_name(image: Any) -> str:
    """The path of a picture below the folder of images, by whichever key it is stored; "" where none is given."""
    named = image
    if isinstance(image, dict):
        named = next((image[key] for key in IMAGE_KEYS if image.get(key)), "")
    named = named[0] if isinstance(named, list) and named else named
    return str(named or "").removeprefix("release_images/")


def picture_names(path: str, row: Mapping[str, Any]) -> set[str]:
    """The paths of all pictures that a stored question names, but those it gives by a web address alone."""
    turns = [turn for _, _, turns in _sessions(path, row) for turn in turns]
    names = {stored_name(image) for turn in turns for image in turn.get("images") or ()}
    return {name for name in names if name and not name.startswith("http")}


def _picture(path: str, image: Any, folder: Path, missing: frozenset[str]) -> Picture:
    name, said = stored_name(image), image if isinstance(image, dict) else {}
    caption = str(said.get("blip_caption") or "")
    address = next((str(a) for a in (name, *map(said.get, WEB_KEYS)) if str(a).startswith("http")), "")
    if address and (
        not name or name == address
    ):  # nothing on disk is named; nothing is taken from the web unseen
        return Picture(address, unreadable(), caption)
    file = Path(os.path.normpath(folder / name))  # by its name: a hub's cache keeps links to files elsewhere
    if not name or not file.is_relative_to(folder):
        raise FormatError(f"{path}: image {name!r} lies outside {folder}; only files below it are read")
    place = file.relative_to(folder).as_posix()
    return Picture(place, unreadable() if place in missing else file, caption)
