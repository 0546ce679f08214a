"""Work that goes on in another thread while what it made before is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def ahead(source: Iterator[T], depth: int) -> Iterator[T]:
    """What an iterator gives, made in another thread, `depth` items ahead at most; its error is raised here."""
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: tuple[bool, Any]) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                ready.put(item, timeout=0.1)
                return

    def work() -> None:
        try:
            for item in source:
                put((True, item))
                if stopped.is_set():
                    return
            put((False, None))
        except BaseException as error:
            put((False, error))

    worker = threading.Thread(target=work, name="prepares batches", daemon=True)
    worker.start()
    try:
        while True:
            more, item = ready.get()
            if more:
                yield item
            elif item is None:
                return
            else:
                raise item
    finally:
        stopped.set()
        worker.join()
