"""The old artefacts: the commands that made them, and the questions whose answers all later code must repeat.

All paths are relative to the folder in which the archives are unpacked, because runs record the paths of their inputs.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import runpy
import shutil
import signal
import sys
import tarfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from private_names import token_ids
from safetensors.numpy import load_file

import bertwright
from bertwright.inference.text_settings import GenerationSettings

RELATIVE, ABSOLUTE = 1e-5, 1e-6  # differences of numbers that rounding may cause on another machine
HERE = Path(__file__).parent
ARCHIVES = HERE / "archives"
DEVICE = ["--device", "cpu", "--dtype", "float32", "--threads", "1"]
TEXTS = ["the bear sees the deer in the forest .", "The fish hears the wolf", "Mr Crow meets the seal in the River ."]
QUESTIONS = ["where is the bear ?", "where is the duck ?", "where is the lynx ?"]
CONTEXT = "the bear sees the deer in the forest . the duck finds the seal in the valley ."
GREEDY = GenerationSettings(sample=False)
STOP_STEP = 4  # the stopped runs were interrupted after their checkpoint of this step
STEPS = 9  # all steps of a pre-training or translation run
SAVING = ["--save-every", "2", "--eval-every", "3", "--log-every", "2"]


class Artefact(NamedTuple):
    """A run that is stopped and resumed."""

    name: str
    command: tuple[str, ...]
    """Verb and its flags, without --run."""
    ask: Callable[[Path], Any]
    """From the finished run's folder: answers as numbers and texts."""
    stop_at: str = f"checkpoints/step-{STOP_STEP:08d}"
    """End of the path of a file or folder; the run is stopped when it is written."""
    results: str = ""
    """Pattern of the JSON files with the results of all trainings; empty for one training."""
    flag: str = "--run"
    """Flag that names the folder; with another one, the same command resumes."""

    @property
    def stopped(self) -> Path:
        return Path("stopped") / self.name

    @property
    def finished(self) -> Path:
        return Path("finished") / self.name


def model_answers(*questions: tuple[Any, ...]) -> Callable[[Path], Any]:
    """Return a function that loads a model and calls methods: each question is a method's name and its arguments."""

    def ask(folder: Path) -> Any:
        model = bertwright.load(folder)
        return {name: plain(getattr(model, name)(*arguments)) for name, *arguments in questions}

    return ask


def translations(folder: Path) -> Any:
    return plain(bertwright.load_translator(folder).translate(["one two three", "six", "four five"]))


def vector_answers(folder: Path) -> Any:
    vectors = bertwright.load_vectors(folder)
    looked_up = vectors.lookup(["bear", "River", "unknown"])
    return {"vectors": plain(looked_up.vectors), "nearest": plain(vectors.nearest(["bear"], 3))}


