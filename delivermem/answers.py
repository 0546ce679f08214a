"""What a notebook draws: the answers of one setting, cached or first asked for, and where its figures and numbers go.

A setting is what the parameters of a notebook say. The default is the embedded benchmarks with the embedded models; its
figures are the repository's own. Any other setting writes below them, in a folder of its own name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from delivermem import backbones, benchmarks, completeness, experiments, runs
from delivermem.pairing import Missing, awaiting, state_of
from delivermem.runs import RunError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

EMBEDDED = "mini"
"""The name for every embedded benchmark that an experiment was run on."""
SHOPS, CONVERSATIONS = ("adapter", "errand"), ("cost", "frontier")
"""Experiments that are asked where there is a shop, and where there are conversations, alone."""
SERVER = "OPENAI_BASE_URL"
"""Environment variable with a server's address, as the openai client reads it."""


@dataclass
class Setting:
    """A benchmark, a backbone, and how many questions.

    benchmark: EMBEDDED, a benchmark's name, or with `length` the two parts of one: `memlens` and `32k`, `dmv` and `10`;
    without a length all lengths at hand. backbone: as of `backbones.load`, "" for each experiment's own embedded model.
    engine: as of `backbones.load`; the address of a server is read from OPENAI_BASE_URL. limit: the first N questions.
    regenerate: ask for what is missing before it is drawn. outputs: folder of answers (default: data/outputs). Raises
    ValueError, one sentence, for an unknown benchmark, engine or limit.
    """

    benchmark: str = EMBEDDED
    length: str | int = ""
    backbone: str = ""
    engine: str = "transformers"
    limit: int | None = None
    regenerate: bool = False
    outputs: Path | None = None
    say: Callable[[str], None] = print
    open: dict[str, int] = field(default_factory=dict)
    """Experiment -> answers that failed or await their verdict."""

    def __post_init__(self) -> None:
        self.length = str(self.length or "")
        if self.limit is not None and self.limit < 1:
            raise ValueError(f"limit={self.limit}: give 1 or more, or None for all questions")
        if self.engine not in backbones.ENGINES:
            raise ValueError(
                f"engine {self.engine!r} is unknown; choose one of {', '.join(backbones.ENGINES)}"
            )
        if not self._family:
            whole = "-".join(filter(None, (self.benchmark, str(self.length))))
            raise ValueError(
                f"benchmark {whole!r} is unknown; choose {EMBEDDED}, or one of {', '.join(benchmarks.known())}"
            )
        self._models: dict[tuple[str, int, int | None], backbones.Backbone] = {}
        self._done: set[str] = set()

    @property
    def embedded(self) -> bool:
        """Whether this is the default, whose answers, figures and numbers are the repository's own."""
        return (self.benchmark, self.backbone, self.limit) == (EMBEDDED, "", None) and self.outputs is None

    @property
    def missing(self) -> Missing:
        """What to do with questions that lack a verdict in some arm: `refuse` in the default, else leave them out and count."""
        return "refuse" if self.embedded else "intersection"

    @property
    def name(self) -> str:
        """Of the folder of figures: `<benchmark>--<backbone>`, and the limit where there is one."""
        which = "-".join(filter(None, (self.benchmark, str(self.length))))
        first = f"--first-{self.limit}" if self.limit else ""
        return f"{which}--{folder_of(self.backbone) if self.backbone else 'embedded'}{first}"

    @property
    def figures(self) -> Path | None:
        """Where figures go; None for the usual place."""
        if self.embedded:
            return None
        root = Path(__file__).resolve().parents[1] / "figures"
        return Path(os.environ.get("DELIVERMEM_FIGURES") or root) / self.name

    @cached_property
    def _family(self) -> tuple[str, ...]:
        """The benchmarks that are meant, before looking at what is at hand."""
        known = benchmarks.known()
        if self.benchmark == EMBEDDED and not self.length:
            return tuple(benchmarks.BENCHMARKS)
        whole = f"{self.benchmark}-{self.length}" if self.length else self.benchmark
        if whole in known:
            return (whole,)
        same = () if self.length else (name for name in known if name.rpartition("-")[0] == self.benchmark)
        return tuple(same)

    def model_of(self, experiment: str) -> str:
        """The backbone as it was asked for, or the experiment's embedded one."""
        return self.backbone or experiments.find(experiment).backbone

    def names(self, experiment: str) -> tuple[str, ...]:
        """The benchmarks that have answers to an experiment or, of EMBEDDED, had them from the embedded model."""
        grid = experiments.find(experiment)
        own = self.benchmark == EMBEDDED and not self.length
        who = grid.backbone if own and self.regenerate else folder_of(self.model_of(experiment))
        root = None if own and self.regenerate else self.outputs
        held = {
            folder.parent.name
            for folder in runs.folders(root)
            if folder.name == who and any((folder / f"{arm.name}.jsonl").exists() for arm in grid.conditions)
        }
        return tuple(sorted(held & {*self._family}))

    def has(self, experiment: str) -> bool:
        """Whether the whole of an experiment is at hand somewhere, or is to be asked for."""
        if self.regenerate:
            return bool(self._wanted(experiment))
        who, root = folder_of(self.model_of(experiment)), self.outputs or runs.data_dir() / "outputs"
        arms = [f"{arm.name}.jsonl" for arm in experiments.find(experiment).conditions]
        return any(all((root / name / who / arm).exists() for arm in arms) for name in self.names(experiment))

    @property
    def conversations(self) -> bool:
        """Whether any of the benchmarks meant is one of conversations."""
        return any(not _shop(name) for name in self._family)

    def where(self, experiment: str) -> dict[str, Any]:
        """One folder of answers, as `show` and `runs.load` take it: benchmark (conversations first), backbone, outputs."""
        names = sorted(self.names(experiment), key=_shop)
        if not names:
            raise RunError(self.absent(experiment))
        return dict(benchmark=names[0], backbone=folder_of(self.model_of(experiment)), outputs=self.outputs)

    def _wanted(self, experiment: str) -> tuple[str, ...]:
        """The benchmarks to ask an experiment of; none where none has what it takes."""
        if self.benchmark == EMBEDDED:
            return self.names(experiment)
        alike = {name: _shop(name) for name in self._family}
        unfit = {True: CONVERSATIONS, False: SHOPS}
        return tuple(name for name, shop in alike.items() if experiment not in unfit[shop])

    def several(self, *wanted: str) -> dict[str, pd.DataFrame]:
        """Experiment -> its answers, of those that are at hand or to be asked for; RunError where none is."""
        found = {name: self.answers(name) for name in wanted if self.has(name)}
        if not found:
            raise RunError(self.absent(wanted[0]))
        return found

    def answers(self, experiment: str) -> pd.DataFrame:
        """The answers of an experiment, as of `runs.load`, after what is missing of them was asked for where that is wanted.

        RunError where there are none: one sentence that names the command. Answers that failed or await their verdict
        are counted and said.
        """
        import pandas as pd

        if self.regenerate and experiment not in self._done:
            self._run(experiment)
            self._done.add(experiment)
        names = self.names(experiment)
        if not names:
            raise RunError(self.absent(experiment))
        who, parts = folder_of(self.model_of(experiment)), []
        for name in names:
            part = runs.load(experiment, benchmark=name, backbone=who, outputs=self.outputs)
            if self.limit is not None:
                first = [question.id for question in benchmarks.load(name).questions[: self.limit]]
                part = part[part["question_id"].isin(first)]
            parts.append(part)
        if not sum(map(len, parts)):
            raise RunError(self.absent(experiment))
        table = pd.concat([part for part in parts if len(part)], ignore_index=True)
        self._count(experiment, table)
        return table

    def absent(self, experiment: str) -> str:
        """The sentence that there are no answers to an experiment, and how they are made."""
        fit = "conversations" if experiment in CONVERSATIONS else "a shop"
        if not self._wanted(experiment) and self.benchmark != EMBEDDED:
            other = "memlens" if experiment in CONVERSATIONS else "dmv"
            return f"{experiment!r} is asked where there is {fit}, which {self.benchmark} has not; take benchmark = {other!r}"
        name = self._family[0] if len(self._family) == 1 else f"{self.benchmark}-LENGTH"
        which = "" if self.benchmark == EMBEDDED else f" --benchmark {name}"
        who = f" --backbone {self.backbone}" if self.backbone else ""
        return (
            f"no answers of {experiment!r} are at hand for {self.name}; make them with: delivermem run {experiment}{which}"
            f"{who}, or set regenerate = True in the parameters"
        )

    def lacks(self, experiment: str) -> Any:
        """The same as Markdown, to stand in a section's place."""
        from IPython.display import Markdown

        return Markdown(  # type: ignore[no-untyped-call]
            f"*Left out: {self.absent(experiment)}.*"
        )

    def _count(self, experiment: str, table: pd.DataFrame) -> None:
        states = [state_of(s, v) for s, v in zip(table["status"], table["verdict"], strict=True)]
        waiting, failed = states.count("unjudged"), states.count("failed")
        self.open[experiment] = waiting + failed
        cures = sorted({*awaiting(table).values()}) or ["the same run again"]
        if waiting + failed == len(states):
            raise RunError(
                f"{experiment}: of {len(states)} answers of {self.name} {waiting} have no verdict and {failed} failed, so there is "
                f"nothing to draw; run this again after: {' and '.join(cures)}"
            )
        if self.open[experiment] and not self.embedded:
            self.say(
                f"{experiment}: of {len(states)} answers {waiting} have no verdict and {failed} failed; they leave their pairs, "
                f"and no number is recorded until they are settled: {' and '.join(cures)}"
            )

    def _run(self, experiment: str) -> None:
        from delivermem import colab, hub, planning, runner

        if self.benchmark != EMBEDDED and len(self._family) > 1:
            raise ValueError(
                f"benchmark {self.benchmark!r} has several lengths: {', '.join(self._family)}; give one to answer anew"
            )
        for name in self._wanted(experiment):
            model, named = self.model(experiment, name), self.model_of(experiment)
            wanted: dict[str, Any] = dict(limit=self.limit, outputs=self.outputs, say=self.say)
            if self.engine == "transformers":
                if trouble := colab.preflight(named, name, experiment=experiment, model=model, **wanted):
                    raise backbones.BackboneError(trouble)
            else:
                longest = experiments.longest(experiment, name)
                about: dict[str, Any] = dict(model=model, limit=self.limit, outputs=self.outputs)
                about |= dict(url=os.environ.get(SERVER, ""))
                self.say(planning.plan_text(experiment, name, named, max_new_tokens=longest, **about))
            whole = any(arm.asks == "everything" for arm in experiments.find(experiment).conditions)
            hub.bring(name, whole=whole, say=self.say)
            runner.run(experiment, benchmark=name, backbone=model, **wanted)
            colab.keep()

    def model(self, experiment: str, name: str) -> backbones.Backbone:
        """The backbone as `delivermem run` takes it, loaded when it first answers, and once for all that share its settings."""
        longest, most = experiments.longest(experiment, name), experiments.image_tokens(name)
        key = (self.model_of(experiment), longest, most)
        if key not in self._models:
            url = os.environ.get(SERVER) if self.engine in ("openai", "ray") else None
            if self.engine == "openai" and not url:
                raise backbones.BackboneError(
                    f"engine openai needs a server's address in {SERVER}, such as http://localhost:8000/v1"
                )
            self._models[key] = backbones.load(
                key[0], engine=self.engine, url=url, max_new_tokens=longest, image_tokens=most
            )
        return self._models[key]

    def live(self, experiment: str) -> backbones.Backbone | None:
        """The backbone, where it is to be asked or is an embedded one, which any machine can ask; else None."""
        named = self.model_of(experiment)
        small = (runs.data_dir() / "models" / named / "config.json").is_file()
        return (
            self.model(experiment, self.where(experiment)["benchmark"]) if self.regenerate or small else None
        )

    def about(self, experiment: str = "", benchmark: str | None = None) -> str:
        """Where the answers drawn come from, a line a benchmark and backbone, as of `runs.about`."""
        grids = [experiment] if experiment else list(experiments.EXPERIMENTS)
        whose = {(name, folder_of(self.model_of(grid))) for grid in grids for name in self.names(grid)}
        lines = [
            line
            for name, who in sorted(whose)
            if benchmark in (None, name)
            for line in runs.about(self.outputs, benchmark=name, experiment=experiment).splitlines()
            if line.startswith(f"{who.replace('--', '/')} (")
        ]
        return "\n".join(lines) or "no cached answers"

    def comparable(
        self, table: pd.DataFrame, pairs: Mapping[str, tuple[str, str]]
    ) -> dict[str, tuple[str, str]]:
        """`completeness.comparable`; in the default setting all pairs, so that what lacks is an error."""
        return dict(pairs) if self.embedded else completeness.comparable(table, pairs, say=self.say)

    def settled(
        self, table: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], by: list[str]
    ) -> pd.DataFrame:
        """`completeness.settled`; in the default setting all rows, so that what lacks is an error."""
        return table if self.embedded else completeness.settled(table, pairs, by, say=self.say)

    def save(self, figure: Figure | Any, name: str, table: pd.DataFrame | None = None) -> None:
        """The figure's files, as of `figures.save_figure`, in the setting's folder; of a sentence in a figure's place, none."""
        from delivermem import canvas

        if hasattr(figure, "savefig"):
            canvas.save_figure(figure, name, table=table, folder=self.figures)

    def record(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Numbers by name, as of `figures.record_numbers`, in the setting's folder; what is not finite (an interval of one
        conversation) is left out. None while answers are open: a headline waits for its verdicts."""
        from delivermem import canvas

        waiting = 0 if self.embedded else sum(self.open.values())
        if waiting:
            self.say(f"no number is recorded: {waiting} answers failed or await their verdict")
            return
        known = {
            name: {key: value for key, value in entry.items() if key == "value" or not _nan(value)}
            for name, entry in values.items()
            if self.embedded or not _nan(entry["value"])
        }
        canvas.record_numbers(known, self.figures / "numbers.json" if self.figures else None)


def folder_of(backbone: str) -> str:
    """The name of a backbone's folder of answers: of a path its last part, of a hub id `owner--name` without revision."""
    if (Path(backbone) / "config.json").is_file():
        return Path(backbone).resolve().name
    return backbone.partition("@")[0].replace("/", "--")


def _shop(name: str) -> bool:
    return "dmv" in name or "errand" in name


def _nan(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
