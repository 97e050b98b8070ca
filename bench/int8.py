"""Text vectors in int8 on a CPU beside the peers: short texts in arrival order, mixed lengths, one text's latency.

    python bench/int8.py DATA FOLDER [--model minilm|base] [--texts 1000] [--rounds 5] [--threads 2]

The models are all-MiniLM-L6-v2, or a BERT BASE with random weights, on which only the speed counts. Short texts are
sentences of STS-B, mixed ones cut or joined from them to 4 to 250 words, 32 a call. In one process, contenders in
turn, tokenization included:

- own int8 and float32, packed;
- OpenVINO and ONNX Runtime with nncf's int8, all layers, whatever the gate would say: the graphs that
  `bertwright export` makes, and ONNX Runtime's own dynamic int8; made in FOLDER once, in the first call;
- where `ctranslate2` can be imported, CTranslate2, which removes padding, too, in int8 and float32, with the fast
  tokenizer in front and pooling behind.

A line of bench/results/int8.jsonl records the seconds, and each system's cosines with own float32.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import transformers

import bertwright
from bertwright.base.files import digest_file, read_json, write_json
from bertwright.base.reporter import MUTE
from bertwright.exporting.export import encode_calibration, export, to_arrays
from bertwright.exporting.export_settings import ExportSettings
from bertwright.exporting.int8_graph import has_vnni, layer_names, quantize_graph
from bertwright.inference.exported_folder import FILES
from bertwright.interop.checksums import write_checksums
from bertwright.kernels.ffi import int8_isa
from embedding import DEFAULT, Array, Contender, pairs
from environment import RESULTS, append_result, make_parser, minilm, take_turns, use_threads

CALIBRATED = 100  # texts from which the ranges of static int8 are measured
OWN, FLOAT32 = "own int8", "own float32"


def by_calls(embed: Contender, texts: Sequence[str]) -> Array:
    """Embed texts in arrival order, 32 a call."""
    return np.concatenate([embed(texts[begin : begin + DEFAULT]) for begin in range(0, len(texts), DEFAULT)])


def mixed(texts: Sequence[str]) -> list[str]:
    """Return a quarter as many texts, of 4 to 250 words."""
    words, rng = " ".join(texts).split(), np.random.default_rng(0)
    return [" ".join(words[first : first + rng.integers(4, 250)]) for first in range(0, 16 * len(texts) // 4, 16)]


class CTranslate2:
    """The model converted for CTranslate2, which removes padding itself."""

    def __init__(self, model: Path, compute_type: str, threads: int) -> None:
        import ctranslate2
        from ctranslate2.converters import TransformersConverter

        self.tokenizer = transformers.AutoTokenizer.from_pretrained(str(model))
        with tempfile.TemporaryDirectory() as folder:
            TransformersConverter(str(model)).convert(folder, force=True)
            self.encoder = ctranslate2.Encoder(folder, compute_type=compute_type, intra_threads=threads)

    def __call__(self, texts: Sequence[str]) -> Array:
        ids = self.tokenizer(list(texts), truncation=True, max_length=256)["input_ids"]
        states = np.array(self.encoder.forward_batch(ids).last_hidden_state)
        vectors = np.stack([rows[: len(one)].mean(0) for rows, one in zip(states, ids, strict=True)])
        unit: Array = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit


def make_base(folder: Path) -> Path:
    """Save a BERT BASE with random weights and the vocabulary of MiniLM."""
    if not folder.exists():
        transformers.BertModel(
            transformers.BertConfig.from_dict({"position_embedding_type": "absolute"})
        ).save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(str(minilm())).save_pretrained(folder)
    return folder


def make_graphs(model: Path, folder: Path, texts: Sequence[str]) -> dict[str, Path]:
    """Return exported folders of a model by name, in int8; made unless they exist."""
    source = folder / "onnx float32"
    found = {f"{name} int8": folder / name for name in ("OpenVINO", "ONNX Runtime", "ONNX Runtime dynamic")}
    if source.exists():
        return found
    export(ExportSettings(str(model), source), MUTE)
    graph = source / FILES["onnx"]
    inputs = read_json(source / "report.json")["inputs"]
    arrays = to_arrays(encode_calibration(bertwright.load(model, "cpu"), None, texts), inputs, CALIBRATED)
    for name, target in found.items():
        to = "openvino" if "OpenVINO" in name else "onnx"
        shutil.copytree(source, target)
        path = target / FILES[to]
        if "dynamic" in name:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantize_dynamic(graph, path, weight_type=QuantType.QInt8, per_channel=True, reduce_range=not has_vnni())
        else:
            quantize_graph(graph, path, arrays, layer_names(graph), not has_vnni())
        digests = {file.name: digest_file(file) for file in path.parent.iterdir()}
        write_json(target / "report.json", read_json(target / "report.json") | {"graph": to, "digests": digests})
        write_checksums(target)
    return found


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=("minilm", "base"), default="minilm")
    parser.add_argument("--texts", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    use_threads(chosen.threads)
    warnings.simplefilter("ignore")
    short = [text for *both, _ in pairs(chosen.data / "glue" / "STS-B" / "train.tsv") for text in both][: chosen.texts]
    model = minilm() if chosen.model == "minilm" else make_base(chosen.folder / "base")
    graphs = make_graphs(model, chosen.folder / f"{chosen.model} graphs", short)
    contenders: dict[str, Contender] = {
        OWN: bertwright.load(model, "cpu", dtype="int8").embed,
        FLOAT32: bertwright.load(model, "cpu").embed,
    }
    contenders |= {name: bertwright.load(folder).embed for name, folder in graphs.items()}
    if find_spec("ctranslate2"):
        contenders |= {f"CTranslate2 {name}": CTranslate2(model, name, chosen.threads) for name in ("int8", "float32")}
    figures = {}
    for load, texts in (("short", short), ("mixed", mixed(short)), ("one text", [" ".join(["word"] * 14)])):
        runs: dict[str, Callable[[], Array]] = {n: partial(by_calls, embed, texts) for n, embed in contenders.items()}
        vectors = {name: run() for name, run in runs.items()}  # warm-up
        seconds = take_turns(runs, chosen.rounds * (60 if len(texts) == 1 else 1))
        figures[load] = {
            "texts": len(texts),
            "seconds": {name: round(statistics.median(values), 5) for name, values in seconds.items()},
            "own int8, times as fast": {
                name: round(statistics.median(np.divide(values, seconds[OWN]).tolist()), 3)
                for name, values in seconds.items()
            },
        }
        if chosen.model == "minilm" and len(texts) > 1:
            figures[load]["first percentile of cosines with own float32"] = {
                name: round(float(np.percentile((vectors[FLOAT32] * found).sum(1), 1)), 4)
                for name, found in vectors.items()
            }
        print(load, figures[load], flush=True)
    packages = [name for name in ("openvino", "onnxruntime", "nncf", "ctranslate2") if find_spec(name)]
    about = {"model": chosen.model, "instructions": int8_isa(), "peers": {name: version(name) for name in packages}}
    append_result(RESULTS / "int8.jsonl", about | {"figures": figures}, chosen.threads)


if __name__ == "__main__":
    main()
