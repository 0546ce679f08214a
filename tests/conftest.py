"""What several tests share: no network, a small memory with pictures, the embedded benchmark."""

from __future__ import annotations

import socket
from datetime import datetime

import pytest
from PIL import Image

from delivermem.benchmarks import Benchmark
from delivermem.records import REFUSAL, Memory, Picture, Question, Record


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Any connection but to this machine fails the test that makes it."""
    connect = socket.socket.connect

    def guarded(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in (
            "127.0.0.1",
            "::1",
            "localhost",
        ):
            raise AssertionError(f"a test reached for the network: {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def picture(name: str, colour: str = "red", size: tuple[int, int] = (96, 96)) -> Picture:
    return Picture(name, Image.new("RGB", size, colour), f"a {size[0]} pixel picture")


def small_memory(name: str = "m") -> Memory:
    """Six messages, three with pictures, one picture each but for the fourth, which has two."""

    def at(day: int) -> datetime:
        return datetime(2024, 5, day, 10, 0)

    records = (
        Record("r1", "A photo of the harbor. <image>", at(1), pictures=(picture("p1", "red"),)),
        Record("r2", "Nice weather in the harbor town.", at(2), role="assistant"),
        Record("r3", "My garden today: <image> is it not green?", at(3), pictures=(picture("p3", "green"),)),
        Record(
            "r4",
            "Two shots <image> and <image>",
            at(4),
            pictures=(picture("p4a", "blue"), picture("p4b", "pink")),
        ),
        Record("r5", "I bought a lamp for the office.", at(5)),
        Record("r6", "Good night.", at(6), role="assistant"),
    )
    return Memory(name, records)


@pytest.fixture
def memory() -> Memory:
    return small_memory()


@pytest.fixture
def small_benchmark(monkeypatch) -> Benchmark:
    """Four questions to two memories, known to the package as `small`."""
    from delivermem import benchmarks

    asked_at = datetime(2024, 6, 1, 9, 0)
    questions = []
    for name in ("m1", "m2"):
        memory = small_memory(name)
        questions += [
            Question(
                f"{name}-a", "What colour is the harbor?", "red", "information_extraction", memory, "colour",
                asked_at, ("r1",), frozenset({"pixels"}), 0.25,
            ),
            Question(f"{name}-b", "What is in the cellar?", REFUSAL, "answer_refusal", memory, "place", asked_at),
        ]  # fmt: skip
    made = Benchmark("small", "rev0", tuple(questions))
    benchmarks.load.cache_clear()
    monkeypatch.setitem(benchmarks.BENCHMARKS, "small", lambda: made)
    yield made
    benchmarks.load.cache_clear()
