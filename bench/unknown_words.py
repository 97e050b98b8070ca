"""The strategies for unknown words, scored on the entities of CoNLL-2003 that have one (Ma & Hovy 2016, table 9).

    python bench/unknown_words.py --data shared/data/conll2003 --vectors runs/vectors --results FILE.jsonl

One BiLSTM-CRF for all, without characters except in `char`: --limit training sentences, the same dev sentences, the
whole test set; a word needs two occurrences in training for a vector of its own, so that the shared ones are trained;
vectors start from the file, and are trained unless the row says frozen. Groups of entities: all words in the training
examples; a word that they lack and the file has; a word that both lack. A predicted entity belongs to the group of its
own words. Results are appended as they come, and runs that the file has are not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from scipy.stats import ttest_rel

import bertwright
from bertwright.console import silent_console
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.metrics.tag_schemes import find_spans
from bertwright.settings import from_table
from bertwright.tasks.splits import sample_examples
from bertwright.tasks.task_data import read_examples
from environment import describe_machine, use_threads

STRATEGIES: dict[str, dict[str, Any]] = {
    "unk": {"unknown_words": "unk"},
    "class": {"unknown_words": "class"},
    "pretrained": {"unknown_words": "pretrained"},
    "pretrained, frozen": {"unknown_words": "pretrained", "freeze_vectors": True},
    "pretrained + random, frozen": {"unknown_words": "random", "freeze_vectors": True},
    "char": {"unknown_words": "char", "char_model": "cnn"},
}
GROUPS = ("known", "in file only", "in neither")


def train(strategy: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one tagger; return its F1 on test by group."""
    started = time.process_time()
    words = {"char_model": "none", "lstm_size": 100, "min_word_count": 2, "vectors": str(options.vectors)}
    with TemporaryDirectory() as folder:
        table = {
            "run": f"{folder}/run",
            "task": {"task": "conll2003", "data": str(options.data)},
            "architecture": "bilstm-crf",
            "words": words | STRATEGIES[strategy],
            "epochs": options.epochs,
            "batch_size": 16,
            "seed": seed,
            "device": {"dtype": "float32", "threads": 1},
        }
        settings = from_table(FinetuneSettings, table, "table")
        task = settings.task.build_task()
        examples = {split: read_examples(task, settings.task, split) for split in ("train", "dev", "test")}
        test = examples.pop("test")
        examples = {split: list(sample_examples(rows, options.limit)) for split, rows in examples.items()}
        run = finetune(settings, silent_console(), examples).parent
        predictions = bertwright.load(run).tag([example.words for example in test])
    trained = {word.lower() for example in examples["train"] for word in example.words}
    tested = sorted({word.lower() for example in test for word in example.words})
    has_vector = bertwright.load_vectors(str(options.vectors)).lookup(tested).has_vector
    in_file = {word for word, has in zip(tested, has_vector, strict=True) if has}

    def group_of(words: Sequence[str]) -> str:
        new = [word.lower() for word in words if word.lower() not in trained]
        return GROUPS[0] if not new else GROUPS[1] if all(word in in_file for word in new) else GROUPS[2]

    gold = [example.tags for example in test]
    scores = score_groups([e.words for e in test], gold, [p.tags for p in predictions], group_of)
    return {"strategy": strategy, "seed": seed, **scores, "cpu_seconds": round(time.process_time() - started, 1)}


def score_groups(
    sentences: Sequence[Sequence[str]],
    gold: Sequence[Sequence[str]],
    predicted: Sequence[Sequence[str]],
    group_of: Callable[[Sequence[str]], str],
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


def main() -> None:
    """Train what the results lack, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=1500, help="sentences of train and of dev")
    parser.add_argument("--epochs", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    use_threads(1)
    rule = {name: getattr(options, name) for name in ("limit", "epochs")}
    lines = options.results.read_text(encoding="utf-8").splitlines() if options.results.exists() else []
    results = [result for result in map(json.loads, lines) if rule.items() <= result.items()]
    done = {(result["strategy"], result["seed"]) for result in results}
    for seed in range(options.seeds):
        for strategy in STRATEGIES:
            if (strategy, seed) not in done:
                result = train(strategy, seed, options) | rule | {"machine": describe_machine(1)}
                with options.results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result, ensure_ascii=False) + "\n")
                results.append(result)
                print(strategy, seed, {group: round(result[group], 2) for group in ("all", *GROUPS)}, flush=True)
    print(describe_machine(1))
    columns = ("strategy", "all", *GROUPS, f"{GROUPS[1]} − unk", "p")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    base = {result["seed"]: result[GROUPS[1]] for result in results if result["strategy"] == "unk"}
    for strategy in STRATEGIES:
        own = [result for result in results if result["strategy"] == strategy]
        values = [[result[group] for result in own] for group in ("all", *GROUPS)]
        cells = [f"{mean(v):.2f}" + (f" ± {stdev(v):.2f}" if len(v) > 1 else "") for v in values if v]
        pairs = [(result[GROUPS[1]], base[result["seed"]]) for result in own if result["seed"] in base]
        if strategy != "unk" and len(pairs) > 1:
            higher, lower = zip(*pairs, strict=True)
            cells += [f"{mean(higher) - mean(lower):+.2f}", f"{ttest_rel(higher, lower).pvalue:.3f}"]
        print(f"| {' | '.join([strategy, *cells])} |")


if __name__ == "__main__":
    main()
