"""Train re-rankers on WikiQA from all-MiniLM-L6-v2: `finetune --task reranking`, and CrossEncoder, with one recipe.

    python bench/reranker.py --results bench/results/reranker.jsonl [--contenders ours theirs] [--seeds 1] [--epochs 2]

Training reads the questions that have an answer (873 of 2,118), a pair of question and sentence at a time: batch 32,
linear warm-up over a tenth of the steps and decay, AdamW without weight decay, dropout 0.1, positives weighted by the
negatives per positive, the weights after the last step. `theirs` is the CrossEncoder of sentence-transformers with its
BinaryCrossEntropyLoss in a plain loop, because its trainer needs further packages. Scores are those of the test
questions with an answer (243), in percent; published: MAP 65 with a CNN (Yang et al. 2015).
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss

from bertwright.tasks.collation import step_items
from bertwright.tasks.ranking_examples import RankingExample
from bertwright.tasks.reranking import Reranking
from bertwright.training.optimizer_settings import linear_warmup_decay
from environment import DATA, make_parser, minilm, train_step, use_threads
from study import Record, finetune_table, run_missing

BATCH_SIZE, RATE, WARMUP = 32, 8e-5, 0.1


def read_questions(split: str, number: int | None) -> list[RankingExample]:
    """Read the questions of a split that have an answer; of them, the first `number`."""
    examples = Reranking().read(str(DATA / "wikiqa" / f"WikiQA-{split}.tsv.gz"))
    return list(islice((example for example in examples if example.is_scored), number))


def train_ours(train: list[RankingExample], test: list[RankingExample], epochs: float, seed: int) -> Record:
    table = {
        "task": {"task": "reranking"}, "model": str(minilm()), "epochs": epochs, "batch_size": BATCH_SIZE, "seed": seed,
        "optimizer": {"learning_rate": RATE, "warmup_ratio": WARMUP, "weight_decay": 0.0, "bias_correction": True},
    }  # fmt: skip
    report = finetune_table(table, {"train": train, "test": test})
    return {name: round(100 * score, 2) for name, score in report["scores"]["test"].items()}


def train_theirs(train: list[RankingExample], test: list[RankingExample], epochs: float, seed: int) -> Record:
    torch.manual_seed(seed)
    task = Reranking().with_labels_of(train)
    model = CrossEncoder(str(minilm()), num_labels=1, device="cpu")
    loss = BinaryCrossEntropyLoss(model, pos_weight=torch.tensor(task.positive_weight))
    rows = [(one.query, *pair) for one in train for pair in zip(one.texts, one.known_grades, strict=True)]
    steps = round(epochs * len(rows) / BATCH_SIZE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    model.train()
    for step in range(steps):
        rate = linear_warmup_decay(step, peak=RATE, warmup=int(WARMUP * steps), total=steps)
        optimizer.param_groups[0]["lr"] = rate
        queries, texts, grades = zip(*(rows[n] for n in step_items(len(rows), BATCH_SIZE, step, seed)), strict=True)
        inputs = [list(queries), list(texts)], torch.tensor(grades, dtype=torch.float32)
        train_step(model, partial(loss, *inputs), optimizer, False)
    model.eval()
    scores = model.predict([(one.query, text) for one in test for text in one.texts], show_progress_bar=False)
    ends = torch.tensor([len(one.texts) for one in test]).cumsum(0)[:-1]
    predictions = [tuple(part.tolist()) for part in torch.from_numpy(scores).tensor_split(ends)]
    return {name: round(100 * score, 2) for name, score in task.score(test, predictions).items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--contenders", nargs="+", choices=("ours", "theirs"), default=["ours", "theirs"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=2.0)
    parser.add_argument("--questions", type=int, help="training questions; by default all that have an answer")
    options = parser.parse_args()
    use_threads(1)
    train, test = read_questions("train", options.questions), read_questions("test", None)
    contenders = {"ours": train_ours, "theirs": train_theirs}

    def execute(run: Record) -> Record:
        return contenders[run["system"]](train, test, run["epochs"], run["seed"])

    fields = {"task": "wikiqa", "questions": len(train), "epochs": options.epochs}
    seeds = range(options.seeds)
    run_missing(
        options.results,
        [{"system": name, "seed": seed} | fields for seed in seeds for name in options.contenders],
        execute,
    )


if __name__ == "__main__":
    main()
