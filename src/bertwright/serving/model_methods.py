"""The methods of a model that a server offers: each computes the items of several requests in one call.

An item is the smallest input with an answer of its own: a text, a pair, a question with its context. `Bert` computes
the answers (`inference/bert.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch

from bertwright.inference.bert import SAMPLED, Bert, check_task, predict_examples
from bertwright.inference.generation import generate_texts, to_generator
from bertwright.inference.python_inputs import ranking_example, tag_example
from bertwright.inference.search_commands import rerank
from bertwright.inference.search_index import SearchIndex
from bertwright.inference.text_settings import GenerationSettings
from bertwright.inference.text_vectors import role_prompt
from bertwright.search.vector_index import By, Hit
from bertwright.tables.tag_example import TagExample
from bertwright.tasks.embedding_scores import QUERY
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.reranking import Reranking
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.truncation import SegmentTokens

Item = Any
Form = Literal["task", "typed", "lowercase", "raw"]
"""How a method tokenizes: "task" between special tokens; in "typed" texts, [SEP] is one of them, in "lowercase" ones as
well; "raw" without special tokens."""
MAX_ATTENTION = 1_000_000  # numbers of a reply: layers × heads × tokens²
RERANKED = 100  # documents that a re-ranker reads, as in `bertwright search query`
TOKENIZED = 64  # tokens that are split and cut off in the time in which a model reads one
PROBES = ["a bear", "the tree sees a bear"]
PAIRS = [("a bear", "the tree"), ("the tree sees a bear", "a")]


class Counts(NamedTuple):
    """What a model reads of some items."""

    tokens: list[int]
    truncated: list[bool]
    density: float | None
    """Tokens per character, before truncation; None without characters."""


class Method(NamedTuple):
    """A method of `Bert` on items of several requests.

    All functions but `probe` get the call's options by name.
    """

    compute: Callable[..., Sequence[Any]]
    """Compute a result per item, from a `Bert` and the items. Raises ValueError for an item that the model cannot
    read, with its index among the items if the message begins with one."""
    probe: Callable[[Bert], list[Item]]
    """Return items that show whether a model has the method, and whether its answers are right."""
    longest: Callable[..., int | None] = lambda bert, **options: None
    """Return the number of tokens at which a sequence is truncated; None if it is read in windows."""
    sequences: Callable[..., Sequence[Sequence[str]]] = lambda bert, item, **options: [flatten(item)]
    """Return the one or two texts of each sequence that the model reads of an item."""
    added: Callable[..., int] = lambda bert, item, tokens, **options: 0
    """Return the tokens that are computed for an item beyond the `tokens` of its sequences."""
    results: Callable[..., int] = lambda bert, item, **options: 1
    """Return the number of results in an item's reply, as far as the request decides it."""
    form: Callable[..., Form] = lambda bert, **options: "task"
    lost: Callable[[Bert, Sequence[Item]], list[bool]] | None = None
    """Say which items lose tokens although they are read in windows; None: no item does."""

    def estimate(self, bert: Bert, item: Item, density: float, options: Mapping[str, Any]) -> int:
        """Estimate the tokens of an item from its characters."""
        total, longest = 0, self.longest(bert, **options)
        for texts in self.sequences(bert, item, **options):
            tokens = 2 + max(len(texts), int(sum(map(len, texts)) * density))
            total += tokens if longest is None else min(tokens, longest + tokens // TOKENIZED)
        return total + self.added(bert, item, total, **options)

    def measure(self, bert: Bert, items: Sequence[Item], options: Mapping[str, Any]) -> Counts:
        """Count the tokens that are read of each item, and say which items are truncated."""
        sequences = [self.sequences(bert, item, **options) for item in items]
        sizes = count_tokens(bert, sequences, self.form(bert, **options))
        most = self.longest(bert, **options) or sys.maxsize
        characters = sum(len(text) for of_item in sequences for texts in of_item for text in texts)
        tokens = [sum(min(size, most) for size in of_item) for of_item in sizes]
        is_long = [max(of_item, default=0) > most for of_item in sizes]
        is_truncated = self.lost(bert, items) if self.lost else is_long
        return Counts(tokens, is_truncated, sum(map(sum, sizes)) / characters if characters else None)


def flatten(item: Item) -> list[str]:
    """Return the texts in an item of texts and tuples.

    >>> flatten(("the bear", ("sees", None)))
    ['the bear', 'sees']
    """
    if isinstance(item, str):
        return [item]
    return [text for part in item or () for text in flatten(part)]


def count_tokens(bert: Bert, items: Sequence[Sequence[Sequence[str]]], form: Form) -> list[list[int]]:
    """Count the tokens of each sequence of each item, special ones included; equal texts are read once."""
    texts = list({text: None for sequences in items for sequence in sequences for text in sequence})
    tokenizer = bert.tokenizer
    if form in ("typed", "lowercase"):
        segments = SegmentTokens.of_typed(texts, tokenizer, form == "lowercase")
    else:
        segments = SegmentTokens.of(texts, tokenizer)
    sizes = dict(zip(texts, segments.lengths.tolist(), strict=True))
    specials = [0 if form == "raw" else tokenizer.layout.num_specials(max(number, 1)) for number in range(3)]
    return [
        [sum(sizes[text] for text in sequence) + specials[len(sequence)] for sequence in sequences]
        for sequences in items
    ]


def task_length(bert: Bert, **options: Any) -> int:
    """Return the tokens at which an example of the model's task is truncated."""
    return bert.task.max_length if bert.task else bert.config.max_positions


def embedding_length(
    bert: Bert, pooling: str | None = None, max_length: int | None = None, **options: Any
) -> int | None:
    """Return the tokens at which a text is truncated; None if it is read in windows, without a folder's own modules."""
    modules = bert.sentence_modules
    return None if modules is None or pooling is not None else max_length or modules.limit(bert.config.max_positions)


def with_prompt(
    bert: Bert, item: str, pooling: str | None = None, prompt_name: str | None = None, **options: Any
) -> list[list[str]]:
    """Return a text after the prompt that `Bert.embed` puts before it. Raises ValueError for an unknown prompt."""
    modules = None if pooling else bert.sentence_modules
    return [[(modules.prompt(prompt_name) if modules else "") + item]]


def embedding_form(bert: Bert, pooling: str | None = None, **options: Any) -> Form:
    """Return how `Bert.embed` tokenizes."""
    modules = None if pooling else bert.sentence_modules
    return "lowercase" if modules and modules.lowercase else "typed"


class Document:
    """The sentences of a document; the thread of the models gives each its context, once for all parts of a request."""

    def __init__(self, sentences: Sequence[str | tuple[str, ...]]) -> None:
        self.sentences = sentences
        self._examples: list[TagExample] | None = None

    def examples(self, task: Tagging) -> list[TagExample]:
        """Return the sentences with their context. Raises ValueError if the model was trained without it."""
        if self._examples is None:
            given = [tag_example(text, f"text {n}").split_into(task.unit) for n, text in enumerate(self.sentences)]
            self._examples = task.in_context(given)
        return self._examples


def tag(bert: Bert, items: Sequence[Any], document: bool = False) -> Sequence[Any]:
    """Tag texts or, with `document`, sentences: a `Document` and an index each."""
    if not document:
        return bert.tag(items)
    task = check_task(bert, "tag", Tagging, Tagging.kind)
    return [*predict_examples(bert, task, [owner.examples(task)[index] for owner, index in items])]


def tagged_sequences(bert: Bert, item: Any, document: bool = False) -> list[list[str]]:
    """Return a text, or its words as one text."""
    text = item[0].sentences[item[1]] if document else item
    return [[text if isinstance(text, str) else " ".join(text)]]


def long_questions(bert: Bert, items: Sequence[Any]) -> list[bool]:
    """Return whether each question is cut, so that the window has space for its context."""
    assert isinstance(bert.task, QuestionAnswering)
    space = bert.task.max_length - bert.tokenizer.layout.num_specials(2)
    most = min(bert.task.max_query_length, space - 1)
    return [size > most for (size,) in count_tokens(bert, [[[question]] for question, _ in items], "raw")]


def rank(bert: Bert, items: Sequence[Any]) -> Sequence[float]:
    """Score pairs of a query and a text as `Bert.rank` does."""
    task = check_task(bert, "rank", Reranking, Reranking.kind)
    examples = [ranking_example(query, [text], n) for n, (query, text) in enumerate(items)]
    return [score for (score,) in predict_examples(bert, task, examples)]


def count_masks(bert: Bert, item: str) -> int:
    return sum(map(item.count, {"[MASK]", bert.tokenizer.token(bert.tokenizer.mask_id)}))


def windows_of_masks(bert: Bert, item: str, tokens: int, **options: Any) -> int:
    """Return the tokens of the windows around the masks of a text that is too long to be read at once."""
    positions = bert.config.max_positions
    return count_masks(bert, item) * positions if tokens > positions else 0


@torch.inference_mode()
def generate(bert: Bert, items: Sequence[Any], settings: GenerationSettings = SAMPLED) -> Sequence[Any]:
    """Continue prompts; an item is a prompt's place in its request, on which the numbers of sampling depend, and it."""
    model = to_generator(bert.model, bert.task)
    places, prompts = [place for place, _ in items], [prompt for _, prompt in items]
    return generate_texts(model, bert.tokenizer, prompts, settings, places)


def new_tokens(bert: Bert, item: Any, tokens: int, settings: GenerationSettings = SAMPLED) -> int:
    """Return the tokens that a prompt's hypotheses get."""
    return min(settings.max_new_tokens, bert.config.max_positions) * settings.num_beams


def attend(bert: Bert, items: Sequence[Any]) -> Sequence[Any]:
    """Compute attention weights of texts or pairs. Raises ValueError if they are too many for a reply."""
    for (tokens,) in count_tokens(bert, [[flatten(item)] for item in items], "typed"):
        numbers = bert.config.num_layers * getattr(bert.config, "num_heads", 1) * tokens**2
        if numbers > MAX_ATTENTION:
            raise ValueError(f"text: expected at most {MAX_ATTENTION:,} attention weights, got {numbers:,}; shorten it")
    return [bert.attention(*item) for item in items]


def search(
    bert: Bert, items: Sequence[Any], index: SearchIndex, top_k: int, by: By, reranker: Bert | None
) -> Sequence[list[Hit]]:
    """Find documents of an index; with a `reranker`, it orders the first RERANKED of them again, or `top_k` if more."""
    if reranker is None:
        return index.search([*items], top_k, by)
    found = index.search([*items], max(RERANKED, top_k), by)
    return [rerank(reranker, query, hits, top_k) for query, hits in zip(items, found, strict=True)]


def searched_length(bert: Bert, by: By, **options: Any) -> int | None:
    """Return the tokens at which a query is truncated."""
    return None if by == "bm25" else embedding_length(bert)


def searched_sequences(bert: Bert, item: str, **options: Any) -> list[list[str]]:
    """Return a query after the prompt that queries get."""
    return with_prompt(bert, item, prompt_name=role_prompt(bert, QUERY))


def reranked_tokens(bert: Bert, item: str, tokens: int, **options: Any) -> int:
    """Return the tokens of the documents that a re-ranker reads for a query."""
    index, reranker = options["index"], options["reranker"]
    return min(max(RERANKED, options["top_k"]), len(index)) * task_length(reranker) if reranker else 0


METHODS = {
    "classify": Method(
        lambda bert, items: bert.classify(items),
        lambda bert: PAIRS if getattr(bert.task, "text_pair", None) else PROBES, task_length,
        lambda bert, item: [flatten(item)] * (2 if getattr(bert.task, "both_orders", False) else 1),
    ),
    "choose": Method(
        # All items have the same number of `endings`, because the model reads no others together.
        lambda bert, items, endings=2: bert.choose(*zip(*items, strict=True)),
        lambda bert: [("a bear", ("sees", "a tree")), ("a", ("b", "c"))], task_length,
        lambda bert, item, **options: [(item[0], ending) for ending in item[1]],
    ),
    "tag": Method(
        tag, lambda bert: PROBES, sequences=tagged_sequences,
        added=lambda bert, item, tokens, document=False: task_length(bert) if document else 0,
    ),
    "answer": Method(
        lambda bert, items: bert.answer(*zip(*items, strict=True)), lambda bert: PAIRS, lost=long_questions
    ),
    "rank": Method(rank, lambda bert: PAIRS, task_length),
    "fill-mask": Method(
        lambda bert, items, top_k=5: bert.fill_mask(items, top_k),
        lambda bert: [f"{text} {bert.tokenizer.token(bert.tokenizer.mask_id)}" for text in PROBES],
        added=windows_of_masks, results=lambda bert, item, top_k=5: count_masks(bert, item) * top_k,
        form=lambda bert, **options: "typed",
    ),
    "generate": Method(
        generate, lambda bert: [(0, "a bear")], sequences=lambda bert, item, **options: [item[1:]], added=new_tokens,
        form=lambda bert, **options: "raw",
    ),
    "embed": Method(
        lambda bert, items, **options: bert.embed(items, **options), lambda bert: PROBES, embedding_length, with_prompt,
        form=embedding_form,
    ),
    "next-sentence": Method(
        lambda bert, items: bert.next_sentence(*zip(*items, strict=True)), lambda bert: PAIRS, task_length
    ),
    "score": Method(
        lambda bert, items: bert.score(items), lambda bert: PROBES,
        form=lambda bert: "typed" if bert.model.reads_marks else "raw",
    ),
    "attention": Method(attend, lambda bert: [("a bear", None)], form=lambda bert: "typed"),
}  # fmt: skip
"""Methods by name, in the order in which a model's own one comes first."""
ALL_METHODS = METHODS | {
    "search": Method(
        search, lambda bert: [], searched_length, searched_sequences, reranked_tokens,
        lambda bert, item, index, top_k, **options: min(top_k, len(index)), embedding_form,
    ),
    "tokenizer": Method(
        lambda bert, items, function, flag: function(bert.tokenizer, items, flag),
        lambda bert: [],
        sequences=lambda bert, item, **options: [],
        added=lambda bert, item, tokens, **options: 2 + len(item) // TOKENIZED,
        results=lambda bert, item, **options: len(item) // 10,  # a document of a reply is larger than ten tokens
    ),
}  # fmt: skip
"""Those of a server as well: the search in its index, and what the tokenizer alone does."""
