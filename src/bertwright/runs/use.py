"""What is done with what the stages left: fill masks, make vectors, look into folders, convert checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console
from rich.table import Table
from tyro.conf import Positional

from bertwright.corpus.documents import read
from bertwright.corpus.inputs import CorpusSettings
from bertwright.files import read_json, whole_file
from bertwright.inference.model import Bert, load
from bertwright.interop import google
from bertwright.interop.huggingface import find_folder, load_config, load_model, save_model
from bertwright.models.config import BertConfig
from bertwright.tokenstore.store import TokenStore
from bertwright.training import checkpoint
from bertwright.training.device import DeviceSettings, placed
from bertwright.training.journal import read_metrics
from bertwright.vocabulary.tokenizer import Tokenizer

EMBED_AT_ONCE = 4_096  # texts between two writes: enough to group them by length, little enough to hold
SHOWN_TEXTS = 12  # more do not fit side by side on a screen


@dataclass(frozen=True)
class FillMaskSettings:
    """Show what a model reads into each [MASK] of some texts."""

    model: Positional[str]
    """Model folder, run folder, or hub name."""
    texts: Positional[tuple[str, ...]]
    """Texts, each with one [MASK] or more."""
    top_k: int = 5
    """Candidates shown for each [MASK]."""
    device: DeviceSettings = field(default_factory=DeviceSettings)


@dataclass(frozen=True)
class EmbedSettings:
    """Turn texts into vectors: one a text, in order. Few texts are compared on the screen, files go to --output."""

    model: Positional[str]
    """Model folder, run folder, or hub name."""
    texts: Positional[tuple[str, ...]] = ()
    """Texts to compare; for files use --inputs."""
    inputs: tuple[str, ...] = ()
    """Files with texts: .txt (one a line), .jsonl, .csv, .tsv, .parquet, also compressed."""
    column: str = "text"
    """The field or column that holds the text in table inputs."""
    output: Path | None = None
    """Write the vectors to this .npy file, N × H float32."""
    pooling: Literal["mean", "cls", "max"] = "mean"
    """mean or max over all tokens, or the state of [CLS]."""
    normalize: bool = True
    """Scale every vector to length 1, so that dot products are cosines."""
    max_length: int | None = None
    """Longest window in tokens; longer texts are read in several. Unset: the model's positions."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        if bool(self.texts) == bool(self.inputs):
            raise ValueError("give either texts, or files with --inputs")
        if self.inputs and self.output is None:
            raise ValueError("vectors of files need a place: --output vectors.npy")


@dataclass(frozen=True)
class InfoSettings:
    """Say what a folder holds: a model, a vocabulary, a token store or a run."""

    folder: Positional[Path]
    """The folder to look into."""
    verify: bool = False
    """Compare every byte of a store or of a run's newest checkpoint with its digest."""


@dataclass(frozen=True)
class ConvertSettings:
    """Write a BERT checkpoint as a Hugging Face folder: another folder's, a run's newest, or Google's."""

    source: Positional[str]
    """Model folder, run folder, hub name, or folder with bert_model.ckpt.* and bert_config.json."""
    output: Positional[Path]
    """Folder to be made."""
    lowercase: bool | None = None
    """For Google's files, which do not say it: whether the vocabulary is uncased."""


def fill_mask(settings: FillMaskSettings, console: Console | None = None) -> None:
    """Print each text's candidates as a table."""
    console = console or Console()
    if not settings.texts:
        raise ValueError('no text given; for example: bertwright fill-mask MODEL "Paris is the [MASK] of France."')
    with placed(settings.device) as place:
        model = load(_model_folder(settings.model), place.device, place.dtype)
        for text in settings.texts:
            filled = model.fill_mask(text, settings.top_k)
            table = Table(title=filled.text, title_justify="left", title_style="bold")
            for number in range(len(filled.masks)):
                table.add_column(f"[MASK] {number + 1}" if len(filled.masks) > 1 else "[MASK]".replace("[", r"\["))
                table.add_column("probability", justify="right")
            for row in zip(*filled.masks, strict=True):
                table.add_row(*(cell for found in row for cell in (found.token, f"{found.probability:.1%}")))
            console.print(table)


def embed(settings: EmbedSettings, console: Console | None = None) -> None:
    """Write the vectors of files, or show how alike some texts are."""
    console = console or Console()
    with placed(settings.device) as place:
        model = load(_model_folder(settings.model), place.device, place.dtype)
        texts = iter(settings.texts)
        if settings.inputs:
            corpus = CorpusSettings(settings.inputs, documents="line", column=settings.column)
            texts = (document.text for document in read(corpus))
        if settings.output is None:
            console.print(_similarities(settings.texts, _vectors(model, list(texts), settings)))
            return
        parts = (_vectors(model, chunk, settings) for chunk in _chunks(texts, EMBED_AT_ONCE))
        number = _write_rows(settings.output, parts, model.config.hidden_size)
        console.print(f"{settings.output}: {number:,} vectors of {model.config.hidden_size} numbers")


def info(settings: InfoSettings, console: Console | None = None) -> None:
    """Print what a folder holds."""
    console = console or Console()
    folder = settings.folder
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    if (folder / "settings.toml").is_file():
        rows = _run_facts(folder, settings.verify)
    elif (folder / "train" / "header.json").is_file():
        rows = _store_facts(folder, settings.verify)
    elif (folder / "config.json").is_file():
        rows = _model_facts(folder)
    elif (folder / "vocab.txt").is_file() or (folder / "tokenizer.json").is_file():
        rows = _vocabulary_facts(folder)
    else:
        raise ValueError(
            f"{folder}: neither a run (settings.toml), a token store (train/header.json), a model (config.json) "
            "nor a vocabulary (vocab.txt)"
        )
    table = Table(title=str(folder), title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)


