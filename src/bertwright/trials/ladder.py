"""The road to BERT on one task: from the most frequent answer to a fine-tuned BERT, with paired tests between rungs.

RUN/settings.toml   all settings       RUN/results.jsonl   one line per finished run
RUN/runs/NAME/      each run, as `finetune` writes it, without its model
RUN/report.json     the table          RUN/ladder.md       the table for people
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import ttest_rel

from bertwright.base.files import lock_folder, read_json, write_json, write_text
from bertwright.base.messages import format_duration
from bertwright.base.reporter import MUTE, SILENT, Heading, Line, Outputs, Reporter, Rows
from bertwright.base.settings import write_settings
from bertwright.finetuning.run import finetune
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds
from bertwright.tasks.task_data import read_splits
from bertwright.training.run_folder import check_run_directory, delete_weights
from bertwright.trials.grid_results import RESULTS_FILE, pending_trials, read_results, write_results
from bertwright.trials.ladder_settings import FLOOR, RESUME_OVERRIDES, LadderSettings, Rung
from bertwright.trials.work_spent import Work, pretraining_work
from bertwright.vocabulary.word_tokenizer import WordRules, WordTokenizer

COLUMNS = ("system", "dev", "test", "step up", "p", "published", "tokens before", "minutes before", "CPU minutes")


class RungRun(NamedTuple):
    """A run of the ladder."""

    rung: str
    seed: int


class RungResult(NamedTuple):
    """Scores of a run by split, as shares, and what it cost."""

    run: RungRun
    metric: str
    scores: dict[str, float]
    cpu_seconds: float


def ladder(settings: LadderSettings, reporter: Reporter = SILENT) -> Path:
    """Run or resume a ladder; return its folder.

    Ctrl-C and SIGTERM save the current run, then raise KeyboardInterrupt. Errors are `finetune`'s.
    """
    with lock_folder(settings.run):
        check_run_directory(settings, RESUME_OVERRIDES)
        path = settings.run / RESULTS_FILE
        results = read_results(path, parse_result)
        write_settings(
            settings.run / "settings.toml", replace(settings, resume=False), "bertwright ladder: all settings"
        )
        rungs = {rung.name: rung for rung in settings.rungs()}
        runs = [RungRun(name, seed) for seed in range(settings.seeds) for name in (FLOOR, *rungs)]
        runs = [run for run in runs if run.rung != FLOOR or run.seed == 0]
        pending = pending_trials(runs, (result.run for result in results))
        reporter.record(
            Heading(f"Ladder of {len(rungs) + 1} systems, {len(runs)} runs, {len(pending)} of them pending")
        )
        try:
            for number, run in enumerate(pending, 1):
                result = score_floor(settings) if run.rung == FLOOR else train_rung(settings, rungs[run.rung], run.seed)
                results.append(result)
                write_results(path, map(to_record, results))
                scores = ", ".join(f"{split} {100 * score:.1f}" for split, score in result.scores.items())
                used = format_duration(result.cpu_seconds)
                reporter.record(
                    Line(f"{number} of {len(pending)}: {run.rung}, seed {run.seed}: {scores} ({used} of CPU)")
                )
        except KeyboardInterrupt:
            folder = shlex.quote(str(settings.run))
            raise KeyboardInterrupt(
                f"{len(results)} of {len(runs)} runs are finished; resume with: bertwright ladder --run {folder} "
                "--resume"
            ) from None
    print_table(settings, results, reporter)
    return settings.run


def train_rung(settings: LadderSettings, rung: Rung, seed: int) -> RungResult:
    """Train one system with one seed, or resume its run; return its scores and delete its weights."""
    given = settings.finetune_settings(rung, seed)
    started = time.process_time()
    finetune(replace(given, resume=(given.run / "settings.toml").is_file()), MUTE)
    report = read_json(given.run / "report.json")
    metric = str(report["metric"])
    scores = {split: values[metric] for split, values in report["scores"].items()}
    delete_weights(given.run, with_model=True)
    return RungResult(RungRun(rung.name, seed), metric, scores, time.process_time() - started)


def score_floor(settings: LadderSettings) -> RungResult:
    """Score the most frequent answer of the training examples for every example, without a model."""
    started = time.process_time()
    first = settings.finetune_settings(settings.rungs()[0], 0)
    task, examples = read_splits(first.task, first.tuning.validation_fraction, first.tuning.limit)
    scores = dict[str, float]()
    if task.has_frequent_answer:
        rules = WordRules(split_punctuation=not task.reads_words)
        tokenizer = WordTokenizer.learn(task.texts(examples["train"]), rules, min_count=1)
        train = task.encode(examples.pop("train"), tokenizer)
        for split, given in examples.items():
            predictions = task.frequent_predictions(train, given, task.encode(given, tokenizer, labeled=False))
            scores[split] = task.score(given, predictions)[task.metric]
    return RungResult(RungRun(FLOOR, 0), task.metric, scores, time.process_time() - started)


def print_table(settings: LadderSettings, results: Sequence[RungResult], reporter: Reporter) -> None:
    """Print the table and write it."""
    rows, records = [], []
    before: list[RungResult] = []
    is_conll = settings.task.task == "conll2003"
    rungs = {rung.name: rung for rung in settings.rungs()}
    published = {name: rung.published for name, rung in rungs.items() if is_conll}
    works = {name: pretraining_work(rung.sources()) for name, rung in rungs.items()} | {FLOOR: Work(0, 0)}
    for name in (FLOOR, *rungs):
        own = sorted((result for result in results if result.run.rung == name), key=lambda result: result.run.seed)
        if not own:
            continue
        summaries = {split: summarize(own, split) for split in ("dev", "test")}
        step, p = compare(before, own)
        minutes = sum(result.cpu_seconds for result in own) / len(own) / 60
        cells = [name, *("" if summary is None else summary.format(2) for summary in summaries.values())]
        cells += ["" if step is None else f"{100 * step:+.2f}", "" if p is None else f"{p:.3f}"]
        cells.append(f"{figure:.2f}" if (figure := published.get(name)) else "")
        work = works[name]
        if work is None:
            cells += ["?", "?"]
        else:
            cells += [f"{work.tokens / 1e6:,.1f} M", f"{work.seconds / 60:,.1f}"] if work.tokens else ["", ""]
        rows.append((*cells, f"{minutes:.1f}"))
        scores = {split: [result.scores.get(split) for result in own] for split in ("dev", "test")}
        before_it = {"tokens_before": work and work.tokens, "seconds_before": work and work.seconds}
        records.append({"system": name, **scores, "step": step, "p": p, **before_it, "cpu_minutes": minutes})
        before = own if name != FLOOR else []
    reporter.record(
        Heading(f"{settings.task.task}: {results[0].metric}, mean ± standard deviation of {settings.seeds} seeds")
    )
    reporter.record(Rows(COLUMNS, rows, texts=(0,)))
    reporter.record(
        Line(
            "step up: difference to the row above, on test if there are test files; p: paired t-test over the seeds. "
            "before: tokens and time of all pre-training that a system starts from (? if its folders do not tell). CPU "
            "minutes: training and scoring of one run."
        )
    )
    write_json(settings.run / "report.json", {"metric": results[0].metric, "systems": records})
    lines = [f"| {' | '.join(row)} |" for row in (COLUMNS, ("---", *["---:"] * (len(COLUMNS) - 1)), *rows)]
    write_text(settings.run / "ladder.md", "\n".join(lines) + "\n")
    reporter.record(Outputs({"table": settings.run / "ladder.md", "all results": settings.run / RESULTS_FILE}))


def summarize(results: Sequence[RungResult], split: str) -> SeedSummary | None:
    """Summarize the scores on a split; None if the runs have none."""
    scores = [result.scores[split] for result in results if split in result.scores]
    return summarize_seeds(scores) if scores else None


def compare(before: Sequence[RungResult], after: Sequence[RungResult]) -> tuple[float | None, float | None]:
    """Return the mean difference over the seeds that both have, and its p-value if there are two or more."""
    split = "test" if all("test" in result.scores for result in (*before, *after)) else "dev"
    lower, higher = ({result.run.seed: result.scores.get(split) for result in part} for part in (before, after))
    pairs = [(lower[seed], higher[seed]) for seed in lower if seed in higher]
    known = [(low, high) for low, high in pairs if low is not None and high is not None]
    if not known:
        return None, None
    difference = sum(high - low for low, high in known) / len(known)
    if len(known) == 1 or len({high - low for low, high in known}) == 1:
        return difference, None
    return difference, float(ttest_rel([high for _, high in known], [low for low, _ in known]).pvalue)


def to_record(result: RungResult) -> dict[str, Any]:
    return {
        "system": result.run.rung,
        "seed": result.run.seed,
        "metric": result.metric,
        "scores": result.scores,
        "cpu_seconds": result.cpu_seconds,
    }


def parse_result(record: dict[str, Any]) -> RungResult:
    """Read a line of the results."""
    run = RungRun(record["system"], record["seed"])
    return RungResult(run, record["metric"], dict(record["scores"]), float(record["cpu_seconds"]))
