"""The strategies for unknown words, scored on entities that have one (Ma & Hovy 2016, table 9).

    python bench/unknown_words.py --data shared/data/conll2003 --vectors runs/vectors --results FILE.jsonl

A BiLSTM-CRF without characters, except in `char`; --limit training sentences, as many of dev to choose the epoch;
scored on the whole test set of CoNLL-2003. A word needs two occurrences in training for a vector of its own, so that
the shared ones are trained; vectors start from the file, and are trained unless the row says frozen. Groups of
entities: all words in the training sentences; a word that they lack and the file has; a word that both lack. A
predicted entity belongs to the group of its own words. Runs that the file has are not repeated.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bertwright
from bertwright.base.reporter import SILENT
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.tables.tag_schemes import find_spans
from bertwright.tasks.splits import sample_examples
from bertwright.tasks.task_data import read_examples
from environment import make_parser, use_threads
from study import CPU, by_seed, compare, format_mean, print_heading, print_row, run_missing

STRATEGIES: dict[str, dict[str, Any]] = {
    "unk": {"unknown_words": "unk"},
    "class": {"unknown_words": "class"},
    "pretrained": {"unknown_words": "pretrained"},
    "pretrained, frozen": {"unknown_words": "pretrained", "freeze_vectors": True},
    "pretrained + random, frozen": {"unknown_words": "random", "freeze_vectors": True},
    "char": {"unknown_words": "char", "char_model": "cnn"},
}
GROUPS = ("known", "in file only", "in neither")
GroupOf = Callable[[Sequence[str]], str]


def train(run: dict[str, Any], data: Path, vectors: Path) -> dict[str, float]:
    """Train one model; return its F1 by group."""
    words = {"char_model": "none", "min_word_count": 2, "vectors": str(vectors), "freeze_vectors": False}
    with TemporaryDirectory() as folder:
        table = {
            "run": f"{folder}/run",
            "task": {"task": "conll2003", "data": str(data)},
            "architecture": "bilstm-crf",
            "batch_size": 16,
            "words": words | {"lstm_size": 100} | STRATEGIES[run["strategy"]],
            "epochs": run["epochs"],
            "seed": run["seed"],
            "device": CPU,
        }
        settings = from_table(FinetuneSettings, table, "table")
        task = settings.task.build_task()
        examples = {
            split: list(sample_examples(read_examples(task, settings.task, split), run["limit"]))
            for split in ("train", "dev")
        }
        test = read_examples(task, settings.task, "test")
        model = bertwright.load(finetune(settings, SILENT, examples).parent)
        predictions = model.tag([example.words for example in test])
    group_of = make_groups(task.texts(examples["train"]), task.texts(test), vectors)
    sentences = [[word.lower() for word in example.words] for example in test]
    gold, predicted = [example.tags for example in test], [prediction.tags for prediction in predictions]
    return score_groups(sentences, gold, predicted, group_of)


def make_groups(trained: Iterable[str], tested: Iterable[str], vectors: Path) -> GroupOf:
    """Return a function from words of the test examples to their group; `trained`, `tested`: all words of both."""
    known = {word.lower() for word in trained}
    ordered = sorted({word.lower() for word in tested} - known)
    has_vector = bertwright.load_vectors(str(vectors)).lookup(ordered).has_vector
    in_file = {word for word, has in zip(ordered, has_vector, strict=True) if has}

    def group_of(words: Sequence[str]) -> str:
        unknown = [word for word in words if word not in known]
        return GROUPS[0] if not unknown else GROUPS[1] if in_file.issuperset(unknown) else GROUPS[2]

    return group_of


def score_groups(
    sentences: Sequence[Sequence[str]],
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    group_of: GroupOf,
) -> dict[str, float]:
    """Return span F1 in percent over all entities and over the entities of each group."""
    counts: dict[str, Counter[str]] = {"right": Counter(), "gold": Counter(), "predicted": Counter()}
    for words, true_tags, tags in zip(sentences, gold, predicted, strict=True):
        true_spans, spans = set(find_spans(true_tags)), set(find_spans(tags))
        for name, chosen in (("right", true_spans & spans), ("gold", true_spans), ("predicted", spans)):
            for span in chosen:
                counts[name].update(("all", group_of(words[span.first : span.last + 1])))
    both = counts["gold"] + counts["predicted"]
    return {group: 200 * counts["right"][group] / both[group] for group in ("all", *GROUPS)}


def print_table(results: list[dict[str, Any]]) -> None:
    """Print the F1 of each group, and the gain over one vector for all where only the file has the word."""
    print_heading(["strategy", "all", *GROUPS, f"{GROUPS[1]} − unk", "interval"])
    base = by_seed(results, GROUPS[1], strategy="unk")
    for strategy in STRATEGIES:
        scores = {group: by_seed(results, group, strategy=strategy) for group in ("all", *GROUPS)}
        compared = ("", "") if strategy == "unk" else compare(base, scores[GROUPS[1]])
        print_row([strategy, *(format_mean([*values.values()]) for values in scores.values()), *compared])


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=1500, help="training sentences")
    parser.add_argument("--epochs", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    options = parse()
    use_threads(1)
    runs = [
        {"strategy": strategy, "seed": seed, "limit": options.limit, "epochs": options.epochs}
        for seed in range(options.seeds)
        for strategy in STRATEGIES
    ]
    print_table(run_missing(options.results, runs, lambda run: train(run, options.data, options.vectors)))


if __name__ == "__main__":
    main()
