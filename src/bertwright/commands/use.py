"""What is done with what the stages left: fill masks, make vectors, look into folders, convert checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import nn
from tyro.conf import Positional

from bertwright.commands.output_paths import check_absent, new_file
from bertwright.console import byte_progress, heading, key_value_table, make_table, notice, say
from bertwright.corpus.documents import ReadStats, read
from bertwright.files import read_json
from bertwright.inference.feature_cache import BLOCKS, cache_info
from bertwright.inference.fill_mask import MaskPrediction
from bertwright.inference.model import Bert, load
from bertwright.interop import google
from bertwright.interop.huggingface import load_config, load_model, save_model
from bertwright.interop.model_files import is_run, model_folder
from bertwright.io.decoding import STDIN, STDIN_NAME, OnBadBytes, check_stdin_alone, read_stdin
from bertwright.io.sources import CorpusSettings, open_inputs
from bertwright.io.tables import lines
from bertwright.models.config import BertConfig
from bertwright.settings import check_not_str, read_toml
from bertwright.tasks.prediction import chunks
from bertwright.tasks.presets import SPLITS
from bertwright.tasks.task_io import AnyTask, load_task, read_task, save_task_folder
from bertwright.tokenstore.store import TokenStore
from bertwright.training import checkpoint
from bertwright.training.context import DeviceSettings, execution_context
from bertwright.training.metrics_log import METRICS_FILE, read_metrics
from bertwright.vocabulary.tokenizer import Tokenizer

MASK_WIDTH = 26  # terminal columns of one [MASK] and its candidates
TEXT_WIDTH, COSINE_WIDTH = 36, 8  # terminal columns
SHOWN_LABELS = 12
GRID = "grid of fine-tuning runs"
SERIES = {  # and the settings that are varied in it: several values, or the number of them
    GRID: ("learning_rates", "batch_sizes", "epochs", "seeds"),
    "probe of frozen features": ("representations", "learning_rates", "seeds"),
}


@dataclass(frozen=True)
class FillMaskSettings:
    """Show what a model reads into each [MASK] of some texts."""

    model: Positional[str]
    """Model folder, run folder, or hub name."""
    texts: Positional[tuple[str, ...]]
    """Texts, each with one [MASK] or more; - reads them from standard input, one a line, blank ones left out."""
    top_k: int = 5
    """Candidates shown for each [MASK]."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "texts")
        if not self.texts:
            raise ValueError('no text given; for example: bertwright fill-mask MODEL "Paris is the [MASK] of France."')


@dataclass(frozen=True)
class EmbedSettings:
    """Turn texts into vectors: one a text, in order. Few texts are compared on the screen, files go to --output."""

    model: Positional[str]
    """Model folder, run folder, or hub name."""
    texts: Positional[tuple[str, ...]] = ()
    """Texts to compare, two or more; one is enough with --output. For files use --inputs. - reads texts from standard
    input, one a line, blank ones left out."""
    inputs: tuple[str, ...] = ()
    """Files with texts: .txt (one a line; blank lines have no vector), .jsonl, .csv, .tsv, .parquet, also
    compressed. - alone: standard input, one text a line."""
    column: str = "text"
    """The field or column that holds the text in table inputs."""
    encoding_errors: Literal["error", "replace"] = "error"
    """What to do about bytes in files and standard input that are not UTF-8: stop and say where they are, or read each
    as U+FFFD."""
    output: Path | None = None
    """Write the vectors to this new .npy file, N × H float32."""
    pooling: Literal["mean", "cls", "max"] = "mean"
    """mean or max over all tokens, or the state of [CLS]."""
    normalize: bool = True
    """Scale every vector to length 1, so that dot products are cosines."""
    max_length: int | None = None
    """Longest window in tokens; longer texts are read in several. Unset: the model's positions."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "texts", "inputs")
        if bool(self.texts) == bool(self.inputs):
            raise ValueError("give either texts, or files with --inputs")
        if self.inputs and self.output is None:
            raise ValueError("vectors of files need a place: --output vectors.npy")
        check_stdin_alone(self.inputs)
        if self.texts != (STDIN,):
            self.refuse_one(len(self.texts))
        if blank := [number for number, text in enumerate(self.texts, 1) if not text.strip()]:
            raise ValueError(f"text {blank[0]} of {len(self.texts)} is empty")

    def refuse_one(self, number: int) -> None:
        """Raise ValueError for one text without an output; how many are piped in is known when they are read."""
        if number == 1 and self.output is None:
            raise ValueError("one text has nothing to compare with: give another, or a place: --output vectors.npy")


@dataclass(frozen=True)
class InfoSettings:
    """Say what a folder holds: a model, a vocabulary, a token store, features, a run or a grid of runs."""

    folder: Positional[Path]
    """The folder to look into."""
    verify: bool = False
    """Compare every byte of a store, or of a run's newest checkpoint, with its digest."""


