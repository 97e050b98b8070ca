"""`bertwright distill`: a smaller model with the vectors of a teacher."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bertwright.base.files import atomic_file, check_absent, digest_file, write_text
from bertwright.base.npy import NpyWriter
from bertwright.base.reporter import SILENT, Line, Outputs, Reporter
from bertwright.base.settings import Positional, check_limit, check_minimum, check_not_str
from bertwright.interop.model_files import check_model, digest_model, model_folder
from bertwright.systems.finetune_request import default_learning_rate
from bertwright.text.sources import check_exist
from bertwright.training.device_settings import DeviceSettings

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.inference.bert import Bert
    from bertwright.tables.text_roles import TextRow

TEXTS, VECTORS = "texts.jsonl", "vectors.npy"  # in the cache
CHUNK, BATCH_TOKENS = 2_048, 8_192  # texts at a time, and tokens per forward pass; they bound memory alone


@dataclass(frozen=True)
class DistillSettings:
    """Make a smaller model with the vectors of a teacher; choose --layers, --student or --static."""

    teacher: Positional[str]
    """Model folder, run folder or hub name of a model of text vectors."""
    run: Path
    """Run folder, to be created; with --static, the model folder."""
    layers: tuple[int, ...] = ()
    """Layers of the teacher that the student starts with, counted from 0, as in 0 2 5."""
    student: str | None = None
    """Model folder, run folder or hub name that the student starts from. If its vectors have another size, it learns
    the teacher's vectors in their main directions."""
    static: int | None = None
    """Numbers per vector of a model without layers: the mean of a vector per token. It needs no texts."""
    texts: tuple[str, ...] = ()
    """Files with unlabelled texts: .txt, one per line, or tables, whose rows give each of their texts."""
    translations: tuple[str, ...] = ()
    """Two files of equal length, line by line: texts in the teacher's language and their translations. The student
    learns the vector of a text for both, so that --student should know both languages."""
    dev: tuple[str, ...] = ()
    """Files that score the student, also before training: rated pairs, as in --task embedding."""
    cache: Path | None = None
    """Folder of the teacher's vectors, to be created or used again; unset: RUN/teacher."""
    epochs: float = 1.0
    """Passes over the texts."""
    batch_size: int = 64
    """Texts per step."""
    learning_rate: float | None = None
    """Peak learning rate; unset: 2e-5 · (768 / H)² for a student with hidden size H, at most 3e-4."""
    seed: int = 0
    """Seed of the order of the texts."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "layers", "texts", "translations", "dev")
        chosen = [name for name in ("layers", "student", "static") if getattr(self, name)]
        if len(chosen) != 1:
            raise ValueError(f"expected one of --layers, --student and --static, got {' and '.join(chosen) or 'none'}")
        if self.static is not None:
            check_minimum(self, 1, "static")
            if given := [name for name in ("texts", "translations", "dev", "cache") if getattr(self, name)]:
                raise ValueError(f"{given[0]}: --static reads the vocabulary alone; omit it")
        elif bool(self.texts) == bool(self.translations):
            raise ValueError("expected either --texts, files with unlabelled texts, or --translations, two files")
        if self.translations and len(self.translations) != 2:
            raise ValueError(f"translations: expected two files, got {len(self.translations)}")
        check_minimum(self, 1, "batch_size")
        check_limit(self, "above 0 and up to 10,000", "epochs")

    @property
    def cache_folder(self) -> Path:
        """The folder of the teacher's vectors."""
        return self.cache or self.run / "teacher"


def check_inputs(settings: DistillSettings) -> None:
    """Check paths without torch. Raises ValueError for a folder that has a run, and for missing models and files."""
    if settings.static is not None:
        check_absent(settings.run)
    elif any((settings.run / name).exists() for name in ("settings.toml", "model")):
        raise ValueError(
            f"{settings.run}: already holds a run; go on with it by bertwright finetune --resume --run {settings.run}, "
            "or name another --run"
        )
    for name in filter(None, (settings.teacher, settings.student)):
        check_model(name)
    check_exist((*settings.texts, *settings.translations, *settings.dev))


def distill(settings: DistillSettings, reporter: Reporter = SILENT) -> Path:
    """Train a student, or compute a static model; return its folder.

    An interrupted training goes on with `bertwright finetune --resume`. Raises ValueError for texts and models that are
    not usable, and for vectors in the cache that are of another teacher or of other texts.
    """
    check_inputs(settings)
    from bertwright.inference.bert import open_model
    from bertwright.inference.static_vectors import save_static_model
    from bertwright.training.context import execution_context

    with execution_context(settings.device) as context:
        teacher = open_model(settings.teacher, context.device, context.dtype)
        if settings.static is not None:
            save_static_model(teacher, settings.static, settings.run, reporter)
            reporter.record(Outputs({"model": settings.run}))
            return settings.run
        rows = read_rows(settings)
        settings.cache_folder.mkdir(parents=True, exist_ok=True)
        vectors = compute_teacher_vectors(settings, teacher, rows, reporter)
        student = settings.student or str(save_layers(teacher, settings.layers, settings.cache_folder))
        vectors = fit_size(vectors, vector_size_of(student))
    texts = settings.cache_folder / TEXTS
    lines = ({"anchor": row.anchor} | ({"positive": row.positives[0]} if row.positives else {}) for row in rows)
    write_text(texts, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines))
    return _train(settings, student, texts, vectors, reporter)


