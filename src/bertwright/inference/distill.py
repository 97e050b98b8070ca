"""`bertwright distill`: a smaller model with the vectors of a teacher, or with the logits of a classifier."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from bertwright.base.files import atomic_file, check_absent, digest_file, write_text
from bertwright.base.npy import NpyWriter
from bertwright.base.reporter import SILENT, Line, Outputs, Reporter
from bertwright.base.settings import Positional, check_limit, check_minimum, check_not_str
from bertwright.interop.model_files import check_model, digest_model, model_folder, read_model_config
from bertwright.systems.registry import default_learning_rate
from bertwright.tasks.teacher_outputs import OutputRecord, check_record, digest_texts, read_record, write_record
from bertwright.text.decoding import check_encoding
from bertwright.text.sources import check_exist
from bertwright.training.device_settings import DeviceSettings

if TYPE_CHECKING:
    from torch import Tensor

    from bertwright.inference.bert import Bert
    from bertwright.models.pooling import Vectors
    from bertwright.tables.text_roles import TextRow
    from bertwright.tasks.presets import TaskSettings

TEXTS, VECTORS, LOGITS = "texts.jsonl", "vectors.npy", "logits.npy"  # in the cache
COPIED_OPTIONS = (  # of a teacher
    "text", "text_pair", "label", "header", "quotes", "encoding", "max_length", "metric", "pos_label",
)  # fmt: skip
T = TypeVar("T")  # a row of texts
CHUNK = 2_048  # texts at a time; bounds memory alone


@dataclass(frozen=True)
class DistillSettings:
    """Make a smaller model with a teacher's vectors or, of a classifier, logits: --layers, --student or --static."""

    teacher: Positional[str]
    """Model folder, run folder or hub name of a model of text vectors, or of one that was fine-tuned for
    classification: then the student learns its logits."""
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
    """Files with unlabelled texts: .txt, one per line, or tables, whose rows give each of their texts. Of a classifier
    of pairs: tables with its columns."""
    translations: tuple[str, ...] = ()
    """Two files of equal length, line by line: texts in the teacher's language and their translations. The student
    learns the vector of a text for both, so that --student should know both languages."""
    dev: tuple[str, ...] = ()
    """Files that score the student: rated pairs, as in --task embedding, also before training; of a classifier,
    labeled texts in the columns that it was trained on."""
    encoding: str = "utf-8"
    """Encoding of these files by its name in Python, such as latin-1 or cp949."""
    cache: Path | None = None
    """Folder of the teacher's vectors or logits, to be created or used again; unset: RUN/teacher."""
    epochs: float = 1.0
    """Passes over the texts."""
    batch_size: int = 64
    """Texts per step."""
    learning_rate: float | None = None
    """Peak learning rate; unset: 2e-5 (of a classifier: 3e-5) · (768 / H)² for a student with a hidden size H of at
    most 768, up to 3e-4."""
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
        check_encoding(self.encoding)
        check_minimum(self, 1, "batch_size")
        check_limit(self, "above 0 and up to 10,000", "epochs")

    @property
    def cache_folder(self) -> Path:
        """The folder of what the teacher has computed."""
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
    from bertwright.tasks.classification import Classification
    from bertwright.tasks.embedding import Embedding
    from bertwright.training.context import execution_context

    with execution_context(settings.device) as context:
        # Not as the user asked: an exported teacher has a device and a dtype of its own, and the student is trained.
        teacher = open_model(settings.teacher, context.device, context.dtype)
        if settings.static is not None:
            save_static_model(teacher, settings.static, settings.run, reporter)
            example = f"bertwright {Embedding.example_command.format(shlex.quote(str(settings.run)))}"
            reporter.record(Outputs({"model": settings.run, "try it": example}))
            return settings.run
        check_layers(teacher, settings.layers)
        is_classifier = isinstance(teacher.task, Classification)
        make_task = prepare_logits if is_classifier else prepare_vectors
        task = make_task(settings, teacher, reporter)
        student = settings.student or str(save_layers(teacher, settings))
    return _train(settings, task, student, is_classifier and not settings.student, reporter)


