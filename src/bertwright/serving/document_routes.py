"""The server's own routes that order and find documents."""

from __future__ import annotations

from msgspec import Struct

from bertwright.search.vector_index import By
from bertwright.serving.batcher import Call, Request
from bertwright.serving.replies import HttpError
from bertwright.serving.route import Count, Job, Name, Route, Texts, make_job, to_list
from bertwright.serving.served_models import ServedModels
from bertwright.serving.typed_routes import Predictions, describe, reply_with
from bertwright.tasks.reranking import rank_texts


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


def rank(models: ServedModels, body: RankRequest, name: Name) -> Job:
    def reply(request: Request) -> Predictions[Ranked]:
        return describe(request, [Ranked(*one) for one in rank_texts(body.texts, request.values)[: body.top_k]])

    return make_job(models, "rank", name, [(body.query, text) for text in body.texts], reply)


class SearchRequest(Struct):
    """Queries for the documents of the index; `rerank` lets a served re-ranker order the first 100 again."""

    query: Texts
    top_k: Count = 10
    by: By = "vectors"
    rerank: bool = False


class FoundDocument(Struct):
    """A document and its score."""

    id: str
    score: float
    text: str


def search(models: ServedModels, body: SearchRequest, name: Name) -> Job:
    """Prepare a search. Raises HttpError 424 without an index, and without a re-ranker if one is asked for."""
    if models.index is None:
        raise HttpError("search: this server has no index; bertwright serve … --index FOLDER opens one", 424, "Backend")
    reranker = models.choose("rank").bert if body.rerank else None
    options = {"index": models.index, "top_k": body.top_k, "by": body.by, "reranker": reranker}
    call = Call(models.index_model, "search", tuple(options.items()))
    return Job(call, to_list(body.query), reply_with(lambda hits: [FoundDocument(*hit) for hit in hits]))


ROUTES = (
    Route("/rank", "POST", "Order texts by their relevance", RankRequest, Predictions[Ranked], rank),
    Route("/search", "POST", "Find documents of the index", SearchRequest, Predictions[list[FoundDocument]], search),
)
