"""The models of a server: loaded, checked by a first answer, found by name and method, replaced in a reload."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertwright.base.files import read_json
from bertwright.inference.bert import Bert, open_in
from bertwright.inference.search_index import SearchIndex
from bertwright.kernels.cpu import trim_malloc
from bertwright.search.vector_index import MODEL
from bertwright.serving.model_methods import ALL_METHODS, METHODS, Counts, embedding_length, task_length
from bertwright.serving.replies import HttpError
from bertwright.serving.serve_settings import ServeSettings
from bertwright.tasks.prediction import BATCH_TOKENS
from bertwright.training.context import ExecutionContext

DECAY = 0.9  # weight of what was measured before the newest batch
MEASURED_TOKENS, MEASURED_S = 1_000, 0.1  # smaller batches say little of the speed under load
DENSITY = 0.1, 2.0  # least and most tokens per character: no client can teach that its next texts cost nothing
TOLERANCE = 1e-3  # between an answer alone and in a batch: bfloat16 rounds by this much


@dataclass(eq=False)
class ServedModel:
    """A model, the methods that it has, and its measured speed."""

    name: str
    bert: Bert
    methods: tuple[str, ...] = ()
    """Names in METHODS; the model's purpose comes first."""
    tokens_per_character: float = 0.25
    measured_cost: float = 50.0
    """Estimated tokens of a first batch, which stand for a method until it is used."""
    measured_s: float = 0.01
    """Seconds that they took."""
    speeds: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By method, estimated tokens and seconds of the last batches, older ones with less weight."""
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def max_length(self) -> int:
        """Longest sequence in tokens."""
        own = None if self.bert.task else embedding_length(self.bert)
        return own or task_length(self.bert)

    @property
    def purpose(self) -> str:
        """The method that the model was trained for."""
        return self.methods[0]

    def rate(self, method: str) -> float:
        cost, seconds = self.speeds.get(method, (self.measured_cost, self.measured_s))
        return cost / seconds

    def cost(self, method: str, item: Any, options: Mapping[str, Any]) -> int:
        """Estimate the tokens of an item. Raises ValueError for options that the model lacks."""
        return ALL_METHODS[method].estimate(self.bert, item, self.tokens_per_character, options)

    def results(self, method: str, item: Any, options: Mapping[str, Any]) -> int:
        """Return the most results that an item can have, as far as the request chooses it."""
        return ALL_METHODS[method].results(self.bert, item, **options)

    def measure(self, method: str, items: Sequence[Any], options: Mapping[str, Any]) -> Counts:
        """Count the tokens that are read of each item, and say which items are truncated."""
        return ALL_METHODS[method].measure(self.bert, items, options)

    def compute(self, method: str, items: Sequence[Any], options: Mapping[str, Any]) -> Sequence[Any]:
        """Compute the results of some items. Raises ValueError for items that the model cannot read."""
        return ALL_METHODS[method].compute(self.bert, items, **options)

    def learn_rate(self, method: str, cost: int, density: float | None, seconds: float) -> None:
        """Take a computed batch into the measured speed; `cost`: its estimated tokens, `density`: as in `Counts`."""
        if cost >= MEASURED_TOKENS or seconds >= MEASURED_S:
            before = self.speeds.get(method, (self.measured_cost, self.measured_s))
            self.speeds[method] = DECAY * before[0] + cost, DECAY * before[1] + seconds
        if density is not None:
            measured = min(max(density, DENSITY[0]), DENSITY[1])
            self.tokens_per_character = DECAY * self.tokens_per_character + (1 - DECAY) * measured

    def warm_up(self) -> None:
        """Find the model's methods by trying each. Raises ValueError if an answer alone and in a batch differ."""
        found = []
        for name, method in METHODS.items():
            try:
                items = method.probe(self.bert)
                together = method.compute(self.bert, items)
            except ValueError:
                continue
            alone = [result for item in items for result in method.compute(self.bert, [item])]
            if not np.allclose(numbers_of(together), numbers_of(alone), atol=TOLERANCE):
                raise ValueError(
                    f"{self.name}: {name}: an answer alone and in a batch differ; this machine computes wrongly"
                )
            found.append(name)
        if not found:
            raise ValueError(f"{self.name}: expected a model that answers something, got one without any method")
        self.methods = tuple(found)
        if self.purpose != "generate":
            self._measure_speed(self.purpose)

    def _measure_speed(self, method: str) -> None:
        """Compute a batch as large as under load, for the first promises of waits."""
        probe = METHODS[method].probe(self.bert)
        items = probe * (1 + MEASURED_TOKENS // sum(self.measure(method, probe, {}).tokens))
        began = time.perf_counter()
        tokens = sum(self.measure(method, items, {}).tokens)
        self.compute(method, items, {})
        self.measured_cost, self.measured_s = float(tokens), time.perf_counter() - began


def numbers_of(value: Any) -> list[float]:
    """Return all numbers in nested results.

    >>> numbers_of([("a", {"b": 0.5}), 1])
    [0.5, 1.0]
    """
    if isinstance(value, np.ndarray):
        return [float(number) for number in value.ravel()]
    if isinstance(value, (int, float)):
        return [float(value)]
    parts = value.values() if isinstance(value, dict) else () if isinstance(value, str) else value or ()
    return [number for part in parts for number in numbers_of(part)]


@dataclass(eq=False)
class ServedModels:
    """All models of a server, in the order of the command line."""

    settings: ServeSettings
    context: ExecutionContext
    by_name: dict[str, ServedModel] = field(default_factory=dict)
    index: SearchIndex | None = None
    index_model: str = ""
    """Name of the model that embeds the queries of the index."""
    is_ready: bool = False
    """True once the answers of all models were right."""
    in_turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by the first answers and by each reload, one after the other."""

    @property
    def batch_tokens(self) -> int:
        """Tokens per batch."""
        return self.settings.limits.batch_tokens or BATCH_TOKENS[self.context.device.type]

    def load(self) -> None:
        """Load all models at the start; another thread lets them answer, while the server says that it starts.

        A thread that ends does it, so that only the batcher's thread keeps a team of OpenMP threads: once there are
        more threads in teams than CPUs, libgomp lets them sleep at each barrier, and a short text takes twice as long.
        """
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self._load_all, False).result()

    def reload(self) -> None:
        """Load all models again, and let them answer; those before stay until all new ones have answered rightly."""
        with self.in_turn, ThreadPoolExecutor(1) as thread:
            thread.submit(self._load_all, True).result()
            self.is_ready = True

    def _load_all(self, warm_up: bool) -> None:
        by_name = dict[str, ServedModel]()
        for name in self.settings.models:
            self._load(name, by_name)
        index, index_model = self._open_index(by_name, self.settings.index) if self.settings.index else (None, "")
        for model in by_name.values() if warm_up else ():
            model.warm_up()
        for name, model in self.by_name.items():
            if name in by_name:
                by_name[name].examples = model.examples
        self.by_name, self.index, self.index_model = by_name, index, index_model
        trim_malloc()  # loading took more: for weights that are shared, for files

    def _open_index(self, by_name: dict[str, ServedModel], folder: Path) -> tuple[SearchIndex, str]:
        """Open the index with the served model that it belongs to; load its own model if none is served."""
        for model in by_name.values():
            try:
                return SearchIndex.open(folder, model.bert), model.name
            except ValueError:
                continue
        model = self._load(read_json(folder / MODEL), by_name)
        return SearchIndex.open(folder, model.bert), model.name

    def _load(self, name: str, by_name: dict[str, ServedModel]) -> ServedModel:
        """Load a model into a table of models; weights that it has in common with the others are held once."""
        bert = open_in(self.context, name)
        share_weights(bert, [other.bert for other in by_name.values()])
        model = ServedModel(unique_name(name, by_name), bert)
        by_name[model.name] = model
        return model

    def warm_up(self) -> None:
        """Find the methods of all models, and check their first answers, unless a reload has."""
        with self.in_turn:
            if not self.is_ready:
                for model in self.by_name.values():
                    model.warm_up()
                trim_malloc()  # the first answers took more
                self.is_ready = True

    def check_ready(self) -> None:
        """Raise HttpError 503 before the first right answers."""
        if not self.is_ready:
            raise HttpError("the models are not ready yet", 503, "Unhealthy", {"Retry-After": "1"})

    def find(self, name: str) -> ServedModel:
        """Return a model by its name. Raises HttpError 404 for another name."""
        if name not in self.by_name:
            raise HttpError(f"model: expected one of {', '.join(self.by_name)}, got {name[:80]!r}", 404, "Validation")
        return self.by_name[name]

    def choose(self, method: str, name: str | None = None) -> ServedModel:
        """Return the named model, or the first one that has a method, if possible as its purpose.

        Raises HttpError 404 for a name that is not served, 424 for a method that the model lacks.
        """
        candidates = [model for model in self.by_name.values() if method in model.methods]
        if name is not None:
            model = self.find(name)
            if model not in candidates:
                raise HttpError(f"{name}: this model answers {', '.join(model.methods)}, not {method}", 424, "Backend")
            return model
        if not candidates:
            raise HttpError(f"no model here answers {method}; GET /models lists what each one answers", 424, "Backend")
        return min(candidates, key=lambda model: (model.purpose != method, model.bert.task is not None))


def unique_name(folder: str, taken: Mapping[str, Any]) -> str:
    """Return the last part of a folder's name, with a number if another model has it.

    >>> unique_name("runs/mrpc/", {"mrpc": None})
    'mrpc-2'
    """
    path = Path(folder)
    if path.name in ("", ".."):  # of "." and of a path that ends so; others keep the name that was given, of a link too
        path = path.resolve()
    name = path.parent.name if path.name == "model" and path.parent.name else path.name
    return next(new for number in range(1, 1_000) if (new := name if number == 1 else f"{name}-{number}") not in taken)


def share_weights(bert: Bert, others: Sequence[Bert]) -> None:
    """Replace weights of the encoder by equal ones of other models, so that heads on one trunk hold it once."""
    for other in others:
        known = dict(other.model.encoder.named_parameters())
        for name, parameter in bert.model.encoder.named_parameters():
            equal = known.get(name)
            if equal is not None and equal.shape == parameter.shape and torch.equal(equal, parameter):
                parameter.data = equal.data