def plain(value: Any) -> Any:
    """Return a prediction as JSON has it: named tuples and dataclasses as lists, arrays as lists of numbers."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str | int | float | None):
        return value
    return plain({name: item for name, item in vars(value).items() if not name.startswith("_")})


def pretrain(name: str, store: str, *flags: str, ask: Callable[[Path], Any]) -> Artefact:
    shared = ["--steps", str(STEPS), "--eval-sequences", "8", "--keep-last", "1", "--size", "tiny", *SAVING, *DEVICE]
    command = ("pretrain", "--store", f"stores/{store}", "--batch-size", "4", "--warmup-ratio", "0.2")
    return Artefact(name, (*command, *shared, *flags), ask)


def finetune(name: str, task: str, file: str, *flags: str, ask: Callable[[Path], Any]) -> Artefact:
    files = ["--train", f"inputs/train.{file}", "--dev", f"inputs/dev.{file}"]
    shared = ["--epochs", "3", "--batch-size", "16", "--keep-checkpoints", *SAVING, *DEVICE]
    return Artefact(name, ("finetune", "--task", task, *files, *shared, *flags), ask)


def translation(name: str, *flags: str) -> Artefact:
    files = [part for side, suffix in (("source", "en"), ("target", "de")) for part in (
        f"--train-{side}", f"inputs/train.{suffix}", f"--dev-{side}", f"inputs/dev.{suffix}")]  # fmt: skip
    shared = ["--size", "tiny", "--vocab-size", "60", "--batch-tokens", "100", "--steps", str(STEPS), "--average", "2"]
    shared += ["--keep-checkpoints", "--learning-rate", "0.01", *SAVING, *DEVICE]
    return Artefact(name, ("train-translation", *files, *shared, *flags), translations)


SMALL_BERT = ["--hidden-size", "16", "--num-layers", "2", "--num-heads", "2", "--max-positions", "48"]
LENGTHS = ["--max-length", "32", "--long-ratio", "0.25", "--long-length", "48"]
SMALL_WORDS = ["--word-size", "8", "--lstm-size", "6", "--dropout", "0.3"]
BERT = ["--model", "finished/bert", "--learning-rate", "0.003", "--head-init", "random"]
CLASSIFY, TAG = model_answers(("classify", TEXTS)), model_answers(("tag", TEXTS))
COVE = ["--vectors", "vectors/skip-gram", "--freeze-vectors", "--translation-model", "finished/mt-lstm"]

RUNS = [
    pretrain(
        "bert", "wordpiece", *SMALL_BERT, *LENGTHS,
        ask=model_answers(
            ("fill_mask", ["the bear sees the [MASK] ."]), ("next_sentence", TEXTS[:1], TEXTS[1:2]),
            ("embed", TEXTS), ("features", TEXTS), ("attention", TEXTS[1]),
        ),
    ),
    pretrain("bert-ltr", "wordpiece", *SMALL_BERT, *LENGTHS, "--objective", "ltr", ask=model_answers(("embed", TEXTS))),
    pretrain(
        "gpt", "byte-pair", "--architecture", "gpt", *SMALL_BERT, "--max-length", "32",
        ask=model_answers(("generate", TEXTS, GREEDY), ("embed", TEXTS)),
    ),
    pretrain("elmo", "words", "--architecture", "elmo", "--max-length", "20", ask=model_answers(("features", TEXTS))),
    pretrain("ulmfit", "lowercase-words", "--architecture", "ulmfit", "--max-length", "16",
             ask=model_answers(("features", TEXTS))),
    translation("transformer"),
    translation("mt-lstm", "--architecture", "mt-lstm", "--vectors", "vectors/skip-gram"),
    finetune("classification", "classification", "tsv", *BERT, ask=CLASSIFY),
    finetune("pairs", "classification", "tsv", *BERT, "--text-pair", "other", "--pooling", "mean",
             ask=model_answers(("classify", [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])]))),
    finetune("ltr-classification", "classification", "tsv", "--model", "finished/bert-ltr", "--head-init", "random",
             ask=CLASSIFY),
    finetune("multi-label", "multi-label", "tsv", *BERT, "--label", "labels", ask=CLASSIFY),
    finetune("regression", "regression", "tsv", *BERT, "--label", "score", "--text-pair", "other",
             ask=model_answers(("classify", [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])]))),
    finetune("tagging", "tagging", "conll", *BERT, ask=TAG),
    finetune("question-answering", "question-answering", "squad.json", *BERT, "--max-length", "32", "--doc-stride", "8",
             "--max-query-length", "12", ask=model_answers(("answer", QUESTIONS, CONTEXT))),
    finetune("multiple-choice", "multiple-choice", "choices.tsv", *BERT, "--endings", "ending0", "ending1",
             ask=model_answers(("choose", TEXTS, [["it is the forest", "it is the river"]] * 3))),
    finetune("gpt-classification", "classification", "tsv", "--model", "finished/gpt", ask=CLASSIFY),
    finetune("ulmfit-classification", "classification", "tsv", "--model", "finished/ulmfit", ask=CLASSIFY),
    finetune("window", "tagging", "conll", "--architecture", "window", "--word-size", "8", ask=TAG),
    finetune("bilstm", "classification", "tsv", "--architecture", "bilstm", *SMALL_WORDS, ask=CLASSIFY),
    finetune("bilstm-crf", "tagging", "conll", "--architecture", "bilstm-crf", *SMALL_WORDS, ask=TAG),
    finetune("elmo-tagging", "tagging", "conll", "--architecture", "elmo", "--language-model", "finished/elmo",
             *SMALL_WORDS, ask=TAG),
    finetune("taglm", "tagging", "conll", "--architecture", "taglm", "--language-model", "finished/elmo", *SMALL_WORDS,
             ask=TAG),
    finetune("cove", "classification", "tsv", "--architecture", "cove", *COVE, "--lstm-size", "6", ask=CLASSIFY),
    finetune("bcn", "classification", "tsv", "--architecture", "bcn", *COVE, "--lstm-size", "6", ask=CLASSIFY),
]  # fmt: skip


TASK = ("--task", "classification", "--train", "inputs/train.tsv", "--dev", "inputs/dev.tsv", *DEVICE)
TAGS = ("--task", "tagging", "--train", "inputs/train.conll", "--dev", "inputs/dev.conll", *DEVICE)
SWEEPS = [
    Artefact(
        "grid", ("grid", *TASK, "--model", "finished/bert", "--head-init", "random", "--learning-rates", "0.003",
        "0.001", "--batch-sizes", "16", "--epochs", "2"), CLASSIFY, "lr0.001-bs16-ep2-seed0/checkpoints/step-00000003",
        "results.jsonl",
    ),
    Artefact(
        "probe", ("probe", *TAGS, "--model", "finished/bert", "--lstm-size", "8", "--lstm-layers", "1", "--seeds", "0",
        "--epochs", "2", "--representations", "embeddings", "last", "second-to-last"), lambda _: None, "results.jsonl",
        "results.jsonl",
    ),
    Artefact(
        "ladder", ("ladder", *TASK, "--bert", "finished/bert", "--vectors", "vectors/skip-gram", "--seeds", "1",
        "--word-epochs", "1", "--epochs", "1"), lambda _: None, "results.jsonl", "results.jsonl",
    ),
    Artefact(
        "experiment", ("experiment", "table1", "--model", "finished/bert", "--data", "tables", "--seeds", "1",
        "--limit", "16", "--no-linear-floor", *DEVICE), lambda _: None, "result.json", "jobs/*/result.json", "--work",
    ),
]  # fmt: skip


CHANGED = {
    "elmo": "the defaults of its pre-training are the released code's",
    "transformer": "the default warm-up is a number of steps",
    "ulmfit-classification": "its classifier drops once",
    "elmo-tagging": "the mix of layers has a penalty",
}
"""Kinds of runs whose new runs differ from the old ones by intention. Old runs go on as they began."""
REFUSED = ("grid", "ladder", "probe")
"""Series whose old folders are refused: each of their runs has its own file of results now."""


ESTIMATORS = ("BertClassifier", "BertTagger", "BertRegressor", "BertEmbedder")


def fit_estimator(name: str) -> Any:
    """Fit an estimator to a few texts."""
    device = {"device": "cpu", "dtype": "float32"}
    if name == "BertEmbedder":
        return bertwright.BertEmbedder("finished/bert", **device).fit(TEXTS)
    fitted = {"epochs": 2, "learning_rate": 0.003, "head_init": "random", "threads": 1}
    estimator = getattr(bertwright, name)("finished/bert", **fitted, **device)
    words = [text.split(" ") for text in TEXTS] * 4
    tags = [["B-X" if word.islower() else "O" for word in sentence] for sentence in words]
    labels = {"BertTagger": tags, "BertRegressor": [0.5, 1.0, 2.0] * 4, "BertClassifier": ["yes", "no", "yes"] * 4}
    return estimator.fit(words if name == "BertTagger" else TEXTS * 4, labels[name])


def estimator_answers(name: str) -> Any:
    """Return the predictions of a pickled estimator."""
    with Path(f"pickles/{name}.pickle").open("rb") as file:
        estimator = pickle.load(file)
    if name == "BertEmbedder":
        return plain(estimator.transform(TEXTS))
    if name == "BertClassifier":
        return plain({"labels": estimator.predict(TEXTS), "probabilities": estimator.predict_proba(TEXTS)})
    return plain(estimator.predict([text.split(" ") for text in TEXTS] if name == "BertTagger" else TEXTS))


def search_answers() -> Any:
    """Return what an index finds for texts, by vectors, by words and by both."""
    index = bertwright.SearchIndex.open("searched/index", bertwright.load("searched/vectors", "cpu"))
    return {by: plain(index.search(TEXTS, 3, by)) for by in ("vectors", "bm25", "fusion")}


VOCABULARIES = ("wordpiece", "byte-pair", "words", "lowercase-words")
VECTORS = ("skip-gram", "fasttext", "glove")
OPENED: dict[str, Callable[[], Any]] = {
    **{f"{name} vocabulary": partial(token_ids, Path("vocabularies") / name, TEXTS) for name in VOCABULARIES},
    **{f"{name} vectors": partial(vector_answers, Path("vectors") / name) for name in VECTORS},
    **{f"{name} pickle": partial(estimator_answers, name) for name in ESTIMATORS},
    "text vectors": partial(model_answers(("embed", TEXTS)), Path("searched/vectors")),
    "re-ranker": partial(model_answers(("rank", TEXTS[0], TEXTS[1:])), Path("searched/reranker")),
    "index": search_answers,
}
"""Functions that open an old file and ask it, by the name of the answer."""


def run_command(*arguments: str) -> tuple[int, str]:
    """Run a command as the command line does, in this process; return its exit code and what it printed."""
    output, handler, show = StringIO(), signal.getsignal(signal.SIGTERM), warnings.showwarning
    before, sys.argv = sys.argv, ["bertwright", *arguments]
    try:
        with redirect_stdout(output):
            runpy.run_module("bertwright", run_name="__main__")
        return 0, output.getvalue()
    except SystemExit as ended:
        return int(ended.code or 0), output.getvalue()
    finally:
        sys.argv, warnings.showwarning = before, show
        signal.signal(signal.SIGTERM, handler)


def check_command(*arguments: str) -> str:
    """Run a command that must succeed; return what it printed."""
    code, output = run_command(*arguments)
    assert code == 0, f"bertwright {' '.join(arguments)}: exit code {code}\n{output}"
    return output


_stopping_at: list[str] = []


def _send_stop_signal(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "os.rename" and _stopping_at and Path(arguments[1]).as_posix().endswith(_stopping_at[0]):
        _stopping_at.clear()
        os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def stop_when_written(path: str) -> Iterator[None]:
    """Send this process Ctrl-C when it writes a file or folder whose path ends like this."""
    sys.addaudithook(_send_stop_signal)  # it stays until the process ends, and then does nothing
    _stopping_at[:] = [path]
    yield
    assert not _stopping_at, f"{path} was not written"


def weight_digests(folder: Path) -> dict[str, list[Any]]:
    """Return shape, digest and norm of each tensor of a model folder, by name."""
    tensors = load_file(folder / "model.safetensors")
    return {name: describe_array(tensor) for name, tensor in sorted(tensors.items())}


def describe_array(array: Any) -> list[Any]:
    values = np.ascontiguousarray(array)
    digest = hashlib.sha256(values.tobytes()).hexdigest()[:16]
    return [list(values.shape), digest, float(np.linalg.norm(values.astype(np.float64)))]


def last_losses(run: Path) -> dict[str, Any]:
    """Return the last record of each kind in metrics.jsonl, without what a clock decides."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return {record["kind"]: untimed(record) for record in records}


