"""Answering with several workers through Ray Data: one a GPU, on this machine or on a cluster, each a backbone of its own.

Prompts are drawn in blocks, as workers take them; answers stream back as blocks are done. A block whose worker is lost runs
again on another.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cached_property
from itertools import chain, islice
from typing import Any

from delivermem import backbones
from delivermem.backbones import BackboneError, needs
from delivermem.records import Answer, Prompt

BLOCK = 2
"""Batches of a worker that travel together."""
AHEAD = 4
"""Blocks for each worker that are drawn and not yet answered."""
TRIES = 3
"""How often a worker may be lost and started again, on average."""
PATIENCE = 0.2
"""Seconds after which one who waits looks whether all is over."""


class RayBackbone:
    """`workers` backbones behind Ray Data, each with a GPU where the cluster has one. Arguments as of `backbones.load`.

    With url every worker is a client of that server, `batch_size` requests in flight each. address: a cluster to join ("auto",
    or host:port), whose nodes have this package, and the model where it is named by a folder; without, a cluster of this
    machine's own is started and stopped again. identity is that of the backbone of a worker, so that its answers are
    found under the same keys by any engine.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | None,
        address: str | None,
        workers: int | None,
        image_tokens: int | None,
        batch_size: int,
        max_new_tokens: int,
        dtype: str | None,
        device: str | None,
        quantization: str | None,
    ):
        needs("ray", "ray", "engine ray")
        if workers is not None and workers < 1:
            raise BackboneError(f"workers={workers}: give 1 or more")
        if device not in (None, "cpu", "cuda"):
            raise BackboneError(f"device {device!r}: under engine ray each worker has one GPU; leave it out")
        self.address, self.workers, self.batch_size = address, workers, batch_size
        self._settings: dict[str, Any] = dict(
            name=name, image_tokens=image_tokens, batch_size=batch_size, max_new_tokens=max_new_tokens
        )
        if url:
            self._settings |= dict(engine="openai", url=url)
        else:
            self._settings |= dict(dtype=dtype, device=device, quantization=quantization)
        self._served, self._device = bool(url), device
        self._like = backbones.load(**self._settings)
        self.name = self._like.name

    @cached_property
    def identity(self) -> dict[str, Any]:
        """That of a worker. A driver without a GPU asks a worker of its cluster for the dtype where none was given."""
        undecided = (
            not self._served and self.address and self._settings["dtype"] is None and self._device != "cpu"
        )
        if undecided and backbones.device_of(None) == "cpu":
            with _cluster(self.address, None) as ray:
                if ray.cluster_resources().get("GPU"):
                    settings = self._settings

                    def dtype() -> Any:
                        return backbones.load(**settings).identity["dtype"]

                    ask = ray.remote(num_gpus=1)(dtype)
                    self._settings["dtype"] = ray.get(ask.remote())
                    self._like = backbones.load(**self._settings)
        return self._like.identity

    def answer(self, prompts: Iterable[Prompt]) -> Iterator[tuple[int, Answer]]:
        """Answer every prompt once, block by block as workers finish. What fails alone is a failed Answer, as the worker's
        backbone gives it; a worker that can't start, or blocks that lose worker after worker, stop the run: BackboneError."""
        blocks = self._blocks(prompts)
        first = next(blocks, None)
        if first is None:
            return
        if not self._served:
            self._settings["dtype"] = self.identity["dtype"]
        with _cluster(self.address, self.workers) as ray:
            gpus = (
                int(ray.cluster_resources().get("GPU", 0))
                if self._device != "cpu" and not self._served
                else 0
            )
            size = self.workers or max(1, gpus)
            if gpus and size > gpus:
                raise BackboneError(
                    f"workers={size}, but the cluster has {gpus} GPUs; give as many, or fewer"
                )
            begun = [first, *islice(blocks, size - 1)]  # no worker for which there is no block
            yield from self._streamed(ray, begun, blocks, len(begun), bool(gpus))

    def _blocks(self, prompts: Iterable[Prompt]) -> Iterator[list[tuple[int, Prompt]]]:
        numbered = enumerate(prompts)
        while block := list(islice(numbered, BLOCK * self.batch_size)):
            yield block

    def _streamed(
        self,
        ray: Any,
        begun: list[list[tuple[int, Prompt]]],
        rest: Iterator[list[tuple[int, Prompt]]],
        size: int,
        on_gpu: bool,
    ) -> Iterator[tuple[int, Answer]]:
        from ray.util.queue import Queue

        line = Queue(actor_options=dict(num_cpus=0))
        room = threading.Semaphore(AHEAD * size)  # Ray itself would read hundreds of prompts ahead
        over, trouble = threading.Event(), []
        drawn = answered = 0

        def draw() -> None:
            nonlocal drawn
            try:
                for block in chain(begun, rest):
                    while not room.acquire(timeout=PATIENCE):
                        if over.is_set():
                            return
                    drawn += len(block)
                    line.put(block)
            except BaseException as error:
                trouble.append(error)
            finally:
                with suppress(ray.exceptions.RayError):
                    line.put(None)

        hand = threading.Thread(target=draw, name="draws prompts", daemon=True)
        hand.start()
        starts = ray.remote(num_cpus=0)(Starts).remote(size * (1 + TRIES))
        work = dict(settings=self._settings, identity=self.identity, starts=starts)
        rows = _answers(ray, line, work, size, on_gpu)
        try:
            for row in rows:
                room.release()
                for i, answer in row["answers"]:
                    answered += 1
                    yield i, Answer(**answer)
        except ray.exceptions.RayError as error:
            raise BackboneError(_said(error)) from None
        finally:
            over.set()
            hand.join()
            rows.close()
            line.shutdown(force=True)
        if trouble:
            raise trouble[0]
        if answered != drawn:
            raise BackboneError(
                f"Ray lost {drawn - answered} of {drawn} prompts; run again, the rest is kept"
            )


