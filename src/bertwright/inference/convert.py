"""`bertwright convert`: write a model as a Hugging Face folder, or in the format of Google's code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertwright.base.files import check_absent
from bertwright.base.reporter import SILENT, Line, Reporter
from bertwright.base.settings import Positional, check_not_str
from bertwright.interop.model_files import CONFIG, check_model, model_folder

if TYPE_CHECKING:
    from bertwright.interop.huggingface import LoadResult
    from bertwright.models.encoder import EncoderModel
    from bertwright.systems.bert.google import GoogleCheckpoint
    from bertwright.tasks.task_folder import TaskModel
    from bertwright.vocabulary.tokenizer import TextTokenizer


@dataclass(frozen=True)
class ConvertSettings:
    """Write the model of a folder, a run, the hub, Google or AllenNLP as a Hugging Face folder or in their formats."""

    source: Positional[str]
    """Model folder, run folder, hub name, or folder with bert_model.ckpt.* and bert_config.json, or with ELMo's
    options.json and weights in hdf5."""
    output: Positional[Path]
    """New folder for the model."""
    format: Literal["huggingface", "google", "allennlp"] = "huggingface"
    """huggingface: a Hugging Face folder; google: bert_model.ckpt.*, bert_config.json and vocab.txt, for models of
    pre-training, classification and question answering; allennlp: options.json and weights.hdf5, for ELMo."""
    lowercase: bool | None = None
    """True for an uncased vocabulary. Required for Google's files, which do not contain it; for others it overrides
    what they contain."""
    labels: tuple[str, ...] = ()
    """Labels of a classifier of Google's run_classifier.py, in the order of its get_labels(). Required for its files,
    which do not contain them."""

    def __post_init__(self) -> None:
        check_not_str(self, "labels")


def convert(settings: ConvertSettings, reporter: Reporter = SILENT) -> None:
    """Read a checkpoint of any known format and write it in another, atomically.

    The model of a task keeps its head and, in a Hugging Face folder, its task. Raises ValueError if the output exists,
    and for a source that is not a complete BERT or that the output's format cannot represent.
    """
    check_absent(settings.output)
    source = Path(settings.source)
    if not source.is_dir():
        check_model(settings.source)
    from bertwright.interop.huggingface import save_model
    from bertwright.interop.sentence_modules import read_sentence_modules
    from bertwright.systems.bert import google
    from bertwright.systems.elmo.allennlp import find_elmo, save_elmo
    from bertwright.tasks.task_folder import describe_head, save_task_folder
    from bertwright.vocabulary.open_tokenizer import open_tokenizer

    from_google = (source / google.CONFIG).is_file() or (
        any(source.glob("*.index")) and not (source / CONFIG).is_file()
    )
    if settings.labels and not from_google:
        raise ValueError(f"--labels: for Google's checkpoints, but {source} has no {google.CONFIG}; omit it")
    from_allennlp = source.is_dir() and find_elmo(source) is not None
    folder = source if from_google or from_allennlp else model_folder(settings.source)
    checkpoint = google.read_checkpoint(folder, settings.labels) if from_google else None
    if from_allennlp:
        tokenizer, loaded, task = *_load_elmo(folder), None
    else:
        tokenizer = open_tokenizer(folder / google.VOCABULARY if checkpoint else folder, settings.lowercase)
        loaded, task = _load_google(checkpoint) if checkpoint else _load(folder)
    modules = read_sentence_modules(folder)
    if settings.format == "google":
        record = task and describe_head(task)
        google.save_checkpoint(settings.output, loaded.model, tokenizer, record, loaded.missing_heads)
    elif settings.format == "allennlp":
        save_elmo(settings.output, loaded.model)
    elif task:
        save_task_folder(settings.output, task, tokenizer)
    else:
        save_model(settings.output, loaded.model, tokenizer, loaded.missing_heads, modules)
    purpose = f", for {task.task.kind}" if task else ""
    reporter.record(Line(f"{settings.output}: written, {loaded.model.num_parameters:,} parameters{purpose}"))
    if settings.format == "google":
        if modules:
            reporter.note(f"{settings.source}: Google's format has no place for its modules ({modules.description})")
        flags = [f"--do_lower_case={tokenizer.lowercase}", *(task.task.google_flags() if task else ())]
        reporter.record(Line(f"for Google's scripts: {' '.join(flags)}"))
    _report_differences(settings, checkpoint, loaded, task, reporter)


def _report_differences(
    settings: ConvertSettings,
    checkpoint: GoogleCheckpoint | None,
    loaded: LoadResult[EncoderModel],
    task: TaskModel | None,
    reporter: Reporter,
) -> None:
    """Name what the source has and the output lacks, or lacks as the source does."""
    if checkpoint and checkpoint.ignored:
        reporter.record(
            Line(f"{settings.source}: {len(checkpoint.ignored)} variables of its training are not part of the model")
        )
    for head in loaded.missing_heads:
        reporter.note(f"{settings.source}: no {head} head, so {settings.output} has none, either")
    if loaded.unexpected_keys:
        purpose = task.task.kind if task else "pre-training"
        reporter.note(f"{settings.source}: ignored, not used in {purpose}: {', '.join(loaded.unexpected_keys)}")


def _load(folder: Path) -> tuple[LoadResult[EncoderModel], TaskModel | None]:
    """Load the model of a Hugging Face folder, and its task if it has one."""
    from bertwright.interop.huggingface import LoadResult, load_model
    from bertwright.tasks.task_folder import load_task

    if task := load_task(folder):
        task.check_computed(folder)
    return (LoadResult(task.model, (), ()) if task else load_model(folder, heads="optional")), task


def _load_elmo(folder: Path) -> tuple[TextTokenizer, LoadResult[EncoderModel]]:
    """Build ELMo from AllenNLP's files; it reads any word by its bytes, so that its vocabulary is empty."""
    from bertwright.interop.huggingface import LoadResult
    from bertwright.systems.elmo.allennlp import read_elmo
    from bertwright.vocabulary.word_tokenizer import ELMO_RULES, WordTokenizer

    return WordTokenizer([], "", ELMO_RULES), LoadResult(read_elmo(folder), ("softmax",), ())


def _load_google(checkpoint: GoogleCheckpoint) -> tuple[LoadResult[EncoderModel], TaskModel | None]:
    """Build the model of Google's files, and the task that its head implies."""
    from bertwright.interop.huggingface import LoadResult, build_model, build_task_model, to_hf_weights
    from bertwright.tasks.task_folder import TaskModel, infer_task

    source, head, _ = checkpoint
    if head is None:
        return build_model(source), None
    model = build_task_model(source, head.head)
    ignored = tuple(sorted(source.tensors.keys() - to_hf_weights(model).keys()))
    return LoadResult(model, (), ignored), TaskModel(model, infer_task(head, model.config.max_positions), inferred=True)
