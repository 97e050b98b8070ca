"""all-MiniLM-L6-v2 in int8 beside float32: short texts in arrival order, mixed lengths, and the latency of one text.

    python bench/int8.py DATA [--texts 1000] [--rounds 5] [--threads 2]

Short texts are sentences of STS-B, mixed ones cut or joined from them to 4 to 250 words, 32 a call. In one process,
contenders in turn, tokenization included. Where `ctranslate2` can be imported, it takes part in int8 and float32, with
the fast tokenizer in front and pooling behind. A line of bench/results/int8.jsonl records the figures.
"""

from __future__ import annotations

import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import transformers

import bertwright
from embedding import DEFAULT, Array, pairs
from environment import RESULTS, append_result, make_parser, minilm, take_turns, use_threads


def by_calls(embed: Callable[[Sequence[str]], Array], texts: Sequence[str]) -> Array:
    """Embed texts in arrival order, 32 a call."""
    return np.concatenate([embed(texts[begin : begin + DEFAULT]) for begin in range(0, len(texts), DEFAULT)])


def mixed(texts: Sequence[str]) -> list[str]:
    """Return a quarter as many texts, of 4 to 250 words."""
    words, rng = " ".join(texts).split(), np.random.default_rng(0)
    return [" ".join(words[first : first + rng.integers(4, 250)]) for first in range(0, 16 * len(texts) // 4, 16)]


class CTranslate2:
    """The model converted for CTranslate2, which removes padding itself."""

    def __init__(self, compute_type: str, threads: int) -> None:
        import ctranslate2
        from ctranslate2.converters import TransformersConverter

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(minilm()))
        with tempfile.TemporaryDirectory() as folder:
            TransformersConverter(str(minilm())).convert(folder, force=True)
            self.encoder = ctranslate2.Encoder(folder, compute_type=compute_type, intra_threads=threads)

    def __call__(self, texts: Sequence[str]) -> Array:
        ids = self.tokenizer(list(texts), truncation=True, max_length=256)["input_ids"]
        states = np.array(self.encoder.forward_batch(ids).last_hidden_state)
        vectors = np.stack([rows[: len(one)].mean(0) for rows, one in zip(states, ids, strict=True)])
        unit: Array = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--texts", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    use_threads(chosen.threads)
    warnings.simplefilter("ignore")
    short = [text for *both, _ in pairs(chosen.data / "glue" / "STS-B" / "train.tsv") for text in both][: chosen.texts]
    models: dict[str, Callable[[Sequence[str]], Array]] = {
        "int8": bertwright.load(minilm(), "cpu", dtype="int8").embed,
        "float32": bertwright.load(minilm(), "cpu").embed,
    }
    if find_spec("ctranslate2"):
        models |= {f"CTranslate2 {name}": CTranslate2(name, chosen.threads) for name in ("int8", "float32")}
    figures = {}
    for load, texts in (("short", short), ("mixed", mixed(short)), ("one text", [" ".join(["word"] * 14)])):
        runs = {name: partial(by_calls, embed, texts) for name, embed in models.items()}
        vectors = {name: run() for name, run in runs.items()}  # warm-up
        seconds = take_turns(runs, chosen.rounds * (20 if len(texts) == 1 else 1))
        cosines = (vectors["float32"] * vectors["int8"]).sum(1)
        figures[load] = {
            "texts": len(texts),
            "seconds": {name: round(statistics.median(values), 5) for name, values in seconds.items()},
            "int8, times as fast": {
                name: round(statistics.median(np.divide(values, seconds["int8"]).tolist()), 3)
                for name, values in seconds.items()
            },
            "first percentile of cosines": round(float(np.percentile(cosines, 1)), 5),
        }
        print(load, figures[load], flush=True)
    append_result(RESULTS / "int8.jsonl", {"figures": figures}, chosen.threads)


if __name__ == "__main__":
    main()
