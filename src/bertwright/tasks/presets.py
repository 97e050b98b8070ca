"""The tasks of the paper and their neighbours, as they are published; and how a user's own table becomes a task."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import NamedTuple

from bertwright.settings import check_not_str, did_you_mean
from bertwright.tasks.classification import Classification, Regression
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task_io import TASK_TYPES, AnyTask

SPLITS = ("train", "dev", "test")


class Preset(NamedTuple):
    """A published task: how its files are read, and what they are called in the folder that one downloads.

    GLUE's test files have no labels, so there is nothing to score: those go through `bertwright glue-submission`.
    """

    about: str
    task: AnyTask
    train: str = "train.tsv"
    dev: str = "dev.tsv"
    test: str = ""


def _pair(
    first: str, second: str, label: str = "label", metric: str = "accuracy", pos_label: str | None = None
) -> AnyTask:
    return Classification(text=first, text_pair=second, label=label, metric=metric, pos_label=pos_label)


# Quora's release has 11 pairs with a line end inside a question, in quotes that GLUE's form does not know: 22 of its
# 404,301 lines are halves of a row, with 2 to 5 of 6 columns. GLUE drew train and dev from the lines; the loaders of
# the hub and of TensorFlow leave such halves out, too (363,849 + 40,430 pairs).
_QQP_SHORT_ROWS = 22

_MNLI = _pair("sentence1", "sentence2", "gold_label")
_SQUAD_FILES = ("train-v{}.json", "dev-v{}.json")

# Section 4: GLUE (4.1), SQuAD 1.1 (4.2), SQuAD 2.0 (4.3), SWAG (4.4); 5.3: CoNLL-2003. Scores as in table 1's caption.
PRESETS: dict[str, Preset] = {
    "cola": Preset(
        "GLUE: is the sentence acceptable English? Matthews correlation",
        Classification(text="4", label="2", header=False, metric="matthews"),
    ),
    "sst2": Preset("GLUE: sentiment of film-review sentences", Classification(text="sentence", label="label")),
    "mrpc": Preset(
        "GLUE: do two sentences say the same? F1 and accuracy",
        _pair("#1 String", "#2 String", "Quality", metric="f1", pos_label="1"),
    ),
    "stsb": Preset(
        "GLUE: how similar are two sentences, from 0 to 5? Spearman and Pearson correlation",
        Regression(text="sentence1", text_pair="sentence2", label="score"),
    ),
    "qqp": Preset(
        "GLUE: are two questions duplicates? F1 and accuracy",
        Classification(
            text="question1",
            text_pair="question2",
            label="is_duplicate",
            metric="f1",
            pos_label="1",
            max_short_rows=_QQP_SHORT_ROWS,
        ),
    ),
    "mnli": Preset(
        "GLUE: entailment, contradiction or neutral; the matched dev set",
        _MNLI,
        dev="dev_matched.tsv",
    ),
    "mnli_mismatched": Preset("the same with the mismatched dev set", _MNLI, dev="dev_mismatched.tsv"),
    "qnli": Preset("GLUE: does the sentence answer the question?", _pair("question", "sentence")),
    "rte": Preset("GLUE: does the first sentence entail the second?", _pair("sentence1", "sentence2")),
    "wnli": Preset("GLUE: does the sentence with its pronoun resolved follow?", _pair("sentence1", "sentence2")),
    "swag": Preset(
        "which of four endings follows?",
        MultipleChoice(prompt="sent1", start="sent2", label="label"),
        *("train.csv", "val.csv"),
    ),
    "codah": Preset(
        "four endings written to fool models, of SWAG's form",
        MultipleChoice(prompt="2", endings=("3", "4", "5", "6"), label="7", header=False),
        test="test.tsv",
    ),
    "squad": Preset(
        "answers in paragraphs, SQuAD 1.1; exact match and F1",
        QuestionAnswering(),
        *(name.format("1.1") for name in _SQUAD_FILES),
    ),
    "squad_v2": Preset(
        "the same with questions that have no answer, SQuAD 2.0",
        QuestionAnswering(allow_no_answer=True),
        *(name.format("2.0") for name in _SQUAD_FILES),
    ),
    "conll2003": Preset(
        "named entities, with document context; span F1",
        Tagging(context=True, max_length=256),
        *("train.txt", "valid.txt", "test.txt"),
    ),
    "conll2000": Preset("syntactic chunks; span F1", Tagging(), *("train.txt", "dev.txt", "test.txt")),
    "ud_pos": Preset(
        "parts of speech of Universal Dependencies; accuracy",
        Tagging(metric="accuracy"),
        *("*-ud-train.conllu", "*-ud-dev.conllu", "*-ud-test.conllu"),
    ),
    "nsmc": Preset(
        "sentiment of Korean film reviews",
        Classification(text="document", label="label"),
        *("ratings_train.txt", "ratings_dev.txt", "ratings_test.txt"),
    ),
}


@dataclass(frozen=True)
class TaskOptions:
    """How the examples are read and weighed. What is left unset is a published task's own way; of your own task,
    what stands in brackets."""

    text: str | None = None
    """Column with the text [text]; a number counts from 1 in files without header."""
    text_pair: str | None = None
    """Column with the second text of a pair [none: single texts]."""
    label: str | None = None
    """Column with the label; for a regression, the number; for multiple choice, the right ending's number, or
    its letter from A on [label]."""
    prompt: str | None = None
    """Multiple choice: column with what is continued [prompt]."""
    start: str | None = None
    """Multiple choice: column whose text begins every ending, as SWAG's sent2 [none]."""
    endings: tuple[str, ...] | None = None
    """Multiple choice: columns with the endings, or one that holds a list [ending0 ending1 ending2 ending3]."""
    first_label: int | None = None
    """Multiple choice: number of the first ending in the label column, 0 or 1 [0]."""
    header: bool | None = None
    """Whether the first line of .tsv and .csv names the columns [True]."""
    quotes: bool | None = None
    """Whether quotes enclose fields [in .csv], or are plain characters [in .tsv, as GLUE's]."""
    words: str | None = None
    """Tagging: column of the words: a number from 1 [1], a name in .conllu [form], a field of .jsonl or .parquet
    [words]."""
    tags: str | None = None
    """Tagging: column of the tags, likewise; a negative number counts from the end [-1; upos; tags]."""
    scheme: str | None = None
    """Tagging: how tags spell spans: iob1, iob2, bioes or none [what the tags say]."""
    context: bool | None = None
    """Tagging: fill the window with the sentences around (the paper's maximal document context)
    [False]."""
    allow_no_answer: bool | None = None
    """Question answering: some questions have no answer, as in SQuAD 2.0 [False]."""
    doc_stride: int | None = None
    """Question answering: tokens from one window's start to the next one's [128]."""
    max_query_length: int | None = None
    """Question answering: longest question in tokens [64]."""
    max_answer_length: int | None = None
    """Question answering: longest answer in tokens [30]."""
    n_best_size: int | None = None
    """Question answering: candidates weighed for an answer [20]."""
    max_length: int | None = None
    """Longest sequence in tokens, [CLS] and [SEP] included [128; question answering 384]."""
    metric: str | None = None
    """The score that chooses the best checkpoint. Classification: accuracy, f1, macro_f1, matthews [accuracy];
    regression: spearman, pearson [spearman]; multiple choice: accuracy; tagging: f1, accuracy [f1]; question answering:
    f1, exact_match [f1]."""
    pos_label: str | None = None
    """Classification by two labels: the one whose F1 is meant [the last in sorted order]."""

    def __post_init__(self) -> None:
        check_not_str(self, "endings")

    def applied(self, task: AnyTask) -> AnyTask:
        """The task with these changes. Raises ValueError for a setting that its kind does not have."""
        given = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) is not None}
        known = {one.name for one in fields(task)}  # type: ignore[arg-type]
        if odd := sorted(given.keys() - known):
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in odd)
            raise ValueError(f"{flags}: no setting of a {task.kind} task")
        return replace(task, **given)  # type: ignore[type-var]


