"""The model card of a folder: `README.md` with metadata for the hub, measured scores, and how to load the model.

Everything in it comes from the folder's own files and from the records of the run that wrote it, so that equal runs
write equal cards: no date, no duration, no path of the user.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.files import digest_file, read_json, write_text
from bertwright.base.settings import read_toml
from bertwright.interop.model_files import CARD, CONFIG, MODULES, OWN_HEAD
from bertwright.interop.model_format import find_architecture
from bertwright.systems.registry import folder_formats

MARK = "<!-- Written by bertwright. Without this line, the file is yours: no command replaces it. -->"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
# Kind of a task → the hub's name for what the model does, and the method of `bertwright.load(FOLDER)`.
PIPELINES = {
    "classification": ("text-classification", 'classify(["a text"])'),
    "multi-label": ("text-classification", 'classify(["a text"])'),
    "regression": ("text-classification", 'classify(["a text"])'),
    "multiple-choice": ("multiple-choice", 'choose("a prompt", ["an ending", "another"])'),
    "tagging": ("token-classification", 'tag("a text")'),
    "question-answering": ("question-answering", 'answer("a question", "a text that answers it")'),
    "embedding": ("sentence-similarity", 'embed(["a text"])'),
    "distillation": ("sentence-similarity", 'embed(["a text"])'),
    "reranking": ("text-ranking", 'rank("a query", ["a text", "another"])'),
    "translation": ("translation", ""),
    "masked language model": ("fill-mask", 'fill_mask("a [MASK] text")'),
    "language model": ("text-generation", 'generate("A text begins")'),
    "encoder": ("feature-extraction", 'embed(["a text"])'),
}
# Settings of a run that are paths, or that have no influence on the model.
UNLISTED = re.compile(
    r"run|model|store|resume|dry_run|track|vectors|show_examples|linear_floor|keep_\w+|\w+_(every|source|target)"
)


class Measured(NamedTuple):
    """Scores of a split: of the model, and of the floors without a network."""

    split: str
    file: str
    """Name of its data, without folders."""
    scores: Mapping[str, float]
    floors: Mapping[str, Mapping[str, float]]
    """Scores by the floor's name."""


def write_card(folder: Path, run: Path | None = None, report: Mapping[str, Any] | None = None) -> None:
    """Write `README.md` into a model folder; leave one that bertwright has not written.

    `run`: the run folder of the training, with its settings and the digests of its data. `report`: its scores, as in
    `report.json`. The file is not among the checksums of the folder, so that its owner may edit it.
    """
    path = folder / CARD
    if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace"):
        return
    kind = find_kind(folder)
    settings = read_toml(run / "settings.toml") if run is not None else {}
    measured = list(_measured(kind, settings, report or {}))
    parts = ["---", _metadata(folder, kind, settings, measured), "---", MARK, ""]
    parts += [f"# {_model_type(folder)}: {kind}", "", *_loading(folder, kind)]
    parts += [*_scores(measured), *_training(settings), *_data(run)]
    write_text(path, "\n".join(parts) + "\n")


def find_kind(folder: Path) -> str:
    """Return the kind of the task of a model folder, else what a pre-trained model does: a key of `PIPELINES`."""
    if (folder / "task.json").is_file():
        return str(read_json(folder / "task.json").get("kind"))
    classes = " ".join(read_json(folder / CONFIG).get("architectures") or ())
    if "MarianMT" in classes:
        return "translation"
    if "LMHead" in classes:
        return "language model"
    return "masked language model" if re.search("PreTraining|MaskedLM", classes) else "encoder"


def _model_type(folder: Path) -> str:
    return str(read_json(folder / CONFIG).get("model_type")).removesuffix(OWN_HEAD)


