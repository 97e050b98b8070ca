"""Describe a model, vocabulary, word vectors, token store, feature cache, run or series of runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.files import read_json
from bertwright.base.messages import format_duration
from bertwright.base.reporter import SILENT, Fields, Heading, Reporter
from bertwright.base.settings import read_toml
from bertwright.inference.feature_cache import HEADER, cache_info
from bertwright.inference.info_settings import InfoSettings
from bertwright.interop.checksums import read_checksums
from bertwright.interop.huggingface import LoadResult, load_config, load_model
from bertwright.interop.model_files import CHECKSUMS, MODULES, is_run, model_folder
from bertwright.interop.sentence_modules import read_sentence_modules
from bertwright.models.encoder import EncoderConfig
from bertwright.models.representations import expand_representations
from bertwright.objectives.data_settings import DataSettings
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.objective_registry import find_objective
from bertwright.systems.translation_models import is_translation_model, load_translation_system
from bertwright.tasks.presets import SPLITS
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_folder import load_task, read_task
from bertwright.tokenstore.store import TokenStore
from bertwright.training import checkpoint
from bertwright.training.metrics_log import METRICS_FILE, read_metrics
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.vector_file import RUN_FILES, load_vectors

MAX_LABELS = 12  # listed labels
GRID = "grid of fine-tuning runs"
PROBE = "probe of frozen features"
SERIES = {  # kind → settings that vary between the runs: several values, or their number
    GRID: ("learning_rates", "batch_sizes", "epochs", "seeds"),
    PROBE: ("representations", "learning_rates", "seeds"),
}
LADDER = frozenset({"word_epochs", "seeds"})  # settings that only a ladder has together
TRANSLATION = "train_source"  # a setting that only a translation run has


class Description(NamedTuple):
    """The kind and the properties of a folder, for the user."""

    kind: str
    fields: dict[str, str]
    has_digests: bool = False
    """Whether --verify has something to compare."""


def info(settings: InfoSettings, reporter: Reporter = SILENT) -> None:
    """Print the kind and the properties of a folder. Raises ValueError if its kind is unknown or it is damaged."""
    folder = settings.folder
    kind, fields, has_digests = _describe(folder, settings.verify)
    if settings.verify and not has_digests:
        raise ValueError(
            f"{folder}: --verify: expected a token store, a run with checkpoints or a model with {CHECKSUMS}, got "
            f"another folder ({kind}); omit it"
        )
    reporter.record(Heading(f"{folder}: {kind}"))
    reporter.record(Fields(fields))


def _describe(folder: Path, verify: bool) -> Description:
    if splits := [split for split in SPLITS if (folder / split / HEADER).is_file()]:
        return _describe_features(folder, splits)
    if (folder / "train" / "header.json").is_file():
        return _describe_store(folder, verify)
    if is_run(folder):
        return _describe_run(folder, verify)
    if (folder / "settings.toml").is_file() and (series := _describe_series(folder)) is not None:
        return series
    if any((folder / name).is_file() for name in RUN_FILES):
        return _describe_vectors(folder)
    if is_translation_model(folder):
        return _describe_translation_model(folder)
    if (folder / "config.json").is_file() or (folder / MODULES).is_file():
        return _describe_model(model_folder(folder))
    if (folder / "vocab.txt").is_file() or (folder / "tokenizer.json").is_file():
        return Description("vocabulary", _vocabulary_fields(folder))
    raise ValueError(
        f"{folder}: neither a run (settings.toml, checkpoints/), a finished token store (train/header.json), "
        f"features (train/{HEADER}), word vectors ({' or '.join(RUN_FILES)}), a model (config.json) nor a vocabulary "
        "(vocab.txt)"
    )


def _describe_features(folder: Path, splits: list[str]) -> Description:
    fields = {}
    for split in splits:
        header, (states, size) = cache_info(folder / split)
        layers = ", ".join(map(str, header.layers))
        fields[split] = f"{states:,} states of {size} numbers, of layer {layers}"
    fields["checked"] = "sizes (a probe that reads them compares every byte)"
    return Description("states of a frozen encoder", fields)


def _describe_store(folder: Path, verify: bool) -> Description:
    fields = {}
    for name in ("train", "held_out"):
        if (folder / name).is_dir():
            store = TokenStore.open(folder / name, verify=verify)
            fields[name.replace("_", " ")] = (
                f"{store.num_documents:,} documents, {store.num_sentences:,} sentences, {store.num_tokens:,} tokens"
            )
    provenance = store.header.provenance
    fields["vocabulary"] = f"{provenance.vocab_size:,} tokens, digest {provenance.vocabulary_digest}"
    fields["sentence splitter"] = provenance.sentence_splitter
    fields["checked"] = "every byte" if verify else "sizes and sampled blocks (--verify: every byte)"
    return Description("token store", fields, has_digests=True)


def _describe_model(folder: Path) -> Description:
    """Load and describe a model; loading compares all its files with their checksums."""
    config, trained = load_config(folder), load_task(folder)
    loaded = trained or load_model(folder, heads="optional")
    fields = {"shape": _format_shape(config), "positions": f"{config.max_positions:,}"}
    fields["parameters"] = f"{loaded.model.num_parameters:,}"
    if isinstance(loaded, LoadResult):
        if modules := read_sentence_modules(folder):
            fields["text vectors"] = modules.description
        fields["missing heads"] = ", ".join(loaded.missing_heads) or "none"
    else:
        fields |= _task_fields(loaded.task)
    has_checksums = bool(read_checksums(folder))
    fields |= _vocabulary_fields(folder)
    fields["checked"] = f"every byte, by {CHECKSUMS}" if has_checksums else f"shapes and formats only (no {CHECKSUMS})"
    return Description(f"model for {trained.task.kind}" if trained else "model", fields, has_checksums)


def _describe_translation_model(folder: Path) -> Description:
    """Load and describe a translation model; loading compares all its files with their checksums."""
    system, has_checksums = load_translation_system(folder), bool(read_checksums(folder))
    fields = {"shape": str(system.model.config), "parameters": f"{system.model.num_parameters:,}"}
    if system.source is not system.target:
        fields["words of the source"] = f"{system.source.vocab_size:,}"
    fields["vocabulary"] = f"{system.target.vocab_size:,} tokens"
    fields["checked"] = f"every byte, by {CHECKSUMS}" if has_checksums else f"shapes and formats only (no {CHECKSUMS})"
    return Description("translation model", fields, has_checksums)


def _describe_vectors(folder: Path) -> Description:
    """Read and describe the folder of `bertwright word-vectors`, or another folder with its files."""
    vectors, report = load_vectors(folder), folder / "report.json"
    fields = {"file": vectors.path.name, "vectors": f"{len(vectors):,} words, {vectors.width} numbers each"}
    if (folder / "settings.toml").is_file():
        fields["model"] = str(read_toml(folder / "settings.toml").get("model", "unknown"))
    if report.is_file():
        with _name_damaged_file(report):
            fields["trained on"] = _format_work(read_json(report))
    return Description("word vectors", fields)


def _describe_run(folder: Path, verify: bool) -> Description:
    checkpoints = checkpoint.list_checkpoints(folder / "checkpoints")
    if verify:
        checkpoint.verify_latest(folder / "checkpoints")
    finished, settings = (folder / "model").is_dir(), read_toml(folder / "settings.toml")
    fine_tuning, translation = "task" in settings, TRANSLATION in settings
    report = folder / "report.json"
    pruned = report.is_file() and not finished and not checkpoints  # by a grid search or an experiment
    fields = {"state": "finished" if finished else "finished, weights deleted" if pruned else "not finished"}
    fields["checkpoints"] = ", ".join(path.name for path in checkpoints) or ("none" if pruned else "none yet")
    newest = folder / "model" if finished else checkpoints[-1] if checkpoints else None
    task = None
    if newest is not None and translation:
        fields |= _describe_translation_model(newest).fields
    elif newest is not None:
        config, task = load_config(newest), read_task(newest) if fine_tuning else None
        fields["model"] = _format_shape(config)
        fields["model"] += "" if fine_tuning else f", {config.num_parameters:,} parameters"
    if (
        finished and not translation and load_task(folder / "model") is None
    ):  # both raise ValueError for damaged weights
        load_model(folder / "model", heads="optional")
    if task is not None:
        fields |= _task_fields(task)
    with _name_damaged_file(folder / METRICS_FILE):
        fields |= _score_fields(folder, "bleu" if translation else None if task is None else task.metric)
    if report.is_file():
        with _name_damaged_file(report):
            work = read_json(report)
            fields["seconds of its last process"] = f"{work['seconds_of_this_process']:,.0f}"
            if {"tokens", "seconds"} <= work.keys():
                fields["trained on"] = _format_work(work)
    kind = "fine-tuning" if fine_tuning else "translation" if translation else "pre-training"
    return Description(f"{kind} run", fields, bool(checkpoints))


def _describe_series(folder: Path) -> Description | None:
    """Describe the progress of a ladder, a grid of fine-tuning runs, or heads on frozen features; else None."""
    settings = read_toml(folder / "settings.toml")
    if settings.keys() >= LADDER:
        return _describe_ladder(folder)
    kind = next((kind for kind, varied in SERIES.items() if {*varied} <= settings.keys()), None)
    if kind is None:
        return None
    values = [settings[name] for name in SERIES[kind]]
    cache = Path(settings.get("features", folder / "features")) / SPLITS[0]
    is_known = kind == GRID or "each-layer" not in values[0]
    if not is_known and (cache / HEADER).is_file():  # the number of heads depends on the model's layers
        values[0], is_known = list(expand_representations(values[0], max(cache_info(cache)[0].layers))), True
    planned = prod(len(value) if isinstance(value, list) else int(value) for value in values) if is_known else None
    done, path = len([*folder.glob("runs/*/result.json")]), folder / "report.json"
    finished = planned is not None and done >= planned and path.is_file()
    total = "" if planned is None else f" of {planned:,}"
    fields = {"state": "finished" if finished else "not finished", "runs done": f"{done:,}{total}"}
    if finished and kind == GRID:
        with _name_damaged_file(path):
            report = read_json(path)
            metric, chosen = report["metric"], report["chosen"]
            fields |= {"chosen": str(chosen["run"]), "best on dev": f"{metric} {chosen['scores']['dev'][metric]:.4f}"}
    return Description(kind, fields)


def _describe_ladder(folder: Path) -> Description:
    """Describe the finished runs of a ladder and, when all are finished, the mean scores of its systems."""
    done, report = len([*folder.glob("runs/*/result.json")]), folder / "report.json"
    fields = {"state": "finished" if report.is_file() else "not finished", "runs done": f"{done:,}"}
    if report.is_file():
        with _name_damaged_file(report):
            for cell in read_json(report)["cells"]:
                before = f"{fields[cell['row']]}, " if cell["row"] in fields else ""
                fields[cell["row"]] = f"{before}{cell['column']} {100 * cell['mean']:.2f}"
    return Description("ladder of systems", fields)


def _format_work(work: dict[str, Any]) -> str:
    return f"{work['tokens']:,.0f} tokens, {format_duration(work['seconds'])}"


def _format_shape(config: EncoderConfig) -> str:
    direction = f", {config.direction}" if isinstance(config, BertConfig) and config.is_causal else ""
    return f"{config}{direction}"


def _task_fields(task: AnyTask) -> dict[str, str]:
    fields = {"task": task.kind}
    if task.label_names:
        names = ", ".join(task.label_names[:MAX_LABELS]) + (" …" if len(task.label_names) > MAX_LABELS else "")
        fields["labels"] = f"{len(task.label_names)}: {names}"
    fields |= {"head": f"{task.head.kind}, {task.head.outputs} outputs", "metric": task.metric}
    fields["longest sequence"] = f"{task.max_length} tokens"
    return fields | task.describe()


def _vocabulary_fields(folder: Path) -> dict[str, str]:
    tokenizer = open_tokenizer(folder)
    return {
        "vocabulary": f"{tokenizer.vocab_size:,} tokens, {'uncased' if tokenizer.lowercase else 'cased'}",
        "digest of its ids": tokenizer.digest,
    }


def _score_fields(run: Path, metric: str | None) -> dict[str, str]:
    """Return the last held-out loss of pre-training, or the best dev score by a task's metric."""
    records, fields = read_metrics(run), dict[str, Any]()
    if held_out := [record for record in records if record["kind"] == "held_out"]:
        data, last = read_toml(run / "settings.toml").get("data", {}), held_out[-1]
        loss_metric = find_objective(data.get("objective", DataSettings.objective)).loss_metric
        fields["held out"] = f"loss {last[loss_metric]:.3f} after step {last['step']:,}"
    if metric is not None and (dev := [record for record in records if record["kind"] == "dev"]):
        best = max(dev, key=lambda record: float(record[metric]))
        fields["best on dev"] = f"{metric} {best[metric]:.4f} after step {best['step']:,}"
    return fields


@contextmanager
def _name_damaged_file(path: Path) -> Iterator[None]:
    """Raise ValueError with the file's name if its JSON does not have the structure that bertwright wrote."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: not as it was written ({error!r}); move it away to see the rest") from None
