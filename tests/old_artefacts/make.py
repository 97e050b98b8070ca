"""Make the old artefacts, or what the present code is compared with.

    python tests/old_artefacts/make.py                    # archives and answers, from nothing
    python tests/old_artefacts/make.py --update NAME ...  # only these JSON files, such as answers
    python tests/old_artefacts/make.py --check NAME ...   # print what the present code does otherwise

The rows of published data sets are only compared by this program, which is told where they are:

    python tests/old_artefacts/make.py --shared SHARED --check rows_of_bugs rows_of_data

The archives are old files: they are made once, by the code that the later code must stay compatible with. An intended
change of the present code's results updates the JSON files only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from artefacts import (
    ARCHIVES,
    DEVICE,
    ESTIMATORS,
    HERE,
    OPENED,
    REFUSED,
    RUNS,
    SWEEPS,
    VECTORS,
    VOCABULARIES,
    Artefact,
    check_command,
    copy_run,
    describe,
    find_differences,
    fit_estimator,
    pack,
    read_json,
    resume,
    run_command,
    stop_when_written,
    unpack_all,
)
from initial_weights import describe_initial_weights
from private_names import read_environment, small_sizes
from public_names import describe_names
from reader_rows import digest_folder
from toy_files import write_inputs, write_tables


def make_archives() -> None:
    """Make all artefacts in the current folder, and pack them."""
    shutil.rmtree(ARCHIVES, ignore_errors=True)
    write_inputs(Path("inputs"))
    write_tables(Path("tables"))
    for algorithm in VOCABULARIES:
        make_store(algorithm)
    make_vectors()
    with small_sizes():
        for artefact in (*RUNS, *SWEEPS):
            print(f"{artefact.name} ...", flush=True)
            make_run(artefact)
    make_pickles()
    make_text_vectors()
    for name in ("inputs", "tables", "vocabularies", "stores", "vectors", "pickles"):
        pack(ARCHIVES / f"{name}.tar.xz", Path(name))
    for artefact in (*RUNS, *SWEEPS):
        pack(ARCHIVES / f"{artefact.name}.tar.xz", artefact.stopped, artefact.finished)
    pack(ARCHIVES / "text-vectors.tar.xz", Path("searched"))


def make_store(algorithm: str) -> None:
    """Learn a vocabulary and write a token store."""
    vocabulary = f"vocabularies/{algorithm}"
    size = ["--size", "200", "--min-frequency", "2", "--algorithm", algorithm]
    check_command("vocabulary", "inputs/corpus.txt", "--output", vocabulary, *size)
    held_out = ["--held-out", "0.1", "--workers", "1"]
    check_command(
        "prepare", "inputs/corpus.txt", "--vocabulary", vocabulary, "--store", f"stores/{algorithm}", *held_out
    )


def make_vectors() -> None:
    """Learn word vectors by each model."""
    for model in VECTORS:
        small = ["--size", "8", "--epochs", "2", "--min-count", "2", "--threads", "1"]
        buckets = ["--buckets", "50"] if model == "fasttext" else []
        command = ["word-vectors", "inputs/corpus.txt", "--output", f"vectors/{model}", "--model", model]
        check_command(*command, *small, *buckets)


def make_pickles() -> None:
    """Fit and pickle the estimators."""
    Path("pickles").mkdir()
    for name in ESTIMATORS:
        Path(f"pickles/{name}.pickle").write_bytes(pickle.dumps(fit_estimator(name)))


def make_text_vectors() -> None:
    """Train text vectors and a re-ranker, and build an index in both precisions."""
    rated = ["--train", "inputs/train.tsv", "--columns", "anchor=text", "positive=other", "score=score"]
    shared = ["--model", "finished/bert", "--epochs", "1", "--learning-rate", "0.003", *DEVICE]
    check_command("finetune", "--task", "embedding", *rated, *shared, "--run", "searched/vectors")
    mse = ["--ranking-loss", "mse"]
    check_command("finetune", "--task", "reranking", *rated, *mse, *shared, "--run", "searched/reranker")
    build = ["--index", "searched/index", "--column", "text", "--precision", "both", *DEVICE]
    check_command("search", "build", "searched/vectors", "inputs/dev.tsv", *build)


def make_run(artefact: Artefact) -> None:
    """Start a run, stop it in the middle, and finish a copy of it."""
    with stop_when_written(artefact.stop_at):
        code, output = run_command(*artefact.command, artefact.flag, str(artefact.stopped))
    assert code == 130, output
    copy_run(artefact.stopped, artefact.finished)
    resume(artefact, artefact.finished)
    for name in ("checkpoints", "best"):
        shutil.rmtree(artefact.finished / name, ignore_errors=True)


def make_answers() -> dict[str, Any]:
    """Return what the present code computes with the old artefacts in the current folder."""
    unpack_all(Path())
    answers: dict[str, Any] = {"environment": read_environment()}
    for artefact in (*RUNS, *SWEEPS):
        answers[artefact.name] = {"predictions": artefact.ask(artefact.finished)}
        if artefact.name not in REFUSED:
            resume(artefact, artefact.stopped)
            answers[artefact.name] |= describe(artefact, artefact.stopped)
    return answers | {name: ask() for name, ask in OPENED.items()}


def make_public_names() -> dict[str, Any]:
    """Return the public names; some defaults depend on the models that are named."""
    unpack_all(Path())
    return describe_names()


UPDATES: dict[str, Callable[[], dict[str, Any]]] = {
    "answers": make_answers,
    "public_names": make_public_names,
    "rows": lambda: digest_folder(HERE.parent / "data"),
    "initial_weights": describe_initial_weights,
}
MAX_SHOWN = 100  # differences per file
SHARED = {"rows_of_bugs": "bugs", "rows_of_data": "data"}  # files, and the folders that --shared contains


def write_json(path: Path, content: Any) -> None:
    """Write JSON with a line per key of the outer two levels, so that differences are readable."""
    path.write_text(dump(content, 3) + "\n", encoding="utf-8")


def dump(content: Any, levels: int, indent: str = "") -> str:
    if not levels or not isinstance(content, dict) or not content:
        return json.dumps(content, ensure_ascii=False)
    lines = [f"{indent} {json.dumps(name)}: {dump(item, levels - 1, indent + ' ')}" for name, item in content.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def main() -> None:
    """Make everything, update some files, or compare some with the present code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*UPDATES, *SHARED]
    parser.add_argument("--update", nargs="+", choices=names, default=[], help="write only these files")
    parser.add_argument("--check", nargs="+", choices=names, default=[], help="print the differences of these files")
    parser.add_argument("--shared", type=Path, help="folder that contains bugs and data, such as SHARED")
    given = parser.parse_args()
    makers = dict(UPDATES)
    if given.shared is not None:
        makers |= {name: partial(digest_folder, given.shared.absolute() / part) for name, part in SHARED.items()}
    elif SHARED.keys() & {*given.update, *given.check}:
        parser.error("--shared is missing: the folder that contains bugs and data")
    if not given.update and not given.check:
        with temporary_directory():
            make_archives()
    differences = 0
    for name in given.check:
        with temporary_directory():
            lines = find_differences(read_json(name), json.loads(json.dumps(makers[name]())))
        print(f"{name}: {len(lines)} differences (before → now)", *lines[:MAX_SHOWN], sep="\n  ")
        differences += len(lines)
    for name in given.update or ([] if given.check else UPDATES):
        with temporary_directory():
            write_json(HERE / f"{name}.json", makers[name]())
        print(f"{HERE / name}.json")
    sys.exit(differences > 0)


@contextlib.contextmanager
def temporary_directory() -> Any:
    """Work in a new folder, and delete it."""
    with tempfile.TemporaryDirectory(prefix="old-artefacts-") as folder, contextlib.chdir(folder):
        yield


if __name__ == "__main__":
    main()
