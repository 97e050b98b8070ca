"""`bertwright search build` and `search query`: an index of documents, and what it finds."""

from __future__ import annotations

from pathlib import Path

from bertwright.base.files import read_json
from bertwright.base.messages import count_of, shorten
from bertwright.base.reporter import SILENT, Heading, Line, Reporter, Rows
from bertwright.inference.bert import Bert, load_in, load_reranker
from bertwright.inference.search_index import SearchIndex, describe_index, write_index
from bertwright.inference.search_settings import SearchBuildSettings, SearchQuerySettings
from bertwright.search.vector_index import MODEL, Document, Hit
from bertwright.tables.retrieval_folders import read_documents
from bertwright.text.decoding import FIX_INPUT, TextCodec
from bertwright.text.stdin_texts import expand_stdin
from bertwright.training.context import execution_context


def build(settings: SearchBuildSettings, reporter: Reporter = SILENT) -> None:
    """Write an index. Raises ValueError as `search.vector_index.build_index`."""
    with execution_context(settings.device) as context:
        model = load_in(context, settings.model)
        documents = (
            Document(*one)
            for path in settings.inputs
            for one in read_documents(path, settings.column, settings.encoding)
        )
        source = str(Path(settings.model).resolve() if Path(settings.model).exists() else settings.model)
        description = describe_index(model, settings.dims, settings.precision, settings.bm25, source)
        number = write_index(documents, settings.index, model, description, settings.append, reporter)
    reporter.record(Line(f"{settings.index}: {count_of(number, 'document', 'documents')}"))
    reporter.record(Line(f'bertwright search query {settings.index} "a question"'))


def query(settings: SearchQuerySettings, reporter: Reporter = SILENT) -> list[list[Hit]]:
    """Print the documents found for each query; return them."""
    if not settings.index.is_dir():
        raise ValueError(f"{settings.index}: no such index; make one with bertwright search build")
    name = settings.model or (read_json(settings.index / MODEL) if (settings.index / MODEL).is_file() else None)
    if name is None:
        raise ValueError(f"{settings.index}: no index that says where its model is; name it with --model")
    if settings.model is None and Path(name).is_absolute() and not Path(name).exists():
        raise ValueError(f"{settings.index}: its model is not at {name} any more; name it with --model")
    queries = expand_stdin(settings.queries, TextCodec(hint=FIX_INPUT))
    with execution_context(settings.device) as context:
        reranker = load_reranker(context, settings.reranker) if settings.reranker else None
        index = SearchIndex.open(settings.index, load_in(context, name))
        depth = settings.top if reranker else settings.number
        found = index.search(queries, depth, settings.by)
        if reranker is not None:
            found = [rerank(reranker, text, hits, settings.number) for text, hits in zip(queries, found, strict=True)]
    for text, hits in zip(queries, found, strict=True):
        reporter.record(Heading(shorten(text)))
        rows = [(hit.id, f"{hit.score:.4f}", shorten(hit.text)) for hit in hits]
        reporter.record(Rows(("id", "score", "text"), rows, texts=(2,)) if rows else Line("nothing found", "minor"))
    return found


def rerank(reranker: Bert, text: str, hits: list[Hit], number: int) -> list[Hit]:
    """Return the first documents in a re-ranker's order, with its scores."""
    ranked = reranker.rank(text, [hit.text for hit in hits], top_k=number) if hits else []
    return [hits[one.position]._replace(score=one.score) for one in ranked]
