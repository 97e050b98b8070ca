"""Runner of trials in a folder that several processes, and several tables, may share.

WORK/jobs/KIND-KEY/run/          an ordinary run folder: settings.toml, metrics.jsonl and, while needed, weights
WORK/jobs/KIND-KEY/log.txt       what the run printed
WORK/jobs/KIND-KEY/*.npz         numbers per dev example, for bootstrap intervals; a probe's are in its run folder
WORK/jobs/KIND-KEY/result.json   scores; written last, so that a trial with this file is finished

A series with a folder of its own has the same in RUN/runs/NAME. A process locks a trial's folder while it works there.
A lock ends with its process, so a killed trial is resumed by the next process that reaches it.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from bertwright.base.files import lock_if_free, open_to_append, read_json, write_json
from bertwright.base.messages import format_duration
from bertwright.base.reporter import SILENT, Line, LogReporter, Reporter
from bertwright.base.settings import ORIGINS
from bertwright.executors.executor import Executor
from bertwright.kernels.cpu import processor_name
from bertwright.metrics.example_scores import ExampleScores
from bertwright.objectives.objective import LOSS
from bertwright.planning.scaling_law import has_left_plateau
from bertwright.training.context import select_device, select_threads
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.fit import graceful_shutdown
from bertwright.training.loop import DivergedError
from bertwright.training.metrics_log import with_current_names
from bertwright.trials.trial import CHOSEN_RATE, ENTROPY, RESULT, Trial, all_trials, find_contradictions

T = TypeVar("T", bound=Trial)
LOG = "log.txt"
FORMER_RESULTS = "results.jsonl"  # all results of a series in one file, as earlier versions wrote them
WAIT_S = 2.0  # seconds until a process looks again for a folder that no other process has locked


class Result(NamedTuple):
    """Outcome of a trial."""

    scores: Mapping[str, float]
    """Scores by name; none for a trial that failed."""
    seconds: float
    """Seconds of the process that finished the trial, without the interrupted processes before it."""
    failure: str | None
    """Reason of a divergence."""
    environment: Mapping[str, str]
    """Processor, dtype and versions with which it was computed."""

    @property
    def is_on_plateau(self) -> bool:
        """True for a pre-training after which the model knows little more than the token frequencies."""
        return ENTROPY in self.scores and not has_left_plateau(self.scores[LOSS], self.scores[ENTROPY])

    def __str__(self) -> str:
        scores = self.scores
        if self.failure:
            return f"diverged: {self.failure}"
        if "perplexity" in scores:
            plateau = ", near that of the token frequencies" if self.is_on_plateau else ""
            rate = f" at rate {scores[CHOSEN_RATE]:g}" if CHOSEN_RATE in scores else ""
            return f"held-out perplexity {scores['perplexity']:.1f}{rate}{plateau}"
        if splits := [split for split in ("dev", "test") if split in scores]:
            return ", ".join(f"{split} {100 * scores[split]:.1f}" for split in splits)
        mean = f"dev {100 * float(np.mean([*scores.values()])):.1f} on average" if scores else ""
        return f"{len(scores)} heads, {mean}" if scores else "done"


@dataclass(frozen=True)
class Runner:
    """Runner of the trials in a folder, and reader of their results."""

    path: Path
    is_shared: bool = True
    """Whether other series have trials in the folder, so that a trial is found by its content; else by its name."""
    resume_by: str = "the same command resumes the experiment"
    """What to do after an interruption."""

    @classmethod
    def of_series(cls, run: Path, command: str) -> Runner:
        """Return the runner of a series in a folder of its own, and of no other series; `command` resumes it.

        Raises ValueError if an earlier version has written results into the folder.
        """
        if (path := run / FORMER_RESULTS).is_file():
            raise ValueError(
                f"{path}: expected a result.json in the folder of each run, got the file of an earlier version; start "
                "again in another --run"
            )
        return cls(run, False, f"resume with: bertwright {command} --run {shlex.quote(str(run))} --resume")

    def folder(self, trial: Trial) -> Path:
        return self.path / "jobs" / f"{trial.kind}-{trial.key}" if self.is_shared else self.path / "runs" / trial.name

    def run_folder(self, trial: Trial) -> Path:
        return self.folder(trial) / "run"

    def result(self, trial: Trial) -> Result | None:
        """Read the result of a trial; None if it is not finished.

        Raises ValueError for a damaged file, and for a result of other settings or inputs: in a shared folder, a
        default has changed since; in a folder of its own, the trial's files have.
        """
        path = self.folder(trial) / RESULT
        if not path.is_file():
            return None
        record = read_json(path)
        if not (isinstance(record, dict) and record.keys() >= {*Result._fields, "identity"}):
            raise ValueError(f"{path}: damaged; delete {path.parent} to run the trial again")
        expected = trial.identity if self.is_shared else {"inputs": dict(trial.digests)}
        if contradictions := find_contradictions(record["identity"], expected):
            way_out = (
                "because defaults have changed; choose another --work"
                if self.is_shared
                else "because data, model or --dtype have changed; restore them, or start again in another --run"
            )
            raise ValueError(f"{path}: a result of other settings ({', '.join(contradictions)}), {way_out}")
        record["scores"] = with_current_names(record["scores"])
        return Result(*(record[name] for name in Result._fields))

    def results(self, trials: Iterable[T]) -> list[tuple[T, Result]]:
        """Return the finished trials with their results."""
        return [(trial, result) for trial in trials if (result := self.result(trial))]

    def examples(self, trial: Trial) -> ExampleScores | None:
        """Read the per-example statistics of the score of a finished trial; None if its metric has none."""
        return ExampleScores.load(trial.examples_file(self.run_folder(trial)))

    def run_each(self, trials: Sequence[Trial], reporter: Reporter) -> Generator[Trial]:
        """Run all trials in order and yield each when it is finished; other processes take their share.

        Ctrl-C and SIGTERM save the current run, then raise KeyboardInterrupt. Raises ValueError and OSError as the
        runs do; the trials that are finished remain.
        """
        needed = all_trials(trials) if self.is_shared else trials
        waiting = [*needed]
        with (
            self.counted(needed),
            graceful_shutdown() as stop_signals,
            reporter.progress("runs", len(needed)) as advance,
        ):
            while waiting:
                if stop_signals:  # during the last step of a run, which is then finished
                    raise KeyboardInterrupt
                for number, trial in enumerate(waiting):
                    if all(map(self.result, trial.parents)) and self.complete(trial, needed, reporter):
                        advance(1)
                        yield waiting.pop(number)
                        break
                else:  # other processes run all trials that could start
                    time.sleep(WAIT_S)

    def run_all(self, trials: Sequence[Trial], reporter: Reporter) -> None:
        """Run all trials that are not finished. Errors: see `run_each`."""
        for _ in self.run_each(trials, reporter):
            pass

    def run_on(self, executor: Executor, trials: Sequence[Trial], reporter: Reporter) -> None:
        """Run all trials that are not finished by the workers of an executor, each when its parents are finished.

        The workers need the work folder on a shared disk. Other processes may share the work. Ctrl-C ends running
        trials, which resume from their last checkpoint. Errors: see `run_each`.
        """
        needed = all_trials(trials)
        waiting, started = [*needed], list[Trial]()
        printed = {trial.key for trial in needed if self.result(trial)}

        def admit() -> Iterator[Trial | None]:
            while waiting:
                ready = next((trial for trial in waiting if all(map(self.result, trial.parents))), None)
                if ready is not None:
                    waiting.remove(ready)
                    started.append(ready)
                yield ready

        with self.counted(needed), closing(executor.run(complete_trial, self, admit())) as completed:
            for number, is_done in completed:
                trial = started[number]
                if not is_done:  # another process has locked it
                    waiting.append(trial)
                elif trial.key not in printed:
                    self._print(trial, needed, reporter)

    def complete(self, trial: Trial, needed: Sequence[Trial], reporter: Reporter) -> bool:
        """Run a trial unless it is finished, and delete what no other reads; return False if another process has it.

        `needed`: all trials of the series, which the printed line counts.
        """
        with lock_if_free(self.folder(trial)) as is_locked:
            if not is_locked:
                return False
            if self.result(trial) is None:
                self.run(trial)
                self._print(trial, needed, reporter)
            trial.prune(self.run_folder(trial))  # also after a process that was killed before it could do so
            return True

    def _print(self, trial: Trial, needed: Sequence[Trial], reporter: Reporter) -> None:
        """Print the result of a finished trial, and how many of the series are finished."""
        if result := self.result(trial):
            count = f"{self.count(needed)} of {len(needed)}"
            reporter.record(Line(f"{count:>10}  {trial.name}: {result} ({format_duration(result.seconds)})"))

    @contextmanager
    def counted(self, needed: Sequence[Trial]) -> Iterator[None]:
        """Tell at an interruption how many trials are finished, and how to resume."""
        try:
            yield
        except KeyboardInterrupt:
            progress = f"{self.count(needed)} of {len(needed)} runs are finished"
            raise KeyboardInterrupt(f"{progress}; {self.resume_by}") from None

    def count(self, trials: Sequence[Trial]) -> int:
        """Return the number of trials that are finished."""
        return sum((self.folder(trial) / RESULT).is_file() for trial in trials)

    def run(self, trial: Trial) -> Result:
        """Start or resume a trial whose folder is locked, and write its result; a divergence is a result.

        Raises ValueError for input that changed since the trial was planned, because the key is the old input's.
        """
        folder, started = self.folder(trial), time.perf_counter()
        scores: Mapping[str, float] = {}
        failures = [
            f"{parent.name}: {done.failure}"
            for parent in trial.parents
            if (done := self.result(parent)) and done.failure
        ]
        is_failed = failures and (trial.needs_all_parents or len(failures) == len(trial.parents))
        failure = failures[0] if is_failed else None
        if failure is None:
            trial.check_inputs()
            runs = [self.run_folder(parent) for parent in trial.parents]
            alone = copy_context()  # a trial has none of this command's options
            alone.run(ORIGINS.set, {})
            with open_to_append(folder / LOG) as log:
                try:
                    scores = alone.run(trial.run, self.run_folder(trial), runs, LogReporter(log))
                except DivergedError as error:
                    failure = str(error)
            trial.check_inputs()
        environment = describe_environment(trial.settings.device)
        result = Result(scores, time.perf_counter() - started, failure, environment)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"name": trial.name, "finished": when} | result._asdict() | {"identity": trial.identity}
        write_json(folder / RESULT, record)
        return result


def complete_trial(trial: Trial, runner: Runner) -> bool:
    """Complete a trial as a worker; return False if another process has it, after a while."""
    is_done = runner.complete(trial, (), SILENT)
    if not is_done:
        time.sleep(WAIT_S)
    return is_done


def describe_environment(device: DeviceSettings) -> dict[str, str]:
    """Return the processor, the versions, the threads and the dtype with which this process computes."""
    on_gpu = select_device(device).type == "cuda"
    return {
        "processor": torch.cuda.get_device_name() if on_gpu else processor_name(),
        "torch": torch.__version__,
        "bertwright": version("bertwright"),
        "threads": str(select_threads(device)),
        "dtype": device.dtype,
    }


def count_results(folder: Path, names: str = "*") -> int:
    """Count the finished runs of a series that has its folder for itself; `names`: a glob of those that count."""
    return sum(1 for _ in folder.glob(f"runs/{names}/{RESULT}"))
