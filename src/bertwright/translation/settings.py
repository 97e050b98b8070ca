"""Settings of the training of a translation model, and of translating with one. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bertwright.base.files import check_absent
from bertwright.base.settings import (
    MAX_SEED,
    Positional,
    check_choice,
    check_limit,
    check_minimum,
    check_not_str,
    check_range,
    merge,
    written_docs,
)
from bertwright.interop.model_files import check_model
from bertwright.metrics.bleu import BleuTokenizer
from bertwright.systems.registry import TranslationRecord, translation_records
from bertwright.text.decoding import read_text
from bertwright.text.sources import STDIN, check_exist
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.training.run_folder import check_run_directory, explain_move

# Settings that may change on resume: they decide where to compute, and how often to save and report.
RESUME_OVERRIDES = (
    "run", "resume", "dry_run", "show_examples", "save_every", "eval_every", "log_every", "keep_checkpoints", "device",
)  # fmt: skip


def paper_optimizer() -> OptimizerSettings:
    """Return the optimizer of section 5.3: Adam, without weight decay and, in effect, without clipping."""
    return OptimizerSettings(
        learning_rate=(512 * 4_000) ** -0.5, warmup_steps=4_000, schedule="noam", beta2=0.98, eps=1e-9,
        weight_decay=0.0, max_grad_norm=1e6, bias_correction=True,
    )  # fmt: skip


@dataclass(frozen=True)
class TrainTranslationSettings:
    """Train a translation model on sentences and their translations; with --resume, continue an interrupted run.

    Transformer: Vaswani et al. 2017, "Attention is all you need", whose sections the options name; its learning rate is
    the default: (hidden size · warm-up steps)^-0.5. MT-LSTM: the attentional sequence to sequence model of McCann et
    al. 2017, "Learned in translation", whose encoder's states are features of words (CoVe).
    """

    run: Path
    """Run folder, to be created; with --resume, one that exists."""
    train_source: tuple[str, ...] = ()
    """Files of sentences, one per line. Required, except with --resume."""
    train_target: tuple[str, ...] = ()
    """Files of their translations: line n is the translation of line n. Required, except with --resume."""
    dev_source: tuple[str, ...] = ()
    """Held-out sentences, on which loss and BLEU are measured. Unset: no evaluations."""
    dev_target: tuple[str, ...] = ()
    """Translations of the held-out sentences."""
    encoding: str = "utf-8"
    """Encoding of all files."""
    resume: bool = False
    """Continue after the run's newest checkpoint with the settings in the run folder. On a CPU, the run ends with the
    same bits as an uninterrupted one if PyTorch's version, the processor, the kernels' instruction set, the number of
    threads and the dtype are the same."""
    vocabulary: str | None = None
    """Folder of a vocabulary or of a model with one. Unset: a joint vocabulary of --vocab-size pieces is learned from
    both sides of the training text, whose words are split at spaces. For mt-lstm, the vocabulary of the targets alone;
    it reads whole words of the sources."""
    vocab_size: int = 37_000
    """Pieces of the vocabulary that is learned (section 5.1: 37,000 for English and German)."""
    architecture: str = "transformer"
    """Kind of model. {architectures}."""
    vectors: Path | None = None
    """For mt-lstm: file of word vectors, or run of word-vectors, for the words of the source. They are not trained, and
    words without one have a vector of zeros, as in the paper. Unset: vectors are trained."""
    size: Literal["tiny", "base", "big"] = "base"
    """Layers of encoder and decoder, hidden size, heads, feed-forward size, dropout. tiny: 4, 128, 4, 256, 0.3 (Wu et
    al. 2021, for Multi30k); base: 6, 512, 8, 2048, 0.1; big: 6, 1024, 16, 4096, 0.3 (table 3). For mt-lstm, numbers per
    word vector, and per state of both directions: tiny: 100, 256; base: 300, 600 (the paper's)."""
    dropout: float | None = None
    """Dropout of embeddings and of each sub-layer's output; unset: the size's; mt-lstm: 0.2."""
    label_smoothing: float = 0.1
    """Share of each label's probability that is spread over all tokens (section 5.4: 0.1)."""
    steps: int = 100_000
    """Optimizer steps in total (section 5.2: 100,000 for base, 300,000 for big)."""
    batch_tokens: int = 50_000
    """Source and target tokens of a step together (section 5.1: 25,000 and 25,000)."""
    max_length: int = 256
    """Pairs with more tokens on either side are left out; a notice counts them."""
    average: int = 5
    """Number of newest checkpoints whose weights are averaged into the model (section 6.1: 5 for base, 20 for big)."""
    save_every: int = 1_000
    """Steps between checkpoints."""
    eval_every: int = 1_000
    """Steps between evaluations on the held-out sentences: loss, and BLEU of greedy decoding."""
    log_every: int = 20
    """Steps per record of metrics.jsonl; a record also ends at each checkpoint."""
    beam_size: int = 4
    """Beam of the last evaluation (section 6.1: 4)."""
    bleu_tokenize: BleuTokenizer = "13a"
    """Tokenizer of sacrebleu, such as 13a for raw text and none for text that is tokenized already."""
    seed: int = 0
    """Seed of the initial weights, the order of the pairs, and dropout."""
    keep_checkpoints: bool = False
    """Keep the newest checkpoints after the run has finished. By default only the model remains."""
    show_examples: int = 0
    """Print this many pairs as they were read (a dry run: one); with --dry-run, only look at them: no step is
    measured."""
    dry_run: bool = False
    """Print the data, the settings and the time, estimated from a few measured steps; then stop. Nothing is written."""
    optimizer: OptimizerSettings = field(default_factory=paper_optimizer)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "train_source", "train_target", "dev_source", "dev_target")
        check_minimum(self, 1, "steps", "batch_tokens", "average", "save_every", "eval_every", "log_every", "beam_size")
        check_minimum(self, 3, "max_length")
        check_minimum(self, 0, "show_examples")
        check_range(self, 0, MAX_SEED, "seed")
        check_limit(self, "from 0 to below 1", "dropout", "label_smoothing")
        check_choice(self, "size", "bleu_tokenize")
        known = translation_records()
        if self.architecture not in known:
            raise ValueError(f"architecture: expected {' or '.join(known)}, got {self.architecture!r}")
        if self.size not in self.record.sizes:
            sizes = " or ".join(self.record.sizes)
            raise ValueError(f"size = {self.size!r}: expected {sizes} for architecture = {self.architecture!r}")
        if not self.record.reads_words and self.vectors is not None:
            able = " or ".join(repr(name) for name, record in known.items() if record.reads_words)
            raise ValueError(f"vectors: expected architecture = {able}, whose source has word vectors; omit them")
        if not self.resume and not (self.train_source and self.train_target):
            raise ValueError("no training text: give --train-source FILE and --train-target FILE")

    @classmethod
    def defaults(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with which the architecture that a TOML table names is trained."""
        record = translation_records().get(str(table.get("architecture", cls.architecture)))
        if record is None:  # reported when the settings are checked
            return {}
        try:
            given = dict(table.get("optimizer", {}))
            ratio, warmup = given.get("warmup_ratio"), given.get("warmup_steps") or paper_optimizer().warmup_steps or 0
            if ratio is not None and "warmup_steps" not in given:
                warmup = round(int(table.get("steps", cls.steps)) * float(ratio))
            defaults = record.defaults(str(table.get("size", cls.size)), int(warmup))
        except (TypeError, ValueError):  # values of other types, reported where they are read
            return {}
        return merge({"optimizer": {"warmup_steps": None}}, defaults) if ratio is not None else defaults

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """Return the help of each option, with the architectures by name."""
        listed = "; ".join(f"{name}: {record.summary}" for name, record in translation_records().items())
        return written_docs(cls, architectures=listed)

    @property
    def record(self) -> TranslationRecord:
        return translation_records()[self.architecture]


@dataclass(frozen=True)
class TranslateSettings:
    """Translate texts with a model that `bertwright train-translation` trained.

    Translations of texts are printed; translations of --inputs are written to --output, line by line, and scored with
    BLEU if --references are given.
    """

    model: Positional[str]
    """Folder of a translation model, or its run folder."""
    texts: Positional[tuple[str, ...]] = ()
    """Sentences to translate."""
    inputs: tuple[str, ...] = ()
    """Files of sentences, one per line; - is standard input. An empty line has an empty translation."""
    output: Path | None = None
    """New file for the translations, one per line. Unset: they are printed, unless --references are given."""
    references: tuple[str, ...] = ()
    """Files of reference translations of --inputs, line by line; several files of as many lines as all --inputs are
    several references of each line."""
    beam_size: int = 4
    """Hypotheses that are continued at each token (section 6.1: 4); 1: greedy decoding."""
    length_penalty: float = 0.6
    """Exponent α of ((5 + length) / 6)^α, by which a hypothesis' log-probability is divided (section 6.1: 0.6). A
    higher one gives longer translations."""
    extra_length: int = 50
    """A translation has at most so many tokens more than its sentence (section 6.1: 50)."""
    batch_size: int = 32
    """Sentences that are translated together; it changes speed and memory only."""
    encoding: str = "utf-8"
    """Encoding of --inputs and --references."""
    bleu_tokenize: BleuTokenizer = "13a"
    """Tokenizer of sacrebleu, such as 13a for raw text and none for text that is tokenized already."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "texts", "inputs", "references")
        check_minimum(self, 1, "beam_size", "batch_size", "extra_length")
        check_limit(self, "from 0", "length_penalty")
        check_choice(self, "bleu_tokenize")
        if bool(self.texts) == bool(self.inputs):
            raise ValueError(f"give either texts, or files with --inputs; {STDIN} means standard input")
        if self.texts and (self.output or self.references):
            raise ValueError("--output, --references: expected --inputs, got texts on the command line; omit them")


def check_training_inputs(settings: TrainTranslationSettings) -> None:
    check_run_directory(settings, RESUME_OVERRIDES)
    if not settings.resume:
        for path in (*settings.train_source, *settings.train_target, *settings.dev_source, *settings.dev_target):
            next(read_text(path, settings.encoding), None)
        if settings.vectors is not None:
            check_exist((str(settings.vectors),))
    elif not (settings.run / "model").is_dir():
        for side in ("train_source", "train_target", "dev_source", "dev_target"):
            with explain_move(f"--{side.replace('_', '-')}"):
                check_exist(getattr(settings, side))


def check_translation_inputs(settings: TranslateSettings) -> None:
    check_model(settings.model)
    if settings.inputs != (STDIN,):
        check_exist(settings.inputs)
    check_exist(settings.references)
    if settings.output is not None:
        check_absent(settings.output)