def _measured(kind: str, settings: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[Measured]:
    """Yield the scores of a report of any kind of run; a score before training is no result of the model."""
    floors = report.get("linear_floor", {})
    for split, scores in report.get("scores", {}).items():
        if not split.endswith(" before"):
            task = settings.get("task", {})
            files = task.get(split) or settings.get("dev_source") or [f"{task.get('task', '')} {split}".strip()]
            names = ", ".join(Path(name).name for name in ([files] if isinstance(files, str) else files))
            of_split = {name: by_split[split] for name, by_split in floors.items() if split in by_split}
            yield Measured(split, names, scores, of_split)
    if held_out := report.get("held_out_after"):
        scores = {name: value for name, value in held_out.items() if name not in ("kind", "step")}
        yield Measured("held-out", "held-out documents of the store", scores, {})


def _metadata(folder: Path, kind: str, settings: Mapping[str, Any], measured: list[Measured]) -> str:
    """Return the metadata as YAML, in the form of `huggingface_hub.ModelCard`."""
    from huggingface_hub import EvalResult, ModelCardData

    pipeline = PIPELINES.get(kind, ("feature-extraction", ""))[0]
    results = [
        EvalResult(
            task_type=pipeline, dataset_type="file", dataset_name=row.file, dataset_split=row.split,
            metric_type=name, metric_value=round(value, 6), metric_name=f"{name}, {floor}" if floor else name,
        )
        for row in measured
        for floor, scores in {"": row.scores, **row.floors}.items()
        for name, value in scores.items()
    ]  # fmt: skip
    base = str(settings.get("model") if "task" in settings else settings.get("model", {}).get("init", ""))
    is_hub_name = HUB_NAME.fullmatch(base) and not Path(base).exists()
    libraries = [name for name, _ in _openers(folder, kind)]
    data = ModelCardData(
        model_name=f"{_model_type(folder)} {kind}" if results else None,
        library_name=libraries[-1] if len(libraries) > 1 else "bertwright",
        pipeline_tag=pipeline,
        tags=["bertwright", _model_type(folder)],
        base_model=base if is_hub_name else None,
        eval_results=results or None,
    )
    return data.to_yaml().rstrip()


def _openers(folder: Path, kind: str) -> Iterator[tuple[str, str]]:
    """Yield each library that opens the folder, with the code that does."""
    method = PIPELINES.get(kind, ("", ""))[1]
    code = 'bertwright.load_translator("FOLDER")' if kind == "translation" else 'bertwright.load("FOLDER")'
    yield "bertwright", f"import bertwright\n\nmodel = {code}" + (f"\nmodel.{method}" if method else "")
    values, model_type = read_json(folder / CONFIG), _model_type(folder)
    known = folder_formats()
    in_transformers = kind == "translation" or model_type in known and find_architecture(model_type).in_transformers
    classes, remote = values.get("architectures") or [], values.get("auto_map")
    if in_transformers and classes and (remote or not str(values.get("model_type")).endswith(OWN_HEAD)):
        auto = next((name for name in remote or () if name.startswith("AutoModelFor")), None)
        name, argument = (auto, ", trust_remote_code=True") if auto else (classes[0], "")
        yield "transformers", (
            f"from transformers import AutoTokenizer, {name}\n\n"
            f'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\nmodel = {name}.from_pretrained("FOLDER"{argument})'
        )
        if kind == "reranking" and not remote:
            yield "sentence-transformers", _sentence_transformers("CrossEncoder", 'rank("a query", ["a text"])')
    if (folder / MODULES).is_file():
        yield "sentence-transformers", _sentence_transformers("SentenceTransformer", 'encode(["a text"])')


def _sentence_transformers(name: str, method: str) -> str:
    return f'from sentence_transformers import {name}\n\nmodel = {name}("FOLDER")\nmodel.{method}'


def _loading(folder: Path, kind: str) -> Iterator[str]:
    yield "## Load"
    for name, code in _openers(folder, kind):
        yield f"\n{name}:\n\n```python\n{code}\n```"
    if labels := (read_json(folder / "task.json") if (folder / "task.json").is_file() else {}).get("labels"):
        shown = ", ".join(f"`{_cell(label)}`" for label in labels[:50])
        yield f"\n{len(labels)} labels: {shown}{' …' if len(labels) > 50 else ''}"


def _scores(measured: list[Measured]) -> Iterator[str]:
    yield "\n## Scores\n"
    if not measured:
        yield "None was measured when this folder was written."
        return
    names = list(dict.fromkeys(name for row in measured for name in row.floors))
    yield f"| data | metric | this model |{''.join(f' {_cell(name)} |' for name in names)}\n|---|---|---|{'---|' * len(names)}"
    for row in measured:
        for metric, value in row.scores.items():
            floors = [row.floors.get(name, {}).get(metric) for name in names]
            cells = (f"{score:.4f}" if score is not None else "" for score in (value, *floors))
            yield f"| {_cell(row.file)} ({row.split}) | {metric} | {' | '.join(cells)} |"
    if any(row.split == "dev" for row in measured):
        yield "\nThe dev split chose the weights, so its score is too good by the luck of that choice."


def _training(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the settings that influence the model, as a table; what is off or without effect is left out."""
    unused = {"device", "task", *(() if "architecture" in settings else ("words",))}
    rows = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    for table, values in settings.items():
        if isinstance(values, dict) and table not in unused:
            rows |= {f"{table}.{name}": value for name, value in values.items() if value or table == "optimizer"}
    listed = {name: value for name, value in rows.items() if not (UNLISTED.fullmatch(name) or isinstance(value, dict))}
    listed = {name: value for name, value in listed.items() if value is not False and value != [] and "/" not in str(value)}
    if listed:
        yield "\n## Training\n\n| setting | value |\n|---|---|"
        yield from (f"| {name} | {_cell(value)} |" for name, value in listed.items())


def _data(run: Path | None) -> Iterator[str]:
    """Yield the names of the data that a run has read, and their digests."""
    recorded = read_json(run / "data.json") if run is not None else {}
    if recorded:
        yield "\n## Data\n\nBLAKE2b digests of 128 bits, as `b2sum -l 128 FILE` prints them; others are bertwright's own.\n"
        yield "| data | digest |\n|---|---|"
    for name, digest in recorded.items():
        shown = digest_file(Path(name)) if Path(name).is_file() else f"{digest} (bertwright's own)"
        yield f"| {_cell(Path(name).name)} | {shown} |"


def _cell(value: object) -> str:
    """Return a value as a cell of a table in Markdown."""
    return re.sub(r"[\s|<>`]+", " ", str(value)).strip()