def describe(artefact: Artefact, run: Path) -> dict[str, Any]:
    """Return the results of a finished run: its last losses, or a sweep's scores; and the weights of its model."""
    described: dict[str, Any] = {}
    if artefact.results:
        described["results"] = {
            path.relative_to(run).as_posix(): [untimed(json.loads(line)) for line in sorted(read_records(path))]
            for path in sorted(run.glob(artefact.results))
        }
    else:
        described["losses"] = last_losses(run)
    if (run / "model" / "model.safetensors").is_file():
        described["weights"] = weight_digests(run / "model")
    return described


def read_records(path: Path) -> list[str]:
    """Return the records of a JSON-lines file, or the only one of a JSON file."""
    text = path.read_text(encoding="utf-8")
    return text.splitlines() if path.suffix == ".jsonl" else [text]


def untimed(record: Any) -> Any:
    """Return a record without what the clock and the machine decide."""
    if isinstance(record, dict):
        return {name: untimed(value) for name, value in record.items() if name != "environment" and not is_timed(name)}
    return [untimed(item) for item in record] if isinstance(record, list) else record


def is_timed(name: str) -> bool:
    return any(word in name for word in ("second", "utilization", "date", "time", "finished"))


def resume(artefact: Artefact, run: Path) -> None:
    """Resume a run; a training must start at the checkpoint of `STOP_STEP`."""
    resumes = artefact.flag == "--run"
    command = (artefact.command[0], "--resume") if resumes else artefact.command
    output = check_command(*command, artefact.flag, str(run))
    assert artefact.results or f"Resuming after step {STOP_STEP}" in output, output


