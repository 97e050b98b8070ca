"""Settings of `bertwright search` and `mine-negatives`. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bertwright.base.files import check_absent
from bertwright.base.settings import Positional, check_choice, check_minimum, check_not_str
from bertwright.interop.model_files import check_model
from bertwright.search.mining import MiningRules
from bertwright.search.vector_index import By, Precision
from bertwright.tasks.task_types import TaskOptions
from bertwright.text.decoding import check_encoding
from bertwright.text.sources import check_exist
from bertwright.training.device_settings import InferenceDeviceSettings


@dataclass(frozen=True)
class SearchBuildSettings:
    """Embed documents and write an index of them; a build that was interrupted goes on."""

    model: Positional[str]
    """Model of text vectors: a folder, a run's folder, or a hub name."""
    inputs: Positional[tuple[str, ...]]
    """Files of documents: .txt (one per line); .jsonl, .csv, .tsv, .parquet with a column for the text and, if there
    are any, _id or id, and title; a folder in BEIR's layout; SQuAD's JSON, whose paragraphs are documents."""
    index: Path
    """New folder for the index."""
    column: str = "text"
    """Column with the text, in tables."""
    encoding: str = "utf-8"
    """Encoding of text files by its name in Python, such as latin-1 or cp949."""
    dims: int | None = None
    """Keep the first numbers of each vector, of a model that was trained with --dims. Unset: all."""
    precision: Precision = "float32"
    """float32; int8, a quarter of the size; or both, where int8 finds candidates that float32 orders."""
    bm25: bool = True
    """Also index the words, for BM25 and fusion."""
    append: bool = False
    """Add the documents to a finished index."""
    device: InferenceDeviceSettings = field(default_factory=InferenceDeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "inputs")
        check_choice(self, "precision")
        check_minimum(self, 1, "dims")
        check_encoding(self.encoding)
        if not self.inputs:
            raise ValueError("no file given; for example: bertwright search build MODEL docs.jsonl --index index")


@dataclass(frozen=True)
class SearchQuerySettings:
    """Find documents of an index for queries."""

    index: Positional[Path]
    """Folder of an index."""
    queries: Positional[tuple[str, ...]]
    """Queries; - reads them from standard input, one per line."""
    model: str | None = None
    """Model that has built the index. Unset: the one at the same place as then."""
    number: int = 10
    """Documents per query."""
    by: By = "vectors"
    """vectors: cosine; bm25: shared words; fusion: the sum of the reciprocal ranks of both."""
    reranker: str | None = None
    """Re-ranker that orders the first documents again."""
    top: int = 100
    """Documents that the re-ranker reads."""
    device: InferenceDeviceSettings = field(default_factory=InferenceDeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "queries")
        check_choice(self, "by")
        check_minimum(self, 1, "number", "top")
        if not self.queries:
            raise ValueError('no query given; for example: bertwright search query index "a question"')
        if not all(query.strip() for query in self.queries):
            raise ValueError("an empty query finds nothing; write what is looked for")
        if self.reranker is None and self.top != type(self).top:
            raise ValueError(f"top = {self.top}: there is no --reranker to read them; for the documents, use --number")


@dataclass(frozen=True)
class MineSettings:
    """Find texts that are near an anchor but do not belong to it, as negatives for training."""

    model: Positional[str]
    """Model of text vectors: a folder, a run's folder, or a hub name."""
    train: tuple[str, ...]
    """Files of pairs, as finetune --task embedding reads them; all documents of a folder in BEIR's layout may become
    negatives."""
    output: Path
    """New .jsonl file: anchor, positive, negative_1 and so on, as finetune reads it."""
    corpus: tuple[str, ...] = ()
    """Files of further texts that may become negatives, as search build reads them; the positives always may."""
    column: str = "text"
    """Column with the text, in tables of --corpus."""
    by: Literal["vectors", "bm25"] = "vectors"
    """Search that finds the candidates."""
    rules: MiningRules = field(default_factory=MiningRules)
    scores: bool = False
    """Also write the scores, as pos_scores and neg_scores, for the losses mse and margin of --task reranking."""
    reranker: str | None = None
    """Re-ranker that scores the candidates anew; the margin then holds for its scores."""
    show_examples: int = 10
    """Print this many texts that the margin has only just left out: answers that nobody has marked are among them."""
    overrides: TaskOptions = field(default_factory=TaskOptions)
    device: InferenceDeviceSettings = field(default_factory=InferenceDeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "train", "corpus")
        check_choice(self, "by")
        check_minimum(self, 0, "show_examples")
        if not self.train:
            raise ValueError("--train: no file given; for example: --train pairs.jsonl")
        if self.output.suffix != ".jsonl":
            raise ValueError(f"--output {self.output}: expected the suffix .jsonl")


def check_build_inputs(settings: SearchBuildSettings) -> None:
    """Check model and files, without torch."""
    check_model(settings.model)
    check_exist(settings.inputs)


def check_mine_inputs(settings: MineSettings) -> None:
    """Check models, files and output, without torch."""
    for name in (settings.model, *filter(None, [settings.reranker])):
        check_model(name)
    check_exist((*settings.train, *settings.corpus))
    check_absent(settings.output)
