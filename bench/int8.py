"""Text vectors in int8 on a CPU beside the peers: short texts in arrival order, mixed lengths, one text's latency.

    python bench/int8.py DATA FOLDER [--model minilm|base] [--texts 400] [--rounds 7] [--threads 2]

The models are all-MiniLM-L6-v2, or a BERT BASE with random weights, on which only the speed counts. Short texts are
sentences of STS-B, mixed ones cut or joined from them to 4 to 250 words, 32 a call; tokenization included. Contenders
take turns, each in a process of its own, with a pause between turns: in one process, the idle threads of these
libraries slowed whoever came next to a quarter.

- own int8 and float32, packed, and bfloat16 where the machine multiplies it;
- OpenVINO and ONNX Runtime in float32, and with nncf's int8, all layers, whatever the gate would say: the graphs that
  `bertwright export` makes, and ONNX Runtime's own dynamic int8; made in FOLDER once, in the first call;
- sentence-transformers in float32, where it is installed;
- where `ctranslate2` can be imported, CTranslate2, which removes padding, too, in int8 and float32, with the fast
  tokenizer in front and pooling behind.

One text is the median of 40 calls in a row. A line of bench/results/int8.jsonl records the seconds, and each system's
cosines with own float32.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
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
from bertwright.tables.text_roles import read_text_table
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.context import supports_bfloat16
from contenders import Contender, take_turns_apart
from environment import RESULTS, append_result, make_parser, minilm, use_threads

BATCH = 32  # texts of a call
Array = np.ndarray[Any, np.dtype[np.float32]]
Embed = Callable[[Sequence[str]], Array]
CALIBRATED = 100  # texts from which the ranges of static int8 are measured
OWN, FLOAT32, BFLOAT16 = "own int8", "own float32", "own bfloat16"
GRAPHS: dict[str, Literal["onnx", "openvino"]] = {"OpenVINO float32": "openvino", "ONNX Runtime float32": "onnx"}
PEER = "sentence-transformers"


def by_calls(embed: Embed, texts: Sequence[str]) -> Array:
    """Embed texts in arrival order, 32 a call."""
    return np.concatenate([embed(texts[begin : begin + BATCH]) for begin in range(0, len(texts), BATCH)])


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
    """Return exported folders of a model by name; made unless they exist."""
    floats = {name: folder / name for name in GRAPHS}
    found = {f"{name} int8": folder / name for name in ("OpenVINO", "ONNX Runtime", "ONNX Runtime dynamic")}
    source = folder / "ONNX Runtime float32"
    if source.exists():
        return floats | found
    for name, to in GRAPHS.items():
        export(ExportSettings(str(model), folder / name, to=to), MUTE)
    graph = source / FILES["onnx"]
    inputs = read_json(source / "report.json")["inputs"]
    arrays = to_arrays(
        encode_calibration(bertwright.load(model, "cpu"), None, texts, TaskOptions()), inputs, CALIBRATED
    )
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
    return floats | found


class Texts(NamedTuple):
    """The texts of a load, and how often in a row they are embedded in a turn."""

    texts: list[str]
    calls: int = 1


def open_contender(name: str, folder: Path, threads: int) -> Callable[[Texts], tuple[float, Array]]:
    """Load a contender in its own process; `folder`: the model's, or that of an exported graph.

    Return a function that embeds texts, and returns the seconds of the median call, and the vectors.
    """
    use_threads(threads)
    warnings.simplefilter("ignore")
    embed: Embed
    if name.startswith("CTranslate2"):
        embed = CTranslate2(folder, name.split()[1], threads)
    elif name == PEER:
        from sentence_transformers import SentenceTransformer

        encode = SentenceTransformer(str(folder), device="cpu").encode
        embed = partial(encode, normalize_embeddings=True, show_progress_bar=False)
    else:
        dtypes: dict[str, Literal["float32", "bfloat16", "int8"]] = {
            OWN: "int8", FLOAT32: "float32", BFLOAT16: "bfloat16",
        }  # fmt: skip
        embed = bertwright.load(folder, "cpu", dtype=dtypes.get(name)).embed

    def embed_texts(load: Texts) -> tuple[float, Array]:
        seconds = []
        for _ in range(load.calls):
            started = time.perf_counter()
            vectors = by_calls(embed, load.texts)
            seconds.append(time.perf_counter() - started)
        return statistics.median(seconds), vectors

    return embed_texts


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=("minilm", "base"), default="minilm")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    chosen = parser.parse_args()
    use_threads(chosen.threads)
    warnings.simplefilter("ignore")
    rows = read_text_table(str(chosen.data / "glue" / "STS-B" / "train.tsv")).rows
    short = [text for row in rows for text in row.texts][: chosen.texts]
    model = minilm() if chosen.model == "minilm" else make_base(chosen.folder / "base")
    graphs = make_graphs(model, chosen.folder / f"{chosen.model} graphs", short)
    folders = {OWN: model, FLOAT32: model, **graphs}
    if supports_bfloat16(torch.device("cpu")):
        folders[BFLOAT16] = model
    if find_spec("ctranslate2"):
        folders |= dict.fromkeys(("CTranslate2 int8", "CTranslate2 float32"), model)
    if find_spec("sentence_transformers"):
        folders[PEER] = model
    contenders = {
        name: Contender(partial(open_contender, name, folder, chosen.threads)) for name, folder in folders.items()
    }
    loads = {"one text": Texts([" ".join(["word"] * 14)], 40), "short": Texts(short), "mixed": Texts(mixed(short))}
    figures = {}
    for load, given in loads.items():
        turns, texts = take_turns_apart(contenders, chosen.rounds, given), given.texts
        seconds = {name: [turn.result[0] for turn in own] for name, own in turns.items()}
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
                name: round(float(np.percentile((turns[FLOAT32][-1].result[1] * own[-1].result[1]).sum(1), 1)), 4)
                for name, own in turns.items()
            }
        print(load, figures[load], flush=True)
    packages = [name for name in ("openvino", "onnxruntime", "nncf", "ctranslate2") if find_spec(name)]
    about = {"model": chosen.model, "instructions": int8_isa(), "peers": {name: version(name) for name in packages}}
    append_result(RESULTS / "int8.jsonl", about | {"figures": figures}, chosen.threads)


if __name__ == "__main__":
    main()
