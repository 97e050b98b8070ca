"""Jobs of experiments: training runs that are identified by their content, done once, and shared by all that need them.

WORK/jobs/KIND-KEY/run/          an ordinary run folder: settings.toml, metrics.jsonl and, while needed, weights
WORK/jobs/KIND-KEY/log.txt       what the run printed
WORK/jobs/KIND-KEY/*.npz         numbers per dev example, for bootstrap intervals; of a probe, in its run folder
WORK/jobs/KIND-KEY/result.json   scores; written last

KEY is the digest of the settings that decide the result, of the input files, and of the jobs whose models a job starts
from. So a killed experiment resumes, and two experiments with a pre-training in common do it once.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from rich.console import Console

from bertwright.console import format_duration, say
from bertwright.experiments.composition import compose
from bertwright.files import (
    digest_bytes,
    digest_file,
    ensure_folder,
    lock_or_explain,
    read_json,
    remove_folder,
    remove_stale_parts,
    write_json,
)
from bertwright.finetuning.finetune_state import open_run
from bertwright.finetuning.probe import EXAMPLES as PROBE_EXAMPLES
from bertwright.finetuning.probe import parse_result, probe
from bertwright.finetuning.probe_settings import RESUME_OVERRIDES as PROBE_OVERRIDES
from bertwright.finetuning.probe_settings import ProbeSettings
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import RESUME_OVERRIDES as FINETUNE_OVERRIDES
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.finetuning.trial_log import RESULTS_FILE, read_results
from bertwright.interop.model_files import digest_model
from bertwright.kernels.cpu import processor_name
from bertwright.metrics.example_scores import ExampleScores
from bertwright.planning.scaling_law import has_left_plateau
from bertwright.pretraining.evaluation import evaluate, unigram_entropy
from bertwright.pretraining.pretrain_state import PretrainState
from bertwright.pretraining.pretrain_state import open_run as open_pretraining
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import RESUME_OVERRIDES as PRETRAIN_OVERRIDES
from bertwright.pretraining.settings import PretrainSettings
from bertwright.settings import to_table
from bertwright.tasks.prediction import evaluate_examples
from bertwright.tasks.presets import SPLITS, TaskSettings
from bertwright.tokenstore.store import TokenStore, open_held_out
from bertwright.training import checkpoint
from bertwright.training.context import execution_context, select_device, select_threads
from bertwright.training.loop import DivergedError
from bertwright.training.optimizer_settings import DeviceSettings
from bertwright.training.run_folder import INITIAL_WEIGHTS, delete_weights, find_changed_settings
from bertwright.vocabulary.tokenizer import Tokenizer

RESULT, LOG, CLAIM = "result.json", "log.txt", ".claim"
ENTROPY = "unigram_entropy"  # score of a pre-training: the loss, in nats, of a model that ignores its input
POLL_S = 2.0  # seconds between checks for results of other processes
RESULTS_VERSION = 4  # raise it if the same settings give other numbers: earlier results are then not reused
# Settings that decide where to compute and what to print. Paths are replaced by digests of their content; "model" is a
# path in fine-tuning and probes, and the shape in pre-training.
NOT_IN_KEY = ("run", "resume", "micro_batch_size", "pad_batches", "log_every", "store", "features")
NOT_IN_TABLES = {"task": ("data", *SPLITS), "device": ("device", "threads")}  # dtype stays: results depend on it


class JobResult(NamedTuple):
    """Outcome of a job."""

    scores: Mapping[str, float]
    """By name; empty for a job that failed."""
    seconds: float
    """Of the process that finished it; those of interrupted processes before it are not included."""
    failure: str | None
    """Reason of a divergence."""
    environment: Mapping[str, str]
    """Processor, dtype and versions with which it was computed."""

    @property
    def is_on_plateau(self) -> bool:
        """True for a pre-training after which the model knows little more than the token frequencies."""
        return ENTROPY in self.scores and not has_left_plateau(self.scores["mlm_loss"], self.scores[ENTROPY])


@dataclass(frozen=True)
class Job(ABC):
    """A run of an experiment."""

    name: str
    """Description for people."""
    digests: tuple[tuple[str, str], ...]
    """Name and digest of each input file or folder that no job makes."""
    parents: tuple[Job, ...]
    """Jobs whose models this one reads."""

    settings: Any
    """Settings of the run; its folder and the folder of its model are set when it starts."""

    kind: ClassVar[str]

    @property
    def device(self) -> DeviceSettings:
        """Device of the run."""
        device: DeviceSettings = self.settings.device
        return device

    @abstractmethod
    def execute(self, folder: Path, work: Work, console: Console) -> Mapping[str, float]:
        """Start or resume the run in `folder`; return its scores by name."""

    @abstractmethod
    def digest_inputs(self) -> tuple[tuple[str, str], ...]:
        """Digest the input files as they are now."""

    def check_inputs(self) -> None:
        """Raise ValueError if the input files have changed since the job was planned."""
        now = dict(self.digest_inputs())
        for name, digest in self.digests:
            if now.get(name) != digest:
                raise ValueError(
                    f"{self.name}: {name} changed since the experiment was planned; start the command again"
                )

    @abstractmethod
    def prune(self, folder: Path) -> None:
        """Delete what no other job reads, once the result is written, and what a killed process left."""

    def examples_file(self, folder: Path, score: str) -> Path:
        """Return the file with the per-example statistics of a score of the run in `folder`."""
        return folder.parent / f"{score}.npz"

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the result."""
        table = {name: value for name, value in to_table(self.settings).items() if name not in NOT_IN_KEY}
        if isinstance(table.get("model"), str):
            del table["model"]
        for name, ignored in NOT_IN_TABLES.items():
            if name in table:
                table[name] = {key: value for key, value in table[name].items() if key not in ignored}
        if "task" in table:  # a preset's own settings, which its name alone does not tell
            table["task"] |= asdict(self.settings.task.build_task())
        inputs = {"inputs": dict(self.digests), "parents": [parent.key for parent in self.parents]}
        return {"version": RESULTS_VERSION, "kind": self.kind, "settings": table} | inputs

    @cached_property
    def key(self) -> str:
        """Digest of the identity."""
        return digest_bytes(json.dumps(self.identity, sort_keys=True).encode())[:16]


