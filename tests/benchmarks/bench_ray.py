"""Two workers of the Ray engine beside one, over the same prompts: `python tests/benchmarks/bench_ray.py`.

The embedded model on CPUs, one thread a worker, on a Ray of this machine's own. Prints the rate of answers from the first block that
came back to the last, without Ray's and the workers' start, their ratio, and the seconds of the whole. The two take turns, so that a machine
that slows down slows both. Each worker loads before the first block is counted: the first `--skip` answers are left out.
"""

import argparse
import os
import statistics
import time

os.environ["OMP_NUM_THREADS"] = "1"  # before torch: workers inherit it

from delivermem import DELIVERMEM, backbones, benchmarks, deliver, fleet, retrieval, runs
from delivermem.records import Prompt

TINY = str(runs.data_dir() / "models" / "tiny-qwen3-vl")


def rate(prompts: list[Prompt], workers: int, batch: int, skip: int) -> tuple[float, float]:
    """Answers a second after the first `skip`, and seconds of the whole."""
    ours = backbones.load(
        TINY, engine="ray", workers=workers, batch_size=batch, max_new_tokens=32, device="cpu"
    )
    started = time.perf_counter()
    moments = []
    for _, answer in ours.answer(iter(prompts)):
        assert answer.status == "ok", answer.finish
        moments.append(time.perf_counter())
    assert len(moments) == len(prompts)
    return (len(moments) - skip) / (moments[-1] - moments[skip - 1]), moments[-1] - started


def main() -> None:
    take = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    take.add_argument("--count", type=int, default=768, help="prompts")
    take.add_argument("--batch", type=int, default=4)
    take.add_argument("--skip", type=int, default=64, help="answers before the clock starts")
    take.add_argument("--turns", type=int, default=3)
    given = take.parse_args()
    asked = benchmarks.load("mini-memlens").questions
    asked = [asked[i % len(asked)] for i in range(given.count)]
    prompts = [deliver(retrieval.rank("bm25", q, 10, seed=0), q.text, DELIVERMEM) for q in asked]
    ratios = []
    with fleet._cluster(None, 2):
        for turn in range(given.turns):
            (one, whole_one), (two, whole_two) = (rate(prompts, n, given.batch, given.skip) for n in (1, 2))
            ratios.append(two / one)
            print(
                f"turn {turn + 1}: one worker {one:.1f} answers a second ({whole_one:.1f} s in all), "
                f"two {two:.1f} ({whole_two:.1f} s): {two / one:.2f} times"
            )
    print(f"median: {statistics.median(ratios):.2f} times")


if __name__ == "__main__":
    main()