@dataclass(frozen=True)
class ConvertSettings:
    """Write a BERT checkpoint as a Hugging Face folder: another folder's, a run's newest, or Google's."""

    source: Positional[str]
    """Model folder, run folder, hub name, or folder with bert_model.ckpt.* and bert_config.json."""
    output: Positional[Path]
    """Folder to be made."""
    lowercase: bool | None = None
    """Whether the vocabulary is uncased. Needed for Google's files, which do not say it; for others it overrides what
    they say."""


def fill_mask(settings: FillMaskSettings, console: Console | None = None) -> list[MaskPrediction]:
    """Print each text, filled, with the candidates for each [MASK]. Raises ValueError for a text without one."""
    console = console or Console()
    texts = _given(settings.texts, "mend")
    with execution_context(settings.device) as place:
        model = load(model_folder(settings.model), place.device, place.dtype)
        answers = model.fill_mask(texts, settings.top_k)
    for filled in answers:
        heading(console, filled.text)
        for table in _candidates(filled, side_by_side=max(1, console.width // MASK_WIDTH)):
            console.print(table)
    return answers


def embed(settings: EmbedSettings, console: Console | None = None) -> None:
    """Write the vectors of texts or files to a file, in constant memory, or show how alike some texts are."""
    console = console or Console()
    if settings.output is not None:
        check_absent(settings.output)
        if settings.output.suffix not in ("", ".npy"):
            raise ValueError(
                f"{settings.output}: vectors are written as .npy, not as {settings.output.suffix}; name it "
                f"{settings.output.with_suffix('.npy')} (numpy.load reads it, numpy.savetxt makes text of it)"
            )
    given = _given(settings.texts, settings.encoding_errors) if settings.texts else []
    settings.refuse_one(len(given))
    with execution_context(settings.device) as place:
        model = load(model_folder(settings.model), place.device, place.dtype)
        if settings.output is None:
            _show_cosines(console, given, _vectors(model, given, settings))
        else:
            texts = _texts_of_files(settings, console) if settings.inputs else iter(given)
            parts = (_vectors(model, chunk, settings) for chunk in chunks(texts))
            number = _write_rows(settings.output, parts, model.config.hidden_size)
            say(console, f"{settings.output}: {number:,} vectors of {model.config.hidden_size} numbers")


def info(settings: InfoSettings, console: Console | None = None) -> None:
    """Print what a folder holds. Raises ValueError for a folder that is none of ours, and for a damaged one."""
    console = console or Console()
    folder = settings.folder
    if not folder.is_dir():
        raise ValueError(f"{folder}: {'a file; name its folder' if folder.exists() else 'no such folder'}")
    digests = True  # are there any, for --verify?
    if parts := [part for part in SPLITS if (folder / part / BLOCKS).is_file()]:
        what, rows, digests = "states of a frozen encoder", _features_facts(folder, parts), False
    elif (folder / "train" / "header.json").is_file():
        what, rows = "token store", _store_facts(folder, settings.verify)
    elif is_run(folder):
        what, rows = _run_facts(folder, settings.verify)
        digests = bool(checkpoint.list_checkpoints(folder / "checkpoints"))
    elif (folder / "settings.toml").is_file() and (series := _series(folder)) is not None:
        (what, rows), digests = _series_facts(folder, *series), False
    elif (folder / "config.json").is_file():
        (what, rows), digests = _model_facts(folder), False
    elif (folder / "vocab.txt").is_file() or (folder / "tokenizer.json").is_file():
        what, rows, digests = "vocabulary", _vocabulary_facts(folder), False
    else:
        raise ValueError(
            f"{folder}: neither a run (settings.toml, checkpoints/), a finished token store (train/header.json), "
            f"features (train/{BLOCKS}), a model (config.json) nor a vocabulary (vocab.txt)"
        )
    if settings.verify and not digests:
        raise ValueError(f"{folder}: --verify is for token stores and for runs that have checkpoints; leave it out")
    heading(console, f"{folder}: {what}")
    console.print(key_value_table(rows))


def convert(settings: ConvertSettings, console: Console | None = None) -> None:
    """Read a checkpoint of any kind that we know and write it as a Hugging Face folder, whole or not at all.

    A task's model keeps its head and its task. Raises ValueError when the output is there already, and for a source
    that is not a whole BERT.
    """
    console = console or Console()
    check_absent(settings.output)
    source = Path(settings.source)
    from_google = (source / google.CONFIG).is_file()
    folder = source if from_google else model_folder(settings.source)
    tokenizer = Tokenizer.load(folder / "vocab.txt" if from_google else folder, settings.lowercase)
    if not from_google and (found := load_task(folder)) is not None:
        save_task_folder(settings.output, found, tokenizer)
        say(console, f"{settings.output}: written, {_parameters(found.model):,} parameters, for {found.task.kind}")
        return
    loaded = google.load_checkpoint(source) if from_google else load_model(folder, heads="optional")
    save_model(settings.output, loaded.model, tokenizer)
    say(console, f"{settings.output}: written, {_parameters(loaded.model):,} parameters")
    for head in loaded.missing_heads:
        notice(console, f"the source has no {head} head: its weights here are random")
    if loaded.unexpected_keys:
        notice(console, f"left out, as no part of pre-training: {', '.join(loaded.unexpected_keys)}")


def _candidates(filled: MaskPrediction, side_by_side: int) -> Iterator[Table]:
    """One column of candidates for each [MASK]; as many masks in one table as fit."""
    for first in range(0, len(filled.masks), side_by_side):
        shown = filled.masks[first : first + side_by_side]
        table = make_table()
        for number in range(first + 1, first + len(shown) + 1):
            table.add_column(Text(f"[MASK] {number}" if len(filled.masks) > 1 else "[MASK]"))
            table.add_column("probability", justify="right")
        for row in zip(*shown, strict=True):
            table.add_row(*(cell for found in row for cell in (Text(found.token), f"{found.probability:.1%}")))
        yield table


def _given(texts: Sequence[str], encoding_errors: OnBadBytes) -> list[str]:
    """Texts as they were typed, those of standard input in place of "-"."""
    return [one for text in texts for one in (_piped(encoding_errors) if text == STDIN else [text])]


def _piped(encoding_errors: OnBadBytes) -> Iterator[str]:
    """The lines of standard input, tidy, as those of a .txt file. Raises ValueError where there are none but blanks."""
    found = False
    for _, line in lines(STDIN_NAME, read_stdin(encoding_errors, ReadStats())):
        if text := line.strip():
            found = True
            yield text
    if not found:
        raise ValueError(f"no text in {STDIN_NAME}; pipe texts in, one a line")


def _texts_of_files(settings: EmbedSettings, console: Console) -> Iterator[str]:
    """The texts of all files, with a live line of what has been read; what had no text is told at the end."""
    if settings.inputs == (STDIN,):
        yield from _piped(settings.encoding_errors)
        return
    corpus = CorpusSettings(
        settings.inputs, documents="line", column=settings.column, encoding_errors=settings.encoding_errors
    )
    findings, last = ReadStats(), 0
    files = open_inputs(corpus)
    unpacked = not any(file.compression or file.format == ".parquet" for file in files)
    with byte_progress(console, "embedding", sum(file.size for file in files) if unpacked else None) as advance:
        for document in read(corpus, files, findings):
            yield document.text
            if findings.bytes_read > last:
                advance(findings.bytes_read - last)
                last = findings.bytes_read
    if left_out := findings.null_values + findings.empty_documents:
        notice(console, f"{left_out:,} rows without a text have no vector: row numbers differ from there on")


def _vectors(model: Bert, texts: Sequence[str], settings: EmbedSettings) -> Any:
    return model.embed(texts, settings.pooling, settings.normalize, max_length=settings.max_length)


def _write_rows(path: Path, parts: Iterable[Any], width: int) -> int:
    """Write blocks of rows as one .npy file in constant memory, whole or not at all; returns the number of rows."""
    rows = 0
    with new_file(path) as part, part.open("wb") as file:
        _write_head(file, rows, width)
        for block in parts:
            file.write(np.ascontiguousarray(block, dtype="<f4").tobytes())
            rows += len(block)
        file.seek(0)
        _write_head(file, rows, width)  # numpy leaves room in it, so that it keeps its size
    return rows


def _write_head(file: Any, rows: int, width: int) -> None:
    shape = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, shape)


def _show_cosines(console: Console, texts: Sequence[str], vectors: Any) -> None:
    """Cosines between some texts; of many, as many columns as the terminal holds."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (vectors / lengths) @ (vectors / lengths).T
    shown = min(len(texts), max(2, (console.width - TEXT_WIDTH) // COSINE_WIDTH))
    heading(console, f"Cosines of {len(texts)} texts, vectors of {vectors.shape[1]} numbers")
    table = make_table("", "", *(str(number + 1) for number in range(shown)))
    table.columns[1].justify, table.columns[1].overflow = "left", "fold"
    for number, text in enumerate(texts):
        table.add_row(str(number + 1), Text(text), *(f"{cosine:.3f}" for cosine in cosines[number, :shown]))
    console.print(table)
    if shown < len(texts):
        notice(console, f"only {shown} of {len(texts)} columns fit here; --output vectors.npy keeps all vectors")


def _shape(config: BertConfig) -> str:
    direction = ", left to right" if config.causal else ""
    return f"L{config.num_layers} H{config.hidden_size} A{config.num_heads} F{config.intermediate_size}{direction}"


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _model_facts(folder: Path) -> tuple[str, dict[str, str]]:
    """What sort of model a folder holds, and what there is to say of it."""
    what, config = "model", load_config(folder)
    rows = {"shape": _shape(config), "positions": f"{config.max_positions:,}"}
    if (found := load_task(folder)) is not None:
        what = f"model for {found.task.kind}"
        rows |= {"parameters": f"{_parameters(found.model):,}"} | _task_facts(found.task)
    else:
        loaded = load_model(folder, heads="optional")
        rows["parameters"] = f"{_parameters(loaded.model):,}"
        rows["heads not there"] = ", ".join(loaded.missing_heads) or "none"
    return what, rows | _vocabulary_facts(folder)


def _task_facts(task: AnyTask) -> dict[str, str]:
    names = ", ".join(task.label_names[:SHOWN_LABELS]) + (" …" if len(task.label_names) > SHOWN_LABELS else "")
    rows = {"task": task.kind, "labels": f"{len(task.label_names)}: {names}"} if names else {"task": task.kind}
    rows |= {"head": f"{task.head.kind}, {task.head.outputs} outputs", "metric": task.metric}
    rows["longest sequence"] = f"{task.max_length} tokens"
    return rows | task.facts()


def _vocabulary_facts(folder: Path) -> dict[str, str]:
    tokenizer = Tokenizer.load(folder)
    return {
        "vocabulary": f"{tokenizer.vocab_size:,} tokens, {'uncased' if tokenizer.lowercase else 'cased'}",
        "digest of its ids": tokenizer.digest,
    }


def _store_facts(folder: Path, verify: bool) -> dict[str, str]:
    rows = {}
    for part in ("train", "held_out"):
        if (folder / part).is_dir():
            store = TokenStore.open(folder / part, verify=verify)
            rows[part.replace("_", " ")] = (
                f"{store.num_documents:,} documents, {store.num_sentences:,} sentences, {store.num_tokens:,} tokens"
            )
    origin = store.header.origin
    return rows | {
        "vocabulary": f"{origin.vocab_size:,} tokens, digest {origin.vocabulary}",
        "sentence rules": origin.rules,
        "checked": "every byte" if verify else "sizes and sampled blocks (--verify: every byte)",
    }


def _features_facts(folder: Path, parts: Sequence[str]) -> dict[str, str]:
    rows = {}
    for part in parts:
        header, (states, size) = cache_info(folder / part)
        layers = ", ".join(map(str, header.layers))
        rows[part] = f"{states:,} states of {size} numbers, of layer {layers}"
    return rows | {"checked": "sizes (a probe that reads them compares every byte)"}


def _run_facts(folder: Path, verify: bool) -> tuple[str, dict[str, str]]:
    """What sort of run a folder holds, and what there is to say of it."""
    kept = checkpoint.list_checkpoints(folder / "checkpoints")
    if verify and kept:
        checkpoint.verify(kept[-1])
    finished, fine_tuning = (folder / "model").is_dir(), "task" in read_toml(folder / "settings.toml")
    rows = {"state": "finished" if finished else "not finished"}
    rows["checkpoints"] = ", ".join(path.name for path in kept) or "none yet"
    newest = folder / "model" if finished else kept[-1] if kept else None
    if newest is not None:
        config = load_config(newest)
        rows["model"] = _shape(config) + ("" if fine_tuning else f", {config.num_parameters:,} parameters")
    task = read_task(newest) if fine_tuning and newest is not None else None
    if finished:  # then the weights must be whole
        _ = load_task(folder / "model") if task else load_model(folder / "model", heads="optional")
    if task is not None:
        rows |= _task_facts(task)
    with _as_written(folder / METRICS_FILE):
        for record in [record for record in read_metrics(folder) if record["kind"] == "held_out"][-1:]:
            rows["held out"] = f"masked-LM loss {record['mlm_loss']:.3f} after step {record['step']:,}"
        if task is not None:
            rows |= _best_on_dev(folder, task.metric)
    report = folder / "report.json"
    if report.is_file():
        with _as_written(report):
            rows["seconds of its last process"] = f"{read_json(report)['seconds_of_this_process']:,.0f}"
    return f"{'fine-tuning' if fine_tuning else 'pre-training'} run", rows


def _series(folder: Path) -> tuple[str, int] | None:
    """What a folder's settings ask for, where that are many runs at once, and how many; None where it is not."""
    settings = read_toml(folder / "settings.toml")
    for what, varied in SERIES.items():
        if all(name in settings for name in varied):
            given = [settings[name] for name in varied]
            return what, prod(len(values) if isinstance(values, list) else int(values) for values in given)
    return None


def _series_facts(folder: Path, what: str, asked: int) -> tuple[str, dict[str, str]]:
    """How far a grid of fine-tuning runs, or heads on frozen features, have come."""
    results, path = folder / "results.jsonl", folder / "report.json"
    done = len(results.read_bytes().splitlines()) if results.is_file() else 0
    finished = done >= asked and path.is_file()
    rows = {"state": "finished" if finished else "not finished", "runs done": f"{done:,} of {asked:,}"}
    if finished and what == GRID:
        with _as_written(path):
            report = read_json(path)
            metric, chosen = report["metric"], report["chosen"]
            rows |= {"chosen": str(chosen["run"]), "best on dev": f"{metric} {chosen['scores']['dev'][metric]:.4f}"}
    return what, rows


@contextmanager
def _as_written(path: Path) -> Iterator[None]:
    """Make one sentence of whatever comes of a file that is JSON, but not of the form that we gave it."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        if str(path) in str(error):
            raise
        raise ValueError(f"{path}: not as it was written ({error!r}); move it away to see the rest") from None


def _best_on_dev(run: Path, metric: str) -> dict[str, str]:
    scores = [record for record in read_metrics(run) if record["kind"] == "dev"]
    best = max(scores, key=lambda record: float(record[metric]), default=None)
    return {} if best is None else {"best on dev": f"{metric} {best[metric]:.4f} after step {best['step']:,}"}
