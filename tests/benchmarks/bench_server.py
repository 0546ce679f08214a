"""How much of the requested concurrency the engine for servers keeps in flight: `python tests/benchmarks/bench_server.py`.

Against `transformers serve` of the embedded model, or with `--seconds S` a server that takes S seconds a reply; either behind a relay
that counts the requests in flight. Prints their mean over the bound, from the first request of the run to the moment the last
was taken, when the flight can only empty. The server here works on one request after another, so that it, not the engine, sets the pace.
"""

import argparse
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import serving

from delivermem import DELIVERMEM, backbones, benchmarks, deliver, retrieval


class Flight:
    """Requests in flight, over time."""

    def __init__(self) -> None:
        self.log: list[tuple[float, int]] = []
        self._now, self._lock = 0, threading.Lock()

    def step(self, by: int) -> None:
        with self._lock:
            self._now += by
            self.log.append((time.perf_counter(), self._now))

    def mean(self) -> float:
        """Over the time between the first request and the start of the last."""
        last = max(i for i in range(1, len(self.log)) if self.log[i][1] > self.log[i - 1][1])
        kept = self.log[: last + 1]
        area = sum(n * (after[0] - at) for (at, n), after in pairwise(kept))
        return area / (kept[-1][0] - kept[0][0])


@contextmanager
def relay(to: str, flight: Flight) -> Iterator[str]:
    """An address whose requests go on to the server at `to`, counted."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def _pass(self, body: bytes | None) -> None:
            request = urllib.request.Request(to.removesuffix("/v1") + self.path, body, dict(self.headers))
            with urllib.request.urlopen(request) as reply:
                content = reply.read()
                self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def do_GET(self) -> None:
            self._pass(None)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            flight.step(1)
            try:
                self._pass(body)
            finally:
                flight.step(-1)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def main() -> None:
    take = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    take.add_argument("--count", type=int, default=256, help="prompts")
    take.add_argument("--bound", type=int, nargs="*", default=[4, 16, 32], help="requests in flight")
    take.add_argument("--seconds", type=float, default=0.0)
    given = take.parse_args()
    asked = benchmarks.load("mini-memlens").questions[: given.count]
    prompts = [deliver(retrieval.rank("bm25", q, 10, seed=0), q.text, DELIVERMEM) for q in asked]
    scripted = serving.Scripted(seconds=given.seconds)
    scripted.card["id"] = serving.TINY
    name = f"a server of {given.seconds:g} s a reply" if given.seconds else "transformers serve"
    with scripted.running() if given.seconds else serving.real() as url:
        for bound in given.bound:
            flight = Flight()
            with relay(url, flight) as address:
                ours = backbones.load(
                    serving.TINY, engine="openai", url=address, batch_size=bound, max_new_tokens=8
                )
                failed = [answer.finish for _, answer in ours.answer(prompts[:1]) if answer.status != "ok"]
                flight.log.clear()  # of the probes
                started = time.perf_counter()
                failed += [answer.finish for _, answer in ours.answer(prompts) if answer.status != "ok"]
                took = time.perf_counter() - started
            assert not failed, failed[0]
            mean, most = flight.mean(), max(n for _, n in flight.log)
            print(
                f"{name}: {len(prompts)} prompts in {took:.1f} s, bound {bound}: {mean:.2f} in flight on average "
                f"({100 * mean / bound:.0f} %), {most} at most"
            )


if __name__ == "__main__":
    main()
