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

from delivermem import backbones, benchmarks, experiments, runs
from delivermem.pairing import JUDGED, Missing, state_of
from delivermem.runs import RunError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

EMBEDDED = "mini"
"""The name for every embedded benchmark that an experiment was run on."""
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
            whole = "-".join(filter(None, (self.benchmark, self.length)))
            raise ValueError(
                f"benchmark {whole!r} is unknown; choose {EMBEDDED}, or one of {', '.join(benchmarks.known())}"
            )
        self._models: dict[tuple[str, int], backbones.Backbone] = {}
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
        which = "-".join(filter(None, (self.benchmark, self.length)))
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
        """Whether there are answers to draw, or they are to be asked for."""
        return bool(self._wanted(experiment) if self.regenerate else self.names(experiment))

    def _wanted(self, experiment: str) -> tuple[str, ...]:
        """The benchmarks to ask an experiment of; none where none has what it takes."""
        if self.benchmark == EMBEDDED and not self.length:
            return self.names(experiment)
        shops = [name for name in self._family if not ("dmv" in name or "errand" in name)]
        return () if experiment == "errand" and shops else self._family

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
        names = self._family if len(self._family) == 1 else [f"{self.benchmark}-LENGTH"]
        which = "" if self.benchmark == EMBEDDED else f" --benchmark {names[0]}"
        who = f" --backbone {self.backbone}" if self.backbone else ""
        if self.regenerate and not self._wanted(experiment):
            return f"{self.benchmark} has no shop to run errands in; take benchmark = 'dmv' with a length"
        return (
            f"no answers of {experiment!r} are at hand for {self.name}; make them with: delivermem run {experiment}{which}"
            f"{who}, or set regenerate = True in the parameters"
        )

    def _count(self, experiment: str, table: pd.DataFrame) -> None:
        states = [state_of(s, v) for s, v in zip(table["status"], table["verdict"], strict=True)]
        waiting, failed = states.count("unjudged"), states.count("failed")
        self.open[experiment] = waiting + failed
        if self.open[experiment]:
            self.say(
                f"{experiment}: of {len(states)} answers {waiting} await their verdict and {failed} failed; they leave their "
                "pairs, and no number is recorded until they are settled (delivermem judge, or the same run again)"
            )

    def _run(self, experiment: str) -> None:
        from delivermem import colab, planning, runner

        if self.benchmark != EMBEDDED and len(self._family) > 1:
            raise ValueError(
                f"benchmark {self.benchmark!r} has several lengths: {', '.join(self._family)}; give one to answer anew"
            )
        for name in self._wanted(experiment):
            model = self._model(experiment, name)
            longest = experiments.longest(experiment, name)
            self.say(
                planning.plan_text(
                    experiment,
                    name,
                    self.model_of(experiment),
                    model=model,
                    max_new_tokens=longest,
                    limit=self.limit,
                    outputs=self.outputs,
                )
            )
            if self.engine == "transformers":
                colab.check(self.model_of(experiment))
            runner.run(
                experiment,
                benchmark=name,
                backbone=model,
                limit=self.limit,
                outputs=self.outputs,
                say=self.say,
            )
            colab.keep()

    def _model(self, experiment: str, name: str) -> backbones.Backbone:
        """The backbone, loaded when it first answers, and once for all experiments with replies of one length."""
        key = (self.model_of(experiment), experiments.longest(experiment, name))
        if key not in self._models:
            url = os.environ.get(SERVER) if self.engine in ("openai", "ray") else None
            if self.engine == "openai" and not url:
                raise backbones.BackboneError(
                    f"engine openai needs a server's address in {SERVER}, such as http://localhost:8000/v1"
                )
            self._models[key] = backbones.load(key[0], engine=self.engine, url=url, max_new_tokens=key[1])
        return self._models[key]

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
        """The pairs of conditions that share a judged answerable question in every benchmark and backbone of the table; of
        the others it is said that they are left out. In the default setting all, so that what lacks is an error."""
        if self.embedded:
            return dict(pairs)
        kept = {
            name: pair
            for name, pair in pairs.items()
            if all(
                _shared(part, pair)
                for _, part in table[table["kind"] != "answer_refusal"].groupby(["benchmark", "backbone"])
            )
        }
        if lost := [name for name in pairs if name not in kept]:
            self.say(f"left out, as no question has a verdict in both arms: {', '.join(lost)}")
        return kept

    def settled(
        self, table: pd.DataFrame, pairs: Mapping[str, tuple[str, str]], by: list[str]
    ) -> pd.DataFrame:
        """The rows of questions whose answers are all settled, in the groups of `by` in which every pair shares a question;
        what is left out is said. In the default setting all rows, so that what lacks is an error."""
        if self.embedded or table.empty:
            return table
        asked = {condition for pair in pairs.values() for condition in pair}
        rows = table[table["condition"].isin(asked)]
        states = [state_of(s, v) for s, v in zip(rows["status"], rows["verdict"], strict=True)]
        waiting = rows["question_id"][[state not in (*JUDGED, "not_applicable") for state in states]]
        rows = rows[~rows["question_id"].isin(set(waiting))]
        whole = [part for _, part in rows.groupby(by) if all(_shared(part, pair) for pair in pairs.values())]
        kept = {question for part in whole for question in part["question_id"]}
        if lost := table["question_id"].nunique() - len(kept):
            self.say(f"{lost} questions are left out, as one of their arms has no verdict")
        return table[table["question_id"].isin(kept)]

    def save(self, figure: Figure, name: str, table: pd.DataFrame | None = None) -> None:
        """The figure's files, as of `figures.save_figure`, in the setting's folder."""
        from delivermem import canvas

        canvas.save_figure(figure, name, table=table, folder=self.figures)

    def record(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Numbers by name, as of `figures.record_numbers`, in the setting's folder; what is not finite (an interval of one
        conversation) is left out. None while answers are open: a headline waits for its verdicts."""
        from delivermem import canvas

        if waiting := sum(self.open.values()):
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


def _shared(table: pd.DataFrame, pair: tuple[str, str]) -> bool:
    """Whether some question has a verdict in both conditions."""
    rows = table[(table["status"] == "ok") & table["verdict"].isin(JUDGED) & table["condition"].isin(pair)]
    return bool(rows.groupby("question_id")["condition"].nunique().eq(2).any())


def _nan(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
