"""Vectors of short texts in arrival order: bertwright beside sentence-transformers, with all-MiniLM-L6-v2.

    python bench/embedding.py DATA [--texts 4000] [--rounds 5] [--threads 2]

The texts are sentences of STS-B in the order of the file. In one process, contenders in turn, tokenization included.
sentence-transformers takes part with its default batch size, 32, and with the best of --batch-sizes on the first texts;
its `encode` sorts all texts by length first. Where the machine multiplies bfloat16, both take part in it, too. Where
`openvino` is installed, so does it, in arrival order and sorted by length (32 texts a call), in float32 or bfloat16 as
the machine has it: the encoder of `transformers`, pooling and normalizing, converted and compiled as one graph.

Afterwards both embed the pairs of the STS-B test set: Spearman's correlation of cosines and scores, published 82.03.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers
from scipy.stats import spearmanr
from torch import Tensor

import bertwright
from bertwright.training.context import supports_bfloat16
from environment import (
    choose_fastest,
    describe_machine,
    format_ratio,
    keep_printed,
    make_parser,
    minilm,
    take_turns,
    use_threads,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TRIED, DEFAULT = 512, 32  # texts for choosing a batch size; the default batch size of sentence-transformers

Array = np.ndarray[Any, np.dtype[np.float32]]
Contender = Callable[[Sequence[str]], Array]


def pairs(path: Path) -> list[tuple[str, str, float]]:
    """Read both sentences and the score of each line of an STS-B file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["sentence1"], row["sentence2"], float(row["score"])) for row in rows]


def encode(model: SentenceTransformer, batch_size: int, texts: Sequence[str]) -> Array:
    return model.encode(list(texts), batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False)


def in_arrival_order(model: SentenceTransformer, texts: Sequence[str]) -> Array:
    """Encode texts in the order in which a server receives them: each call knows its own texts only."""
    calls = [texts[begin : begin + DEFAULT] for begin in range(0, len(texts), DEFAULT)]
    return np.concatenate([encode(model, DEFAULT, call) for call in calls])


class Pooled(torch.nn.Module):
    """The computation of sentence-transformers as one graph: the normalized mean of the last states."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(str(minilm()))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask[..., None].to(states.dtype)
        return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1))


class OpenVino:
    """The model compiled by OpenVINO, with the fast tokenizer in front."""

    def __init__(self, bfloat16: bool, threads: int) -> None:
        from openvino import Core, convert_model

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(minilm()))
        example = dict(self.tokenizer(["one text", "another, longer text"], padding=True, return_tensors="pt"))
        example.pop("token_type_ids")
        options = {
            "INFERENCE_PRECISION_HINT": "bf16" if bfloat16 else "f32",
            "INFERENCE_NUM_THREADS": threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        self.compiled = Core().compile_model(convert_model(Pooled().eval(), example_input=example), "CPU", options)

    def __call__(self, texts: Sequence[str]) -> Array:
        """Encode in arrival order: each call knows its own texts only."""
        calls = [texts[begin : begin + DEFAULT] for begin in range(0, len(texts), DEFAULT)]
        return np.concatenate([self.call(call) for call in calls])

    def call(self, texts: Sequence[str]) -> Array:
        inputs = self.tokenizer(list(texts), padding=True, truncation=True, max_length=256, return_tensors="np")
        return self.compiled({name: inputs[name] for name in ("input_ids", "attention_mask")})[0]

    def by_length(self, texts: Sequence[str]) -> Array:
        """Encode the longest texts first, as `encode` of sentence-transformers does."""
        order = sorted(range(len(texts)), key=lambda order: -len(texts[order]))
        vectors = self([texts[order] for order in order])
        return vectors[np.argsort(order)]


def best_size(model: SentenceTransformer, sizes: Sequence[int], texts: Sequence[str]) -> int:
    """Return the batch size with which `encode` is fastest on these texts; print the speed of each."""
    encode(model, DEFAULT, texts[:DEFAULT])
    return choose_fastest(
        "sentence-transformers", {size: partial(encode, model, size, texts) for size in sizes}, len(texts)
    )


def contenders(sizes: Sequence[int], texts: Sequence[str], bfloat16: bool) -> dict[str, Contender]:
    """List the contenders; the others are compared with the first."""
    from sentence_transformers import SentenceTransformer

    peer = SentenceTransformer(str(minilm()), device="cpu")
    best = best_size(peer, sizes, texts)
    listed: dict[str, Contender] = {
        "bertwright": bertwright.load(minilm(), "cpu").embed,
        "sentence-transformers, as it is (batches of 32)": partial(encode, peer, DEFAULT),
        "sentence-transformers, 32 texts a call, in arrival order": partial(in_arrival_order, peer),
    }
    if best != DEFAULT:
        listed[f"sentence-transformers, batches of {best}"] = partial(encode, peer, best)
    if bfloat16:
        options = {"dtype": torch.bfloat16}
        half = SentenceTransformer(str(minilm()), device="cpu", model_kwargs=options)
        listed = {"bertwright, bf16": bertwright.load(minilm(), "cpu", torch.bfloat16).embed} | listed
        listed[f"sentence-transformers, bf16, batches of {best}"] = partial(encode, half, best)
    if find_spec("openvino"):
        compiled, precision = OpenVino(bfloat16, torch.get_num_threads()), "bf16" if bfloat16 else "fp32"
        listed[f"OpenVINO {precision}, 32 texts a call, in arrival order"] = compiled
        listed[f"OpenVINO {precision}, 32 texts a call, sorted by length"] = compiled.by_length
    else:
        print("OpenVINO is not measured: pip install openvino")
    for contender in listed.values():
        contender(texts)  # warm-up
    return listed


def spearman(contender: Contender, test: Sequence[tuple[str, str, float]]) -> float:
    """Compute Spearman's correlation of cosines and scores."""
    one, other = contender([first for first, _, _ in test]), contender([second for _, second, _ in test])
    return float(spearmanr((one * other).sum(1), [score for _, _, score in test]).statistic)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--texts", type=int, default=4_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32, 64, 128, 256])
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    use_threads(chosen.threads)
    transformers.logging.disable_progress_bar()
    keep_printed(__file__, chosen.threads)
    print(describe_machine(chosen.threads))
    folder = chosen.data / "glue" / "STS-B"
    texts = [text for *both, _ in pairs(folder / "train.tsv") for text in both][: chosen.texts]
    selected = contenders(chosen.batch_sizes, texts[:TRIED], supports_bfloat16(torch.device("cpu")))
    seconds = take_turns({name: partial(contender, texts) for name, contender in selected.items()}, chosen.rounds)
    characters = statistics.fmean(map(len, texts))
    print(f"\n{len(texts):,} texts of {characters:.0f} characters, {chosen.rounds} interleaved rounds\n")
    print("| | texts/s | bertwright, times as fast (min to max) | minimum cosine | STS-B test, Spearman |")
    print("|---|---:|---:|---:|---:|")
    test, first = pairs(folder / "test.tsv"), next(iter(selected))
    reference = selected[first](texts)
    for name, contender in selected.items():
        ratio = f"{format_ratio(seconds[name], seconds[first])} "
        cosine = f" {(contender(texts) * reference).sum(1).min():.7f} "
        compared = "| | " if name == first else f"| {ratio}|{cosine}"
        speed = len(texts) / statistics.median(seconds[name])
        print(f"| {name} | {speed:,.0f} {compared}| {100 * spearman(contender, test):.2f} |", flush=True)


if __name__ == "__main__":
    main()
