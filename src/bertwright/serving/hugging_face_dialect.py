"""Hugging Face's tasks: `huggingface_hub.InferenceClient(model="http://…")` posts inputs and parameters to one path.

The input decides the task: a question with its context, a text to compare with others, else the model's purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct, convert, field

from bertwright.serving.batcher import Request
from bertwright.serving.replies import HttpError
from bertwright.serving.route import Count, Dimensions, Job, Name, Route, make_job, to_list
from bertwright.serving.served_models import ServedModels
from bertwright.serving.tei_dialect import (
    EmbedRequest,
    Side,
    SimilarityInputs,
    SimilarityParameters,
    embed,
    prepare_similarity,
    to_scores,
)


class Question(Struct):
    """A question and the text that may answer it."""

    question: str
    context: str


class Parameters(SimilarityParameters):
    """The parameters that one task or another follows."""

    top_k: Count | None = None
    function_to_apply: str | None = None
    aggregation_strategy: Literal["simple", "first"] | None = None
    ignore_labels: list[str] = field(default_factory=list)


def read_parameters(given: dict[str, Any] | None, *followed: str) -> Parameters:
    """Return the parameters that a task follows. Raises ValueError for others, unless they are null."""
    chosen = {name: value for name, value in (given or {}).items() if value is not None}
    if odd := [name for name in chosen if name not in followed]:
        expected = ", ".join(followed) or "none"
        raise ValueError(f"parameters: {odd[0][:80]} is not followed here; expected {expected}; omit it")
    return convert(chosen, Parameters)


class TaskRequest(Struct):
    """Inputs of a task, and its parameters; options of vectors stand beside them."""

    inputs: str | list[str] | dict[str, Any]
    parameters: dict[str, Any] | None = None
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Side = "right"
    prompt_name: str | None = None
    dimensions: Dimensions = None
    encoding_format: Literal["float"] | None = None


def run_task(models: ServedModels, body: TaskRequest, name: Name) -> Job:
    """Prepare the task that the inputs and the model have. Raises ValueError for inputs that no task has."""
    if isinstance(body.inputs, dict):
        if "source_sentence" in body.inputs:
            parameters = read_parameters(body.parameters, "prompt_name", "truncate", "truncation_direction")
            return prepare_similarity(models, convert(body.inputs, SimilarityInputs), name, parameters)
        return answer_question(models, convert(body.inputs, Question), read_parameters(body.parameters, "top_k"), name)
    model = models.find(name) if name is not None else next(iter(models.by_name.values()))
    if model.purpose not in TASKS:
        raise HttpError(f"{model.name}: no task of Hugging Face's client; it answers /{model.purpose}", 424, "Backend")
    return TASKS[model.purpose](models, body, model.name)


def classify(models: ServedModels, body: TaskRequest, name: str) -> Job:
    """Prepare the labels of texts: for each text, a list from the most probable one on.

    Raises ValueError for another function of the outputs than the one that the task was trained with.
    """
    parameters, task = read_parameters(body.parameters, "top_k", "function_to_apply"), models.find(name).bert.task
    own = "none" if task and task.is_regression else "sigmoid" if task and task.is_multi_label else "softmax"
    if parameters.function_to_apply not in (None, own):
        raise ValueError(f"function_to_apply: expected {own}, got {parameters.function_to_apply[:80]!r}; omit it")

    def reply(request: Request) -> list[list[Any]]:
        return [to_scores(value)[: parameters.top_k] for value in request.values]

    return make_job(models, "classify", name, to_list(body.inputs), reply)  # type: ignore[arg-type]


class Group(Struct):
    """A span of the text with its type."""

    entity_group: str
    score: float
    word: str
    start: int
    end: int


def tag(models: ServedModels, body: TaskRequest, name: str) -> Job:
    """Prepare the entities of texts; for one text, a list of them.

    Words are tagged whole, by their first token, and entities are spans of words: the aggregation "first", and "simple"
    for words of one token.
    """
    ignored = read_parameters(body.parameters, "ignore_labels", "aggregation_strategy").ignore_labels

    def reply(request: Request) -> list[Any]:
        found = [
            [
                Group(one.label, one.probability, one.text, one.start, one.end)
                for one in prediction.entities
                if one.label not in ignored
            ]
            for prediction in request.values
        ]
        return found[0] if isinstance(body.inputs, str) else found

    return make_job(models, "tag", name, to_list(body.inputs), reply, document=False)  # type: ignore[arg-type]


class Filling(Struct):
    """A token in place of the [MASK], and the text with it."""

    score: float
    token_str: str
    sequence: str


def fill(text: str, mask: str, token: str) -> str:
    """Return a text with a token in place of the mask; a continuation joins the word before.

    >>> fill("He play [MASK].", "[MASK]", "##s")
    'He plays.'
    """
    joins = token.startswith("##") and f" {mask}" in text
    return text.replace(f" {mask}" if joins else mask, token.removeprefix("##"), 1)


def fill_mask(models: ServedModels, body: TaskRequest, name: str) -> Job:
    """Prepare candidates for the one [MASK] of a text. Raises ValueError for lists of texts."""
    parameters = read_parameters(body.parameters, "top_k")
    if not isinstance(body.inputs, str):
        raise ValueError("inputs: expected one text with one [MASK]; POST /fill-mask takes several")
    text, tokenizer = body.inputs, models.find(name).bert.tokenizer
    mask = tokenizer.token(tokenizer.mask_id)

    def reply(request: Request) -> list[Filling]:
        ((candidates, *others),) = [value.masks for value in request.values]
        if others:
            raise ValueError(f"inputs: expected one {mask}, got {1 + len(others)}; POST /fill-mask takes several")
        return [Filling(p, token.removeprefix("##"), fill(text, mask, token)) for token, p in candidates]

    return make_job(models, "fill-mask", name, [text], reply, top_k=parameters.top_k or 5)


class Reply(Struct):
    """An answer with its place in the context."""

    answer: str
    score: float
    start: int
    end: int


def answer_question(models: ServedModels, given: Question, parameters: Parameters, name: Name) -> Job:
    """Prepare the answer to a question, or the `top_k` best ones."""
    top_k = parameters.top_k or 1

    def reply(request: Request) -> Any:
        (value,) = request.values
        if top_k == 1:
            return Reply(value.text, value.probability, value.start, value.end)
        return [Reply(one.text, one.probability, one.start, one.end) for one in value.candidates[:top_k]]

    return make_job(models, "answer", name, [(given.question, given.context)], reply)


def compute_vectors(models: ServedModels, body: TaskRequest, name: str) -> Job:
    read_parameters(body.parameters)
    request = EmbedRequest(
        inputs=body.inputs, normalize=body.normalize, truncate=body.truncate, prompt_name=body.prompt_name,  # type: ignore[arg-type]
        truncation_direction=body.truncation_direction, dimensions=body.dimensions,
    )  # fmt: skip
    return embed(models, request, name)


TASKS: dict[str, Callable[[ServedModels, TaskRequest, str], Job]] = {
    "classify": classify,
    "tag": tag,
    "fill-mask": fill_mask,
    "embed": compute_vectors,
}
ROUTES = (
    Route("/", "POST", "Run the first model's task (Hugging Face)", TaskRequest, Any, run_task),
    Route("/models/{name}", "POST", "Run a model's task (Hugging Face)", TaskRequest, Any, run_task),
)
