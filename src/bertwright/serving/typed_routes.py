"""The server's own routes: one for each method of the Python interface, with every field of its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta, Struct

from bertwright.inference.text_settings import GenerationSettings
from bertwright.serving.batcher import Request
from bertwright.serving.model_list import ModelList, list_models
from bertwright.serving.model_methods import Document
from bertwright.serving.route import Count, Job, Name, Route, Texts, make_job, to_list
from bertwright.serving.served_models import ServedModels
from bertwright.tasks.classification import LabelPrediction
from bertwright.tasks.multi_label import LabelsPrediction

T = TypeVar("T")
Pair = tuple[str, str]
Endings = Annotated[list[str], Meta(min_length=2, max_length=100)]


class ModelReply(Struct):
    """What every reply says of the model and the texts that it has read."""

    model: str
    tokens: int
    """Tokens that the model has read."""
    truncated: list[int]
    """Indices of the texts that lost tokens at their end."""


class Predictions(ModelReply, Generic[T]):
    """A result for each text, pair or question."""

    predictions: list[T]


def reply_with(convert: Callable[[Any], T]) -> Callable[[Request], Predictions[T]]:
    """Return the function that builds a reply from the results of all items."""
    return lambda request: describe(request, [convert(value) for value in request.values])


def describe(request: Request, predictions: list[T]) -> Predictions[T]:
    return Predictions(request.call.model, sum(request.tokens), request.truncated_items, predictions)


def check_lengths(name: str, values: Sequence[Any], others: Sequence[Any]) -> None:
    """Raise ValueError, naming the second field, for lists of different lengths."""
    if len(values) != len(others):
        raise ValueError(f"{name}: expected {len(values)} of them, got {len(others)}")


class ClassifyRequest(Struct):
    """Texts, or pairs of texts for a model that reads pairs."""

    texts: str | list[str | Pair]
    model: Name = None


class PairRequest(Struct):
    """Pairs of texts."""

    texts: list[Pair]
    model: Name = None


class Label(Struct, omit_defaults=True):
    """A classification has label and probability, a multi-label task labels, a regression a value."""

    label: str | None = None
    probability: float | None = None
    labels: list[str] | None = None
    probabilities: dict[str, float] | None = None
    value: float | None = None


def to_label(prediction: Any) -> Label:
    if isinstance(prediction, LabelPrediction):
        return Label(prediction.label, prediction.probability, probabilities=prediction.probabilities)
    if isinstance(prediction, LabelsPrediction):
        return Label(labels=[*prediction.labels], probabilities=prediction.probabilities)
    return Label(value=float(prediction))


def classify(models: ServedModels, body: ClassifyRequest | PairRequest, name: Name) -> Job:
    items = [body.texts] if isinstance(body.texts, str) else body.texts
    return make_job(models, "classify", name, items, reply_with(to_label))


class ChooseRequest(Struct):
    """A prompt with its endings, or a list of prompts with a list of endings for each."""

    prompt: Texts
    endings: Annotated[list[str | Endings], Meta(min_length=1)]
    model: Name = None


class Choice(Struct):
    """The index of the most probable ending, from 0."""

    choice: int
    probability: float
    probabilities: list[float]


def choose(models: ServedModels, body: ChooseRequest, name: Name) -> Job:
    """Prepare a choice. Raises ValueError for lists of different lengths."""
    prompts = to_list(body.prompt)
    given: Sequence[Any] = [body.endings] if isinstance(body.prompt, str) else body.endings
    check_lengths("endings", prompts, given)
    numbers = {
        len(ends) if isinstance(ends, list) and not any(isinstance(e, list) for e in ends) else 0 for ends in given
    }
    if len(numbers) > 1 or min(numbers, default=2) < 2:
        raise ValueError("endings: expected a list of at least two for each prompt, all of the same length")
    items = [(prompt, tuple(endings)) for prompt, endings in zip(prompts, given, strict=True)]
    reply = reply_with(lambda value: Choice(value.choice, value.probability, [*value.probabilities]))
    return make_job(models, "choose", name, items, reply, endings=max(numbers, default=2))


class TagRequest(Struct):
    """Texts, or lists of words; with `document`, the sentences of one document in order."""

    texts: str | list[str | list[str]]
    document: bool = False
    model: Name = None


class Span(Struct):
    """A span of the text (characters from start to end) and its type."""

    label: str
    text: str
    start: int
    end: int
    probability: float


class Tags(Struct):
    """The tag of each word, its probability, and the spans that the tags spell."""

    words: list[str]
    tags: list[str]
    probabilities: list[float]
    entities: list[Span]


def to_tags(prediction: Any) -> Tags:
    words, tags, probabilities, entities = prediction
    return Tags([*words], [*tags], [*probabilities], [Span(*entity) for entity in entities])


def tag(models: ServedModels, body: TagRequest, name: Name) -> Job:
    texts = [body.texts] if isinstance(body.texts, str) else body.texts
    items = [text if isinstance(text, str) else tuple(text) for text in texts]
    if not body.document:
        return make_job(models, "tag", name, items, reply_with(to_tags))
    document = Document(items)
    parts = [(document, index) for index in range(len(items))]
    return make_job(models, "tag", name, parts, reply_with(to_tags), document=True)


class AnswerRequest(Struct):
    """A question and its context; or a list of questions, with one context for all or one for each."""

    question: Texts
    context: Texts
    model: Name = None


class Candidate(Struct):
    """A span that may be the answer; the empty text from 0 to 0 stands for no answer."""

    text: str
    start: int
    end: int
    probability: float
    score: float


class AnswerText(Candidate):
    """The answer, the score of no answer, and the best spans."""

    null_score: float
    margin: float
    candidates: list[Candidate]


def to_answer(value: Any) -> AnswerText:
    candidates = [Candidate(*candidate) for candidate in value.candidates]
    scores = value.probability, value.score, value.null_score, value.margin
    return AnswerText(value.text, value.start, value.end, *scores, candidates)


def answer(models: ServedModels, body: AnswerRequest, name: Name) -> Job:
    """Prepare answers. Raises ValueError for lists of different lengths."""
    questions = to_list(body.question)
    contexts = [body.context] * len(questions) if isinstance(body.context, str) else body.context
    check_lengths("context", questions, contexts)
    return make_job(models, "answer", name, [*zip(questions, contexts, strict=True)], reply_with(to_answer))


class FillMaskRequest(Struct):
    """Texts with [MASK] (or the model's own mask token), and the number of candidates for each."""

    texts: Texts
    top_k: Count = 5
    model: Name = None


class Token(Struct):
    """A token that may replace a [MASK]; it begins with ## if it continues the word before."""

    token: str
    probability: float


class Filled(Struct):
    """The text with the best tokens, and the candidates for each [MASK]."""

    text: str
    masks: list[list[Token]]


def fill_mask(models: ServedModels, body: FillMaskRequest, name: Name) -> Job:
    reply = reply_with(lambda value: Filled(value.text, [[Token(*one) for one in mask] for mask in value.masks]))
    return make_job(models, "fill-mask", name, to_list(body.texts), reply, top_k=body.top_k)


class GenerateRequest(Struct):
    """Beginnings of texts, and how they are continued (as in `bertwright generate`)."""

    prompts: Texts
    max_new_tokens: Count = 40
    sample: bool = True
    temperature: Annotated[float, Meta(gt=0, le=1_000)] = 1.0
    top_k: Count | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    num_beams: Annotated[int, Meta(ge=1, le=64)] = 1
    seed: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    model: Name = None


class Continuation(Struct):
    """A continuation without its prompt; the log-probability is in nats."""

    text: str
    log_probability: float


def generate(models: ServedModels, body: GenerateRequest, name: Name) -> Job:
    """Prepare continuations. Raises ValueError for settings that contradict each other."""
    settings = GenerationSettings(
        body.max_new_tokens, body.sample, body.temperature, body.top_k, body.top_p, body.num_beams, body.seed
    )
    prompts, reply = [*enumerate(to_list(body.prompts))], reply_with(lambda value: Continuation(*value))
    return make_job(models, "generate", name, prompts, reply, settings=settings)


class ScoreRequest(Struct):
    """Texts whose probability a left-to-right language model computes."""

    texts: Texts
    model: Name = None


class TextScore(Struct):
    """The log-probability in nats, the number of predicted tokens, and the perplexity."""

    log_probability: float
    tokens: int
    perplexity: float


def score(models: ServedModels, body: ScoreRequest, name: Name) -> Job:
    reply = reply_with(lambda value: TextScore(value.log_probability, value.tokens, value.perplexity))
    return make_job(models, "score", name, to_list(body.texts), reply)


class NextSentenceRequest(Struct):
    """Two texts, or two lists of texts."""

    first: Texts
    second: Texts
    model: Name = None


class NextSentenceReply(ModelReply):
    """The probability that each second text follows the first."""

    probabilities: list[float]


def next_sentence(models: ServedModels, body: NextSentenceRequest, name: Name) -> Job:
    """Prepare next-sentence predictions. Raises ValueError for lists of different lengths."""

    def reply(request: Request) -> NextSentenceReply:
        return NextSentenceReply(request.call.model, sum(request.tokens), request.truncated_items, request.values)

    firsts, seconds = to_list(body.first), to_list(body.second)
    check_lengths("second", firsts, seconds)
    return make_job(models, "next-sentence", name, [*zip(firsts, seconds, strict=True)], reply)


class AttentionRequest(Struct):
    """A text, or two."""

    text: str
    text_pair: str | None = None
    model: Name = None


class AttentionReply(Struct):
    """Tokens, and the weights by layer, head, attending and attended token."""

    model: str
    token_texts: list[str]
    weights: list[list[list[list[float]]]]


def attention(models: ServedModels, body: AttentionRequest, name: Name) -> Job:
    def reply(request: Request) -> AttentionReply:
        (value,) = request.values
        return AttentionReply(request.call.model, [*value.tokens], value.weights.tolist())

    return make_job(models, "attention", name, [(body.text, body.text_pair)], reply)


ROUTES = (
    Route("/models", "GET", "List the models and what they answer", None, ModelList, list_models),
    Route("/classify", "POST", "Label texts, or pairs", ClassifyRequest, Predictions[Label], classify),
    Route("/pair", "POST", "Label pairs of texts", PairRequest, Predictions[Label], classify),
    Route("/choose", "POST", "Choose the ending of a prompt", ChooseRequest, Predictions[Choice], choose),
    Route("/tag", "POST", "Tag words, find entities", TagRequest, Predictions[Tags], tag),
    Route("/answer", "POST", "Answer questions from a context", AnswerRequest, Predictions[AnswerText], answer),
    Route("/fill-mask", "POST", "Predict the tokens for [MASK]", FillMaskRequest, Predictions[Filled], fill_mask),
    Route("/generate", "POST", "Continue texts", GenerateRequest, Predictions[Continuation], generate),
    Route("/score", "POST", "Compute how probable texts are", ScoreRequest, Predictions[TextScore], score),
    Route(
        "/next-sentence", "POST", "Say whether a text follows", NextSentenceRequest, NextSentenceReply, next_sentence
    ),
    Route("/attention", "POST", "Show attention weights", AttentionRequest, AttentionReply, attention),
)
