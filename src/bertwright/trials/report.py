"""Report of an experiment: the table of the finished trials, checked against the floors and the paper's claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bertwright.metrics.statistics import Estimate, difference
from bertwright.objectives.objective import LOSS
from bertwright.trials.cells import Cell, Key, Score, average, estimate_cells, read_cells
from bertwright.trials.experiment_plan import Plan
from bertwright.trials.paper_table import FLOORS, FREQUENT, PERPLEXITY, Claim
from bertwright.trials.pretrain_trials import BestRate, Pretrain, StoreTrial
from bertwright.trials.runner import Result, Runner
from bertwright.trials.table import ClaimResult, Table, TextTable, contrast_rows
from bertwright.trials.trial import CHOSEN_RATE, ENTROPY, LOSS_AT, ONE_LABEL, Trial, all_trials


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
    """The table of a plan's finished trials, and how they were computed."""

    plan: Plan
    table: Table
    pretrainings: list[Pretraining]
    environments: Counter[str]
    """Processor, dtype and versions of the finished trials, with the number of trials."""
    finished: int
    """Number of finished numbers of cells."""

    def to_record(self, setup: Mapping[str, str]) -> dict[str, Any]:
        """Return the report as a JSON object; `setup`: names and values of what was trained, where and when."""
        runs = [one._asdict() | {"losses": {f"{rate:g}": loss for rate, loss in one.losses.items()}}
                for one in self.pretrainings]  # fmt: skip
        own = {"experiment": self.plan.name, "setup": dict(setup), "environments": dict(self.environments)}
        counts = {"finished": self.finished, "total": len(self.plan.trials)}
        return own | self.table.to_record() | {"pretrainings": runs} | counts

    def format_pretrainings(self) -> dict[str, TextTable]:
        """Return the table of pre-trainings by its heading: the loss at each rate, the chosen rate, scores."""
        if not self.pretrainings:
            return {}
        rates = sorted({rate for one in self.pretrainings for rate in one.losses})
        titles = [f"held-out loss at {rate:g}" for rate in rates]
        rows = [["pre-training", *titles, "chosen", "perplexity", "next sentence, held out"]]
        for one in self.pretrainings:
            losses = [f"{one.losses[rate]:.3f}" if rate in one.losses else "" for rate in rates]
            answers = "" if one.next_sentence is None else f"{one.next_sentence:.1%}"
            rows.append([one.name, *losses, f"{one.learning_rate:g}", f"{one.perplexity:.1f}", answers])
        return {"Pre-trainings, each at the best of the rates on held-out loss": rows}


def make_report(plan: Plan, runner: Runner) -> Report:
    """Read the results of all finished trials of a plan and compare them."""
    finished = runner.results(plan.trials)
    cells = read_cells(to_score(trial, result, runner) for trial, result in finished if not result.failure)
    cells |= {
        (row, column): mean
        for column, columns in plan.averages.items()
        for row in plan.rows
        if all((row, name) in cells for name in columns) and (mean := average([cells[row, name] for name in columns]))
    }
    estimates = estimate_cells(cells)
    by_trial = runner.results(all_trials(plan.ordered))
    chosen = _chosen_pretrainings(by_trial)
    floors = find_columns_at_floor(plan, estimates)
    usable = [column for column in plan.columns if not any(column in group for group in floors)]
    claims, disagreements = _check_claims(plan, cells, estimates, usable)
    findings = [describe_plateau(trial.name, result) for trial, result in chosen if result.is_on_plateau]
    findings += [
        f"{row}, {plan.columns[column]}: all predictions are one label in {cell.one_label} of {len(cell.scores)} runs."
        for (row, column), cell in cells.items()
        if cell.one_label and row != FREQUENT
    ]
    if len(finished) < len(plan.trials):
        findings.append(f"Incomplete: {len(finished)} of {len(plan.trials)} results.")
    first, *later = plan.rows
    table = Table(
        plan.title,
        plan.columns,
        plan.rows,
        cells,
        claims,
        plan.notes,
        [*findings, *floors.describe(), *disagreements],
        plan.figures,
        plan.figure_splits,
        estimates,
        contrast_rows([(row, first) for row in later], plan.columns, estimates),
        Counter((trial.row, trial.column) for trial, result in finished if result.failure),
        floors.at_floor,
        is_transposed=plan.is_transposed,
    )
    environments = Counter(format_environment(result.environment) for _, result in by_trial)
    pretrainings = [_summarize_pretraining(trial, result) for trial, result in chosen if not result.failure]
    return Report(plan, table, pretrainings, environments, len(finished))


def to_score(trial: Trial, result: Result, runner: Runner) -> Score:
    """Return the number that a finished trial gives to its cell."""
    return Score(
        trial.row,
        trial.column,
        result.scores[trial.score],
        trial.seed,
        trial.learning_rate,
        trial.pretraining,
        result.scores[trial.selection],
        runner.examples(trial),
        result.scores.get(ONE_LABEL) == 1.0,
    )


