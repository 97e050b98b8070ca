"""Published tasks with their files and settings, and the choice of a task with the user's own files and options."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.settings import check_not_str, did_you_mean
from bertwright.tables.file_splits import Splits, splits_in, splits_of_names
from bertwright.tables.neighbours import QRELS, is_retrieval_folder, join_as_glob
from bertwright.tasks.classification import Classification
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.table_task import TableTask
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_types import TASK_TYPES, TaskOptions
from bertwright.text.sources import check_unique

SPLITS = ("train", "dev", "test")


class PaperSettings(NamedTuple):
    """Settings with which the paper fine-tunes on a task."""

    learning_rate: float
    batch_size: int
    epochs: float
    section: str
    rates: tuple[float, ...] = ()
    """Learning rates among which the dev score selects; empty: the paper names a single one."""


class Preset(NamedTuple):
    """A published task: its settings, and the names of its files in the folder as downloaded.

    GLUE's test files have no labels, so they cannot be scored: `bertwright glue-submission` predicts them.
    """

    task: AnyTask
    """The task with its settings, without labels."""
    train: str = "train.tsv"
    dev: str = "dev.tsv"
    test: str = ""
    paper: PaperSettings | None = None
    """None if the paper names no settings for the task."""


# Quora's release has 11 pairs with a line end inside a question, in quotes that GLUE does not use: 22 of its 404,301
# lines are halves of a row, with 2 to 5 of 6 columns. GLUE sampled train and dev from the lines; the loaders of the hub
# and of TensorFlow also skip these halves (363,849 + 40,430 pairs).
_QQP_SHORT_ROWS = 22

_PAIRS = partial(Classification, text="sentence1", text_pair="sentence2")
_GLUE = PaperSettings(3e-5, 32, 3.0, "4.1", rates=(5e-5, 4e-5, 3e-5, 2e-5))

# Section 4: GLUE (4.1), SQuAD 1.1 (4.2), SQuAD 2.0 (4.3), SWAG (4.4); 5.3: CoNLL-2003. Scores as in table 1's caption.
PRESETS: dict[str, Preset] = {
    "cola": Preset(Classification(text="4", label="2", header=False, metric="matthews"), paper=_GLUE),
    "sst2": Preset(Classification(text="sentence", label="label"), paper=_GLUE),
    "mrpc": Preset(
        _PAIRS(text="#1 String", text_pair="#2 String", label="Quality", metric="f1", pos_label="1"),
        paper=_GLUE,
    ),
    "stsb": Preset(Regression(text="sentence1", text_pair="sentence2", label="score"), paper=_GLUE),
    "qqp": Preset(
        _PAIRS(
            text="question1",
            text_pair="question2",
            label="is_duplicate",
            metric="f1",
            pos_label="1",
            max_short_rows=_QQP_SHORT_ROWS,
        ),
        paper=_GLUE,
    ),
    "mnli": Preset(_PAIRS(label="gold_label"), dev="dev_matched.tsv", paper=_GLUE),
    "mnli_mismatched": Preset(_PAIRS(label="gold_label"), dev="dev_mismatched.tsv", paper=_GLUE),
    "qnli": Preset(_PAIRS(text="question", text_pair="sentence"), paper=_GLUE),
    "rte": Preset(_PAIRS(), paper=_GLUE),
    "wnli": Preset(_PAIRS(), paper=_GLUE),
    "swag": Preset(
        MultipleChoice(prompt="sent1", start="sent2", label="label"),
        train="train.csv",
        dev="val.csv",
        paper=PaperSettings(2e-5, 16, 3.0, "4.4"),
    ),
    "codah": Preset(MultipleChoice(prompt="2", endings=("3", "4", "5", "6"), label="7", header=False), test="test.tsv"),
    "squad": Preset(
        QuestionAnswering(), train="train-v1.1.json", dev="dev-v1.1.json", paper=PaperSettings(5e-5, 32, 3.0, "4.2")
    ),
    "squad_v2": Preset(
        QuestionAnswering(allow_no_answer=True),
        train="train-v2.0.json",
        dev="dev-v2.0.json",
        paper=PaperSettings(5e-5, 48, 2.0, "4.3"),
    ),
    "korquad": Preset(
        QuestionAnswering(scoring="korquad"), train="KorQuAD_v1.0_train.json", dev="KorQuAD_v1.0_dev.json"
    ),
    "conll2003": Preset(Tagging(context=True, max_length=512), train="train.txt", dev="valid.txt", test="test.txt"),
    "conll2000": Preset(Tagging(), train="train.txt", dev="dev.txt", test="test.txt"),
    "ud_pos": Preset(
        Tagging(metric="accuracy"), train="*-ud-train.conllu", dev="*-ud-dev.conllu", test="*-ud-test.conllu"
    ),
    "nsmc": Preset(
        Classification(text="document", label="label"),
        train="ratings_train.txt",
        dev="ratings_dev.txt",
        test="ratings_test.txt",
    ),
}


def paper_settings(table: Mapping[str, Any]) -> PaperSettings | None:
    """Return the paper's settings for the published task that a TOML table of settings names; None if it has none."""
    task = table.get("task")
    preset = PRESETS.get(str(task.get("task"))) if isinstance(task, Mapping) else None
    return preset.paper if preset else None


