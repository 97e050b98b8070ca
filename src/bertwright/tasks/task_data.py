"""Data of a task: the examples of its splits, warnings about them, and the digests of their files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bertwright.base.files import digest_bytes
from bertwright.tables.neighbours import find_retrieval_folder, join_as_glob
from bertwright.tables.retrieval_folders import list_texts
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.presets import SPLITS, TaskSettings
from bertwright.tasks.splits import sample_examples, train_validation_split
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_types import TaskOptions
from bertwright.tasks.unknown_rates import InputCounts
from bertwright.text.sources import digest_input, is_remote, resolve_files
from bertwright.vocabulary.tokenizer import TextTokenizer


class SplitData(NamedTuple):
    """Examples of a split, and their encoding."""

    name: str
    examples: Sequence[Any]
    encoded: Encoded


def read_splits(
    settings: TaskSettings,
    validation_fraction: float,
    limit: int | None,
    examples: Mapping[str, Sequence[Any]] | None = None,
) -> tuple[AnyTask, dict[str, Sequence[Any]]]:
    """Return the task with the labels of its training examples, and the examples of each split that is not empty.

    `examples`: examples by split, in place of files. Raises ValueError if examples are missing or unusable.
    """
    task = settings.build_task()
    read = examples or {name: read_examples(task, settings, name) for name in settings.files_by_split("train")}
    splits = {name: read[name] for name in SPLITS if read.get(name)}
    task = task.with_labels_of(splits["train"])
    if validation_fraction and "dev" not in splits:
        splits["train"], splits["dev"] = train_validation_split(
            splits["train"], task.group_keys(splits["train"]), validation_fraction
        )
        try:
            task.check(splits["dev"])
        except ValueError as error:
            raise ValueError(
                f"validation_fraction = {validation_fraction}: this dev split cannot select the best epoch; "
                f"choose a larger fraction, or name --dev files ({error})"
            ) from None
    task, splits = task.prepare_splits(splits)
    if limit is not None:
        splits = {name: sample_examples(split, limit) for name, split in splits.items()}
    for name in ("dev", "test"):
        task.check(splits.get(name, ()))
    return task, splits


def read_examples(task: AnyTask, settings: TaskSettings, split: str) -> list[Any]:
    """Read the labeled examples of all files of a split, in order; raises ValueError for a file without examples."""
    examples: list[Any] = []
    settings.warn_of_splits(split)
    for path in join_as_glob(settings.files(split)):
        before = len(examples)
        examples += task.read(path)
        if len(examples) == before:
            raise ValueError(f"{path}: contains no examples")
    return examples


def within_positions(task: AnyTask, overrides: TaskOptions, max_positions: int) -> AnyTask:
    """Return the task with default lengths reduced to a model's positions.

    Raises ValueError for lengths that the user has set and that exceed them.
    """
    shortened = task.limited_to(max_positions)
    for name in overrides.to_dict():
        if (length := getattr(task, name)) != getattr(shortened, name):
            raise ValueError(f"{name} = {length}: the model has {max_positions} positions; lower it")
    return shortened


def data_warnings(
    task: AnyTask, settings: TaskSettings, splits: Sequence[SplitData], tokenizer: TextTokenizer, max_positions: int
) -> list[str]:
    """Return a sentence on each problem of files and examples that a user should know before training.

    `splits`: train first; `max_positions`: of the model.
    """
    train = splits[0]
    warnings = [f"{train.name}: {note}" for note in task.vocabulary_warnings(train.examples, tokenizer)]
    for split in splits:
        notes = task.truncation_warnings(len(split.examples), split.encoded.truncated, max_positions)
        notes += InputCounts.count(len(split.examples), split.encoded, tokenizer).vocabulary_warnings()
        notes += task.encoding_warnings(split.encoded)
        notes += task.warnings(split.examples, settings.files(split.name))
        warnings += [f"{split.name}: {note}" for note in notes]
    files = {name: {file for pattern in settings.files(name) for file in resolve_files(pattern)} for name in SPLITS}
    if shared := files["train"] & (files["dev"] | files["test"]):
        path = min(shared)
        path = path if is_remote(path) else os.path.relpath(path)
        warnings.append(f"{path}: used for training and for scoring; its score says little about other examples")
        return warnings
    learned = task.single_examples(train.examples)
    for split in splits[1:]:
        scored = task.single_examples(split.examples)
        keys = task.group_keys([*learned, *scored])  # together: they may be numbers of groups
        seen = set(keys[: len(learned)])
        if count := sum(key in seen for key in keys[len(learned) :]):
            text = f"{count:,} of {len(scored):,} examples have the text of a training example"
            warnings.append(f"{split.name}: {text}; their score says little about other texts")
    return warnings


def digest_files(task: TaskSettings, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the digest of the name and content of each file, folder or glob of a task; for remote ones, of names.

    `names`: names to use for paths, which they have in the digests of a run that started before the files moved.
    """
    paths = [path for split in SPLITS for path in task.files(split)]
    named = {(names or {}).get(path, path): _digest_with_texts(path) for path in paths}
    return {name: digest_bytes(name.encode(), digest.encode()) for name, digest in named.items()}


def _digest_with_texts(path: str) -> str:
    """Return the digest of a path's files; of judgements in BEIR's layout, also of their documents and queries."""
    found = None if is_remote(path) else find_retrieval_folder(path)
    files = [path, *(list_texts(found[0]) if found else ())]
    return digest_input(path) if len(files) == 1 else digest_bytes(*(digest_input(name).encode() for name in files))