def describe_plateau(name: str, result: Result) -> str:
    """Return a warning about a pre-training that is still on the plateau of the token frequencies."""
    return (
        f"{name}: the held-out loss of {result.scores[LOSS]:.2f} is near {result.scores[ENTROPY]:.2f}, the "
        "entropy of the token frequencies. The model has learned little from context, so that its scores say little "
        "about what the experiment compares; more steps may help."
    )


def format_environment(environment: Mapping[str, str]) -> str:
    """Format where a trial was computed.

    >>> format_environment({"processor": "Xeon", "dtype": "float32", "torch": "2.13", "bertwright": "1.0"})
    'Xeon, float32, PyTorch 2.13, bertwright 1.0'
    """
    versions = f"PyTorch {environment['torch']}, bertwright {environment['bertwright']}"
    return f"{environment['processor']}, {environment['dtype']}, {versions}"


class FloorColumns(NamedTuple):
    """Columns in which no claim is checked. Columns without floors, such as perplexities, are in no group."""

    at_floor: tuple[str, ...]
    """No pre-trained row is above all floors: the 95 % interval of its difference from one of them reaches 0."""
    without_floor: tuple[str, ...]
    """Floors lack results."""
    undecided: tuple[str, ...]
    """No difference has an interval: one run of each row, without scores of single examples."""

    def describe(self) -> list[str]:
        at_floor, without_floor, undecided = map(", ".join, self)
        notes = {
            f"At the floor: {at_floor}. No pre-trained row is above the most frequent answer, the models without a "
            "network and the same network from random weights (95 % interval), so that these columns measure no "
            "pre-training.": at_floor,
            f"The floors of {without_floor} have not been run yet, so that no claim is checked there.": without_floor,
            f"{undecided}: one run of each row and no scores of single examples, so that no interval says whether a "
            "row is above the floors, and no claim is checked there.": undecided,
        }
        return [note for note, columns in notes.items() if columns]


def find_columns_at_floor(plan: Plan, estimates: Mapping[Key, Estimate]) -> FloorColumns:
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
        intervals = [[difference([pair]).interval for pair in of_row] for of_row in pairs]
        if any(all(one is not None and one.low > 0 for one in of_row) for of_row in intervals):
            continue
        known = any(one is not None for of_row in intervals for one in of_row)
        (at_floor if known else undecided).append(column)
    return FloorColumns(tuple(at_floor), tuple(without_floor), tuple(undecided))


def _chosen_pretrainings(finished: Sequence[tuple[Trial, Result]]) -> list[tuple[StoreTrial, Result]]:
    """Return the pre-trainings that rows start from: of several rates, the choice among them."""
    tried = {parent.key for trial, _ in finished if isinstance(trial, BestRate) for parent in trial.parents}
    return [
        (trial, result)
        for trial, result in finished
        if isinstance(trial, BestRate | Pretrain) and trial.key not in tried
    ]


def _summarize_pretraining(trial: StoreTrial, result: Result) -> Pretraining:
    """Return what the report shows of a pre-training."""
    objective, scores = trial.settings.objective, result.scores
    rate = scores.get(CHOSEN_RATE, trial.settings.optimizer.learning_rate)
    losses = {float(name[len(LOSS_AT) :]): value for name, value in scores.items() if name.startswith(LOSS_AT)}
    return Pretraining(
        trial.name.removeprefix("pre-train "),
        losses or {rate: scores[objective.loss_metric]},
        rate,
        scores[PERPLEXITY],
        scores["nsp_accuracy"] if any(column.metric == "nsp_accuracy" for column in objective.columns) else None,
    )


def _check_claims(
    plan: Plan, cells: Mapping[Key, Cell], estimates: Mapping[Key, Estimate], usable: Sequence[str]
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
    plan: Plan,
    claim: Claim,
    columns: tuple[str, ...],
    cells: Mapping[Key, Cell],
    estimates: Mapping[Key, Estimate],
) -> ClaimResult:
    """Check a claim on the mean of some columns in which both of its rows have results."""
    rows = (claim.better, claim.worse)
    better, worse = (plan.figures.get(row, {}) for row in rows)
    shared = tuple(column for column in columns if column in better and column in worse)
    if columns == (PERPLEXITY,):
        paper = [math.log(worse[column] / better[column]) for column in shared]
    else:
        paper = [better[column] - worse[column] for column in shared]
    return ClaimResult(
        claim,
        columns,
        difference([(estimates[claim.better, column], estimates[claim.worse, column]) for column in columns]),
        math.fsum(paper) / len(paper) if paper else None,
        shared,
        tuple(row for row in rows if any(len(cells[row, column].scores) == 1 for column in columns)),
        min(cells[row, column].pretrainings for row in rows for column in columns),
    )