def pack(archive: Path, *folders: Path) -> None:
    """Write a reproducible archive of some folders, without plots and event files."""

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if entry.name.endswith(".png") or "/tensorboard" in entry.name:
            return None
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    archive.parent.mkdir(exist_ok=True)
    with tarfile.open(archive, "w:xz") as file:
        for folder in folders:
            file.add(folder, str(folder), filter=anonymous)


def unpack_all(folder: Path) -> None:
    """Unpack all archives."""
    for archive in sorted(ARCHIVES.iterdir()):
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")


def find_differences(expected: Any, actual: Any, place: str = "") -> list[str]:
    """Return a line per difference of two JSON values; numbers may differ by rounding."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        names = list(dict.fromkeys([*expected, *actual]))
        pairs = [
            (f"{place}.{name}".strip("."), expected.get(name, "absent"), actual.get(name, "absent")) for name in names
        ]
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = [(f"{place}[{n}]", *both) for n, both in enumerate(zip(expected, actual, strict=True))]
    elif isinstance(expected, float) and isinstance(actual, float | int):
        return (
            []
            if math.isclose(expected, actual, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
            else [f"{place}: {expected} → {actual}"]
        )
    else:
        return [] if expected == actual else [f"{place}: {expected!r} → {actual!r}"]
    return [line for where, before, now in pairs for line in find_differences(before, now, where)]


def read_json(name: str) -> Any:
    """Return the content of a JSON file beside this one."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def copy_run(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    shutil.copytree(source, target)
