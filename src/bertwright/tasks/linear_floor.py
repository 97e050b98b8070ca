"""Floors without a network: a linear model and a lookup, trained on a task's examples in seconds.

A network earns its keep only above them. Texts are counted words and bigrams, pairs are the words that both texts or
only one has, and a word of a sentence is its spelling and its neighbours'. Question answering has no floor: its answers
are spans of the text, which no cheap linear model ranks well.

N rows of examples, words or endings; D distinct words, or texts, of the rows; F features; C outputs.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from bertwright.tables.tag_example import TagExample
from bertwright.tables.tag_schemes import Span, find_spans, spell
from bertwright.tasks.classification import Classification
from bertwright.tasks.encoded import Encoded, Floats, Ints
from bertwright.tasks.linear_fit import Block, Loss, add_outputs, cross_entropy, fit_linear, logistic_loss, squared_loss
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import ChoiceExample, MultipleChoice
from bertwright.tasks.ranking_examples import RankingExample
from bertwright.tasks.regression import Regression
from bertwright.tasks.reranking import Reranking
from bertwright.tasks.score_formats import format_score
from bertwright.tasks.splits import sample_examples
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.text_task import TextExample, known_labels

# scipy takes a while to import, so the functions import it.

LINEAR, LOOKUP = "linear model", "lookup"
# Bounds of time and memory: at most half a minute of one core.
MAX_EXAMPLES, MAX_CHARACTERS, MAX_TAGGED_CHARACTERS = 100_000, 10_000_000, 400_000
MAX_WEIGHTS, MAX_TARGETS = 1_000_000, 20_000_000
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+|[^\w\s]")  # kana and Han are written without spaces
AFFIX = 4  # longest prefix and suffix of a word that is a feature
NEIGHBOURS = (-2, -1, 1, 2)  # places of the other words that a tag depends on
STEPS = 20  # steps of an overlap


@dataclass(frozen=True)
class Floor:
    """A trained floor of a task."""

    name: str
    """LINEAR or LOOKUP."""
    reads: str
    """What it knows of the examples."""
    task: AnyTask
    outputs: Callable[[Sequence[Any]], Floats]
    """Compute the outputs N × C for examples."""

    def predict(self, examples: Sequence[Any]) -> list[Any]:
        """Return the predictions for examples, as the task's head would give them."""
        outputs = self.outputs(examples).astype(np.float32)
        counts = [1] * len(outputs)
        if isinstance(self.task, MultipleChoice | Reranking):
            counts = [len(_candidates_of(example)) for example in examples]
        return self.task.decode(examples, _encode_rows(np.array(counts)), outputs)


class FloorScores(NamedTuple):
    """Scores of a floor by split; a split without a name is all that was scored."""

    name: str
    """With what the floor reads."""
    scores: Mapping[str, Mapping[str, float]]

    def describe(self, metric: str) -> str:
        """Return the metric on each split as a line for people.

        >>> FloorScores("linear model (words and bigrams)", {"dev": {"f1": 0.5}}).describe("f1")
        'linear model (words and bigrams): f1 50.00 on dev'
        """
        shown = [
            format_score(scores[metric], metric) + (f" on {split}" if split else "")
            for split, scores in self.scores.items()
        ]
        return f"{self.name}: {metric.replace('_', ' ')} {', '.join(shown)}"


def floor_names(task: AnyTask) -> tuple[str, ...]:
    if isinstance(task, Tagging):
        return LOOKUP, LINEAR
    of_texts = Classification | MultiLabel | Regression | MultipleChoice | Reranking
    return (LINEAR,) if isinstance(task, of_texts) else ()


def score_floors(
    task: AnyTask, examples: Mapping[str, Sequence[Any]], scored: Mapping[str, Sequence[Any]]
) -> list[FloorScores]:
    """Train the floors on the examples of "train", and score them on `scored`, by split."""
    found = []
    for name in floor_names(task) if scored else ():
        floor = train_floor(name, task, examples)
        scores = {split: floor.task.score(given, floor.predict(given)) for split, given in scored.items()}
        found.append(FloorScores(f"{name} ({floor.reads})", scores))
    return found


