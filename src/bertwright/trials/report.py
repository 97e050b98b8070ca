"""Results of an experiment as records: cells, differences, and verdicts on the claims of the paper."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bertwright.metrics.example_scores import ExampleScores
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds
from bertwright.objectives.objective import LOSS
from bertwright.trials.bootstrap import Difference, Estimate, Sample, difference, estimate
from bertwright.trials.job_runner import JobResult, JobRunner
from bertwright.trials.jobs import (
    CHOSEN_RATE,
    ENTROPY,
    LOSS_AT,
    ONE_LABEL,
    BestRateJob,
    Job,
    PretrainJob,
    all_jobs,
)
from bertwright.trials.table_plan import FEATURES, FLOORS, FREQUENT, PERPLEXITY, Claim, TablePlan, Trial

Verdict = Literal["shown", "not shown", "reversed", "no verdict"]
Run = tuple[int, int]
"""Seed of pre-training, seed of fine-tuning."""

MEAN = "mean"  # column of differences averaged over tasks


class Cell(NamedTuple):
    """Scores of a row in a column, over the seeds."""

    scores: Mapping[Run, float]
    """Score of each run."""
    learning_rate: float | None
    """Among the rates with the most runs, the one with the best mean; None for a mean over columns."""
    examples: Sequence[ExampleScores] = ()
    """Per-example statistics of each run; empty unless all are known."""
    rates: Mapping[float, float] = {}
    """Mean score on dev at each rate, which selected the rate."""
    one_label: int = 0
    """Number of runs whose predictions on dev are all one label."""

    @property
    def summary(self) -> SeedSummary:
        """Mean and standard deviation of the scores."""
        return summarize_seeds([*self.scores.values()])

    @property
    def sample(self) -> Sample:
        """Scores and per-example statistics, as they are resampled."""
        return Sample([*self.scores.values()], self.examples, [pretraining for pretraining, _ in self.scores])

    @property
    def pretrainings(self) -> int:
        """Number of pre-trainings behind the scores."""
        return len({pretraining for pretraining, _ in self.scores})


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
    """Rows with a single score in a column: there is no verdict."""
    pretrainings: int = 1
    """Minimum of pre-trainings behind a row."""

    @property
    def verdict(self) -> Verdict:
        """Shown or reversed if the whole interval is on one side of 0; none if a row has a single score."""
        if self.single_seed:
            return "no verdict"
        interval = self.difference.interval
        if interval is None or interval.low <= 0 <= interval.high:
            return "not shown"
        return "shown" if self.difference.mean > 0 else "reversed"

    def __str__(self) -> str:
        is_perplexity = self.columns == (PERPLEXITY,)
        scale, digits = (1, 2) if is_perplexity else (100, 1)
        unit = "nats per token" if is_perplexity else "points"
        interval = "no interval"
        if self.difference.interval is not None:
            low, high, p = self.difference.interval
            interval = f"95 % interval {scale * low:+.{digits}f} to {scale * high:+.{digits}f}, {format_p(p)}"
        paper = ""
        if self.paper is not None:
            columns = f" on {', '.join(self.paper_columns)}" if self.paper_columns not in ((), self.columns) else ""
            paper = f"; paper {self.paper:+.{digits}f}{columns}"
        if self.single_seed:
            basis = f"; a single run of {' and '.join(self.single_seed)}"
        elif self.pretrainings == 1:
            basis = "; one pre-training each, so that the interval is of these models, not of what distinguishes them"
        else:
            basis = f"; {self.pretrainings} pre-trainings each"
        where = self.columns[0] if len(self.columns) == 1 else f"mean of {', '.join(self.columns)}"
        mean = f"{scale * self.difference.mean:+.{digits}f} {unit}"
        return f"{self.claim.text}, {where}: {self.verdict} at this budget ({mean}, {interval}{paper}{basis})."


class Pretraining(NamedTuple):
    """A pre-training at the best of its rates, as the report shows it."""

    name: str
    losses: Mapping[float, float]
    """Held-out loss at each peak rate, in nats."""
    learning_rate: float
    """The chosen one."""
    perplexity: float
    next_sentence: float | None
    """Held-out accuracy of next-sentence prediction; None without it."""


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
    pretrainings: list[Pretraining]
    at_floor: tuple[str, ...]
    """Columns in which no pre-trained row is above both floors: no claim is checked there."""
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
    chosen = _chosen_pretrainings(by_job)
    at_floor, without_floor, undecided = find_columns_at_floor(plan, estimates)
    usable = [column for column in plan.columns if column not in (*at_floor, *without_floor, *undecided)]
    claims, disagreements = _check_claims(plan, cells, estimates, usable)
    notes = [describe_plateau(job.name, result) for job, result in chosen if result.is_on_plateau]
    notes += [
        f"{row}, {plan.columns[column]}: all predictions are one label in {cell.one_label} of {len(cell.scores)} runs."
        for (row, column), cell in cells.items()
        if cell.one_label and row != FREQUENT
    ]
    if at_floor:
        notes.append(
            f"At the floor: {', '.join(at_floor)}. No pre-trained row is above both the most frequent answer and the "
            "same network from random weights (95 % interval), so that these columns measure no pre-training."
        )
    if without_floor:
        notes.append(
            f"The floors of {', '.join(without_floor)} have not been run yet, so that no claim is checked there."
        )
    if undecided:
        notes.append(
            f"{', '.join(undecided)}: one run of each row and no scores of single examples, so that no interval says "
            "whether a row is above the floors, and no claim is checked there."
        )
    return Report(
        plan=plan,
        notes=[*plan.notes, *notes, *disagreements],
        cells=cells,
        diverged=diverged,
        estimates=estimates,
        claims=claims,
        contrasts=_contrast_rows(plan, estimates),
        pretrainings=[_summarize_pretraining(job, result) for job, result in chosen if not result.failure],
        at_floor=at_floor,
        environments=Counter(format_environment(result.environment) for _, result in by_job),
        finished=len(finished),
        total=len(plan.trials),
    )


def describe_plateau(name: str, result: JobResult) -> str:
    """Return a warning about a pre-training that is still on the plateau of the token frequencies."""
    return (
        f"{name}: the held-out loss of {result.scores[LOSS]:.2f} is near {result.scores[ENTROPY]:.2f}, the "
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
    means = {
        rate: statistics.fmean(result.scores[trial.selection] for trial, result in runs) for rate, runs in rates.items()
    }
    best = max(rates, key=lambda rate: (len(rates[rate]), means[rate]))
    scores = {(trial.pretraining, trial.seed): result.scores[trial.score] for trial, result in rates[best]}
    examples = [known for trial, _ in rates[best] if (known := runner.examples(trial.job, trial.score))]
    one_label = sum(result.scores.get(ONE_LABEL) == 1.0 for _, result in rates[best])
    return Cell(scores, best, examples if len(examples) == len(scores) else (), means, one_label)


def _average(cells: Sequence[Cell]) -> Cell | None:
    """Return the mean of some cells of a row over the runs that all of them have; None if there is no such run."""
    runs = [run for run in cells[0].scores if all(run in cell.scores for cell in cells)]
    scores = {run: statistics.fmean(cell.scores[run] for cell in cells) for run in runs}
    return Cell(scores, None) if scores else None


class FloorColumns(NamedTuple):
    """Columns in which no claim is checked. Columns without floors, such as perplexities, are in no group."""

    at_floor: tuple[str, ...]
    """No pre-trained row is above all floors: the 95 % interval of its difference from one of them reaches 0."""
    without_floor: tuple[str, ...]
    """Floors lack results."""
    undecided: tuple[str, ...]
    """No difference has an interval: one run of each row, without scores of single examples."""


def find_columns_at_floor(plan: TablePlan, estimates: Mapping[tuple[str, str], Estimate]) -> FloorColumns:
    """Compare the rows of each column with its floors."""
    at_floor, without_floor, undecided = list[str](), list[str](), list[str]()
    for column in plan.columns:
        floors = {trial.row for trial in plan.trials if trial.column == column and trial.row in FLOORS}
        rows = [row for row in plan.rows if (row, column) in estimates and not row.startswith(FLOORS)]
        if not floors or not rows:
            continue
        if any((floor, column) not in estimates for floor in floors):
            without_floor.append(column)
            continue
        pairs = [[(estimates[row, column], estimates[floor, column]) for floor in floors] for row in rows]
        lows = [[_lower_bound(*pair) for pair in of_row] for of_row in pairs]
        if any(all(low is not None and low > 0 for low in of_row) for of_row in lows):
            continue
        known = any(low is not None for of_row in lows for low in of_row)
        (at_floor if known else undecided).append(column)
    return FloorColumns(tuple(at_floor), tuple(without_floor), tuple(undecided))


def _lower_bound(row: Estimate, floor: Estimate) -> float | None:
    """Return the lower end of the interval of the difference of two rows, None if it has no interval."""
    interval = difference([(row, floor)]).interval
    return None if interval is None else interval.low


def _chosen_pretrainings(finished: Sequence[tuple[Job, JobResult]]) -> list[tuple[Job, JobResult]]:
    """Return the pre-trainings that rows start from: of several rates, the choice among them."""
    tried = {parent.key for job, _ in finished if isinstance(job, BestRateJob) for parent in job.parents}
    return [
        (job, result)
        for job, result in finished
        if isinstance(job, BestRateJob) or (isinstance(job, PretrainJob) and job.key not in tried)
    ]


def _summarize_pretraining(job: Job, result: JobResult) -> Pretraining:
    """Return what the report shows of a pre-training."""
    assert isinstance(job, PretrainJob | BestRateJob)
    objective, scores = job.settings.objective, result.scores
    rate = scores.get(CHOSEN_RATE, job.settings.optimizer.learning_rate)
    losses = {float(name[len(LOSS_AT) :]): value for name, value in scores.items() if name.startswith(LOSS_AT)}
    return Pretraining(
        job.name.removeprefix("pre-train "),
        losses or {rate: scores[objective.loss_metric]},
        rate,
        scores[PERPLEXITY],
        scores.get("nsp_accuracy"),
    )


def _check_claims(
    plan: TablePlan,
    cells: Mapping[tuple[str, str], Cell],
    estimates: Mapping[tuple[str, str], Estimate],
    usable: Sequence[str],
) -> tuple[list[ClaimResult], list[str]]:
    """Check each claim on each usable column in which both of its rows have results.

    The mean over columns is checked as well if their differences have one sign; else a sentence names the columns.
    """
    results, disagreements = list[ClaimResult](), list[str]()
    for claim in plan.claims:
        both = [c for c in claim.columns if (claim.better, c) in estimates and (claim.worse, c) in estimates]
        columns = [column for column in both if column in usable]
        single = [_check(plan, claim, (column,), cells, estimates) for column in columns]
        results += single
        if len(columns) < 2:
            continue
        if len({result.difference.mean > 0 for result in single}) == 1:
            results.append(_check(plan, claim, tuple(columns), cells, estimates))
        else:
            disagreements.append(f"{claim.text}: no mean, since {', '.join(columns)} differ in sign.")
    return results, disagreements


def _check(
    plan: TablePlan,
    claim: Claim,
    columns: tuple[str, ...],
    cells: Mapping[tuple[str, str], Cell],
    estimates: Mapping[tuple[str, str], Estimate],
) -> ClaimResult:
    """Check a claim on the mean of some columns in which both of its rows have results."""
    pairs = [(estimates[claim.better, column], estimates[claim.worse, column]) for column in columns]
    better, worse = (plan.figures.get(row, {}) for row in (claim.better, claim.worse))
    shared = tuple(column for column in columns if column in better and column in worse)
    if columns == (PERPLEXITY,):
        paper = [math.log(worse[column] / better[column]) for column in shared]
    else:
        paper = [better[column] - worse[column] for column in shared]
    mean = math.fsum(paper) / len(paper) if paper else None
    compared = [cells[row, column] for row in (claim.better, claim.worse) for column in columns]
    single = tuple(
        row for row in (claim.better, claim.worse) if any(len(cells[row, column].scores) == 1 for column in columns)
    )
    fewest = min(cell.pretrainings for cell in compared)
    return ClaimResult(claim, columns, difference(pairs), mean, shared, single, fewest)


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
