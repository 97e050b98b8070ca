"""Runner of jobs in a folder that several processes, and several experiments, may share.

WORK/jobs/KIND-KEY/run/          an ordinary run folder: settings.toml, metrics.jsonl and, while needed, weights
WORK/jobs/KIND-KEY/log.txt       what the run printed
WORK/jobs/KIND-KEY/*.npz         numbers per dev example, for bootstrap intervals; a probe's are in its run folder
WORK/jobs/KIND-KEY/result.json   scores; written last, so that a job with this file is finished

A process locks a job's folder while it works there. A lock ends with its process, so a killed job is resumed by the
next process that reaches it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from bertwright.base.files import lock_if_free, open_to_append, read_json, write_json
from bertwright.base.messages import format_duration
from bertwright.base.reporter import SILENT, Line, LogReporter, Reporter
from bertwright.executors.executor import Executor
from bertwright.kernels.cpu import processor_name
from bertwright.metrics.example_scores import ExampleScores
from bertwright.objectives.objective import LOSS
from bertwright.planning.scaling_law import has_left_plateau
from bertwright.training.context import select_device, select_threads
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.interrupt import graceful_shutdown
from bertwright.training.loop import DivergedError
from bertwright.training.metrics_log import with_current_names
from bertwright.trials.jobs import CHOSEN_RATE, ENTROPY, RESULT, Job, all_jobs, find_contradictions

LOG = "log.txt"
WAIT_S = 2.0  # seconds until a process looks again for a folder that no other process has locked


class JobResult(NamedTuple):
    """Outcome of a job."""

    scores: Mapping[str, float]
    """Scores by name; none for a job that failed."""
    seconds: float
    """Seconds of the process that finished the job, without the interrupted processes before it."""
    failure: str | None
    """Reason of a divergence."""
    environment: Mapping[str, str]
    """Processor, dtype and versions with which it was computed."""

    @property
    def is_on_plateau(self) -> bool:
        """True for a pre-training after which the model knows little more than the token frequencies."""
        return ENTROPY in self.scores and not has_left_plateau(self.scores[LOSS], self.scores[ENTROPY])


@dataclass(frozen=True)
class JobRunner:
    """Runner of the jobs in a work folder, and reader of their results."""

    path: Path

    def folder(self, job: Job) -> Path:
        """Return the folder of a job."""
        return self.path / "jobs" / f"{job.kind}-{job.key}"

    def run_folder(self, job: Job) -> Path:
        """Return the run folder of a job."""
        return self.folder(job) / "run"

    def result(self, job: Job) -> JobResult | None:
        """Read the result of a job; None if it is not finished.

        Raises ValueError for a damaged file, and for a result of other settings: a default has changed since.
        """
        path = self.folder(job) / RESULT
        if not path.is_file():
            return None
        record = read_json(path)
        if not (isinstance(record, dict) and record.keys() >= {*JobResult._fields, "identity"}):
            raise ValueError(f"{path}: damaged; delete {path.parent} to run the job again")
        if contradictions := find_contradictions(record["identity"], job.identity):
            raise ValueError(
                f"{path}: a result of other settings ({', '.join(contradictions)}), because defaults have changed; "
                "choose another --work"
            )
        return JobResult(
            with_current_names(record["scores"]), record["seconds"], record["failure"], record["environment"]
        )

    def examples(self, job: Job, score: str) -> ExampleScores | None:
        """Read the per-example statistics of a score of a finished job; None if its metric has none."""
        return ExampleScores.load(job.examples_file(self.run_folder(job), score))

    def run_all(self, jobs: Sequence[Job], reporter: Reporter) -> None:
        """Run all jobs that are not finished, in order; other processes of the same work folder take their share.

        Ctrl-C and SIGTERM save the current run, then raise KeyboardInterrupt. Raises ValueError and OSError as the
        runs do; the jobs that are finished remain.
        """
        needed = all_jobs(jobs)
        waiting = [*needed]
        try:
            with graceful_shutdown() as stop_signals:
                while waiting:
                    if stop_signals:  # during the last step of a run, which is then finished
                        raise KeyboardInterrupt
                    for number, job in enumerate(waiting):
                        if all(map(self.result, job.parents)) and self.complete(job, needed, reporter):
                            del waiting[number]
                            break
                    else:  # other processes run all jobs that could start
                        time.sleep(WAIT_S)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._format_progress(needed)) from None

    def run_on(self, executor: Executor, jobs: Sequence[Job], reporter: Reporter) -> None:
        """Run all jobs that are not finished by the workers of an executor, each when its parents are finished.

        The workers need the work folder on a shared disk. Other processes may share the work. Ctrl-C ends running jobs,
        which resume from their last checkpoint. Errors: see `run_all`.
        """
        needed = all_jobs(jobs)
        waiting, started, printed = [*needed], list[Job](), {job.key for job in needed if self.result(job)}

        def admit() -> Iterator[Job | None]:
            while waiting:
                ready = next((job for job in waiting if all(map(self.result, job.parents))), None)
                if ready is not None:
                    waiting.remove(ready)
                    started.append(ready)
                yield ready

        try:
            with closing(executor.run(complete_job, self, admit())) as completed:
                for number, is_done in completed:
                    job = started[number]
                    if not is_done:  # another process has locked it
                        waiting.append(job)
                    elif job.key not in printed:
                        self._print(job, needed, reporter)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._format_progress(needed)) from None

    def complete(self, job: Job, needed: Sequence[Job], reporter: Reporter) -> bool:
        """Run a job unless it is finished, and delete what no other job reads; return False if another process has it.

        `needed`: all jobs of the experiment, which the printed line counts.
        """
        with lock_if_free(self.folder(job)) as is_locked:
            if not is_locked:
                return False
            if self.result(job) is None:
                self.run(job)
                self._print(job, needed, reporter)
            job.prune(self.run_folder(job))  # also after a process that was killed before it could do so
            return True

    def _print(self, job: Job, needed: Sequence[Job], reporter: Reporter) -> None:
        """Print the result of a finished job, and how many of the experiment's are finished."""
        if result := self.result(job):
            count, time_taken = f"{self.count(needed)} of {len(needed)}", format_duration(result.seconds)
            reporter.record(Line(f"{count:>10}  {job.name}: {describe(result)} ({time_taken})"))

    def _format_progress(self, needed: Sequence[Job]) -> str:
        return f"{self.count(needed)} of {len(needed)} jobs are finished; the same command resumes the experiment"

    def count(self, jobs: Sequence[Job]) -> int:
        """Return the number of jobs that are finished."""
        return sum((self.folder(job) / RESULT).is_file() for job in jobs)

    def run(self, job: Job) -> JobResult:
        """Start or resume a job whose folder is locked, and write its result; a divergence is a result.

        Raises ValueError for input that changed since the job was planned, because the key is the old input's.
        """
        folder, started = self.folder(job), time.perf_counter()
        scores: Mapping[str, float] = {}
        failures = [
            f"{parent.name}: {done.failure}" for parent in job.parents if (done := self.result(parent)) and done.failure
        ]
        failure = failures[0] if failures and (job.needs_all_parents or len(failures) == len(job.parents)) else None
        if failure is None:
            job.check_inputs()
            runs = [self.run_folder(parent) for parent in job.parents]
            with open_to_append(folder / LOG) as log:
                try:
                    scores = job.execute(self.run_folder(job), runs, LogReporter(log))
                except DivergedError as error:
                    failure = str(error)
            job.check_inputs()
        result = JobResult(scores, time.perf_counter() - started, failure, describe_environment(job.settings.device))
        when = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"name": job.name, "finished": when} | result._asdict() | {"identity": job.identity}
        write_json(folder / RESULT, record)
        return result


def complete_job(job: Job, runner: JobRunner) -> bool:
    """Complete a job as a worker; return False if another process has it, after a while."""
    is_done = runner.complete(job, (), SILENT)
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


def describe(result: JobResult) -> str:
    """Format the main scores of a result."""
    scores = result.scores
    if result.failure:
        return f"diverged: {result.failure}"
    if "perplexity" in scores:
        plateau = ", near that of the token frequencies" if result.is_on_plateau else ""
        rate = f" at rate {scores[CHOSEN_RATE]:g}" if CHOSEN_RATE in scores else ""
        return f"held-out perplexity {scores['perplexity']:.1f}{rate}{plateau}"
    if "dev" in scores:
        return f"dev {100 * scores['dev']:.1f}"
    if not scores:
        return "done"
    return f"{len(scores)} heads, dev {100 * float(np.mean(list(scores.values()))):.1f} on average"
