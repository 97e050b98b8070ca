"""The server's own routes: one for each method of the Python interface, with every field of its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from bertwright.inference.fill_mask import MaskPrediction
from bertwright.inference.text_settings import GenerationSettings
from bertwright.serving.batcher import Call
from bertwright.serving.errors import HttpError
from bertwright.serving.route import Count, Job, Name, Results, Route, Texts, make_job, to_list
from bertwright.serving.served_models import ServedModels
from bertwright.tasks.classification import LabelPrediction
from bertwright.tasks.multi_label import LabelsPrediction
from bertwright.tasks.reranking import rank_texts

RERANKED = 100  # documents that a re-ranker reads, as in `bertwright search query`
Pair = tuple[str, str]
Endings = Annotated[list[str], Meta(min_length=2, max_length=100)]


class Reply(Struct, kw_only=True):
    """What every reply has."""

    model: str
    tokens: int
    """Tokens that the model has read."""
    truncated: list[int]
    """Indices of the texts that lost tokens at their end."""


def describe(results: Results) -> dict[str, Any]:
    """Return the fields of `Reply`."""
    return {"model": results.model, "tokens": sum(results.tokens), "truncated": results.truncated_items}


# classify, pair


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
    """Probability of each label."""
    value: float | None = None


class ClassifyReply(Reply, kw_only=True):
    """A prediction for each text."""

    predictions: list[Label]


def to_label(prediction: Any) -> Label:
    """Convert a prediction of a task of texts or pairs."""
    if isinstance(prediction, LabelPrediction):
        return Label(prediction.label, prediction.probability, probabilities=prediction.probabilities)
    if isinstance(prediction, LabelsPrediction):
        return Label(labels=[*prediction.labels], probabilities=prediction.probabilities)
    return Label(value=float(prediction))


def classify(models: ServedModels, body: ClassifyRequest | PairRequest, name: Name = None) -> Job:
    """Prepare a classification."""

    def reply(results: Results) -> ClassifyReply:
        return ClassifyReply(**describe(results), predictions=[to_label(value) for value in results.values])

    items = [body.texts] if isinstance(body.texts, str) else body.texts
    return make_job(models, "classify", name or body.model, items, reply)


# choose


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


class ChooseReply(Reply, kw_only=True):
    """A choice for each prompt."""

    predictions: list[Choice]


def choose(models: ServedModels, body: ChooseRequest, name: Name = None) -> Job:
    """Prepare a choice. Raises ValueError for lists of different lengths."""
    prompts = to_list(body.prompt)
    endings: Sequence[Any] = [body.endings] if isinstance(body.prompt, str) else body.endings
    if len(prompts) != len(endings) or not all(isinstance(given, list) for given in endings):
        raise ValueError(f"endings: expected a list for each of {len(prompts)} prompts")
    numbers = {len(given) for given in endings}
    if len(numbers) > 1:
        raise ValueError(f"endings: expected the same number for all prompts, got {sorted(numbers)}")

    def reply(results: Results) -> ChooseReply:
        values = [Choice(one.choice, one.probability, [*one.probabilities]) for one in results.values]
        return ChooseReply(**describe(results), predictions=values)

    items = [(prompt, tuple(given)) for prompt, given in zip(prompts, endings, strict=True)]
    return make_job(models, "choose", name or body.model, items, reply, endings=max(numbers, default=2))


# tag


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


class TagReply(Reply, kw_only=True):
    """The tags of each text."""

    predictions: list[Tags]


def to_tags(prediction: Any) -> Tags:
    """Convert a `TagPrediction`."""
    words, tags, probabilities, entities = prediction
    return Tags([*words], [*tags], [*probabilities], [Span(*entity) for entity in entities])


def tag(models: ServedModels, body: TagRequest, name: Name = None) -> Job:
    """Prepare tagging."""
    texts = [body.texts] if isinstance(body.texts, str) else body.texts
    items = [text if isinstance(text, str) else tuple(text) for text in texts]

    def reply(results: Results) -> TagReply:
        values = results.values[0] if body.document else results.values
        return TagReply(**describe(results), predictions=[to_tags(value) for value in values])

    given = [tuple(items)] if body.document else items
    return make_job(models, "tag", name or body.model, given, reply, document=body.document)


# answer


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


class AnswerReply(Reply, kw_only=True):
    """An answer for each question."""

    predictions: list[AnswerText]


def to_answer(value: Any) -> AnswerText:
    """Convert an `Answer`."""
    candidates = [Candidate(*candidate) for candidate in value.candidates]
    return AnswerText(*value[:6], value.margin, candidates)


def answer(models: ServedModels, body: AnswerRequest, name: Name = None) -> Job:
    """Prepare answers. Raises ValueError for lists of different lengths."""
    questions = to_list(body.question)
    contexts = [body.context] * len(questions) if isinstance(body.context, str) else body.context
    if len(questions) != len(contexts):
        raise ValueError(f"context: expected one for each of {len(questions)} questions, got {len(contexts)}")

    def reply(results: Results) -> AnswerReply:
        return AnswerReply(**describe(results), predictions=[to_answer(value) for value in results.values])

    return make_job(models, "answer", name or body.model, [*zip(questions, contexts, strict=True)], reply)


# fill-mask


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


class FillMaskReply(Reply, kw_only=True):
    """A prediction for each text."""

    predictions: list[Filled]


def to_filled(value: MaskPrediction) -> Filled:
    """Convert a `MaskPrediction`."""
    return Filled(value.text, [[Token(*candidate) for candidate in mask] for mask in value.masks])


def fill_mask(models: ServedModels, body: FillMaskRequest, name: Name = None) -> Job:
    """Prepare the prediction of masks."""

    def reply(results: Results) -> FillMaskReply:
        return FillMaskReply(**describe(results), predictions=[to_filled(value) for value in results.values])

    return make_job(models, "fill-mask", name or body.model, to_list(body.texts), reply, top_k=body.top_k)


# generate, score, next-sentence


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


class GenerateReply(Reply, kw_only=True):
    """A continuation for each prompt."""

    predictions: list[Continuation]


def generate(models: ServedModels, body: GenerateRequest, name: Name = None) -> Job:
    """Prepare continuations. Raises ValueError for settings that contradict each other."""
    settings = GenerationSettings(
        body.max_new_tokens, body.sample, body.temperature, body.top_k, body.top_p, body.num_beams, body.seed
    )

    def reply(results: Results) -> GenerateReply:
        return GenerateReply(**describe(results), predictions=[Continuation(*value) for value in results.values[0]])

    items = [tuple(to_list(body.prompts))]
    return make_job(models, "generate", name or body.model, items, reply, settings=settings)


class ScoreRequest(Struct):
    """Texts whose probability a left-to-right language model computes."""

    texts: Texts
    model: Name = None


class TextScore(Struct):
    """The log-probability in nats, the number of predicted tokens, and the perplexity."""

    log_probability: float
    tokens: int
    perplexity: float


class ScoreReply(Reply, kw_only=True):
    """A score for each text."""

    predictions: list[TextScore]


def score(models: ServedModels, body: ScoreRequest, name: Name = None) -> Job:
    """Prepare the scores of texts."""

    def reply(results: Results) -> ScoreReply:
        values = [TextScore(value.log_probability, value.tokens, value.perplexity) for value in results.values]
        return ScoreReply(**describe(results), predictions=values)

    return make_job(models, "score", name or body.model, to_list(body.texts), reply)


class NextSentenceRequest(Struct):
    """Two texts, or two lists of texts."""

    first: Texts
    second: Texts
    model: Name = None


class NextSentenceReply(Reply, kw_only=True):
    """A probability for each pair."""

    probabilities: list[float]
    """Probability that each second text follows the first."""


def next_sentence(models: ServedModels, body: NextSentenceRequest, name: Name = None) -> Job:
    """Prepare next-sentence predictions. Raises ValueError for lists of different lengths."""
    firsts, seconds = to_list(body.first), to_list(body.second)
    if len(firsts) != len(seconds):
        raise ValueError(f"second: expected one for each of {len(firsts)} texts, got {len(seconds)}")

    def reply(results: Results) -> NextSentenceReply:
        return NextSentenceReply(**describe(results), probabilities=results.values)

    return make_job(models, "next-sentence", name or body.model, [*zip(firsts, seconds, strict=True)], reply)


# rank, search, attention


class RankRequest(Struct):
    """A query and the texts to order."""

    query: str
    texts: list[str]
    top_k: Count = 10
    model: Name = None


class Ranked(Struct):
    """A text, its index in the request, and its score."""

    position: int
    score: float
    text: str


class RankReply(Reply, kw_only=True):
    """The texts, from the best one on."""

    predictions: list[Ranked]


def rank(models: ServedModels, body: RankRequest, name: Name = None) -> Job:
    """Prepare an order of texts."""

    def reply(results: Results) -> RankReply:
        ranked = rank_texts(body.texts, results.values)[: body.top_k]
        return RankReply(**describe(results), predictions=[Ranked(*one) for one in ranked])

    return make_job(models, "rank", name or body.model, [(body.query, text) for text in body.texts], reply)


class SearchRequest(Struct):
    """Queries for the documents of the index; `rerank` lets a served re-ranker order the first 100 again."""

    query: Texts
    top_k: Count = 10
    by: Literal["vectors", "bm25", "fusion"] = "vectors"
    rerank: bool = False


class FoundDocument(Struct):
    """A document and its score."""

    id: str
    score: float
    text: str


class SearchReply(Reply, kw_only=True):
    """For each query, documents from the best one on."""

    predictions: list[list[FoundDocument]]


def search(models: ServedModels, body: SearchRequest, name: Name = None) -> Job:
    """Prepare a search. Raises HttpError 424 without an index, and without a re-ranker if one is asked for."""
    if models.index is None:
        raise HttpError(424, "Backend", "search: this server has no index; bertwright serve … --index FOLDER opens one")
    options = {
        "index": models.index,
        "top_k": body.top_k,
        "by": body.by,
        "reranker": models.choose("rank").bert if body.rerank else None,
        "depth": max(RERANKED, body.top_k),
    }

    def reply(results: Results) -> SearchReply:
        found = [[FoundDocument(*hit) for hit in hits] for hits in results.values]
        return SearchReply(**describe(results), predictions=found)

    return Job(Call(models.index_model, "search", tuple(options.items())), to_list(body.query), reply)


class AttentionRequest(Struct):
    """A text, or two."""

    text: str
    text_pair: str | None = None
    model: Name = None


class AttentionReply(Reply, kw_only=True):
    """Tokens, and the weights by layer, head, attending and attended token."""

    token_texts: list[str]
    weights: list[list[list[list[float]]]]


def attention(models: ServedModels, body: AttentionRequest, name: Name = None) -> Job:
    """Prepare attention weights."""

    def reply(results: Results) -> AttentionReply:
        (value,) = results.values
        return AttentionReply(**describe(results), token_texts=[*value.tokens], weights=value.weights.tolist())

    return make_job(models, "attention", name or body.model, [(body.text, body.text_pair)], reply)


class ModelEntry(Struct):
    """A served model."""

    name: str
    system: str
    """Architecture, such as bert."""
    task: str | None
    """Type of its task; null for a model without one."""
    labels: list[str]
    routes: list[str]
    """Paths of the own routes that it answers; its purpose comes first."""
    reads_pairs: bool
    """Whether its examples are pairs of texts."""
    max_length: int
    """Longest sequence in tokens."""
    vector_size: int
    mask_token: str | None
    examples: list[dict[str, Any]]
    """Bodies for the first of `routes`, from the file of --examples."""


class ModelList(Struct):
    """All models, in the order of the command line."""

    data: list[ModelEntry]
    search: bool
    """Whether POST /search is there."""


def list_models(models: ServedModels) -> ModelList:
    """Describe the models."""
    entries = []
    for model in models.by_name.values():
        bert, task = model.bert, model.bert.task
        masks = "fill-mask" in model.methods
        entries.append(
            ModelEntry(
                model.name,
                str(bert.model.encoder.model_type),
                task.kind if task else None,
                [*task.label_names] if task else [],
                [f"/{method}" for method in model.methods],
                bool(getattr(task, "text_pair", None)),
                task.max_length if task else bert.config.max_positions,
                bert.vector_size(),
                bert.tokenizer.token(bert.tokenizer.mask_id) if masks else None,
                model.examples,
            )
        )
    return ModelList(entries, models.index is not None)


ROUTES = (
    Route("/models", "GET", "List the models and what they answer", None, ModelList, list_models),
    Route("/classify", "POST", "Label texts, or pairs", ClassifyRequest, ClassifyReply, classify),
    Route("/pair", "POST", "Label pairs of texts", PairRequest, ClassifyReply, classify),
    Route("/choose", "POST", "Choose the ending of a prompt", ChooseRequest, ChooseReply, choose),
    Route("/tag", "POST", "Tag words, find entities", TagRequest, TagReply, tag),
    Route("/answer", "POST", "Answer questions from a context", AnswerRequest, AnswerReply, answer),
    Route("/fill-mask", "POST", "Predict the tokens for [MASK]", FillMaskRequest, FillMaskReply, fill_mask),
    Route("/generate", "POST", "Continue texts", GenerateRequest, GenerateReply, generate),
    Route("/score", "POST", "Compute how probable texts are", ScoreRequest, ScoreReply, score),
    Route(
        "/next-sentence", "POST", "Say whether a text follows", NextSentenceRequest, NextSentenceReply, next_sentence
    ),
    Route("/rank", "POST", "Order texts by their relevance", RankRequest, RankReply, rank),
    Route("/search", "POST", "Find documents of the index", SearchRequest, SearchReply, search),
    Route("/attention", "POST", "Show attention weights", AttentionRequest, AttentionReply, attention),
)
