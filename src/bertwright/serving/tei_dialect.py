"""Routes of text-embeddings-inference (Hugging Face), with its bodies and replies."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct, field

from bertwright.inference.text_vectors import normalize_vectors
from bertwright.serving.batcher import Call, Request
from bertwright.serving.replies import HttpError
from bertwright.serving.route import Dimensions, Job, Name, Route, Texts, make_job, to_list
from bertwright.serving.served_models import ServedModel, ServedModels
from bertwright.tasks.reranking import Reranking, rank_texts
from bertwright.vocabulary.tokenizer import TextTokenizer

Side = Literal["Left", "Right", "left", "right"]


class Truncating(Struct, kw_only=True):
    """The fields of text-embeddings-inference about long texts: what is too long loses its end, and the reply says so.

    `truncate` false asks for an error instead.
    """

    truncate: bool | None = None
    truncation_direction: Side = "Right"
    model: Name = None


class EmbedRequest(Truncating):
    """Texts, and the options of `Bert.embed`."""

    inputs: Texts
    normalize: bool | None = None
    prompt_name: str | None = None
    dimensions: Dimensions = None
    pooling: str | None = None
    max_length: Annotated[int, Meta(ge=3, le=1_000_000)] | None = None


def check_truncation(body: Truncating) -> None:
    """Raise HttpError 422 for truncation at the beginning of a text, which models here do not do."""
    if body.truncation_direction.lower() == "left":
        raise HttpError("truncation_direction: expected Right, got Left; cut the texts yourself", 422, "Validation")


def check_whole(body: Truncating, request: Request) -> None:
    """Raise HttpError 413 if a text lost tokens although `truncate` is false."""
    if body.truncate is False and (items := request.truncated_items):
        raise HttpError(f"inputs: text {items[0]} is longer than the model reads; allow truncate", 413, "Validation")


def embed(models: ServedModels, body: EmbedRequest, name: Name) -> Job:
    check_truncation(body)

    def reply(request: Request) -> list[list[float]]:
        check_whole(body, request)
        return [vector.tolist() for vector in request.values]

    given = {
        "normalize": body.normalize, "prompt_name": body.prompt_name, "dims": body.dimensions, "pooling": body.pooling,
        "max_length": body.max_length,
    }  # fmt: skip
    options = {option: value for option, value in given.items() if value is not None}
    return make_job(models, "embed", name, to_list(body.inputs), reply, **options)


class PredictRequest(Truncating):
    """A text; or a list of texts, of lists of one text, and of pairs."""

    inputs: str | list[str | Annotated[list[str], Meta(min_length=1, max_length=2)]]
    raw_scores: bool = False


class Score(Struct):
    """A label and its probability."""

    score: float
    label: str


def to_scores(prediction: Any) -> list[Score]:
    """Return labels with their probabilities, the most probable one first; a number has the label "value"."""
    if isinstance(prediction, float):
        return [Score(prediction, "value")]
    return sorted((Score(p, label) for label, p in prediction.probabilities.items()), key=lambda one: -one.score)


def predict(models: ServedModels, body: PredictRequest, name: Name) -> Job:
    """Prepare a classification. A list of two texts is two inputs, as in text-embeddings-inference."""
    check_truncation(body)
    if body.raw_scores:
        raise ValueError("raw_scores: expected false, got true; this server gives probabilities")
    given: Sequence[Any] = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    items = [text if isinstance(text, str) else text[0] if len(text) == 1 else tuple(text) for text in given]

    def reply(request: Request) -> Any:
        check_whole(body, request)
        scores = [to_scores(value) for value in request.values]
        return scores[0] if isinstance(body.inputs, str) else scores

    return make_job(models, "classify", name, items, reply)


class RerankRequest(Truncating):
    """A query and texts."""

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False


class Rank(Struct, omit_defaults=True):
    """The index of a text and its score."""

    index: int
    score: float
    text: str | None = None


def score_of(model: ServedModel, score: float, raw: bool) -> float:
    """Return a re-ranker's score, or the number before its sigmoid."""
    task = model.bert.task
    if raw and isinstance(task, Reranking) and task.activation == "sigmoid":
        bounded = np.clip(score, 1e-12, 1 - 1e-12)
        return float(np.log(bounded) - np.log1p(-bounded))
    return score


def rerank(models: ServedModels, body: RerankRequest, name: Name) -> Job:
    check_truncation(body)

    def reply(request: Request) -> list[Rank]:
        check_whole(body, request)
        model = models.find(request.call.model)
        return [
            Rank(one.position, score_of(model, one.score, body.raw_scores), one.text if body.return_text else None)
            for one in rank_texts(body.texts, request.values)
        ]

    return make_job(models, "rank", name, [(body.query, text) for text in body.texts], reply)


class SimilarityInputs(Struct):
    """A text, and others that it is compared with."""

    source_sentence: str
    sentences: list[str]


class SimilarityParameters(Truncating):
    """Options of the cosines."""

    prompt_name: str | None = None


class SimilarityRequest(Struct):
    """Texts to compare."""

    inputs: SimilarityInputs
    parameters: SimilarityParameters | None = None
    model: Name = None