def prepare_vectors(settings: DistillSettings, teacher: Bert, reporter: Reporter) -> TaskSettings:
    """Compute the teacher's vectors of all texts; return the task that learns them."""
    from bertwright.tasks.distillation import Distillation
    from bertwright.tasks.presets import TaskSettings
    from bertwright.tasks.task_types import TaskOptions

    rows = read_rows(settings)

    def embed(chunk: Sequence[TextRow]) -> Vectors:
        return teacher.embed_and_count([row.anchor for row in chunk])[0]

    record = OutputRecord(digest_model(settings.teacher), digest_texts([row.anchor for row in rows]), "")
    vectors = compute_outputs(settings.cache_folder / VECTORS, record, rows, embed, teacher.vector_size(), reporter)
    size = vector_size_of(settings.student) if settings.student else teacher.vector_size()
    lines = [{"anchor": row.anchor} | ({"positive": row.positives[0]} if row.positives else {}) for row in rows]
    texts = write_rows(settings, lines)
    options = TaskOptions(teacher_vectors=str(fit_size(vectors, size)), encoding=settings.encoding)
    return TaskSettings(Distillation.kind, train=(str(texts),), dev=settings.dev, overrides=options)


def prepare_logits(settings: DistillSettings, teacher: Bert, reporter: Reporter) -> TaskSettings:
    """Compute a classifier's logits for all texts; return the task that learns them.

    Raises ValueError for translations, which a classifier does not label.
    """
    from bertwright.tasks.classification import Classification
    from bertwright.tasks.prediction import predict_logits
    from bertwright.tasks.presets import TaskSettings
    from bertwright.tasks.task_types import TaskOptions
    from bertwright.tasks.text_task import TextExample

    model = teacher.task_model
    assert isinstance(teacher.task, Classification)
    task = replace(teacher.task, encoding=settings.encoding)
    assert model is not None
    if settings.translations:
        raise ValueError(f"translations: {settings.teacher} is a classifier; name --texts")
    examples: list[TextExample[str]]
    if task.text_pair is None:
        examples = [TextExample(row.anchor, None, None, row.location) for row in read_rows(settings)]
    else:
        examples = [example for path in settings.texts for example in task.read(path, labeled=False)]

    def classify(chunk: Sequence[TextExample[str]]) -> Vectors:
        return predict_logits(model.model, task.encode(chunk, teacher.tokenizer, labeled=False))

    record = OutputRecord(digest_model(settings.teacher), digest_texts([*task.texts(examples)]), "", task.labels)
    path = compute_outputs(settings.cache_folder / LOGITS, record, examples, classify, len(task.labels), reporter)
    best = np.load(path, mmap_mode="r").argmax(1)
    lines = [
        {task.text: example.text} | ({task.text_pair: example.text_pair} if task.text_pair else {})
        | {task.label: task.labels[number]}
        for example, number in zip(examples, best, strict=True)
    ]  # fmt: skip
    options = {name: getattr(task, name) for name in COPIED_OPTIONS}
    overrides = TaskOptions(teacher_logits=str(path), **options)
    texts = write_rows(settings, lines)
    return TaskSettings(task.kind, train=(str(texts),), dev=settings.dev, overrides=overrides)


def write_rows(settings: DistillSettings, rows: Sequence[Mapping[str, str | None]]) -> Path:
    """Write the rows that the student learns from into the cache, in the encoding of --dev; return the file."""
    path = settings.cache_folder / TEXTS
    write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows), settings.encoding)
    return path


def _train(settings: DistillSettings, task: TaskSettings, student: str, keeps_head: bool, reporter: Reporter) -> Path:
    """Train the student by a run of fine-tuning; `keeps_head`: it has the teacher's."""
    from bertwright.finetuning.run import finetune
    from bertwright.finetuning.settings import FinetuneSettings, TuningSettings, base_learning_rate, hidden_size_of
    from bertwright.training.optimizer_settings import OptimizerSettings

    hidden_size = hidden_size_of(read_model_config(student))
    rate = settings.learning_rate or default_learning_rate(base_learning_rate(task.task), hidden_size)
    return finetune(
        FinetuneSettings(
            run=settings.run,
            task=task,
            model=student,
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            seed=settings.seed,
            linear_floor=False,
            tuning=TuningSettings(keep_head=keeps_head),
            optimizer=OptimizerSettings(learning_rate=rate, warmup_ratio=0.1, weight_decay=0.0, bias_correction=True),
            device=settings.device,
        ),
        reporter,
    )


