"""The methods of a model that a server offers: each computes the items of several requests in one call.

An item is the smallest input with an answer of its own: a text, a pair, a question with its context. `Bert` computes
the answers (`inference/bert.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bertwright.base.ragged import Ints
from bertwright.inference.bert import SAMPLED, Bert
from bertwright.inference.python_inputs import ranking_example
from bertwright.inference.search_commands import rerank
from bertwright.inference.search_index import By, SearchIndex
from bertwright.inference.text_settings import GenerationSettings
from bertwright.search.vector_index import Hit
from bertwright.tasks.prediction import predict_chunks
from bertwright.tasks.reranking import Reranking
from bertwright.vocabulary.tokenizer import TextTokenizer

Item = Any
MAX_ATTENTION = 1_000_000  # numbers of a reply: layers × heads × tokens²
PROBES = ["a bear", "the tree sees a bear"]
PAIRS = [("a bear", "the tree"), ("the tree sees a bear", "a")]


class Method(NamedTuple):
    """A method of `Bert` on items of several requests."""

    compute: Callable[..., Sequence[Any]]
    """Compute a result per item; it is called with a `Bert`, the items, and the call's options by name. Raises
    ValueError for an item that the model cannot read."""
    probe: Callable[[Bert], list[Item]]
    """Return items that show whether a model has the method, and whether its answers are right."""
    longest: Callable[[Bert], int | None] = lambda bert: None
    """Return the number of tokens at which an item is truncated; None if it is read in windows."""


def flatten(item: Item) -> list[str]:
    """Return the texts in an item of texts and tuples.

    >>> flatten(("the bear", ("sees", None)))
    ['the bear', 'sees']
    """
    if isinstance(item, str):
        return [item]
    return [text for part in item or () for text in flatten(part)]


def count_characters(item: Item) -> int:
    """Count the characters of an item's texts."""
    return len(item) if isinstance(item, str) else sum(map(len, flatten(item)))


def count_tokens(tokenizer: TextTokenizer, items: Sequence[Item]) -> Ints:
    """Count the tokens of each item as one sequence of all its texts, special tokens included."""
    texts = [flatten(item) for item in items]
    sizes = np.diff(tokenizer.encode_ids([text for of_item in texts for text in of_item]).offsets) - 2
    numbers = np.array([len(of_item) for of_item in texts])
    starts = np.cumsum(numbers) - numbers
    specials = np.array([tokenizer.layout.num_specials(max(number, 1)) for number in numbers.tolist()])
    totals = np.add.reduceat(np.append(sizes, 0), starts) if len(items) else numbers
    tokens: Ints = np.where(numbers > 0, totals, 0) + specials  # reduceat gives an empty item the next one's number
    return tokens


def task_length(bert: Bert) -> int:
    """Return the tokens at which an example of the model's task is truncated."""
    return bert.task.max_length if bert.task else bert.config.max_positions


def embedding_length(bert: Bert) -> int | None:
    """Return the tokens at which a text is truncated; None for models that read texts in windows."""
    modules, positions = bert.sentence_modules, bert.config.max_positions
    return min(modules.max_length or positions, positions) if modules else None


def classify(bert: Bert, items: Sequence[Any]) -> Sequence[Any]:
    """Classify texts or pairs of texts."""
    return bert.classify(items)


def choose(bert: Bert, items: Sequence[Any], endings: int = 2) -> Sequence[Any]:
    """Choose endings; all items have the same number of `endings`, because the model reads no others together."""
    return bert.choose([prompt for prompt, _ in items], [given for _, given in items])


def tag(bert: Bert, items: Sequence[Any], document: bool = False) -> Sequence[Any]:
    """Tag texts, or tuples with the sentences of a document."""
    return [bert.tag([*item], document=True) for item in items] if document else bert.tag([*items])


def answer(bert: Bert, items: Sequence[Any]) -> Sequence[Any]:
    """Answer questions, each about its own context."""
    return bert.answer([question for question, _ in items], [context for _, context in items])


def rank(bert: Bert, items: Sequence[Any]) -> Sequence[float]:
    """Score pairs of a query and a text as `Bert.rank` does."""
    if not isinstance(bert.task, Reranking):
        bert.rank("a", ["b"])  # raises the message of the Python interface
    examples = [ranking_example(query, [text]) for query, text in items]
    chunks = predict_chunks(bert.model, bert.task, bert.tokenizer, examples)  # type: ignore[arg-type]
    return [score for chunk in chunks for (score,) in chunk.predictions]


def fill_mask(bert: Bert, items: Sequence[Any], top_k: int = 5) -> Sequence[Any]:
    """Predict the tokens for each [MASK]."""
    return bert.fill_mask(items, top_k)


def next_sentence(bert: Bert, items: Sequence[Any]) -> Sequence[float]:
    """Predict whether the second text of each pair follows the first."""
    return bert.next_sentence([first for first, _ in items], [second for _, second in items])


def generate(bert: Bert, items: Sequence[Any], settings: GenerationSettings = SAMPLED) -> Sequence[Any]:
    """Continue the prompts of each request by themselves: the numbers of sampling depend on a prompt's place."""
    return [bert.generate([*prompts], settings) for prompts in items]


def score(bert: Bert, items: Sequence[Any]) -> Sequence[Any]:
    """Score texts with a left-to-right language model."""
    return bert.score(items)


def embed(bert: Bert, items: Sequence[Any], **options: Any) -> Any:
    """Compute vectors of texts, N × H."""
    return bert.embed(items, **options)


def attend(bert: Bert, items: Sequence[Any]) -> Sequence[Any]:
    """Compute attention weights of texts or pairs. Raises ValueError if they are too many for a reply."""
    for tokens in count_tokens(bert.tokenizer, items).tolist():
        numbers = bert.config.num_layers * getattr(bert.config, "num_heads", 1) * tokens**2
        if numbers > MAX_ATTENTION:
            raise ValueError(f"text: expected at most {MAX_ATTENTION:,} attention weights, got {numbers:,}; shorten it")
    return [bert.attention(*item) for item in items]


def search(
    bert: Bert, items: Sequence[Any], index: SearchIndex, top_k: int, by: By, reranker: Bert | None, depth: int
) -> Sequence[list[Hit]]:
    """Find documents of an index; with a `reranker`, it orders the first `depth` of them again."""
    hits = index.search([*items], depth if reranker else top_k, by)
    return (
        [rerank(reranker, query, found, top_k) for query, found in zip(items, hits, strict=True)] if reranker else hits
    )


METHODS = {
    "classify": Method(classify, lambda bert: PAIRS if getattr(bert.task, "text_pair", None) else PROBES, task_length),
    "choose": Method(choose, lambda bert: [("a bear", ("sees", "a tree")), ("a", ("b", "c"))], task_length),
    "tag": Method(tag, lambda bert: PROBES),
    "answer": Method(answer, lambda bert: PAIRS),
    "rank": Method(rank, lambda bert: PAIRS, task_length),
    "fill-mask": Method(
        fill_mask, lambda bert: [f"{text} {bert.tokenizer.token(bert.tokenizer.mask_id)}" for text in PROBES]
    ),
    "generate": Method(generate, lambda bert: [("a bear",)]),
    "embed": Method(embed, lambda bert: PROBES, embedding_length),
    "next-sentence": Method(next_sentence, lambda bert: PAIRS, task_length),
    "score": Method(score, lambda bert: PROBES),
    "attention": Method(attend, lambda bert: [("a bear", None)]),
}
"""Methods by name, in the order in which a model's own one comes first."""
SEARCH = Method(search, lambda bert: [])
