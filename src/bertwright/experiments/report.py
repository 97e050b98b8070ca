"""Results of an experiment as records: cells, differences, and verdicts on the claims of the paper."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bertwright.experiments.bootstrap import Difference, Estimate, Sample, difference, estimate
from bertwright.experiments.job_runner import JobResult, JobRunner
from bertwright.experiments.jobs import ENTROPY, all_jobs
from bertwright.experiments.table_plan import FEATURES, PERPLEXITY, Claim, TablePlan, Trial
from bertwright.metrics.example_scores import ExampleScores
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds

Verdict = Literal["shown", "not shown", "reversed"]

MEAN = "mean"  # column of differences averaged over tasks


class Cell(NamedTuple):
    """Scores of a row in a column, over the seeds."""

    scores: Mapping[int, float]
    """Score of each seed."""
    learning_rate: float | None
    """Among the rates with the most seeds, the one with the best mean; None for a mean over columns."""
    examples: Sequence[ExampleScores] = ()
    """Per-example statistics of each seed; empty unless all are known."""

    @property
    def summary(self) -> SeedSummary:
        """Mean and standard deviation of the scores."""
        return summarize_seeds([*self.scores.values()])

    @property
    def sample(self) -> Sample:
        """Scores and per-example statistics, as they are resampled."""
        return Sample([*self.scores.values()], self.examples)


class Contrast(NamedTuple):
    """Difference of a row from the first row of the table."""

    row: str
    baseline: str
    """The first row."""
    column: str
    """MEAN: the mean over the tasks that both rows have."""
    difference: Difference


@dataclass(frozen=True)
class ClaimResult:
    """A claim of the paper, checked on the cells that are finished."""

    claim: Claim
    columns: tuple[str, ...]
    """Columns with results."""
    difference: Difference
    """Difference of shares, or of the logarithms of perplexities, in the direction of the claim."""
    paper: float | None
    """The paper's own mean difference over `paper_columns`, in percentage points."""
    paper_columns: tuple[str, ...] = ()
    """Columns for which the paper has figures."""
    single_seed: tuple[str, ...] = ()
    """Rows with one fine-tuning in a column: the interval leaves out their variance between seeds."""

    @property
    def verdict(self) -> Verdict:
        """Shown or reversed if the whole interval is on one side of 0."""
        interval = self.difference.interval
        if interval is None or interval.low <= 0 <= interval.high:
            return "not shown"
        return "shown" if self.difference.mean > 0 else "reversed"

    def __str__(self) -> str:
        is_perplexity = self.columns == (PERPLEXITY,)
        scale, digits = (1, 2) if is_perplexity else (100, 1)
        unit = "nats per token" if is_perplexity else f"points on {', '.join(self.columns)}"
        interval = "one run each: no interval"
        if self.difference.interval is not None:
            low, high, p = self.difference.interval
            rows = " and ".join(self.single_seed)
            basis = f" without the variance between seeds of {rows} (one seed)," if rows else ""
            interval = f"95 % interval{basis} {scale * low:+.{digits}f} to {scale * high:+.{digits}f}, {format_p(p)}"
        paper = ""
        if self.paper is not None:
            columns = f" on {', '.join(self.paper_columns)}" if self.paper_columns != self.columns else ""
            paper = f"; paper {self.paper:+.{digits}f}{columns}"
        mean = f"{scale * self.difference.mean:+.{digits}f} {unit}"
        return f"{self.claim.text}: {self.verdict} at this budget ({mean}, {interval}{paper})."


@dataclass(frozen=True)
class Report:
    """The finished cells of a plan and what they say."""

    plan: TablePlan
    notes: list[str]
    """Notes of the plan, then notes about the results."""
    cells: dict[tuple[str, str], Cell]
    """Cells by row and column; absent if all trials diverged."""
    diverged: Counter[tuple[str, str]]
    """Trials that diverged, at any rate, by row and column."""
    estimates: dict[tuple[str, str], Estimate]
    """Estimates by row and column; for a perplexity, of the negative loss, so that higher is better in every column."""
    claims: list[ClaimResult]
    contrasts: list[Contrast]
    environments: Counter[str]
    """Processor, dtype and versions of the finished jobs, with the number of jobs."""
    finished: int
    """Number of finished trials."""
    total: int
    """Number of trials."""


def make_report(plan: TablePlan, runner: JobRunner) -> Report:
    """Read the results of all finished jobs of a plan and compare them."""
    finished = [(trial, result) for trial in plan.trials if (result := runner.result(trial.job))]
    diverged = Counter((trial.row, trial.column) for trial, result in finished if result.failure)
    scored = dict[tuple[str, str], list[tuple[Trial, JobResult]]]()
    for trial, result in finished:
        if not result.failure:
            scored.setdefault((trial.row, trial.column), []).append((trial, result))
    cells = {key: _read_cell(results, runner) for key, results in scored.items()}
    cells |= {
        (row, column): average
        for column, columns in plan.averages.items()
        for row in plan.rows
        if all((row, name) in cells for name in columns)
        and (average := _average([cells[row, name] for name in columns]))
    }
    estimates = {
        (row, column): result
        for column in plan.columns
        for row, result in estimate(column, _samples(cells, column)).items()
    }
    by_job = [(job, result) for job in all_jobs(plan.jobs) if (result := runner.result(job))]
    return Report(
        plan=plan,
        notes=[*plan.notes, *(describe_plateau(job.name, result) for job, result in by_job if result.is_on_plateau)],
        cells=cells,
        diverged=diverged,
        estimates=estimates,
        claims=[checked for claim in plan.claims if (checked := _check(plan, claim, cells, estimates))],
        contrasts=_contrast_rows(plan, estimates),
        environments=Counter(format_environment(result.environment) for _, result in by_job),
        finished=len(finished),
        total=len(plan.trials),
    )