@dataclass(frozen=True)
class PretrainJob(Job):
    """Pre-training on the store; the run's model and checkpoints remain."""

    settings: PretrainSettings

    kind: ClassVar[str] = "pretrain"

    def digest_inputs(self) -> tuple[tuple[str, str], ...]:
        """Digest the store."""
        assert self.settings.store is not None
        return (("store", digest_store(self.settings.store)),)

    def execute(self, folder: Path, work: Work, console: Console) -> Mapping[str, float]:
        """Pre-train; the scores are those of the last evaluation on held-out documents, and the unigram entropy.

        The loss on each held-out sequence is written as the numbers behind the perplexity.
        """
        settings = _at(self.settings, folder, PRETRAIN_OVERRIDES)
        pretrain(settings, console)
        with execution_context(settings.device) as context:
            state = open_pretraining(replace(settings, resume=True), context, console)
            means = sequence_losses(state, self.settings.eval_sequences, context.device)
        sums = np.array([(mean * count, count) for mean, count in means])
        ExampleScores("loss", sums).save(self.examples_file(folder, "perplexity"))
        scores: dict[str, float] | None = read_json(folder / "report.json")["held_out_after"]
        found = {name: value for name, value in (scores or {}).items() if isinstance(value, float)}
        return found | {ENTROPY: unigram_entropy(state.train)}

    def prune(self, folder: Path) -> None:
        """Keep the model and the checkpoints."""


@dataclass(frozen=True)
class ComposeSettings:
    """Settings of a composed model."""

    lstm_layers: int
    seed: int