@dataclass(frozen=True)
class TaskSettings:
    """What the task is and where its examples lie. What is left unset is the preset's, or the kind's default."""

    task: str
    """A published task: cola, sst2, mrpc, stsb, qqp, mnli, mnli_mismatched, qnli, rte, wnli, swag, codah, squad,
    squad_v2, conll2003, conll2000, ud_pos, nsmc. Or the kind of your own: classification, regression, multiple-choice,
    tagging, question-answering."""
    data: Path | None = None
    """Folder with a published task's files under their own names; --train, --dev and --test win over it."""
    train: tuple[str, ...] = ()
    """Files to learn from: .tsv, .csv, .jsonl, .parquet, also compressed, or hf://datasets/... (classification,
    regression, multiple choice); CoNLL columns, .conllu, .jsonl or .parquet (tagging); SQuAD .json, .jsonl or .parquet
    (question answering)."""
    dev: tuple[str, ...] = ()
    """Labelled files that choose the best checkpoint."""
    test: tuple[str, ...] = ()
    """Labelled files scored once, with the chosen checkpoint."""
    overrides: TaskOptions = field(default_factory=TaskOptions)

    def __post_init__(self) -> None:
        check_not_str(self, "train", "dev", "test")
        if self.task not in PRESETS and self.task not in TASK_TYPES:
            raise ValueError(f'no task "{self.task}"; {did_you_mean(self.task, [*PRESETS, *TASK_TYPES])}')
        self.make()

    def make(self) -> AnyTask:
        """The task, not yet fitted. Raises ValueError for a setting that its kind does not have."""
        return self.overrides.applied(PRESETS[self.task].task if self.task in PRESETS else TASK_TYPES[self.task]())

    def files(self, part: str) -> tuple[str, ...]:
        """Where the examples of one of PARTS lie; none where neither flag nor folder has them."""
        given: tuple[str, ...] = getattr(self, part)
        if given or self.data is None:
            return given
        if self.task not in PRESETS:
            raise ValueError(f"--data is for published tasks, whose file names are known; name files with --{part}")
        name: str = getattr(PRESETS[self.task], part)
        found = tuple(str(path) for path in sorted(self.data.glob(name))) if name else ()
        if part == "train" and not found:
            raise ValueError(f"{self.data}: no {name}, the training file of {self.task}; name it with --train")
        return found
