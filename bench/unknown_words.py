"""The strategies for unknown words, scored on entities or answers that have one (Ma & Hovy 2016, table 9).

    python bench/unknown_words.py --data shared/data/conll2003 --vectors runs/vectors --results FILE.jsonl
    python bench/unknown_words.py --task squad --data shared/data/squad --limit 3000 --epochs 4 --seeds 2 …

conll2003: a BiLSTM-CRF; squad: a small reader of questions, BCN with 64 states per direction. Without characters except
in `char`. --limit training examples, as many of dev (squad: 1,000) to choose the epoch; scored on the whole test set
(squad, which has none: on other dev questions, --tested of them). A word needs two occurrences in training for a vector
of its own, so that the shared ones are trained; vectors start from the file, and are trained unless the row says
frozen. Groups of entities and answers: all words in the training examples; a word that they lack and the file has; a
word that both lack. A predicted entity belongs to the group of its own words, a predicted answer to the group of the
right one. Results are appended as they come, and runs that the file has are not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from scipy.stats import ttest_rel

import bertwright
from bertwright.base.reporter import MUTE
from bertwright.base.settings import from_table
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.inference.bert import Bert
from bertwright.metrics import answer_scores
from bertwright.tables.tag_schemes import find_spans
from bertwright.tasks.splits import sample_examples
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_data import read_examples
from bertwright.vocabulary.word_tokenizer import WORD
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


MODELS: dict[str, dict[str, Any]] = {
    "conll2003": {"architecture": "bilstm-crf", "batch_size": 16, "words": {"lstm_size": 100}},
    "squad": {"architecture": "bcn", "batch_size": 32, "words": {"lstm_size": 64}},
}
CHOSEN_BY = 1_000  # questions of dev that choose the epoch


def train(strategy: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one model; return its F1 by group."""
    started = time.process_time()
    words = {"char_model": "none", "min_word_count": 2, "vectors": str(options.vectors), "freeze_vectors": False}
    own = MODELS[options.task]
    with TemporaryDirectory() as folder:
        table = own | {
            "run": f"{folder}/run",
            "task": {"task": options.task, "data": str(options.data)},
            "words": words | own["words"] | STRATEGIES[strategy],
            "epochs": options.epochs,
            "seed": seed,
            "device": {"dtype": "float32", "threads": 1},
        }
        settings = from_table(FinetuneSettings, table, "table")
        task = settings.task.build_task()
        train_rows, dev = (read_examples(task, settings.task, split) for split in ("train", "dev"))
        if options.task == "squad":
            dev = list(sample_examples(dev, CHOSEN_BY + options.tested))
            dev, test = dev[:CHOSEN_BY], dev[CHOSEN_BY:]
        else:
            dev, test = list(sample_examples(dev, options.limit)), list(read_examples(task, settings.task, "test"))
        examples = {"train": list(sample_examples(train_rows, options.limit)), "dev": dev}
        model = bertwright.load(finetune(settings, MUTE, examples).parent)
        group_of = make_groups(words_of(task, examples["train"]), words_of(task, test), options.vectors)
        score = score_tags if task.reads_words else score_answers
        scores = score(model, test, group_of)
    return {"strategy": strategy, "seed": seed, **scores, "cpu_seconds": round(time.process_time() - started, 1)}


def make_groups(trained: Iterable[str], tested: Iterable[str], vectors: Path) -> Callable[[Sequence[str]], str]:
    """Return a function from words of the test examples to their group; `trained`, `tested`: all words of both."""
    known = {*trained}
    ordered = sorted({*tested} - known)
    has_vector = bertwright.load_vectors(str(vectors)).lookup(ordered).has_vector
    in_file = {word for word, has in zip(ordered, has_vector, strict=True) if has}

    def group_of(words: Sequence[str]) -> str:
        unknown = [word for word in words if word not in known]
        return GROUPS[0] if not unknown else GROUPS[1] if in_file.issuperset(unknown) else GROUPS[2]

    return group_of


def words_of(task: AnyTask, examples: Sequence[Any]) -> Iterator[str]:
    """Yield all words of examples in lower case, as the models look them up."""
    for text in task.texts(examples):
        yield from [text.lower()] if task.reads_words else WORD.findall(text.lower())


def score_answers(model: Bert, test: Sequence[Any], group_of: Callable[[Sequence[str]], str]) -> dict[str, float]:
    """Return the mean F1 of answers in percent, over all questions and over each group of right answers."""
    answers = model.answer([example.question for example in test], [example.context for example in test])
    scores: dict[str, list[float]] = {}
    for example, answer in zip(test, answers, strict=True):
        f1 = 100 * answer_scores.scores([[gold.text for gold in example.answers]], [answer.text])["f1"]
        for group in ("all", group_of(WORD.findall(example.answers[0].text.lower()))):
            scores.setdefault(group, []).append(f1)
    return {group: mean(values) for group, values in scores.items()}


def score_tags(model: Bert, test: Sequence[Any], group_of: Callable[[Sequence[str]], str]) -> dict[str, float]:
    """Return span F1 in percent over all entities and over each group."""
    predictions = model.tag([example.words for example in test])
    sentences = [[word.lower() for word in example.words] for example in test]
    return score_groups(
        sentences, [example.tags for example in test], [prediction.tags for prediction in predictions], group_of
    )


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
    parser.add_argument("--task", choices=MODELS, default="conll2003")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=1500, help="training examples")
    parser.add_argument("--tested", type=int, default=3000, help="questions of SQuAD's dev set to score")
    parser.add_argument("--epochs", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    use_threads(1)
    rule = {name: getattr(options, name) for name in ("task", "limit", "epochs")}
    lines = options.results.read_text(encoding="utf-8").splitlines() if options.results.exists() else []
    results = [result for result in map(json.loads, lines) if rule.items() <= ({"task": "conll2003"} | result).items()]
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
