"""`bertwright mine-negatives`: texts that a search finds near an anchor, though they do not belong to it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from bertwright.base.files import new_file
from bertwright.base.messages import count_of, shorten
from bertwright.base.reporter import SILENT, Fields, Heading, Line, Reporter, Rows
from bertwright.inference.bert import embedding_warnings, load_in, load_reranker
from bertwright.inference.search_settings import MineSettings
from bertwright.inference.text_vectors import embed_by_role, normalize_vectors
from bertwright.search.bm25 import Bm25
from bertwright.search.exact_search import find_nearest, score_pairs
from bertwright.search.mining import Collection, Mined, MiningCounts, Pair, Rescore, by_anchor, group_positives, mine
from bertwright.tables.retrieval_folders import read_documents
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.embedding_data import RetrievalExample, as_rows
from bertwright.tasks.embedding_scores import DOCUMENT, QUERY, Embed
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.unknown_rates import InputCounts
from bertwright.training.context import ExecutionContext, execution_context

FoundTexts = dict[str, tuple[list[int], list[float]]]
"""Positions and scores of the texts that were found, by anchor."""


def mine_negatives(settings: MineSettings, reporter: Reporter = SILENT) -> MiningCounts:
    """Write the pairs with their negatives; return what was counted. Raises ValueError for rows without a positive."""
    task = settings.overrides.apply_to(Embedding())
    assert isinstance(task, Embedding)
    files = TaskSettings(task.kind, train=settings.train).files("train")
    examples = [example for path in files for example in task.read(path)]
    rows = [row for row in as_rows(examples) if row.score is None or row.score >= 1]
    pairs = [Pair(row.anchor, text) for row in rows for text in row.positives if text.strip()]
    if not pairs:
        raise ValueError(f"{settings.train[0]}: no row has an anchor and a positive; name them with --columns")
    corpus = [text for one in examples if isinstance(one, RetrievalExample) for text in one.data.documents.values()]
    corpus += [text for path in settings.corpus for _, text in read_documents(path, settings.column, task.encoding)]
    texts = Collection.of(pairs, corpus)
    anchors = [*dict.fromkeys(pair.anchor.strip() for pair in pairs)]
    with new_file(settings.output) as temporary, execution_context(settings.device) as context:
        rescore = _open_reranker(settings, context)
        most = max(map(len, group_positives(pairs, texts).values()))
        depth = min(settings.rules.to_rank + most, len(texts.texts))
        if settings.by == "bm25":
            found, positive_scores = _search_by_words(pairs, anchors, texts, depth)
        else:
            model, read = load_in(context, settings.model), InputCounts()
            with reporter.progress("embedding", len(anchors) + len(texts.texts)) as advance:
                embed = embed_by_role(model, read, advance)
                found, positive_scores = _search_by_vectors(embed, pairs, anchors, texts, depth)
            for warning in embedding_warnings(read):
                reporter.note(warning)
        mined, counts = mine(pairs, texts, found, positive_scores, settings.rules, rescore)
        _report(settings, mined, counts, reporter)
        if counts.none == len(mined):
            raise ValueError("no row has a negative; give more texts with --corpus, or a smaller --margin")
        lines = [json.dumps(_record(one, settings.scores), ensure_ascii=False) for one in mined if one.negatives]
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    reporter.record(Line(f"{settings.output}: {count_of(len(lines), 'row', 'rows')}"))
    return counts


def _search_by_words(
    pairs: Sequence[Pair], anchors: Sequence[str], texts: Collection, depth: int
) -> tuple[FoundTexts, list[float]]:
    """Return what BM25 finds for each anchor, and its scores of the positives."""
    index = Bm25.build(texts.texts)
    found = by_anchor(anchors, index.find(anchors, depth))
    return found, [float(index.score(pair.anchor)[texts.places[pair.positive.strip()]]) for pair in pairs]


def _search_by_vectors(
    embed: Embed, pairs: Sequence[Pair], anchors: Sequence[str], texts: Collection, depth: int
) -> tuple[FoundTexts, list[float]]:
    """Return the texts nearest to each anchor, and the cosines of the positives."""
    queries, vectors = (normalize_vectors(embed(*given)) for given in ((anchors, QUERY), (texts.texts, DOCUMENT)))
    numbers = {anchor: number for number, anchor in enumerate(anchors)}
    rows = np.array([numbers[pair.anchor.strip()] for pair in pairs])
    places = np.array([texts.places[pair.positive.strip()] for pair in pairs])
    found = by_anchor(anchors, find_nearest(queries, vectors, depth))
    return found, score_pairs(queries, vectors, rows, places).tolist()


def _open_reranker(settings: MineSettings, context: ExecutionContext) -> Rescore | None:
    if settings.reranker is None:
        return None
    reranker = load_reranker(context, settings.reranker)

    def rescore(query: str, texts: Sequence[str]) -> list[float]:
        ranked = reranker.rank(query, texts, top_k=len(texts))
        return [one.score for one in sorted(ranked, key=lambda one: one.position)]

    return rescore


def _record(one: Mined, with_scores: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"anchor": one.pair.anchor, "positive": one.pair.positive}
    record |= {f"negative_{number}": text for number, text in enumerate(one.negatives, 1)}
    return record | ({"pos_scores": [one.positive_score], "neg_scores": [*one.scores]} if with_scores else {})


def _report(settings: MineSettings, mined: Sequence[Mined], counts: MiningCounts, reporter: Reporter) -> None:
    """Print the scores of positives and negatives, what the rules left out, and texts at the margin."""
    reporter.record(Heading(f"Negatives by {settings.by}"))
    rows = []
    for name, scores in (("positives", counts.positive_scores), ("negatives", counts.negative_scores)):
        if scores:
            quartiles = np.quantile(scores, [0, 0.25, 0.5, 0.75, 1])
            rows.append((name, f"{len(scores):,}", *(f"{score:.3f}" for score in (np.mean(scores), *quartiles))))
    reporter.record(Rows(("", "number", "mean", "lowest", "25 %", "median", "75 %", "highest"), rows))
    left_out = {
        "known positives or equal texts": f"{counts.known:,} found texts left out",
        f"margin {settings.rules.margin:g}": f"{counts.margin:,} found texts left out",
        f"fewer than {settings.rules.number}": f"{counts.fewer:,} of {len(mined):,} rows",
        "no negative": f"{counts.none:,} of {len(mined):,} rows, which are not written",
    }
    reporter.record(Fields(left_out))
    at_margin = {one.pair: (one.positive_score, *one.at_margin) for one in mined if one.at_margin}  # copies count once
    nearest = sorted(at_margin.items(), key=lambda item: item[1][2] - item[1][0])
    for (anchor, positive), (positive_score, text, score) in nearest[: settings.show_examples]:
        shown = {"anchor": anchor, f"positive {positive_score:.3f}": positive, f"left out {score:.3f}": text}
        reporter.record(Fields({name: shorten(value) for name, value in shown.items()}))