def describe_plateau(name: str, result: JobResult) -> str:
    """Return a warning about a pre-training that is still on the plateau of the token frequencies."""
    return (
        f"{name}: the held-out loss of {result.scores['mlm_loss']:.2f} is near {result.scores[ENTROPY]:.2f}, the "
        "entropy of the token frequencies. The model has learned little from context, so that its scores say little "
        "about what the experiment compares; more steps may help."
    )


def format_environment(environment: Mapping[str, str]) -> str:
    """Format where a job was computed.

    >>> format_environment({"processor": "Xeon", "dtype": "float32", "torch": "2.13", "bertwright": "1.0"})
    'Xeon, float32, PyTorch 2.13, bertwright 1.0'
    """
    versions = f"PyTorch {environment['torch']}, bertwright {environment['bertwright']}"
    return f"{environment['processor']}, {environment['dtype']}, {versions}"


def _samples(cells: Mapping[tuple[str, str], Cell], column: str) -> dict[str, Sample]:
    """Return the samples of a column by row; a perplexity is replaced by its negative loss."""
    samples = {row: cell.sample for (row, name), cell in cells.items() if name == column}
    if column != PERPLEXITY:
        return samples
    return {
        row: sample._replace(scores=[-math.log(score) for score in sample.scores]) for row, sample in samples.items()
    }


def _contrast_rows(plan: TablePlan, estimates: Mapping[tuple[str, str], Estimate]) -> list[Contrast]:
    """Return the differences of each row from the first one: by column, then the mean over tasks."""
    first, *later = plan.rows
    contrasts = []
    for row in later:
        both = [column for column in plan.columns if (first, column) in estimates and (row, column) in estimates]
        groups = {column: [column] for column in both}
        if len(tasks := [column for column in both if column not in (PERPLEXITY, FEATURES)]) > 1:
            groups[MEAN] = tasks
        for name, columns in groups.items():
            pairs = [(estimates[row, column], estimates[first, column]) for column in columns]
            contrasts.append(Contrast(row, first, name, difference(pairs)))
    return contrasts


def _read_cell(finished: Sequence[tuple[Trial, JobResult]], runner: JobRunner) -> Cell:
    """Return the cell of some trials that did not diverge."""
    rates: dict[float, list[tuple[Trial, JobResult]]] = {}
    for trial, result in finished:
        rates.setdefault(trial.learning_rate, []).append((trial, result))

    def selection(rate: float) -> float:
        return math.fsum(result.scores[trial.selection] for trial, result in rates[rate])

    best = max(rates, key=lambda rate: (len(rates[rate]), selection(rate)))
    scores = {trial.seed: result.scores[trial.score] for trial, result in rates[best]}
    examples = [known for trial, _ in rates[best] if (known := runner.examples(trial.job, trial.score))]
    return Cell(scores, best, examples if len(examples) == len(scores) else ())


def _average(cells: Sequence[Cell]) -> Cell | None:
    """Return the mean of some cells of a row over the seeds that all of them have; None if there is no such seed."""
    seeds = [seed for seed in cells[0].scores if all(seed in cell.scores for cell in cells)]
    scores = {seed: statistics.fmean(cell.scores[seed] for cell in cells) for seed in seeds}
    return Cell(scores, None) if scores else None


def _check(
    plan: TablePlan, claim: Claim, cells: Mapping[tuple[str, str], Cell], estimates: Mapping[tuple[str, str], Estimate]
) -> ClaimResult | None:
    """Check a claim on the columns in which both of its rows have results; None if there are none."""
    columns = tuple(c for c in claim.columns if (claim.better, c) in estimates and (claim.worse, c) in estimates)
    if not columns:
        return None
    pairs = [(estimates[claim.better, column], estimates[claim.worse, column]) for column in columns]
    better, worse = (plan.figures.get(row, {}) for row in (claim.better, claim.worse))
    shared = tuple(column for column in columns if column in better and column in worse)
    if columns == (PERPLEXITY,):
        paper = [math.log(worse[column] / better[column]) for column in shared]
    else:
        paper = [better[column] - worse[column] for column in shared]
    mean = math.fsum(paper) / len(paper) if paper else None
    tasks = [column for column in columns if column != PERPLEXITY]
    single = tuple(
        row for row in (claim.better, claim.worse) if any(len(cells[row, column].scores) == 1 for column in tasks)
    )
    return ClaimResult(claim, columns, difference(pairs), mean, shared, single)


def format_p(p: float) -> str:
    """Format a p-value.

    >>> format_p(0.0123), format_p(0.0002)
    ('p = 0.012', 'p < 0.001')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def get_interval(report: Report, row: str, column: str) -> tuple[float, float] | None:
    """Return the 95 % interval of a cell's mean; None if nothing could be resampled."""
    interval = report.estimates[row, column].interval
    if interval is None or column != PERPLEXITY:
        return interval
    return math.exp(-interval[1]), math.exp(-interval[0])