@dataclass(frozen=True)
class ComposeJob(Job):
    """A model folder composed of the parents' models (see `experiments.composition`)."""

    settings: ComposeSettings

    kind: ClassVar[str] = "compose"

    def digest_inputs(self) -> tuple[tuple[str, str], ...]:
        """Return no digests: the job reads other jobs' models alone."""
        return ()

    @property
    def device(self) -> DeviceSettings:
        """Default device; the job only copies files."""
        return DeviceSettings()

    def execute(self, folder: Path, work: Work, console: Console) -> Mapping[str, float]:
        """Write the model; it has no scores."""
        if not (folder / "model").is_dir():  # else a process was killed before it wrote the result
            models = [work.model_folder(parent) for parent in self.parents]
            compose(folder / "model", models, self.settings.lstm_layers, self.settings.seed)
        return {}

    def prune(self, folder: Path) -> None:
        """Keep the model."""


@dataclass(frozen=True)
class FinetuneJob(Job):
    """Fine-tuning of a job's model, or of a model folder, scored on dev after the last step."""

    settings: FinetuneSettings
    step: int | None = None
    """Checkpoint of the pre-training to start from; None: its last."""

    kind: ClassVar[str] = "finetune"

    def digest_inputs(self) -> tuple[tuple[str, str], ...]:
        """Digest the task's files, and the model if no job makes it."""
        return digest_task_inputs(self.settings.task, None if self.parents else self.settings.model)

    @property
    def limit(self) -> int | None:
        """Examples of each split; None: all."""
        return self.settings.tuning.limit

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the result."""
        return super().identity | ({} if self.step is None else {"step": self.step})

    def execute(self, folder: Path, work: Work, console: Console) -> Mapping[str, float]:
        """Fine-tune, then predict the dev examples with the last weights and write their numbers."""
        settings = _at(_with_model(self, work, self.step), folder, FINETUNE_OVERRIDES)
        finetune(settings, console)
        with execution_context(settings.device) as context:
            state = open_run(replace(settings, resume=True), context, console)
            assert state.dev is not None
            found = evaluate_examples(state.model, state.task, state.dev.examples, state.dev.encoded)
        if numbers := state.task.example_scores(state.dev.examples, found.predictions):
            numbers.save(self.examples_file(folder, "dev"))
        test = read_json(folder / "report.json")["scores"].get("test", {})  # of the last step, the only one evaluated
        scores = {f"test_{name}": value for name, value in test.items()}
        return found.scores | scores | {"dev": found.scores[state.task.metric]}

    def prune(self, folder: Path) -> None:
        """Delete all weights."""
        delete_weights(folder, with_model=True)


@dataclass(frozen=True)
class ProbeJob(Job):
    """Heads on the frozen states of a job's model, or of a model folder; one score per trial."""

    settings: ProbeSettings

    kind: ClassVar[str] = "probe"

    def digest_inputs(self) -> tuple[tuple[str, str], ...]:
        """Digest the task's files, and the model if no job makes it."""
        return digest_task_inputs(self.settings.task, None if self.parents else self.settings.model)

    @property
    def limit(self) -> int | None:
        """Examples of each split; None: all."""
        return self.settings.limit

    def execute(self, folder: Path, work: Work, console: Console) -> Mapping[str, float]:
        """Train the heads; return scores by the name of each head's trial."""
        settings = _at(_with_model(self, work), folder, PROBE_OVERRIDES)
        probe(settings, console)
        metric = read_json(folder / "report.json")["metric"]
        results = read_results(folder / RESULTS_FILE, lambda record: parse_result(record, metric))
        return {result.trial.name: result.dev[metric] for result in results}

    def examples_file(self, folder: Path, score: str) -> Path:
        """Return the file that the probe wrote for a head."""
        return folder / PROBE_EXAMPLES / f"{score}.npz"

    def prune(self, folder: Path) -> None:
        """Delete the cached states."""
        remove_stale_parts(folder)
        if (folder / "features").is_dir():
            remove_folder(folder / "features")


