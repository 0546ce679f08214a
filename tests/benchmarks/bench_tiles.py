"""MaxSim over 4,695 pictures of 9 tiles x 768 beside one bare product of the same array: `python tests/benchmarks/bench_tiles.py`.

Ratios within one run, the least of several in turn. Beside it the same work by a Python loop over pictures, and by a
published late-interaction scorer (`pip install maxsim-cpu`), which must agree.
"""

import importlib.util
import itertools
import time
from collections.abc import Callable

import numpy as np

from delivermem.tiles import Index

PICTURES, TILES, D, QUERIES = 4695, 9, 768, 64


def main() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(PICTURES * TILES, D)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = Index(vectors, np.arange(0, PICTURES * TILES + 1, TILES))
    queries = vectors[:QUERIES] + 0.1

    def loop() -> list[float]:
        ends = index.offsets
        return [float((vectors[a:b] @ queries[0]).max()) for a, b in itertools.pairwise(ends)]

    work: dict[str, tuple[Callable[[], object], int]] = {
        "bare product, one query": (lambda: vectors @ queries[0], 1),
        "MaxSim, one query": (lambda: index.scores(queries[:1]), 1),
        f"MaxSim, {QUERIES} queries, each": (lambda: index.scores(queries), QUERIES),
        "Python loop, one query": (loop, 1),
    }
    if importlib.util.find_spec("maxsim_cpu"):
        import maxsim_cpu

        images = vectors.reshape(PICTURES, TILES, D)
        work["maxsim-cpu, one query"] = (lambda: maxsim_cpu.maxsim_scores(queries[:1], images), 1)
        published = maxsim_cpu.maxsim_scores(queries[:1], images)
        assert np.allclose(published, index.scores(queries[:1])[0], atol=1e-4)
    else:
        print("maxsim-cpu is not installed; pip install maxsim-cpu to see it beside")
    least = dict.fromkeys(work, float("inf"))
    for _ in range(9):
        for name, (call, count) in work.items():
            started = time.perf_counter()
            call()
            least[name] = min(least[name], (time.perf_counter() - started) / count)
    bare = least["bare product, one query"]
    for name, seconds in least.items():
        print(f"{name:28} {1000 * seconds:8.2f} ms   {seconds / bare:6.2f} times the bare product")


if __name__ == "__main__":
    main()