def train_floor(name: str, task: AnyTask, examples: Mapping[str, Sequence[Any]]) -> Floor:
    """Train a floor on the examples of "train"; a threshold is chosen on "dev", as a network's is."""
    whole = examples["train"]
    if isinstance(task, Classification):  # what was chosen for a network's outputs does not suit other outputs
        task = replace(task, temperature=1.0, threshold=0.5)
    if isinstance(task, MultiLabel):
        task = replace(task, temperature=1.0, thresholds=())
    if isinstance(task, Tagging):
        task = replace(task, tag_head="linear").with_labels_of(whole)
    train = _limit(task, whole)
    floor = _look_up(task, train) if isinstance(task, Tagging) and name == LOOKUP else _fit(task, train)
    if len(train) < len(whole):
        floor = replace(floor, reads=f"{floor.reads}, {len(train):,} of {len(whole):,} examples")
    if isinstance(task, MultiLabel) and (dev := examples.get("dev")):
        return replace(floor, task=task.with_threshold_from(dev, floor.predict(dev)))
    return floor


def _limit(task: AnyTask, train: Sequence[Any]) -> Sequence[Any]:
    """Return a sample of the training examples that bounds the time."""
    most = min(MAX_EXAMPLES, MAX_TARGETS // max(1, len(task.labels)))
    characters = sum(map(len, task.texts(train)))
    share = (MAX_TAGGED_CHARACTERS if isinstance(task, Tagging) else MAX_CHARACTERS) / max(1, characters)
    return sample_examples(train, max(1, min(most, int(share * len(train)))))


def _encode_rows(counts: Ints) -> Encoded:
    """Return an encoding that stands for outputs: each row is a sequence of one token. `counts`: rows per example."""
    ones, zeros = np.ones(counts.sum(), np.int64), np.zeros(counts.sum(), np.int32)
    none = np.zeros(0, np.int64)
    return Encoded(zeros, None, ones, np.repeat(np.arange(len(counts)), counts), zeros, ones, none, none, counts)


# Linear models


Described = Sequence[tuple[Any, Sequence[Sequence[str]]]]
"""Per block, `rows` and the names of the features of each word; a name may occur several times."""


class Problem(NamedTuple):
    """What the linear model of a task learns."""

    reads: str
    """What it knows of the examples."""
    describe: Callable[[Sequence[Any]], Described]
    loss: Loss
    targets: Floats
    """N × C."""


def _pose(task: AnyTask, train: Sequence[Any]) -> Problem:
    """Return the problem that the training examples of a task pose."""
    if isinstance(task, Tagging):
        one_hot = np.eye(len(task.labels))[task.encode_labels(train)]
        return Problem("spelling and neighbours", _describe_words, cross_entropy, one_hot)
    if isinstance(task, MultipleChoice):  # whether an ending is the right one
        right = zip(train, known_labels(train), strict=True)
        targets = np.concatenate([np.arange(len(one.endings)) == label for one, label in right])
        return Problem("words of prompt and ending", _describe_texts, logistic_loss, targets[:, None].astype(float))
    reads = "words of both texts" if task.num_segments == 2 else "words and bigrams"
    if isinstance(task, Reranking):
        if all(example.grades is not None for example in train):
            marked = [float(grade > 0) for example in train for grade in example.grades]
            return Problem(reads, _describe_texts, logistic_loss, np.array(marked)[:, None])
        scores = [score for example in train for score in example.scores]
        return Problem(reads, _describe_texts, squared_loss, np.array(scores)[:, None])
    if isinstance(task, Classification):
        one_hot = np.eye(len(task.labels))[task.encode_labels(train)]
        return Problem(reads, _describe_texts, cross_entropy, one_hot)
    assert isinstance(task, MultiLabel | Regression), f"{type(task).__name__} has no floor"
    loss = logistic_loss if isinstance(task, MultiLabel) else squared_loss
    targets = task.encode_labels(train).reshape(len(train), -1).astype(float)
    return Problem(reads, _describe_texts, loss, targets)


def _fit(task: AnyTask, train: Sequence[Any]) -> Floor:
    reads, describe, loss, targets = _pose(task, train)
    described, vocabularies = describe(train), list[dict[str, int]]()
    blocks = list[Block]()
    for rows, names in described:
        block, vocabulary = _learn_features(rows, names, MAX_WEIGHTS // targets.shape[1] // len(described))
        blocks.append(block)
        vocabularies.append(vocabulary)
    weights, bias = fit_linear(blocks, targets, loss)

    def compute(examples: Sequence[Any]) -> Floats:
        pairs = zip(describe(examples), vocabularies, strict=True)
        found = [Block(rows, _count(names, vocabulary)) for (rows, names), vocabulary in pairs]
        return add_outputs(found, weights) + bias

    return Floor(LINEAR, reads, task, compute)


# Features


def _learn_features(rows: Any, names: Sequence[Sequence[str]], size: int) -> tuple[Block, dict[str, int]]:
    """Return the block of training rows, and the numbers of the most frequent features, at most `size`."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(chain.from_iterable(names)))}
    features = _count(names, numbers)
    frequency = features.T @ (rows.T @ np.ones(rows.shape[0]))
    chosen, known = np.sort(np.argsort(-frequency, kind="stable")[:size]), [*numbers]
    return Block(rows, features[:, chosen]), {known[old]: new for new, old in enumerate(chosen.tolist())}


def _count(names: Sequence[Sequence[str]], numbers: Mapping[str, int]) -> Any:
    """Return 1 + log of the counts of the features of D words, sparse D × F; names without a number are left out."""
    from scipy import sparse

    found = [[number for name in of_word if (number := numbers.get(name)) is not None] for of_word in names]
    ends = np.cumsum([0, *map(len, found)])
    columns = np.fromiter(chain.from_iterable(found), np.int32, ends[-1])
    matrix = sparse.csr_matrix((np.ones(ends[-1]), columns, ends), shape=(len(names), len(numbers)))
    matrix.sum_duplicates()
    matrix.data = 1 + np.log(matrix.data)
    return matrix


def _refer(ids: Ints, count: int) -> Any:
    """Return the rows of a block, sparse N × D; `ids`: the word of each of N rows, `count`: D."""
    from scipy import sparse

    return sparse.csr_matrix((np.ones(len(ids)), ids, np.arange(len(ids) + 1)), shape=(len(ids), count))


def _describe_texts(examples: Sequence[Any]) -> Described:
    names = [of_row for example in examples for of_row in _names_of(example)]
    return [(_refer(np.arange(len(names)), len(names)), names)]


def _candidates_of(example: ChoiceExample | RankingExample) -> list[tuple[str, str]]:
    """Return the pairs of texts that an example compares."""
    first, others = (example.prompt, example.endings) if isinstance(example, ChoiceExample) else example[:2]
    return [(first, other) for other in others]


def _names_of(example: TextExample[Any] | ChoiceExample | RankingExample) -> list[list[str]]:
    if isinstance(example, ChoiceExample | RankingExample):
        return [compare_texts(*pair) for pair in _candidates_of(example)]
    pair = example.text_pair
    return [split_grams(example.text) if pair is None else compare_texts(example.text, pair)]


def split_grams(text: str) -> list[str]:
    """Return the words of a text in lower case, then pairs of neighbours, with the start and the end.

    >>> split_grams("Who is it?")
    ['who', 'is', 'it', '?', '^ who', 'who is', 'is it', 'it ?', '? $']
    """
    words = WORD.findall(text.lower())
    return words + [f"{first} {second}" for first, second in pairwise(("^", *words, "$"))]


def compare_texts(first: str, second: str) -> list[str]:
    """Return the words that two texts share or only one has, the grams of the second, and the steps of their overlap.

    >>> compare_texts("a red cat", "a cat")[:5]
    ['= a', '< red', '= cat', '2 a', '2 cat']
    """
    one, two = (Counter(WORD.findall(text.lower())) for text in (first, second))
    names = [f"{'=' if word in two else '<'} {word}" for word in one]
    names += [f"2 {gram}" for gram in split_grams(second)] + [f"> {word}" for word in two if word not in one]
    shared, sizes = (one & two).total(), (max(1, one.total()), max(1, two.total()))
    overlaps = {"both": shared / (sizes[0] * sizes[1]) ** 0.5, "1st": shared / sizes[0], "2nd": shared / sizes[1]}
    return names + [f"{name} {step}" for name, share in overlaps.items() for step in range(round(STEPS * share))]


def _describe_words(examples: Sequence[TagExample]) -> Described:
    """Return the block of the words, then a block of each neighbour; beyond the ends of sentences are empty words."""
    edge = [""] * max(NEIGHBOURS)
    words = [word for example in examples for word in (*edge, *example.words)] + edge
    lengths = np.array([len(example.words) for example in examples])
    places = np.arange(lengths.sum()) + np.repeat(np.arange(1, len(lengths) + 1) * len(edge), lengths)
    numbers = {word: number for number, word in enumerate(dict.fromkeys(words))}
    ids = np.array([numbers[word] for word in words])
    spelled, seen = [describe_word(word) for word in numbers], [describe_neighbour(word) for word in numbers]
    blocks = [(_refer(ids[places], len(numbers)), spelled)]
    return blocks + [(_refer(ids[places + offset], len(numbers)), seen) for offset in NEIGHBOURS]


def describe_word(word: str) -> list[str]:
    """Return features of a word's spelling.

    >>> describe_word("U.N.")[:6]
    ['=U.N.', '-u.n.', '#X.X.', '^U', '^U.', '^U.N']
    """
    lower, lengths = word.lower(), range(1, min(AFFIX, len(word)) + 1)
    affixes = [f"^{word[:size]}" for size in lengths] + [f"${lower[-size:]}" for size in lengths]
    return [f"={word}", f"-{lower}", f"#{shape_of(word)}", *affixes]


def describe_neighbour(word: str) -> list[str]:
    """Return features of a word beside the one that is tagged."""
    return [f"={word}", f"-{word.lower()}", f"#{shape_of(word)}", f"${word[-3:].lower()}"]


def shape_of(word: str) -> str:
    """Return the kinds of a word's characters without repetitions.

    >>> shape_of("McDonald's"), shape_of("22-year-old")
    ("XxXx'x", '0-x-x')
    """
    kinds = "".join("0" if c.isdigit() else c if not c.isalpha() else "X" if c.isupper() else "x" for c in word)
    return re.sub(r"(.)\1+", r"\1", kinds)


# The lookup


def _look_up(task: Tagging, train: Sequence[TagExample]) -> Floor:
    """Learn the most frequent type of each name in training or, if tags are plain classes, the tag of each word."""
    labels, is_plain = task.encode_labels(train), task.scheme == "none"
    names = defaultdict[tuple[str, ...], Counter[str]](Counter)
    tags = iter([task.labels[number] for number in labels])
    for words in (example.words for example in train):
        own = list(islice(tags, len(words)))
        for label, first, last in [Span(tag, n, n) for n, tag in enumerate(own)] if is_plain else find_spans(own):
            names[words[first : last + 1]][label] += 1
    types = {name: counts.most_common(1)[0][0] for name, counts in names.items()}
    ids = {tag: number for number, tag in enumerate(task.labels)}
    frequent = int(np.bincount(labels).argmax())

    def compute(examples: Sequence[TagExample]) -> Floats:
        tagged = list[str]()
        for words in (example.words for example in examples):
            spans = find_names(words, types)
            by_word = {span.first: span.label for span in spans}
            plain = [by_word.get(number, "") for number in range(len(words))]
            tagged += plain if is_plain else spell(spans, len(words), "bioes" if task.scheme == "bioes" else "iob2")
        return np.eye(len(ids))[[ids.get(tag, frequent) for tag in tagged]]

    return Floor(LOOKUP, f"{'words' if is_plain else 'names'} in training", task, compute)


def find_names(words: tuple[str, ...], types: Mapping[tuple[str, ...], str]) -> list[Span]:
    """Return the longest names from left to right.

    >>> find_names(("New", "York", "City"), {("New", "York"): "LOC", ("New",): "MISC"})
    [Span(label='LOC', first=0, last=1)]
    """
    longest, spans, first = max(map(len, types), default=0), list[Span](), 0
    while first < len(words):
        ends = range(min(first + longest, len(words)), first, -1)
        end = next((end for end in ends if words[first:end] in types), None)
        if end is not None:
            spans.append(Span(types[words[first:end]], first, end - 1))
        first = end or first + 1
    return spans