def _answers(
    ray: Any, line: Any, work: Mapping[str, Any], size: int, on_gpu: bool
) -> Generator[dict[str, Any], None, None]:
    """A row of answers for each block, as Ray Data streams them: one task reads the queue, `size` actors answer."""
    from ray.data import ActorPoolStrategy

    # Read on the driver's node: what was drawn from the queue is there, and can't be drawn twice.
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    source = ray.data.read_datasource(_source(line), override_num_blocks=1, num_cpus=0, label_selector=here)
    answered = source.map_batches(
        Worker,
        fn_constructor_kwargs=work,
        batch_size=None,
        batch_format="pandas",
        compute=ActorPoolStrategy(size=size),
        num_cpus=0 if on_gpu else 1,
        num_gpus=1 if on_gpu else 0,
    )
    yield from answered.iter_rows()


class Starts:
    """Counts the workers that start, as Ray starts them again without end."""

    def __init__(self, most: int):
        self.left = most

    def allowed(self) -> bool:
        self.left -= 1
        return self.left >= 0


class Worker:
    """A backbone in a process of its own: takes blocks of prompts, gives their answers."""

    def __init__(self, settings: Mapping[str, Any], identity: Mapping[str, Any], starts: Any):
        import ray

        if not ray.get(starts.allowed.remote()):
            raise BackboneError(
                "workers were lost again and again; see that one has memory enough for the model"
            )
        self.backbone = backbones.load(**settings)
        other = [name for name, value in self.backbone.identity.items() if identity.get(name) != value]
        if other:
            raise BackboneError(
                f"a worker's {other[0]} is {self.backbone.identity[other[0]]}, this machine's {identity.get(other[0])}; "
                "install the same versions and weights on every node"
            )

    def __call__(self, rows: Any) -> Any:
        blocks = [list(block) for block in rows["prompts"]]
        return {"answers": [self._answered(block) for block in blocks]}

    def _answered(self, block: list[tuple[int, Prompt]]) -> list[tuple[int, dict[str, Any]]]:
        answers = self.backbone.answer(prompt for _, prompt in block)
        return [(block[at][0], asdict(answer)) for at, answer in answers]


def _source(line: Any) -> Any:
    """A Ray data source whose one task reads blocks from the queue until there is None."""
    import pandas as pd
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    def read() -> Iterator[pd.DataFrame]:
        while (block := line.get()) is not None:
            yield pd.DataFrame({"prompts": [block]})  # one row, which no limit of sizes splits

    class Drawn(Datasource):
        def get_name(self) -> str:
            return "Prompts"

        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:
            about = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
            return [ReadTask(read, about)]

    return Drawn()  # type: ignore[no-untyped-call]


@contextmanager
def _cluster(address: str | None, workers: int | None) -> Iterator[Any]:
    """Ray, joined or started and left as found: no dashboard, no usage statistics, no logs or bars among our own words."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    import ray
    import ray.data

    mine = not ray.is_initialized()
    if mine:
        quiet: dict[str, Any] = dict(log_to_driver=False, logging_level=logging.ERROR)
        try:
            if address:
                ray.init(address=address, **quiet)
            else:
                cpus = max(os.cpu_count() or 1, workers or 1)
                ray.init(num_cpus=cpus, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BackboneError(f"no Ray at {address or 'this machine'}: {_said(error)}") from None
    context = ray.data.DataContext.get_current()
    before = {name: getattr(context, name) for name in QUIET}
    for name, value in QUIET.items():
        setattr(context, name, value)
    loggers = [logging.getLogger(name) for name in ("ray", "ray.data")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for name, value in before.items():
            setattr(context, name, value)
        if mine:
            ray.shutdown()


QUIET: dict[str, Any] = dict(
    enable_progress_bars=False,
    print_on_execution_start=False,
    enable_auto_log_stats=False,
    target_max_block_size=1,  # a block goes on as soon as it is read
)


def _said(error: Exception) -> str:
    """What an error of Ray says: its cause's own sentence, where a worker raised one."""
    cause: Any = error
    while getattr(cause, "cause", None) is not None:
        cause = cause.cause
    lines = [text for text in str(cause).splitlines() if text.strip()]
    return " ".join(lines[-1].split())[:300] if lines else type(cause).__name__
