"""`bertwright plan`: before time or money is spent, the run that fits your text and hours, and the loss to expect."""

from __future__ import annotations

import math
import pickle
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import tomli_w

from bertwright.base.files import new_file
from bertwright.base.messages import format_duration
from bertwright.base.object_storage import display
from bertwright.base.reporter import MUTE, SILENT, Fields, Heading, Line, Reporter, Rows
from bertwright.base.settings import to_arguments, to_table
from bertwright.executors.processes import python_command
from bertwright.executors.worker import make_portable
from bertwright.planning.candidates import SHORT_RUNS, Candidate, Planner
from bertwright.planning.gpus import UTILIZATION
from bertwright.planning.plan_settings import PlanSettings
from bertwright.planning.scaling_law import ShortRun, has_left_plateau
from bertwright.pretraining.prepare import PrepareSettings, prepare
from bertwright.pretraining.settings import PretrainSettings
from bertwright.text.sources import name_stdin
from bertwright.tokenstore.store import local_store
from bertwright.training.context import execution_context
from bertwright.training.cost import estimate_disk_space, format_bytes
from bertwright.training.distributed import check_single_process
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings, learn_vocabulary

NEW_TEXT_EPOCHS = 4  # up to this many, repeated text is as good as new (Muennighoff et al. 2023, arXiv 2305.16264)


@dataclass(frozen=True)
class Plan:
    """The planned run, the alternatives to it, and the short runs that its expected loss comes from."""

    best: Candidate
    candidates: Sequence[Candidate]
    short_runs: Sequence[ShortRun]
    commands: Sequence[str]
    """Commands of the plan, from the text or the store to a model."""


def plan(settings: PlanSettings, reporter: Reporter = SILENT) -> Plan:
    """Plan a pre-training: print the run with the lowest expected loss, its cost, and the commands to start it.

    The text is prepared in a temporary folder, by the vocabulary and the held-out documents that the printed commands
    will use. Raises ValueError for text or a store that is not usable, and for an output that exists.
    """
    check_single_process("a plan")
    with nullcontext() if settings.output is None else new_file(settings.output) as file, TemporaryDirectory() as work:
        try:
            given = local_store(settings.store, reporter) if settings.store else None
            planner = Planner(settings, given or prepare_text(settings, Path(work), reporter))
            with reporter.progress("short pre-trainings", len(SHORT_RUNS)) as advance:
                short_runs = list(planner.run_short(Path(work) / "runs", advance))
        except KeyboardInterrupt:  # its message says how to resume a run that is deleted here
            raise KeyboardInterrupt("the plan is not finished, and nothing is saved") from None
        candidates = planner.list_candidates(short_runs)
        best = min(candidates, key=lambda candidate: candidate.loss.mean)
        result = Plan(best, candidates, short_runs, list(list_commands(settings, best.settings)))
        print_plan(result, planner, reporter)
        if file is not None:
            file.write_text(format_settings(best.settings, result.commands), encoding="utf-8")
    return result


def prepare_text(settings: PlanSettings, folder: Path, reporter: Reporter) -> Path:
    """Learn a vocabulary and build a token store as the planned commands will; return the store.

    A new process does it, so that the peak memory of this one is the training's. Raises the ValueError or OSError of
    unusable text, and ChildProcessError if the process dies.
    """
    reporter.record(Line("Learning the vocabulary and preparing the text", "minor"))
    settings = replace(settings, text=name_stdin(settings.text))
    learn, preparation = prepare_settings(settings, folder / "vocabulary", folder / "store")
    code = "from bertwright.planning.plan import prepare_in_process; prepare_in_process()"
    failure = folder / "error.pickle"
    given = pickle.dumps((learn, preparation, failure))
    done = subprocess.run(python_command(code), input=given, capture_output=True, check=False)
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ChildProcessError(f"preparing the text: {message or f'exit code {done.returncode}'}")
    if failure.exists():
        raise pickle.loads(failure.read_bytes())
    return preparation.store


def prepare_in_process() -> None:
    """Learn the vocabulary and build the store as standard input says; write an error into the file that it names."""
    learn, preparation, failure = pickle.load(sys.stdin.buffer)
    try:
        learn_vocabulary(learn, MUTE)
        prepare(preparation, MUTE)
    except (ValueError, OSError) as error:
        failure.write_bytes(pickle.dumps(make_portable(error)))


def prepare_settings(settings: PlanSettings, vocabulary: Path, store: Path) -> tuple[LearnSettings, PrepareSettings]:
    """Return the settings of `vocabulary` and `prepare` for the plan's text."""
    corpus = settings.corpus
    return (
        LearnSettings(corpus, vocabulary, settings.vocabulary),
        PrepareSettings(corpus, str(vocabulary), store, settings.build),
    )


def list_commands(settings: PlanSettings, run: PretrainSettings) -> Iterator[str]:
    store = settings.store or Path("store")
    if settings.store is None:
        learn, preparation = prepare_settings(settings, Path("vocabulary"), store)
        yield shlex.join(["bertwright", "vocabulary", *to_arguments(learn)])
        yield shlex.join(["bertwright", "prepare", *to_arguments(preparation)])
    if settings.output is None:
        arguments = to_arguments(replace(run, store=store))
    else:
        arguments = ["--config", str(settings.output), "--store", display(store), "--run", str(run.run)]
    yield shlex.join(["bertwright", "pretrain", *arguments])


