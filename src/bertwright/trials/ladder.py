"""The road to BERT on one task: from the most frequent answer to a fine-tuned BERT, each compared with the row above.

RUN/settings.toml   all settings       RUN/runs/NAME/result.json   scores of a finished run
RUN/runs/NAME/run/  each run, as `finetune` writes it, without its model
RUN/report.json     the table          RUN/ladder.md       the table for people
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bertwright.base.description import Description, describe_progress, name_damaged_file, read_settings_with
from bertwright.base.files import lock_folder, read_json, remove_folder, write_json, write_text
from bertwright.base.reporter import SILENT, Heading, Outputs, Reporter
from bertwright.base.settings import read_toml
from bertwright.interop.model_files import digest_model, model_folder
from bertwright.text.sources import digest_input
from bertwright.training.run_folder import check_run_directory, write_run_settings
from bertwright.trials.cells import estimate_cells
from bertwright.trials.floors import FrequentAnswer, linear_floors
from bertwright.trials.ladder_settings import FEATURES, FLOOR, RESUME_OVERRIDES, LadderSettings, Rung, slug
from bertwright.trials.runner import Result, Runner, count_results
from bertwright.trials.table import Table, contrast_rows
from bertwright.trials.task_trials import Finetune, Probe, digest_task_inputs
from bertwright.trials.trial import RESULT, Trial
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.vector_file import find_vectors

LEGEND = (
    "Mean ± standard deviation (number of seeds), in percent; in brackets the published figure. Step up: difference "
    "from the row in brackets, which differs in what the name says alone, on test if there are test files, with its "
    "95 % interval over the seeds; it is about these checkpoints alone. Rate: the best of all on dev. Capitals: no, if "
    "the system reads text in lower case. Before: tokens and minutes of all pre-training that a system starts from (? "
    "if its folders do not tell). Minutes: training and scoring of one run."
)
STARTS = ("init", "vectors")  # settings of a training that name another one, which came before it


def ladder(settings: LadderSettings, reporter: Reporter = SILENT) -> Path:
    """Run or resume a ladder; return its folder.

    Ctrl-C and SIGTERM save the current run, then raise KeyboardInterrupt. A run that diverges is reported. Errors are
    `finetune`'s.
    """
    with lock_folder(settings.run):
        check_run_directory(settings, RESUME_OVERRIDES)
        runner = Runner.of_series(settings.run, "ladder")
        write_run_settings(settings, "ladder")
        trials = list_trials(settings)
        rows = [*dict.fromkeys(trial.row for trial in trials)]
        pending = len(trials) - runner.count(trials)
        reporter.record(Heading(f"Ladder of {len(rows)} systems, {len(trials)} runs, {pending} of them pending"))
        runner.run_all(trials, reporter)
    table = make_table(settings, rows, runner.results(trials))
    write_json(settings.run / "report.json", {"inputs": digest_inputs(settings)} | table.to_record())
    if (settings.run / FEATURES).is_dir():
        remove_folder(settings.run / FEATURES)
    write_text(settings.run / "ladder.md", table.to_markdown({}, {}))
    table.show(reporter)
    reporter.record(Outputs({"table": settings.run / "ladder.md", "all results": settings.run / "report.json"}))
    return settings.run


def list_trials(settings: LadderSettings) -> list[Trial]:
    """Return the runs, one of each system first; the floor is scored once."""
    rungs, trials = settings.rungs(), list[Trial]()
    first = settings.finetune_settings(rungs[0], 0, settings.learning_rates[0])
    if settings.task.build_task().has_frequent_answer:
        trials.append(FrequentAnswer(f"{slug(FLOOR)}-seed0", (), (), first, FLOOR))
    if settings.linear_floor:
        trials += linear_floors(first)
    return trials + [
        make_trial(settings, rung, seed, rate)
        for seed in range(settings.seeds)
        for rung in rungs
        for rate in settings.learning_rates
    ]


def make_trial(settings: LadderSettings, rung: Rung, seed: int, rate: float) -> Trial:
    name = settings.run_name(rung, seed, rate)
    if rung.step.is_frozen:
        head = settings.probe_settings(rung, seed, rate)
        return FrozenHead(name, (), (), head, rung.name, seed=seed, learning_rate=rate)
    tuning = settings.finetune_settings(rung, seed, rate)
    return Finetune(name, (), (), tuning, rung.name, seed=seed, learning_rate=rate)


@dataclass(frozen=True)
class FrozenHead(Probe):
    """A head on the states of a frozen model, scored on dev and on test."""

    def run(self, folder: Path, parents: Sequence[Path], reporter: Reporter) -> Mapping[str, float]:
        (head,) = super().run(folder, parents, reporter)
        scores: Mapping[str, float] = read_json(folder / "runs" / head / RESULT)["scores"]
        return scores


def digest_inputs(settings: LadderSettings) -> dict[str, str]:
    """Return the digests of the task's files by split, and of the models and vectors by option."""
    models = {name: getattr(settings, name) for name in ("elmo", "cove", "ulmfit", "gpt", "bert")}
    digests = {name: digest_model(model) for name, model in models.items() if model is not None}
    vectors = {} if settings.vectors is None else {"vectors": digest_input(str(find_vectors(settings.vectors)))}
    return dict(digest_task_inputs(settings.task, None)) | vectors | digests


