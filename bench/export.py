"""Compare exported text vectors with our packed float32: ONNX Runtime and OpenVINO, float32 and int8, equal threads.

    python bench/export.py --texts train.1.en.gz --dev STS16.tsv.gz --results bench/results/export.jsonl

The model is all-MiniLM-L6-v2, exported by `bertwright export` into a temporary folder; int8 passes its gate on
`--dev`, whose verdicts are recorded first; `--rounds 0` records nothing else. Then the program calls the methods of
`bertwright.load` on all texts (which sorts them by length) and on batches of 16 in the order of arrival, in rounds that
take turns, so that other programs on the machine slow all alike.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

import bertwright
from bertwright.base.files import read_json
from bertwright.base.reporter import MUTE
from bertwright.exporting.export import export
from bertwright.exporting.export_settings import ExportSettings
from bertwright.inference.bert import Bert
from bertwright.text.decoding import ReadStats, TextCodec, decode_blocks
from bertwright.text.lines import split_lines
from bertwright.text.sources import find_file
from environment import append_result, make_parser, minilm, take_turns, use_threads

BATCH = 16
LONG = 12  # texts of captions that make a long one
SYSTEMS = ("onnx", "openvino", "onnx-int8", "openvino-int8")


def embed_as_they_come(model: Bert, texts: Sequence[str]) -> None:
    for start in range(0, len(texts), BATCH):
        model.embed(texts[start : start + BATCH])


def make_texts(path: str, number: int) -> dict[str, list[str]]:
    """Return short texts, and texts of mixed lengths, in random order."""
    lines = [line for _, line in split_lines(path, decode_blocks(find_file(path), TextCodec(), ReadStats()))]
    rng = np.random.default_rng(0)
    short = [lines[n] for n in rng.integers(len(lines), size=number).tolist()]
    mixed = []
    for size in rng.integers(1, LONG, size=number // 4).tolist():
        mixed.append(" ".join(lines[n] for n in rng.integers(len(lines), size=size).tolist()))
    return {"short": short, "mixed": mixed}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--texts", required=True, help="file of short texts, one a line")
    parser.add_argument("--dev", help="labeled file for the gate of int8; without it, float32 alone is measured")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--number", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, required=True)
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    texts = make_texts(arguments.texts, arguments.number)
    with tempfile.TemporaryDirectory() as folder:
        models = {"packed float32": bertwright.load(minilm(), device="cpu", compute_dtype=torch.float32)}
        gates = {}
        for name in arguments.systems:
            to, _, int8 = name.partition("-")
            if int8 and not arguments.dev:
                continue
            given = {"int8": True, "dev": arguments.dev} if int8 else {}
            try:
                export(ExportSettings(str(minilm()), Path(folder) / name, to=to, **given), MUTE)
            except ValueError as error:  # the gate is missed
                gates[name] = str(error)
                continue
            models[name] = bertwright.load(Path(folder) / name)
            gates[name] = read_json(Path(folder) / name / "report.json").get("summary", {}).get("gate", "")
        append_result(arguments.results, {"gates": gates}, arguments.threads)
        for what, given_texts in texts.items() if arguments.rounds else ():
            for order, work in (("arrival", embed_as_they_come), ("all at once", Bert.embed)):
                calls: dict[str, Callable[[], object]] = {
                    name: partial(work, model, given_texts) for name, model in models.items()
                }
                seconds = take_turns(calls, arguments.rounds)
                rates = {name: len(given_texts) / statistics.median(values) for name, values in seconds.items()}
                for name, rate in rates.items():
                    ratio = rate / rates["packed float32"]
                    print(f"| {what} | {order} | {name} | {rate:,.0f} texts/s | {ratio:.2f} |")
                result = {"texts": what, "order": order, "texts per second": rates}
                append_result(arguments.results, result, arguments.threads)


if __name__ == "__main__":
    main()
