"""What `import delivermem` costs beside what everyone loads: `python tests/benchmarks/bench_import.py`.

Each statement runs in fresh interpreters, in turn; the least of seven counts. The budget is 0.3 s.
"""

import subprocess
import sys

STATEMENTS = (
    "import delivermem",
    "import delivermem, delivermem.cli",
    "import numpy, PIL.Image",
    "import torch",
)
CODE = "import time; s = time.perf_counter(); {}; print(time.perf_counter() - s)"


def seconds(statement: str) -> float:
    done = subprocess.run([sys.executable, "-c", CODE.format(statement)], capture_output=True, check=True)
    return float(done.stdout)


def main() -> None:
    least = [min(times) for times in zip(*([seconds(s) for s in STATEMENTS] for _ in range(7)), strict=True)]
    for statement, found in zip(STATEMENTS, least, strict=True):
        print(
            f"{statement:35} {1000 * found:8.1f} ms   {found / least[2]:6.2f} times numpy and Pillow together"
        )


if __name__ == "__main__":
    main()
