"""ULMFiT: perplexity beside an AWD-LSTM in plain PyTorch, and TREC-6 with and without pre-training.

    python bench/ulmfit.py perplexity STORE --results FILE.jsonl [--steps 200] [--size tiny] [--dropout 0.15]
    python bench/ulmfit.py trec GENERAL --data shared/data/trec --work WORK --results FILE.jsonl [--seeds 3]
                           [--labels all] [--epochs 6] [--target-epochs 6] [--validate]

`perplexity` trains both models from the same first weights on the same text, with the same rates, dropouts and
penalties; only the dropout masks differ, and with --dropout 0 nothing does. `trec` takes a run of
`pretrain --architecture ulmfit`, fine-tunes it on the questions of TREC's training set (target LM), and trains
classifiers on 50, 200, 1,000 and all labels; the error is measured on the whole test set. The settings below are the
same for all ways; the weights of the last step count; the labels of a seed are the first ones of its shuffle, and every
label has an example. `--validate` leaves out 500 questions of the training set and measures the error on these: rules
are chosen so. Results are appended as they come, and what the file has is not run again; seeds come one after the
other, so that an early stop leaves whole rows. WORK is for one general model and one number of target epochs.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.base.files import read_json
from bertwright.base.reporter import MUTE
from bertwright.base.settings import from_table
from bertwright.corpus.documents import CorpusSettings
from bertwright.metrics.seed_summary import summarize_seeds
from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining.evaluation import evaluate
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import PretrainSettings
from bertwright.systems.ulmfit.awd_lstm import AwdLstmConfig, AwdLstmLanguageModel
from bertwright.systems.ulmfit.ulmfit_objective import RecurrentLanguageModel, StreamBatch
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.training.loop import train_steps
from bertwright.training.optimizer import Optimizer, OptimizerSettings
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings, learn_vocabulary
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from environment import make_parser, use_threads
from study import CPU, finetune_table, print_heading, print_row, read_splits, read_trec, run_missing

OBJECTIVE = RecurrentLanguageModel()
LM_RATE, EVALUATED = 0.012, 300
TARGET_RATE, VALIDATED = 0.004, 500
LABELS: dict[str, tuple[int, int, float]] = {  # labels, batch size, epochs
    "50": (50, 16, 40.0),
    "200": (200, 16, 30.0),
    "1000": (1000, 32, 12.0),
    "all": (5452, 64, 6.0),
}
ALL_AT_ONCE = {"unfreeze": "all", "layerwise_lr_decay": 1.0}
LINEAR = {"schedule": "linear"}
WAYS: dict[str, dict[str, Any]] = {  # further settings of fine-tuning; the last rows are those of the paper's table 7
    "no pre-training": {"tuning": ALL_AT_ONCE | {"from_scratch": True}},
    "pre-trained, no target language model": {},
    "pre-trained, last layer only": {"tuning": ALL_AT_ONCE | {"freeze_layers": 2}},
    "pre-trained, all layers at one rate": {"tuning": ALL_AT_ONCE},
    "pre-trained, all layers at one linear rate": {"tuning": ALL_AT_ONCE, "optimizer": LINEAR},
    "pre-trained, discriminative rates": {"tuning": {"unfreeze": "all"}, "optimizer": LINEAR},
    "pre-trained, gradual unfreezing": {"tuning": {"layerwise_lr_decay": 1.0}, "optimizer": LINEAR},
    "pre-trained, gradual unfreezing + discriminative rates": {"optimizer": LINEAR},
    "pre-trained, gradual unfreezing + slanted triangles": {"tuning": {"layerwise_lr_decay": 1.0}},
    "pre-trained, all tricks": {},
}
FROM_GENERAL = "pre-trained, no target language model"


class PlainAwdLstm(nn.Module):
    """AWD-LSTM of `nn.LSTM` layers on B × N tokens."""

    def __init__(self, source: AwdLstmLanguageModel) -> None:
        super().__init__()
        self.config = source.config
        self.word = nn.Parameter(source.encoder.embeddings.word.weight.detach().clone())
        self.bias = nn.Parameter(source.softmax_bias.detach().clone())
        sizes = self.config.layer_sizes()
        self.lstms = nn.ModuleList(nn.LSTM(size, state, batch_first=True) for size, state in sizes)
        for own, given in zip(self.lstms, source.encoder.layers, strict=True):
            own.load_state_dict(given.state_dict())

    def forward(self, ids: Tensor, hidden: Sequence[Any]) -> tuple[Tensor, Tensor, list[Any]]:
        """Return the last states after and before dropout, B × N × H, and the layers' hidden states."""
        config, keep = self.config, self.training
        rows = F.dropout(torch.ones(len(self.word), 1), config.embedding_dropout, keep)
        states, last = locked(F.embedding(ids, self.word * rows), config.input_dropout, keep), []
        for number, (lstm, before) in enumerate(zip(self.lstms, hidden, strict=True)):
            dropped = F.dropout(lstm.get_parameter("weight_hh_l0"), config.weight_dropout, keep)
            raw, after = torch.func.functional_call(lstm, {"weight_hh_l0": dropped}, (states, before))
            last.append(tuple(values.detach() for values in after))
            is_last = number + 1 == len(self.lstms)
            states = locked(raw, config.output_dropout if is_last else config.hidden_dropout, keep)
        return states, raw, last