def reads_capitals(rung: Rung) -> bool:
    if "model" in rung.table:
        return not open_tokenizer(model_folder(rung.table["model"])).lowercase
    words = rung.table.get("words", {})
    reads_bytes = any(words.get(name) for name in ("language_model", "translation_model"))
    return reads_bytes or words.get("char_model") != "none"


def make_table(settings: LadderSettings, rows: Sequence[str], results: Sequence[tuple[Trial, Result]]) -> Table:
    """Return the table of the systems from the lowest to the highest."""
    table = Table.of_series(f"Ladder of {settings.task.task}", rows, results, LEGEND, digits=2)
    last = [*table.columns][-1]
    estimates = estimate_cells(table.cells)
    rungs = settings.rungs()
    contrasts = contrast_rows([(rung.name, rung.over) for rung in rungs if rung.over], [last], estimates)
    works = {rung.name: format_work(pretraining_work(rung.sources())) for rung in rungs}
    minutes = {
        row: sum(times) / len(times) / 60
        for row in rows
        if (times := [result.seconds for trial, result in results if trial.row == row])
    }
    data_set = settings.published or settings.task.task
    published = {rung.name: figure for rung in rungs if (figure := rung.step.published.get(data_set)) is not None}
    rates = {row: cell.learning_rate for (row, column), cell in table.cells.items() if column == "dev"}
    return replace(
        table,
        figures={row: {last: figure} for row, figure in published.items()},
        figure_splits={} if last == "test" else {(row, last): "test" for row in published},
        estimates=estimates,
        contrasts=contrasts,
        details={
            "step up": {one.row: f"{one} ({one.baseline})" for one in contrasts},
            "rate": {rung.name: f"{rates[rung.name]:g}" for rung in rungs if rates.get(rung.name)},
            "capitals": {rung.name: "yes" if reads_capitals(rung) else "no" for rung in rungs},
            "tokens before": {row: tokens for row, (tokens, _) in works.items()},
            "minutes before": {row: before for row, (_, before) in works.items()},
            "minutes": {row: f"{value:.1f}" for row, value in minutes.items()},
        },
    )


class Work(NamedTuple):
    """Tokens that trainings have read, and the seconds of their steps."""

    tokens: float
    seconds: float


def pretraining_work(sources: Iterable[str]) -> Work | None:
    """Add up the trainings of some models and word vectors, and of everything that these started from.

    Each folder counts once. None if one of them is no folder of a finished run, or its run did not record its work.
    """
    folders, pending = dict[Path, Work](), list(sources)
    while pending:
        path = Path(pending.pop()).resolve()
        folder = path if (path / "report.json").is_file() else path.parent  # a run, or a file or model folder in it
        if folder in folders:
            continue
        if not all((folder / name).is_file() for name in ("report.json", "settings.toml")):
            return None
        report, settings = read_json(folder / "report.json"), read_toml(folder / "settings.toml")
        if not {"tokens", "seconds"} <= report.keys():
            return None
        folders[folder] = Work(float(report["tokens"]), float(report["seconds"]))
        tables = settings, settings.get("model")  # pretrain --init is in [model]
        starts = [table.get(name) for table in tables if isinstance(table, dict) for name in STARTS]
        pending += [str(start) for start in starts if start is not None]
    return Work(sum(work.tokens for work in folders.values()), sum(work.seconds for work in folders.values()))


def format_work(work: Work | None) -> tuple[str, str]:
    """Format the tokens and the minutes of all pre-training: empty without one, "?" if unknown."""
    if work is None:
        return "?", "?"
    return (f"{work.tokens / 1e6:,.1f} M", f"{work.seconds / 60:,.1f}") if work.tokens else ("", "")


def describe(folder: Path, verify: bool) -> Description | None:
    """Describe the finished runs of a ladder and, when all are finished, its table; None for another folder."""
    report = folder / "report.json"
    if read_settings_with(folder, "word_epochs", "seeds") is None:
        return None
    fields = describe_progress(folder, count_results(folder))
    if report.is_file():
        with name_damaged_file(report):
            table = read_json(report)
            fields["table"] = str(table["title"])
            for cell in table["cells"]:
                score = f"{cell['column']} {100 * cell['mean']:.2f}"
                fields[cell["row"]] = ", ".join([*filter(None, [fields.get(cell["row"])]), score])
    return Description("ladder of systems", fields)