def prepare_similarity(
    models: ServedModels, given: SimilarityInputs, name: Name, parameters: SimilarityParameters
) -> Job:
    """Prepare the cosines of a text with others."""
    check_truncation(parameters)
    options = {} if parameters.prompt_name is None else {"prompt_name": parameters.prompt_name}

    def reply(request: Request) -> list[float]:
        check_whole(parameters, request)
        vectors = normalize_vectors(np.stack(request.values))
        return [float(cosine) for cosine in vectors[1:] @ vectors[0]]

    return make_job(models, "embed", name, [given.source_sentence, *given.sentences], reply, **options)


def similarity(models: ServedModels, body: SimilarityRequest, name: Name) -> Job:
    return prepare_similarity(models, body.inputs, name, body.parameters or SimilarityParameters())


class TokenizeRequest(Struct):
    """Texts to split into tokens."""

    inputs: Texts
    add_special_tokens: bool = True
    model: Name = None


class SimpleToken(Struct):
    """A token with its place in the text, in characters; a special token has none."""

    id: int
    text: str
    special: bool
    start: int | None = None
    stop: int | None = None


def use_tokenizer(models: ServedModels, name: Name, items: Sequence[Any], function: Any, flag: bool) -> Job:
    """Prepare what a function makes of texts or ids with a tokenizer."""
    call = Call(models.choose("embed", name).name, "tokenizer", (("function", function), ("flag", flag)))
    return Job(call, items, lambda request: request.values)


def tokenize(models: ServedModels, body: TokenizeRequest, name: Name) -> Job:
    return use_tokenizer(models, name, to_list(body.inputs), split_texts, body.add_special_tokens)


def split_texts(tokenizer: TextTokenizer, texts: Sequence[str], with_special: bool) -> list[list[SimpleToken]]:
    return [
        [
            token
            for number, (start, end) in zip(encoding.ids.tolist(), encoding.offsets.tolist(), strict=True)
            if not (token := to_token(tokenizer, number, start, end)).special or with_special
        ]
        for encoding in tokenizer.encode_batch(texts)
    ]


def to_token(tokenizer: TextTokenizer, number: int, start: int, end: int) -> SimpleToken:
    """Return a token; a special token that stands in no text has no place."""
    if end == 0 and number in tokenizer.special_ids:
        return SimpleToken(number, tokenizer.token(number), True)
    return SimpleToken(number, tokenizer.token(number), False, start, end)


Ids = list[Annotated[int, Meta(ge=0, le=2**31)]]


class DecodeRequest(Struct):
    """Ids of one text, or of several."""

    ids: list[Annotated[int, Meta(ge=0, le=2**31)] | Ids]
    skip_special_tokens: bool = True
    model: Name = None


def decode(models: ServedModels, body: DecodeRequest, name: Name) -> Job:
    """Prepare the texts of ids. Raises ValueError for ids beside lists of them."""
    lists = sum(isinstance(row, list) for row in body.ids)
    if lists not in (0, len(body.ids)):
        raise ValueError("ids: expected ids of one text, or a list for each of several texts, got both")
    return use_tokenizer(models, name, body.ids if lists else [body.ids], join_ids, body.skip_special_tokens)


def join_ids(tokenizer: TextTokenizer, rows: Sequence[Sequence[int]], skip_special: bool) -> list[str]:
    """Return the texts of ids. Raises ValueError for an id outside the vocabulary."""
    return [tokenizer.decode(row, skip_special) for row in rows]


class Info(Struct):
    """What text-embeddings-inference says of its model; here of the first model."""

    model_id: str
    model_sha: str | None
    model_dtype: str
    model_type: dict[str, Any]
    max_input_length: int
    max_client_batch_size: int
    max_batch_tokens: int
    auto_truncate: bool = True
    version: str = field(default_factory=lambda: version("bertwright"))


def info(models: ServedModels) -> Info:
    """Describe the first model. Raises HttpError 503 until it is known what the model answers."""
    models.check_ready()
    model, limits = next(iter(models.by_name.values())), models.settings.limits
    labels = [*model.bert.task.label_names] if model.bert.task else []
    kind = {"rank": "reranker", "classify": "classifier"}.get(model.purpose, "embedding")
    modules, names = model.bert.sentence_modules, {str(n): label for n, label in enumerate(labels)}
    pooling = "+".join(modules.modes) if modules and modules.modes else "mean"
    details = {"pooling": pooling} if kind == "embedding" else {"id2label": names}
    sizes = model.max_length, limits.max_texts, models.batch_tokens
    return Info(model.name, None, models.context.dtype_name, {kind: details}, *sizes)


ROUTES = (
    Route("/info", "GET", "Describe the first model", None, Info, info),
    Route("/embed", "POST", "Compute vectors of texts", EmbedRequest, list[list[float]], embed),
    Route("/predict", "POST", "Label texts and pairs", PredictRequest, list[Score | list[Score]], predict),
    Route("/rerank", "POST", "Order texts by their relevance", RerankRequest, list[Rank], rerank),
    Route("/similarity", "POST", "Compute cosines of texts", SimilarityRequest, list[float], similarity),
    Route("/tokenize", "POST", "Show tokens", TokenizeRequest, list[list[SimpleToken]], tokenize),
    Route("/decode", "POST", "Turn ids into text", DecodeRequest, list[str], decode),
)
