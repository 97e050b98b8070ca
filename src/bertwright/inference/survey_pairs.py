"""`bertwright survey --pairs`: describe rows of texts before vectors are trained on them, by training's own checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from bertwright.base.reporter import SILENT, Fields, Heading, Line, Reporter, Rows
from bertwright.base.settings import Positional, check_not_str
from bertwright.interop.model_files import check_model, model_folder
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.embedding import ROLE_NAMES, Embedding
from bertwright.tasks.embedding_data import as_rows
from bertwright.tasks.pair_checks import expect_masked
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_data import SplitData, data_warnings, read_splits, within_positions
from bertwright.tasks.task_types import TaskOptions
from bertwright.text.sources import check_exist

BATCH_SIZES = (16, 64, 256, 1_024, 4_096)


@dataclass(frozen=True)
class PairSurveySettings:
    """Describe pairs, triplets, rated pairs or classes, and warn of what would harm the training of text vectors."""

    train: Positional[tuple[str, ...]]
    """Files as finetune --task embedding reads them."""
    model: str
    """Model that will be trained: its vocabulary and its longest text decide what is cut."""
    dev: tuple[str, ...] = ()
    """Files that will score the model: what they share with the training files is counted."""
    overrides: TaskOptions = field(default_factory=TaskOptions)

    def __post_init__(self) -> None:
        check_not_str(self, "train", "dev")
        if not self.train:
            raise ValueError("no file given; for example: bertwright survey --pairs faq.csv --model MODEL")


class PairSurvey(NamedTuple):
    """Figures of rows of texts, and sentences on what would harm training."""

    rows: int
    texts: int
    """Distinct texts."""
    masked: Mapping[int, float]
    """By batch size, the pairs of a step that are no wrong answers although their rows differ; empty for other data."""
    warnings: Sequence[str]


def check_inputs(settings: PairSurveySettings) -> None:
    """Check model and files, without torch."""
    check_model(settings.model)
    check_exist((*settings.train, *settings.dev))


def survey_pairs(settings: PairSurveySettings, reporter: Reporter = SILENT) -> PairSurvey:
    """Print what training will see: loss, lengths, masked pairs, and its warnings. Raises ValueError where it does."""
    from bertwright.interop.huggingface import load_config
    from bertwright.vocabulary.open_tokenizer import open_tokenizer

    files = TaskSettings(Embedding.kind, train=settings.train, dev=settings.dev, overrides=settings.overrides)
    folder = model_folder(settings.model)
    read, examples = read_splits(files, 0.0, None)
    tokenizer, positions = open_tokenizer(folder), load_config(folder).max_positions
    task = within_positions(read.with_model(folder), settings.overrides, positions)
    assert isinstance(task, Embedding)
    splits = [
        SplitData(name, given, task.encode(given, tokenizer, labeled=name == "train"))
        for name, given in examples.items()
    ]
    rows = as_rows(examples["train"])
    sizes = [size for size in BATCH_SIZES if size <= len(rows)] if task.vector_loss == "ranking" else []
    warnings = data_warnings(task, files, splits, tokenizer, positions)
    survey = PairSurvey(
        len(rows),
        len({text.strip() for row in rows for text in row.texts}),
        {size: expect_masked(rows, size) for size in sizes},
        warnings,
    )
    reporter.record(Heading(f"Survey of {', '.join(settings.train)}"))
    reporter.record(Fields(task.describe_training(rows) | describe_gold(rows)))
    reporter.record(measure_texts(splits[0]))
    if sizes:
        masked = [(f"{size:,}", f"{count:,.1f}") for size, count in survey.masked.items()]
        reporter.record(Rows(("rows per step", "masked pairs, on average"), masked))
    for warning in warnings:
        reporter.note(warning)
    if not warnings:
        reporter.record(Line("Nothing here will hurt training.", "good"))
    return survey


def describe_gold(rows: Sequence[TextRow]) -> dict[str, str]:
    """Describe the scores or the classes of rows; nothing if they have none."""
    scores = [row.score for row in rows if row.score is not None]
    if scores:
        return {"scores": f"{min(scores):g} to {max(scores):g}, {len({*scores}):,} different ones"}
    counts = Counter(row.label for row in rows if row.label is not None)
    if not counts:
        return {}
    return {"classes": f"{len(counts):,}, with {min(counts.values()):,} to {max(counts.values()):,} texts"}


def measure_texts(split: SplitData) -> Rows:
    """Return the numbers of tokens per role, as a table."""
    roles, lengths = split.encoded.labels[:, 0], split.encoded.lengths
    table = []
    for role, name in ROLE_NAMES.items():
        of_role = lengths[roles == role]
        if len(of_role):
            cut = int(split.encoded.labels[roles == role, 3].sum())
            median, most, longest = (f"{value:,.0f}" for value in np.quantile(of_role, [0.5, 0.9, 1]))
            table.append((name, f"{len(of_role):,}", median, most, f"{'over ' * bool(cut)}{longest}", f"{cut:,}"))
    return Rows(("tokens of", "texts", "median", "90 %", "longest", "cut"), table)