def _with_model(job: FinetuneJob | ProbeJob, work: Work, step: int | None = None) -> Any:
    """Return the settings of a job with the folder of the model that it starts from; `step`: as in `model_folder`."""
    if not job.parents:
        return job.settings
    return replace(job.settings, model=str(work.model_folder(job.parents[0], step)))


def _at(settings: Any, folder: Path, resume_overrides: tuple[str, ...]) -> Any:
    """Return settings to start the run in a folder, or to resume it if it has begun.

    A run that began with the same task files or model in another folder is deleted, to start again: a resumed run reads
    the files that its settings name.
    """
    has_begun = (folder / "settings.toml").is_file()
    settings = replace(settings, run=folder, resume=has_begun)
    if has_begun and find_changed_settings(settings, resume_overrides):
        remove_folder(folder)
        settings = replace(settings, resume=False)
    return settings


def sequence_losses(state: PretrainState, sequences: int, device: torch.device) -> list[tuple[float, int]]:
    """Return the mean loss and the number of predictions of each held-out sequence."""
    batches = state.held_out[0].validation_batches(sequences, micro_batch_size=1)
    return [(evaluate(state.model, [batch.to(device)]).mlm_loss, batch.num_predictions) for batch in batches]


def digest_task_inputs(task: TaskSettings, model: str | None) -> tuple[tuple[str, str], ...]:
    """Return the digest of the content of each split's files, wherever they are, and of a model if one is given."""
    files = [
        (split, digest_bytes(*(digest_file(Path(path)).encode() for path in task.files(split))))
        for split in SPLITS
        if task.files(split)
    ]
    return tuple(files) if model is None else (*files, (INITIAL_WEIGHTS, digest_model(model)))


def digest_store(store: Path) -> str:
    """Return the digest of a store's vocabulary, token ids and documents, training and held out."""
    vocabulary = Tokenizer.load(store / "tokenizer").digest
    opened = (TokenStore.open(store / "train", vocabulary, verify=False), open_held_out(store, vocabulary))
    arrays = (file.digest for one in opened for file in one.header.files)
    return digest_bytes(*(digest.encode() for digest in (vocabulary, *arrays)))


@contextmanager
def claim_folder(folder: Path) -> Iterator[bool]:
    """Claim a folder, such as that of a job, for this process until the block ends; yields False if another has it.

    The claim of a killed process ends with it.
    """
    ensure_folder(folder)
    with (folder / CLAIM).open("w") as file:
        yield lock_or_explain(file, folder)


@dataclass(frozen=True)
class Work:
    """The folder in which experiments keep their jobs."""

    path: Path

    def folder(self, job: Job) -> Path:
        """Return the folder of a job."""
        return self.path / "jobs" / f"{job.kind}-{job.key}"

    def result(self, job: Job) -> JobResult | None:
        """Read the result of a job; None if it is not finished. Raises ValueError for a damaged file."""
        path = self.folder(job) / RESULT
        if not path.is_file():
            return None
        record = read_json(path)
        if not (isinstance(record, dict) and record.keys() >= {*JobResult._fields}):
            raise ValueError(f"{path}: damaged; delete {path.parent} to run the job again")
        return JobResult(*(record[name] for name in JobResult._fields))

    def examples(self, job: Job, score: str) -> ExampleScores | None:
        """Read the per-example statistics of a score of a finished job; None if its metric has none."""
        return ExampleScores.load(job.examples_file(self.folder(job) / "run", score))

    def model_folder(self, job: Job, step: int | None = None) -> Path:
        """Return the model of a finished job, or its checkpoint after a step."""
        run = self.folder(job) / "run"
        return run / "model" if step is None else checkpoint.path_of(run / "checkpoints", step)

    def run(self, job: Job) -> JobResult:
        """Start or resume a claimed job and write its result; a divergence is a result.

        Raises ValueError for input that changed since the job was planned: the key is that of the old one.
        """
        folder, started = self.folder(job), time.perf_counter()
        scores: Mapping[str, float] = {}
        failure = next((f"{parent.name}: {why.failure}" for parent in job.parents
                        if (why := self.result(parent)) and why.failure), None)  # fmt: skip
        if failure is None:
            job.check_inputs()
            with (folder / LOG).open("a", encoding="utf-8", buffering=1) as log:
                try:
                    scores = job.execute(folder / "run", self, Console(file=log, width=120, force_terminal=False))
                except DivergedError as error:
                    failure = str(error)
            job.check_inputs()
        result = JobResult(scores, time.perf_counter() - started, failure, _describe_environment(job))
        when = datetime.now(UTC).isoformat(timespec="seconds")
        record = {"name": job.name, "finished": when} | result._asdict() | {"identity": job.identity}
        write_json(folder / RESULT, record)
        return result


