"""Gain from pre-training: a pre-trained model and the same network without pre-training, fine-tuned on four tasks.

    python bench/pretraining_gain.py DATA --english RUN --korean RUN --results FILE [--seeds 3] [--threads 2]
    python bench/pretraining_gain.py DATA --english RUN --korean RUN --results FILE --table

--english is fine-tuned on SST-2, MRPC and CoNLL-2003, --korean on NSMC; either may be left out. A model is a run of
`bertwright pretrain` or a model folder. The untrained net has its configuration and its vocabulary, and the weights
that pre-training starts from, of the seed of each run. The recipe is that of section A.3 with a higher rate, as small
nets take it. SST-2 and NSMC learn from --examples of their examples; NSMC sets a twentieth of them aside to choose the
best epoch. Each run appends a line to FILE; runs that FILE already contains are skipped. --table shows the runs that
the other options name.

"Most frequent answer" is what one reaches without reading: one label for all, no entity at all.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.huggingface import save_model
from bertwright.interop.model_files import model_folder
from bertwright.metrics.seed_summary import summarize_seeds
from bertwright.pretraining.settings import ModelSettings
from bertwright.systems.bert.bert_base import new_bert
from bertwright.tasks.classification import LabelPrediction
from bertwright.tasks.tagging import Tagging, TagPrediction
from bertwright.tasks.task_data import read_examples
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from environment import load_bert_config
from finetuning_scores import WORKS as SCORE_WORKS
from finetuning_scores import (
    Run,
    Scores,
    System,
    Work,
    find_records,
    make_score_parser,
    ours,
    percent,
    run_missing,
    settings_of,
)
from study import print_heading, print_row

WORKS = {
    "sst2": Work("glue/SST-2"),
    "mrpc": Work("glue/MRPC", test="test.tsv", shown=("f1",)),
    "conll2003": SCORE_WORKS["conll2003"],
    "nsmc": Work("nsmc", "ratings_train.txt", None, "ratings_test.txt", validation_fraction=0.05),
}
LARGE = ("sst2", "nsmc")  # --examples limits these


def finetune_untrained(settings: FinetuneSettings) -> Scores:
    """Fine-tune from the initial weights of pre-training."""
    assert settings.model is not None
    source, folder = model_folder(settings.model), settings.run.parent / "untrained"
    save_model(folder, new_bert(ModelSettings(), load_bert_config(source), settings.seed), Tokenizer.load(source))
    return ours(replace(settings, model=str(folder)))


SYSTEMS: dict[str, System] = {"untrained": finetune_untrained, "pre-trained": ours}


def runs(chosen: argparse.Namespace) -> Iterator[Run]:
    """List the requested runs, with both networks interleaved."""
    for task in chosen.tasks:
        model = chosen.korean if task == "nsmc" else chosen.english
        examples = chosen.examples if task in LARGE else chosen.all_examples
        for seed in range(chosen.seeds if model else 0):
            for system in SYSTEMS:
                given = chosen.epochs, chosen.rate, model, examples, chosen.dev_examples, chosen.dtype
                yield Run(task, system, seed, *given)


def evaluate_majority(run: Run, data: Path) -> dict[str, float]:
    """Score the most frequent answer on the split that the table shows."""
    settings = settings_of(run._replace(examples=None, dev_examples=None), WORKS[run.task], data, Path(), 1)
    split = "test" if settings.task.test else "dev"
    task = settings.task.build_task()
    train, examples = (read_examples(task, settings.task, name) for name in ("train", split))
    task = task.with_labels_of(train)
    if isinstance(task, Tagging):
        return task.score(examples, [TagPrediction(one.words, ("O",) * len(one.words), (), ()) for one in examples])
    label = Counter(example.label for example in train).most_common(1)[0][0]
    return task.score(examples, [LabelPrediction(label, {})] * len(examples))


def table(chosen: argparse.Namespace) -> None:
    """Print mean ± standard deviation of both networks, from the results so far."""
    found = find_records(runs(chosen), chosen)
    print_heading(["task", "examples", "split, score", "most frequent answer", "untrained", "pre-trained", "gain"])
    for task, about in WORKS.items():
        records = [record for record in found if record["task"] == task]
        sides = [[record["scores"] for record in records if record["system"] == system] for system in SYSTEMS]
        if not all(sides):
            continue
        split, name = "test" if about.test else "dev", about.shown[0]
        before, after = (summarize_seeds([scores[split][name] for scores in side]) for side in sides)
        run = Run(**{field: records[0][field] for field in Run._fields})
        number = "all" if run.examples is None else f"{run.examples:,}"
        guess = f"{100 * evaluate_majority(run, chosen.data)[name]:.2f}"
        gain = f"{100 * (after.mean - before.mean):+.2f}"
        print_row([task, number, f"{split}, {name}", guess, percent(before), percent(after), gain])


def main() -> None:
    parser = make_score_parser(__doc__, WORKS, seeds=3, rate=1e-4)
    parser.add_argument("--english", help="pre-trained run or model folder")
    parser.add_argument("--korean", help="pre-trained run or model folder")
    parser.add_argument("--examples", type=int, default=20_000, help="training examples of SST-2 and NSMC")
    parser.add_argument("--all-examples", type=int, help="training examples of the other tasks, to try things out")
    chosen = parser.parse_args()
    if chosen.table:
        table(chosen)
    else:
        run_missing(runs(chosen), WORKS, SYSTEMS, chosen)


if __name__ == "__main__":
    main()
