"""The same pre-training on both sides: first weights, batches, masked tokens and dropout masks are equal.

    OMP_WAIT_POLICY=PASSIVE python bench/pretraining_parity.py DATA --results FILE [--sizes tiny mini] [--every 50]

DATA has the folder corpora/english_books. The plan is bench/plans/pretraining_parity.md; rows come as the steps do.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from bertwright.base.reporter import SILENT
from bertwright.objectives.data_settings import DataSettings
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.pretraining.run import PretrainRun, open_run
from bertwright.pretraining.settings import LongPhase, ModelSettings, PretrainSettings
from bertwright.training.context import execution_context
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.loop import evaluation_mode
from bertwright.training.optimizer_settings import OptimizerSettings
from environment import append_result, describe_machine, make_parser, use_threads
from parity import Inputs, Padded, SharedMasks, run_lockstep

STEPS = {"tiny": 2000, "mini": 500}
BOOKS, VOCABULARY_SIZE, BATCH, LENGTH, RATE, DROPOUT = 10, 4000, 8, 64, 5e-4, 0.1
HELD_OUT = 256  # sequences whose predictions are compared


def prepare(data: Path, work: Path) -> Path:
    """Learn a vocabulary from novels and write their token store; return its folder."""
    books = [str(book) for book in sorted((data / "corpora/english_books").glob("*.txt"))[:BOOKS]]
    command = [sys.executable, "-m", "bertwright"]
    vocabulary, store = work / "vocabulary", work / "store"
    learned = ["vocabulary", *books, "--size", str(VOCABULARY_SIZE), "--output", str(vocabulary)]
    prepared = ["prepare", *books, "--vocabulary", str(vocabulary), "--store", str(store), "--held-out", "0.05"]
    for arguments in (learned, prepared):
        subprocess.run([*command, *arguments], check=True, stdout=subprocess.DEVNULL)
    return store


def settings_of(size: Any, store: Path, run: Path) -> PretrainSettings:
    return PretrainSettings(
        run=run, store=store, steps=STEPS[size], micro_batch_size=BATCH,
        model=ModelSettings(size=size, max_positions=LENGTH, hidden_dropout=DROPOUT, attention_dropout=DROPOUT),
        data=DataSettings(max_length=LENGTH, batch_size=BATCH), long=LongPhase(0.0),
        optimizer=OptimizerSettings(learning_rate=RATE, bias_correction=True),
        device=DeviceSettings("cpu", "float32", 1),
    )  # fmt: skip


def convert(batch: LanguageModelBatch, padded: Padded) -> Inputs:
    """Return the peer's input and labels."""
    labels = padded.labels(batch.mlm_positions, batch.mlm_labels)
    return padded.inputs(batch.input) | {"labels": labels, "next_sentence_label": batch.nsp_labels}


def make_model(run: PretrainRun) -> Any:
    """Return a `BertForPreTraining` of the run's shape."""
    ours: Any = run.model.config
    config = transformers.BertConfig(
        vocab_size=ours.vocab_size, hidden_size=ours.hidden_size, num_hidden_layers=ours.num_layers,
        num_attention_heads=ours.num_heads, intermediate_size=ours.intermediate_size,
        max_position_embeddings=ours.max_positions, hidden_dropout_prob=DROPOUT, attention_probs_dropout_prob=DROPOUT,
        layer_norm_eps=ours.layer_norm_eps,
    )  # fmt: skip
    return transformers.AutoModelForPreTraining.from_config(config, attn_implementation="eager")


def peer_loss(model: Any, inputs: Inputs) -> Tensor:
    loss: Tensor = model(**inputs).loss
    return loss


@torch.no_grad()
def compare_predictions(run: PretrainRun, peer: Any) -> dict[str, Any]:
    """Return the number of held-out predictions of both kinds and the shares that are equal."""
    equal, count = torch.zeros(2), torch.zeros(2)
    with evaluation_mode(run.model), evaluation_mode(peer):
        for batch in run.held_out[0].validation_batches(HELD_OUT):
            padded = Padded.of(batch.packing)
            ours: Any = run.model(batch.input, batch.mlm_positions)
            theirs = peer(**padded.inputs(batch.input))
            pairs = (
                (ours.tokens, theirs.prediction_logits[padded.real][batch.mlm_positions]),
                (
                    ours.next_sentence,
                    theirs.seq_relationship_logits,
                ),
            )
            equal += torch.tensor([float((own.argmax(-1) == other.argmax(-1)).sum()) for own, other in pairs])
            count += torch.tensor([float(len(own)) for own, _ in pairs])
    return {"predictions": count.tolist(), "equal_predictions": (equal / count).tolist()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--sizes", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--every", type=int, default=50, help="steps between two rows")
    chosen = parser.parse_args()
    use_threads(1)
    print(describe_machine(1), flush=True)
    with tempfile.TemporaryDirectory() as work, execution_context(DeviceSettings("cpu", "float32", 1)) as context:
        store = prepare(chosen.data, Path(work))
        for size in chosen.sizes:
            run = open_run(settings_of(size, store, Path(work, size)), context, SILENT)

            def report(row: dict[str, Any], size: str = size) -> None:
                append_result(chosen.results, {"size": size} | row, 1)
                print(row, flush=True)

            batches = (micro_batches[0] for micro_batches in run.batches(0))
            masks, spec = SharedMasks(DROPOUT), run.spec()
            new_model = partial(make_model, run)
            peer = run_lockstep(spec, batches, convert, new_model, peer_loss, masks, chosen.every, report)
            report({"step": STEPS[size]} | compare_predictions(run, peer.model))


if __name__ == "__main__":
    main()
