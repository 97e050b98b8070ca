"""Cohere's and Jina's route of re-ranking."""

from __future__ import annotations

from msgspec import Struct

from bertwright.serving.batcher import Request
from bertwright.serving.route import Count, Job, Name, Route, make_job
from bertwright.serving.served_models import ServedModels
from bertwright.tasks.reranking import rank_texts


class Document(Struct):
    """A document."""

    text: str


class RerankRequest(Struct):
    """A query and documents: texts, or objects with a text."""

    query: str
    documents: list[str | Document]
    model: Name = None
    top_n: Count | None = None
    return_documents: bool = False


class RerankResult(Struct, omit_defaults=True):
    """A document's index and score."""

    index: int
    relevance_score: float
    document: Document | None = None


class Usage(Struct):
    """Numbers of tokens."""

    total_tokens: int


class RerankReply(Struct):
    """Documents by falling score."""

    model: str
    results: list[RerankResult]
    usage: Usage


def rerank(models: ServedModels, body: RerankRequest, name: Name) -> Job:
    texts = [document if isinstance(document, str) else document.text for document in body.documents]

    def reply(request: Request) -> RerankReply:
        ranked = rank_texts(texts, request.values)[: body.top_n]
        shown = [
            RerankResult(one.position, one.score, Document(one.text) if body.return_documents else None)
            for one in ranked
        ]
        return RerankReply(request.call.model, shown, Usage(sum(request.tokens)))

    return make_job(models, "rank", name, [(body.query, text) for text in texts], reply)


ROUTES = (
    Route("/v2/rerank", "POST", "Order documents (Cohere)", RerankRequest, RerankReply, rerank),
    Route("/v1/rerank", "POST", "Order documents (Cohere, Jina)", RerankRequest, RerankReply, rerank),
)