def convert(settings: ConvertSettings, console: Console | None = None) -> None:
    """Read a checkpoint of any kind that we know and write it as a Hugging Face folder."""
    console = console or Console()
    source = Path(settings.source)
    if (source / google.CONFIG).is_file():
        loaded, tokenizer = google.load_checkpoint(source), Tokenizer.load(source / "vocab.txt", settings.lowercase)
    else:
        folder = _model_folder(settings.source)
        loaded, tokenizer = load_model(folder, heads="optional"), Tokenizer.load(folder)
    save_model(settings.output, loaded.model, tokenizer)
    console.print(f"{settings.output}: written, {loaded.model.config.num_parameters:,} parameters")
    for head in loaded.missing_heads:
        console.print(f"[yellow]the source has no {head} head: its weights here are random[/yellow]")
    if loaded.ignored:
        console.print(f"[yellow]left out, as no part of pre-training: {', '.join(loaded.ignored)}[/yellow]")


def _model_folder(name: str) -> Path:
    """A model's folder; a run stands for its finished model, or for its newest checkpoint."""
    run = Path(name)
    if not (run / "settings.toml").is_file():
        return find_folder(name)
    if (run / "model").is_dir():
        return run / "model"
    latest = checkpoint.newest(run / "checkpoints")
    if latest is None:
        raise ValueError(f"{run}: a run without a checkpoint yet")
    return latest


def _chunks(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    while chunk := list(islice(texts, size)):
        yield chunk


def _vectors(model: Bert, texts: list[str], settings: EmbedSettings) -> Any:
    return model.embed(texts, settings.pooling, settings.normalize, max_length=settings.max_length)


def _write_rows(path: Path, parts: Iterator[Any], columns: int) -> int:
    """Write blocks of rows as one .npy file in constant memory, whole or not at all; returns the number of rows."""
    rows = 0
    with whole_file(path) as part, part.open("wb") as file:
        _write_head(file, rows, columns)
        for block in parts:
            file.write(np.ascontiguousarray(block, dtype="<f4").tobytes())
            rows += len(block)
        file.seek(0)
        _write_head(file, rows, columns)  # numpy leaves room in it, so that it keeps its size
    return rows


def _write_head(file: Any, rows: int, columns: int) -> None:
    shape = {"descr": "<f4", "fortran_order": False, "shape": (rows, columns)}
    np.lib.format.write_array_header_1_0(file, shape)


def _similarities(texts: Sequence[str], vectors: Any) -> Table:
    """Cosines between some texts."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (vectors / lengths) @ (vectors / lengths).T
    table = Table(title=f"Cosines of {len(texts)} vectors of {vectors.shape[1]} numbers", title_justify="left")
    table.add_column("")
    table.add_column("text", overflow="fold")
    for number in range(min(len(texts), SHOWN_TEXTS)):
        table.add_column(str(number + 1), justify="right")
    for number, text in enumerate(texts):
        table.add_row(str(number + 1), text, *(f"{cosine:.3f}" for cosine in cosines[number, :SHOWN_TEXTS]))
    return table


def _shape(config: BertConfig) -> str:
    direction = ", left to right" if config.causal else ""
    return f"L{config.num_layers} H{config.hidden_size} A{config.num_heads} F{config.intermediate_size}{direction}"


def _model_facts(folder: Path) -> dict[str, str]:
    config = load_config(folder)
    loaded = load_model(folder, heads="optional")
    return {
        "what": "model",
        "shape": _shape(config),
        "positions": f"{config.max_positions:,}",
        "parameters": f"{config.num_parameters:,}",
        "heads not there": ", ".join(loaded.missing_heads) or "none",
    } | {name: value for name, value in _vocabulary_facts(folder).items() if name != "what"}


def _vocabulary_facts(folder: Path) -> dict[str, str]:
    tokenizer = Tokenizer.load(folder)
    return {
        "what": "vocabulary",
        "tokens": f"{tokenizer.vocab_size:,}, {'uncased' if tokenizer.lowercase else 'cased'}",
        "digest": tokenizer.digest,
    }


def _store_facts(folder: Path, verify: bool) -> dict[str, str]:
    facts = {"what": "token store"}
    for part in ("train", "held_out"):
        if (folder / part).is_dir():
            store = TokenStore.open(folder / part, verify=verify)
            facts[part] = (
                f"{store.num_documents:,} documents, {store.num_sentences:,} sentences, {store.num_tokens:,} tokens"
            )
    origin = store.header.origin
    return facts | {
        "vocabulary": f"{origin.vocab_size:,} tokens, digest {origin.vocabulary}",
        "sentence rules": origin.rules,
        "checked": "every byte" if verify else "sizes and sampled blocks (--verify: every byte)",
    }


def _run_facts(folder: Path, verify: bool) -> dict[str, str]:
    kept = checkpoint.checkpoints(folder / "checkpoints")
    if verify and kept:
        checkpoint.verify(kept[-1])
    facts = {"what": "pre-training run", "state": "finished" if (folder / "model").is_dir() else "not finished"}
    facts["checkpoints"] = ", ".join(path.name for path in kept) or "none yet"
    if kept:
        config = load_config(kept[-1])
        facts["model"] = f"{_shape(config)}, {config.num_parameters:,} parameters"
    for record in [record for record in read_metrics(folder) if record["kind"] == "held_out"][-1:]:
        facts["held out"] = f"masked-LM loss {record['mlm_loss']:.3f} after step {record['step']:,}"
    if (folder / "report.json").is_file():
        facts["seconds"] = f"{read_json(folder / 'report.json')['seconds_of_this_process']:,.0f}"
    return facts
