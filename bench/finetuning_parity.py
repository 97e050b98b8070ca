"""The same fine-tuning steps on both sides: the same initial weights, batches, order and dropout masks.

    python bench/finetuning_parity.py DATA [--task conll2003_context] [--steps 20] [--dropout 0.1] [--dtype float32]
                                           [--dev-examples 1000] [--systems ours transformers] [--threads 2]

What `finetuning_scores.py` cannot tell apart from chance shows here: with nothing left to chance, `transformers` and
bertwright must have the same loss at every step, end with the same weights, and predict the same tags. Ours is
`bertwright finetune` as it is; the peer's side takes the sequences, their order and the dropout masks from ours, and
its model, optimizer, loss and clipping are its own.

--dev-examples also tags that number of sentences of dev with the weights of both sides, in the windows of both sides:
with document context ours begin and end with whole words, and those of the peer do not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from seqeval.metrics import f1_score
from torch import Tensor, nn
from transformers.models.bert import modeling_bert

from bertwright.base.ragged import offsets_from_lengths
from bertwright.base.seeding import TaskStream, derive_key
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings
from bertwright.interop.huggingface import start_task_model
from bertwright.kernels.cpu import configure_malloc
from bertwright.kernels.dropout import Dropout, keep_mask
from bertwright.models.packing import TokenBatch
from bertwright.systems.bert.bert_encoder import SITES_PER_LAYER
from bertwright.tasks.collation import collate, step_items
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.prediction import evaluate_examples
from bertwright.tasks.task_data import read_examples, read_splits
from bertwright.tasks.task_folder import TaskModel, load_task, save_task_folder
from bertwright.training.metrics_log import read_metrics
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from environment import describe_machine, make_parser, minilm, use_threads
from finetuning_scores import MINILM, WORKS, Run, ours, settings_of
from transformers_baseline import IGNORED, Item, TaggingPeer, pad, steps

Tags = list[list[str]]


class SharedMasks:
    """The dropout masks of bertwright for a padded batch of the peer. They depend on tokens, not on padding."""

    def __init__(self, rate: float, seed: int) -> None:
        self.rate = rate
        self.seed = seed
        self.drop = Dropout(rate, 0)
        self.tokens = torch.zeros(0, 0, dtype=torch.int64)
        """B × S, index of each token in the step without padding."""

    def start(self, step: int, lengths: Sequence[int]) -> None:
        """Set the step and the lengths of its sequences."""
        self.drop = Dropout(self.rate, derive_key(self.seed, TaskStream.DROPOUT, step))
        starts = offsets_from_lengths(np.array(lengths))
        self.tokens = pad([list(range(first, last)) for first, last in pairwise(starts)], 0)

    def apply(self, x: Tensor, rows: Tensor, site: int) -> Tensor:
        """Drop elements of x, … × C, whose rows have these indices."""
        key = self.drop.mask_key(site)
        return torch.where(keep_mask(key, rows.flatten(), x.shape[-1]).view_as(x), x * key.scale, 0.0)


class SharedDropout(nn.Module):
    """A dropout layer of the peer with the masks of one of our sites."""

    def __init__(self, masks: SharedMasks, site: int) -> None:
        super().__init__()
        self.masks = masks
        self.site = site

    def forward(self, states: Tensor) -> Tensor:
        return self.masks.apply(states, self.masks.tokens, self.site) if self.training else states


def share_dropout(model: Any, masks: SharedMasks) -> None:
    """Let a `BertForTokenClassification` draw its dropout from our masks."""
    layers, sites = model.bert.encoder.layer, {}
    model.bert.embeddings.dropout = SharedDropout(masks, 0)
    for number, layer in enumerate(layers):
        first = 1 + SITES_PER_LAYER * number
        sites[layer.attention.self] = first
        layer.attention.output.dropout = SharedDropout(masks, first + 1)
        layer.output.dropout = SharedDropout(masks, first + 2)
    model.dropout = SharedDropout(masks, 1 + SITES_PER_LAYER * len(layers))

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **_: Any
    ) -> tuple[Tensor, Tensor]:
        scores = query @ key.mT * scaling  # B A S S
        weights = (scores if mask is None else scores + mask).softmax(-1)
        if module.training:
            heads = weights.shape[1]
            rows = masks.tokens[:, None] * heads + torch.arange(heads)[:, None]  # B A S
            weights = masks.apply(weights, rows, sites[module])
        return (weights @ value).transpose(1, 2), weights

    modeling_bert.eager_attention_forward = attend  # type: ignore[assignment]


def items_of(encoded: Encoded) -> list[Item]:
    """Convert our sequences of a tagging task to items of the `transformers` baseline."""
    whole = collate(encoded, np.arange(encoded.num_items))
    assert isinstance(whole.input, TokenBatch)
    ids, rows, targets = whole.input.input_ids.numpy(), whole.positions.numpy(), np.asarray(whole.labels)
    labels = np.full(len(ids), IGNORED)
    labels[rows] = targets
    spans = [slice(first, last) for first, last in pairwise(offsets_from_lengths(encoded.item_lengths))]
    return [
        Item([ids[span].tolist()], [[0] * (span.stop - span.start)], labels[span].tolist(), int(example))
        for span, example in zip(spans, encoded.example_ids, strict=True)
    ]


def write_first_weights(settings: FinetuneSettings, folder: Path) -> None:
    """Write our initial weights of a run into a new folder, which `transformers` can read."""
    model = Path(str(settings.model))
    task, _ = read_splits(settings.task, settings.tuning.validation_fraction, None)
    first = start_task_model(model, task.head, settings.seed, settings.tuning.dropout).model
    save_task_folder(folder, TaskModel(first, task), Tokenizer.load(model))


def theirs(
    settings: FinetuneSettings, peer: TaggingPeer, items: Sequence[Item], folder: Path
) -> tuple[Iterator[float], Any]:
    """Prepare training with `transformers`; return an iterator that trains and yields losses, and the model.

    `folder` gets the initial weights.
    """
    rate = settings.tuning.dropout
    assert rate is not None
    write_first_weights(settings, folder)
    attention = "eager" if rate else "sdpa"
    model = transformers.BertForTokenClassification.from_pretrained(folder, attn_implementation=attention).train()
    masks = SharedMasks(rate, settings.seed)
    if rate:
        share_dropout(model, masks)

    def order() -> Iterator[list[int]]:
        for step in count():
            chosen = step_items(len(items), settings.batch_size, step, settings.seed).tolist()
            masks.start(step, [items[number].length for number in chosen])
            yield chosen

    return steps(peer, model, items, settings, order()), model


def predict_tags(peer: TaggingPeer, model: Any, items: Sequence[Item], examples: Sequence[Any], dtype: str) -> Tags:
    """Tag sentences with `transformers`; a word beyond the window of the peer has the tag O."""
    tags: Tags = [[] for _ in examples]
    for item, logits in zip(items, peer.outputs(model, items, dtype), strict=True):
        tags[item.example] += [peer.labels[label] for label in logits[item.tagged].argmax(-1)]
    return [[*found, *["O"] * (len(one.words) - len(found))] for found, one in zip(tags, examples, strict=True)]


def compare_on_dev(
    examples: Sequence[Any], own: TaskModel, models: Mapping[str, Any], peer: TaggingPeer, dtype: str
) -> None:
    """Print how weights tag in the windows of both sides.

    `models`: of `transformers`, by the side whose weights they have.
    """
    encoded = own.task.encode(examples, Tokenizer.load(minilm()))
    windows = {"ours": items_of(encoded), "theirs": peer.items(examples)}
    own_ids, other_ids = ([item.input_ids for item in side] for side in windows.values())
    equal = sum(ids in other_ids for ids in own_ids)
    print(f"\ndev: {len(examples):,} sentences; {equal:,} of our {len(own_ids):,} windows are also theirs\n")
    print("| weights | windows | computed by | F1 | sentences with other tags than in the first row |")
    print("|---|---|---|---:|---:|")
    found = evaluate_examples(own.model, own.task, examples, encoded).predictions
    base, gold = [list(prediction.tags) for prediction in found], [list(example.tags) for example in examples]
    rows = [("ours", "ours", "bertwright", base)]
    for weights, model in models.items():
        for side, items in windows.items():
            rows.append((weights, side, "transformers", predict_tags(peer, model, items, examples, dtype)))
    for *names, tags in rows:
        changed = sum(one != other for one, other in zip(tags, base, strict=True))
        print(f"| {' | '.join(names)} | {100 * f1_score(gold, tags):.2f} | {changed} |", flush=True)


def compare_training(own: Sequence[float], others: Iterator[float], first: Path, last: Path, model: Any) -> None:
    """Print the losses of both sides while `others` trains the peer's model, and its distance from ours at the end.

    `first` and `last`: folders of the initial weights and of ours after the last step.
    """
    print("| step | loss, bertwright | loss, transformers |")
    print("|---:|---:|---:|")
    for step, (one, other) in enumerate(zip(own, others, strict=True), 1):
        print(f"| {step} | {one:.5f} | {other:.5f} |", flush=True)
    start, end = (load_file(folder / "model.safetensors") for folder in (first, last))
    weights = model.state_dict()
    way = torch.cat([(weights[name] - start[name]).flatten() for name in start]).norm()
    apart = torch.cat([(weights[name] - end[name]).flatten() for name in start]).norm()
    print(f"\nlast weights: {apart / way:.1e} of the way that they have gone separates both sides")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--task", default="conll2003_context", choices=("conll2003", "conll2003_context"))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=2000, help="of which the steps take what they need")
    parser.add_argument("--dev-examples", type=int, help="to tag after training; unset: none")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--systems", nargs="+", choices=("ours", "transformers"), default=("ours", "transformers"))
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    use_threads(chosen.threads)
    configure_malloc()  # for both sides
    print(f"{describe_machine(chosen.threads)}; {chosen.task}, {chosen.dtype}, dropout {chosen.dropout:g}\n")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        about = WORKS[chosen.task]
        run = Run(chosen.task, "ours", chosen.seed, 1.0, 1e-4, MINILM, chosen.examples, 40, chosen.dtype)
        settings = settings_of(run, about, chosen.data, folder, chosen.threads)
        train = read_examples(settings.task.build_task(), settings.task, "train")
        task = settings.task.build_task().with_labels_of(train)
        peer = TaggingPeer(str(minilm()), task, train)
        peer.labels = [*task.label_names]  # in our order, which is that of the shared head
        items = items_of(task.encode(train, Tokenizer.load(minilm())))
        epochs = (chosen.steps - 0.5) * settings.batch_size / len(items)
        tuning = TuningSettings(head_init="random", dropout=chosen.dropout)
        settings = replace(settings, tuning=tuning, epochs=epochs, log_every=1, keep_checkpoints=True)
        ours(settings)
        last = settings.run / "checkpoints" / f"step-{chosen.steps:08d}"
        models = {"ours": transformers.BertForTokenClassification.from_pretrained(last)}
        if "transformers" in chosen.systems:
            own = [record["loss"] for record in read_metrics(settings.run) if record["kind"] == "train"]
            others, models["theirs"] = theirs(settings, peer, items, folder / "first")
            compare_training(own, others, folder / "first", last, models["theirs"])
        if chosen.dev_examples:
            trained = load_task(last)
            assert trained is not None
            dev = settings_of(
                run._replace(dev_examples=chosen.dev_examples), about, chosen.data, folder, chosen.threads
            )
            compare_on_dev(read_examples(task, dev.task, "dev"), trained, models, peer, chosen.dtype)


if __name__ == "__main__":
    main()