def _describe_environment(job: Job) -> dict[str, str]:
    """Return the processor, the versions, the threads and the dtype with which a job was computed."""
    on_gpu = select_device(job.device).type == "cuda"
    return {
        "processor": torch.cuda.get_device_name() if on_gpu else processor_name(),
        "torch": torch.__version__,
        "bertwright": version("bertwright"),
        "threads": str(select_threads(job.device)),
        **job.identity["settings"].get("device", {}),
    }


def all_jobs(jobs: Iterable[Job]) -> list[Job]:
    """Return jobs and the jobs that they need, each once, parents before their children."""
    found: dict[str, Job] = {}
    for job in jobs:
        for one in (*all_jobs(job.parents), job):
            found.setdefault(one.key, one)
    return list(found.values())


def run_jobs(jobs: Sequence[Job], work: Work, console: Console) -> None:
    """Run all jobs that are not finished, in order; other processes of the same work folder take their share.

    Ctrl-C and SIGTERM save the current run, then raise KeyboardInterrupt. Raises ValueError and OSError as the runs
    do; the jobs that are finished remain.
    """
    pending = all_jobs(jobs)
    total = len(pending)
    for job in pending:
        if work.result(job):  # written by a process that may have been killed before it had deleted the weights
            with claim_folder(work.folder(job)) as claimed:
                if claimed:
                    job.prune(work.folder(job) / "run")
    while True:
        pending = [job for job in pending if not work.result(job)]
        if not pending:
            return
        for job in pending:
            if all(work.result(parent) for parent in job.parents) and _try_run(job, work, total, pending, console):
                break
        else:  # other processes are running all jobs that could start
            time.sleep(POLL_S)


def _try_run(job: Job, work: Work, total: int, pending: Sequence[Job], console: Console) -> bool:
    """Run a job unless another process has claimed it; return whether it is finished."""
    with claim_folder(work.folder(job)) as claimed:
        if not claimed:
            return False
        if work.result(job):  # finished by another process in the meantime
            return True
        try:
            result = work.run(job)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"{total - len(pending)} of {total} jobs are finished; the same command resumes the experiment"
            ) from None
        job.prune(work.folder(job) / "run")
    outcome = f"diverged: {result.failure}" if result.failure else _describe(result)
    count = f"{total - len(pending) + 1} of {total}"
    say(console, f"{count:>10}  {job.name}: {outcome} ({format_duration(result.seconds)})")
    return True


def _describe(result: JobResult) -> str:
    """Format the main scores of a result."""
    scores = result.scores
    if "perplexity" in scores:
        plateau = ", near that of the token frequencies" if result.is_on_plateau else ""
        return f"held-out perplexity {scores['perplexity']:.1f}{plateau}"
    if "dev" in scores:
        return f"dev {100 * scores['dev']:.1f}"
    if not scores:
        return "done"
    return f"{len(scores)} heads, dev {100 * float(np.mean(list(scores.values()))):.1f} on average"
