"""Time a step of fine-tuning of RoBERTa against BERT of the same shape, and with a vocabulary of 250,002.

    python bench/roberta.py --results bench/results/roberta.json [--rounds 7]

L6 H384 (half the layers of multilingual MiniLM), 32 texts of 30 tokens, one thread. The contenders take turns; a time
is the CPU time of the process, because the machine is shared. The last rows are the update of the word table alone: its
rows without a gradient so far only decay.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bertwright.base.files import write_json
from environment import commit, describe_machine, make_parser, take_turns, use_threads

LARGE, SMALL = 250_002, 30_522
SEQUENCES, LENGTH = 32, 30
SHAPE: dict[str, Any] = {"hidden_size": 384, "num_layers": 6, "num_heads": 12, "intermediate_size": 1536}


def make_step(name: str, vocab_size: int, weight_decay: float = 0.01) -> Callable[[], object]:
    """Return a step of fine-tuning with random tokens."""
    import torch

    from bertwright.models.head_spec import HeadSpec
    from bertwright.models.heads import TaskBatch
    from bertwright.models.packing import from_flat
    from bertwright.models.task_model import EncoderForTask
    from bertwright.systems.bert.bert_config import BertConfig
    from bertwright.systems.bert.bert_encoder import BertEncoder
    from bertwright.systems.roberta.roberta import RobertaConfig, RobertaEncoder
    from bertwright.training.optimizer import make_optimizer
    from bertwright.training.optimizer_settings import OptimizerSettings

    encoder = (
        RobertaEncoder(RobertaConfig(vocab_size, **SHAPE))
        if name == "roberta"
        else BertEncoder(BertConfig(vocab_size, **SHAPE))
    )
    encoder.sparse_gradients = True
    model = EncoderForTask(encoder, HeadSpec("sequence", 2)).train()
    optimizer = make_optimizer(model, OptimizerSettings(weight_decay=weight_decay))
    rng, lengths = np.random.default_rng(0), np.full(SEQUENCES, LENGTH)
    labels = torch.from_numpy(rng.integers(0, 2, SEQUENCES))

    def step() -> None:
        ids = rng.integers(5, 30_000, SEQUENCES * LENGTH)
        batch = from_flat(ids, None, lengths).with_dropout(optimizer.steps + 1)
        task = TaskBatch(batch, batch.packing.first_positions, np.ones(SEQUENCES, np.int64), labels, SEQUENCES)
        torch.nn.functional.cross_entropy(model(task), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step(3e-5, optimizer.gradient_norm())

    return step


def make_update(vocab_size: int, weight_decay: float) -> Callable[[], object]:
    """Return an update of a word table of which 1,000 rows have a gradient."""
    import torch

    from bertwright.training.optimizer import Optimizer
    from bertwright.training.optimizer_settings import OptimizerSettings

    table = torch.nn.Parameter(torch.randn(vocab_size, SHAPE["hidden_size"]))
    optimizer = Optimizer({"word": table}, OptimizerSettings(weight_decay=weight_decay))
    rows = torch.randperm(vocab_size)[:1000].sort().values[None]

    def update() -> None:
        values = torch.randn(1000, SHAPE["hidden_size"])
        table.grad = torch.sparse_coo_tensor(rows, values, table.shape, is_coalesced=True)
        optimizer.step(3e-5, 1.0)

    return update


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    use_threads(1)
    contenders = {
        "step of BERT, vocabulary 30,522": make_step("bert", SMALL),
        "step of RoBERTa, vocabulary 30,522": make_step("roberta", SMALL),
        "step of RoBERTa, vocabulary 250,002": make_step("roberta", LARGE),
        "step of RoBERTa, vocabulary 250,002, no weight decay": make_step("roberta", LARGE, 0.0),
        "update of 250,002 rows": make_update(LARGE, 0.01),
        "update of 250,002 rows, no weight decay": make_update(LARGE, 0.0),
    }
    seconds = take_turns(contenders, arguments.rounds, time.process_time)
    base = seconds["step of BERT, vocabulary 30,522"]
    rows = {}
    for name, own in seconds.items():
        ratio = median(one / other for one, other in zip(own, base, strict=True))
        rows[name] = {"seconds": own, "median": median(own), "median ratio to BERT": ratio}
        print(f"{name}: {median(own):.3f} s, {ratio:.3f} of BERT's step")
    write_json(arguments.results, {"machine": describe_machine(1), "commit": commit(), "rows": rows})


if __name__ == "__main__":
    main()
