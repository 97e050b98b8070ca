"""Settings of `bertwright predict`. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bertwright.base.files import check_absent
from bertwright.base.settings import Positional, check_limit, check_minimum, check_not_str
from bertwright.interop.model_files import check_model
from bertwright.tasks.task_types import NATIVE_SUFFIXES, TaskOptions
from bertwright.text.decoding import check_stdin_alone
from bertwright.text.sources import STDIN, check_exist
from bertwright.training.device_settings import InferenceDeviceSettings

STANDARD_OUTPUT = Path(STDIN)
TABLE_SUFFIXES = (".tsv", ".csv")
SUFFIXES = (".jsonl", *TABLE_SUFFIXES, *NATIVE_SUFFIXES)


@dataclass(frozen=True)
class PredictSettings:
    """Label texts with a fine-tuned model.

    Predictions for texts are printed; predictions for --inputs, of any size, are written to --output.
    """

    model: Positional[str]
    """Folder of a fine-tuned model, its run folder, or a hub name."""
    texts: Positional[tuple[str, ...]] = ()
    """Texts to label or tag, or one pair if the task reads pairs; for question answering a question and its context;
    for multiple choice a prompt and its endings. With - as the only text, one text per line of standard input. For
    files use --inputs."""
    inputs: tuple[str, ...] = ()
    """Files in the format of the training files; labels in them are ignored. With - as the only input, one text
    per line of standard input; each line gets a prediction."""
    output: Path | None = None
    """New file for the predictions, one record per example, in order: .jsonl, .tsv (without quotes) or .csv; .conll for
    tags; .json for answers in SQuAD's format. With -, .jsonl on standard output."""
    limit: int | None = None
    """Label only this many examples of --inputs, the first ones, for a quick trial. Unset: all."""
    show_examples: int = 0
    """Also print this many examples of --inputs as they were read."""
    ensemble: tuple[str, ...] = ()
    """More models of the same task and vocabulary; the probabilities of all models are averaged."""
    threshold: float | None = None
    """Question answering with questions that may have no answer: τ, the margin over "no answer" above which the best
    span is the answer. Multi-label: the probability above which a label is predicted. Unset: the model's; of an
    ensemble, the mean of its models'."""
    abstain_below: float | None = None
    """Classification: leave the label empty if its probability is lower than this."""
    keep_columns: tuple[str, ...] = ()
    """Columns of the input tables that are copied to the output, before the prediction, such as an id or the text."""
    safe_csv: bool = False
    """In .csv and .tsv output, prefix an apostrophe to texts that start with =, +, -, @, a tab or a carriage return:
    spreadsheets would run them as formulas."""
    overrides: TaskOptions = field(default_factory=TaskOptions)
    device: InferenceDeviceSettings = field(default_factory=InferenceDeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "texts", "inputs", "ensemble", "keep_columns")
        if bool(self.texts) == bool(self.inputs):
            raise ValueError(f"give either texts, or files with --inputs; {STDIN} means standard input")
        check_stdin_alone(self.inputs)
        check_minimum(self, 1, "limit")
        check_minimum(self, 0, "show_examples")
        check_limit(self, "from 0 to 1", "abstain_below")
        if self.limit is not None and not self.inputs:
            raise ValueError(f"--limit {self.limit}: expected --inputs, got texts on the command line; omit it")
        if self.inputs and self.output is None:
            raise ValueError(
                "--inputs needs a file for the predictions: add --output predictions.jsonl, or "
                f"--output {STDIN} for standard output"
            )
        if self.texts and self.output is not None:
            raise ValueError(
                "--output: expected --inputs, got texts on the command line; omit --output to print predictions"
            )
        if self.output is not None and self.suffix not in SUFFIXES:
            raise ValueError(f"{self.output}: expected one of the suffixes {', '.join(SUFFIXES)}")
        if self.keep_columns and (self.inputs in ((), (STDIN,)) or self.suffix in NATIVE_SUFFIXES):
            raise ValueError("--keep-columns is for tables named by --inputs, and for .jsonl, .tsv and .csv output")
        if twice := [name for name in self.keep_columns if self.keep_columns.count(name) > 1]:
            raise ValueError(f"--keep-columns names {twice[0]!r} twice")
        if self.safe_csv and self.suffix not in TABLE_SUFFIXES:
            raise ValueError("--safe-csv is for .csv and .tsv output")

    @property
    def suffix(self) -> str:
        """Suffix that decides the format of the output."""
        return ".jsonl" if self.output in (None, STANDARD_OUTPUT) else self.output.suffix


def check_inputs(settings: PredictSettings) -> None:
    """Check models, files and output, without torch."""
    for name in (settings.model, *settings.ensemble):
        check_model(name)
    if settings.inputs != (STDIN,):
        check_exist(settings.inputs)
    if settings.output not in (None, STANDARD_OUTPUT):
        check_absent(settings.output)