def format_settings(run: PretrainSettings, commands: Sequence[str]) -> str:
    """Format the settings of a run as TOML, without its folders, below the commands that use them."""
    table = {name: value for name, value in to_table(run).items() if name not in ("run", "store", "resume", "dry_run")}
    lines = ["bertwright plan: settings of a pre-training", *commands]
    return "".join(f"# {line}\n" for line in lines) + tomli_w.dumps(table)


def print_plan(result: Plan, planner: Planner, reporter: Reporter) -> None:
    """Print the short runs, the candidates, the planned run and what to know about it."""
    settings, train = planner.settings, planner.train
    with execution_context(settings.device) as context:
        machine = f"one {settings.gpu}" if settings.gpu else str(context)
    reporter.record(Heading(f"Plan for {settings.hours:g} hours on {machine}"))
    losses = ", ".join(f"{short.tokens / 1e6:,.2g} million tokens: {short.loss:.3f}" for short in result.short_runs)
    vocabulary = f"vocabulary {result.best.config.vocab_size:,}"
    fields = {
        "text": f"{train.num_documents:,} documents, {train.num_tokens:,} tokens, {vocabulary}",
        "short runs": f"{planner.sizes[0]}, held-out loss after {losses}",
    }
    reporter.record(Fields(fields))
    reporter.record(candidate_table(result))
    reporter.record(Fields(describe_run(result.best, planner)))
    for text in list_notices(result, planner):
        reporter.note(text)
    reporter.record(Heading("Commands"))
    for command in result.commands:
        reporter.record(Line(command))


def candidate_table(result: Plan) -> Rows:
    """Return a table with a row per model size; the planned one is marked."""
    columns = ("", "size", "parameters", "tokens", "epochs", "expected loss", "90 % interval", "memory")
    rows = [
        (
            "*" if candidate is result.best else "",
            candidate.size,
            f"{candidate.config.num_parameters / 1e6:,.1f} M",
            f"{candidate.tokens / 1e6:,.1f} M",
            f"{candidate.epochs:,.1f}",
            f"{candidate.loss.mean:.2f}",
            f"{candidate.loss.low:.2f} to {candidate.loss.high:.2f}",
            "unknown" if candidate.cost.memory is None else format_bytes(candidate.cost.memory),
        )
        for candidate in result.candidates
    ]
    return Rows(columns, rows)


def describe_run(best: Candidate, planner: Planner) -> dict[str, str]:
    """Return the planned run as names and values for the terminal."""
    run, loss = best.settings, best.loss
    basis = "measured on this machine" if planner.settings.gpu is None else "estimated, not measured"
    lengths = " and ".join(
        f"{phase.end - phase.first:,} of {phase.data.batch_size} sequences of {phase.data.max_length}"
        for phase in run.phases
    )
    dropout = best.config.hidden_dropout
    weights = best.config.num_parameters
    checkpoints = estimate_disk_space(weights, weights, run.max_checkpoints)
    store = sum(file.bytes for file in planner.train.header.files)
    return {
        "model": f"{best.size}, {best.config}, {best.config.num_parameters:,} parameters",
        "steps": lengths,
        "learning rate": f"{run.optimizer.learning_rate:g}, dropout {dropout:g}",
        "tokens": f"{best.tokens:,.0f}, {best.epochs:,.1f} epochs",
        "held-out loss": f"{loss.mean:.2f} nats per masked token, 90 % interval {loss.low:.2f} to {loss.high:.2f}",
        "perplexity": " to ".join(f"{math.exp(nats):,.1f}" for nats in (loss.low, loss.high)),
        "time": f"{format_duration(best.cost.seconds)}, {basis}",
        "disk space": f"{format_bytes(checkpoints)} for checkpoints and model, {format_bytes(store)} for the store",
    }


def list_notices(result: Plan, planner: Planner) -> Iterator[str]:
    """Yield what the user should know before trusting the plan."""
    best, longest = result.best, result.short_runs[-1]
    if not has_left_plateau(longest.loss, planner.entropy):
        yield (
            f"the short runs have not learned to use context yet (loss {longest.loss:.2f}, token frequencies alone "
            f"give {planner.entropy:.2f}), so the expected loss follows other texts; raise --measure-minutes"
        )
    if best.epochs > NEW_TEXT_EPOCHS:
        yield (
            f"the text is read {best.epochs:,.0f} times; after about {NEW_TEXT_EPOCHS} epochs repeated text teaches "
            "less, and the loss is less certain than its interval; use more text, or start from a released model "
            "(--config adapt)"
        )
    if best.cost.seconds < 3600 * planner.settings.hours * 0.99:
        yield (
            f"the plan uses {format_duration(best.cost.seconds)} of {planner.settings.hours:g} hours: it ends after "
            f"{planner.max_epochs} epochs, since a model mostly memorizes what it reads more often; to use more hours, "
            "add text"
        )
    if planner.settings.gpu is not None:
        yield (
            f"time and memory follow from the GPU's data sheet and an assumed utilization of {UTILIZATION:.0%} for "
            "BASE; check them there with `bertwright pretrain --dry-run`"
        )
