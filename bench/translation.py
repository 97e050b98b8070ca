"""Translating with beam search: bertwright beside `transformers`' `generate`, with the same model folder.

    python bench/translation.py MODEL TEXT [--sentences 256] [--batch-size 32] [--beam-size 4] [--rounds 3]

MODEL: a folder that `bertwright train-translation` wrote, which `transformers` opens as MarianMTModel. TEXT: sentences,
one per line. In one process with one thread and in one dtype, contenders in turn; seconds are of the processor, because
other programs may use the machine; both translate batches of sentences of similar length,
tokenization included. `generate` has early stopping and at most 50 more tokens than the longest sentence of a batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, MarianMTModel

from bertwright.translation.translator import load_translator
from environment import describe_machine, format_ratio, keep_printed, make_parser, take_turns, use_threads

Translate = Callable[[Sequence[str]], list[str]]


def load_generate(
    folder: Path, beam_size: int, batch_size: int, dtype: torch.dtype
) -> Callable[[Sequence[str]], list[str]]:
    """Return a function that translates sentences with `generate`, longest first."""
    model: Any = MarianMTModel.from_pretrained(folder, dtype=dtype)
    model.eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def translate(texts: Sequence[str]) -> list[str]:
        order = sorted(range(len(texts)), key=lambda n: -len(tokenizer(texts[n]).input_ids))
        translations = [""] * len(texts)
        for begin in range(0, len(order), batch_size):
            chosen = order[begin : begin + batch_size]
            batch = tokenizer([texts[n] for n in chosen], padding=True, return_tensors="pt")
            with torch.inference_mode():
                ids = model.generate(
                    **batch, num_beams=beam_size, early_stopping=True, length_penalty=0.6, do_sample=False,
                    max_new_tokens=batch.input_ids.shape[1] + 50,
                )  # fmt: skip
            for n, text in zip(chosen, tokenizer.batch_decode(ids, skip_special_tokens=True), strict=True):
                translations[n] = text
        return translations

    return translate


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    use_threads(options.threads)
    texts = options.text.read_text(encoding="utf-8").splitlines()[: options.sentences]
    dtype = getattr(torch, options.dtype)
    ours = load_translator(options.model, options.beam_size, batch_size=options.batch_size)
    ours.system.model.compute_dtype = dtype
    contenders: dict[str, Translate] = {
        "bertwright": ours.translate,
        "transformers": load_generate(options.model, options.beam_size, options.batch_size, dtype),
    }
    for translate in contenders.values():
        translate(texts[: options.batch_size])  # fills caches
    results: dict[str, list[str]] = {}

    def run(name: str) -> None:
        results[name] = contenders[name](texts)

    seconds = take_turns({name: partial(run, name) for name in contenders}, options.rounds, time.process_time)
    keep_printed(__file__, options.threads)
    print(describe_machine(options.threads))
    print(f"{len(texts)} sentences, batch size {options.batch_size}, beam {options.beam_size}, {options.dtype}")
    for name, measured in seconds.items():
        words = sum(len(text.split()) for text in results[name]) / len(texts)
        print(f"{name:<14}{len(texts) / min(measured):8.1f} sentences per core second, {words:.1f} words each")
    print(f"bertwright is {format_ratio(seconds['transformers'], seconds['bertwright'])} times as fast")
    same = sum(a.split() == b.split() for a, b in zip(results["bertwright"], results["transformers"], strict=True))
    print(f"equal translations: {same} of {len(texts)}")


if __name__ == "__main__":
    main()
