"""Published tasks in a user's folder: each is found by the name of its folder and of its files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bertwright.tasks.presets import PRESETS, TaskSettings
from bertwright.tasks.task_data import read_examples
from bertwright.tasks.task_types import TaskOptions

# Other names of the folders in which a task's files are found.
FOLDERS = {"squad_v2": ("squad",), "mnli_mismatched": ("mnli",), "ud_pos": ("udewt",)}
TEST_FILE = "test.tsv"  # name of GLUE's test files
SPLIT_SHARE = 0.2  # share of the examples that becomes dev if a task has a single file
DEPTH = 2  # levels of folders below the user's


class FoundTask(NamedTuple):
    """A task whose files were found."""

    settings: TaskSettings
    validation_fraction: float
    """Share of the training examples that becomes the dev split; 0 if there is a dev file."""

    @property
    def note(self) -> str | None:
        """Sentence for the report if the splits are not the published ones."""
        if not self.validation_fraction:
            return None
        names = ", ".join(Path(path).name for path in self.settings.train)
        return (
            f"{self.settings.task}: trained and scored on a fixed split of {names} ({self.validation_fraction:.0%} dev)"
        )


def find_task(data: Path, name: str, options: TaskOptions | None = None) -> FoundTask | None:
    """Find a task's training and dev files in the folder or below; None if they are not there.

    `options`: changes of the preset. If there is only a training or a dev file, a fixed share of its examples becomes
    the dev split. A training file that belongs to the folder's own task, MNLI, does not count for its second dev split.
    """
    preset = PRESETS[name]
    for folder in _folders(data, name):
        train, dev = (
            tuple(str(path.resolve()) for path in sorted(folder.glob(pattern)))
            for pattern in (preset.train, preset.dev)
        )
        if dev or (train and not _is_shared(preset.train, folder, name)):
            split = not (train and dev)
            settings = TaskSettings(
                name, train=train or dev, dev=() if split else dev, overrides=options or TaskOptions()
            )
            return FoundTask(settings, SPLIT_SHARE if split else 0.0)
    return None


def add_test_files(task: FoundTask) -> tuple[FoundTask, str | None]:
    """Return the task with the test files next to its training files if they have labels, else with a note.

    GLUE publishes its test files without labels.
    """
    settings = task.settings
    paths = sorted(Path(settings.train[0]).parent.glob(PRESETS[settings.task].test or TEST_FILE))
    settings = replace(settings, test=tuple(map(str, paths)))
    try:
        whole = settings.build_task()
        test = read_examples(whole, settings, "test")  # first: most have no labels
        whole.with_labels_of(read_examples(whole, settings, "train")).check(test)
    except ValueError as error:
        return task, f"{settings.task}: not scored on test ({error})"
    return task._replace(settings=settings), None


def _folders(data: Path, name: str) -> list[Path]:
    """Return the folders that may have a task's files, folders of its own name first."""
    names = [_normalize(name), *FOLDERS.get(name, ())]
    below = [data, *(path for depth in range(1, DEPTH + 1) for path in sorted(data.glob("/".join("*" * depth))))]
    # A link counts by its own name, not by its target's.
    folders = [path for path in below if path.is_dir() and _normalize(path.absolute().name) in names]
    return sorted(folders, key=lambda path: names.index(_normalize(path.absolute().name)))


def _is_shared(train: str, folder: Path, task: str) -> bool:
    """Return whether a task's training file belongs to another task, whose name the folder has."""
    named = _normalize(folder.absolute().name)
    return any(
        preset.train == train for other, preset in PRESETS.items() if other != task and _normalize(other) == named
    )


def _normalize(name: str) -> str:
    """Return a name in lower case, letters and digits only.

    >>> _normalize("SST-2")
    'sst2'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())