def locked(states: Tensor, rate: float, is_training: bool) -> Tensor:
    return states * F.dropout(torch.ones(len(states), 1, states.shape[2]), rate, is_training)


def train_plain(
    model: PlainAwdLstm, settings: OptimizerSettings, steps: Iterator[list[StreamBatch]], number: int
) -> None:
    """Train with PyTorch's AdamW and the same schedule."""
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(settings.beta1, settings.beta2), eps=settings.eps, weight_decay=0.0
    )
    schedule, hidden = settings.make_schedule(number), zero_state(model, 0)
    for step, (batch,) in enumerate(steps):
        ids, labels = (values.view(batch.num_streams, -1) for values in (batch.input.input_ids, batch.labels))
        hidden = zero_state(model, len(ids)) if batch.is_start else hidden
        states, raw, hidden = model(ids, hidden)
        loss = F.cross_entropy((states @ model.word.T + model.bias).flatten(0, 1), labels.flatten())
        loss = loss + 2 * states.square().mean() + raw.diff(dim=1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        optimizer.param_groups[0]["lr"] = schedule(step)
        optimizer.step()


def zero_state(model: PlainAwdLstm, streams: int) -> list[Any]:
    return [tuple(torch.zeros(2, 1, streams, state)) for _, state in model.config.layer_sizes()]


@torch.no_grad()
def evaluate_plain(model: PlainAwdLstm, batches: Iterator[StreamBatch]) -> float:
    """Compute the perplexity of held-out text."""
    total, count, hidden = 0.0, 0, zero_state(model.eval(), 0)
    for batch in batches:
        ids, labels = (values.view(batch.num_streams, -1) for values in (batch.input.input_ids, batch.labels))
        hidden = zero_state(model, len(ids)) if batch.is_start else hidden
        states, _, hidden = model(ids, hidden)
        total += float(
            F.cross_entropy((states @ model.word.T + model.bias).flatten(0, 1), labels.flatten(), reduction="sum")
        )
        count += labels.numel()
    return math.exp(total / count)


def compare_perplexities(chosen: argparse.Namespace) -> None:
    """Train both models, unless the file of results has them."""
    run = {"kind": "perplexity"} | {name: getattr(chosen, name) for name in ("size", "steps", "dropout")}
    print(*run_missing(chosen.results, [run], lambda _: train_both(chosen)))


def train_both(chosen: argparse.Namespace) -> dict[str, Any]:
    """Train both models; return their perplexities on held-out text."""
    tokenizer = open_tokenizer(chosen.store / "tokenizer")
    settings = DataSettings(max_length=70, batch_size=32, objective="recurrent")
    train, held_out = (
        OBJECTIVE.open_examples(chosen.store / part, tokenizer, [settings])[0] for part in ("train", "held_out")
    )
    table = dict(OBJECTIVE.defaults["optimizer"]) | {"learning_rate": LM_RATE}
    optimizer = OptimizerSettings(**table)
    config = AwdLstmConfig.from_size(chosen.size, tokenizer.vocab_size).with_dropout(chosen.dropout)
    own = AwdLstmLanguageModel(config, seed=0).train()
    torch.manual_seed(0)
    plain = PlainAwdLstm(own).train()

    def steps() -> Iterator[list[StreamBatch]]:
        return (train.batches_for_step(step) for step in range(chosen.steps))

    started = time.process_time()
    for _ in train_steps(
        partial(OBJECTIVE.loss, own),
        steps(),
        Optimizer(dict(own.named_parameters()), optimizer),
        optimizer.make_schedule(chosen.steps),
    ):
        pass
    middle = time.process_time()
    train_plain(plain, optimizer, steps(), chosen.steps)
    seconds = [round(middle - started, 1), round(time.process_time() - middle, 1)]
    perplexity = evaluate(OBJECTIVE, own, held_out.validation_batches(EVALUATED))["perplexity"]
    expected = evaluate_plain(plain, held_out.validation_batches(EVALUATED))
    return {"bertwright": perplexity, "plain": expected, "ratio": perplexity / expected, "training_seconds": seconds}


def prepare_texts(data: Path, work: Path) -> None:
    """Write TREC as tables of texts and coarse labels, and the training questions as text, one document each."""
    work.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        rows = read_trec(data / f"TREC.{split}")
        table = [f"{text}\t{label.split(':')[0]}" for text, label in rows]
        (work / f"{split}.tsv").write_text("\n".join(["text\tlabel", *table]) + "\n", encoding="utf-8")
        (work / f"{split}.txt").write_text("\n\n".join(text for text, _ in rows) + "\n", encoding="utf-8")


def tune_language_model(chosen: argparse.Namespace) -> Path:
    """Fine-tune the general language model on the training questions; return its run."""
    work: Path = chosen.work
    run, store, vocabulary = work / "target", work / "store", work / "vocabulary"
    if (run / "report.json").exists():
        return run
    prepare_texts(chosen.data, chosen.work)
    corpus = CorpusSettings((str(chosen.work / "train.txt"),))
    learned = VocabularySettings(algorithm="lowercase-words", min_frequency=2)
    learn_vocabulary(LearnSettings(corpus, vocabulary, learned), MUTE)
    build(store, corpus, open_tokenizer(vocabulary), BuildSettings(held_out=0.05, workers=1))
    steps = chosen.target_epochs * 60_000 // (32 * 70)
    table = {
        "run": str(run),
        "store": str(store),
        "steps": steps,
        "eval_every": steps,
        "layerwise_lr_decay": 0.385,
        "model": {"architecture": "ulmfit", "init": str(chosen.general)},
        "data": {"batch_size": 32},
        "optimizer": {"learning_rate": TARGET_RATE},
        "device": CPU,
    }
    pretrain(from_table(PretrainSettings, table, "target"), MUTE)
    report = read_json(run / "report.json")
    perplexities = [report[name]["perplexity"] for name in ("held_out_before", "held_out_after")]
    run_missing(chosen.results, [{"kind": "target", "perplexity": perplexities}], lambda _: {})  # appends the figures
    return run


def classify(run: dict[str, Any], chosen: argparse.Namespace, model: Path) -> dict[str, Any]:
    """Train a classifier; return its error in percent."""
    number, batch_size, _ = LABELS[run["labels"]]
    task = {"task": "classification"} | {split: [str(chosen.work / f"{split}.tsv")] for split in ("train", "test")}
    examples = read_splits(task, ("train", "test"))
    if chosen.validate:
        random.Random(VALIDATED).shuffle(examples["train"])
        examples |= {"test": examples["train"][:VALIDATED], "train": examples["train"][VALIDATED:]}
    random.Random(run["seed"]).shuffle(examples["train"])
    examples["train"] = with_all_labels(examples["train"], number)
    table = {
        "model": str(chosen.general if run["way"] == FROM_GENERAL else model),
        "task": task,
        "epochs": run["epochs"],
        "batch_size": batch_size,
        "seed": run["seed"],
    }
    table |= WAYS[run["way"]]
    report = finetune_table(table, examples)
    return {"error": 100 * (1 - report["scores"]["test"]["accuracy"])}


def describe_rule(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return what all rows of a table share: the perplexity of the general model, and what is scored."""
    report = read_json(chosen.general / "report.json")
    return {
        "general_perplexity": round(report["held_out_after"]["perplexity"], 1),
        "target_epochs": chosen.target_epochs,
        "scored": "validation" if chosen.validate else "test",
        "triangles": "per stage",  # rows with "one" are older: one triangle over all stages of unfreezing
    }


def with_all_labels(examples: list[Any], number: int) -> list[Any]:
    """Return the first examples; a label that they lack replaces the last of them by its own first example."""
    chosen = examples[:number]
    firsts = {example.label: example for example in reversed(examples)}
    missing = [firsts[label] for label in sorted(firsts.keys() - {example.label for example in chosen})]
    return chosen[: number - len(missing)] + missing


def compare_classifiers(chosen: argparse.Namespace) -> None:
    """Run what the results lack, then print the errors."""
    model = tune_language_model(chosen)
    rule = describe_rule(chosen)
    runs = [
        {"kind": "trec", "way": way, "labels": labels, "seed": seed, "epochs": chosen.epochs or LABELS[labels][2]}
        | rule
        for seed in range(chosen.seeds)
        for labels in chosen.labels
        for way in chosen.ways
    ]
    records = run_missing(chosen.results, runs, lambda run: classify(run, chosen, model))
    print(rule)
    answers = Counter(
        line.split("\t")[1] for line in (chosen.work / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    )
    print_heading(["TREC-6, error on test (%)", *(f"{labels} labels" for labels in chosen.labels)])
    floor = 100 * (1 - answers.most_common(1)[0][1] / answers.total())
    print_row(["floor: the most frequent answer of the test set", *[f"{floor:.1f}"] * len(chosen.labels)])
    for way in WAYS:
        cells = []
        for labels in chosen.labels:
            errors = [record["error"] for record in records if (record["way"], record["labels"]) == (way, labels)]
            cells.append(str(summarize_seeds([error / 100 for error in errors])) if errors else "")
        print_row([way, *cells])


def main() -> None:
    parser = make_parser(__doc__)
    kinds = parser.add_subparsers(required=True)
    perplexity, trec = kinds.add_parser("perplexity"), kinds.add_parser("trec")
    perplexity.add_argument("store", type=Path)
    perplexity.add_argument("--steps", type=int, default=200)
    perplexity.add_argument("--size", default="tiny")
    perplexity.add_argument("--dropout", type=float, default=0.15)
    perplexity.set_defaults(run=compare_perplexities)
    trec.add_argument("general", type=Path)
    trec.add_argument("--data", type=Path, required=True)
    trec.add_argument("--work", type=Path, required=True)
    trec.add_argument("--seeds", type=int, default=3)
    trec.add_argument("--labels", nargs="+", default=[*LABELS], choices=[*LABELS])
    trec.add_argument("--ways", nargs="+", default=[*WAYS], choices=[*WAYS])
    trec.add_argument("--epochs", type=float, help="passes over the labels; by default, as in LABELS")
    trec.add_argument("--target-epochs", type=int, default=6, help="passes of the language model over the questions")
    trec.add_argument("--validate", action="store_true", help="score 500 training questions instead of the test set")
    trec.set_defaults(run=compare_classifiers)
    for kind in (perplexity, trec):
        kind.add_argument("--results", type=Path, required=True)
    chosen = parser.parse_args()
    use_threads(1)
    chosen.run(chosen)


if __name__ == "__main__":
    main()