def _train(settings: DistillSettings, student: str, texts: Path, vectors: Path, reporter: Reporter) -> Path:
    """Train the student by a run of fine-tuning."""
    from bertwright.finetuning.run import finetune
    from bertwright.finetuning.settings import FinetuneSettings, base_learning_rate, read_hidden_size
    from bertwright.tasks.distillation import Distillation
    from bertwright.tasks.presets import TaskSettings
    from bertwright.tasks.task_types import TaskOptions
    from bertwright.training.optimizer_settings import OptimizerSettings

    rate = settings.learning_rate or default_learning_rate(
        base_learning_rate(Distillation.kind), read_hidden_size(student)
    )
    options = TaskOptions(teacher_vectors=str(vectors))
    return finetune(
        FinetuneSettings(
            run=settings.run,
            task=TaskSettings(Distillation.kind, train=(str(texts),), dev=settings.dev, overrides=options),
            model=student,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            seed=settings.seed,
            linear_floor=False,
            optimizer=OptimizerSettings(learning_rate=rate, warmup_ratio=0.1, weight_decay=0.0, bias_correction=True),
            device=settings.device,
        ),
        reporter,
    )


def read_rows(settings: DistillSettings) -> list[TextRow]:
    """Read the distinct texts, or the pairs of a text and its translation."""
    from bertwright.tables.text_roles import TextRow, read_text_table
    from bertwright.translation.parallel_text import read_parallel

    if settings.translations:
        source, target = settings.translations
        pairs = zip(*read_parallel([source], [target]), strict=True)
        return [TextRow(text, f"{source}, line {n}", (other,)) for n, (text, other) in enumerate(pairs, 1)]
    first = dict[str, str]()
    for path in settings.texts:
        for row in read_text_table(path).rows:
            for text in row.texts:
                first.setdefault(text, row.location)
    return [TextRow(text, location) for text, location in first.items()]


def compute_teacher_vectors(
    settings: DistillSettings, teacher: Bert, rows: Sequence[TextRow], reporter: Reporter
) -> Path:
    """Return the file with the teacher's vector of each text; computed only if the cache does not have it.

    Raises ValueError if the cache has vectors of another teacher or of other texts.
    """
    from bertwright.tasks.distillation import VectorRecord, check_record, digest_texts, write_record

    path = settings.cache_folder / VECTORS
    record = VectorRecord(
        digest_model(settings.teacher), digest_texts(rows), digest_file(path) if path.exists() else ""
    )
    if path.exists():
        check_record(path, record)
        reporter.record(Line(f"{path}: the vectors of an earlier run are used"))
        return path
    with (
        reporter.progress("teacher", len(rows)) as advance,
        atomic_file(path) as temporary,
        NpyWriter(temporary, np.float32, (teacher.vector_size(),)) as file,
    ):
        for start in range(0, len(rows), CHUNK):
            texts = [row.anchor for row in rows[start : start + CHUNK]]
            file.append(teacher.embed_and_count(texts, None, None, BATCH_TOKENS, None, None)[0])
            advance(len(texts))
    write_record(path, record._replace(vectors=digest_file(path)))
    return path


def fit_size(path: Path, size: int) -> Path:
    """Return a file with vectors of a student's size whose products are nearest to the teacher's.

    A smaller student learns the main directions, which is a projection without a mean; a larger one learns zeros in
    the rest. The file of the teacher's own size is returned as it is.
    """
    from bertwright.tasks.distillation import read_record, write_record

    vectors = np.load(path, mmap_mode="r")
    if vectors.shape[1] == size:
        return path
    fitted = path.with_name(f"{path.stem}-{size}.npy")
    if vectors.shape[1] > size:
        parts = (vectors[start : start + CHUNK].astype(np.float64) for start in range(0, len(vectors), CHUNK))
        products = sum(part.T @ part for part in parts)
        directions = np.linalg.eigh(products)[1][:, : -size - 1 : -1]
    else:
        directions = np.eye(vectors.shape[1], size)
    with atomic_file(fitted) as temporary, NpyWriter(temporary, np.float32, (size,)) as file:
        for start in range(0, len(vectors), CHUNK):
            file.append(vectors[start : start + CHUNK] @ directions)
    write_record(fitted, read_record(path)._replace(vectors=digest_file(fitted)))
    return fitted


def vector_size_of(student: str) -> int:
    """Return the numbers per vector of the model that a student starts from."""
    from bertwright.interop.huggingface import load_config
    from bertwright.interop.sentence_modules import read_sentence_modules

    folder = model_folder(student)
    modules, hidden_size = read_sentence_modules(folder), load_config(folder).hidden_size
    return modules.vector_size(hidden_size) if modules else hidden_size


def save_layers(teacher: Bert, layers: Sequence[int], cache: Path) -> Path:
    """Write a model with some layers of the teacher, in the order given, into the cache; return its folder.

    Raises ValueError for a layer that the teacher lacks.
    """
    from bertwright.inference.bert import Bert
    from bertwright.models.encoder import EncoderModel

    encoder, number = teacher.model.encoder, teacher.config.num_layers
    if odd := [layer for layer in layers if not 0 <= layer < number]:
        raise ValueError(f"layers: expected 0 to {number - 1}, the layers of the teacher, got {odd[0]}")
    folder = cache / f"layers-{'-'.join(map(str, layers))}"
    if folder.exists():
        return folder
    state: dict[str, Tensor] = {}
    for name, tensor in encoder.state_dict().items():
        module, _, inside = name.partition(".")
        layer, _, rest = inside.partition(".")
        places = [place for place, number in enumerate(layers) if module == "layers" and number == int(layer)]
        state |= {f"layers.{place}.{rest}": tensor for place in places} if module == "layers" else {name: tensor}
    smaller = type(encoder)(replace(encoder.config, num_layers=len(layers)))  # type: ignore[type-var]
    smaller.load_state_dict(state)
    Bert(EncoderModel(smaller), teacher.tokenizer, modules=teacher.sentence_modules).save(folder)
    return folder