@dataclass(frozen=True)
class TaskSettings:
    """A task, its files and its options. Unset values come from the preset, else from the task type."""

    task: str
    """A published task: cola, sst2, mrpc, stsb, qqp, mnli, mnli_mismatched, qnli, rte, wnli, swag, codah, squad,
    squad_v2, korquad, conll2003, conll2000, ud_pos, nsmc. If the paper names learning rate, batch size and epochs for
    it, they are the defaults: --task NAME --help shows them. Or a task type for your own files: classification,
    multi-label, regression, multiple-choice, tagging, question-answering, embedding, reranking."""
    data: Path | None = None
    """Folder with a published task's files under their own names; --train, --dev and --test take precedence."""
    train: tuple[str, ...] = ()
    """Training files: .tsv, .txt, .csv, .jsonl, .json (an array), .parquet, also compressed, or hf://datasets/...
    (classification, multi-label, regression, multiple choice); CoNLL columns, .conllu, .jsonl or .parquet (tagging);
    SQuAD .json, .jsonl or .parquet (question answering)."""
    dev: tuple[str, ...] = ()
    """Labeled files that select the best checkpoint."""
    test: tuple[str, ...] = ()
    """Labeled files that are scored once, with the selected checkpoint."""
    overrides: TaskOptions = field(default_factory=TaskOptions)

    def __post_init__(self) -> None:
        check_not_str(self, "train", "dev", "test")
        if self.task not in PRESETS and self.task not in TASK_TYPES:
            raise ValueError(f'no task "{self.task}"; {did_you_mean(self.task, [*PRESETS, *TASK_TYPES])}')
        self.build_task()

    def build_task(self) -> AnyTask:
        """Build the task, without labels. Raises ValueError for an option that its task type does not have."""
        return self.overrides.apply_to(PRESETS[self.task].task if self.task in PRESETS else TASK_TYPES[self.task]())

    def files(self, split: str) -> tuple[str, ...]:
        """Return the files of a split; none if neither its flag nor --data has any."""
        given: tuple[str, ...] = getattr(self, split)
        if given or self.data is None:
            return tuple(self._path_of_split(path, split) for path in given)
        if self.task not in PRESETS:
            raise ValueError(f"--data is for published tasks, whose file names are known; name files with --{split}")
        if not self.data.is_dir():
            raise ValueError(f"{self.data}: no such folder")
        name: str = getattr(PRESETS[self.task], split)
        paths = tuple(str(path) for path in sorted(self.data.glob(name))) if name else ()
        if split == "train" and not paths:
            raise ValueError(f"{self.data}: no {name}, the training file of {self.task}; name it with --train")
        return paths

    def _path_of_split(self, path: str, split: str) -> str:
        """Return the path of a split, as in data.json#dev, of a file with several; the path of another file."""
        if self._is_retrieval(path):
            return str(Path(path) / QRELS / f"{split}.tsv")
        splits = self._splits_in(path)
        is_chosen = split in splits.names and (splits.are_members or self._splits_reading(path) != {split})
        return f"{path}#{splits.names[split]}" if is_chosen else path

    def _is_retrieval(self, path: str) -> bool:
        return self.task == Embedding.kind and is_retrieval_folder(path)

    def _splits_reading(self, path: str) -> set[str]:
        """Return the splits whose option names a file."""
        return {name for name in SPLITS if path in getattr(self, name)}

    def _splits_in(self, path: str) -> Splits:
        task = self.build_task()
        has_columns = isinstance(task, TableTask) and task.header
        form, encoding = getattr(task, "format", None), getattr(task, "encoding", "utf-8")
        return splits_in(path, form, encoding, has_columns)

    def warn_of_splits(self, split: str) -> None:
        """Warn of each file with several splits that only this split names, and of folders and globs with several."""
        for path in join_as_glob(getattr(self, split)):
            if not self._is_retrieval(path) and (found := splits_of_names(path)):
                names = ", ".join(f"{name}: {place!r}" for name, place in found.items())
                warnings.warn(
                    f"{path}: its files are named after several splits, and all are read for --{split}; to read those "
                    f"of one, name them ({names})",
                    stacklevel=1,
                )
        for path in getattr(self, split):
            splits = self._splits_in(path)
            others = [name for usual, name in splits.names.items() if usual != split]
            if split not in splits.names or not others or self._splits_reading(path) != {split}:
                continue
            names = ", ".join(splits.names.values())
            what = (
                f"only {splits.names[split]!r} of its splits ({names}) is read; name the others with --train, --dev "
                "and --test"
                if splits.are_members
                else f"a column has splits ({names}), and all rows are read; name one, as in "
                f"{path}#{splits.names[split]}, or give the file with --train and --dev"
            )
            warnings.warn(f"{path}: {what}", stacklevel=1)

    def files_by_split(self, *required: str) -> dict[str, tuple[str, ...]]:
        """Return all files. Raises ValueError if a split in `required` has none, or a split names a file twice."""
        splits = {split: join_as_glob(self.files(split)) for split in SPLITS}
        for split, files in splits.items():
            if split in required and not files:
                raise ValueError(
                    f"no {split} examples: name files with --{split}, or a published task's folder with --data"
                )
            check_unique(files, f" with --{split}")
        return splits

    def check_files(self, *required: str) -> None:
        """Read the first example of each file, without torch. Raises ValueError for missing files and columns."""
        task = self.build_task()
        for path in chain.from_iterable(self.files_by_split(*required).values()):
            next(iter(task.read(path)), None)