def read_rows(settings: DistillSettings) -> list[TextRow]:
    """Read the distinct texts, or the pairs of a text and its translation."""
    from bertwright.tables.text_roles import TableOptions, TextRow, read_text_table
    from bertwright.translation.parallel_text import read_parallel

    if settings.translations:
        source, target = settings.translations
        pairs = zip(*read_parallel([source], [target], settings.encoding), strict=True)
        return [TextRow(text, f"{source}, line {n}", (other,)) for n, (text, other) in enumerate(pairs, 1)]
    first = dict[str, str]()
    for path in settings.texts:
        for row in read_text_table(path, TableOptions(encoding=settings.encoding)).rows:
            for text in row.texts:
                first.setdefault(text, row.location)
    return [TextRow(text, location) for text, location in first.items()]


def compute_outputs(
    path: Path,
    record: OutputRecord,
    rows: Sequence[T],
    compute: Callable[[Sequence[T]], Vectors],
    size: int,
    reporter: Reporter,
) -> Path:
    """Compute the teacher's outputs for each row, `size` numbers, unless `path`, a file of the cache, has them.

    Returns the path. Raises ValueError if the file is of another teacher or of other texts.
    """
    if path.exists():
        check_record(path, record._replace(outputs=digest_file(path)))
        reporter.record(Line(f"{path}: the outputs of an earlier run are used"))
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        reporter.progress("teacher", len(rows)) as advance,
        atomic_file(path) as temporary,
        NpyWriter(temporary, np.float32, (size,)) as file,
    ):
        for start in range(0, len(rows), CHUNK):
            chunk = rows[start : start + CHUNK]
            file.append(compute(chunk))
            advance(len(chunk))
    write_record(path, record)
    return path


def fit_size(path: Path, size: int) -> Path:
    """Return a file with vectors of a student's size whose products are nearest to the teacher's.

    A smaller student learns the main directions, which is a projection without a mean; a larger one learns zeros in
    the rest. The file of the teacher's own size is returned as it is.
    """
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
    write_record(fitted, read_record(path))
    return fitted


def vector_size_of(student: str) -> int:
    """Return the numbers per vector of the model that a student starts from."""
    from bertwright.interop.huggingface import load_config
    from bertwright.interop.sentence_modules import read_sentence_modules

    folder = model_folder(student)
    modules, hidden_size = read_sentence_modules(folder), load_config(folder).hidden_size
    return modules.vector_size(hidden_size) if modules else hidden_size


def check_layers(teacher: Bert, layers: Sequence[int]) -> None:
    """Raise ValueError for a layer that the teacher lacks."""
    number = teacher.config.num_layers
    if odd := [layer for layer in layers if not 0 <= layer < number]:
        raise ValueError(f"--layers: expected 0 to {number - 1}, the layers of the teacher, got {odd[0]}")


def save_layers(teacher: Bert, settings: DistillSettings) -> Path:
    """Write a model with some layers of the teacher, in the order given, into the cache; return its folder.

    The teacher's digest is in the folder's name, because other teachers may use the same cache.
    A classifier keeps its head.
    """
    from bertwright.inference.bert import Bert
    from bertwright.models.encoder import EncoderModel
    from bertwright.models.task_model import EncoderForTask
    from bertwright.tasks.classification import Classification
    from bertwright.tasks.task_folder import TaskModel

    encoder, layers = teacher.model.encoder, settings.layers
    folder = settings.cache_folder / f"layers-{'-'.join(map(str, layers))}-{digest_model(settings.teacher)[:16]}"
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
    network: EncoderModel | TaskModel = EncoderModel(smaller)
    if isinstance(teacher.task, Classification) and isinstance(teacher.model, EncoderForTask):
        model = EncoderForTask(smaller, deepcopy(teacher.model.head))
        model.head.load_state_dict(teacher.model.head.state_dict())  # the line above draws random weights
        network = TaskModel(model, teacher.task)
    Bert(network, teacher.tokenizer, modules=teacher.sentence_modules).save(folder)
    return folder
