"""The model card of a folder: `README.md` with metadata for the hub, measured scores, and how to load the model.

Everything in it comes from the folder's own files and from the records of the run that wrote it, so that equal runs
write equal cards: no date, no duration, no path of the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.files import digest_file, read_bytes, read_json, write_text
from bertwright.base.settings import read_toml
from bertwright.interop.model_files import CARD, CONFIG, MODULES, OWN_HEAD, SOURCE_WORDS
from bertwright.interop.model_format import find_architecture
from bertwright.systems.registry import folder_formats

MARK = "<!-- Written by bertwright. Without this line, the file is yours: no command replaces it. -->"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# Kind of a task, or what a pre-trained model does → its name on the hub, and a call of `bertwright.load(FOLDER)`.
PIPELINES = {
    "classification": ("text-classification", 'classify("a text")'),
    "multi-label": ("text-classification", 'classify("a text")'),
    "regression": ("text-classification", 'classify("a text")'),
    "multiple-choice": ("multiple-choice", 'choose("a prompt", ["an ending", "another"])'),
    "tagging": ("token-classification", 'tag("a text")'),
    "question-answering": ("question-answering", 'answer("a question", "a text that answers it")'),
    "embedding": ("sentence-similarity", 'embed(["a text"])'),
    "distillation": ("sentence-similarity", 'embed(["a text"])'),
    "reranking": ("text-ranking", 'rank("a query", ["a text", "another"])'),
    "masked language model": ("fill-mask", 'fill_mask("a [MASK] text")'),
    "language model": ("text-generation", 'generate("A text begins")'),
    "encoder": ("feature-extraction", 'embed(["a text"])'),
    "translation": ("translation", 'translate(["a text"])'),
}
CLASSES = (("MarianMT", "translation"), ("LMHead", "language model"), ("PreTraining|MaskedLM", "masked language model"))
# Settings of a run that are paths, or that have no influence on the model.
UNLISTED = re.compile(
    r"run|model|store|resume|dry_run|track|vectors|show_examples|linear_floor|keep_\w+|\w+_(every|source|target)"
)


class Scores(NamedTuple):
    """Scores on a split."""

    data: str
    """Name of the file, without folders."""
    split: str
    by_model: Mapping[str, Mapping[str, float]]
    """Scores by metric of this model, whose name is empty, and of the floors without a network."""


def write_card(folder: Path, run: Path | None = None, report: Mapping[str, Any] | None = None) -> None:
    """Write `README.md` into a model folder with a config.json; leave one that bertwright has not written.

    `run`: the run folder of the training, with its settings and the digests of its data. `report`: its scores, as in
    `report.json`. The file is not among the checksums of the folder, so that its owner may edit it.
    """
    path = folder / CARD
    if not (folder / CONFIG).is_file() or (path.exists() and MARK.encode() not in read_bytes(path)):
        return
    config = read_json(folder / CONFIG)
    task = read_json(folder / "task.json") if (folder / "task.json").is_file() else {}
    classes = " ".join(config.get("architectures") or ())
    found = next((kind for pattern, kind in CLASSES if re.search(pattern, classes)), "encoder")
    if (folder / SOURCE_WORDS).is_file() or config.get("is_decoder"):  # a left-to-right BERT fills no masks
        found = "translation" if (folder / SOURCE_WORDS).is_file() else "encoder"
    kind = task.get("kind", found)
    settings, data = (read_toml(run / "settings.toml"), read_json(run / "data.json")) if run else ({}, {})
    scores, openers = list(_scores_of(settings, report or {})), dict(_openers(folder, config, kind))
    title = f"{str(config.get('model_type')).removesuffix(OWN_HEAD)}: {kind}"
    lines = ["---", _metadata(title, settings, scores, openers), "---", MARK, f"\n# {title}\n\n## Load"]
    lines += [f"\n{library}:\n\n```python\n{code}\n```" for library, code in openers.items()]
    if labels := task.get("labels"):
        more = " …" if len(labels) > 50 else ""
        lines.append(f"\n{len(labels)} labels: {', '.join(f'`{_cell(label)}`' for label in labels[:50])}{more}")
    write_text(path, "\n".join([*lines, *_describe_scores(scores), *_describe_training(settings, data)]) + "\n")


def _scores_of(settings: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[Scores]:
    """Yield the scores in the report of any kind of run that are of the model itself."""
    task = settings.get("task", {})
    for split, scores in report.get("scores", {}).items():
        if not re.search(" before$|^last checkpoint", split):  # translation averages checkpoints into the model
            files = task.get(split) or settings.get("dev_source") or [f"{task.get('task', '')} {split}".strip()]
            names = ", ".join(Path(name).name for name in ([files] if isinstance(files, str) else files))
            others = {name: found[split] for name, found in report.get("linear_floor", {}).items() if split in found}
            if before := report["scores"].get(f"{split} before"):
                others["before training"] = before
            yield Scores(names, split, {"": scores, **others})
    if held_out := report.get("held_out_after"):
        scores = {name: value for name, value in held_out.items() if name not in ("kind", "step")}
        yield Scores("documents of the store", "held-out", {"": scores})


def _metadata(title: str, settings: Mapping[str, Any], scores: list[Scores], openers: Mapping[str, str]) -> str:
    """Return the metadata as YAML, in the form of `huggingface_hub.ModelCard`."""
    from huggingface_hub import EvalResult, ModelCardData

    model_type, kind = title.split(": ", 1)
    pipeline = PIPELINES.get(kind, PIPELINES["encoder"])[0]
    results = [
        EvalResult(
            *(pipeline, "file", row.data, metric, round(value, 6)),
            dataset_split=row.split,  # by which the hub groups the scores
            metric_name=f"{metric} {model}".strip(),
        )
        for row in scores
        for model, found in row.by_model.items()
        for metric, value in found.items()
    ]
    base = str(settings.get("model") if "task" in settings else settings.get("model", {}).get("init"))
    return ModelCardData(
        model_name=title if results else None,
        library_name=list(openers)[1 if len(openers) > 1 else 0],
        pipeline_tag=pipeline,
        tags=["bertwright", model_type],
        base_model=base if HUB_NAME.fullmatch(base) and not Path(base).exists() else None,
        eval_results=results or None,
    ).to_yaml()


def _openers(folder: Path, config: Mapping[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    """Yield each library that opens the folder, with the code that does: ours, then the one for such models."""
    model_type, classes, remote = str(config.get("model_type")), config.get("architectures"), config.get("auto_map")
    system, is_shared = model_type.removesuffix(OWN_HEAD), "MarianMTModel" in (classes or ())
    if system in folder_formats():
        architecture = find_architecture(system)  # of several model types; the encoder names the one that others know
        is_shared = architecture.in_transformers and architecture.encoder.model_type == system
    load, call = "load_translator" if kind == "translation" else "load", PIPELINES.get(kind, PIPELINES["encoder"])[1]
    of_vectors = (folder / MODULES).is_file()
    has_call = is_shared or kind != "encoder" or of_vectors
    code = f'import bertwright\n\nmodel = bertwright.{load}("FOLDER")'
    yield "bertwright", f"{code}\nmodel.{call}" if has_call else code
    if of_vectors or (kind == "reranking" and is_shared and not remote):
        name, call = ("CrossEncoder", call) if kind == "reranking" else ("SentenceTransformer", 'encode(["a text"])')
        code = f'from sentence_transformers import {name}\n\nmodel = {name}("FOLDER")\nmodel.{call}'
        yield "sentence-transformers", code
    if is_shared and classes and (remote or not model_type.endswith(OWN_HEAD)):
        auto = next((name for name in remote or () if name.startswith("AutoModelFor")), "")
        name = "AutoModel" if of_vectors else auto or classes[0]
        code = ", trust_remote_code=True" if auto else ""
        yield (
            "transformers",
            f'from transformers import AutoTokenizer, {name}\n\ntokenizer = AutoTokenizer.from_pretrained("FOLDER")\n'
            f'model = {name}.from_pretrained("FOLDER"{code})',
        )


def _describe_scores(scores: list[Scores]) -> Iterator[str]:
    yield "\n## Scores\n"
    if not scores:
        yield "None was measured when this folder was written."
        return
    models = list(dict.fromkeys(model for row in scores for model in row.by_model))
    names = " | ".join(_cell(model) or "this model" for model in models)
    yield f"| data | metric | {names} |\n|---|---|{'---|' * len(models)}"
    for row in scores:
        for metric in row.by_model[""]:
            found = [row.by_model.get(model, {}).get(metric) for model in models]
            cells = " | ".join("" if value is None else f"{value:.4f}" for value in found)
            yield f"| {_cell(row.data)} ({row.split}) | {metric} | {cells} |"
    if any(row.split == "dev" for row in scores):
        yield "\nThe dev split may have chosen the weights; then its score is too good by the luck of that choice."


def _describe_training(settings: Mapping[str, Any], data: Mapping[str, str]) -> Iterator[str]:
    """Yield the settings that influence the model, without what is off, and the names and digests of the data."""
    unused = {"device", "task", *(() if "architecture" in settings else ("words",))}
    rows = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    for table, values in settings.items():
        if isinstance(values, dict) and table not in unused:
            rows |= {f"{table}.{name}": value for name, value in values.items() if value or table == "optimizer"}
    listed = {name: value for name, value in rows.items() if not (UNLISTED.fullmatch(name) or isinstance(value, dict))}
    if listed:
        yield "\n## Training\n\n| setting | value |\n|---|---|"
    for name, value in listed.items():
        if value is not False and value != [] and "/" not in str(value):
            yield f"| {name} | {_cell(value)} |"
    if data:
        yield "\nBLAKE2b digests of 128 bits, as `b2sum -l 128 FILE` prints them; others are bertwright's own.\n"
        yield "| data | digest |\n|---|---|"
    for name, digest in data.items():
        shown = digest_file(Path(name)) if Path(name).is_file() else f"{digest} (bertwright's own)"
        yield f"| {_cell(Path(name).name)} | {shown} |"


def _cell(value: object) -> str:
    return re.sub(r"[\s|<>`]+", " ", str(value)).strip()
