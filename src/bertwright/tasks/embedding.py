"""Text vectors (SBERT, arXiv 1908.10084): texts that belong together get vectors with a small angle.

N examples; S texts, one sequence each; R = S positions, one vector each; D numbers per vector.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_args

import numpy as np

from bertwright.base.messages import shorten
from bertwright.base.seeding import TaskStream, derive_key
from bertwright.base.settings import check_not_str, did_you_mean
from bertwright.metrics.example_scores import ExampleScores
from bertwright.models.head_spec import HeadSpec
from bertwright.tables.neighbours import find_retrieval_folder
from bertwright.tables.retrieval_folders import read_retrieval_folder
from bertwright.tables.text_roles import TextRow, read_text_table
from bertwright.tasks.denoising import add_decoder, delete_words, encode_denoising
from bertwright.tasks.embedding_batches import (
    ANCHOR,
    NEGATIVE,
    POSITIVE,
    TEXTS_PER_CLASS,
    ClassOrder,
    FileOrder,
    label_texts,
)
from bertwright.tasks.embedding_data import (
    DIRECTED,
    LEARNING_RATE,
    LOSSES,
    WITHOUT_SCALE,
    Example,
    LossName,
    RetrievalExample,
    TextVectors,
    as_rows,
    check_options,
    choose_loss,
    choose_metric,
    find_kind,
    score_examples,
    to_training_rows,
)
from bertwright.tasks.embedding_scores import DOCUMENT, QUERY
from bertwright.tasks.encoded import Encoded, Ints, Outputs
from bertwright.tasks.pair_checks import find_oddities
from bertwright.tasks.table_task import RoleTask
from bertwright.tasks.task import LEARNED
from bertwright.tasks.truncation import SegmentTokens, encode_segments
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.models.encoder import TextEncoder
    from bertwright.models.heads import TaskBatch, TaskHead
    from bertwright.models.task_model import EncoderForTask
    from bertwright.training.loop import LossOutput

ROLE_NAMES = {ANCHOR: "anchors", POSITIVE: "positives", NEGATIVE: "negatives"}
SIMCSE_DROPOUT = 0.1  # without dropout, the two vectors of a text would be equal
FORMULAS = {
    "ranking": "cross entropy of each anchor's text among all texts of a step (MultipleNegativesRankingLoss)",
    "cosent": "log(1 + sum of exp(cosine of a lower pair - of a higher one)) (CoSENTLoss)",
    "cosine": "mean squared error of the cosines (CosineSimilarityLoss)",
    "angle": "as cosent, of angles between complex vectors (AnglELoss)",
    "contrastive": "squares of the hard pairs' distances (OnlineContrastiveLoss)",
    "labels": "cross entropy of the texts of a class among all texts of a step (supervised contrastive)",
    "simcse": "as ranking, of each text and itself under other dropout (SimCSE)",
    "tsdae": "cross entropy of a text's tokens, decoded from the vector of 40 % of its words (TSDAE)",
    "triplet": "margin of Euclidean distances (TripletLoss)",
}
NUM_SPECIAL = 2  # [CLS] and [SEP]
PROMPTS = (QUERY, DOCUMENT, "none")  # names of prompts that training applies; none omits all


@dataclass(frozen=True)
class Embedding(RoleTask[Example, TextVectors]):
    """Vectors of texts, whose cosine says how well the texts belong together.

    The columns decide the loss. The model folder is one of sentence-transformers.
    """

    kind: ClassVar[str] = "embedding"
    base_learning_rate: ClassVar[float | None] = LEARNING_RATE
    inference_call: ClassVar[str] = "embed(texts)"
    example_command: ClassVar[str] = "search build {} FILE --index index"
    scores_before_training: ClassVar[bool] = True
    reads_pooler: ClassVar[bool] = False

    vector_loss: str | None = None
    """ranking: find each anchor's text among all texts of the step; known positives, equal texts and the anchor itself
    are masked. cosent, cosine (scores from 0 to 1), angle: rated pairs; contrastive: pairs with label 0 or 1. labels:
    texts of one class are near each other. simcse: a text is near itself under other dropout. tsdae: a decoder,
    which training alone uses, writes a text from the vector of 40 % of its words, which are the same for every --seed.
    triplet. Unset: by the columns, ranking for pairs and triplets, cosent for scores, labels for classes, simcse for
    texts alone."""
    similarity_scale: float = 20.0
    """Factor of the cosines in the loss; 1 / scale is the temperature."""
    symmetric: bool = False
    """ranking: also find each text's anchor among all anchors, and take the mean."""
    all_pairs: bool = False
    """ranking of pairs: anchors are also wrong answers for anchors, and texts for texts (GTE)."""
    hardness: float = 0.0
    """ranking: this times the cosine is added to the logits of wrong answers, so that near ones count more; of the
    row's own negatives if there are some."""
    guide: str | None = None
    """ranking: model folder of text vectors; a text that it finds nearer to the anchor than the right one is no wrong
    answer (GISTEmbed). Unset: none."""
    guide_margin: float = 0.0
    """The guide also says so of texts that it finds farther than the right one by less than this, in cosines."""
    dims: tuple[int, ...] = ()
    """Train the first D numbers of the vectors as well as all of them, for each D (Matryoshka): --dims 128 64."""
    prompts: tuple[str, ...] = ()
    """Texts before the others, as in query="search_query: " document="search_document: "; saved with the model. Unset:
    the prompts of the model folder; none= omits them."""
    weights: tuple[float, ...] = ()
    """How often each training file is read, one number per file; a step reads one file. Unset: by size."""
    metric: str = ""
    """Score that selects the best checkpoint; unset: by the dev data, spearman_cosine for scores, cosine_ap for labels
    of pairs, cosine_accuracy for triplets, accuracy for classes, cosine_ndcg@10 for other pairs and for retrieval."""
    max_length: int = 512
    """Longest text in tokens, [CLS] and [SEP] included, up to the length that the model folder names."""
    pooling: tuple[str, ...] = field(default=(), metadata=LEARNED)
    """Modes in which the states of all tokens are pooled."""
    size: int = field(default=0, metadata=LEARNED)
    """Numbers per vector."""
    lowercase: bool = field(default=False, metadata=LEARNED)
    """Whether texts are read in lower case."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_str(self, "prompts", "dims", "weights")
        if (name := self.vector_loss) not in (None, *get_args(LossName)):
            raise ValueError(f"vector_loss = {name!r}: {did_you_mean(str(name), get_args(LossName))}")
        if self.max_length < NUM_SPECIAL + 1:
            raise ValueError(f"max_length = {self.max_length}: at least {NUM_SPECIAL + 1}, [CLS] and [SEP] included")
        if odd := [text for text in self.prompts if "=" not in text]:
            raise ValueError(f"prompts: expected NAME=TEXT, got {odd[0]!r}")

    # Data

    def read(self, path: str, labeled: bool = True) -> Iterator[Example]:
        if folder := find_retrieval_folder(path):
            yield RetrievalExample(read_retrieval_folder(*folder), path)
        else:
            yield from read_text_table(path, self.table_options).rows

    @property
    def reads_single_texts(self) -> bool:
        return True

    def examples_from_texts(self, texts: Sequence[str], location: str) -> list[Example]:
        return [TextRow(text, location) for text in texts]

    def prepare_splits(self, splits: Mapping[str, Sequence[Example]]) -> tuple[Self, dict[str, Sequence[Example]]]:
        """Choose loss and metric by the columns, and make the training rows: a row per positive, no false negatives.

        Raises ValueError for rows that are not usable, and for a prompt that no text would get.
        """
        if odd := next((name for name in self.named_prompts if name not in PROMPTS), None):
            raise ValueError(f"prompts: no texts with the role {odd!r}; {did_you_mean(odd, PROMPTS)}")
        given = as_rows(splits["train"])
        loss = choose_loss(self.vector_loss, given)
        check_options(self, loss)
        rows, dropped, first = to_training_rows(given, loss)
        if dropped:
            what = f"{dropped:,} negatives left out that belong to their anchor by another row, or are its text"
            warnings.warn(f"{first}: {what}; this is the first", stacklevel=2)
        FileOrder.of(rows, self.weights)
        metric = choose_metric(self.metric, splits.get("dev") or splits.get("test", ()))
        task = replace(self, vector_loss=loss, metric=metric)
        return task, {**splits, "train": rows}

    def with_labels_of(self, examples: Sequence[Example]) -> Self:
        return self

    def check(self, examples: Sequence[Example]) -> None:
        choose_metric(self.metric, examples)

    def warnings(self, examples: Sequence[Example], paths: Sequence[str] = ()) -> list[str]:
        rows = as_rows(examples)
        if self.vector_loss == "simcse" and all(row.positives == (row.anchor,) for row in rows):
            rows = [row._replace(positives=()) for row in rows]  # a text and itself, as `to_training_rows` makes them
        return [*find_oddities(rows, find_kind(rows) in DIRECTED and self.vector_loss not in LOSSES["texts"])]

    def step_warnings(self, examples: Sequence[Example], batch_size: int) -> list[str]:
        unused, groups = 0, f"groups of {TEXTS_PER_CLASS} texts of one class"
        if self.vector_loss == "labels":
            unused, least = batch_size % TEXTS_PER_CLASS, 2 * TEXTS_PER_CLASS
            if batch_size < least:
                raise ValueError(f"batch_size = {batch_size}: a step has two {groups}; --batch-size {least} or more")
        notes = [f"a step reads {batch_size - unused:,} rows, because it has {groups}"] * (unused > 0)
        if batch_size > (count := len(as_rows(examples))):
            copies = f"each step has rows more than once; --batch-size {count} or less reads each once"
            notes.append(f"a step of {batch_size:,} rows is larger than the {count:,} of the data: {copies}")
        return notes

    def encoding_warnings(self, encoded: Encoded) -> list[str]:
        """Say which share of the texts of each role lose tokens."""
        if self.vector_loss == "tsdae":
            cut = f"{encoded.truncated:,} of {encoded.num_items:,} texts are cut at {self.max_length} tokens"
            return [cut] * (encoded.truncated > 0)
        notes = []
        for role, name in ROLE_NAMES.items():
            cut = encoded.labels[encoded.labels[:, 0] == role, 3]
            if cut.any():
                notes.append(
                    f"{int(cut.sum()):,} of {len(cut):,} {name} ({cut.mean():.1%}) are cut at {self.max_length} tokens"
                )
        return notes

    def truncation_warnings(self, examples: int, truncated: int, max_positions: int) -> list[str]:
        return []  # `encoding_warnings` tells them by role

    def group_keys(self, examples: Sequence[Example]) -> Sequence[Hashable]:
        """Return the anchors: another answer to a question of training would make its score too high."""
        return [one.anchor.strip() if isinstance(one, TextRow) else one.location for one in examples]

    def single_examples(self, examples: Sequence[Example]) -> Sequence[Example]:
        """Return the queries of retrieval sets as rows."""
        return as_rows(examples)

    def texts(self, examples: Sequence[Example]) -> Iterator[str]:
        return (text for row in examples for text in row.texts)

    # Encoding

    @property
    def named_prompts(self) -> dict[str, str]:
        """`prompts` by name."""
        return dict(text.partition("=")[::2] for text in self.prompts)

    def prompts_of(self, examples: Sequence[Example], labeled: bool) -> tuple[str, str] | None:
        """Return the prompts of anchors and of other texts; None where texts have no direction, as in rated pairs."""
        if find_kind(examples) not in DIRECTED or (labeled and self.vector_loss in LOSSES["texts"]):
            return None
        return self.named_prompts.get(QUERY, ""), self.named_prompts.get(DOCUMENT, "")

    def encode(self, examples: Sequence[Example], tokenizer: TextTokenizer, labeled: bool = True) -> Encoded:
        """Encode all texts of the examples; `labels`: NUM_LABELS numbers per text.

        With `labeled`, the texts of an example are an item, which is trained on as a whole. Without, each text is one,
        because a retrieval set has more texts than a model can read at once.
        """
        if labeled and self.vector_loss == "tsdae":
            return encode_denoising([*self.texts(examples)], tokenizer, self.lowercase, self.max_length)
        counts = np.array([len(row.texts) for row in examples], dtype=np.int64)
        labels = label_texts(examples)
        texts = [text for example in examples for text in example.texts]
        if prompts := self.prompts_of(examples, labeled):
            anchors = labels[:, 0] == ANCHOR
            texts = [prompts[not is_anchor] + text for is_anchor, text in zip(anchors, texts, strict=True)]
        content = SegmentTokens.of_typed(texts, tokenizer, self.lowercase)
        labels[:, 3] = content.lengths + NUM_SPECIAL > self.max_length
        sizes = counts if labeled else np.ones(len(texts), dtype=np.int64)
        example_ids = np.repeat(np.arange(len(examples)), counts)
        encoded = encode_segments([content], labels, tokenizer, self.max_length, sizes, example_ids)
        return replace(encoded, label_counts=sizes)

    # Training

    def describe_training(self, examples: Sequence[Example]) -> dict[str, str]:
        """Describe the loss, and how the texts were understood."""
        from bertwright.models.embedding_losses import describe_scale

        rows, options = as_rows(examples), [name for name in ("symmetric", "all_pairs") if getattr(self, name)]
        options += [f"hardness {self.hardness:g}"] * bool(self.hardness) + [f"guide {self.guide}"] * bool(self.guide)
        options += [f"dims {', '.join(map(str, self.dims))}"] * bool(self.dims)
        scaled = [describe_scale(self.similarity_scale)] * (self.vector_loss not in WITHOUT_SCALE)
        texts = {text.strip() for row in rows for text in row.texts}
        return {
            "loss": ", ".join([f"{self.vector_loss}: {FORMULAS[self.vector_loss or '']}", *scaled, *options]),
            "rows": f"{len(rows):,} with {len(texts):,} different texts, as {self.show_roles(rows[0])}",
            "vectors": f"{self.size} numbers; prompts: {', '.join(map(repr, self.prompts)) or 'none'}",
        }

    def show_roles(self, row: TextRow) -> str:
        """Return a row as it was read, with the role of each text."""
        gold = {} if row.score is None else {"score": f"{row.score:g}"}
        named = {"anchor": row.anchor, "positive": " | ".join(row.positives), "negative": " | ".join(row.negatives)}
        named |= gold | ({} if row.label is None else {"label": row.label})
        return ", ".join(f"{role} {shorten(text)!r}" for role, text in named.items() if text)

    def item_order(
        self, encoded: Encoded, examples: Sequence[Example], batch_size: int, seed: int
    ) -> Callable[[int], Ints]:
        if self.vector_loss == "labels":
            order: ClassOrder | FileOrder = ClassOrder.of(encoded.labels[encoded.item_starts[:-1], 2].astype(np.int64))
        else:
            order = FileOrder.of(as_rows(examples), self.weights)
        return partial(order.step_rows, batch_size, seed=seed)

    def step_input(self, encoded: Encoded, items: Ints, step: int, seed: int) -> tuple[Encoded, Ints]:
        if self.vector_loss != "tsdae":
            return encoded, items
        return delete_words(encoded, items, derive_key(seed, TaskStream.WORDS, step)), np.arange(len(items))

    def whole_batch_loss(self, examples: Sequence[Example]) -> Callable[[Tensor, Tensor], LossOutput] | None:
        if self.vector_loss == "tsdae":
            return None
        from bertwright.tasks.embedding_objective import VectorObjective

        return VectorObjective.of(self, as_rows(examples))

    @property
    def default_dropout(self) -> float | None:
        return SIMCSE_DROPOUT if self.vector_loss == "simcse" else None

    # The head

    @property
    def head(self) -> HeadSpec:
        return HeadSpec("vector", self.size)

    def with_model(self, folder: Path) -> Self:
        """Return the task with pooling, prompts and longest text of a model folder, where none are chosen."""
        from bertwright.interop.huggingface import load_config
        from bertwright.interop.sentence_modules import read_sentence_modules

        modules, config = read_sentence_modules(folder), load_config(folder)
        if modules is not None and modules.unsupported:
            raise ValueError(modules.unsupported)
        pooling = self.pooling or (modules.modes if modules else ("mean",))
        has_own = modules is not None and pooling == modules.modes
        size = modules.vector_size(config.hidden_size) if modules and has_own else len(pooling) * config.hidden_size
        limit = modules.max_length if modules else None
        own = tuple(f"{name}={text}" for name, text in modules.prompts.items()) if modules else ()
        prompts = own if not self.prompts else tuple(text for text in self.prompts if not text.startswith("none="))
        if odd := [dim for dim in self.dims if not 0 < dim <= size]:
            raise ValueError(f"dims: expected 1 to {size}, the numbers of a vector, got {odd[0]}")
        if modules is not None and not modules.include_prompt and any(text.partition("=")[2] for text in prompts):
            raise ValueError(f"{folder}: its pooling leaves out the prompts, and training cannot; add --prompts none=")
        dims = tuple(dict.fromkeys((size, *self.dims))) if self.dims else ()
        length, lowercase = min(self.max_length, limit or self.max_length), bool(modules and modules.lowercase)
        return replace(
            self, pooling=pooling, size=size, prompts=prompts, max_length=length, lowercase=lowercase, dims=dims
        )

    def head_for(self, folder: Path) -> Callable[[TextEncoder], TaskHead]:
        from bertwright.interop.huggingface import load_config
        from bertwright.interop.sentence_modules import make_sentence_modules, read_sentence_modules
        from bertwright.models.heads import VectorHead

        source, config = read_sentence_modules(folder), load_config(folder)
        length = min(self.max_length, config.max_positions)
        modules = make_sentence_modules(source, self.pooling, config.hidden_size, length, self.named_prompts)
        return partial(VectorHead, self.head, self.pooling, modules)

    def loss(self, output: Any, /, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        if self.vector_loss != "tsdae":
            raise TypeError("text vectors have a loss over the whole step: call whole_batch_loss")
        value: Tensor = output.loss(batch.labels[:, 0].contiguous())
        return value

    def prepare_training(self, model: EncoderForTask, seed: int, folder: Path | None) -> None:
        if self.vector_loss == "tsdae":
            add_decoder(model, seed, folder)

    # Scores

    def decode(self, examples: Sequence[Example], encoded: Encoded, outputs: Outputs) -> list[TextVectors]:
        return np.split(outputs, np.searchsorted(encoded.example_ids, np.arange(1, len(examples))))

    def score(self, examples: Sequence[Example], predictions: Sequence[TextVectors]) -> dict[str, float]:
        return score_examples(examples, predictions).scores

    def example_scores(self, examples: Sequence[Example], predictions: Sequence[TextVectors]) -> ExampleScores | None:
        found = score_examples(examples, predictions)
        return found.examples if self.metric == found.metric else None

    def gold_columns(self, example: Example) -> dict[str, Any]:
        if isinstance(example, RetrievalExample):
            data = example.data
            counts = {"queries": len(data.queries), "documents": len(data.documents)}
            return {"location": example.location, **counts, "gold": sum(map(len, data.judgements.values()))}
        numbered = {f"negative_{number}": text for number, text in enumerate(example.negatives, 1)}
        positives = {"positive": " | ".join(example.positives)} if example.positives else {}
        gold = example.label if example.score is None else example.score
        return {"location": example.location, "anchor": example.anchor, **positives, **numbered, "gold": gold}

    def to_record(self, example: Example, prediction: TextVectors) -> dict[str, Any]:
        if isinstance(example, RetrievalExample):
            raise ValueError(f"{example.location}: a retrieval set has no score of two texts; use bertwright evaluate")
        if len(prediction) < 2:
            raise ValueError(f"{example.location}: a single text has no score; its vector: bertwright embed")
        first, second = prediction[0].astype(np.float64), prediction[1].astype(np.float64)
        return {"cosine": float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))}

    def describe(self) -> dict[str, str]:
        prompts = {"prompts": ", ".join(map(repr, self.prompts))} if self.prompts else {}
        return {"pooling": " and ".join(self.pooling), "longest text": f"{self.max_length} tokens"} | prompts
